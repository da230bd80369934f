//! The account of a unit: how many segments it has and how much room they take.
//!
//! The first calls scan all sub-folders, and every change made by this process updates the
//! account. Other processes may use the same folder, so the scan is repeated, a little with
//! each call.
//!
//! Cost: 16 to 32 bytes of memory a segment; a call that is made a minute or more after the
//! last full scan spends up to [`RESCAN_MS_MAX`] milliseconds on the next.
//!
//! Invariant: `segments` and `sectors` are the count and the sum of what the maps hold. The
//! lock is held while a file is measured, so a thread that removes the file updates the account
//! after that.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use base::SegmentId;
use parking_lot::{Mutex, MutexGuard};
use world::{Clock, OpenMode, WrongKind};

use super::root::{FOLDERS, Root, folder_of, segment_of};

/// Time that a call may scan, in milliseconds, until the first scan is complete. Before that
/// it returns too little.
const FIRST_SCAN_MS_MAX: u64 = 500;

/// Time that a later call may scan, in milliseconds.
const RESCAN_MS_MAX: u64 = 10;

/// Age of the last full scan, in seconds, after which the next begins.
const RESCAN_AFTER_S: u64 = 60;

/// Unit of room, in bytes: 32 bits then hold a file of 2 TiB.
const SECTOR_BYTES: u64 = 512;

#[derive(Default)]
struct State {
    /// The segments of each sub-folder and their room in sectors.
    folders: Vec<HashMap<SegmentId, u32>>,
    segments: u64,
    sectors: u64,
    /// The sub-folder that is scanned next.
    next: usize,
    /// When the last full scan ended, by the monotonic clock.
    finished: Option<Duration>,
}

#[derive(Default)]
pub(super) struct Account(Mutex<State>);

impl State {
    fn folder(&mut self, folder: usize) -> &mut HashMap<SegmentId, u32> {
        self.folders.resize_with(FOLDERS, HashMap::new);
        &mut self.folders[folder]
    }

    fn set(&mut self, segment: SegmentId, bytes: u64) {
        let sectors = u32::try_from(bytes.div_ceil(SECTOR_BYTES)).unwrap_or(u32::MAX);
        match self.folder(folder_of(segment)).insert(segment, sectors) {
            Some(before) => self.sectors -= u64::from(before),
            None => self.segments += 1,
        }
        self.sectors += u64::from(sectors);
    }

    fn remove(&mut self, segment: SegmentId) {
        if let Some(before) = self.folder(folder_of(segment)).remove(&segment) {
            self.segments -= 1;
            self.sectors -= u64::from(before);
        }
    }
}

impl Account {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Sets the room that a segment takes, in bytes.
    pub(super) fn set(&self, segment: SegmentId, bytes: u64) {
        self.lock().set(segment, bytes);
    }

    /// Removes a segment.
    pub(super) fn remove(&self, segment: SegmentId) {
        self.lock().remove(segment);
    }

    /// The number of segments and their room in bytes, after scanning for a while if that is
    /// due.
    pub(super) fn stat(&self, root: &Root, clock: &dyn Clock) -> io::Result<(u64, u64)> {
        let now = clock.monotonic();
        let scan_ms_max = match self.lock().finished {
            None => FIRST_SCAN_MS_MAX,
            Some(at) if now.saturating_sub(at) > Duration::from_secs(RESCAN_AFTER_S) => {
                RESCAN_MS_MAX
            }
            Some(_) => 0,
        };
        let end = now + Duration::from_millis(scan_ms_max);
        while clock.monotonic() < end {
            let folder = self.lock().next;
            self.scan(root, folder)?;
            let mut state = self.lock();
            state.next = (folder + 1) % FOLDERS;
            if state.next == 0 {
                state.finished = Some(clock.monotonic());
                break;
            }
        }
        let state = self.lock();
        Ok((state.segments, state.sectors * SECTOR_BYTES))
    }

    /// Clears the account: the folder was unavailable and may be another one now.
    pub(super) fn forget(&self) {
        *self.lock() = State::default();
    }

    fn scan(&self, root: &Root, folder: usize) -> io::Result<()> {
        let mut state = self.lock();
        let mut names = Vec::new();
        match root.disk.list(&root.folder(folder)) {
            Ok(entries) => {
                let ids = entries.iter().filter_map(|entry| segment_of(&entry.name));
                names.extend(ids.filter(|id| folder_of(*id) == folder));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // There is nothing to count in it. The probe reports it.
            Err(error) if WrongKind::of(&error).is_some() => {}
            Err(error) => return Err(error),
        }
        names.sort_unstable();
        let known: Vec<SegmentId> = state.folder(folder).keys().copied().collect();
        for removed in known.iter().filter(|id| names.binary_search(id).is_err()) {
            state.remove(*removed);
        }
        drop(state);
        for segment in names {
            let mut state = self.lock();
            let file = root.disk.open(&root.file(segment), OpenMode::Read);
            match file.and_then(|file| file.allocated()) {
                Ok(bytes) => state.set(segment, bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => state.remove(segment),
                // Its room is unknown; count the others.
                Err(_) => {}
            }
        }
        Ok(())
    }
}
