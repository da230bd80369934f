//! [`MountedUnit`]: one unit that this host uses.

use std::path::PathBuf;
use std::sync::Arc;

use api::host::UnitReport;
use api::types::UnitFact;
use base::UnitId;
use parking_lot::Mutex;
use unit::{Fact, TrackedUnit, Unit, UnitError, UnitState};

use super::watch::WatchedUnit;
use crate::unit_owner::UnitOwner;

/// A unit that this host uses, in its three layers.
#[derive(Clone)]
pub(crate) struct MountedUnit {
    pub id: UnitId,
    pub url: String,
    /// The folder that the unit is, if it is one.
    pub folder: Option<PathBuf>,
    /// The outer layer, which the engine has: health and counters.
    pub tracked: Arc<TrackedUnit>,
    /// The layer below: refuses calls while the unit is unresponsive.
    pub watched: Arc<WatchedUnit>,
    /// The unit itself.
    pub unit: Arc<dyn Unit>,
    /// The lease count that this process has noted there. Locked while the note is read or
    /// written.
    pub noted_leases: Arc<Mutex<u64>>,
    /// What was found out about the unit's backend, once it has answered.
    pub facts: Arc<Mutex<Vec<Fact>>>,
}

impl MountedUnit {
    /// Whether nothing was learnt from the unit yet.
    pub fn is_new(&self) -> bool {
        self.watched.last_found().stat.is_none()
    }

    /// The error that says that another copy of the database uses the unit, if one does.
    pub fn held_by_other(&self) -> Option<Arc<UnitError>> {
        let report = self.tracked.report();
        let (_, error) = report.last_error?;
        let is_held = matches!(*error, UnitError::Held { .. });
        (is_held && report.state == UnitState::Missing).then_some(error)
    }

    /// The unit as this host reports it.
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
