//! The verbs of a unit, as a folder carries them out.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use base::{SegmentId, Slot};
use unit::{
    Fact, NOTE_BYTES, Put, Read, Replacement, ReplacementPart, SegmentSlots, SegmentStat, Unit,
    UnitError, UnitStat,
};

use super::format::SlotState;
use super::{FolderUnit, examine};

impl Unit for FolderUnit {
    fn url(&self) -> &str {
        &self.place.url
    }

    fn can_append(&self) -> bool {
        true
    }

    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        put.assert_fit();
        let result = self.with_room(|| {
            let _alone = self.writer(put.segment);
            match put.first {
                Slot(0) => self.put_first(&put),
                _ => self.put_next(&put),
            }
        });
        if put.first != Slot(0) && matches!(result, Err(UnitError::Full { .. })) {
            let _alone = self.writer(put.segment);
            self.lose(put.segment);
        }
        result
    }

    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.sync_segments(segments)
    }

    fn read(&self, mut read: Read<'_>) -> Result<(), UnitError> {
        read.assert_fit();
        let segment = read.run.segment;
        if let Some(open) = self.in_memory(segment) {
            if open.read(read.reborrow()).is_ok() {
                return Ok(());
            }
            // It may have changed since: what the file says now counts.
            self.cache.remove(segment);
        }
        let open = self.open_for_reading(segment)?;
        self.cache.insert(segment, Arc::clone(&open));
        open.read(read)
            .map_err(|error| self.explain(segment, "read", error))
    }

    /// Costs one short mutex that is seldom contended, one reference count,
    /// 16 bytes copied for each tag and one system call; allocates nothing.
    fn read_now(&self, read: Read<'_>) -> Result<bool, UnitError> {
        read.assert_fit();
        let Some(open) = self.cache.get(read.run.segment) else {
            return Ok(false);
        };
        // Errors are left to the read that may look into the matter.
        Ok(open.read_now(read).unwrap_or(false))
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
            lineage_tag: by.lineage_tag,
            draft: self.random.u64(),
            expected: by.expected,
            generation: by.generation,
            slot_bytes: by.slot_bytes,
            slots: by.tags.len() as u32,
            first: 0,
        };
        self.replace_part(&part, by.tags, by.data)
    }

    fn reclaim(&self) -> Result<bool, UnitError> {
        self.reclaim_some()
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

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        let table = self.newest_table(segment)?;
        let freed = table.slots_that(SlotState::is_free).into_iter();
        Ok(SegmentSlots {
            stat: table.stat(),
            lineage_tag: table.header.lineage_tag,
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

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.load_note()
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.put_note(note)
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
            | UnitError::Unavailable { .. }
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
            let mut durable = self.durable_folders.lock();
            durable.known.clear();
            durable.forgotten += 1;
        }
        probed
    }
}
