//! What is kept in `freed/`, as it is known in memory: a number for each log and
//! for each segment that was set aside; and for single slots nothing, once the walk
//! after the start is through.

mod load;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::SegmentId;
use world::{Clock, Disk, File, Millis, OpenMode};

use super::Keeping;
use super::record::{AsideName, FOLDER, RUNNING, Record, Running, When, log_name};
use crate::is_not_found;
pub(super) use load::read_log;

/// A log is no longer than about this, in bytes.
const LOG_BYTES: u64 = 1 << 20;

/// A log names about so much, in bytes: its time is over as a whole.
const LOG_NAMES_BYTES: u64 = 64 << 20;

/// A log is begun so many times while something is kept, at least.
const LOGS_A_TIME: u32 = 24;

/// How often it is noted for how long the unit has run, in microseconds. A power
/// failure lets what is kept stay for so much longer.
const NOTE_EVERY_US: u64 = 60_000_000;

/// A log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log {
    /// The newest that it names.
    pub newest: When,
    /// The room of that and its own, in bytes.
    pub bytes: u64,
}

/// A segment that was set aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aside {
    pub name: AsideName,
    pub bytes: u64,
}

/// The log that is appended to.
struct OpenLog {
    begun: u64,
    file: Arc<dyn File>,
    end: u64,
}

/// What is given back next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Oldest {
    Log(u64, Log),
    Aside(Aside),
}

/// See the module's head.
pub(super) struct State {
    /// How long the unit had run when this was read, in microseconds.
    base: u64,
    /// When it was read, by the monotonic clock.
    read: Duration,
    /// The last moment that was given to anything.
    last: u64,
    noted: Running,
    given_back: i64,
    logs: BTreeMap<u64, Log>,
    /// Of them, those that an earlier process wrote and that were not read yet.
    unread: BTreeSet<u64>,
    open: Option<OpenLog>,
    asides: BTreeMap<u64, Aside>,
    /// Names of those that were given back before older logs, and say for these that
    /// there was one.
    emptied: BTreeMap<u64, AsideName>,
    of_segments: BTreeSet<(SegmentId, u64)>,
    /// Room and moment of each that was set aside.
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
    /// What logs name of each segment that is there, until the walk after the start has
    /// seen all segments. It takes as much memory as the logs take room.
    named: Option<HashMap<SegmentId, Vec<(u16, u16)>>>,
    /// Logs with records that are not durable.
    unsynced: Vec<Arc<dyn File>>,
    /// Whether names in the folder may not be durable.
    pub are_names_unsynced: bool,
    is_made: bool,
    /// A restore is not through.
    is_restoring: bool,
}

pub(super) fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

impl State {
    /// A log whose records are not known yet.
    pub fn unread(&self) -> Option<u64> {
        self.unread.first().copied()
    }

    pub fn is_unread(&self, begun: u64) -> bool {
        self.unread.contains(&begun)
    }

    /// Takes in what a log has. Of one that cannot be read that is nothing: the walk
    /// finds what it named.
    pub fn take_in(&mut self, begun: u64, records: &[Record]) {
        if self.unread.remove(&begun) {
            for record in records {
                self.note_record(begun, record);
            }
        }
    }

    fn note_record(&mut self, begun: u64, record: &Record) {
        let length = record.encode().len() as u64;
        let bytes = record.content_bytes() + length;
        let is_there = || {
            self.aside_after(record.segment, record.when.moment)
                .is_none()
        };
        if self.named.is_some()
            && is_there()
            && let Some(named) = &mut self.named
        {
            named
                .entry(record.segment)
                .or_default()
                .extend(&record.runs);
        }
        if let Some(log) = self.logs.get_mut(&begun) {
            log.newest = record.when;
            log.bytes += bytes;
            self.bytes += bytes;
        }
    }

    /// How long the unit has run, in microseconds.
    pub fn running(&self, clock: &dyn Clock) -> u64 {
        let since = clock.monotonic().saturating_sub(self.read);
        let since = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        self.base.saturating_add(since)
    }

    /// A moment that nothing else has.
    pub fn moment(&mut self, clock: &dyn Clock) -> When {
        self.last = self.running(clock).max(self.last + 1);
        When {
            moment: self.last,
            wall: clock.wall(),
        }
    }

    /// Makes the folder, if that was not done.
    pub fn make_folder(&mut self, disk: &dyn Disk) -> io::Result<()> {
        if !self.is_made {
            disk.create_directory(Path::new(FOLDER))?;
            disk.sync_directory(Path::new(""))?;
            self.is_made = true;
        }
        Ok(())
    }

    /// Appends to the log that these slots were freed now.
    pub fn log(
        &mut self,
        disk: &dyn Disk,
        clock: &dyn Clock,
        keeping: Keeping,
        (segment, slot_bytes): (SegmentId, u32),
        slots: &[u32],
    ) -> io::Result<()> {
        self.make_folder(disk)?;
        let record = Record {
            when: self.moment(clock),
            segment,
            slot_bytes,
            runs: Vec::new(),
        };
        let record = record.with_slots(slots);
        let age_us_max = (keeping.time / LOGS_A_TIME).as_micros();
        let is_full = |open: &OpenLog| {
            let names_bytes = self.logs.get(&open.begun).map_or(0, |log| log.bytes);
            open.end >= LOG_BYTES
                || names_bytes >= LOG_NAMES_BYTES
                || u128::from(record.when.moment - open.begun) >= age_us_max
        };
        let mut open = match self.open.take_if(|open| !is_full(open)) {
            Some(open) => open,
            None => {
                self.open = None;
                let begun = record.when.moment;
                let file = disk.open(&path_of(&log_name(begun)), OpenMode::CreateNew)?;
                self.logs.insert(begun, Log::empty(begun));
                self.are_names_unsynced = true;
                OpenLog {
                    begun,
                    file,
                    end: 0,
                }
            }
        };
        let bytes = record.encode();
        // After an error its end cannot be counted on: another one is begun.
        open.file.write_at(&bytes, open.end)?;
        if open.end == 0 || self.unsynced.is_empty() {
            self.unsynced.push(Arc::clone(&open.file));
        }
        open.end += bytes.len() as u64;
        self.note_record(open.begun, &record);
        self.open = Some(open);
        Ok(())
    }

    /// Which of these slots of the segment no log names; none once the walk is through,
    /// as whoever could not log some says which.
    pub fn unnamed(&self, segment: SegmentId, slots: &[u32]) -> Vec<u32> {
        let Some(named) = &self.named else {
            return Vec::new();
        };
        let runs = named.get(&segment).into_iter().flatten();
        let named: BTreeSet<u32> = runs
            .flat_map(|(first, last)| u32::from(*first)..=u32::from(*last))
            .collect();
        let mut unnamed = slots.to_vec();
        unnamed.retain(|slot| !named.contains(slot));
        unnamed
    }

    /// All segments were seen.
    pub fn walked(&mut self) {
        self.named = None;
    }

    pub fn add_aside(&mut self, name: AsideName, bytes: u64) {
        self.asides.insert(name.when.moment, Aside { name, bytes });
        self.of_segments.insert((name.segment, name.when.moment));
        if let Some(named) = &mut self.named {
            named.remove(&name.segment);
        }
        self.by_size.insert((bytes, name.when.moment));
        self.bytes += bytes;
    }

    pub fn remove_aside(&mut self, name: &AsideName) {
        if let Some(aside) = self.asides.remove(&name.when.moment) {
            self.of_segments.remove(&(name.segment, name.when.moment));
            self.by_size.remove(&(aside.bytes, name.when.moment));
            self.bytes -= aside.bytes;
        }
    }

    /// The smallest that was set aside, of several the oldest.
    pub fn smallest(&self) -> Option<Aside> {
        let (_, moment) = self.by_size.first()?;
        self.asides.get(moment).copied()
    }

    /// The file of one that was given back has no content any more.
    pub fn add_emptied(&mut self, name: AsideName) {
        self.remove_aside(&name);
        self.emptied.insert(name.when.moment, name);
        self.of_segments.insert((name.segment, name.when.moment));
    }

    /// One of these names that no log needs any more.
    pub fn unneeded(&self) -> Option<AsideName> {
        let (moment, name) = self.emptied.first_key_value()?;
        (!self.has_log_before(*moment)).then_some(*name)
    }

    pub fn remove_emptied(&mut self, name: &AsideName) {
        if self.emptied.remove(&name.when.moment).is_some() {
            self.of_segments.remove(&(name.segment, name.when.moment));
        }
    }

    /// How many there are of these names.
    pub fn emptied(&self) -> usize {
        self.emptied.len()
    }

    /// Whether a log may name slots of what was set aside then.
    pub fn has_log_before(&self, moment: u64) -> bool {
        let oldest = self.logs.first_key_value();
        oldest.is_some_and(|(begun, _)| *begun < moment)
    }

    pub fn asides(&self) -> &BTreeMap<u64, Aside> {
        &self.asides
    }

    pub fn logs(&self) -> &BTreeMap<u64, Log> {
        &self.logs
    }

    /// The moment at which the segment was set aside next after `moment`.
    pub fn aside_after(&self, segment: SegmentId, moment: u64) -> Option<u64> {
        let after = (segment, moment)..=(segment, u64::MAX);
        let (_, moment) = self.of_segments.range(after).next()?;
        Some(*moment)
    }

    /// Forgets a log, whose file is gone, or that nothing is appended to any more.
    pub fn remove_log(&mut self, begun: u64) {
        self.close_log(begun);
        self.unread.remove(&begun);
        if let Some(log) = self.logs.remove(&begun) {
            self.bytes -= log.bytes;
        }
    }

    /// Some of what a log names is not held any more.
    pub fn names_less(&mut self, begun: u64, bytes: u64) {
        if let Some(log) = self.logs.get_mut(&begun) {
            let bytes = bytes.min(log.bytes);
            log.bytes -= bytes;
            self.bytes -= bytes;
        }
    }

    /// Appends no more to that log.
    pub fn close_log(&mut self, begun: u64) {
        self.open.take_if(|open| open.begun == begun);
    }

    /// All the room that what is kept takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is to be given back first. By when it began, so that a segment that was
    /// set aside outlives the records from before that.
    pub fn oldest(&self) -> Option<Oldest> {
        let log = self.logs.first_key_value();
        let aside = self.asides.first_key_value();
        match (log, aside) {
            (Some((begun, log)), Some((moved, _))) if begun < moved => {
                Some(Oldest::Log(*begun, *log))
            }
            (_, Some((_, aside))) => Some(Oldest::Aside(*aside)),
            (Some((begun, log)), None) => Some(Oldest::Log(*begun, *log)),
            (None, None) => None,
        }
    }

    /// Whether the time is over of what was freed at `moment`. It is not as long as a
    /// restore is not through: that may need it, and logs may name what it brought back.
    pub fn is_over(&self, clock: &dyn Clock, keeping: Keeping, moment: u64) -> bool {
        let time = u64::try_from(keeping.time.as_micros()).unwrap_or(u64::MAX);
        !self.is_restoring && moment.saturating_add(time) <= self.running(clock)
    }

    /// Something that was freed then is given back.
    pub fn gives_back(&mut self, when: When) {
        self.given_back = self.given_back.max(when.wall.0);
    }

    /// What was freed up to then may have been given back; zero if nothing was.
    pub fn given_back(&self) -> Millis {
        Millis(self.given_back)
    }

    /// Logs that are to be made durable now.
    pub fn take_unsynced(&mut self) -> Vec<Arc<dyn File>> {
        std::mem::take(&mut self.unsynced)
    }

    /// A log could not be made durable: it may end anywhere. What it lacks is found
    /// by the walk after the next start.
    pub fn lose_log(&mut self) {
        self.open = None;
    }

    /// Notes for how long the unit has run, if it is time.
    pub fn note_running(&mut self, disk: &dyn Disk, clock: &dyn Clock) -> io::Result<()> {
        let now = Running {
            moment: self.running(clock),
            given_back: self.given_back,
        };
        let is_due = now.moment - self.noted.moment.min(now.moment) >= NOTE_EVERY_US;
        let is_empty = self.logs.is_empty() && self.asides.is_empty();
        if now.given_back == self.noted.given_back && (is_empty || !is_due) {
            return Ok(());
        }
        self.make_folder(disk)?;
        let path = path_of(RUNNING);
        let file = match disk.open(&path, OpenMode::Write) {
            Ok(file) => file,
            Err(error) => {
                // It may be another user's.
                if !is_not_found(&error) {
                    disk.remove(&path)?;
                }
                self.are_names_unsynced = true;
                disk.open(&path, OpenMode::CreateNew)?
            }
        };
        // Of one sector, so it is never torn.
        file.write_at(&now.encode(), 0)?;
        file.sync_data()?;
        self.noted = now;
        Ok(())
    }
}

impl Log {
    /// One that names nothing yet.
    fn empty(begun: u64) -> Self {
        let wall = Millis(0);
        Self {
            newest: When {
                moment: begun,
                wall,
            },
            bytes: 0,
        }
    }
}
