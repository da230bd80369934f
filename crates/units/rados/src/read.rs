//! Reading: runs of slots, whole segments, attributes and names.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{SegmentId, Slot};
use unit::{Read, ReadDone, ReadSlots, SegmentStat, SlotRun, Tag, UnitError, UnitStat};
use world::parallel;

use crate::format::{
    Record, State, is_sound, name_of, offset_of, parse_record, record_bytes, segment_of,
};
use crate::meaning::{Intent, meaning};
use crate::pool::Errno;
use crate::site::{LOOK_WITHIN, MOVE_WITHIN};
use crate::unit_of_pool::Core;

/// Bytes that are under way at once for readings that nobody waits for, at most:
/// librados would hold up whoever asks for more than 100 MiB.
const FLIGHT_BYTES_MAX: usize = 32 << 20;

/// Segments that are measured at once.
const PARALLEL: usize = 16;

/// What is read of a segment at once when all of it is, in bytes.
const SCRUB_BYTES: usize = 4 << 20;

/// What is under way for readings that nobody waits for.
#[derive(Default)]
pub(crate) struct Flight(AtomicUsize);

impl Flight {
    /// Room for so many bytes more, if there is.
    fn board(self: &Arc<Self>, bytes: usize) -> Option<Seat> {
        let seat = Seat(Arc::clone(self), bytes);
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= FLIGHT_BYTES_MAX).then_some(seat)
    }
}

/// A look at what a unit holds: ends when it is dropped, also if it panics or is
/// never carried out.
struct Looks(Arc<Core>);

impl Drop for Looks {
    fn drop(&mut self) {
        self.0.account.end();
    }
}

/// Room that is given back when it is dropped.
struct Seat(Arc<Flight>, usize);

impl Drop for Seat {
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

/// Why records are not what was asked for.
enum Unfit {
    /// This slot is not there, as far as the object tells.
    NoSlot(u32),
    /// Something else is in its place.
    Other(u32),
}

/// The tags and the content of `count` slots from `first` on, in what was read.
fn split(
    records: &[u8],
    first: u32,
    slot_bytes: u32,
    mut each: impl FnMut(usize, &Tag, &[u8]),
    count: usize,
) -> Result<(), Unfit> {
    let mut records = records.chunks_exact(record_bytes(slot_bytes));
    for (index, slot) in (0..count).zip(first..) {
        let record = records.next().ok_or(Unfit::NoSlot(slot))?;
        match parse_record(slot, slot_bytes, record) {
            Record::Put(tag, content) => each(index, tag, content),
            Record::Freed => return Err(Unfit::NoSlot(slot)),
            Record::Other => return Err(Unfit::Other(slot)),
        }
    }
    Ok(())
}

fn no_slot(url: &str, segment: SegmentId, slot: u32) -> UnitError {
    UnitError::NoSlot {
        url: url.to_owned(),
        segment,
        // A run may reach beyond the last slot that can be named.
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
    /// That there is no such segment; if the unit itself is there.
    pub(crate) fn no_segment(&self, segment: SegmentId) -> UnitError {
        match self.look() {
            Ok(_) => no_segment(&self.site.url, segment),
            Err(why) => why,
        }
    }

    /// Reads what there is to know of a segment without its content.
    pub(crate) fn load(&self, segment: SegmentId) -> Result<State, UnitError> {
        let url = &self.site.url;
        let found = match self.site.inspect(&name_of(segment))? {
            Ok(found) => found,
            Err(Errno(libc::ENOENT)) => return Err(self.no_segment(segment)),
            Err(errno) => return Err(self.site.meaning(&reading(segment), errno)),
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

    /// Looks that what was put is there: a put that was answered is durable.
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
            .site
            .read(&name_of(segment), offset, length, MOVE_WITHIN)?;
        let records = match read {
            Ok(records) => records,
            Err(Errno(libc::ENOENT)) => return Err(self.no_segment(segment)),
            Err(errno) => return Err(self.site.meaning(&reading(segment), errno)),
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

    /// Why a run cannot be read, by what the segment's attributes say.
    fn explain(&self, segment: SegmentId, slot_bytes: u32, unfit: &Unfit) -> UnitError {
        let state = match self.load(segment) {
            Ok(state) => state,
            Err(why) => return why,
        };
        match *unfit {
            _ if state.slots.size != slot_bytes => state.misplaced(),
            Unfit::NoSlot(slot) => no_slot(&self.site.url, segment, slot),
            Unfit::Other(slot) => {
                let reason = format!("what lies at slot {slot} is not that slot");
                damaged(&self.site.url, segment, reason)
            }
        }
    }

    /// As [`Core::read_run`], for `done`, on a thread of librados. False if nothing
    /// was begun.
    pub(crate) fn read_run_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let (segment, first) = (run.segment, u32::from(run.first.0));
        let count = usize::from(run.count);
        let (offset, length) = (
            offset_of(first, slot_bytes),
            count * record_bytes(slot_bytes),
        );
        let Some(seat) = self.flight.board(length) else {
            return false;
        };
        let Some(pool) = self.site.connected() else {
            return false;
        };
        let url = self.site.url.clone();
        let told = move |read: Result<&[u8], Errno>| {
            drop(seat);
            let records = match read {
                Ok(records) => records,
                Err(Errno(libc::ENOENT)) => return done(Err(no_segment(&url, segment))),
                Err(errno) => {
                    let doing = reading(segment);
                    return done(Err(meaning(&url, &doing, Intent::Read, errno)));
                }
            };
            match split(records, first, slot_bytes, |_, _, _| {}, count) {
                Ok(()) => done(Ok(ReadSlots::Records {
                    records,
                    record_bytes: record_bytes(slot_bytes),
                })),
                Err(Unfit::NoSlot(slot)) => done(Err(no_slot(&url, segment, slot))),
                // The reading that may wait says what it is.
                Err(Unfit::Other(slot)) => {
                    let reason = format!("what lies at slot {slot} is not that slot");
                    done(Err(damaged(&url, segment, reason)));
                }
            }
        };
        pool.read(&name_of(segment), offset, length, Box::new(told));
        true
    }

    /// The segments with these serials, in order.
    pub(crate) fn list_segments(&self, serials: &Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let mut found = Vec::new();
        let listed = self.site.pool()?.list(&mut |name| {
            found.extend(segment_of(name).filter(|segment| serials.contains(&segment.serial())));
        });
        listed.map_err(|errno| self.site.meaning("list its segments", errno))?;
        found.sort_unstable();
        Ok(found)
    }

    /// How much the unit holds, as was last seen. The first time somebody waits for
    /// that, and no longer than for other looks.
    pub(crate) fn stat(self: &Arc<Self>) -> Result<UnitStat, UnitError> {
        // Whether it is there at all is seen now.
        self.look()?;
        if self.account.begins(self.world.clock.monotonic()) {
            let looks = Looks(Arc::clone(self));
            self.world.pool.run(Box::new(move || {
                let core = &looks.0;
                if let Err(why) = core.measure() {
                    core.account.failed(why);
                }
            }));
        }
        let late = || {
            self.site
                .meaning("count what it holds", Errno(libc::ETIMEDOUT))
        };
        let known = self.account.wait(LOOK_WITHIN);
        let known = known.map_err(|failure| failure.unwrap_or_else(late))?;
        Ok(UnitStat {
            incarnation: Some(0),
            segments: known.segments,
            bytes: known.bytes,
            free_bytes: known.free_bytes,
        })
    }

    /// Counts what the unit holds.
    fn measure(self: &Arc<Self>) -> Result<(), UnitError> {
        let segments = self.list_segments(&(0..SegmentId::SERIAL_MAX))?;
        let unknown = self.account.unknown(&segments);
        let tasks = unknown
            .chunks(unknown.len().div_ceil(PARALLEL).max(1))
            .map(|some| {
                let (core, some) = (Arc::clone(self), some.to_vec());
                let task = move || {
                    let bytes = some.iter().filter_map(|segment| match core.load(*segment) {
                        Ok(state) => Some(Ok((*segment, state.bytes()))),
                        // Nobody knows how much of it is left.
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
        // It may be that this user may not ask.
        let free_bytes = self.site.pool()?.free_bytes().unwrap_or(None);
        let now = self.world.clock.monotonic();
        self.account.found(&segments, &measured, free_bytes, now);
        Ok(())
    }

    /// Reads a whole segment, and compares each slot with its checksum.
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
                .site
                .read(&name_of(segment), offset, length, MOVE_WITHIN)?;
            let records = match read {
                Ok(records) => records,
                Err(Errno(libc::ENOENT)) => return Err(self.no_segment(segment)),
                Err(errno) => return Err(self.site.meaning(&reading(segment), errno)),
            };
            let mut records = records.chunks_exact(record_bytes(size));
            for slot in first..first + count {
                let is_well = records
                    .next()
                    .is_some_and(|record| is_sound(slot, size, record));
                if !is_well && !state.freed.contains(slot) {
                    bad.push(slot);
                }
            }
            first += count;
        }
        if bad.is_empty() {
            return Ok(Vec::new());
        }
        // Those that were not freed while they were looked at.
        let now = match self.load(segment) {
            Err(UnitError::NoSegment { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        bad.retain(|slot| !now.freed.contains(*slot));
        Ok(bad.into_iter().map(|slot| Slot(slot as u16)).collect())
    }
}
