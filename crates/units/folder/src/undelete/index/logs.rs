//! The logs of freed slots.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use base::SegmentId;
use world::File;

use super::OpenLog;
use crate::undelete::name::Timestamp;
use crate::undelete::record::Record;

/// Length in bytes from which a log is closed.
const LOG_BYTES: u64 = 1 << 20;

/// Room of the slots that a log names, in bytes, from which it is closed: a log expires as a
/// whole.
const LOG_NAMES_BYTES: u64 = 64 << 20;

/// A log.
#[derive(Debug, Clone, Copy)]
pub(in crate::undelete) struct Log {
    /// When the newest slots that it names were freed.
    pub newest: Timestamp,
    /// Room of its slots and its records, in bytes.
    pub bytes: u64,
}

/// All logs, by the run time at which each was begun.
pub(in crate::undelete) struct Logs {
    all: BTreeMap<u64, Log>,
    /// Logs that an earlier process wrote and that are not read yet.
    unread: BTreeSet<u64>,
    open: Option<OpenLog>,
    /// The slots that logs name of current segments, until the walk after the start has seen
    /// all segments. This takes as much memory as the logs' length.
    named: Option<HashMap<SegmentId, Vec<(u16, u16)>>>,
    /// Logs with records that are not durable.
    unsynced: Vec<Arc<dyn File>>,
    bytes: u64,
}

impl Logs {
    pub fn new() -> Self {
        Self {
            all: BTreeMap::new(),
            unread: BTreeSet::new(),
            open: None,
            named: Some(HashMap::new()),
            unsynced: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds a log of an earlier process, which is not read yet.
    pub fn add_unread(&mut self, begun: u64) {
        self.all.insert(begun, Log::empty(begun));
        self.unread.insert(begun);
    }

    pub fn first_unread(&self) -> Option<u64> {
        self.unread.first().copied()
    }

    pub fn last_unread(&self) -> Option<u64> {
        self.unread.last().copied()
    }

    pub fn is_unread(&self, begun: u64) -> bool {
        self.unread.contains(&begun)
    }

    /// Marks a log as read. Returns whether it was unread.
    pub fn set_read(&mut self, begun: u64) -> bool {
        self.unread.remove(&begun)
    }

    /// Adds a record of a log. `is_current`: the segment was not deleted or replaced since.
    pub fn add(&mut self, begun: u64, record: &Record, is_current: bool) {
        if let Some(named) = self.named.as_mut().filter(|_| is_current) {
            let runs = named.entry(record.segment).or_default();
            runs.extend(&record.runs);
        }
        let bytes = record.content_bytes() + record.encoded_bytes();
        if let Some(log) = self.all.get_mut(&begun) {
            log.newest = record.freed_at;
            log.bytes += bytes;
            self.bytes += bytes;
        }
    }

    /// Takes the open log, unless it is full or older than `age_us_max` at `run_time_us`; then it
    /// is closed.
    pub fn take_open(&mut self, run_time_us: u64, age_us_max: u128) -> Option<OpenLog> {
        let open = self.open.take()?;
        let names_bytes = self.all.get(&open.begun).map_or(0, |log| log.bytes);
        let is_full = open.end >= LOG_BYTES
            || names_bytes >= LOG_NAMES_BYTES
            || u128::from(run_time_us - open.begun) >= age_us_max;
        (!is_full).then_some(open)
    }

    /// Adds a new log, which is written to `file`.
    pub fn begin(&mut self, begun: u64, file: Arc<dyn File>) -> OpenLog {
        self.all.insert(begun, Log::empty(begun));
        OpenLog {
            begun,
            file,
            end: 0,
        }
    }

    /// Appends bytes to a log and keeps it open. After an error its end is unknown, so another
    /// log is begun.
    pub fn append(&mut self, mut open: OpenLog, bytes: &[u8]) -> io::Result<()> {
        open.file.write_at(bytes, open.end)?;
        if open.end == 0 || self.unsynced.is_empty() {
            self.unsynced.push(Arc::clone(&open.file));
        }
        open.end += bytes.len() as u64;
        self.open = Some(open);
        Ok(())
    }

    /// Those of these slots that no log names. Empty once the walk has ended, because slots
    /// that cannot be logged are recorded from then on.
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

    /// Records that the walk has seen all segments.
    pub fn end_walk(&mut self) {
        self.named = None;
    }

    /// Records that a segment was deleted or replaced: earlier records are not about the
    /// current one.
    pub fn forget_segment(&mut self, segment: SegmentId) {
        if let Some(named) = &mut self.named {
            named.remove(&segment);
        }
    }

    /// Whether a log was begun before `run_time_us`, which may name slots of a segment that was
    /// stored then.
    pub fn has_before(&self, run_time_us: u64) -> bool {
        let oldest = self.all.first_key_value();
        oldest.is_some_and(|(begun, _)| *begun < run_time_us)
    }

    /// All logs by the run time at which each was begun.
    pub fn all(&self) -> &BTreeMap<u64, Log> {
        &self.all
    }

    /// Removes a log whose file was removed.
    pub fn remove(&mut self, begun: u64) {
        self.close(begun);
        self.unread.remove(&begun);
        if let Some(log) = self.all.remove(&begun) {
            self.bytes -= log.bytes;
        }
    }

    /// Subtracts the room of slots that are not stored any more.
    pub fn subtract(&mut self, begun: u64, bytes: u64) {
        if let Some(log) = self.all.get_mut(&begun) {
            let bytes = bytes.min(log.bytes);
            log.bytes -= bytes;
            self.bytes -= bytes;
        }
    }

    /// Closes a log, if it is the open one.
    pub fn close(&mut self, begun: u64) {
        self.open.take_if(|open| open.begun == begun);
    }

    /// Takes the logs that are to be made durable now.
    pub fn take_unsynced(&mut self) -> Vec<Arc<dyn File>> {
        std::mem::take(&mut self.unsynced)
    }

    /// Closes the open log, which could not be made durable and may end anywhere. The walk
    /// after the next start finds the slots that are missing from it.
    pub fn abandon_open(&mut self) {
        self.open = None;
    }

    /// Room of all slots that logs name, and of the logs, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
