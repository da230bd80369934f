//! A unit that is a folder on a mounted file system: local, or Lustre, CephFS,
//! GlusterFS, NFS.
//!
//! Each segment is a file; `docs/internals/formats.md` draws it. What a call costs, with
//! everything in the page cache:
//!
//! | call | system calls | about |
//! |---|---|---|
//! | `read_now`, segment open | one `preadv2(RWF_NOWAIT)`, two for the first 32 | 1 µs |
//! | `read`, segment not open | folder, open, close, fstat, three reads, and a close for another | 7 µs |
//! | `put` at slot 0 | marker, open, one write of data, one of the table | the copy into the page cache |
//! | `put` after that | one write of data, one of the table | the same |
//! | `sync` | one fdatasync a segment, one fsync a folder with new names | the device's |
//! | `free` | marker, open, read the table, a write a run, one fdatasync | the device's |
//! | `free`, what is freed is kept | one write more | the same |
//!
//! Rules that hold whatever happens:
//!
//! * Whoever keeps the folder may put anything into it: no link in it is
//!   followed, no name leads out of it, and only regular files are opened.
//! * A folder whose marker names another owner's database is not changed. It
//!   may be read.
//! * A folder without this unit's marker is never written to, nor taken for an
//!   empty unit. `segments/` is made with the unit and never again, so that an
//!   unmounted mount point has no place to write to.
//! * A slot's bytes are written once. A write touches the entries of its own
//!   slots only, so several processes may share a folder as long as each
//!   segment has one that puts.
//! * A slot is named free durably before its room is given back, and it is
//!   given back durably before the table says so: a crash between repeats
//!   work and loses nothing.
//! * A segment that lost a write is never appended to or synced again.
//! * No more segments than the unit's share of descriptors wait for a sync:
//!   the one too many is synced early.
//!
//! Must not know: keys, volumes, what is in a slot.

mod account;
mod cache;
mod examine;
mod files;
pub mod format;
mod making;
mod note;
mod place;
mod release;
mod replace;
mod runs;
mod scrub;
mod segment;
mod table;
#[cfg(test)]
mod tests;
mod undelete;
mod unsynced;
mod verbs;
mod write;

pub use place::segment_of;
pub use undelete::{Keeping, KeptFreed, Restorable, Restored, RestoredSegment, SegmentFate};

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{ClusterId, LineageTag, SegmentId, UnitId, url};
use parking_lot::{Mutex, MutexGuard};
use unit::{Marker, Owner, SegmentStat, UnitError};
use world::{Clock, Disk as _, OpenMode, Random, World};

use account::Account;
use cache::Cache;
use files::{Share, ThriftyDisk};
use place::Place;
use segment::{Segment, SegmentError};
use table::Table;
use unsynced::Unsynced;

/// Data in one segment, in bytes, unless said otherwise: large enough that a
/// disk writes it at full speed, small enough to give back soon.
pub const SEGMENT_DATA_BYTES: u64 = 8 << 20;

/// Segments kept open at most, unless said otherwise: 17 MiB of tables. Fewer
/// if the process may not open so many files, or has many units.
pub const OPEN_SEGMENTS_MAX: usize = 512;

/// Read at a time where a whole segment is, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Locks that keep writers of one segment apart.
const WRITER_LOCKS: usize = 64;

/// A folder as a storage unit. Shared by many threads.
pub struct FolderUnit {
    place: Place,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    segment_data_bytes: u64,
    cache: Arc<Cache>,
    account: Account,
    writers: [Mutex<()>; WRITER_LOCKS],
    unsynced: Mutex<Unsynced>,
    durable_folders: Mutex<DurableFolders>,
    settling: Mutex<release::Settling>,
    /// Where what is freed is kept for a while.
    keep: Option<undelete::Keep>,
}

impl FolderUnit {
    /// The name of the file without which a folder is no unit, in it.
    pub const MARKER: &str = unit::MARKER_FILE;

    /// Makes the folder at `path` into unit `unit` of `cluster`. The folder is
    /// made if only its last part is missing; otherwise it must be empty. A
    /// folder that is that very unit already is opened.
    ///
    /// # Errors
    /// [`UnitError::Foreign`] if it is another unit or holds other files.
    pub fn create(
        world: &World,
        path: &Path,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Result<Self, UnitError> {
        Self::open(world, path, cluster, unit).made()
    }

    /// Makes the folder of a unit that was opened, as [`FolderUnit::create`].
    ///
    /// # Errors
    /// As [`FolderUnit::create`]; [`UnitError::Held`] if it has another owner.
    pub fn made(self) -> Result<Self, UnitError> {
        self.place.create()?;
        Ok(self)
    }

    /// The unit at `path`, which should be unit `unit` of `cluster`. Looks at
    /// nothing yet: the folder may be away now and come back. Ask
    /// [`Unit::probe`](unit::Unit::probe) whether it is there.
    #[must_use]
    pub fn open(world: &World, path: &Path, cluster: ClusterId, unit: UnitId) -> Self {
        let share = Share::new(world.disk.open_files_max());
        let cache = Arc::new(Cache::new(share));
        let disk = ThriftyDisk {
            disk: Arc::clone(&world.disk),
            cache: Arc::clone(&cache),
        };
        Self {
            place: Place {
                disk: disk.within(path),
                outside: Arc::new(disk),
                path: path.to_owned(),
                url: url::url_of(path),
                marker: Marker {
                    cluster,
                    unit,
                    owner: None,
                },
                takes_over: AtomicBool::new(false),
                is_claim_durable: AtomicBool::new(false),
                unclaimed: Mutex::default(),
            },
            clock: Arc::clone(&world.clock),
            random: Arc::clone(&world.random),
            segment_data_bytes: SEGMENT_DATA_BYTES,
            cache,
            account: Account::default(),
            writers: [const { Mutex::new(()) }; WRITER_LOCKS],
            unsynced: Mutex::default(),
            durable_folders: Mutex::default(),
            settling: Mutex::default(),
            keep: None,
        }
    }

    /// Whose unit the folder at `path` is, and which.
    ///
    /// # Errors
    /// [`UnitError::Missing`] if it is none, [`UnitError::Newer`] if it cannot
    /// be read by this program.
    pub fn identify(world: &World, path: &Path) -> Result<Marker, UnitError> {
        place::identify(&*world.disk.within(path), &url::url_of(path))
    }

    /// Changes the unit as `owner` only. It is claimed when it is made or
    /// probed, and not used by anybody else from then on; with `takes_over`,
    /// the first time also from an owner of the same generation.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner, takes_over: bool) -> Self {
        self.place.marker.owner = Some(owner);
        self.place.takes_over = AtomicBool::new(takes_over);
        self
    }

    /// Gives new segments room for `bytes` of data instead of
    /// [`SEGMENT_DATA_BYTES`].
    #[must_use]
    pub fn with_segment_data_bytes(mut self, bytes: u64) -> Self {
        self.segment_data_bytes = bytes;
        self
    }

    /// Keeps about `segments_max` segments open, whatever the process may.
    #[must_use]
    pub fn with_open_segments(self, segments_max: usize) -> Self {
        self.cache.share().tell(segments_max);
        self
    }

    /// Which unit this is.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.place.marker.unit
    }

    /// The lineage tag of a segment.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    pub fn lineage_tag_of(&self, segment: SegmentId) -> Result<LineageTag, UnitError> {
        let open = match self.in_memory(segment) {
            Some(open) => open,
            None => self.open_for_reading(segment)?,
        };
        Ok(open.header.lineage_tag)
    }

    /// As [`FolderUnit::lineage_tag_of`] if it is known without waiting.
    #[must_use]
    pub fn lineage_tag_now(&self, segment: SegmentId) -> Option<LineageTag> {
        Some(self.cache.get(segment)?.header.lineage_tag)
    }

    fn writer(&self, segment: SegmentId) -> MutexGuard<'_, ()> {
        self.writers[segment.serial() as usize % WRITER_LOCKS].lock()
    }

    /// As [`FolderUnit::writer`], unless it is taken.
    fn try_writer(&self, segment: SegmentId) -> Option<MutexGuard<'_, ()>> {
        self.writers[segment.serial() as usize % WRITER_LOCKS].try_lock()
    }

    /// The error that `error` is for the caller.
    fn explain(&self, segment: SegmentId, doing: &str, error: SegmentError) -> UnitError {
        match error {
            SegmentError::Io(error) => self.place.meaning_at(segment, doing, error),
            // A delete empties a file before it removes it.
            SegmentError::Empty => UnitError::NoSegment {
                url: self.place.url.clone(),
                segment,
            },
            SegmentError::Format(error) => self.place.damaged(segment, error),
            SegmentError::UnknownSlot(slot) => self
                .place
                .damaged(segment, format!("the table's entry of slot {}", slot.0)),
            SegmentError::NoSlot(slot) => UnitError::NoSlot {
                url: self.place.url.clone(),
                segment,
                slot,
            },
            SegmentError::SlotBytes => match self.newest_table(segment) {
                Ok(found) => misplaced(&found.stat()),
                Err(why) => why,
            },
        }
    }

    /// Opens a segment's file for reading: what is there now, not what was
    /// there when somebody looked before.
    fn open_for_reading(&self, segment: SegmentId) -> Result<Arc<Segment>, UnitError> {
        let load = || {
            let file = self
                .place
                .disk
                .open(&self.place.file(segment), OpenMode::Read)?;
            Segment::open(file)
        };
        let loaded = load().map_err(|error| self.explain(segment, "open", error))?;
        self.check_owner(segment, &loaded.header)?;
        Ok(Arc::new(loaded))
    }

    fn check_owner(&self, segment: SegmentId, header: &format::Header) -> Result<(), UnitError> {
        if header.segment != segment {
            let found = header.segment;
            return Err(self
                .place
                .damaged(segment, format!("it is segment {found}")));
        }
        if header.cluster != self.place.marker.cluster {
            let found = header.cluster;
            return Err(self
                .place
                .damaged(segment, format!("it belongs to {found}")));
        }
        Ok(())
    }

    fn read_table(&self, segment: SegmentId, mode: OpenMode) -> Result<OpenTable, UnitError> {
        let read = || {
            let file = self.place.disk.open(&self.place.file(segment), mode)?;
            let table = Table::read(&*file)?;
            Ok(OpenTable { file, table })
        };
        let open = read().map_err(|error| self.explain(segment, "open", error))?;
        self.check_owner(segment, &open.table.header)?;
        Ok(open)
    }

    /// The table as it is in the file now.
    fn newest_table(&self, segment: SegmentId) -> Result<Table, UnitError> {
        let table = self.read_table(segment, OpenMode::Read)?.table;
        if let Some(open) = self.cache.get(segment)
            && open.header.generation != table.header.generation
        {
            // Another process has replaced it: whoever asks reads the new one.
            self.cache.remove(segment);
        }
        Ok(table)
    }

    /// The segment as far as it is in memory.
    fn in_memory(&self, segment: SegmentId) -> Option<Arc<Segment>> {
        self.cache
            .get(segment)
            .or_else(|| self.unsynced.lock().get(segment))
    }
}

/// Sub-folders whose own names this process knows to be durable.
#[derive(Default)]
struct DurableFolders {
    known: BTreeSet<usize>,
    /// How often they were forgotten: what was learnt before that does not
    /// count.
    forgotten: u64,
}

/// A segment's file and what its table says now.
struct OpenTable {
    file: Arc<dyn world::File>,
    table: Table,
}

fn misplaced(found: &SegmentStat) -> UnitError {
    UnitError::Misplaced {
        segment: found.segment,
        slots: found.slots,
        slot_bytes: found.slot_bytes,
    }
}

/// Whether an error says only that what was to be removed is gone.
fn is_not_found(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
