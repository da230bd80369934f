//! [`RejoinReports`]: checks whether rejoined units are in an earlier state, and reports to the
//! controllers what they may have lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::host::catalog_calls::{NoteLeases, NotedLeases, SuspectUnit};
use api::host::{NOTED_MAX, Suspicion};
use base::{UnitId, with_causes};
use catalog::CatalogError;
use unit::UnitState;
use world::host;

use super::lease_count;
use super::scan::wait_for;
use super::watch::ANSWER_WITHIN;
use super::{MountedUnit, Units};
use crate::controller::Controller;

/// The period of reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// Reports rejoined units. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RejoinReports {
    controller: Controller,
    units: Arc<Units>,
}

impl RejoinReports {
    pub fn new(controller: Controller, units: Arc<Units>) -> Self {
        Self { controller, units }
    }

    /// Reports as long as the agent runs, independent of repair.
    pub async fn run(&self) {
        let mut ticks = host::ticks(REPORT_EVERY);
        loop {
            ticks.tick().await;
            self.report().await;
        }
    }

    /// Checks and reports rejoined units. Failures are retried later.
    pub async fn report(&self) {
        self.check_age().await;
        self.report_suspicions().await;
        self.report_counts().await;
    }

    async fn report_counts(&self) {
        let rejoined = self.units.rejoined();
        for counts in rejoined.counts().chunks(NOTED_MAX) {
            let note = NoteLeases {
                units: counts.to_vec(),
            };
            if let Err(error) = self.controller.catalog(note).await {
                let why = with_causes(&error);
                tracing::debug!(
                    error = why,
                    "controller did not accept lease counts of units"
                );
                return;
            }
            rejoined.note_counts_reported(counts);
        }
    }

    /// Checks which rejoined units are in an earlier state. A unit that hangs is not waited for: it
    /// is reported later.
    async fn check_age(&self) {
        let mounted = self.units.mounted();
        let is_mounted = |id| mounted.iter().any(|one| one.id == id);
        let due = self.units.rejoined().to_check(is_mounted);
        let is_due = |unit: &MountedUnit| {
            due.contains(&unit.id) && unit.tracked.state() != UnitState::Missing
        };
        let units: Vec<MountedUnit> = mounted.into_iter().filter(is_due).collect();
        if units.is_empty() {
            return;
        }
        // First: counts stored from now on are not lower.
        let Ok(noted) = self.controller.catalog(NotedLeases {}).await else {
            return;
        };
        let noted: HashMap<UnitId, u64> = noted.into_iter().collect();
        let checks = units.into_iter().filter_map(|mounted| {
            let noted = noted.get(&mounted.id).copied().unwrap_or(0);
            // One task at a time: the check is due again if the unit does not answer.
            let is_due = self.units.rejoined().take_check(mounted.id);
            let units = Arc::clone(&self.units);
            is_due
                .then(|| tokio::task::spawn_blocking(move || check_age_of(&units, &mounted, noted)))
        });
        let checks: Vec<_> = checks.collect();
        let clock = &self.units.context().world.clock;
        let enough = clock.monotonic() + ANSWER_WITHIN;
        wait_for(checks, || clock.monotonic() >= enough).await;
    }

    /// Reports units that may have lost data.
    pub async fn report_suspicions(&self) {
        let rejoined = self.units.rejoined();
        let _reporting = rejoined.reporting.lock().await;
        for (unit, suspicion) in rejoined.suspicions() {
            match self
                .controller
                .catalog(SuspectUnit { unit, suspicion })
                .await
            {
                Ok(true) => rejoined.note_reported(unit, suspicion),
                // It is reported again when the repair after the earlier report is done.
                Ok(false) => {}
                // Another part logs that no controller answers.
                Err(CatalogError::Unavailable { .. }) => return,
                Err(error) => {
                    let why = with_causes(&error);
                    if rejoined.note_rejected(unit, &why) {
                        tracing::warn!(%unit, error = why, "controller rejected rejoin report");
                    }
                }
            }
        }
    }
}

/// Checks whether a unit on which at least `noted` leases were stored is in an earlier state.
/// Blocks.
fn check_age_of(units: &Units, mounted: &MountedUnit, noted: u64) {
    match lease_count::read_own(&*mounted.watched, units.count_signer()) {
        Ok(known) if known < noted => units.rejoined().suspect(mounted.id, Suspicion::Older),
        Ok(_) => {}
        Err(error) => {
            units.rejoined().check(mounted.id);
            let (unit, why) = (&mounted.url, with_causes(&error));
            tracing::debug!(
                unit,
                error = why,
                "agent could not read lease count of rejoined unit"
            );
        }
    }
}
