//! Replacing a whole segment: one atomic change of its object.

use base::SegmentId;
use unit::format::{SLOTS_MAX, is_slot_size};
use unit::{Replacement, UnitError};

use crate::access::DATA_TIMEOUT;
use crate::format::{
    FREED, Freed, GENERATION, HEAD, Head, SLOTS, Slots, State, encode_generation, encode_record,
    name_of, offset_of, record_bytes,
};
use crate::pool::{Change, Errno};
use crate::rados_unit::Core;
use crate::write::{AsLoaded, FREES_MAX, RUNS_AT_ONCE, misplaced_new, runs_of};

impl Core {
    /// Replaces a segment. Durable on return.
    pub(crate) fn replace_whole(
        &self,
        segment: SegmentId,
        by: &Replacement<'_>,
    ) -> Result<(), UnitError> {
        let room = (self.segment_data_bytes / u64::from(by.slot_bytes).max(1)).max(1);
        let count = u32::try_from(by.tags.len()).unwrap_or(u32::MAX);
        if !is_slot_size(by.slot_bytes) || u64::from(count) > room || count > SLOTS_MAX {
            return Err(misplaced_new(segment, by.slot_bytes));
        }
        self.verify_for_put()?;
        for _ in 0..FREES_MAX {
            let found = match self.load(segment) {
                Err(UnitError::NoSegment { .. }) if by.expected.is_none() => None,
                other => Some(other?),
            };
            if let Some(found) = &found {
                self.check_generation(found, by)?;
            }
            if self.replace_found(segment, found.as_ref(), by)? {
                return Ok(());
            }
        }
        let doing = format!("replace segment {segment}");
        Err(self.access.write_error(&doing, Errno(libc::EBUSY)))
    }

    fn check_generation(&self, found: &State, by: &Replacement<'_>) -> Result<(), UnitError> {
        if by.expected == Some(found.generation) && by.generation >= found.generation {
            return Ok(());
        }
        Err(UnitError::Replaced {
            url: self.access.url.clone(),
            segment: found.head.segment,
            generation: found.generation,
        })
    }

    /// The next state of a segment that is replaced. Freed slots stay freed.
    fn successor(&self, segment: SegmentId, found: Option<&State>, by: &Replacement<'_>) -> State {
        let slots = Slots {
            count: by.tags.len() as u32,
            size: by.slot_bytes,
        };
        let mut freed = Freed::default();
        if let Some(found) = found {
            (0..slots.count)
                .filter(|slot| found.freed.contains(*slot))
                .for_each(|slot| freed.insert(slot));
        }
        State {
            head: Head {
                segment,
                cluster: self.cluster,
                lineage_tag: found.map_or(by.lineage_tag, |found| found.head.lineage_tag),
            },
            slots,
            freed,
            generation: by.generation,
        }
    }

    /// Replaces a segment, or creates it if none was found. Returns `false` if it has changed since
    /// it was loaded.
    fn replace_found(
        &self,
        segment: SegmentId,
        found: Option<&State>,
        by: &Replacement<'_>,
    ) -> Result<bool, UnitError> {
        let now = self.successor(segment, found, by);
        let content = content_of(&now, by);
        let before = found.map(AsLoaded::of);
        let (head, slots) = (now.head.encode(), now.slots.encode());
        let (freed, generation) = (now.freed.encode(), encode_generation(now.generation));
        let mut changes = match &before {
            None => vec![Change::Create],
            Some(before) => {
                let [slots, freed, generation] = before.conditions();
                vec![Change::MustExist, slots, freed, generation]
            }
        };
        changes.extend([
            Change::Expect {
                object_bytes: content.len() as u64,
                write_bytes: content.len() as u64,
            },
            Change::Set(HEAD, &head),
            Change::Set(SLOTS, &slots),
            Change::Set(FREED, &freed),
            Change::Set(GENERATION, &generation),
            Change::Replace(&content),
        ]);
        // Further free slots are written as zeroes and keep their room.
        let free: Vec<u32> = (0..now.slots.count)
            .filter(|slot| now.freed.contains(*slot))
            .collect();
        let runs = runs_of(&free).into_iter().take(RUNS_AT_ONCE);
        changes.extend(runs.map(|(first, count)| {
            let bytes = u64::from(count) * record_bytes(by.slot_bytes) as u64;
            Change::Zero(offset_of(first, by.slot_bytes), bytes)
        }));
        match self
            .access
            .change(&name_of(segment), &changes, DATA_TIMEOUT)?
        {
            Ok(()) => {
                self.account.set(segment, Some(now.bytes()));
                Ok(true)
            }
            Err(errno)
                if errno.is_condition()
                    || errno == Errno(libc::ENOENT)
                    || errno == Errno(libc::EEXIST) =>
            {
                Ok(false)
            }
            Err(errno) => {
                let doing = format!("replace segment {segment}");
                Err(self.access.write_error(&doing, errno))
            }
        }
    }
}

/// The records of a segment, with zeroes for free slots.
fn content_of(now: &State, by: &Replacement<'_>) -> Vec<u8> {
    let length = record_bytes(by.slot_bytes);
    let mut content = Vec::with_capacity(by.tags.len() * length);
    let slots = by.data.chunks_exact(by.slot_bytes as usize);
    for ((slot, tag), data) in (0..).zip(by.tags).zip(slots) {
        if now.freed.contains(slot) {
            content.resize(content.len() + length, 0);
        } else {
            encode_record(slot, tag, data, &mut content);
        }
    }
    content
}
