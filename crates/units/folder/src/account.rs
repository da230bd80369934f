//! How many segments there are and how much room they take, without looking
//! each time.
//!
//! The first call looks through all folders, and every change made here is
//! kept up with. Other processes may use the same folder, so it is looked
//! through again now and then, a little with each call.
//!
//! Cost: 16 to 32 bytes of memory a segment; a call a minute after the last
//! full look spends up to [`LOOK_AGAIN_MS_MAX`] milliseconds on the next.
//!
//! Invariant: `segments` and `sectors` are the count and the sum of what the
//! maps hold. The lock is held while a file is measured, so whoever removes
//! the file and then reports it comes after.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use base::SegmentId;
use parking_lot::{Mutex, MutexGuard};
use world::{Clock, OpenMode, WrongKind};

use super::place::{FOLDERS, Place, folder_of, segment_of};

/// How long a call may look, in milliseconds, while not everything was seen
/// once: until then what it returns is too little.
const FIRST_LOOK_MS_MAX: u64 = 500;

/// How long a later call may look, in milliseconds.
const LOOK_AGAIN_MS_MAX: u64 = 10;

/// How old a full look may be, in seconds, before the next one begins.
const LOOK_AGAIN_AFTER_S: u64 = 60;

/// What room is counted in, in bytes: with 32 bits, a file of 2 TiB.
const SECTOR_BYTES: u64 = 512;

#[derive(Default)]
struct State {
    /// Segments of each sub-folder and their room in sectors.
    folders: Vec<HashMap<SegmentId, u32>>,
    segments: u64,
    sectors: u64,
    /// The folder that is looked at next.
    next: usize,
    /// When all folders had been seen last.
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// A segment takes so much room now.
    pub(super) fn set(&self, segment: SegmentId, bytes: u64) {
        self.state().set(segment, bytes);
    }

    /// A segment is gone.
    pub(super) fn remove(&self, segment: SegmentId) {
        self.state().remove(segment);
    }

    /// Segments and bytes, after looking on for a while if that is due.
    pub(super) fn stat(&self, place: &Place, clock: &dyn Clock) -> io::Result<(u64, u64)> {
        let now = clock.monotonic();
        let look_ms_max = match self.state().finished {
            None => FIRST_LOOK_MS_MAX,
            Some(at) if now.saturating_sub(at) > Duration::from_secs(LOOK_AGAIN_AFTER_S) => {
                LOOK_AGAIN_MS_MAX
            }
            Some(_) => 0,
        };
        let end = now + Duration::from_millis(look_ms_max);
        while clock.monotonic() < end {
            let folder = self.state().next;
            self.look_at(place, folder)?;
            let mut state = self.state();
            state.next = (folder + 1) % FOLDERS;
            if state.next == 0 {
                state.finished = Some(clock.monotonic());
                break;
            }
        }
        let state = self.state();
        Ok((state.segments, state.sectors * SECTOR_BYTES))
    }

    /// Forgets everything, for instance because the folder was away and may
    /// have come back as another.
    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    fn look_at(&self, place: &Place, folder: usize) -> io::Result<()> {
        let mut state = self.state();
        let mut names = Vec::new();
        match place.disk.list(&place.folder(folder)) {
            Ok(entries) => {
                let ids = entries.iter().filter_map(|entry| segment_of(&entry.name));
                names.extend(ids.filter(|id| folder_of(*id) == folder));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Holds nothing that could be counted. The probe reports it.
            Err(error) if WrongKind::of(&error).is_some() => {}
            Err(error) => return Err(error),
        }
        names.sort_unstable();
        let known: Vec<SegmentId> = state.folder(folder).keys().copied().collect();
        for gone in known.iter().filter(|id| names.binary_search(id).is_err()) {
            state.remove(*gone);
        }
        drop(state);
        for segment in names {
            let mut state = self.state();
            let file = place.disk.open(&place.file(segment), OpenMode::Read);
            match file.and_then(|file| file.allocated()) {
                Ok(bytes) => state.set(segment, bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => state.remove(segment),
                // What it takes is not known; that is no reason to know nothing.
                Err(_) => {}
            }
        }
        Ok(())
    }
}
