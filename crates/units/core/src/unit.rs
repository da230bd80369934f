//! The trait [`Unit`].

use std::ops::Range;

use base::{SegmentId, Slot};

use crate::UnitError;

/// 16 bytes that vouch for a slot's content: an AEAD tag, or a checksum.
pub type Tag = [u8; 16];

/// The length of the note that a unit keeps for hosts, in bytes: a sector, which
/// is written whole or not at all.
pub const NOTE_BYTES: usize = 512;

/// Consecutive slots of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRun {
    /// The segment.
    pub segment: SegmentId,
    /// The first slot.
    pub first: Slot,
    /// How many; at least one.
    pub count: u16,
}

impl SlotRun {
    /// How long its tags and content are, in bytes.
    #[must_use]
    pub const fn answer_bytes(self, slot_bytes: u32) -> usize {
        self.count as usize * (size_of::<Tag>() + slot_bytes as usize)
    }
}

/// A run of `count` slots and its buffers must fit each other: the caller of a unit
/// has made both.
///
/// # Panics
/// If they do not, or there is no slot.
pub fn assert_fit(count: usize, slot_bytes: u32, tags: &[Tag], data: &[u8]) {
    assert!(count > 0, "a run of no slots");
    assert_eq!(tags.len(), count, "a tag a slot");
    assert_eq!(
        data.len(),
        count * slot_bytes as usize,
        "room for each slot"
    );
}

/// What was read: as many slots as were asked for, wherever they lie in memory.
#[derive(Debug, Clone, Copy)]
pub enum ReadSlots<'a> {
    /// The tags, and apart from them the content, slot after slot.
    Apart {
        /// The tags.
        tags: &'a [Tag],
        /// The content.
        data: &'a [u8],
    },
    /// Record after record: each begins with a tag and ends with the content.
    Records {
        /// The records.
        records: &'a [u8],
        /// How long each is, in bytes.
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

/// Is told what came of a reading, once. It must not wait.
pub type ReadDone = Box<dyn FnOnce(Result<ReadSlots<'_>, UnitError>) + Send>;

/// A segment as one unit holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentStat {
    /// The segment.
    pub segment: SegmentId,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// How many slots were ever put.
    pub slots: u32,
    /// How many of them have been freed.
    pub freed: u32,
    /// Which of the segments that were in this one's place it is: 0, unless it
    /// came by [`Unit::replace`].
    pub generation: u16,
}

/// A whole segment that is to take the place of another one.
#[derive(Debug, Clone, Copy)]
pub struct Replacement<'a> {
    /// The generation of the one in whose place it comes; `None`: there must be
    /// none.
    pub expected: Option<u16>,
    /// Its own generation: the same, where the new one says what the old one
    /// said; a later one, where it says something else.
    pub generation: u16,
    /// To whom it belongs, where none is replaced; 0: to whomever puts it, where
    /// units keep that.
    pub line: u64,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// One for each slot, from slot 0 on; at least one.
    pub tags: &'a [Tag],
    /// As many slots.
    pub data: &'a [u8],
}

/// A part of a segment that is to take the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplacementPart {
    /// The segment.
    pub segment: SegmentId,
    /// To whom it belongs, where there is none in its place that says so.
    pub line: u64,
    /// The draft that it is a part of; no other is made under this number.
    pub draft: u64,
    /// As in [`Replacement`].
    pub expected: Option<u16>,
    /// As in [`Replacement`].
    pub generation: u16,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// How many slots the whole segment has.
    pub slots: u32,
    /// The first slot of this part: 0 begins a draft, and the part that ends with
    /// the last slot puts it in place.
    pub first: u32,
}

/// A segment as one unit holds it, slot by slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSlots {
    /// Its numbers.
    pub stat: SegmentStat,
    /// To whom it belongs, where the unit keeps that; else 0.
    pub line: u64,
    /// The slots that were freed, in order.
    pub freed: Vec<Slot>,
}

/// What a unit holds, and how much more it could.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitStat {
    /// How many segments.
    pub segments: u64,
    /// The room they take, in bytes, holes not counted.
    pub bytes: u64,
    /// Free room in bytes, where that is known.
    pub free_bytes: Option<u64>,
    /// Which incarnation of the process that keeps it this is, where that is known: as long
    /// as it is the same one, nothing is lost that was there. 0 of engines that lose nothing
    /// which they have acknowledged.
    pub incarnation: Option<u64>,
}

/// Something that was found out of the place that a unit is, for operators to
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// What was tried.
    pub what: &'static str,
    /// Whether it is so.
    pub holds: bool,
    /// What follows, if it is not.
    pub otherwise: &'static str,
}

/// A place that keeps sealed blocks. Shared by many threads.
///
/// All calls but [`Unit::read_now`] and [`Unit::read_later`] may wait and belong
/// on a [`world::Pool`] thread.
pub trait Unit: Send + Sync {
    /// Where it is: `file:///…`, `scree://…`, `s3://…`.
    fn url(&self) -> &str;

    /// Whether a segment may be put in several parts. If not, every put makes
    /// a whole segment.
    fn can_append(&self) -> bool;

    /// Puts `tags.len()` sealed blocks, `slot_bytes` each, one after another in
    /// `data`, at `first` and the slots after it. A put at slot 0 makes the
    /// segment; any other must begin where the segment ends. Not durable until
    /// [`Unit::sync`]. After an error the segment must not be appended to.
    ///
    /// # Errors
    /// [`UnitError`]; nothing that was put before is harmed.
    fn put(
        &self,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        self.put_for(0, segment, slot_bytes, first, tags, data)
    }

    /// As [`Unit::put`], of a segment that belongs to `line`: what is copied belongs
    /// to whom it belonged before. 0: to whomever puts, where units keep that.
    ///
    /// # Errors
    /// As [`Unit::put`].
    fn put_for(
        &self,
        line: u64,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError>;

    /// Makes everything put into `segments` durable, names included.
    ///
    /// # Errors
    /// [`UnitError`]: then none of it may be counted on.
    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError>;

    /// Makes durable what is there of `segments`, whoever has put it. What was put and is
    /// lost since is no error here, as it is to [`Unit::sync`]: whoever asks looks
    /// what there is.
    ///
    /// # Errors
    /// As [`Unit::sync`].
    fn sync_found(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.sync(segments)
    }

    /// Reads a run of slots: `data` is `count` slots long. What comes back is
    /// what the unit has; whether it is right only the tags tell, to those who
    /// hold the key.
    ///
    /// # Errors
    /// [`UnitError::NoSlot`] if any of them was never put or has been freed,
    /// and the others.
    fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError>;

    /// As [`Unit::read`], if it can be answered without waiting; `Ok(false)`
    /// if not.
    ///
    /// # Errors
    /// As [`Unit::read`].
    fn read_now(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<bool, UnitError> {
        let _ = (run, slot_bytes, tags, data);
        Ok(false)
    }

    /// As [`Unit::read`], without waiting: `done` is told what came of it, on any
    /// thread. `false` if nothing was begun, and nobody is told: the unit cannot do
    /// that, or has too much to do now.
    fn read_later(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let _ = (run, slot_bytes, done);
        false
    }

    /// Frees slots: their content is given up and their room given back, at
    /// once or when enough has gathered. Freeing twice, or in a segment that
    /// is gone, is no error. A segment whose every slot is free is deleted if
    /// `closed` says that nothing will be appended to it, or nothing ever can
    /// be ([`Unit::can_append`]). Durable on return.
    ///
    /// # Errors
    /// [`UnitError`].
    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError>;

    /// Removes a whole segment. One that is not there is no error. Durable on
    /// return.
    ///
    /// # Errors
    /// [`UnitError`].
    fn delete(&self, segment: SegmentId) -> Result<(), UnitError>;

    /// Puts a whole segment in the place of the one that is there, in one step: at
    /// every moment, after a crash too, there is the old one or the new one, and
    /// the new one on return. Slots that were freed in the old one are free in
    /// the new one. Nothing may be appended to either.
    ///
    /// Where several hosts share a folder without a daemon, or a store knows no
    /// conditions, of two that replace at one moment both may be told that they
    /// did: what must not go wrong then is looked at again after it.
    ///
    /// # Errors
    /// [`UnitError::Replaced`] if the segment has another generation than was
    /// expected, [`UnitError::NoSegment`] if there is none, and the others. After
    /// any other error either may be there.
    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError>;

    /// Gives back the room of freed slots that has only been gathered so far.
    /// For idle times: a call ends after a fraction of a second, and returns
    /// whether there is more to do.
    ///
    /// # Errors
    /// [`UnitError`].
    fn settle(&self) -> Result<bool, UnitError> {
        Ok(false)
    }

    /// All segments, sorted by number.
    ///
    /// # Errors
    /// [`UnitError`].
    fn list(&self) -> Result<Vec<SegmentId>, UnitError>;

    /// Those whose serials are in `serials`, sorted by number. A segment that
    /// is not among them does not come back after a crash either, also if its
    /// delete failed half way.
    ///
    /// # Errors
    /// [`UnitError`].
    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError>;

    /// One segment's slots.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError>;

    /// One segment, slot by slot.
    ///
    /// # Errors
    /// As [`Unit::stat_segment`].
    fn slots_of(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError>;

    /// How much the unit holds. May be a few seconds old.
    ///
    /// # Errors
    /// [`UnitError`].
    fn stat(&self) -> Result<UnitStat, UnitError>;

    /// Reads a whole segment and returns the slots whose content is not what
    /// was put, by the unit's own checksums: no key is needed.
    ///
    /// # Errors
    /// [`UnitError`].
    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError>;

    /// What hosts have noted last, beside the segments; `None` if nothing. What
    /// comes back is what the unit has: whether it is right is for hosts to know.
    ///
    /// # Errors
    /// [`UnitError`].
    fn note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError>;

    /// Keeps a note in the place of the last one. Durable on return; if it is
    /// never reached, the note is the old one or the new one.
    ///
    /// # Errors
    /// [`UnitError`].
    fn note_down(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError>;

    /// What was found out of the place when the unit was made; nothing, where
    /// nothing was.
    ///
    /// # Errors
    /// [`UnitError`].
    fn facts(&self) -> Result<Vec<Fact>, UnitError> {
        Ok(Vec::new())
    }

    /// Looks whether the unit is there, is the one it should be, and takes
    /// writes.
    ///
    /// # Errors
    /// [`UnitError`]: what is wrong with it.
    fn probe(&self) -> Result<(), UnitError>;
}
