//! The segment files of a unit: opening them, reading their tables, and keeping their
//! writers apart.
//!
//! `write` puts and syncs, `scrub` checks, `reclaim` frees. Must not know: undelete, what a
//! slot means.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use base::SegmentId;
use parking_lot::{Mutex, MutexGuard};
use unit::{Marker, SegmentStat, UnitError};
use world::{File, OpenMode, World};

use super::SEGMENT_DATA_BYTES;
use super::account::Account;
use super::cache::Cache;
use super::files::{Share, ThriftyDisk};
use super::format::{Entry, Header, SlotState};
use super::is_not_found;
use super::root::{Root, folder_of};
use super::segment::{Segment, SegmentError};
use super::table::Table;
use super::unsynced::Unsynced;

/// Number of locks that keep the writers of one segment apart.
const WRITER_LOCKS: usize = 64;

/// The segment files of one unit and what is in memory about them.
pub(super) struct Segments {
    pub(super) root: Root,
    /// Room for data in a new segment, in bytes.
    pub(super) data_bytes: u64,
    pub(super) cache: Arc<Cache>,
    pub(super) account: Account,
    pub(super) unsynced: Mutex<Unsynced>,
    pub(super) durable_folders: Mutex<DurableFolders>,
    writers: [Mutex<()>; WRITER_LOCKS],
}

/// Sub-folders whose own names are known to be durable.
#[derive(Default)]
pub(super) struct DurableFolders {
    pub(super) known: BTreeSet<usize>,
    /// How often `known` was cleared. A sync that began before a clear adds nothing to it.
    pub(super) clears: u64,
}

/// A segment's file and the table in it.
pub(super) struct OpenTable {
    pub(super) file: Arc<dyn File>,
    pub(super) table: Table,
}

impl Segments {
    pub(super) fn new(world: &World, path: &Path, marker: Marker) -> Self {
        let share = Share::new(world.disk.open_files_max());
        let cache = Arc::new(Cache::new(share));
        let disk = ThriftyDisk {
            disk: Arc::clone(&world.disk),
            cache: Arc::clone(&cache),
        };
        Self {
            root: Root::new(Arc::new(disk), path, marker),
            data_bytes: SEGMENT_DATA_BYTES,
            cache,
            account: Account::default(),
            unsynced: Mutex::default(),
            durable_folders: Mutex::default(),
            writers: [const { Mutex::new(()) }; WRITER_LOCKS],
        }
    }

    /// Locks a segment for a change.
    pub(super) fn writer(&self, segment: SegmentId) -> MutexGuard<'_, ()> {
        self.writers[segment.serial() as usize % WRITER_LOCKS].lock()
    }

    /// As [`Segments::writer`], unless another thread holds the lock.
    pub(super) fn try_writer(&self, segment: SegmentId) -> Option<MutexGuard<'_, ()>> {
        self.writers[segment.serial() as usize % WRITER_LOCKS].try_lock()
    }

    /// Converts an error of a segment's file to the caller's.
    pub(super) fn explain(
        &self,
        segment: SegmentId,
        doing: &str,
        error: SegmentError,
    ) -> UnitError {
        match error {
            SegmentError::Io(error) => self.root.segment_error(segment, doing, error),
            // A delete empties a file before it removes it.
            SegmentError::Empty => UnitError::NoSegment {
                url: self.root.url.clone(),
                segment,
            },
            SegmentError::Format(error) => self.root.damaged(segment, error),
            SegmentError::UnknownSlot(slot) => self
                .root
                .damaged(segment, format!("the table's entry of slot {}", slot.0)),
            SegmentError::NoSlot(slot) => UnitError::NoSlot {
                url: self.root.url.clone(),
                segment,
                slot,
            },
            SegmentError::SlotBytes => match self.newest_table(segment) {
                Ok(found) => misplaced(&found.stat()),
                Err(why) => why,
            },
        }
    }

    /// Opens the segment's current file for reading, not one that was opened earlier.
    pub(super) fn open_for_reading(&self, segment: SegmentId) -> Result<Arc<Segment>, UnitError> {
        let load = || {
            let file = self
                .root
                .disk
                .open(&self.root.file(segment), OpenMode::Read)?;
            Segment::open(file)
        };
        let loaded = load().map_err(|error| self.explain(segment, "open", error))?;
        self.check_owner(segment, &loaded.header)?;
        Ok(Arc::new(loaded))
    }

    pub(super) fn check_owner(&self, segment: SegmentId, header: &Header) -> Result<(), UnitError> {
        if header.segment != segment {
            let found = header.segment;
            return Err(self.root.damaged(segment, format!("it is segment {found}")));
        }
        if header.cluster != self.root.marker.cluster {
            let found = header.cluster;
            return Err(self.root.damaged(segment, format!("it belongs to {found}")));
        }
        Ok(())
    }

    pub(super) fn read_table(
        &self,
        segment: SegmentId,
        mode: OpenMode,
    ) -> Result<OpenTable, UnitError> {
        let open = self.open_table(segment, &self.root.file(segment), mode)?;
        self.check_owner(segment, &open.table.header)?;
        Ok(open)
    }

    /// Opens the file at `path`, which should be one of `segment`, and reads its table.
    pub(super) fn open_table(
        &self,
        segment: SegmentId,
        path: &Path,
        mode: OpenMode,
    ) -> Result<OpenTable, UnitError> {
        let read = || {
            let file = self.root.disk.open(path, mode)?;
            let table = Table::read(&*file)?;
            Ok(OpenTable { file, table })
        };
        read().map_err(|error| self.explain(segment, "open", error))
    }

    /// Reads the table from the segment's current file.
    pub(super) fn newest_table(&self, segment: SegmentId) -> Result<Table, UnitError> {
        let table = self.read_table(segment, OpenMode::Read)?.table;
        if let Some(open) = self.cache.get(segment)
            && open.header.generation != table.header.generation
        {
            // Another process has replaced it: later reads open the new file.
            self.cache.remove(segment);
        }
        Ok(table)
    }

    /// The open segment, if it is in memory.
    pub(super) fn in_memory(&self, segment: SegmentId) -> Option<Arc<Segment>> {
        self.cache
            .get(segment)
            .or_else(|| self.unsynced.lock().get(segment))
    }

    /// Updates the state of `slots` for readers of this process.
    pub(super) fn publish(&self, id: SegmentId, slots: &[u32], state: SlotState) {
        let cached = self.cache.get(id);
        let unsynced = self.unsynced.lock().get(id);
        for segment in cached.iter().chain(&unsynced) {
            for slot in slots {
                segment.set(*slot, &[Entry::free(state)]);
            }
        }
    }

    /// Marks a segment as lost: no write to it can be trusted any more.
    pub(super) fn lose(&self, id: SegmentId) {
        self.unsynced.lock().lose(id);
        self.cache.remove(id);
    }

    /// As [`Segments::lose`], if the segment has puts that are not durable.
    pub(super) fn lose_unsynced(&self, id: SegmentId) {
        if self.unsynced.lock().get(id).is_some() {
            self.lose(id);
        }
    }

    /// Updates the account with the room a segment takes. If that cannot be read now, the
    /// next count finds it.
    pub(super) fn measure(&self, id: SegmentId, file: &dyn File) {
        if let Ok(bytes) = file.allocated() {
            self.account.set(id, bytes);
        }
    }

    /// Creates a file in the sub-folder of `segment`, and the sub-folder if it is missing.
    pub(super) fn create_at(&self, segment: SegmentId, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.root.disk.open(path, OpenMode::CreateNew) {
            Err(error) if is_not_found(&error) => {
                let folder = self.root.folder(folder_of(segment));
                self.root.disk.create_directory(&folder)?;
                self.root.disk.open(path, OpenMode::CreateNew)
            }
            other => other,
        }
    }

    /// Removes a segment's file, if there is one.
    pub(super) fn remove_file(&self, id: SegmentId) -> Result<(), UnitError> {
        let path = self.root.file(id);
        // Another process may have the file open: its room is reclaimed now and not when
        // that process closes it. Synced first, so that no earlier write shows after the
        // truncation. Best effort.
        if let Ok(file) = self.root.disk.open(&path, OpenMode::Write) {
            let _ = file.sync_data().and_then(|()| file.set_length(0));
        }
        match self.root.disk.remove(&path) {
            Err(error) if !is_not_found(&error) => {
                Err(self.root.unit_error(&format!("delete segment {id}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the absence of a segment durable.
    pub(super) fn sync_absence(&self, id: SegmentId) -> Result<(), UnitError> {
        let folder = self.root.folder(folder_of(id));
        match self.root.disk.sync_directory(&folder) {
            Err(error) if !is_not_found(&error) => {
                Err(self.root.unit_error("sync a folder", error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the name of a segment durable, and that of its sub-folder.
    pub(super) fn sync_name(&self, id: SegmentId) -> Result<(), UnitError> {
        let failed = |error: io::Error| self.root.unit_error("sync a folder", error);
        let folder = self.root.folder(folder_of(id));
        self.root.disk.sync_directory(&folder).map_err(failed)?;
        let segments = self.root.segments();
        self.root.disk.sync_directory(&segments).map_err(failed)
    }

    /// Forgets which folders are durable: the folder may be another one now.
    pub(super) fn forget_durable_folders(&self) {
        let mut durable = self.durable_folders.lock();
        durable.known.clear();
        durable.clears += 1;
    }
}

/// The error of a put that does not continue the segment that was found.
pub(super) fn misplaced(found: &SegmentStat) -> UnitError {
    UnitError::Misplaced {
        segment: found.segment,
        slots: found.slots,
        slot_bytes: found.slot_bytes,
    }
}
