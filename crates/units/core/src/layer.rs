//! A unit around another one: [`UnitLayer`].
//!
//! A wrapper does the same with nearly every call: it counts it, refuses it, or lets it
//! fail. So it implements one function around all calls and, where it needs more, a hook
//! for one of them; the blanket `impl Unit` below forwards the rest. No call is boxed.

use std::ops::Range;

use base::{SegmentId, Slot};

use crate::health::OpClass;
use crate::{
    Fact, NOTE_BYTES, Put, Read, ReadDone, Replacement, SegmentSlots, SegmentStat, SlotRun, Unit,
    UnitError, UnitStat,
};

/// Names a call of [`Unit`] that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the call of `Unit` with this name")]
pub enum UnitOp {
    Put,
    Sync,
    SyncFound,
    Free,
    Delete,
    Replace,
    Read,
    ReadNow,
    Reclaim,
    List,
    ListSerials,
    StatSegment,
    SegmentSlots,
    Stat,
    Scrub,
    ReadNote,
    WriteNote,
    Facts,
    Probe,
}

impl UnitOp {
    /// The class that health, metrics and injected faults count the call under.
    #[must_use]
    pub fn class(self) -> OpClass {
        match self {
            Self::Put | Self::Sync | Self::SyncFound | Self::Replace => OpClass::Write,
            Self::Free | Self::Delete | Self::Reclaim | Self::WriteNote => OpClass::Release,
            Self::Probe => OpClass::Probe,
            Self::Read
            | Self::ReadNow
            | Self::List
            | Self::ListSerials
            | Self::StatSegment
            | Self::SegmentSlots
            | Self::Stat
            | Self::Scrub
            | Self::ReadNote
            | Self::Facts => OpClass::Read,
        }
    }
}

/// A unit that wraps another one, and thereby is a [`Unit`].
///
/// [`UnitLayer::around`] sees every call that can fail. A hook (`on_…`) sees one kind of
/// call with its arguments; unless implemented, it goes through `around`.
pub trait UnitLayer: Send + Sync {
    /// The wrapped unit.
    fn inner(&self) -> &dyn Unit;

    /// Makes a call on the inner unit, or does not.
    ///
    /// # Errors
    /// Those of the call, and the layer's own.
    fn around<T>(
        &self,
        op: UnitOp,
        call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError>;

    /// [`Unit::can_append`].
    fn on_can_append(&self) -> bool {
        self.inner().can_append()
    }

    /// [`Unit::put`].
    ///
    /// # Errors
    /// As [`Unit::put`].
    fn on_put(&self, put: Put<'_>) -> Result<(), UnitError> {
        self.around(UnitOp::Put, |unit| unit.put(put))
    }

    /// [`Unit::sync`] or [`Unit::sync_found`], as `op` says.
    ///
    /// # Errors
    /// As [`Unit::sync`].
    fn on_sync(
        &self,
        op: UnitOp,
        sync: impl FnOnce(&dyn Unit) -> Result<(), UnitError>,
    ) -> Result<(), UnitError> {
        self.around(op, sync)
    }

    /// [`Unit::replace`].
    ///
    /// # Errors
    /// As [`Unit::replace`].
    fn on_replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        self.around(UnitOp::Replace, |unit| unit.replace(segment, by))
    }

    /// [`Unit::read`].
    ///
    /// # Errors
    /// As [`Unit::read`].
    fn on_read(&self, read: Read<'_>) -> Result<(), UnitError> {
        self.around(UnitOp::Read, |unit| unit.read(read))
    }

    /// [`Unit::read_now`].
    ///
    /// # Errors
    /// As [`Unit::read_now`].
    fn on_read_now(&self, read: Read<'_>) -> Result<bool, UnitError> {
        self.around(UnitOp::ReadNow, |unit| unit.read_now(read))
    }

    /// [`Unit::read_async`]; a layer that does not implement it cannot read this way.
    fn on_read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let _ = (run, slot_bytes, done);
        false
    }
}

impl<L: UnitLayer> Unit for L {
    fn url(&self) -> &str {
        self.inner().url()
    }

    fn can_append(&self) -> bool {
        self.on_can_append()
    }

    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        self.on_put(put)
    }

    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.on_sync(UnitOp::Sync, |unit| unit.sync(segments))
    }

    fn sync_found(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.on_sync(UnitOp::SyncFound, |unit| unit.sync_found(segments))
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError> {
        self.around(UnitOp::Free, |unit| unit.free(segment, slots, closed))
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.around(UnitOp::Delete, |unit| unit.delete(segment))
    }

    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        self.on_replace(segment, by)
    }

    fn read(&self, read: Read<'_>) -> Result<(), UnitError> {
        self.on_read(read)
    }

    fn read_now(&self, read: Read<'_>) -> Result<bool, UnitError> {
        self.on_read_now(read)
    }

    fn read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        self.on_read_async(run, slot_bytes, done)
    }

    fn reclaim(&self) -> Result<bool, UnitError> {
        self.around(UnitOp::Reclaim, |unit| unit.reclaim())
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.around(UnitOp::List, |unit| unit.list())
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        self.around(UnitOp::ListSerials, |unit| unit.list_serials(serials))
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        self.around(UnitOp::StatSegment, |unit| unit.stat_segment(segment))
    }

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        self.around(UnitOp::SegmentSlots, |unit| unit.segment_slots(segment))
    }

    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.around(UnitOp::Stat, |unit| unit.stat())
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.around(UnitOp::Scrub, |unit| unit.scrub(segment))
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.around(UnitOp::ReadNote, |unit| unit.read_note())
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.around(UnitOp::WriteNote, |unit| unit.write_note(note))
    }

    fn facts(&self) -> Result<Vec<Fact>, UnitError> {
        self.around(UnitOp::Facts, |unit| unit.facts())
    }

    fn probe(&self) -> Result<(), UnitError> {
        self.around(UnitOp::Probe, |unit| unit.probe())
    }
}
