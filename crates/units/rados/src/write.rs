//! Putting slots, freeing them, and removing segments: one atomic change each.
//!
//! ```text
//!  put, slot 0     create the object, with its attributes and first records
//!  put, after it   if `slots` says that the segment ends there: records, `slots`
//!  free            if `freed` and `generation` are as they were read: `freed`, zeroes
//!  remove          if all are as they were read, or unconditionally
//! ```
//!
//! Replacing is in `replace`.

use base::{SegmentId, Slot};
use unit::format::{SLOTS_MAX, is_slot_size};
use unit::{Put, UnitError};

use crate::access::DATA_TIMEOUT;
use crate::format::{
    FREED, Freed, GENERATION, HEAD, Head, SLOTS, Slots, State, encode_generation, encode_record,
    name_of, offset_of, record_bytes,
};
use crate::pool::{Change, Errno};
use crate::rados_unit::Core;

/// Number of attempts of a free or a replacement when others change the segment concurrently.
pub(crate) const FREES_MAX: usize = 16;

/// Maximum number of runs of slots that one change frees, as it blocks the object for others.
pub(crate) const RUNS_AT_ONCE: usize = 256;

impl Core {
    /// Puts slots where the segment ends. Durable on return.
    pub(crate) fn put(&self, put: &Put<'_>) -> Result<(), UnitError> {
        let &Put {
            lineage_tag,
            segment,
            slot_bytes,
            first,
            tags,
            ..
        } = put;
        let first = u32::from(first.0);
        let end = u64::from(first) + tags.len() as u64;
        let room = (self.segment_data_bytes / u64::from(slot_bytes).max(1)).max(1);
        let count = u32::try_from(end).unwrap_or(u32::MAX);
        if !is_slot_size(slot_bytes) || end > room || count > SLOTS_MAX {
            return Err(match self.load(segment) {
                Ok(found) => found.misplaced(),
                Err(_) => misplaced_new(segment, slot_bytes),
            });
        }
        self.verify_for_put()?;
        let records = encode_records(put);
        let size = |count| Slots {
            count,
            size: slot_bytes,
        };
        let (before, after) = (size(first).encode(), size(count).encode());
        let write = Change::Write(offset_of(first, slot_bytes), &records);
        let head = Head {
            segment,
            cluster: self.cluster,
            lineage_tag,
        };
        let head = head.encode();
        let name = name_of(segment);
        let put = if first == 0 {
            let expect = Change::Expect {
                object_bytes: room * record_bytes(slot_bytes) as u64,
                write_bytes: records.len() as u64,
            };
            let (head, slots) = (Change::Set(HEAD, &head), Change::Set(SLOTS, &after));
            let changes = [Change::Create, expect, head, slots, write];
            self.access.change(&name, &changes, DATA_TIMEOUT)?
        } else {
            let ends = Change::MustHave(SLOTS, &before);
            let changes = [Change::MustExist, ends, Change::Set(SLOTS, &after), write];
            self.access.change(&name, &changes, DATA_TIMEOUT)?
        };
        match put {
            Ok(()) => {
                self.account.add(segment, records.len() as u64);
                Ok(())
            }
            Err(errno) => Err(self.put_error(segment, slot_bytes, errno)),
        }
    }

    fn put_error(&self, segment: SegmentId, slot_bytes: u32, errno: Errno) -> UnitError {
        match errno {
            errno if errno == Errno(libc::EEXIST) || errno.is_condition() => {
                match self.load(segment) {
                    Ok(found) => found.misplaced(),
                    Err(UnitError::NoSegment { .. }) => misplaced_new(segment, slot_bytes),
                    Err(why) => why,
                }
            }
            Errno(libc::ENOENT) => self.no_segment(segment),
            errno => {
                let doing = format!("write segment {segment}");
                self.access.write_error(&doing, errno)
            }
        }
    }

    /// Frees slots. A closed segment without other slots is removed.
    pub(crate) fn free_slots(
        &self,
        segment: SegmentId,
        slots: &[Slot],
        closed: bool,
    ) -> Result<(), UnitError> {
        self.verify()?;
        for _ in 0..FREES_MAX {
            let found = match self.load(segment) {
                Err(UnitError::NoSegment { .. }) => return Ok(()),
                other => other?,
            };
            if self.free_of(&found, slots, closed)? {
                return Ok(());
            }
        }
        let doing = format!("free slots of segment {segment}");
        Err(self.access.write_error(&doing, Errno(libc::EBUSY)))
    }

    /// Frees slots of a segment. Returns `false` if it has changed since it was loaded, or if there
    /// is more to do.
    fn free_of(&self, found: &State, slots: &[Slot], closed: bool) -> Result<bool, UnitError> {
        let segment = found.head.segment;
        let mut fresh: Vec<u32> = slots.iter().map(|slot| u32::from(slot.0)).collect();
        fresh.retain(|slot| *slot < found.slots.count && !found.freed.contains(*slot));
        fresh.sort_unstable();
        fresh.dedup();
        let left = found.slots.count - found.freed.count() - fresh.len() as u32;
        let before = AsLoaded::of(found);
        if left == 0 && closed {
            return self.remove(segment, &before.conditions());
        }
        if fresh.is_empty() {
            return Ok(true);
        }
        let mut runs = runs_of(&fresh);
        let is_all = runs.len() <= RUNS_AT_ONCE;
        runs.truncate(RUNS_AT_ONCE);
        let mut freed: Freed = found.freed.clone();
        for slot in runs.iter().flat_map(|(first, count)| *first..first + count) {
            freed.insert(slot);
        }
        let after = freed.encode();
        // The slots of a replacement may be at other offsets.
        let [_, is_freed, is_generation] = before.conditions();
        let mut changes = vec![
            Change::MustExist,
            is_freed,
            is_generation,
            Change::Set(FREED, &after),
        ];
        let size = found.slots.size;
        changes.extend(runs.iter().map(|(first, count)| {
            let bytes = u64::from(*count) * record_bytes(size) as u64;
            Change::Zero(offset_of(*first, size), bytes)
        }));
        match self
            .access
            .change(&name_of(segment), &changes, DATA_TIMEOUT)?
        {
            Ok(()) => {
                let now = State {
                    freed,
                    ..found.clone()
                };
                self.account.set(segment, Some(now.bytes()));
                Ok(is_all)
            }
            Err(errno) if errno.is_condition() || errno == Errno(libc::ENOENT) => Ok(false),
            Err(errno) => {
                let doing = format!("free slots of segment {segment}");
                Err(self.access.write_error(&doing, errno))
            }
        }
    }

    /// Removes a segment if `conditions` hold. Returns `false` if they do not.
    pub(crate) fn remove(
        &self,
        segment: SegmentId,
        conditions: &[Change<'_>],
    ) -> Result<bool, UnitError> {
        let mut changes = conditions.to_vec();
        changes.push(Change::Remove);
        match self
            .access
            .change(&name_of(segment), &changes, DATA_TIMEOUT)?
        {
            Ok(()) | Err(Errno(libc::ENOENT)) => {
                self.account.set(segment, None);
                Ok(true)
            }
            Err(errno) if errno.is_condition() => Ok(false),
            Err(errno) => {
                let doing = format!("remove segment {segment}");
                Err(self.access.write_error(&doing, errno))
            }
        }
    }
}

/// The attributes of a segment when it was loaded.
pub(crate) struct AsLoaded {
    slots: [u8; 12],
    freed: Vec<u8>,
    generation: Vec<u8>,
}

impl AsLoaded {
    pub(crate) fn of(found: &State) -> Self {
        Self {
            slots: found.slots.encode(),
            freed: found.freed.encode(),
            generation: encode_generation(found.generation),
        }
    }

    /// The conditions that slots, freed slots and generation have not changed since.
    pub(crate) fn conditions(&self) -> [Change<'_>; 3] {
        [
            Change::MustHave(SLOTS, &self.slots),
            Change::MustHave(FREED, &self.freed),
            Change::MustHave(GENERATION, &self.generation),
        ]
    }
}

/// The records of the slots of a put.
fn encode_records(put: &Put<'_>) -> Vec<u8> {
    let mut records = Vec::with_capacity(put.tags.len() * record_bytes(put.slot_bytes));
    let contents = put.data.chunks_exact(put.slot_bytes as usize);
    for ((slot, tag), content) in (u32::from(put.first.0)..).zip(put.tags).zip(contents) {
        encode_record(slot, tag, content, &mut records);
    }
    records
}

/// The error of a put with too many slots, an invalid slot size, or a name that is taken.
pub(crate) fn misplaced_new(segment: SegmentId, slot_bytes: u32) -> UnitError {
    UnitError::Misplaced {
        segment,
        slots: 0,
        slot_bytes,
    }
}

/// First slot and count of each run of consecutive slots, which are sorted.
pub(crate) fn runs_of(slots: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for slot in slots {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *slot => *count += 1,
            _ => runs.push((*slot, 1)),
        }
    }
    runs
}
