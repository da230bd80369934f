//! [`Cleaning`]: removes what nothing needs any more, and frees its slots. [`JournalCleaning`] does
//! so for journals and the files of filters.
//!
//! Two loops, which do not wait for each other; `decide` says when a pass of either is due. All of
//! it may be killed at any moment: a removal is a transaction, and a free may be repeated. A failed
//! pass (a unit is unavailable) is repeated later and delays nothing else; cleaning and foreground
//! work do not stop each other.
//!
//! Must not know: why a version is not needed; the controllers decide that.

mod decide;
mod journals;

use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::calls::PlanCleaning;
use api::host::catalog_calls::FinishDelete;
use api::host::{CapabilityRequest, Deleted};
use base::with_causes;
use catalog::{Catalog as _, CatalogError, PendingFree, VersionKey};
use parking_lot::Mutex;
use tokio::sync::Notify;
use unit::UnitError;
use volume::Store;
use volume::clean::{self, CleanError, Cleaner, Removal};
use world::{Clock, Millis, host};

use crate::context::{TaskFailed, blocking};
use crate::controller::{Controller, KeptCapabilities};
use crate::export::OpenVolumes;
use crate::filters::FilterFiles;
use crate::journals::{LocalJournals, SharedJournals};
use crate::keys::HostKeys;
use crate::lease::DatabaseAge;

use decide::{CleaningAction, Desired, Observed, Work, decide};

pub(crate) use journals::JournalCleaning;

/// The period of the timer of both loops.
const TICK: Duration = Duration::from_secs(1);

/// The most frees that one request fetches: some MiB of plans.
const FREES_AT_ONCE: u32 = 16;

/// Why cleaning did not make progress.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleaningError {
    /// The catalog refused a call.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No controller answers.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// A version was not removed, or slots were not freed.
    #[error("{}", with_causes(.0))]
    Clean(#[from] CleanError),
    /// A storage unit failed.
    #[error("{}", with_causes(.0))]
    Unit(#[from] UnitError),
    /// A background task was aborted.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}

/// The parts of the agent that cleaning uses.
pub(crate) struct CleaningParts {
    pub controller: Controller,
    pub keys: Arc<HostKeys>,
    pub store: Arc<Store>,
    pub clock: Arc<dyn Clock>,
    pub age: Arc<DatabaseAge>,
    pub open: Arc<OpenVolumes>,
    pub local_journals: Arc<LocalJournals>,
    pub shared_journals: Option<Arc<SharedJournals>>,
    pub filter_files: FilterFiles,
}

/// Removes versions and deleted volumes, and frees slots.
pub(crate) struct Cleaning {
    parts: CleaningParts,
    /// Changed by the controllers when something was deleted.
    serial: Mutex<u64>,
    /// Notified when the serial changes.
    changed: Notify,
    removal_problem: Mutex<Option<String>>,
    freeing_problem: Mutex<Option<String>>,
}

impl Cleaning {
    pub fn new(parts: CleaningParts) -> Self {
        Self {
            parts,
            serial: Mutex::default(),
            changed: Notify::new(),
            removal_problem: Mutex::default(),
            freeing_problem: Mutex::default(),
        }
    }

    /// Starts a removal if the controllers have changed the serial.
    pub fn set_serial(&self, serial: u64) {
        if std::mem::replace(&mut *self.serial.lock(), serial) != serial {
            self.changed.notify_one();
        }
    }

    /// Why cleaning does not make progress; one sentence for each loop that failed.
    pub fn problems(&self) -> Vec<String> {
        let removal = self.removal_problem.lock();
        let removal = removal
            .as_ref()
            .map(|why| format!("old versions cannot be removed: {why}"));
        let freeing = self.freeing_problem.lock();
        let freeing = freeing
            .as_ref()
            .map(|why| format!("slots cannot be freed: {why}"));
        removal.into_iter().chain(freeing).collect()
    }

    /// Removes versions and deleted volumes that nothing needs, as long as the agent runs.
    pub async fn run_removing(&self) {
        self.run(Work::Remove, &self.removal_problem).await;
    }

    /// Frees slots, as long as the agent runs.
    pub async fn run_freeing(&self) {
        self.run(Work::Free, &self.freeing_problem).await;
    }

    async fn run(&self, work: Work, problem: &Mutex<Option<String>>) {
        let mut ticks = host::ticks(TICK);
        let mut observed = Observed::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => observed.tick += 1,
                () = self.changed.notified(), if work == Work::Remove => {}
            }
            if let Some(pass) = self.pass_if_due(work, &mut observed).await {
                set_problem(problem, pass);
            }
        }
    }

    /// Runs a pass if one is due, and returns what came of it.
    async fn pass_if_due(
        &self,
        work: Work,
        observed: &mut Observed,
    ) -> Option<Result<(), CleaningError>> {
        let desired = Desired {
            work,
            serial: *self.serial.lock(),
        };
        observed.is_database_older = None;
        let pass = loop {
            match decide(&desired, observed) {
                CleaningAction::Wait => return None,
                CleaningAction::CheckDatabase => match self.parts.age.older().await {
                    Ok(older) => observed.is_database_older = Some(older.is_some()),
                    Err(error) => break Err(error.into()),
                },
                // The report to the controllers says that the database is older.
                CleaningAction::Skip => break Ok(()),
                CleaningAction::Remove => break self.remove_planned().await,
                CleaningAction::Free => break self.free_due_plans().await,
            }
        };
        observed.end_pass(desired.serial, pass.is_err());
        Some(pass)
    }

    /// Removes versions and deleted volumes that nothing needs, once.
    #[cfg(test)]
    pub async fn remove_unneeded(&self) -> Result<(), CleaningError> {
        let mut observed = Observed::default();
        let pass = self.pass_if_due(Work::Remove, &mut observed).await;
        pass.expect("the first pass is due")
    }

    /// Frees what is due, once.
    #[cfg(test)]
    pub async fn free_due(&self) -> Result<(), CleaningError> {
        let mut observed = Observed::default();
        let pass = self.pass_if_due(Work::Free, &mut observed).await;
        pass.expect("the first pass is due")
    }

    fn cleaner(&self) -> Cleaner {
        let keys = Arc::clone(&self.parts.keys);
        Cleaner::new(
            Arc::clone(&self.parts.store),
            Arc::new(self.parts.controller.clone()),
            Arc::new(move |lineages| keys.keyring(lineages)),
        )
    }

    /// Removes what the controllers plan to remove; returns the first failure.
    async fn remove_planned(&self) -> Result<(), CleaningError> {
        let busy = self.parts.open.busy();
        let plan = PlanCleaning { busy };
        let cleaning = self.parts.controller.call(&plan).await?;
        let mut first_failure = Ok(());
        if let Some(not_before) = cleaning.not_before {
            first_failure = self.remove(cleaning.remove, not_before).await;
        }
        for deleted in cleaning.deleted {
            first_failure = first_failure.and(self.finish_delete(deleted).await);
        }
        first_failure
    }

    async fn remove(
        &self,
        versions: Vec<VersionKey>,
        not_before: Millis,
    ) -> Result<(), CleaningError> {
        let cleaner = self.cleaner();
        let mut first_failure = Ok(());
        for key in versions {
            let cleaner = cleaner.clone();
            let removed = blocking(move || remove_one(&cleaner, key, not_before)).await?;
            first_failure = first_failure.and(removed);
        }
        first_failure
    }

    /// Sweeps what the last lease of a deleted volume left on the units, and removes the volume and
    /// its journals: they are ciphertext whose key is deleted.
    async fn finish_delete(&self, deleted: Deleted) -> Result<(), CleaningError> {
        let volume = deleted.volume;
        let controller = &self.parts.controller;
        controller
            .obtain(&[CapabilityRequest::Sweep { volume }])
            .await?;
        let store = Arc::clone(&self.parts.store);
        blocking(move || clean::sweep(&store, &deleted.leftovers)).await??;
        controller.catalog(FinishDelete { volume }).await?;
        self.parts.local_journals.remove(volume).await;
        if let Some(shared) = &self.parts.shared_journals {
            shared.remove_before(volume, u32::MAX).await;
        }
        self.parts.local_journals.remove_quarantined(volume).await;
        self.parts.filter_files.remove_all(volume).await;
        tracing::info!(%volume, "cleaning deleted volume");
        Ok(())
    }

    /// Carries out the frees that are due, [`FREES_AT_ONCE`] at a time; returns the first failure,
    /// which does not delay the frees after it.
    async fn free_due_plans(&self) -> Result<(), CleaningError> {
        let now = self.parts.clock.wall();
        let mut first_failure = Ok(());
        let mut after = 0;
        loop {
            let controller = self.parts.controller.clone();
            let due = blocking(move || controller.due_frees(now, after, FREES_AT_ONCE)).await??;
            let Some(last) = due.last() else {
                return first_failure;
            };
            after = last.id;
            let cleaner = self.cleaner();
            let requests: Vec<CapabilityRequest> = due
                .iter()
                .map(|free| CapabilityRequest::Free { plan: free.id })
                .collect();
            self.parts.controller.obtain(&requests).await?;
            // Each capability is renewed until its plan has been carried out.
            let cache = self.parts.controller.capability_cache();
            let kept: Vec<KeptCapabilities> = requests
                .iter()
                .map(|request| cache.keep(vec![*request]))
                .collect();
            for (free, _kept) in due.into_iter().zip(kept) {
                let freed = carry_out(cleaner.clone(), free).await;
                first_failure = first_failure.and(freed);
            }
        }
    }
}

/// Stores the problem of a pass, and logs it if it is new.
fn set_problem(noted: &Mutex<Option<String>>, pass: Result<(), CleaningError>) {
    let problem = pass.err().map(|error| error.to_string());
    let mut noted = noted.lock();
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!(error = problem, "cleaning failed and will be retried");
    }
    *noted = problem;
}

async fn carry_out(cleaner: Cleaner, free: PendingFree) -> Result<(), CleaningError> {
    let slots = blocking(move || cleaner.carry_out(&free)).await??;
    tracing::debug!(slots, "cleaning freed slots");
    Ok(())
}

fn remove_one(cleaner: &Cleaner, key: VersionKey, not_before: Millis) -> Result<(), CleaningError> {
    match cleaner.remove_version(key, not_before) {
        Ok(Removal::Removed { slots }) => {
            tracing::debug!(volume = %key.volume, version = key.number, slots, "cleaning removed version");
            Ok(())
        }
        Ok(Removal::Needed) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
