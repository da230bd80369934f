//! [`VersionLedger`]: the versions that were committed, and what each must contain.

use std::collections::{BTreeMap, BTreeSet};

use base::{SegmentId, SnapshotId};
use catalog::{StoredVersion, VersionCommit, VersionKey};

use crate::audit::Nonces;
use crate::machine::Machine;
use crate::model::{Blocks, Pinned};
use crate::{Check, audit, privacy};

/// Why a version fails its check.
pub(super) enum VersionError {
    /// It cannot be read.
    Unreadable(String),
    /// Its content is wrong.
    Wrong(String),
}

/// Committed versions, with the states that they may contain.
#[derive(Default)]
pub(super) struct VersionLedger {
    pub versions: BTreeMap<VersionKey, Pinned>,
    /// Completed snapshots.
    pub snapshots: Vec<SnapshotId>,
    /// Commits of volumes whose content is not known yet.
    pub unattributed: Vec<VersionCommit>,
    pub nonces: Nonces,
    /// Segments that reappeared on units that were rolled back.
    pub reappeared: BTreeSet<SegmentId>,
}

impl VersionLedger {
    /// Checks that a version contains one of its states.
    pub fn check(&mut self, machine: &Machine, stored: &StoredVersion) -> Result<(), VersionError> {
        let walked = audit::walk(machine, stored).map_err(VersionError::Unreadable)?;
        let read = audit::read_version(machine, &walked).map_err(VersionError::Unreadable)?;
        self.check_content(stored.key, &read)
            .map_err(VersionError::Wrong)
    }

    /// Compares the content of a version with its possible states. From then on only the
    /// state that was found counts.
    pub fn check_content(&mut self, key: VersionKey, read: &Blocks) -> Check {
        let Some(pinned) = self.versions.get_mut(&key) else {
            return Ok(());
        };
        let mut seen = read.clone();
        for block in pinned.timeline.touched_in(0..u64::MAX) {
            seen.entry(block).or_insert(None);
        }
        let found = pinned
            .timeline
            .boundaries(pinned.boundaries.clone(), false, &seen);
        let Some(boundary) = found.first() else {
            let differences = pinned.timeline.explain(&seen);
            return Err(format!(
                "{key:?} has the state of no boundary in {:?}{differences}",
                pinned.boundaries
            ));
        };
        pinned.boundaries = *boundary..=*boundary;
        Ok(())
    }

    /// Reads all versions without the engine, and compares the units with them. If content
    /// has rotted, only as far as it can be read.
    pub fn audit(&mut self, machine: &Machine, has_rot: bool) -> Check {
        let versions = machine.catalog.memory.versions();
        let mut all_walked = Vec::new();
        for stored in &versions {
            let of = |error| format!("{:?}: {error}", stored.key);
            let found = audit::walk(machine, stored).map_err(of).and_then(|walked| {
                let read = audit::read_version(machine, &walked).map_err(of)?;
                Ok((walked, read))
            });
            match found {
                Ok((walked, read)) => {
                    self.check_content(stored.key, &read)?;
                    all_walked.push(walked);
                }
                Err(_) if has_rot => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if has_rot {
            return Ok(());
        }
        if let (Some(version), Some(walked)) = (versions.last(), all_walked.last()) {
            privacy::check(machine, version, walked)?;
        }
        audit::check_slots(machine, &all_walked, &mut self.nonces, &self.reappeared)
    }
}
