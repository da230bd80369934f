//! [`RegionLog`]: the region map, its file, and what waits for the file.
//!
//! A region is in flight from before the first write until some time after a flush has covered it:
//! what is written once is soon written again, and each change of the map costs a sync.

use std::io;
use std::time::Duration;

use base::{ByteRange, IoError};

use super::region_map::RegionMap;
use super::regions::Regions;
use super::store::{Store, StoreResult};
use super::timeouts::PAUSE_MIN;

/// How long regions stay in flight after a flush has covered them.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// Why the file could not be written, and when it is tried again.
struct WriteFailure {
    reason: String,
    retry_at: Duration,
}

/// What the file's jobs lead to.
pub(super) enum LogEvent {
    Loaded(io::Result<Option<RegionMap>>),
    /// The file cannot be written, for this reason. Reported once.
    Failed(String),
}

/// When requests may be acknowledged after a change of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledge {
    /// Before the change is in the file, too.
    AtOnce,
    /// Not before the change is in the file.
    OnceStored,
}

/// The map and its file.
pub(super) struct RegionLog {
    pub map: RegionMap,
    store: Option<Store>,
    /// The sequence of the map in the file.
    stored: u64,
    /// The sequence that has to be in the file before anything is acknowledged.
    needed: u64,
    /// The regions that are in flight in the file.
    in_file: Regions,
    /// The regions that are in flight in the map that is being written.
    writing: Option<Regions>,
    failure: Option<WriteFailure>,
    /// The regions written since the pending flush began.
    touched: Regions,
    /// The regions that a flush has covered and that were not written since.
    covered: Regions,
    /// When covered regions are in flight no longer.
    forget_at: Option<Duration>,
}

impl RegionLog {
    pub fn new(map: RegionMap) -> Self {
        let none = Regions::new(map.regions);
        Self {
            in_file: map.in_flight.clone(),
            touched: none.clone(),
            covered: none,
            map,
            store: None,
            stored: 0,
            needed: 0,
            writing: None,
            failure: None,
            forget_at: None,
        }
    }

    /// Continues with another map, which is not in the file yet.
    pub fn set_map(&mut self, map: RegionMap) {
        self.in_file = map.in_flight.clone();
        self.touched = Regions::new(map.regions);
        self.covered = self.touched.clone();
        self.map = map;
    }

    /// Starts to read the file.
    pub fn load(&mut self, store: Store) {
        store.load();
        self.store = Some(store);
    }

    /// The file has a map with this sequence.
    pub fn set_stored(&mut self, sequence: u64) {
        self.stored = sequence;
    }

    /// Notes that the map has changed.
    pub fn change(&mut self, acknowledge: Acknowledge) {
        self.map.sequence += 1;
        if acknowledge == Acknowledge::OnceStored {
            self.needed = self.map.sequence;
        }
    }

    /// Starts to write the map, unless it is in the file or a map is being written.
    pub fn write(&mut self) {
        if self.writing.is_some() || self.stored >= self.map.sequence {
            return;
        }
        if let Some(store) = &mut self.store {
            self.writing = Some(self.map.in_flight.clone());
            store.write(&self.map);
        }
    }

    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether the map with this sequence is in the file.
    pub fn has_stored(&self, sequence: u64) -> bool {
        self.stored >= sequence
    }

    /// Whether the newest map is in the file.
    pub fn is_current(&self) -> bool {
        self.has_stored(self.map.sequence)
    }

    /// Whether changes may be acknowledged: the file has all that they need.
    pub fn may_acknowledge(&self) -> bool {
        self.has_stored(self.needed)
    }

    /// Why the file could not be written.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| &*failure.reason)
    }

    /// Takes the result of one of the file's jobs.
    pub fn next_event(&mut self, now: Duration) -> Option<LogEvent> {
        loop {
            match self.store.as_mut().and_then(Store::next)? {
                StoreResult::Loaded(loaded) => return Some(LogEvent::Loaded(loaded)),
                StoreResult::Written(Ok(sequence)) => {
                    self.stored = sequence;
                    self.failure = None;
                    if let Some(written) = self.writing.take() {
                        self.in_file = written;
                    }
                }
                StoreResult::Written(Err(error)) => {
                    self.writing = None;
                    let reason = format!("cannot store which regions are missing: {error}");
                    let retry_at = now + PAUSE_MIN;
                    let failure = WriteFailure {
                        reason: reason.clone(),
                        retry_at,
                    };
                    if self.failure.replace(failure).is_none() {
                        return Some(LogEvent::Failed(reason));
                    }
                }
            }
        }
    }

    /// Whether the file may be written at `now`, by the last failure.
    pub fn may_retry(&self, now: Duration) -> bool {
        let failure = self.failure.as_ref();
        failure.is_none_or(|failure| failure.retry_at <= now)
    }

    /// Marks the regions of a change as in flight. Returns whether they are so in the file, so that
    /// the change may begin.
    ///
    /// # Errors
    /// If they are not, and the file cannot be written.
    pub fn mark(&mut self, range: ByteRange) -> Result<bool, IoError> {
        let mut is_marked = true;
        for region in self.map.regions_of(range.offset, range.length) {
            self.map.in_flight.set(region);
            self.touched.set(region);
            self.covered.clear(region);
            is_marked &= self.is_marked(region);
        }
        match &self.failure {
            Some(failure) if !is_marked => Err(IoError::NoSpace(failure.reason.clone())),
            _ => Ok(is_marked),
        }
    }

    /// Whether a region is in flight in the file, and in the map that is being written.
    fn is_marked(&self, region: usize) -> bool {
        let writing = self.writing.as_ref();
        self.in_file.has(region) && writing.is_none_or(|writing| writing.has(region))
    }

    /// A flush begins while the changes in `pending` are. Returns the state before, for
    /// [`RegionLog::cancel_flush`].
    pub fn begin_flush(&mut self, pending: impl Iterator<Item = ByteRange>) -> Regions {
        let mut touched = Regions::new(self.map.regions);
        for range in pending {
            for region in self.map.regions_of(range.offset, range.length) {
                touched.set(region);
            }
        }
        std::mem::replace(&mut self.touched, touched)
    }

    /// The flush did not begin.
    pub fn cancel_flush(&mut self, before: &Regions) {
        self.touched.merge(before);
    }

    /// A flush has reached all members that are not excluded.
    pub fn flushed(&mut self, now: Duration) {
        for region in 0..self.map.regions {
            if self.map.in_flight.has(region) && !self.touched.has(region) {
                self.covered.set(region);
            }
        }
        self.forget_at.get_or_insert(now + FORGET_AFTER);
    }

    /// Whether anything was written since the last flush.
    pub fn has_unflushed(&self) -> bool {
        self.touched.count() > 0
    }

    /// Ends the time in flight of regions that were covered some time ago. Returns whether the map
    /// has changed.
    pub fn forget_covered(&mut self, now: Duration) -> bool {
        if self.forget_at.take_if(|at| *at <= now).is_none() || self.covered.count() == 0 {
            return false;
        }
        self.map.in_flight.remove(&self.covered);
        self.covered.clear_all();
        true
    }

    /// The time until the next step that nothing else triggers.
    pub fn timer(&self, now: Duration) -> Option<Duration> {
        let retry = self.failure.as_ref().map(|failure| failure.retry_at);
        let at = retry.into_iter().chain(self.forget_at).min();
        at.map(|at| at.saturating_sub(now))
    }
}
