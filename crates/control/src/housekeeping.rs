//! What goes on by itself: units looked after, volumes that stopped noticed,
//! and what nothing needs any more removed and freed.
//!
//! All of it may be killed at any moment: removals are transactions, frees
//! may be done twice. A pass that fails (a unit is away) is tried again after
//! a while; nothing here stops or is stopped by foreground work.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::VolumeId;
use tokio::time::MissedTickBehavior;
use volume::catalog::VersionKey;
use volume::clean::retention::{VersionInfo, expired};
use volume::clean::{self, Cleaner, Removal};
use world::Millis;

use crate::attach::with_causes;
use crate::control::{Control, blocking, lock};
use crate::database::{VersionRow, VolumeRow};
use crate::error::ControlError;

/// How often units and volumes are looked at.
const TICK: Duration = Duration::from_secs(1);

/// Healthy units are probed every so many ticks.
const PROBE_TICKS: u64 = 5;

/// Retention is applied every so many ticks, and when something was deleted.
const CLEAN_TICKS: u64 = 10;

/// After a failed pass, cleaning waits this many ticks.
const CLEAN_RETRY_TICKS: u64 = 30;

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

impl Control {
    /// Keeps house until it is dropped.
    pub async fn keep_house(self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Seen::default();
        let mut turn: u64 = 0;
        let mut clean_at = 0;
        loop {
            tokio::select! {
                _ = tick.tick() => turn += 1,
                () = self.inner.cleaning_wanted.notified() => clean_at = clean_at.min(turn),
            }
            self.probe_units(turn.is_multiple_of(PROBE_TICKS)).await;
            self.watch_volumes(&mut seen).await;
            let pass = async {
                if turn >= clean_at {
                    clean_at = turn + CLEAN_TICKS;
                    self.remove_what_nothing_needs(&seen).await?;
                }
                self.free_what_is_due().await
            };
            let problem = pass.await.err().map(|error| error.to_string());
            if problem.is_some() {
                clean_at = turn + CLEAN_RETRY_TICKS;
            }
            self.note_cleaning(problem);
        }
    }

    fn note_cleaning(&self, problem: Option<String>) {
        let mut noted = lock(&self.inner.cleaning_problem);
        if let (Some(problem), true) = (&problem, *noted != problem) {
            tracing::warn!(problem, "cleaning does not get on; it is tried again");
        }
        *noted = problem;
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

    async fn remove_what_nothing_needs(&self, seen: &Seen) -> Result<(), ControlError> {
        let volumes = self.inner.database.volumes().await?;
        let mut first_failure = Ok(());
        for owner in self.inner.database.version_owners().await? {
            let versions = self.inner.database.versions_of(owner).await?;
            let row = volumes.iter().find(|row| row.id == owner);
            let goes = self.expired_of(row, &versions, seen.busy.contains(&owner));
            first_failure = first_failure.and(self.remove(goes).await);
        }
        for row in volumes.iter().filter(|row| row.deleting) {
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
        for key in versions {
            let cleaner = cleaner.clone();
            let removed = blocking(move || remove_one(&cleaner, key, not_before)).await?;
            removed?;
        }
        Ok(())
    }

    /// Sweeps what a deleted volume's last lease left on the units, and
    /// forgets the volume.
    async fn finish_delete(&self, row: &VolumeRow) -> Result<(), ControlError> {
        let _door = self.door(row.id).await;
        let volume = row.id;
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let lease = inner.catalog.acquire(volume).map_err(unavailable)?;
            clean::sweep(&inner.store, &lease.leftovers).map_err(unavailable)
        })
        .await??;
        self.inner.database.finish_delete(volume).await?;
        self.forget_door(volume);
        tracing::info!(%volume, name = row.name, "volume deleted");
        Ok(())
    }

    async fn free_what_is_due(&self) -> Result<(), ControlError> {
        let inner = Arc::clone(&self.inner);
        let cleaner = self.cleaner();
        blocking(move || {
            let due = inner
                .catalog
                .due_frees(inner.world.clock.wall())
                .map_err(unavailable)?;
            let mut first_failure = Ok(());
            for free in due {
                match cleaner.carry_out(&free) {
                    Ok(slots) => tracing::debug!(slots, "freed"),
                    Err(error) => first_failure = first_failure.and(Err(unavailable(error))),
                }
            }
            first_failure
        })
        .await?
    }
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
