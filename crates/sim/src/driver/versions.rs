//! What was committed, what versions hold, and what is left in the end.

use volume::catalog::{StoredVersion, VersionCommit, VersionKey};
use world::Millis;

use super::{Run, trace};
use crate::model::{Blocks, Pinned};
use crate::{Check, audit, privacy};

/// Why a version does not hold what it should.
pub(super) enum Trouble {
    Unreadable(String),
    Wrong(String),
}

impl Run {
    /// Takes note of versions that were committed.
    pub(super) fn place_commits(&mut self) -> Check {
        for version in self.machine.catalog.take_records() {
            self.nonces.note_record(&version)?;
        }
        let mut commits = std::mem::take(&mut self.unplaced);
        commits.append(&mut self.machine.catalog.take_commits());
        for commit in commits {
            self.place_commit(&commit)?;
        }
        Ok(())
    }

    pub(super) fn place_commit(&mut self, commit: &VersionCommit) -> Check {
        let key = commit.version.key;
        let Some(subject) = self
            .subjects
            .iter_mut()
            .find(|subject| subject.id == key.volume)
        else {
            return Ok(());
        };
        if !subject.is_known {
            self.unplaced.push(commit.clone());
            return Ok(());
        }
        let timeline = subject.past.timeline.clone();
        let mut boundaries = subject.version_floor..=timeline.len();
        for pin in &commit.pins {
            let Some(boundary) = subject.pending.remove(pin) else {
                return Err(format!("{pin} was completed twice, or never asked for"));
            };
            if boundary < subject.version_floor {
                return Err(format!("{pin} was cut before an earlier version"));
            }
            boundaries = boundary..=boundary;
            self.snapshots.push(*pin);
            self.summary.snapshots += 1;
        }
        trace!(
            self,
            "{key:?} committed: {boundaries:?}, {:?}, degraded {:?}, joined {}",
            commit.open_segments,
            commit.degraded,
            commit.joined
        );
        subject.version_floor = *boundaries.start();
        let size_bytes = subject.past.size_bytes;
        self.versions.insert(
            key,
            Pinned {
                timeline,
                boundaries,
                size_bytes,
            },
        );
        self.summary.versions += 1;
        Ok(())
    }

    /// Whether a version holds what it should.
    pub(super) fn hold(&mut self, stored: &StoredVersion) -> Result<(), Trouble> {
        let walked = audit::walk(&self.machine, stored).map_err(Trouble::Unreadable)?;
        let read = audit::read_version(&self.machine, &walked).map_err(Trouble::Unreadable)?;
        self.compare(stored.key, &read).map_err(Trouble::Wrong)
    }

    pub(super) fn compare(&mut self, key: VersionKey, read: &Blocks) -> Check {
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
            let why = pinned.timeline.explain(&seen);
            return Err(format!(
                "{key:?} holds none of {:?}{why}",
                pinned.boundaries
            ));
        };
        // From now on it must hold just that.
        pinned.boundaries = *boundary..=*boundary;
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Check {
        trace!(self, "finishing");
        self.machine.simulation.disk.arm_crash(u64::MAX);
        self.trouble = true;
        self.settle()?;
        // The second time sweeps what the first lease gave up.
        for _ in 0..2 {
            for index in 0..self.subjects.len() {
                for _ in 0..3 {
                    if self.attach(index)? && self.close(index)? {
                        break;
                    }
                    self.after_step()?;
                }
                let is_closed = self.subjects[index].client.is_none();
                if !is_closed && !self.rotten {
                    return Err(format!("{} cannot be closed", self.subjects[index].id));
                }
            }
            self.machine.simulation.pool.run_all(&self.random);
        }
        self.place_commits()?;
        if let Some(network) = &self.machine.network {
            network.haunt(true);
        }
        self.check_network()?;
        self.repair_all()?;
        self.carry_out_due(Millis(i64::MAX))?;
        self.audit()?;
        if self.rotten {
            return Ok(());
        }
        // And when everything is deleted, nothing is left.
        for subject in std::mem::take(&mut self.subjects) {
            self.machine.catalog.memory.delete_volume(subject.id);
        }
        for snapshot in std::mem::take(&mut self.snapshots) {
            self.machine.catalog.memory.delete_snapshot(snapshot);
        }
        while !self.versions.is_empty() {
            // Leaves and chains first, branch points when they are none any
            // more: in any order that is found by trying.
            let mut keys: Vec<VersionKey> = self.versions.keys().copied().collect();
            self.random.shuffle(&mut keys);
            let mut is_any_removed = false;
            for key in keys {
                is_any_removed |= self.remove(key)?;
                if self.chance(4) {
                    self.carry_out_due(Millis(i64::MAX))?;
                    self.audit()?;
                }
            }
            if !is_any_removed {
                return Err(format!(
                    "needed by nobody, and they stay: {:?}",
                    self.versions.keys()
                ));
            }
        }
        self.carry_out_due(Millis(i64::MAX))?;
        self.audit()?;
        for (number, (_, unit)) in self.machine.units.iter().enumerate() {
            if self.machine.removed.contains(&number) {
                continue;
            }
            let mut left = unit.list().map_err(|error| error.to_string())?;
            left.retain(|segment| !self.ghosts.contains(segment));
            if !left.is_empty() {
                return Err(format!("unit {number} keeps empty segments: {left:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn audit(&mut self) -> Check {
        let mut walked = Vec::new();
        for stored in self.machine.catalog.memory.versions() {
            let of = |why| format!("{:?}: {why}", stored.key);
            let found = audit::walk(&self.machine, &stored)
                .map_err(of)
                .and_then(|walk| {
                    let read = audit::read_version(&self.machine, &walk).map_err(of)?;
                    Ok((walk, read))
                });
            match found {
                Ok((walk, read)) => {
                    self.compare(stored.key, &read)?;
                    walked.push(walk);
                }
                Err(_) if self.rotten => return Ok(()),
                Err(why) => return Err(why),
            }
        }
        if self.rotten {
            return Ok(());
        }
        let versions = self.machine.catalog.memory.versions();
        if let (Some(version), Some(walk)) = (versions.last(), walked.last()) {
            privacy::check(&self.machine, version, walk)?;
        }
        audit::compare(&self.machine, &walked, &mut self.nonces, &self.ghosts)
    }
}
