//! A storage unit that is a folder on a mounted file system: local, or Lustre, CephFS,
//! GlusterFS, NFS.
//!
//! Each segment is a file; `docs/internals/formats.md` draws it. The cost of a call, with
//! everything in the page cache:
//!
//! | call | system calls | about |
//! |---|---|---|
//! | `read_now`, segment open | one `preadv2(RWF_NOWAIT)`, two for the first 32 | 1 µs |
//! | `read`, segment not open | folder, open, close, fstat, 3 reads, close of another | 7 µs |
//! | `put` at slot 0 | marker, open, one write of data, one of the table | the copy to the cache |
//! | `put` after that | one write of data, one of the table | the same |
//! | `sync` | one fdatasync a segment, one fsync a folder with new names | the device's |
//! | `free` | marker, open, read the table, a write a run, one fdatasync | the device's |
//! | `free` with an undelete window | one more write | the same |
//!
//! The parts:
//!
//! | type | owns |
//! |---|---|
//! | `Root` | paths, the marker, the meaning of errors |
//! | `Segments` | segment files: the open ones, their writers, unsynced puts, room taken |
//! | `Replacer` | replacing a whole segment |
//! | `Reclaimer` | freeing, deleting, punching holes, the walk after a start |
//! | `Undelete` | what was freed and is stored for a while |
//!
//! Invariants:
//!
//! * The administrator of the folder is not trusted: no link in it is followed, no name
//!   leads out of it, and only regular files are opened.
//! * A folder whose marker names another owner's database may be read and is not changed.
//! * A folder without this unit's marker is never written to and is never an empty unit.
//!   `segments/` is created with the unit only, so that an unmounted mount point has no
//!   place to write to.
//! * A slot's bytes are written once. A write touches the entries of its own slots only, so
//!   several processes may share a folder as long as each segment has one that puts.
//! * A slot is marked free durably before its room is reclaimed, and the room is reclaimed
//!   durably before the table says so: a crash in between repeats work and loses nothing.
//! * A segment that lost a write is never appended to or synced again.
//! * At most as many segments wait for a sync as the unit may have descriptors; beyond that
//!   one is synced early.
//!
//! Must not know: keys, volumes, what is in a slot.

mod account;
mod cache;
mod examine;
mod files;
pub mod format;
mod note;
mod operations;
mod queue;
mod reclaim;
mod replace;
mod root;
mod runs;
mod scrub;
mod segment;
mod segments;
mod table;
#[cfg(test)]
mod tests;
mod undelete;
mod unsynced;
mod write;

pub use root::segment_of;
pub use undelete::{
    RestoreFilter, RestoreReport, RestoredSegment, SegmentFate, UndeletePolicy, UndeleteUsage,
};

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::{ClusterId, LineageTag, SegmentId, UnitId};
use unit::{Marker, Owner, UnitError};
use world::{Clock, Random, World};

use queue::PunchQueue;
use reclaim::Reclaimer;
use replace::Replacer;
use segments::Segments;
use undelete::Undelete;

/// Default data in one segment, in bytes: large enough that a disk writes it at full speed,
/// small enough to be reclaimed soon.
pub const SEGMENT_DATA_BYTES: u64 = 8 << 20;

/// Default maximum of open segments: 17 MiB of tables. Fewer if the process may not open as
/// many files, or has many units.
pub const OPEN_SEGMENTS_MAX: usize = 512;

/// Bytes read at a time where a whole segment is read.
const CHUNK_BYTES: usize = 1 << 20;

/// A folder as a storage unit. Shared by many threads.
pub struct FolderUnit {
    segments: Segments,
    punches: PunchQueue,
    undelete: Option<undelete::Store>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl FolderUnit {
    /// Name of the marker file, without which a folder is no unit.
    pub const MARKER: &str = unit::MARKER_FILE;

    /// Creates unit `unit` of `cluster` in the folder at `path`. The folder is created if
    /// only its last part is missing; otherwise it must be empty. A folder that is that very
    /// unit already is opened.
    ///
    /// # Errors
    /// [`UnitError::Foreign`] if it is another unit or holds other files.
    pub fn create(
        world: &World,
        path: &Path,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Result<Self, UnitError> {
        Self::open(world, path, cluster, unit).created()
    }

    /// Creates the folder of a unit that was opened, as [`FolderUnit::create`] does.
    ///
    /// # Errors
    /// As [`FolderUnit::create`]; [`UnitError::Held`] if it has another owner.
    pub fn created(self) -> Result<Self, UnitError> {
        self.segments.root.create()?;
        Ok(self)
    }

    /// The unit at `path`, which should be unit `unit` of `cluster`. Reads nothing yet: the
    /// folder may be unavailable now. [`Unit::probe`](unit::Unit::probe) checks it.
    #[must_use]
    pub fn open(world: &World, path: &Path, cluster: ClusterId, unit: UnitId) -> Self {
        let marker = Marker {
            cluster,
            unit,
            owner: None,
        };
        Self {
            segments: Segments::new(world, path, marker),
            punches: PunchQueue::default(),
            undelete: None,
            clock: Arc::clone(&world.clock),
            random: Arc::clone(&world.random),
        }
    }

    /// Reads the marker of the unit in the folder at `path`.
    ///
    /// # Errors
    /// [`UnitError::Missing`] if it is no unit, [`UnitError::Newer`] if this program cannot
    /// read it.
    pub fn identify(world: &World, path: &Path) -> Result<Marker, UnitError> {
        root::identify(&*world.disk.within(path), &base::url::url_of(path))
    }

    /// Lets only `owner` change the unit, which is claimed when it is created or probed. With
    /// `takes_over`, the first claim also succeeds against an owner of the same generation.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner, takes_over: bool) -> Self {
        self.segments.root.set_owner(owner, takes_over);
        self
    }

    /// Gives new segments room for `bytes` of data instead of [`SEGMENT_DATA_BYTES`].
    #[must_use]
    pub fn with_segment_data_bytes(mut self, bytes: u64) -> Self {
        self.segments.data_bytes = bytes;
        self
    }

    /// Keeps about `segments_max` segments open, instead of a number derived from the process's
    /// limit.
    #[must_use]
    pub fn with_open_segments(self, segments_max: usize) -> Self {
        self.segments.cache.share().set_segments_max(segments_max);
        self
    }

    /// Stores what is freed for a while. For a unit that one process has to itself.
    #[must_use]
    pub fn with_undelete(mut self, policy: UndeletePolicy) -> Self {
        self.undelete = Some(undelete::Store::new(policy));
        self
    }

    /// The unit's id.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.segments.root.marker.unit
    }

    /// The lineage tag of a segment.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    pub fn lineage_tag_of(&self, segment: SegmentId) -> Result<LineageTag, UnitError> {
        let open = match self.segments.in_memory(segment) {
            Some(open) => open,
            None => self.segments.open_for_reading(segment)?,
        };
        Ok(open.header.lineage_tag)
    }

    /// As [`FolderUnit::lineage_tag_of`] if the tag is known without waiting.
    #[must_use]
    pub fn lineage_tag_now(&self, segment: SegmentId) -> Option<LineageTag> {
        Some(self.segments.cache.get(segment)?.header.lineage_tag)
    }

    /// As [`Unit::replace`](unit::Unit::replace), in parts that follow one another.
    ///
    /// # Errors
    /// As [`Unit::replace`](unit::Unit::replace); the draft is removed then.
    pub fn replace_part(
        &self,
        part: &unit::ReplacementPart,
        tags: &[unit::Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        part.assert_fit(tags, data);
        self.replacer().replace_part(part, tags, data)
    }

    /// How much of what was freed is stored for undelete.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn undelete_usage(&self) -> Result<UndeleteUsage, UnitError> {
        match self.undelete() {
            Some(undelete) => undelete.usage(),
            None => Ok(UndeleteUsage::default()),
        }
    }

    /// Whether a put of `bytes` bytes might find too little room and evict what is stored for
    /// undelete. The length of one segment is reserved for other puts.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn would_evict(&self, bytes: u64) -> Result<bool, UnitError> {
        let Some(undelete) = self.undelete() else {
            return Ok(false);
        };
        let Ok(space) = self.segments.root.disk.space(Path::new("")) else {
            return Ok(false);
        };
        let needed = bytes.saturating_add(self.segments.data_bytes);
        Ok(space.free_bytes < needed && undelete.usage()?.bytes > 0)
    }

    /// Restores what `filter` selects of what was freed, as far as it is still stored; with
    /// `dry_run`, only reports what would be restored. A restore that was interrupted is
    /// completed first. Nothing else may use the unit meanwhile.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn restore(
        &self,
        filter: &RestoreFilter,
        dry_run: bool,
    ) -> Result<RestoreReport, UnitError> {
        match self.undelete() {
            Some(undelete) => undelete.restore(filter, dry_run),
            None => Ok(RestoreReport::default()),
        }
    }

    /// Completes a restore that was interrupted. Nothing else may use the unit meanwhile.
    ///
    /// A plan that cannot be read is discarded, and all logs with it: they may name slots
    /// that were restored.
    ///
    /// # Errors
    /// [`UnitError`]; nothing that is stored expires until the plan is removed.
    pub fn complete_restore(&self) -> Result<RestoreReport, UnitError> {
        match self.undelete() {
            Some(undelete) => undelete.complete_restore(),
            None => Ok(RestoreReport::default()),
        }
    }

    fn undelete(&self) -> Option<Undelete<'_>> {
        let store = self.undelete.as_ref()?;
        Some(Undelete {
            store,
            segments: &self.segments,
            punches: &self.punches,
            clock: &*self.clock,
        })
    }

    fn reclaimer(&self) -> Reclaimer<'_> {
        Reclaimer {
            segments: &self.segments,
            punches: &self.punches,
            undelete: self.undelete(),
            clock: &*self.clock,
        }
    }

    fn replacer(&self) -> Replacer<'_> {
        Replacer {
            segments: &self.segments,
            punches: &self.punches,
            undelete: self.undelete(),
        }
    }
}

/// Whether an error says only that a file or folder does not exist.
fn is_not_found(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
