//! [`Cleaning`]: removes what nothing needs any more, and frees its slots. `journals` does so for
//! journals and the files of filters.
//!
//! Loops none of which waits for another. All of it may be killed at any moment: removals are
//! transactions, frees may be repeated. A failure (a unit is unavailable) is tried again after a
//! while, and delays nothing else; nothing here stops or is stopped by foreground work.
//!
//! Must not know: why a version is not needed; the controllers decide that.

mod journals;

use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::calls::PlanCleaning;
use api::host::catalog_calls::FinishDelete;
use api::host::{Deleted, Want};
use base::with_causes;
use catalog::{Catalog as _, CatalogError, PendingFree, VersionKey};
use parking_lot::Mutex;
use tokio::sync::Notify;
use unit::UnitError;
use volume::Store;
use volume::clean::{self, CleanError, Cleaner, Removal};
use world::{Clock, Millis, host};

use crate::context::{TaskEnded, blocking};
use crate::controller::{Controller, KeptCapabilities};
use crate::export::OpenVolumes;
use crate::filters::FilterFiles;
use crate::journals::{LocalJournals, SharedJournals};
use crate::keys::HostKeys;
use crate::lease::DatabaseAge;

pub(crate) use journals::JournalCleaning;

/// How often there may be something to clean.
const TICK: Duration = Duration::from_secs(1);

/// Retention is applied every this many ticks, and when something was deleted.
const REMOVE_TICKS: u64 = 10;

/// After a pass with failures, it waits this many ticks.
const REMOVE_RETRY_TICKS: u64 = 30;

/// The first and the longest pause after frees that failed.
const FREE_RETRY_MIN: Duration = Duration::from_secs(1);
const FREE_RETRY_MAX: Duration = Duration::from_secs(60);

/// How many frees are fetched at a time: some MiB of plans.
const FREES_AT_ONCE: u32 = 16;

/// When to try again what failed: each time after twice as long.
#[derive(Debug, Default, PartialEq, Eq)]
struct Retry {
    wait: Duration,
    at: Duration,
}

impl Retry {
    fn is_due(&self, now: Duration) -> bool {
        now >= self.at
    }

    fn note(&mut self, now: Duration, has_failed: bool) {
        self.wait = match has_failed {
            true => (self.wait * 2).clamp(FREE_RETRY_MIN, FREE_RETRY_MAX),
            false => Duration::ZERO,
        };
        self.at = now + self.wait;
    }
}

/// Why cleaning did not make progress.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleaningError {
    /// The controllers.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No controller answers.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// A version was not removed, or slots were not freed.
    #[error("{}", with_causes(.0))]
    Clean(#[from] CleanError),
    /// A unit.
    #[error("{}", with_causes(.0))]
    Unit(#[from] UnitError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// What cleaning is given.
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
    /// The serial of what there is to clean.
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

    /// The controllers say that there may be something to clean, if the serial has changed.
    pub fn set_serial(&self, serial: u64) {
        if std::mem::replace(&mut *self.serial.lock(), serial) != serial {
            self.changed.notify_one();
        }
    }

    /// Why cleaning does not make progress, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let removal = self.removal_problem.lock();
        let removal = removal
            .as_ref()
            .map(|why| format!("old versions are not all removed: {why}"));
        let freeing = self.freeing_problem.lock();
        let freeing = freeing
            .as_ref()
            .map(|why| format!("room is not all given back: {why}"));
        removal.into_iter().chain(freeing).collect()
    }

    /// Removes what nothing needs, as long as the agent runs.
    pub async fn run_removing(&self) {
        let mut ticks = host::ticks(TICK);
        let (mut turn, mut due) = (0, 0);
        loop {
            tokio::select! {
                _ = ticks.tick() => turn += 1,
                () = self.changed.notified() => due = turn,
            }
            if turn < due {
                continue;
            }
            let pass = self.remove_unneeded().await;
            due = turn
                + match pass {
                    Ok(()) => REMOVE_TICKS,
                    Err(_) => REMOVE_RETRY_TICKS,
                };
            set_problem(&self.removal_problem, pass);
        }
    }

    /// Frees slots, as long as the agent runs.
    pub async fn run_freeing(&self) {
        let clock = &self.parts.clock;
        let mut ticks = host::ticks(TICK);
        let mut retry = Retry::default();
        loop {
            ticks.tick().await;
            if retry.is_due(clock.monotonic()) {
                let pass = self.free_due().await;
                retry.note(clock.monotonic(), pass.is_err());
                set_problem(&self.freeing_problem, pass);
            }
        }
    }

    fn cleaner(&self) -> Cleaner {
        let keys = Arc::clone(&self.parts.keys);
        Cleaner::new(
            Arc::clone(&self.parts.store),
            Arc::new(self.parts.controller.clone()),
            Arc::new(move |lineages| keys.keyring(lineages)),
        )
    }

    /// Removes versions and deleted volumes that nothing needs.
    pub async fn remove_unneeded(&self) -> Result<(), CleaningError> {
        if self.parts.age.older().await?.is_some() {
            // What an older database says about units may be wrong. The report says so.
            return Ok(());
        }
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

    /// Sweeps what a deleted volume's last lease left on the units, and removes the volume and its
    /// journals: they are ciphertext whose key is deleted.
    async fn finish_delete(&self, deleted: Deleted) -> Result<(), CleaningError> {
        let volume = deleted.volume;
        let controller = &self.parts.controller;
        controller.obtain(&[Want::Sweep { volume }]).await?;
        let store = Arc::clone(&self.parts.store);
        blocking(move || clean::sweep(&store, &deleted.leftovers)).await??;
        controller.catalog(FinishDelete { volume }).await?;
        self.parts.local_journals.remove(volume).await;
        if let Some(shared) = &self.parts.shared_journals {
            shared.remove_before(volume, u32::MAX).await;
        }
        self.parts.local_journals.remove_quarantined(volume).await;
        self.parts.filter_files.remove_all(volume).await;
        tracing::info!(%volume, "volume deleted");
        Ok(())
    }

    /// Frees what is due, some plans at a time: one that fails does not delay those behind it.
    pub async fn free_due(&self) -> Result<(), CleaningError> {
        if self.parts.age.older().await?.is_some() {
            // What an older database says about units may be wrong. The report says so.
            return Ok(());
        }
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
            let wants: Vec<Want> = due
                .iter()
                .map(|free| Want::Free { plan: free.id })
                .collect();
            self.parts.controller.obtain(&wants).await?;
            // Each capability is renewed until its plan was carried out.
            let cache = self.parts.controller.capability_cache();
            let kept: Vec<KeptCapabilities> =
                wants.iter().map(|want| cache.keep(vec![*want])).collect();
            for (free, _kept) in due.into_iter().zip(kept) {
                let freed = carry_out(cleaner.clone(), free).await;
                first_failure = first_failure.and(freed);
            }
        }
    }
}

/// Stores the problem of a pass, and logs it if it is a new one.
fn set_problem(noted: &Mutex<Option<String>>, pass: Result<(), CleaningError>) {
    let problem = pass.err().map(|error| error.to_string());
    let mut noted = noted.lock();
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!(problem, "cleaning failed; it is tried again");
    }
    *noted = problem;
}

async fn carry_out(cleaner: Cleaner, free: PendingFree) -> Result<(), CleaningError> {
    let slots = blocking(move || cleaner.carry_out(&free)).await??;
    tracing::debug!(slots, "slots were freed");
    Ok(())
}

fn remove_one(cleaner: &Cleaner, key: VersionKey, not_before: Millis) -> Result<(), CleaningError> {
    match cleaner.remove_version(key, not_before) {
        Ok(Removal::Removed { slots }) => {
            tracing::debug!(volume = %key.volume, version = key.number, slots, "version removed");
            Ok(())
        }
        Ok(Removal::Needed) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failed free put off retention, again and again, and was itself tried
    /// every second.
    #[test]
    fn a_failing_free_is_tried_less_and_less_often_and_a_success_resets_that() {
        let mut retry = Retry::default();
        let mut now = Duration::from_secs(100);
        assert!(retry.is_due(now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            retry.note(now, true);
            assert!(!retry.is_due(now));
            let wait = retry.at - now;
            waits.push(wait.as_secs());
            now += wait;
            assert!(retry.is_due(now));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        retry.note(now, false);
        assert!(retry.is_due(now));
    }
}
