//! Loading the index from what earlier processes left in `freed/`.

use std::io;
use std::path::Path;

use unit::format::FormatError;
use world::{Clock, Disk, OpenMode};

use super::{FreedSegments, Index, Logs, RunClock, path_of};
use crate::is_not_found;
use crate::undelete::name::{DRAFT, FOLDER, FreedSegmentName, RESTORE, RUN_TIME, log_name, log_of};
use crate::undelete::record::{LogHeader, RUN_TIME_BYTES, Record, RunTime};

/// Maximum length of a log that is read, in bytes.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Reads the records of the log that was begun at `begun`.
pub(in crate::undelete) fn read_log(disk: &dyn Disk, begun: u64) -> io::Result<Vec<Record>> {
    let file = disk.open(&path_of(&log_name(begun)), OpenMode::Read)?;
    let mut bytes = vec![0; file.length()?.min(LOG_BYTES_MAX) as usize];
    file.read_at(&mut bytes, 0)?;
    match LogHeader::parse(&bytes) {
        Ok(records) => Ok(Record::all(records).collect()),
        Err(error @ FormatError::Version { .. }) => Err(io::Error::other(error)),
        // The header is written with the first record. After a crash neither was durable yet. The
        // walk after a start logs again what the records of a damaged log name.
        Err(_) => Ok(Vec::new()),
    }
}

/// Reads the saved run time; 0 if it cannot be read, as the names in the folder say almost as
/// much.
fn read_run_time(disk: &dyn Disk) -> io::Result<RunTime> {
    let mut bytes = [0; RUN_TIME_BYTES];
    let file = disk.open(&path_of(RUN_TIME), OpenMode::Read);
    if file.and_then(|file| file.read_at(&mut bytes, 0)).is_err() {
        return Ok(RunTime::default());
    }
    match RunTime::parse(&bytes) {
        Err(error @ FormatError::Version { .. }) => Err(io::Error::other(error)),
        parsed => Ok(parsed.unwrap_or_default()),
    }
}

impl Index {
    /// Loads all but the content of the logs, which may be long while a request waits.
    pub fn load(disk: &dyn Disk, clock: &dyn Clock) -> io::Result<Self> {
        let (entries, is_created) = match disk.list(Path::new(FOLDER)) {
            Err(error) if is_not_found(&error) => (Vec::new(), false),
            other => (other?, true),
        };
        let saved = read_run_time(disk)?;
        let loaded = clock.monotonic();
        let mut index = Self {
            clock: RunClock::starting_at(saved.run_time_us, loaded),
            logs: Logs::new(),
            segments: FreedSegments::default(),
            saved,
            newest_reclaimed: saved.newest_reclaimed,
            // An earlier process may have been killed before its sync.
            are_names_unsynced: is_created,
            is_created,
            is_restoring: entries.iter().any(|entry| entry.name == RESTORE),
        };
        let mut newest = saved.run_time_us;
        for entry in &entries {
            if let Some(begun) = log_of(&entry.name) {
                newest = newest.max(begun);
                index.logs.add_unread(begun);
            } else if let Some(name) = FreedSegmentName::parse(&entry.name) {
                newest = newest.max(name.freed_at.run_time_us);
                index.load_segment(disk, name);
            } else if entry.name.starts_with(DRAFT) {
                // If this fails, it takes some room until the next start.
                let _ = disk.remove(&path_of(&entry.name));
            }
        }
        // Only the last log may have records that are newer than all names.
        if let Some(last) = index.logs.last_unread() {
            index.add_records(last, &read_log(disk, last).unwrap_or_default());
            newest = newest.max(index.logs.all()[&last].newest.run_time_us);
        }
        index.clock = RunClock::starting_at(newest, loaded);
        Ok(index)
    }

    fn load_segment(&mut self, disk: &dyn Disk, name: FreedSegmentName) {
        let measure = || {
            let file = disk.open(&path_of(&name.to_string()), OpenMode::Read)?;
            Ok::<_, io::Error>((file.length()?, file.allocated()?))
        };
        match measure() {
            Ok((0, _)) => self.segments.set_emptied(name),
            Ok((_, bytes)) => self.add_segment(name, bytes),
            // Its room is unknown; it expires all the same.
            Err(_) => self.add_segment(name, 0),
        }
    }
}
