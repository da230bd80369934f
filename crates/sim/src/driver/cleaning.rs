//! Removing versions, and freeing the slots that no kept version names.

use std::collections::BTreeSet;

use base::Location;
use catalog::{Catalog, FreePlan, VersionKey};
use volume::clean::Removal;
use world::{Clock, Millis};

use super::context::{Context, trace};
use super::ledger::VersionError;
use crate::{Check, audit};

impl Context {
    /// Removes some version, and perhaps deletes a snapshot.
    pub(super) fn remove_any_version(&mut self) -> Check {
        if let Some(key) = self.any_version() {
            self.remove(key)?;
        }
        let count = self.ledger.snapshots.len();
        if let Some(at) = (count > 0).then(|| self.random.index(count))
            && self.chance(3)
        {
            let id = self.ledger.snapshots.swap_remove(at);
            self.machine.catalog.memory.delete_snapshot(id);
        }
        Ok(())
    }

    /// Removes a version. Returns `false` if it is still needed, or if the removal failed
    /// because of an active fault.
    pub(super) fn remove(&mut self, key: VersionKey) -> Check<bool> {
        let now = self.machine.simulation.clock.wall();
        let not_before = Millis(now.0 + self.setup.grace_ms);
        match self.machine.cleaner().remove_version(key, not_before) {
            Ok(Removal::Removed { slots }) => {
                if self.chance(if self.is_traced { 1 } else { 8 }) {
                    self.check_plans(key)?;
                }
                trace!(self, "removed {key:?}: {slots} slots");
                self.ledger.versions.remove(&key);
                self.summary.removed += 1;
                Ok(true)
            }
            Ok(Removal::Needed) => Ok(false),
            Err(_) if self.may_fail() => {
                // The catalog may have carried out the removal all the same.
                if self.machine.catalog.memory.version(key).is_err() {
                    self.ledger.versions.remove(&key);
                }
                Ok(false)
            }
            Err(error) => Err(format!("{key:?} cannot be removed: {error}")),
        }
    }

    /// Checks that no kept version names a slot that waits to be freed.
    fn check_plans(&self, removed: VersionKey) -> Check {
        let memory = &self.machine.catalog.memory;
        let plans = memory.due_frees(Millis(i64::MAX), 0, u32::MAX);
        let mut freed = BTreeSet::new();
        for free in plans.map_err(|error| error.to_string())? {
            let plan = FreePlan::decode(&free.plan).map_err(|error| error.to_string())?;
            for (segment, slots) in plan.segments() {
                freed.extend(slots.into_iter().map(|slot| Location::new(segment, slot)));
            }
        }
        for stored in memory.versions() {
            let Ok(walked) = audit::walk(&self.machine, &stored) else {
                continue;
            };
            let mut entries = walked.entries();
            if let Some(entry) = entries.find(|entry| freed.contains(&entry.location)) {
                return Err(format!(
                    "{:?}, which {:?} names, is in a free plan after {removed:?} was removed",
                    entry.location, stored.key
                ));
            }
        }
        Ok(())
    }

    /// Carries out the free plans that are due.
    pub(super) fn carry_out(&self) -> Check {
        self.carry_out_due(self.machine.simulation.clock.wall())
    }

    /// Carries out the free plans that are due at `now`.
    pub(super) fn carry_out_due(&self, now: Millis) -> Check {
        let due = match self.machine.catalog.due_frees(now, 0, u32::MAX) {
            Ok(due) => due,
            Err(_) if self.may_fail() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        for free in due {
            match self.machine.carry_out(&free) {
                Ok(_) => {}
                // With parity, slots under repair are not freed.
                Err(_) if self.may_fail() || self.is_repairing() => return Ok(()),
                Err(error) => return Err(format!("cannot free: {error}")),
            }
        }
        Ok(())
    }

    /// Checks the content of some version.
    pub(super) fn check_any_version(&mut self) -> Check {
        let Some(key) = self.any_version() else {
            return Ok(());
        };
        let Ok(stored) = self.machine.catalog.memory.version(key) else {
            return Ok(());
        };
        match self.ledger.check(&self.machine, &stored) {
            Ok(()) => Ok(()),
            Err(VersionError::Unreadable(_)) if self.may_fail() => Ok(()),
            Err(VersionError::Unreadable(error) | VersionError::Wrong(error)) => Err(error),
        }
    }

    /// Checks all versions and units; see [`VersionLedger::audit`].
    ///
    /// [`VersionLedger::audit`]: super::ledger::VersionLedger::audit
    pub(super) fn audit(&mut self) -> Check {
        self.ledger.audit(&self.machine, self.faults.has_rot)
    }
}
