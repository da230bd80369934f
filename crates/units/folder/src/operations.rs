//! The operations of [`Unit`], on a folder.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use base::{SegmentId, Slot};
use unit::{
    Fact, NOTE_BYTES, Put, Read, Replacement, ReplacementPart, SegmentSlots, SegmentStat, Unit,
    UnitError, UnitStat,
};

use super::format::SlotState;
use super::{FolderUnit, examine, note};

impl Unit for FolderUnit {
    fn url(&self) -> &str {
        &self.segments.root.url
    }

    fn can_append(&self) -> bool {
        true
    }

    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        put.assert_fit();
        let result = self.reclaimer().with_room(|| {
            let _alone = self.segments.writer(put.segment);
            match put.first {
                Slot(0) => self.segments.put_first(&put),
                _ => self.segments.put_next(&put),
            }
        });
        if put.first != Slot(0) && matches!(result, Err(UnitError::Full { .. })) {
            let _alone = self.segments.writer(put.segment);
            self.segments.lose(put.segment);
        }
        result
    }

    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.segments.sync(segments)
    }

    fn read(&self, mut read: Read<'_>) -> Result<(), UnitError> {
        read.assert_fit();
        let segment = read.run.segment;
        if let Some(open) = self.segments.in_memory(segment) {
            if open.read(read.reborrow()).is_ok() {
                return Ok(());
            }
            // The file may have changed since it was opened: read it again.
            self.segments.cache.remove(segment);
        }
        let open = self.segments.open_for_reading(segment)?;
        self.segments.cache.insert(segment, Arc::clone(&open));
        open.read(read)
            .map_err(|error| self.segments.explain(segment, "read", error))
    }

    /// Costs one short mutex that is seldom contended, one reference count,
    /// 16 bytes copied for each tag and one system call; allocates nothing.
    fn read_now(&self, read: Read<'_>) -> Result<bool, UnitError> {
        read.assert_fit();
        let Some(open) = self.segments.cache.get(read.run.segment) else {
            return Ok(false);
        };
        // On an error the caller falls back to `read`, which reports it.
        Ok(open.read_now(read).unwrap_or(false))
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError> {
        self.reclaimer().free(segment, slots, closed)
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.reclaimer().delete(segment)
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
        self.reclaimer().reclaim()
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.segments.root.check()?;
        self.segments.root.list()
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        self.segments.root.list_serials(&serials)
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        Ok(self.segments.newest_table(segment)?.stat())
    }

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        let table = self.segments.newest_table(segment)?;
        let freed = table.slots_in(SlotState::is_free).into_iter();
        Ok(SegmentSlots {
            stat: table.stat(),
            lineage_tag: table.header.lineage_tag,
            freed: freed.map(|slot| Slot(slot as u16)).collect(),
        })
    }

    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.segments.root.check()?;
        let failed = |error| self.segments.root.unit_error("count its segments", error);
        let (segments, bytes) = self
            .segments
            .account
            .stat(&self.segments.root, &*self.clock)
            .map_err(failed)?;
        let space = self.segments.root.disk.space(Path::new(""));
        Ok(UnitStat {
            incarnation: None,
            segments,
            bytes,
            free_bytes: space.ok().map(|space| space.free_bytes),
        })
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.segments.scrub(segment)
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        note::read(&self.segments.root)
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        note::write(&self.segments.root, note)
    }

    fn facts(&self) -> Result<Vec<Fact>, UnitError> {
        self.segments.root.check()?;
        let found = examine::read(&*self.segments.root.disk).map_err(|error| {
            self.segments
                .root
                .unit_error("read its file-system.toml", error)
        })?;
        Ok(found.map_or_else(Vec::new, examine::FileSystem::facts))
    }

    fn probe(&self) -> Result<(), UnitError> {
        let probe = || self.segments.root.probe(self.segments.data_bytes);
        let probed = self.reclaimer().with_room(probe);
        if let Err(
            UnitError::Missing { .. }
            | UnitError::Unavailable { .. }
            | UnitError::Foreign { .. }
            | UnitError::Held { .. },
        ) = probed
        {
            // Another folder may be there next time. A unit that another owner holds is the
            // same folder still, and the account notices what that owner changes.
            if !matches!(probed, Err(UnitError::Held { .. })) {
                self.segments.account.forget();
                if let Some(undelete) = &self.undelete {
                    undelete.forget();
                }
            }
            self.segments.forget_durable_folders();
        }
        probed
    }
}
