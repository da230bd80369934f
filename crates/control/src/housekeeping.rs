//! What goes on by itself: units looked after, volumes that stopped noticed,
//! and what nothing needs any more removed and freed.
//!
//! Three loops, none of which waits for another: watching, removing what
//! nothing needs, and freeing what is due. All of it may be killed at any
//! moment: removals are transactions, frees may be done twice. What fails (a
//! unit is away) is tried again after a while, and keeps nothing else from
//! being done; nothing here stops or is stopped by foreground work.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{VolumeId, with_causes};
use catalog::retention::{VersionInfo, expired};
use catalog::{PendingFree, VersionKey};
use volume::clean::{self, Cleaner, Removal};
use world::Millis;

use crate::control::{Control, blocking, lock};
use crate::database::{VersionRow, VolumeRow};
use crate::error::ControlError;
use world::host;

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

/// A volume with this many times the versions that retention allows is
/// cleaned even while it is busy.
const OVERFULL: usize = 2;

/// What the last turns saw.
#[derive(Default)]
struct Seen {
    /// Blocks each attached volume had written.
    blocks_written: HashMap<VolumeId, u64>,
    /// Volumes that wrote something in the last tick.
    busy: HashSet<VolumeId>,
    /// Volumes whose stop was noted.
    stopped: HashSet<VolumeId>,
}

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

fn note(noted: &Mutex<Option<String>>, pass: Result<(), ControlError>) {
    let problem = pass.err().map(|error| error.to_string());
    let mut noted = lock(noted);
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!(problem, "cleaning does not get on; it is tried again");
    }
    *noted = problem;
}

impl Control {
    /// Keeps house until it is dropped.
    pub async fn keep_house(self) {
        let busy = Mutex::default();
        tokio::join!(
            self.keep_watch(&busy),
            self.keep_removing(&busy),
            self.keep_freeing()
        );
    }

    async fn keep_watch(&self, busy: &Mutex<HashSet<VolumeId>>) {
        let mut ticks = host::ticks(TICK);
        let mut seen = Seen::default();
        for turn in 0_u64.. {
            ticks.tick().await;
            // Nobody waits for the answers.
            drop(self.probe_units(turn.is_multiple_of(PROBE_TICKS)));
            self.watch_volumes(&mut seen).await;
            lock(busy).clone_from(&seen.busy);
        }
    }

    async fn keep_removing(&self, busy: &Mutex<HashSet<VolumeId>>) {
        let mut ticks = host::ticks(TICK);
        let (mut turn, mut due) = (0, 0);
        let mut thin = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => turn += 1,
                () = self.inner.cleaning_wanted.notified() => due = turn,
            }
            if turn < due {
                continue;
            }
            let busy = lock(busy).clone();
            let removed = self.remove_what_nothing_needs(&busy).await;
            let forgotten = self.forget_thin(thin).await;
            thin = *forgotten.as_ref().unwrap_or(&thin);
            let pass = removed.and(forgotten.map(|_| ()));
            due = turn
                + match pass {
                    Ok(()) => REMOVE_TICKS,
                    Err(_) => REMOVE_RETRY_TICKS,
                };
            note(&self.inner.removal_problem, pass);
        }
    }

    async fn keep_freeing(&self) {
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

    async fn watch_volumes(&self, seen: &mut Seen) {
        let attached: Vec<_> = lock(&self.inner.attached)
            .iter()
            .map(|(id, one)| (*id, Arc::clone(one)))
            .collect();
        let mut written = HashMap::new();
        seen.busy.clear();
        seen.stopped
            .retain(|volume| attached.iter().any(|(id, _)| id == volume));
        for (volume, attached) in attached {
            let Ok(status) = self.engine_status(attached).await else {
                continue;
            };
            let blocks = status.counters.blocks_written;
            if seen
                .blocks_written
                .get(&volume)
                .is_some_and(|before| *before != blocks)
            {
                seen.busy.insert(volume);
            }
            written.insert(volume, blocks);
            if let Some(why) = status.stopped
                && seen.stopped.insert(volume)
            {
                tracing::error!(%volume, why, "the volume has stopped");
                if let Err(error) = self.inner.database.set_failure(volume, &why).await {
                    tracing::error!(%volume, %error, "that it stopped was not noted");
                    seen.stopped.remove(&volume);
                }
            }
        }
        seen.blocks_written = written;
    }

    pub(crate) async fn remove_what_nothing_needs(
        &self,
        busy: &HashSet<VolumeId>,
    ) -> Result<(), ControlError> {
        if self.older_database().await?.is_some() {
            // What it says of the units may be wrong. The report says so.
            return Ok(());
        }
        let volumes = self.inner.database.volumes().await?;
        let mut first_failure = Ok(());
        for owner in self.inner.database.version_owners().await? {
            let versions = self.inner.database.versions_of(owner).await?;
            let row = volumes.rows.iter().find(|row| row.id == owner);
            if row.is_none() && !volumes.damaged.is_empty() {
                // Perhaps not deleted: its row cannot be read.
                continue;
            }
            let goes = self.expired_of(row, &versions, busy.contains(&owner));
            first_failure = first_failure.and(self.remove(goes).await);
        }
        for row in volumes.rows.iter().filter(|row| row.deleting) {
            first_failure = first_failure.and(self.finish_delete(row).await);
        }
        first_failure
    }

    /// The versions of one volume that go now.
    fn expired_of(
        &self,
        row: Option<&VolumeRow>,
        versions: &[VersionRow],
        busy: bool,
    ) -> Vec<VersionKey> {
        let infos: Vec<VersionInfo> = versions
            .iter()
            .map(|version| VersionInfo {
                key: version.key,
                created: version.created,
                needed: version.is_head || !version.snapshots.is_empty(),
            })
            .collect();
        let unneeded = infos.iter().filter(|version| !version.needed);
        match row {
            // Nobody can go back to them any more.
            None => unneeded.map(|version| version.key).collect(),
            Some(row) if row.deleting => unneeded.map(|version| version.key).collect(),
            Some(_) => {
                let retention = &self.inner.retention;
                let overfull = unneeded.count() > retention.count_max.saturating_mul(OVERFULL);
                if busy && !overfull {
                    return Vec::new();
                }
                expired(self.inner.world.clock.wall(), &infos, retention)
            }
        }
    }

    async fn remove(&self, versions: Vec<VersionKey>) -> Result<(), ControlError> {
        let cleaner = self.cleaner();
        let grace_ms = i64::try_from(self.inner.grace.as_millis()).unwrap_or(i64::MAX);
        let not_before = Millis(self.inner.world.clock.wall().0.saturating_add(grace_ms));
        let mut first_failure = Ok(());
        for key in versions {
            let cleaner = cleaner.clone();
            let removed = blocking(move || remove_one(&cleaner, key, not_before)).await?;
            first_failure = first_failure.and(removed);
        }
        first_failure
    }

    /// Sweeps what a deleted volume's last lease left on the units, and
    /// forgets the volume.
    async fn finish_delete(&self, row: &VolumeRow) -> Result<(), ControlError> {
        let _door = self.door(row.id).await;
        let volume = row.id;
        // No lease is needed: its last owner was fenced as the deletion began.
        let leftovers = self.inner.database.leftovers(volume).await?;
        let store = Arc::clone(&self.inner.store);
        blocking(move || clean::sweep(&store, &leftovers).map_err(unavailable)).await??;
        self.inner.database.finish_delete(volume).await?;
        self.forget_door(volume);
        tracing::info!(%volume, name = row.name, "volume deleted");
        Ok(())
    }

    /// Frees what is due, some plans at a time: one that fails does not hold
    /// up those behind it.
    pub(crate) async fn free_what_is_due(&self) -> Result<(), ControlError> {
        if self.older_database().await?.is_some() {
            // What it says of the units may be wrong. The report says so.
            return Ok(());
        }
        let now = self.inner.world.clock.wall();
        let mut first_failure = Ok(());
        let mut after = 0;
        loop {
            let due = self
                .inner
                .database
                .due_frees(now, after, FREES_AT_ONCE)
                .await?;
            let Some(last) = due.last() else {
                return first_failure;
            };
            after = last.id;
            let cleaner = self.cleaner();
            let freed = blocking(move || free_all(&cleaner, &due)).await?;
            first_failure = first_failure.and(freed);
        }
    }
}

fn free_all(cleaner: &Cleaner, due: &[PendingFree]) -> Result<(), ControlError> {
    let mut first_failure = Ok(());
    for free in due {
        match cleaner.carry_out(free) {
            Ok(slots) => tracing::debug!(slots, "freed"),
            Err(error) => first_failure = first_failure.and(Err(unavailable(error))),
        }
    }
    first_failure
}

fn remove_one(cleaner: &Cleaner, key: VersionKey, not_before: Millis) -> Result<(), ControlError> {
    match cleaner.remove_version(key, not_before) {
        Ok(Removal::Removed { slots }) => {
            tracing::debug!(volume = %key.volume, version = key.number, slots, "version removed");
            Ok(())
        }
        Ok(Removal::Needed) => Ok(()),
        Err(error) => Err(unavailable(error)),
    }
}

fn unavailable(error: impl std::error::Error) -> ControlError {
    ControlError::Unavailable {
        reason: with_causes(&error),
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
