//! [`Follower`]: the file systems of a disk, read once and then followed by the writes to it
//! (docs/internals/monitor.md). The filters `monitor` and `replicate` use it. It is here and
//! not in `extfs`, since it needs requests of a filter, tokens and a clock.
//!
//! ```text
//!  1. read     partitions and file systems are read, in a thread that requests blocks from
//!              the filter; writes are deferred meanwhile
//!  2. follow   the deferred writes, and all later ones
//!  3. reread   1 again when there may be another file system, while 2 continues
//! ```
//!
//! Invariants: it makes no requests itself, but lets its filter make them
//! ([`Follower::next_read`]); it never waits; the writes that it defers are bounded. Each write is
//! reported once, in order.

mod deferred;
mod disk;
mod reader;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{IoError, Outcome, Token};
use world::{Clock, Wake};

use deferred::{Change, DeferredChanges};
use disk::WantedBlock;
pub use disk::{Access, Disk};
pub use reader::Area;
use reader::{Reader, ReaderRequest};

use crate::tokens::Tokens;
use extfs::ScanError;

/// The delay before the disk is read again because of a write. A program that makes a file system
/// writes for a while.
const REREAD_AFTER: Duration = Duration::from_secs(1);

/// The first pause after a failed read of the disk. Each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(2);

/// The longest pause after a failed read of the disk.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The pause after a read in which some file systems failed.
const PAUSE_PARTLY: Duration = Duration::from_secs(600);

/// The maximal number of wanted blocks that are read at once and followed together.
const WANTED_AT_ONCE: usize = 64;

/// The maximal number of wanted blocks. If there are more, reading the whole disk again costs less.
const WANTED_MAX: usize = 1 << 16;

/// A range that has to be read from the disk.
pub struct ReadRequest {
    range: Range<u64>,
    purpose: Purpose,
}

enum Purpose {
    /// The reader requested the range.
    Reader(ReaderRequest),
    /// The range is a block that is needed to follow a file system.
    Wanted {
        area: usize,
        block: u64,
        /// Whether the block was written since the request.
        is_stale: bool,
    },
}

impl ReadRequest {
    /// The first byte of the range.
    pub fn offset(&self) -> u64 {
        self.range.start
    }

    /// The length of the range, in bytes.
    pub fn length(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

/// An event that a follower reports to its filter.
pub enum FollowerEvent {
    /// Accesses to files.
    Accesses(Vec<Access>),
    /// The disk was read.
    DiskRead,
    /// The disk could not be read.
    ReadFailed {
        /// The reason, for people.
        reason: String,
        /// The pause before the next attempt.
        retry_after: Duration,
    },
}

/// A read of the disk that has not ended, and the writes since it began.
struct Reading {
    reader: Reader,
    deferred: DeferredChanges,
}

/// The file systems of a disk, read once and then followed by the writes to it.
pub struct Follower {
    memory_max: u64,
    clock: Arc<dyn Clock>,
    wake: Wake,
    /// The known state of the disk, also while the disk is read again.
    disk: Option<Disk>,
    reading: Option<Reading>,
    /// The time at which the disk has to be read.
    reread_at: Option<Duration>,
    /// The time at which the disk is read again because some of it could not be read.
    partial_retry_at: Option<Duration>,
    pause: Duration,
    /// A read that the filter could not start, because the disk was busy.
    returned: Option<ReadRequest>,
    /// The blocks whose content is needed.
    wanted: Vec<WantedBlock>,
    /// The wanted blocks that were read, by area. They are followed before anything else.
    found: BTreeMap<usize, BTreeMap<u64, Vec<u8>>>,
    /// Accesses of these blocks that were not reported yet.
    unreported: Vec<Access>,
    pending: Tokens<ReadRequest>,
}

impl Follower {
    /// A follower that uses at most `memory_max` bytes of memory for all file systems together.
    pub fn new(memory_max: u64, clock: Arc<dyn Clock>, wake: Wake) -> Self {
        Self {
            memory_max,
            clock,
            wake,
            disk: None,
            reading: None,
            reread_at: Some(Duration::ZERO),
            partial_retry_at: None,
            pause: PAUSE_MIN,
            returned: None,
            wanted: Vec::new(),
            found: BTreeMap::new(),
            unreported: Vec::new(),
            pending: Tokens::default(),
        }
    }

    /// The known state of the disk, if the disk was read.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Whether the disk is being read.
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether the known state is complete: nothing is being read or has to be read.
    pub fn is_complete(&self) -> bool {
        let is_read = self.disk.is_some() && self.reading.is_none() && self.reread_at.is_none();
        let is_followed = self.wanted.is_empty() && self.found.is_empty();
        is_read && is_followed && self.returned.is_none() && self.is_idle()
    }

    /// Whether no read is pending.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The time at which [`Follower::proceed`] has to be called.
    pub fn due(&self) -> Option<Duration> {
        let at = self
            .reread_at
            .into_iter()
            .chain(self.partial_retry_at)
            .min();
        at.filter(|_| self.reading.is_none())
    }

    /// Whether reads wait to be made.
    pub fn has_reads(&self) -> bool {
        self.returned.is_some() || !self.wanted.is_empty()
    }

    /// Lets the disk be read again at once, because the known state may be wrong.
    pub fn reread_now(&mut self) {
        self.reread_after(Duration::ZERO);
    }

    /// Lets the disk be read again after a delay, because the known state may be wrong.
    pub fn reread_later(&mut self) {
        self.reread_after(REREAD_AFTER);
    }

    /// Lets the disk be read again after `after`, or earlier if that was requested before.
    pub fn reread_after(&mut self, after: Duration) {
        let at = self.clock.monotonic() + after;
        self.reread_at.get_or_insert(at);
    }

    /// Takes the next steps for a disk of `disk_bytes`. `may_begin` allows to begin to read it.
    pub fn proceed(&mut self, disk_bytes: u64, may_begin: bool) -> Vec<FollowerEvent> {
        let mut events = Vec::new();
        let now = self.clock.monotonic();
        self.forget_changed();
        let mut seen = std::mem::take(&mut self.unreported);
        seen.append(&mut self.follow_found());
        if !seen.is_empty() || self.has_changed() {
            events.push(FollowerEvent::Accesses(seen));
        }
        if self.due().is_some_and(|due| now >= due) && may_begin {
            self.begin_reading(disk_bytes, &mut events);
        }
        if let Some(reading) = self.reading.take() {
            match reading.reader.found() {
                Some(found) => self.is_read(reading.deferred, found, &mut events),
                None => self.reading = Some(reading),
            }
        }
        events
    }

    fn begin_reading(&mut self, disk_bytes: u64, events: &mut Vec<FollowerEvent>) {
        (self.reread_at, self.partial_retry_at) = (None, None);
        self.returned
            .take_if(|read| matches!(read.purpose, Purpose::Reader(_)));
        match Reader::start(disk_bytes, self.memory_max, &self.wake) {
            Ok(reader) => {
                let deferred = DeferredChanges::new(self.memory_max);
                self.reading = Some(Reading { reader, deferred });
            }
            Err(error) => self.give_up(&format!("cannot start a thread: {error}"), events),
        }
    }

    /// Ends the read of the disk, which is tried again later.
    fn give_up(&mut self, why: &str, events: &mut Vec<FollowerEvent>) {
        events.push(FollowerEvent::ReadFailed {
            reason: why.to_owned(),
            retry_after: self.pause,
        });
        self.reading = None;
        self.reread_at = Some(self.clock.monotonic() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Takes over the state that was read from the disk, and follows the deferred changes.
    fn is_read(
        &mut self,
        deferred: DeferredChanges,
        found: Result<Vec<Area>, IoError>,
        events: &mut Vec<FollowerEvent>,
    ) {
        let areas = match found {
            Ok(areas) => areas,
            Err(error) => return self.give_up(&error.to_string(), events),
        };
        let Some(changes) = deferred.into_changes() else {
            return self.give_up("too much was written while the disk was read", events);
        };
        self.pause = PAUSE_MIN;
        self.forget_wanted();
        let is_unread = |area: &Area| matches!(area.found, Err(ScanError::Io(_)));
        if areas.iter().any(is_unread) {
            self.partial_retry_at = Some(self.clock.monotonic() + PAUSE_PARTLY);
        }
        // If an earlier state was known, it has reported the deferred changes already.
        let disk = Disk::new(areas, self.memory_max);
        let was_reported = self.disk.replace(disk).is_some();
        events.push(FollowerEvent::DiskRead);
        for change in changes {
            let seen = match change {
                Change::Write { offset, data } => self.was_written(offset, &data),
                Change::Trim(range) => self.was_trimmed(range),
            };
            if !was_reported {
                events.push(FollowerEvent::Accesses(seen));
            }
        }
    }

    /// Drops the blocks that the earlier state of the disk needed.
    fn forget_wanted(&mut self) {
        self.wanted = Vec::new();
        self.found.clear();
        self.returned
            .take_if(|read| matches!(read.purpose, Purpose::Wanted { .. }));
        for read in self.pending.iter_mut() {
            if let Purpose::Wanted { area, is_stale, .. } = &mut read.purpose {
                (*area, *is_stale) = (usize::MAX, false);
            }
        }
    }

    /// The accesses to files of a write.
    pub fn was_written(&mut self, offset: u64, data: &[u8]) -> Vec<Access> {
        self.forget_changed();
        // Blocks that were read before this write are followed before it, and reported apart.
        let mut found = self.follow_found();
        self.unreported.append(&mut found);
        let mut seen = Vec::new();
        if let Some(reading) = &mut self.reading {
            reading.deferred.add_write(offset, data);
        }
        let written = offset..offset + data.len() as u64;
        match &mut self.disk {
            Some(disk) => {
                if disk.was_written(offset, data, &mut seen) {
                    self.reread_later();
                }
                self.take_wanted();
            }
            // Deferred changes are reported when the disk is known.
            None if self.reading.is_some() => {}
            None => {
                let write = chain_policy::Operation::Write;
                seen.push(Access::Blocks(None, write, written.clone()));
            }
        }
        self.outdate(&written);
        seen
    }

    /// The accesses to files of a trim, which counts as a write of content. The content of trimmed
    /// metadata is unknown, so the disk is read again, and the known state stays until then.
    pub fn was_trimmed(&mut self, range: Range<u64>) -> Vec<Access> {
        let mut seen = Vec::new();
        if let Some(reading) = &mut self.reading {
            reading.deferred.add_trim(range.clone());
        }
        match &self.disk {
            Some(disk) => {
                if disk.was_trimmed(&range, &mut seen) {
                    self.reread_later();
                }
            }
            // Deferred changes are reported when the disk is known.
            None if self.reading.is_some() => {}
            None => {
                let write = chain_policy::Operation::Write;
                seen.push(Access::Blocks(None, write, range.clone()));
            }
        }
        self.outdate(&range);
        seen
    }

    /// Marks pending reads as stale if they overlap a change.
    fn outdate(&mut self, changed: &Range<u64>) {
        for ReadRequest { range, purpose } in self.pending.iter_mut() {
            if let Purpose::Wanted { is_stale, .. } = purpose {
                *is_stale |= range.start < changed.end && changed.start < range.end;
            }
        }
    }

    fn take_wanted(&mut self) {
        if let Some(disk) = &mut self.disk {
            self.wanted.extend(disk.take_wanted());
        }
        if self.wanted.len() > WANTED_MAX {
            self.forget_wanted();
            self.reread_later();
        }
    }

    /// Clears the changes of the write before.
    fn forget_changed(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.forget_changed();
        }
    }

    fn has_changed(&self) -> bool {
        let disk = self.disk.as_ref();
        disk.is_some_and(|disk| disk.has_moved() || !disk.changed().is_empty())
    }

    /// Follows the wanted blocks that were read.
    fn follow_found(&mut self) -> Vec<Access> {
        let mut seen = Vec::new();
        for (area, blocks) in std::mem::take(&mut self.found) {
            let Some(disk) = &mut self.disk else {
                continue;
            };
            if disk.were_found(area, blocks, &mut seen) {
                self.reread_later();
            }
            self.take_wanted();
        }
        seen
    }

    /// The number of wanted blocks that are being read or were read.
    fn pending_wanted(&self) -> usize {
        let is_wanted = |read: &&ReadRequest| matches!(read.purpose, Purpose::Wanted { .. });
        let read: usize = self.found.values().map(BTreeMap::len).sum();
        self.pending.iter().filter(is_wanted).count() + read
    }

    /// The next read that the filter has to make.
    pub fn next_read(&mut self) -> Option<ReadRequest> {
        if let Some(read) = self.returned.take() {
            return Some(read);
        }
        if let Some(request) = self
            .reading
            .as_ref()
            .and_then(|reading| reading.reader.next())
        {
            return Some(ReadRequest {
                range: request.offset..request.offset + request.length as u64,
                purpose: Purpose::Reader(request),
            });
        }
        if self.wanted.is_empty() || self.pending_wanted() >= WANTED_AT_ONCE {
            return None;
        }
        let WantedBlock { area, block, range } = self.wanted.pop()?;
        let is_stale = false;
        Some(ReadRequest {
            range,
            purpose: Purpose::Wanted {
                area,
                block,
                is_stale,
            },
        })
    }

    /// Takes back a read that the filter could not start, because the disk was busy.
    pub fn return_read(&mut self, read: ReadRequest) {
        self.returned = Some(read);
    }

    /// Registers a read that the filter has started. Its result is passed to
    /// [`Follower::completed`].
    pub fn started(&mut self, read: ReadRequest) -> Token {
        self.pending.add(read)
    }

    /// Handles the result of a read.
    pub fn completed(
        &mut self,
        token: Token,
        result: Result<Outcome, IoError>,
    ) -> Vec<FollowerEvent> {
        match self.pending.take(token) {
            Some(read) => self.was_read(read, result),
            None => Vec::new(),
        }
    }

    /// Handles the content of a range that was needed.
    pub fn was_read(
        &mut self,
        read: ReadRequest,
        result: Result<Outcome, IoError>,
    ) -> Vec<FollowerEvent> {
        let mut events = Vec::new();
        self.forget_changed();
        let ReadRequest { range, purpose } = read;
        match (purpose, result.and_then(content_of)) {
            // The reader may have ended.
            (Purpose::Reader(request), result) => drop(request.answer.send(result)),
            (
                Purpose::Wanted {
                    area,
                    block,
                    is_stale: true,
                },
                Ok(_),
            ) => self.wanted.push(WantedBlock { area, block, range }),
            (Purpose::Wanted { area, block, .. }, Ok(content)) => {
                self.found.entry(area).or_default().insert(block, content);
                // Many blocks are followed at once, since a map is read once for all of them.
                if self.pending_wanted() >= WANTED_AT_ONCE || self.wanted.is_empty() {
                    events.push(FollowerEvent::Accesses(self.follow_found()));
                }
            }
            (Purpose::Wanted { .. }, Err(error)) => {
                self.give_up(&error.to_string(), &mut events);
                self.wanted = Vec::new();
                self.found.clear();
            }
        }
        events
    }
}

fn content_of(outcome: Outcome) -> Result<Vec<u8>, IoError> {
    match outcome {
        Outcome::Data(content) => Ok(content),
        other => Err(IoError::Damaged(format!("a read completed with {other:?}"))),
    }
}
