//! The verbs of a unit, as a folder carries them out.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use base::{SegmentId, Slot};
use unit::ReplacementPart;
use unit::{
    Fact, NOTE_BYTES, Replacement, SegmentSlots, SegmentStat, SlotRun, Tag, Unit, UnitError,
    UnitStat, assert_fit,
};

use super::format::SlotState;
use super::{FolderUnit, examine, lock};

impl Unit for FolderUnit {
    fn url(&self) -> &str {
        &self.place.url
    }

    fn can_append(&self) -> bool {
        true
    }

    fn put_for(
        &self,
        line: u64,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        Self::put_for(self, line, segment, slot_bytes, first, tags, data)
    }

    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.sync_segments(segments)
    }

    fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        assert_fit(usize::from(run.count), slot_bytes, tags, data);
        if let Some(open) = self.in_memory(run.segment) {
            if open.read(run, slot_bytes, tags, data).is_ok() {
                return Ok(());
            }
            // It may have changed since: what the file says now counts.
            self.cache.remove(run.segment);
        }
        let open = self.open_for_reading(run.segment)?;
        self.cache.insert(run.segment, Arc::clone(&open));
        open.read(run, slot_bytes, tags, data)
            .map_err(|error| self.explain(run.segment, "read", error))
    }

    /// Costs one short mutex that is seldom contended, one reference count,
    /// 16 bytes copied for each tag and one system call; allocates nothing.
    fn read_now(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<bool, UnitError> {
        assert_fit(usize::from(run.count), slot_bytes, tags, data);
        let Some(open) = self.cache.get(run.segment) else {
            return Ok(false);
        };
        // Errors are left to the read that may look into the matter.
        Ok(open.read_now(run, slot_bytes, tags, data).unwrap_or(false))
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError> {
        self.with_room_or_unkept(|keeps| {
            let _alone = self.writer(segment);
            self.free_slots(segment, slots, closed, keeps)
        })
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.with_room_or_unkept(|keeps| {
            let _alone = self.writer(segment);
            self.delete_segment(segment, keeps)
        })
    }

    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        let part = ReplacementPart {
            segment,
            line: by.line,
            draft: self.random.u64(),
            expected: by.expected,
            generation: by.generation,
            slot_bytes: by.slot_bytes,
            slots: by.tags.len() as u32,
            first: 0,
        };
        self.replace_part(&part, by.tags, by.data)
    }

    fn settle(&self) -> Result<bool, UnitError> {
        self.settle_some()
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.place.look()?;
        self.place.list()
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        self.place.list_serials(&serials)
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        Ok(self.newest_table(segment)?.stat())
    }

    fn slots_of(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        let table = self.newest_table(segment)?;
        let freed = table.slots_that(SlotState::is_free).into_iter();
        Ok(SegmentSlots {
            stat: table.stat(),
            line: table.header.line,
            freed: freed.map(|slot| Slot(slot as u16)).collect(),
        })
    }

    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.place.look()?;
        let failed = |error| self.place.meaning("count its segments", error);
        let (segments, bytes) = self
            .account
            .stat(&self.place, &*self.clock)
            .map_err(failed)?;
        let space = self.place.disk.space(Path::new(""));
        Ok(UnitStat {
            incarnation: None,
            segments,
            bytes,
            free_bytes: space.ok().map(|space| space.free_bytes),
        })
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.scrub_segment(segment)
    }

    fn note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.read_note()
    }

    fn note_down(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.write_note(note)
    }

    fn facts(&self) -> Result<Vec<Fact>, UnitError> {
        self.place.look()?;
        let found = examine::read(&*self.place.disk)
            .map_err(|error| self.place.meaning("read what its file system does", error))?;
        Ok(found.map_or_else(Vec::new, examine::FileSystem::facts))
    }

    fn probe(&self) -> Result<(), UnitError> {
        let probed = self.with_room(|| self.place.probe(self.segment_data_bytes));
        if let Err(
            UnitError::Missing { .. }
            | UnitError::Away { .. }
            | UnitError::Foreign { .. }
            | UnitError::Held { .. },
        ) = probed
        {
            // What comes back may be another folder. One that somebody else
            // has is counted on: the account finds out what that one changes.
            if !matches!(probed, Err(UnitError::Held { .. })) {
                self.account.forget();
                self.forget_kept();
            }
            let mut durable = lock(&self.durable_folders);
            durable.known.clear();
            durable.forgotten += 1;
        }
        probed
    }
}
