//! [`Reporter`]: reports the state of this host to the controllers.

use std::sync::Arc;
use std::time::Duration;

use api::host::calls::ReportHost;
use api::host::{Report, VolumeReport};
use api::types::Engine;
use tokio::sync::watch;
use volume::VolumeStatus;
use world::{Clock, host};

use crate::cache::{Caching, counts};
use crate::cleaning::{Cleaning, JournalCleaning};
use crate::controller::{Contact, Controller};
use crate::export::VolumeStatuses;
use crate::filters::FilterJournals;
use crate::journals::LocalJournals;
use crate::keys::{HostKeys, Rewrapping};
use crate::lease::DatabaseAge;
use crate::units::Units;

/// The period of reports, if none is requested.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// The most problems in a report: each report is stored, and people read it.
const PROBLEMS_MAX: usize = 100;

/// The parts of the agent that a reporter uses.
pub(crate) struct ReportParts {
    pub controller: Controller,
    pub contact: Arc<Contact>,
    pub clock: Arc<dyn Clock>,
    pub units: Arc<Units>,
    pub statuses: Arc<VolumeStatuses>,
    pub age: Arc<DatabaseAge>,
    pub cleaning: Arc<Cleaning>,
    pub journal_cleaning: Arc<JournalCleaning>,
    pub local_journals: Arc<LocalJournals>,
    pub filter_journals: FilterJournals,
    pub keys: Arc<HostKeys>,
    pub rewrapping: Rewrapping,
    pub caching: Arc<Caching>,
}

/// Sends reports.
pub(crate) struct Reporter {
    parts: ReportParts,
    /// Number of the last requested report.
    requested: watch::Sender<u64>,
}

impl Reporter {
    pub fn new(parts: ReportParts) -> Self {
        Self {
            parts,
            requested: watch::Sender::new(0),
        }
    }

    /// Requests the report with this number; does nothing if that has not changed.
    pub fn set_requested(&self, number: u64) {
        self.requested.send_if_modified(|requested| {
            let is_new = *requested != number;
            *requested = number;
            is_new
        });
    }

    /// Reports as long as the agent runs, and at once when a report is requested.
    pub async fn run(&self) {
        let mut requested = self.requested.subscribe();
        let mut ticks = host::ticks(REPORT_EVERY);
        loop {
            let is_requested = tokio::select! {
                _ = ticks.tick() => false,
                _ = requested.changed() => true,
            };
            self.send(is_requested).await;
        }
    }

    /// Sends a report. If it was requested, the units are probed before.
    pub async fn send(&self, is_requested: bool) {
        let parts = &self.parts;
        // A request from here on is for the next report.
        let report_number = *self.requested.borrow();
        let units = match is_requested {
            true => parts.units.fresh_reports().await,
            false => parts.units.reports(),
        };
        let report = Report {
            report_number,
            units,
            volumes: self.volumes().await,
            free_bytes: parts.units.free_bytes(),
            problems: bounded(self.problems().await),
            cache: Some(counts::of_host(parts.caching.cache())),
        };
        match parts.controller.call_once(&ReportHost { report }).await {
            Ok(()) => parts.contact.note_answer(parts.clock.monotonic()),
            Err(error) => tracing::debug!(%error, "controller did not accept report"),
        }
    }

    async fn volumes(&self) -> Vec<VolumeReport> {
        let open = self.parts.statuses.all().await.into_iter();
        let reports = open.filter_map(|open| {
            Some(VolumeReport {
                attachment: open.attachment,
                volume: open.volume,
                engine: engine(open.status?, open.connections),
            })
        });
        reports.collect()
    }

    pub(crate) async fn problems(&self) -> Vec<String> {
        let parts = &self.parts;
        let mut problems = Vec::new();
        if let Ok(Some(older)) = parts.age.older().await {
            problems.push(older.to_string());
        }
        problems.extend(parts.cleaning.problems());
        problems.extend(parts.local_journals.problems().await);
        problems.extend(parts.journal_cleaning.problem());
        problems.extend(parts.filter_journals.problems().await);
        if let Some(why) = parts.rewrapping.problem() {
            problems.push(format!("this host cannot rotate a wrapping key: {why}"));
        }
        problems.extend(parts.keys.problems());
        problems.extend(parts.caching.problem());
        problems
    }
}

/// The first problems, and how many more there are.
fn bounded(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    if more > 0 {
        problems.truncate(PROBLEMS_MAX);
        problems.push(format!(
            "{more} more problems of host {:?} are not listed; repair these first",
            host::machine_name()
        ));
    }
    problems
}

fn engine(status: VolumeStatus, connections: u64) -> Engine {
    Engine {
        version: status.head.map(|head| head.number),
        journal_bytes: status.journal_bytes,
        journal_used_bytes: status.journal_used_bytes,
        blocks_written: status.counters.blocks_written,
        blocks_destaged: status.counters.blocks_destaged,
        connections,
        destage_error: status.destage_error,
        read_error: status.read_error,
        cache: status.cache.as_ref().map(counts::of_volume),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_problems_are_truncated_and_counted() {
        let problems = |count| (0..count).map(|number: usize| number.to_string());
        let few: Vec<String> = problems(PROBLEMS_MAX).collect();
        assert_eq!(bounded(few.clone()), few);
        let many = bounded(problems(PROBLEMS_MAX + 7).collect());
        assert_eq!(many[..PROBLEMS_MAX], few);
        assert_eq!(many.len(), PROBLEMS_MAX + 1);
        assert!(many[PROBLEMS_MAX].starts_with("7 more"), "{many:?}");
    }
}
