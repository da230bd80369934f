//! The index of `freed/` in memory: an entry for each log and for each stored segment. Single
//! slots take no memory once the walk after a start has ended.

mod freed_segments;
mod load;
mod logs;
mod run_clock;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::SegmentId;
use world::{Clock, Disk, Millis, OpenMode};

use super::name::{FOLDER, FreedSegmentName, RUN_TIME, Timestamp, log_name};
use super::record::{LogHeader, Record, RunTime};
use crate::is_not_found;
pub(super) use freed_segments::{FreedSegment, FreedSegments};
pub(super) use load::read_log;
pub(super) use logs::{Log, Logs};
pub(super) use run_clock::RunClock;

/// Interval at which the run time is saved, in microseconds. After a power failure, what is
/// stored stays for up to this much longer.
const SAVE_EVERY_US: u64 = 60_000_000;

/// Minimum number of logs that are begun in an undelete window.
const LOGS_A_WINDOW: u32 = 24;

/// What is removed next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Oldest {
    /// The log begun at this run time.
    Log(u64, Log),
    Segment(FreedSegment),
}

/// Slots of a segment that were freed at one time, sorted.
pub(super) struct FreedSlots<'a> {
    pub segment: SegmentId,
    pub slot_bytes: u32,
    pub slots: &'a [u32],
}

/// What is in `freed/`.
pub(super) struct Index {
    pub clock: RunClock,
    pub logs: Logs,
    pub segments: FreedSegments,
    /// The run time as it was saved last.
    saved: RunTime,
    /// Wall-clock time at which the newest that was reclaimed was freed; 0 if nothing was.
    newest_reclaimed: i64,
    /// Whether names in the folder may not be durable.
    pub are_names_unsynced: bool,
    is_created: bool,
    /// Whether a restore is incomplete.
    is_restoring: bool,
}

/// Path of a file in `freed/`, within the unit's folder.
pub(super) fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

impl Index {
    /// Adds the records of a log that was unread. For a log that cannot be read there are none:
    /// the walk finds the slots that it named.
    pub fn add_records(&mut self, begun: u64, records: &[Record]) {
        if self.logs.set_read(begun) {
            for record in records {
                self.add_record(begun, record);
            }
        }
    }

    fn add_record(&mut self, begun: u64, record: &Record) {
        let run_time_us = record.freed_at.run_time_us;
        let is_current = self
            .segments
            .next_after(record.segment, run_time_us)
            .is_none();
        self.logs.add(begun, record, is_current);
    }

    /// Creates `freed/`, unless that was done.
    pub fn create_folder(&mut self, disk: &dyn Disk) -> io::Result<()> {
        if !self.is_created {
            disk.create_directory(Path::new(FOLDER))?;
            disk.sync_directory(Path::new(""))?;
            self.is_created = true;
        }
        Ok(())
    }

    /// Appends a record to the log: these slots were freed now.
    pub fn log(
        &mut self,
        disk: &dyn Disk,
        clock: &dyn Clock,
        window: Duration,
        freed: &FreedSlots<'_>,
    ) -> io::Result<()> {
        self.create_folder(disk)?;
        let record = Record {
            freed_at: self.clock.timestamp(clock),
            segment: freed.segment,
            slot_bytes: freed.slot_bytes,
            runs: Vec::new(),
        };
        let record = record.with_slots(freed.slots);
        let begun = record.freed_at.run_time_us;
        let age_us_max = (window / LOGS_A_WINDOW).as_micros();
        let mut bytes = record.encode();
        let open = match self.logs.take_open(begun, age_us_max) {
            Some(open) => open,
            None => {
                let file = disk.open(&path_of(&log_name(begun)), OpenMode::CreateNew)?;
                self.are_names_unsynced = true;
                bytes.splice(0..0, LogHeader.encode());
                self.logs.begin(begun, file)
            }
        };
        let begun = open.begun;
        self.logs.append(open, &bytes)?;
        self.add_record(begun, &record);
        Ok(())
    }

    /// Adds a segment's file that is in `freed/`.
    pub fn add_segment(&mut self, name: FreedSegmentName, bytes: u64) {
        self.segments.add(name, bytes);
        self.logs.forget_segment(name.segment);
    }

    /// An emptied file whose name is needed by no log any more.
    pub fn unneeded_name(&self) -> Option<FreedSegmentName> {
        let name = self.segments.first_emptied()?;
        (!self.logs.has_before(name.freed_at.run_time_us)).then_some(name)
    }

    /// Room of all that is stored, in bytes.
    pub fn bytes(&self) -> u64 {
        self.logs.bytes() + self.segments.bytes()
    }

    /// What is removed first: what was begun first, so that a stored segment outlives the
    /// records from before it was stored.
    pub fn oldest(&self) -> Option<Oldest> {
        let log = self.logs.all().first_key_value();
        let segment = self.segments.all().first_key_value();
        match (log, segment) {
            (Some((begun, log)), Some((moved, _))) if begun < moved => {
                Some(Oldest::Log(*begun, *log))
            }
            (_, Some((_, segment))) => Some(Oldest::Segment(*segment)),
            (Some((begun, log)), None) => Some(Oldest::Log(*begun, *log)),
            (None, None) => None,
        }
    }

    /// Whether the window of what was freed at `run_time_us` has passed. Never while a restore is
    /// incomplete: that may need it, and logs may name slots that it has restored.
    pub fn has_expired(&self, clock: &dyn Clock, window: Duration, run_time_us: u64) -> bool {
        let window_us = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        !self.is_restoring && run_time_us.saturating_add(window_us) <= self.clock.now(clock)
    }

    /// Records that something that was freed at this time is removed.
    pub fn count_reclaimed(&mut self, freed_at: Timestamp) {
        self.newest_reclaimed = self.newest_reclaimed.max(freed_at.wall.0);
    }

    /// What was freed up to this time may have been removed; 0 if nothing was.
    pub fn newest_reclaimed(&self) -> Millis {
        Millis(self.newest_reclaimed)
    }

    /// Saves the run time, if that is due.
    pub fn save_run_time(&mut self, disk: &dyn Disk, clock: &dyn Clock) -> io::Result<()> {
        let now = RunTime {
            run_time_us: self.clock.now(clock),
            newest_reclaimed: self.newest_reclaimed,
        };
        let is_due = now.run_time_us - self.saved.run_time_us.min(now.run_time_us) >= SAVE_EVERY_US;
        let is_empty = self.logs.all().is_empty() && self.segments.all().is_empty();
        if now.newest_reclaimed == self.saved.newest_reclaimed && (is_empty || !is_due) {
            return Ok(());
        }
        self.create_folder(disk)?;
        let path = path_of(RUN_TIME);
        let file = match disk.open(&path, OpenMode::Write) {
            Ok(file) => file,
            Err(error) => {
                // It may belong to another user.
                if !is_not_found(&error) {
                    disk.remove(&path)?;
                }
                self.are_names_unsynced = true;
                disk.open(&path, OpenMode::CreateNew)?
            }
        };
        // It fits in one sector, so it is never torn.
        file.write_at(&now.encode(), 0)?;
        file.sync_data()?;
        self.saved = now;
        Ok(())
    }
}

impl Log {
    fn empty(begun: u64) -> Self {
        Self {
            newest: Timestamp {
                run_time_us: begun,
                wall: Millis(0),
            },
            bytes: 0,
        }
    }
}

/// The log that is appended to.
pub(super) struct OpenLog {
    begun: u64,
    file: Arc<dyn world::File>,
    end: u64,
}
