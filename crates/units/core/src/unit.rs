//! The trait [`Unit`] and what its calls take and return.

use std::ops::Range;

use base::{LineageTag, SegmentId, Slot};

use crate::UnitError;

/// 16 bytes that authenticate a slot's content: an AEAD tag, or a checksum.
pub type Tag = [u8; 16];

/// Length of the note that a unit stores for hosts, in bytes: a sector, which is written as
/// a whole or not at all.
pub const NOTE_BYTES: usize = 512;

/// Consecutive slots of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRun {
    /// The segment.
    pub segment: SegmentId,
    /// The first slot.
    pub first: Slot,
    /// The number of slots, at least one.
    pub count: u16,
}

impl SlotRun {
    /// Length of the tags and contents of the run, in bytes.
    #[must_use]
    pub const fn answer_bytes(self, slot_bytes: u32) -> usize {
        self.count as usize * (size_of::<Tag>() + slot_bytes as usize)
    }
}

/// Slots to put into one segment, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put<'a> {
    /// The lineage tag stored when the segment is created; [`LineageTag::NONE`] means the
    /// lineage of the caller's lease. Ignored by units that store no tags.
    pub lineage_tag: LineageTag,
    /// The segment.
    pub segment: SegmentId,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// The first slot. Slot 0 creates the segment; any other must be its current end.
    pub first: Slot,
    /// One tag for each slot, at least one.
    pub tags: &'a [Tag],
    /// The contents of the slots, one after another.
    pub data: &'a [u8],
}

impl Put<'_> {
    /// Asserts that the buffers fit each other: the caller of a unit made both.
    ///
    /// # Panics
    /// If there is no slot, or `data` is not as long as the slots.
    pub fn assert_fit(&self) {
        assert_fit(self.tags.len(), self.slot_bytes, self.tags, self.data);
    }
}

/// A run of slots to read, and the buffers to read it into.
#[derive(Debug)]
pub struct Read<'a> {
    /// The slots.
    pub run: SlotRun,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Room for one tag for each slot of the run.
    pub tags: &'a mut [Tag],
    /// Room for the contents of the run, slot after slot.
    pub data: &'a mut [u8],
}

impl Read<'_> {
    /// The same read, for a callee that consumes it.
    pub fn reborrow(&mut self) -> Read<'_> {
        Read {
            run: self.run,
            slot_bytes: self.slot_bytes,
            tags: self.tags,
            data: self.data,
        }
    }

    /// Asserts that the buffers fit the run: the caller of a unit made both.
    ///
    /// # Panics
    /// If there is no slot, or a buffer has another length than the run.
    pub fn assert_fit(&self) {
        let count = usize::from(self.run.count);
        assert_fit(count, self.slot_bytes, self.tags, self.data);
    }
}

fn assert_fit(count: usize, slot_bytes: u32, tags: &[Tag], data: &[u8]) {
    assert!(count > 0, "a run of no slots");
    assert_eq!(tags.len(), count, "a tag a slot");
    assert_eq!(
        data.len(),
        count * slot_bytes as usize,
        "room for each slot"
    );
}

/// The slots that a read has found, in the memory of the unit: as many as were requested.
#[derive(Debug, Clone, Copy)]
pub enum ReadSlots<'a> {
    /// The tags, and apart from them the contents, slot after slot.
    Apart {
        /// The tags.
        tags: &'a [Tag],
        /// The contents.
        data: &'a [u8],
    },
    /// Record after record: each begins with a tag and ends with the content.
    Records {
        /// The records.
        records: &'a [u8],
        /// Length of each record, in bytes.
        record_bytes: usize,
    },
}

impl<'a> ReadSlots<'a> {
    /// The tags and contents of the slots, each `slot_bytes` long, in order.
    pub fn iter(self, slot_bytes: u32) -> impl Iterator<Item = (&'a Tag, &'a [u8])> {
        let length = slot_bytes as usize;
        let (tags, data, records, record_bytes) = match self {
            Self::Apart { tags, data } => (tags, data, &[][..], length),
            Self::Records {
                records,
                record_bytes,
            } => (&[][..], &[][..], records, record_bytes),
        };
        let apart = tags.iter().zip(data.chunks_exact(length));
        let records = records.chunks_exact(record_bytes);
        apart.chain(records.filter_map(move |record| {
            let content = record.len().checked_sub(length)?;
            Some((record.first_chunk()?, &record[content..]))
        }))
    }
}

/// Called once with the result of a read. It must not wait.
pub type ReadDone = Box<dyn FnOnce(Result<ReadSlots<'_>, UnitError>) + Send>;

/// The numbers of a segment on one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentStat {
    /// The segment.
    pub segment: SegmentId,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// The number of slots that were ever put.
    pub slots: u32,
    /// The number of them that have been freed.
    pub freed: u32,
    /// How often the content of the segment was replaced by another one
    /// ([`Unit::replace`]); 0 if never.
    pub generation: u16,
}

/// A whole segment that replaces the one of the same number.
#[derive(Debug, Clone, Copy)]
pub struct Replacement<'a> {
    /// The generation of the segment to replace; `None` means that the unit must have no
    /// such segment.
    pub expected: Option<u16>,
    /// The generation of the new segment: the same where its content is the old one's, a
    /// later one where the content differs.
    pub generation: u16,
    /// The lineage tag stored where no segment is replaced; [`LineageTag::NONE`] means the
    /// lineage of the caller's lease. Ignored by units that store no tags.
    pub lineage_tag: LineageTag,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// One tag for each slot, from slot 0 on; at least one.
    pub tags: &'a [Tag],
    /// The contents of the slots, one after another.
    pub data: &'a [u8],
}

impl Replacement<'_> {
    /// Asserts that the buffers fit each other: the caller of a unit made both.
    ///
    /// # Panics
    /// If there is no slot, or `data` is not as long as the slots.
    pub fn assert_fit(&self) {
        assert_fit(self.tags.len(), self.slot_bytes, self.tags, self.data);
    }
}

/// Where one part of a [`Replacement`] belongs that is sent in several parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplacementPart {
    /// The segment.
    pub segment: SegmentId,
    /// The lineage tag, as in [`Replacement`].
    pub lineage_tag: LineageTag,
    /// The number of the draft that collects the parts. Numbers are never used again.
    pub draft: u64,
    /// The generation to replace, as in [`Replacement`].
    pub expected: Option<u16>,
    /// The new generation, as in [`Replacement`].
    pub generation: u16,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// The number of slots of the whole segment.
    pub slots: u32,
    /// The first slot of this part. Slot 0 begins a draft; the part that contains the last
    /// slot puts the draft in place.
    pub first: u32,
}

impl ReplacementPart {
    /// Asserts that the buffers of the part fit each other: the caller made both.
    ///
    /// # Panics
    /// If there is no slot, or `data` is not as long as the slots.
    pub fn assert_fit(&self, tags: &[Tag], data: &[u8]) {
        assert_fit(tags.len(), self.slot_bytes, tags, data);
    }
}

/// A segment on one unit, slot by slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSlots {
    /// Its numbers.
    pub stat: SegmentStat,
    /// The lineage that the segment belongs to; [`LineageTag::NONE`] where the unit stores
    /// no tags.
    pub lineage_tag: LineageTag,
    /// The slots that were freed, in order.
    pub freed: Vec<Slot>,
}

/// What a unit holds, and how much more it could hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitStat {
    /// The number of segments.
    pub segments: u64,
    /// The room that the segments take, in bytes, holes not counted.
    pub bytes: u64,
    /// Free room in bytes, where it is known.
    pub free_bytes: Option<u64>,
    /// Identifies one run of the process that serves the unit, where there is one. As long
    /// as it stays the same, nothing acknowledged was lost. 0 for a process that never
    /// loses what it has acknowledged.
    pub incarnation: Option<u64>,
}

/// Something that creating the unit has found out about its backend, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// What was tried.
    pub what: &'static str,
    /// Whether the backend can do it.
    pub holds: bool,
    /// What follows if it cannot.
    pub otherwise: &'static str,
}

/// A place that stores sealed blocks. Shared by many threads.
///
/// All calls except [`Unit::read_now`] and [`Unit::read_async`] may wait; make them on a
/// [`world::Pool`] thread. Each kind of unit implements this trait. A unit that wraps
/// another one implements [`UnitLayer`](crate::UnitLayer) instead, which names only what the
/// wrapper adds.
///
/// The calls fall into three groups: what hosts write (`put`, `sync`, `free`, `delete`,
/// `replace`, `write_note`), what hosts read (`read`, `read_now`, `read_async`,
/// `read_note`), and what repair and maintenance do (the rest).
pub trait Unit: Send + Sync {
    /// The unit's URL: `file:///…`, `scree://…`, `s3://…`.
    fn url(&self) -> &str;

    /// Whether a segment may be put in several parts. If not, every put creates a whole
    /// segment.
    fn can_append(&self) -> bool;

    /// Puts sealed blocks. A put at slot 0 creates the segment; any other must begin where
    /// the segment ends. Not durable until [`Unit::sync`]. After an error the segment must
    /// not be appended to.
    ///
    /// # Errors
    /// [`UnitError`]; slots that were put before stay as they are.
    fn put(&self, put: Put<'_>) -> Result<(), UnitError>;

    /// Makes everything durable that this unit object has put into `segments`, names
    /// included.
    ///
    /// # Errors
    /// [`UnitError`]: then none of it counts as durable.
    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError>;

    /// Makes durable what the unit has of `segments`, no matter who put it. Unlike
    /// [`Unit::sync`], slots that were put and lost since then are no error here: the caller
    /// looks at what is there.
    ///
    /// # Errors
    /// As [`Unit::sync`].
    fn sync_found(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.sync(segments)
    }

    /// Frees slots: gives up their content and returns their room, at once or when enough
    /// has gathered. Freeing a slot twice, or in a segment that was deleted, is no error. A
    /// segment with every slot free is deleted if `closed` says that no put will follow, or
    /// if none can ([`Unit::can_append`]). Durable on return.
    ///
    /// # Errors
    /// [`UnitError`].
    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError>;

    /// Deletes a whole segment. A segment that is not there is no error. Durable on return.
    ///
    /// # Errors
    /// [`UnitError`].
    fn delete(&self, segment: SegmentId) -> Result<(), UnitError>;

    /// Replaces a segment by another one in one step: at every moment, also after a crash,
    /// the unit has the old one or the new one, and on return the new one. Slots that were
    /// freed in the old one are free in the new one. Nothing may be appended to either.
    ///
    /// Where several hosts share a folder without a daemon, or a store has no conditional
    /// requests, two replacements at the same moment may both succeed. A caller for whom
    /// that matters looks at the segment again.
    ///
    /// # Errors
    /// [`UnitError::Replaced`] if the segment has another generation than expected,
    /// [`UnitError::NoSegment`] if there is none, and the others. After any other error the
    /// unit has either one.
    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError>;

    /// Reads a run of slots. The content may be wrong: only the tags tell, and only those
    /// who hold the key.
    ///
    /// # Errors
    /// [`UnitError::NoSlot`] if any of the slots was never put or has been freed, and the
    /// others.
    fn read(&self, read: Read<'_>) -> Result<(), UnitError>;

    /// As [`Unit::read`] if the unit can answer without waiting; otherwise `Ok(false)`.
    ///
    /// # Errors
    /// As [`Unit::read`].
    fn read_now(&self, read: Read<'_>) -> Result<bool, UnitError> {
        let _ = read;
        Ok(false)
    }

    /// Starts a read without waiting and calls `done` with its result, on any thread.
    /// Returns `false`, and never calls `done`, if the unit cannot read this way or has too
    /// many reads under way.
    fn read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let _ = (run, slot_bytes, done);
        false
    }

    /// Returns the room of freed slots that has only gathered so far. For idle times: a call
    /// ends after a fraction of a second, and returns whether there is more to do.
    ///
    /// # Errors
    /// [`UnitError`].
    fn reclaim(&self) -> Result<bool, UnitError> {
        Ok(false)
    }

    /// All segments, sorted by number.
    ///
    /// # Errors
    /// [`UnitError`].
    fn list(&self) -> Result<Vec<SegmentId>, UnitError>;

    /// The segments with serials in `serials`, sorted by number. A segment that is not among
    /// them does not come back after a crash, not even one with a delete that failed half
    /// way.
    ///
    /// # Errors
    /// [`UnitError`].
    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError>;

    /// The numbers of one segment.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError>;

    /// One segment, slot by slot.
    ///
    /// # Errors
    /// As [`Unit::stat_segment`].
    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError>;

    /// How much the unit holds. May be a few seconds old.
    ///
    /// # Errors
    /// [`UnitError`].
    fn stat(&self) -> Result<UnitStat, UnitError>;

    /// Reads a whole segment and returns the slots with another content than was put, by the
    /// unit's own checksums: no key is needed.
    ///
    /// # Errors
    /// [`UnitError`].
    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError>;

    /// The note that hosts wrote last, beside the segments; `None` if there is none. The
    /// unit does not check it: hosts do.
    ///
    /// # Errors
    /// [`UnitError`].
    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError>;

    /// Replaces the note. Durable on return; after an error the unit has the old note or the
    /// new one.
    ///
    /// # Errors
    /// [`UnitError`].
    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError>;

    /// What creating the unit has found out about its backend; empty if nothing.
    ///
    /// # Errors
    /// [`UnitError`].
    fn facts(&self) -> Result<Vec<Fact>, UnitError> {
        Ok(Vec::new())
    }

    /// Checks that the unit is there, is the expected one, and accepts writes.
    ///
    /// # Errors
    /// [`UnitError`]: what is wrong with it.
    fn probe(&self) -> Result<(), UnitError>;
}
