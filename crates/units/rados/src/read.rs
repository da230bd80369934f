//! Reading runs of slots, whole segments and attributes; listing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{SegmentId, Slot};
use unit::{Read, ReadDone, ReadSlots, SegmentStat, SlotRun, Tag, UnitError, UnitStat};
use world::parallel;

use crate::access::{DATA_TIMEOUT, METADATA_TIMEOUT};
use crate::errors::{Intent, unit_error};
use crate::format::{
    Record, State, is_valid_record, name_of, offset_of, parse_record, record_bytes, segment_of,
};
use crate::pool::Errno;
use crate::rados_unit::Core;

/// Maximum bytes of asynchronous reads under way: librados would block callers beyond 100 MiB.
const READ_BYTES_MAX: usize = 32 << 20;

/// Number of segments that are measured concurrently.
const PARALLEL: usize = 16;

/// Bytes that a scrub reads at a time.
const SCRUB_BYTES: usize = 4 << 20;

/// The bytes of asynchronous reads under way.
#[derive(Default)]
pub(crate) struct ReadBudget(AtomicUsize);

impl ReadBudget {
    /// A permit for `bytes` more, if they are within the limit.
    fn acquire(self: &Arc<Self>, bytes: usize) -> Option<ReadPermit> {
        let permit = ReadPermit(Arc::clone(self), bytes);
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= READ_BYTES_MAX).then_some(permit)
    }
}

/// A scan of a unit. It ends when this is dropped, even if it panics or never runs.
struct Scan(Arc<Core>);

impl Drop for Scan {
    fn drop(&mut self) {
        self.0.account.end();
    }
}

/// A permit, returned when it is dropped.
struct ReadPermit(Arc<ReadBudget>, usize);

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl State {
    pub(crate) fn stat(&self) -> SegmentStat {
        SegmentStat {
            segment: self.head.segment,
            slot_bytes: self.slots.size,
            slots: self.slots.count,
            freed: self.freed.count(),
            generation: self.generation,
        }
    }

    pub(crate) fn misplaced(&self) -> UnitError {
        UnitError::Misplaced {
            segment: self.head.segment,
            slots: self.slots.count,
            slot_bytes: self.slots.size,
        }
    }
}

/// Why records are not those of the requested slots.
enum RecordError {
    /// The slot was freed or never put.
    NoSlot(u32),
    /// Something else is in the slot's position.
    Other(u32),
}

/// Calls `each` with index, tag and content of `count` slots from `first` on.
fn split(
    records: &[u8],
    first: u32,
    slot_bytes: u32,
    mut each: impl FnMut(usize, &Tag, &[u8]),
    count: usize,
) -> Result<(), RecordError> {
    let mut records = records.chunks_exact(record_bytes(slot_bytes));
    for (index, slot) in (0..count).zip(first..) {
        let record = records.next().ok_or(RecordError::NoSlot(slot))?;
        match parse_record(slot, slot_bytes, record) {
            Record::Put(tag, content) => each(index, tag, content),
            Record::Freed => return Err(RecordError::NoSlot(slot)),
            Record::Other => return Err(RecordError::Other(slot)),
        }
    }
    Ok(())
}

fn no_slot(url: &str, segment: SegmentId, slot: u32) -> UnitError {
    UnitError::NoSlot {
        url: url.to_owned(),
        segment,
        // A run may extend beyond the last slot number.
        slot: Slot(u16::try_from(slot).unwrap_or(u16::MAX)),
    }
}

fn no_segment(url: &str, segment: SegmentId) -> UnitError {
    UnitError::NoSegment {
        url: url.to_owned(),
        segment,
    }
}

fn damaged(url: &str, segment: SegmentId, reason: impl ToString) -> UnitError {
    UnitError::Damaged {
        url: url.to_owned(),
        segment,
        reason: reason.to_string(),
    }
}

fn reading(segment: SegmentId) -> String {
    format!("read segment {segment}")
}

impl Core {
    /// The error of a missing segment; that of the unit if the unit itself is missing.
    pub(crate) fn no_segment(&self, segment: SegmentId) -> UnitError {
        match self.check() {
            Ok(_) => no_segment(&self.access.url, segment),
            Err(why) => why,
        }
    }

    /// Reads the attributes of a segment.
    pub(crate) fn load(&self, segment: SegmentId) -> Result<State, UnitError> {
        let url = &self.access.url;
        let found = match self.access.inspect(&name_of(segment))? {
            Ok(found) => found,
            Err(Errno(libc::ENOENT)) => return Err(self.no_segment(segment)),
            Err(errno) => return Err(self.access.read_error(&reading(segment), errno)),
        };
        let state = State::parse(&found).map_err(|error| damaged(url, segment, error))?;
        if state.head.segment != segment {
            let found = state.head.segment;
            return Err(damaged(url, segment, format!("it is segment {found}")));
        }
        if state.head.cluster != self.cluster {
            let found = state.head.cluster;
            return Err(damaged(url, segment, format!("it belongs to {found}")));
        }
        Ok(state)
    }

    /// Checks that the segments exist: an acknowledged put is durable.
    pub(crate) fn check_put(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        let unknown = self.account.unknown(segments);
        unknown
            .into_iter()
            .try_for_each(|segment| self.load(segment).map(drop))
    }

    /// Reads a run of slots with one operation.
    pub(crate) fn read_run(&self, read: Read<'_>) -> Result<(), UnitError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        let (segment, first) = (run.segment, u32::from(run.first.0));
        let count = usize::from(run.count);
        let (offset, length) = (
            offset_of(first, slot_bytes),
            count * record_bytes(slot_bytes),
        );
        let read = self
            .access
            .read(&name_of(segment), offset, length, DATA_TIMEOUT)?;
        let records = match read {
            Ok(records) => records,
            Err(Errno(libc::ENOENT)) => return Err(self.no_segment(segment)),
            Err(errno) => return Err(self.access.read_error(&reading(segment), errno)),
        };
        let size = slot_bytes as usize;
        let copy = |index: usize, tag: &Tag, content: &[u8]| {
            tags[index] = *tag;
            data[index * size..][..size].copy_from_slice(content);
        };
        match split(&records, first, slot_bytes, copy, count) {
            Ok(()) => Ok(()),
            Err(unfit) => Err(self.explain(segment, slot_bytes, &unfit)),
        }
    }

    /// Finds out from the segment's attributes why a run cannot be read.
    fn explain(&self, segment: SegmentId, slot_bytes: u32, unfit: &RecordError) -> UnitError {
        let state = match self.load(segment) {
            Ok(state) => state,
            Err(why) => return why,
        };
        match *unfit {
            _ if state.slots.size != slot_bytes => state.misplaced(),
            RecordError::NoSlot(slot) => no_slot(&self.access.url, segment, slot),
            RecordError::Other(slot) => {
                let reason = format!("slot {slot} holds something else");
                damaged(&self.access.url, segment, reason)
            }
        }
    }

    /// As [`Core::read_run`], with a callback on a thread of librados. Returns `false` if nothing
    /// was started.
    pub(crate) fn read_run_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let (segment, first) = (run.segment, u32::from(run.first.0));
        let count = usize::from(run.count);
        let (offset, length) = (
            offset_of(first, slot_bytes),
            count * record_bytes(slot_bytes),
        );
        let Some(permit) = self.read_budget.acquire(length) else {
            return false;
        };
        let Some(pool) = self.access.connected() else {
            return false;
        };
        let url = self.access.url.clone();
        let callback = move |read: Result<&[u8], Errno>| {
            drop(permit);
            let records = match read {
                Ok(records) => records,
                Err(Errno(libc::ENOENT)) => return done(Err(no_segment(&url, segment))),
                Err(errno) => {
                    let doing = reading(segment);
                    return done(Err(unit_error(&url, &doing, Intent::Read, errno)));
                }
            };
            match split(records, first, slot_bytes, |_, _, _| {}, count) {
                Ok(()) => done(Ok(ReadSlots::Records {
                    records,
                    record_bytes: record_bytes(slot_bytes),
                })),
                Err(RecordError::NoSlot(slot)) => done(Err(no_slot(&url, segment, slot))),
                // The synchronous read finds out what it is.
                Err(RecordError::Other(slot)) => {
                    let reason = format!("slot {slot} holds something else");
                    done(Err(damaged(&url, segment, reason)));
                }
            }
        };
        pool.read(&name_of(segment), offset, length, Box::new(callback));
        true
    }

    /// Lists the segments with these serials, in order.
    pub(crate) fn list_segments(&self, serials: &Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let mut found = Vec::new();
        let listed = self.access.pool()?.list(&mut |name| {
            found.extend(segment_of(name).filter(|segment| serials.contains(&segment.serial())));
        });
        listed.map_err(|errno| self.access.read_error("list its segments", errno))?;
        found.sort_unstable();
        Ok(found)
    }

    /// The totals of the last scan. The first call waits for a scan.
    pub(crate) fn stat(self: &Arc<Self>) -> Result<UnitStat, UnitError> {
        // Whether the unit is available is checked now.
        self.check()?;
        if self.account.try_begin(self.world.clock.monotonic()) {
            let scan = Scan(Arc::clone(self));
            self.world.pool.run(Box::new(move || {
                let core = &scan.0;
                if let Err(why) = core.measure() {
                    core.account.failed(why);
                }
            }));
        }
        let late = || {
            self.access
                .read_error("count its segments", Errno(libc::ETIMEDOUT))
        };
        let known = self.account.wait(METADATA_TIMEOUT);
        let known = known.map_err(|failure| failure.unwrap_or_else(late))?;
        Ok(UnitStat {
            incarnation: Some(0),
            segments: known.segments,
            bytes: known.bytes,
            free_bytes: known.free_bytes,
        })
    }

    /// Scans the unit.
    fn measure(self: &Arc<Self>) -> Result<(), UnitError> {
        let segments = self.list_segments(&(0..SegmentId::SERIAL_END))?;
        let unknown = self.account.unknown(&segments);
        let tasks = unknown
            .chunks(unknown.len().div_ceil(PARALLEL).max(1))
            .map(|some| {
                let (core, some) = (Arc::clone(self), some.to_vec());
                let task = move || {
                    let bytes = some.iter().filter_map(|segment| match core.load(*segment) {
                        Ok(state) => Some(Ok((*segment, state.bytes()))),
                        // Its size is unknown.
                        Err(UnitError::Damaged { .. } | UnitError::NoSegment { .. }) => None,
                        Err(why) => Some(Err(why)),
                    });
                    bytes.collect::<Result<Vec<_>, UnitError>>()
                };
                Box::new(task) as Box<dyn FnOnce() -> Result<Vec<_>, UnitError> + Send>
            });
        let mut measured = HashMap::new();
        for some in parallel(&*self.world.pool, PARALLEL, tasks.collect()) {
            measured.extend(some?);
        }
        // This user may have no right to that.
        let free_bytes = self.access.pool()?.free_bytes().unwrap_or(None);
        let now = self.world.clock.monotonic();
        self.account.found(&segments, &measured, free_bytes, now);
        Ok(())
    }

    /// Reads a whole segment and compares each slot with its checksum.
    pub(crate) fn scrub_segment(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        let state = self.load(segment)?;
        let size = state.slots.size;
        let at_once = (SCRUB_BYTES / record_bytes(size)).max(1) as u32;
        let mut bad = Vec::new();
        let mut first = 0;
        while first < state.slots.count {
            let count = at_once.min(state.slots.count - first);
            let (offset, length) = (offset_of(first, size), count as usize * record_bytes(size));
            let read = self
                .access
                .read(&name_of(segment), offset, length, DATA_TIMEOUT)?;
            let records = match read {
                Ok(records) => records,
                Err(Errno(libc::ENOENT)) => return Err(self.no_segment(segment)),
                Err(errno) => return Err(self.access.read_error(&reading(segment), errno)),
            };
            let mut records = records.chunks_exact(record_bytes(size));
            for slot in first..first + count {
                let is_well = records
                    .next()
                    .is_some_and(|record| is_valid_record(slot, size, record));
                if !is_well && !state.freed.contains(slot) {
                    bad.push(slot);
                }
            }
            first += count;
        }
        if bad.is_empty() {
            return Ok(Vec::new());
        }
        // Slots that were freed meanwhile are not damaged.
        let now = match self.load(segment) {
            Err(UnitError::NoSegment { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        bad.retain(|slot| !now.freed.contains(*slot));
        Ok(bad.into_iter().map(|slot| Slot(slot as u16)).collect())
    }
}
