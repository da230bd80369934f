//! What goes on by itself: units looked after, and what nothing needs any more
//! removed and freed.
//!
//! Loops none of which waits for another. All of it may be killed at any
//! moment: removals are transactions, frees may be done twice. What fails (a
//! unit is away) is tried again after a while, and keeps nothing else from
//! being done; nothing here stops or is stopped by foreground work.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::ClientError;
use api::host::calls::PlanCleaning;
use api::host::catalog_calls::FinishDelete;
use api::host::{Deleted, Want};
use base::{VolumeId, with_causes};
use catalog::{CatalogError, PendingFree, VersionKey};
use unit::UnitError;
use volume::clean::{self, CleanError, Cleaner, Removal};
use world::{Millis, host};

use crate::agent::{Agent, TaskEnded, blocking, lock};
use crate::capability_cache::Kept;

/// How often units and volumes are looked at.
const TICK: Duration = Duration::from_secs(1);

/// Healthy units are probed every so many ticks.
const PROBE_TICKS: u64 = 5;

/// Retention is applied every so many ticks, and when something was deleted.
const REMOVE_TICKS: u64 = 10;

/// After a pass with failures, it waits this many ticks.
const REMOVE_RETRY_TICKS: u64 = 30;

/// Frees that failed are tried again after so long at first, and at last.
const FREE_RETRY_MIN: Duration = Duration::from_secs(1);
const FREE_RETRY_MAX: Duration = Duration::from_secs(60);

/// How many frees are fetched at a time: some MiB of plans.
const FREES_AT_ONCE: u32 = 16;

/// When to try again what fails: each time after twice as long.
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

fn note(noted: &Mutex<Option<String>>, pass: Result<(), CleaningError>) {
    let problem = pass.err().map(|error| error.to_string());
    let mut noted = lock(noted);
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!(problem, "cleaning does not get on; it is tried again");
    }
    *noted = problem;
}

/// Why cleaning did not get on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleaningError {
    /// The controllers.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No controller answers.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// A version stays, or slots.
    #[error("{}", with_causes(.0))]
    Clean(#[from] CleanError),
    /// A unit.
    #[error("{}", with_causes(.0))]
    Unit(#[from] UnitError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

impl Agent {
    /// Looks after the units.
    pub(crate) async fn keep_watch(&self) {
        let mut ticks = host::ticks(TICK);
        for turn in 0_u64.. {
            ticks.tick().await;
            // Nobody waits for the answers.
            drop(self.probe_units(turn.is_multiple_of(PROBE_TICKS)));
        }
    }

    pub(crate) async fn keep_removing(&self) {
        let mut ticks = host::ticks(TICK);
        let (mut turn, mut due) = (0, 0);
        loop {
            tokio::select! {
                _ = ticks.tick() => turn += 1,
                () = self.inner.cleaning_wanted.notified() => due = turn,
            }
            if turn < due {
                continue;
            }
            let pass = self.remove_what_nothing_needs().await;
            due = turn
                + match pass {
                    Ok(()) => REMOVE_TICKS,
                    Err(_) => REMOVE_RETRY_TICKS,
                };
            note(&self.inner.removal_problem, pass);
        }
    }

    pub(crate) async fn keep_freeing(&self) {
        let mut ticks = host::ticks(TICK);
        let mut retry = Retry::default();
        loop {
            ticks.tick().await;
            if retry.is_due(self.inner.world.clock.monotonic()) {
                let pass = self.free_what_is_due().await;
                retry.note(self.inner.world.clock.monotonic(), pass.is_err());
                note(&self.inner.freeing_problem, pass);
            }
        }
    }

    pub(crate) async fn remove_what_nothing_needs(&self) -> Result<(), CleaningError> {
        if self.older_database().await?.is_some() {
            // What it says of the units may be wrong. The report says so.
            return Ok(());
        }
        let busy = lock(&self.inner.busy).iter().copied().collect();
        let cleaning = self.inner.controller.call(&PlanCleaning { busy }).await?;
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

    /// Sweeps what a deleted volume's last lease left on the units, forgets the
    /// volume, and its journal: what that has is ciphertext whose key is gone.
    async fn finish_delete(&self, deleted: Deleted) -> Result<(), CleaningError> {
        let volume = deleted.volume;
        let controller = &self.inner.controller;
        controller.obtain(&[Want::Sweep { volume }]).await?;
        let store = Arc::clone(&self.inner.store);
        blocking(move || clean::sweep(&store, &deleted.leftovers)).await??;
        controller.catalog(FinishDelete { volume }).await?;
        self.forget_journal(volume).await;
        self.forget_shared(volume, u32::MAX).await;
        self.forget_aside(volume).await;
        self.forget_filters(volume).await;
        tracing::info!(%volume, "volume deleted");
        Ok(())
    }

    /// Removes a journal of which nothing is needed any more.
    pub(crate) async fn forget_journal(&self, volume: VolumeId) {
        let journal = self.inner.folder.journal(volume);
        let disk = Arc::clone(&self.inner.world.disk);
        let path = journal.clone();
        let removed = blocking(move || disk.remove(&path)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %journal.display(), %error, "not removed");
        }
    }

    /// Removes what the shared folder has of a volume's leases before `epoch`,
    /// which nothing names any more.
    pub(crate) async fn forget_shared(&self, volume: VolumeId, epoch: u32) {
        let inner = Arc::clone(&self.inner);
        let removed = blocking(move || {
            let Some(journals) = &inner.journals else {
                return Ok(());
            };
            let shared = journals.verified(&inner.world);
            let shared = shared.map_err(|error| with_causes(&error))?;
            let removed = shared.remove_before(&inner.world, volume, epoch);
            removed.map_err(|error| with_causes(&error))
        })
        .await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%volume, error, "its journals stay in the shared folder");
        }
    }

    async fn free(&self, cleaner: Cleaner, free: PendingFree) -> Result<(), CleaningError> {
        let slots = blocking(move || cleaner.carry_out(&free)).await??;
        tracing::debug!(slots, "freed");
        Ok(())
    }

    /// Frees what is due, some plans at a time: one that fails does not hold
    /// up those behind it.
    pub(crate) async fn free_what_is_due(&self) -> Result<(), CleaningError> {
        if self.older_database().await?.is_some() {
            // What it says of the units may be wrong. The report says so.
            return Ok(());
        }
        let now = self.inner.world.clock.wall();
        let mut first_failure = Ok(());
        let mut after = 0;
        loop {
            let catalog = Arc::clone(&self.inner.catalog);
            let due = blocking(move || catalog.due_frees(now, after, FREES_AT_ONCE)).await??;
            let Some(last) = due.last() else {
                return first_failure;
            };
            after = last.id;
            let cleaner = self.cleaner();
            let wants: Vec<Want> = due
                .iter()
                .map(|free| Want::Free { plan: free.id })
                .collect();
            self.inner.controller.obtain(&wants).await?;
            // Those that come late are renewed until they have come.
            let cache = self.inner.controller.capability_cache();
            let kept: Vec<Kept> = wants.iter().map(|want| cache.keep(vec![*want])).collect();
            for (free, _kept) in due.into_iter().zip(kept) {
                let freed = self.free(cleaner.clone(), free).await;
                first_failure = first_failure.and(freed);
            }
        }
    }
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
    fn what_fails_is_tried_less_and_less_often_and_at_once_when_it_is_well() {
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
