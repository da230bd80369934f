//! [`MountedUnit`]: a unit that this host uses.

use std::path::PathBuf;
use std::sync::Arc;

use api::host::UnitReport;
use api::types::UnitFact;
use base::UnitId;
use parking_lot::Mutex;
use unit::{Fact, TrackedUnit, Unit, UnitError, UnitState};

use super::watch::WatchedUnit;
use crate::unit_owner::UnitOwner;

/// A unit that this host uses, in three layers.
#[derive(Clone)]
pub(crate) struct MountedUnit {
    pub id: UnitId,
    pub url: String,
    /// Path of the unit, if it is a folder.
    pub folder: Option<PathBuf>,
    /// The outer layer, which the engine uses: health and counters.
    pub tracked: Arc<TrackedUnit>,
    /// The middle layer, which refuses calls while the unit is unresponsive.
    pub watched: Arc<WatchedUnit>,
    /// The unit itself.
    pub unit: Arc<dyn Unit>,
    /// The lease count that this process has stored on the unit. Locked while it is read or written
    /// there.
    pub noted_leases: Arc<Mutex<u64>>,
    /// Facts about the unit's backend, once it has answered.
    pub facts: Arc<Mutex<Vec<Fact>>>,
}

impl MountedUnit {
    /// Whether the unit has never answered.
    pub fn is_new(&self) -> bool {
        self.watched.last_found().stat.is_none()
    }

    /// The error that another copy of the database uses the unit, if so.
    pub fn held_by_other(&self) -> Option<Arc<UnitError>> {
        let report = self.tracked.report();
        let (_, error) = report.last_error?;
        let is_held = matches!(*error, UnitError::Held { .. });
        (is_held && report.state == UnitState::Missing).then_some(error)
    }

    /// The report of this host about the unit.
    pub fn report(&self, owner: &UnitOwner) -> UnitReport {
        let stat = self.watched.last_found().stat;
        let report = self.tracked.report();
        let problem = match report.state {
            UnitState::Healthy => None,
            _ => report.last_error.map(|(_, error)| owner.describe(&error)),
        };
        let traffic = self.tracked.traffic();
        let facts = self.facts.lock();
        let facts = facts.iter().map(|fact| UnitFact {
            name: fact.what.to_owned(),
            present: fact.holds,
            consequence: fact.otherwise.to_owned(),
        });
        UnitReport {
            id: self.id,
            state: report.state.name().to_owned(),
            problem,
            segments: stat.map(|stat| stat.segments),
            bytes: stat.map(|stat| stat.bytes),
            free_bytes: stat.and_then(|stat| stat.free_bytes),
            read_bytes: traffic.read_bytes,
            written_bytes: traffic.written_bytes,
            facts: facts.collect(),
        }
    }
}
