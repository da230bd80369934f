//! Reading what an earlier process has left in `freed/`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;

use world::{Clock, Disk, OpenMode};

use super::{Log, State, path_of};
use crate::is_not_found;
use crate::undelete::record::{
    AsideName, DRAFT, FOLDER, RESTORE, RUNNING, RUNNING_BYTES, Record, Running, log_name, log_of,
};

/// Longer is no log that was written here, in bytes.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// The records of the log that was begun at `begun`.
pub(in crate::undelete) fn read_log(disk: &dyn Disk, begun: u64) -> io::Result<Vec<Record>> {
    let file = disk.open(&path_of(&log_name(begun)), OpenMode::Read)?;
    let mut bytes = vec![0; file.length()?.min(LOG_BYTES_MAX) as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(Record::all(&bytes).collect())
}

/// Nothing if it cannot be read: the rest of the folder says hardly less.
fn read_running(disk: &dyn Disk) -> Running {
    let mut bytes = [0; RUNNING_BYTES];
    let file = disk.open(&path_of(RUNNING), OpenMode::Read);
    match file.and_then(|file| file.read_at(&mut bytes, 0)) {
        Ok(()) => Running::parse(&bytes).unwrap_or_default(),
        Err(_) => Running::default(),
    }
}

impl State {
    /// Reads what is kept, but for what all logs have: that may be long, and somebody
    /// waits.
    pub fn load(disk: &dyn Disk, clock: &dyn Clock) -> io::Result<Self> {
        let (entries, is_made) = match disk.list(Path::new(FOLDER)) {
            Err(error) if is_not_found(&error) => (Vec::new(), false),
            other => (other?, true),
        };
        let noted = read_running(disk);
        let mut state = Self {
            base: 0,
            read: clock.monotonic(),
            last: 0,
            noted,
            given_back: noted.given_back,
            logs: BTreeMap::new(),
            unread: BTreeSet::new(),
            open: None,
            asides: BTreeMap::new(),
            emptied: BTreeMap::new(),
            of_segments: BTreeSet::new(),
            by_size: BTreeSet::new(),
            bytes: 0,
            named: Some(HashMap::new()),
            unsynced: Vec::new(),
            // A process before this one may have been killed before its sync.
            are_names_unsynced: is_made,
            is_made,
            is_restoring: entries.iter().any(|entry| entry.name == RESTORE),
        };
        let mut newest = noted.moment;
        for entry in &entries {
            if let Some(begun) = log_of(&entry.name) {
                newest = newest.max(begun);
                state.logs.insert(begun, Log::empty(begun));
                state.unread.insert(begun);
            } else if let Some(name) = AsideName::parse(&entry.name) {
                newest = newest.max(name.when.moment);
                let look = || {
                    let file = disk.open(&path_of(&entry.name), OpenMode::Read)?;
                    Ok::<_, io::Error>((file.length()?, file.allocated()?))
                };
                match look() {
                    Ok((0, _)) => state.add_emptied(name),
                    Ok((_, bytes)) => state.add_aside(name, bytes),
                    // What it takes is not known; it goes in its time all the same.
                    Err(_) => state.add_aside(name, 0),
                }
            } else if entry.name.starts_with(DRAFT) {
                // Else it takes some room until the next start.
                let _ = disk.remove(&path_of(&entry.name));
            }
        }
        // Each was closed before the next one was begun.
        if let Some(last) = state.unread.last().copied() {
            state.take_in(last, &read_log(disk, last).unwrap_or_default());
            newest = newest.max(state.logs[&last].newest.moment);
        }
        (state.base, state.last) = (newest, newest);
        Ok(state)
    }
}
