//! The plan of a restore, in `freed/restore`, which is written before the restore changes
//! anything.

use std::io;
use std::path::Path;

use base::SegmentId;
use serde::{Deserialize, Serialize};
use unit::UnitError;
use world::{Millis, OpenMode};

use super::RestoreFilter;
use crate::is_not_found;
use crate::root::segment_of;
use crate::undelete::Undelete;
use crate::undelete::index::path_of;
use crate::undelete::name::{DRAFT, FOLDER, FreedSegmentName, RESTORE, Timestamp, log_name};
use crate::undelete::record::{Record, VERSION};

/// Maximum length of a plan that is read, in bytes.
const PLAN_BYTES_MAX: u64 = 64 << 20;

/// A plan, as it is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    version: u16,
    since: i64,
    until: i64,
    segment: Option<String>,
    replaced: bool,
    /// The run time of the restore: what is freed later is not selected, even if the plan is
    /// completed much later.
    run_time_us: u64,
    /// Names of the files in `freed/` that are moved back.
    files: Vec<String>,
}

impl Plan {
    /// A plan of a restore at `now` that moves `files` back.
    pub fn new(filter: &RestoreFilter, now: Timestamp, files: Vec<String>) -> Self {
        Self {
            version: VERSION,
            since: filter.since.0,
            until: filter.until.0,
            segment: filter.segment.map(|segment| segment.to_string()),
            replaced: filter.replaced,
            run_time_us: now.run_time_us,
            files,
        }
    }

    pub fn since(&self) -> i64 {
        self.since
    }

    pub fn run_time_us(&self) -> u64 {
        self.run_time_us
    }

    pub fn replaced(&self) -> bool {
        self.replaced
    }

    /// Whether what was freed at this time of the segment is to be restored.
    pub fn selects(&self, freed_at: Timestamp, segment: SegmentId) -> bool {
        let filter = RestoreFilter {
            since: Millis(self.since),
            until: Millis(self.until),
            segment: self.segment.as_deref().and_then(segment_of),
            replaced: self.replaced,
        };
        freed_at.run_time_us < self.run_time_us && filter.selects(freed_at.wall, segment)
    }

    pub fn names(&self) -> impl Iterator<Item = FreedSegmentName> {
        let names = self.files.iter();
        names.filter_map(|name| FreedSegmentName::parse(name))
    }

    /// Whether the slots of a record belong to the segment that is in place after the restore,
    /// and not to one that was freed since and stays stored.
    ///
    /// A record is about the segment that was deleted or replaced next after it, or else about
    /// the current one. `freed`: when that happened, if the segment is still stored.
    pub fn is_of_restored(&self, record: &Record, freed: Option<u64>) -> bool {
        // A planned segment may have been moved already.
        let planned = self
            .names()
            .filter(|name| name.segment == record.segment)
            .map(|name| name.freed_at.run_time_us)
            .find(|run_time_us| *run_time_us >= record.freed_at.run_time_us);
        let is_planned = self.names().any(|name| name.segment == record.segment);
        match (planned, freed) {
            (Some(planned), Some(freed)) => planned <= freed,
            (Some(_), None) => true,
            // About the segment that the planned one replaces.
            (None, None) => !is_planned,
            (None, Some(_)) => false,
        }
    }
}

/// The plan in `freed/restore`.
pub(super) enum SavedPlan {
    None,
    Plan(Plan),
    /// It is damaged.
    Unreadable,
}

/// The version of a plan, which is read before the rest.
#[derive(Deserialize)]
struct PlanVersion {
    version: u16,
}

fn parse(text: &str) -> io::Result<SavedPlan> {
    let Ok(PlanVersion { version }) = toml::from_str(text) else {
        return Ok(SavedPlan::Unreadable);
    };
    if version != VERSION {
        return Err(io::Error::other(unit::format::FormatError::Version {
            found: version,
            known: VERSION,
        }));
    }
    Ok(toml::from_str(text).map_or(SavedPlan::Unreadable, SavedPlan::Plan))
}

impl Undelete<'_> {
    pub(super) fn load_plan(&self) -> Result<SavedPlan, UnitError> {
        let root = &self.segments.root;
        let failed = |error| root.unit_error("complete a restore", error);
        let read = || {
            let file = root.disk.open(&path_of(RESTORE), OpenMode::Read)?;
            let mut text = vec![0; file.length()?.min(PLAN_BYTES_MAX) as usize];
            file.read_at(&mut text, 0)?;
            Ok(text)
        };
        let text = match read() {
            Ok(text) => text,
            Err(error) if is_not_found(&error) => return Ok(SavedPlan::None),
            // Another user wrote it and can read it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(failed(error));
            }
            Err(error) => match failed(error) {
                UnitError::Io { .. } => return Ok(SavedPlan::Unreadable),
                why => return Err(why),
            },
        };
        match std::str::from_utf8(&text) {
            Ok(text) => parse(text).map_err(failed),
            Err(_) => Ok(SavedPlan::Unreadable),
        }
    }

    /// Removes all logs and then the plan. Returns the number of logs. The walk after the next
    /// start finds the slots that they named.
    pub(super) fn discard_plan(&self) -> Result<u32, UnitError> {
        let logs = self.with_index(|index| {
            for begun in index.logs.all().keys() {
                self.remove_if_present(&log_name(*begun))?;
            }
            self.remove_if_present(RESTORE)?;
            self.segments.root.disk.sync_directory(Path::new(FOLDER))?;
            Ok(index.logs.all().len() as u32)
        })?;
        self.store.forget();
        Ok(logs)
    }

    pub(super) fn save_plan(&self, plan: &Plan) -> Result<(), UnitError> {
        let root = &self.segments.root;
        self.with_index(|index| {
            index.create_folder(&*root.disk)?;
            let text = toml::to_string(plan).map_err(io::Error::other)?;
            match self.write_file(RESTORE, text.as_bytes()) {
                // A unit that an attacker has filled can be restored too.
                Err(error) if world::is_out_of_space(&error) => {
                    root.remove_probe()?;
                    self.write_file(RESTORE, text.as_bytes())
                }
                other => other,
            }
        })
    }

    /// Writes a file in `freed/` atomically and durably.
    pub(super) fn write_file(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let disk = &*self.segments.root.disk;
        let draft = format!("{DRAFT}{name}");
        self.remove_if_present(&draft)?;
        let write = || {
            let file = disk.open(&path_of(&draft), OpenMode::CreateNew)?;
            file.write_at(content, 0)?;
            file.sync_data()?;
            disk.rename(&path_of(&draft), &path_of(name))?;
            disk.sync_directory(Path::new(FOLDER))
        };
        let written = write();
        if written.is_err() {
            // If this fails, the next start removes it.
            let _ = self.remove_if_present(&draft);
        }
        written
    }

    /// Removes a file in `freed/`, if it is there.
    pub(super) fn remove_if_present(&self, name: &str) -> io::Result<()> {
        match self.segments.root.disk.remove(&path_of(name)) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1 of a plan: what is written today must stay readable.
    const FIXTURE: &str = r#"version = 1
since = -5
until = 7
segment = "0ab-c12345678"
replaced = true
run_time_us = 291
files = ["0ab-c12345678.0000000000000123.fffffffffffffffb"]
"#;

    #[test]
    fn the_fixture_of_version_1_is_read_and_written() {
        let Ok(SavedPlan::Plan(plan)) = parse(FIXTURE) else {
            panic!("not a plan");
        };
        let segment = SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits");
        assert_eq!(plan.names().count(), 1);
        let freed_at = Timestamp {
            run_time_us: 290,
            wall: Millis(7),
        };
        assert!(plan.selects(freed_at, segment));
        assert_eq!(toml::to_string(&plan).expect("TOML"), FIXTURE);
    }

    #[test]
    fn a_plan_of_a_newer_version_is_refused_and_a_damaged_one_is_unreadable() {
        let newer = FIXTURE.replace("version = 1", "version = 2");
        assert!(parse(&newer).is_err());
        let damaged = FIXTURE.replace("run_time_us", "m0ment");
        assert!(matches!(parse(&damaged), Ok(SavedPlan::Unreadable)));
        assert!(matches!(parse("="), Ok(SavedPlan::Unreadable)));
    }
}
