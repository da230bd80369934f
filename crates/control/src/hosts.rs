//! The controller's part of the host RPC (`api::host`): the desired state of a host, its reports
//! and its leases.

use std::collections::HashMap;
use std::time::Duration;

use api::host::{
    Access, Assignment, Assignments, AttachmentReport, CatalogCall, Cleaning, Cluster, Deleted,
    DesiredChain, JOURNALS_MAX, JobKind, JobOutput, JobResult, LEASES_MAX, Refusal, Renewal,
    Renewed, Report,
};
use auth::Kind;
use base::{AttachmentId, SnapshotId, VolumeId};
use catalog::VersionKey;
use catalog::retention::{VersionInfo, expired};
use world::Millis;

use crate::control::Control;
use crate::database::{Answer, AttachmentRow, DatabaseError, Reach, VersionRow, VolumeRow};
use crate::error::ControlError;
use crate::host_request::HostRequest;
use crate::parties::local;

/// A volume with this many times the versions that retention allows is
/// cleaned even while it is busy.
const OVERFULL: usize = 2;

impl Control {
    /// The time, by the clock that leases are measured with.
    pub(crate) async fn now(&self) -> Result<Millis, ControlError> {
        let wall = self.inner.world.clock.wall();
        Ok(self.inner.database.now(wall).await?)
    }

    /// Ends attachments that are to be detached by force, on hosts whose leases have ended.
    pub(crate) async fn end_forced(&self) -> Result<(), ControlError> {
        let Some(lease) = self.inner.lease else {
            return Ok(());
        };
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let now = self.now().await?;
        for attachment in self
            .inner
            .database
            .hosts()
            .end_forced(lease_ms, now)
            .await?
        {
            tracing::warn!(%attachment, "controller took attachment from unresponsive host");
        }
        Ok(())
    }
}

impl HostRequest<'_> {
    /// Records that nothing is open on `host`, which starts or stops. Returns what the host has to
    /// know of the cluster.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn begin(self) -> Result<Cluster, ControlError> {
        let host = self.host;
        let inner = &self.inner;
        inner.database.attachments().nothing_open(host).await?;
        Ok(Cluster {
            id: inner.cluster,
            owner: self.owner().await?,
            takes_over: inner.claim.takes_over,
            lease_count_key: inner.lease_count_key.clone(),
            lease_ms: inner
                .lease
                .map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)),
            keys: self.wrapping_keys().await?,
        })
    }

    /// The desired state of `host`, as soon as its serial is not `after`, or after `wait`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn assignments(
        self,
        after: Option<u64>,
        wait: Duration,
    ) -> Result<Assignments, ControlError> {
        let host = self.host;
        let database = &self.inner.database;
        let turns = &self.inner.turns;
        self.until(wait, || async {
            let _turn = turns.assignments(host).await;
            let serial = database.hosts().counters(host).await?.assignments;
            Ok((Some(serial) != after).then_some(()))
        })
        .await?;
        let _turn = turns.assignments(host).await;
        // The serial first: a change meanwhile makes another one.
        let counters = database.hosts().counters(host).await?;
        let attachments = self.attachments().await?;
        let units = database.units().all().await?.into_iter();
        Ok(Assignments {
            serial: counters.assignments,
            attachments,
            units: units.map(Into::into).collect(),
            copysets: self.copysets().await?,
            keys: self.wrapping_keys().await?,
            jobs: database.hosts().jobs_of(host).await?,
            report_number: counters.reports_requested,
            cleaning_serial: counters.cleaning_serial,
            comparisons_requested: database.repair().comparisons_requested().await?,
            preloads: database.images().preloads_on(host).await?,
            audits: database.audits().on_host(host).await?,
            unpins: database.images().unpins().await?,
        })
    }

    /// The desired attachments of `host`.
    async fn attachments(self) -> Result<Vec<Assignment>, ControlError> {
        let host = self.host;
        let database = &self.inner.database;
        let mut attachments = Vec::new();
        let pending = database.snapshots().pending_consistency_points().await?;
        let chains = database.chains().on_host(host).await?;
        let written = database.chains().volumes_on_host(host).await?;
        let images = database.images().on_host(host).await?;
        for row in database.attachments().on_host(host).await? {
            match database.volumes().get(row.volume).await {
                Ok(volume) => {
                    let chain = chains.for_one(row.volume, row.vm.as_deref());
                    let chain = chain.map(|chain| DesiredChain {
                        key: chain.key(),
                        tenant: volume.owner_name.clone().unwrap_or_default(),
                        policy: chain.policy.clone(),
                        volumes: written.get(&chain.id).cloned().unwrap_or_default(),
                    });
                    let wanted = assignment(row, volume, chain, &pending);
                    let image = images.get(&wanted.volume).copied();
                    attachments.push(Assignment { image, ..wanted });
                }
                // The status shows damaged volumes, and the host of a volume that is being deleted
                // is fenced.
                Err(DatabaseError::Damaged { .. } | DatabaseError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(attachments)
    }

    /// Stores the report of `host`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn keep_report(self, report: &Report) -> Result<(), ControlError> {
        let host = self.host;
        let now = self.note_loss(self.now().await)?;
        let kept = self.inner.database.hosts().record_report(host, report, now);
        self.note_loss(kept.await.map_err(ControlError::from))?;
        self.replace_missing(report).await?;
        self.end_forced().await?;
        self.reconcile_jobs().await
    }

    /// Renews the leases of `host`, which is alive.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn renew(self, renewal: &Renewal) -> Result<Renewed, ControlError> {
        let host = self.host;
        if renewal.leases.len() > LEASES_MAX || renewal.journals.len() > JOURNALS_MAX {
            let reason = format!(
                "a host renews {LEASES_MAX} leases, and asks about {JOURNALS_MAX} journals, at most"
            );
            return Err(ControlError::invalid("leases", reason));
        }
        let now = self.now().await?;
        let renewed = self
            .inner
            .database
            .hosts()
            .renew(host, renewal, now)
            .await?;
        // Hosts that are alive end the leases of those that are not.
        self.end_forced().await?;
        Ok(renewed)
    }

    /// Notes that `host` is about to get a lease: without a renewal its term is counted from this.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn note_heard(self) -> Result<(), ControlError> {
        let host = self.host;
        let now = self.now().await?;
        Ok(self.inner.database.hosts().record_heard(host, now).await?)
    }

    /// Stores the state of an attachment; `false` if it is for an older generation.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn attachment_reported(
        self,
        id: AttachmentId,
        report: &AttachmentReport,
    ) -> Result<bool, ControlError> {
        let host = self.host;
        let now = self.inner.world.clock.wall();
        let database = &self.inner.database;
        Ok(database
            .attachments()
            .record_report(host, id, report, now)
            .await?)
    }

    /// Notes that `host` has taken the consistency point of a snapshot.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn consistency_point_taken(self, id: SnapshotId) -> Result<(), ControlError> {
        let host = self.host;
        Ok(self
            .inner
            .database
            .snapshots()
            .record_consistency_point(id, host)
            .await?)
    }

    /// Stores the result of a job.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn job_done(self, job: i64, answer: &JobResult) -> Result<(), ControlError> {
        let host = self.host;
        if let Ok(JobOutput::Unit(unit)) = answer {
            let zone = match self.inner.database.hosts().job(host, job).await? {
                Some(JobKind::AddUnit { zone, .. }) => zone,
                _ => None,
            };
            match self.unit_registry().register(unit, zone).await {
                // The requester gets the error; otherwise the host would report for ever.
                Err(error @ (ControlError::Conflict { .. } | ControlError::Exists { .. })) => {
                    let refusal = Refusal {
                        field: None,
                        message: error.to_string(),
                    };
                    let database = &self.inner.database;
                    return Ok(database
                        .hosts()
                        .answer_job(host, job, &Err(refusal))
                        .await?);
                }
                other => other?,
            }
        }
        Ok(self
            .inner
            .database
            .hosts()
            .answer_job(host, job, answer)
            .await?)
    }

    /// Moves the database ahead of `leases`, which a unit knows of, if the operator has said that
    /// the database was restored; whether it has.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn move_ahead(self, leases: u64) -> Result<bool, ControlError> {
        let host = self.host;
        if !self.inner.claim.takes_over {
            return Ok(false);
        }
        let database = &self.inner.database;
        let from = database.catalog().lease_count().await?;
        if from < leases {
            let now = self.inner.world.clock.wall();
            database.catalog().move_ahead(leases, host, now).await?;
            tracing::warn!(
                from,
                to = leases,
                "controller advanced all epochs and serials, because the database was restored"
            );
        }
        Ok(true)
    }

    /// What may be removed of the volumes that `host` cleans, except of the `busy` ones.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn cleaning(self, busy: &[VolumeId]) -> Result<Cleaning, ControlError> {
        let database = &self.inner.database;
        let reach = self.reach().await?;
        let volumes = database.volumes().all().await?;
        let rows: HashMap<VolumeId, &VolumeRow> =
            volumes.rows.iter().map(|row| (row.id, row)).collect();
        let now = self.inner.world.clock.wall();
        let mut remove = Vec::new();
        let retention = &self.inner.retention;
        let before = Millis(now.0.saturating_sub(retention.age_max_ms));
        for owner in database
            .catalog()
            .version_owners(&reach, retention.count_max, before)
            .await?
        {
            let row = rows.get(&owner).copied();
            if row.is_none() && !volumes.damaged.is_empty() {
                // It may not be deleted: its row cannot be read.
                continue;
            }
            let versions = database.catalog().versions_of(owner).await?;
            remove.extend(self.expired_of(row, &versions, busy.contains(&owner), now));
        }
        let grace_ms = i64::try_from(self.inner.grace.as_millis()).unwrap_or(i64::MAX);
        Ok(Cleaning {
            remove,
            not_before: Some(Millis(now.0.saturating_add(grace_ms))),
            deleted: self.deleted(&reach).await?,
        })
    }

    /// Answers a call of the engine's catalog that `host` makes. That the database cannot be
    /// asked is an answer as well.
    pub async fn answer(self, call: CatalogCall) -> Answer {
        if matches!(call, CatalogCall::Acquire(_))
            && let Err(error) = self.note_heard().await
        {
            return Answer::unavailable(&error);
        }
        match self.reach().await {
            Ok(reach) => self.inner.database.catalog().answer(&reach, call).await,
            Err(error) => Answer::unavailable(&error),
        }
    }

    /// The versions of one volume that may be removed now.
    fn expired_of(
        self,
        row: Option<&VolumeRow>,
        versions: &[VersionRow],
        is_busy: bool,
        now: Millis,
    ) -> Vec<VersionKey> {
        let infos: Vec<VersionInfo> = versions
            .iter()
            .map(|version| VersionInfo {
                key: version.key,
                created: version.created,
                needed: version.is_head || version.is_read || !version.snapshots.is_empty(),
            })
            .collect();
        let unneeded = infos.iter().filter(|version| !version.needed);
        match row {
            Some(row) if !row.deleting => {
                let retention = &self.inner.retention;
                let overfull = unneeded.count() > retention.count_max.saturating_mul(OVERFULL);
                if is_busy && !overfull {
                    return Vec::new();
                }
                expired(now, &infos, retention)
            }
            // A deleted volume cannot go back to a version.
            _ => unneeded.map(|version| version.key).collect(),
        }
    }

    async fn deleted(self, reach: &Reach) -> Result<Vec<Deleted>, DatabaseError> {
        let database = &self.inner.database;
        let mut deleted = Vec::new();
        for volume in database.volumes().deleting(reach).await? {
            deleted.push(Deleted {
                volume,
                // No lease is needed: its last holder was fenced when the deletion began.
                leftovers: database.catalog().leftovers(volume).await?,
            });
        }
        Ok(deleted)
    }

    /// What `host` may reach now.
    async fn reach(self) -> Result<Reach, ControlError> {
        Ok(Reach::new(self.host, self.now().await?))
    }
}

fn assignment(
    row: AttachmentRow,
    volume: VolumeRow,
    chain: Option<DesiredChain>,
    pending: &[(SnapshotId, VolumeId)],
) -> Assignment {
    let snapshots = pending
        .iter()
        .filter(|(_, of)| *of == row.volume && row.access == Access::ReadWrite);
    let is_anothers = volume.last_host.is_some_and(|last| last != row.host);
    let is_first = row.access == Access::ReadWrite && row.epoch.is_none();
    Assignment {
        id: row.id,
        fenced: (is_first && is_anothers).then_some(volume.epoch),
        generation: row.desired.generation,
        attached: row.desired.is_attached,
        leased: row.epoch.is_some(),
        volume: row.volume,
        vm: row.vm,
        forced: row.desired.is_forced,
        access: row.access,
        version: row.version,
        snapshots: snapshots.map(|(snapshot, _)| *snapshot).collect(),
        chain,
        image: None,
        journal_bytes: volume.settings.journal_bytes,
        cache_max_bytes: volume.settings.cache_max_bytes,
        name: export_name(volume.owner_name, volume.name),
        size_bytes: volume.size_bytes,
        block_size: volume.block_size,
        encryption: volume.encryption,
        lineage: volume.lineage,
    }
}

/// The name of a volume's export on a host, which no two volumes share: the owner's name is in
/// front, unless the volume is the machine's own.
fn export_name(owner: Option<String>, name: String) -> String {
    match owner {
        Some(owner) if owner != local(Kind::User).name() => format!("{owner}/{name}"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use world::host;

    use super::*;
    use crate::control::started_in;

    /// A host that asked again and again without waiting had every database connection over which
    /// others renew their leases.
    #[tokio::test]
    async fn the_desired_state_of_a_host_is_read_once_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let control = started_in(folder.path()).await;
        let asking = control.local_host();
        let turn = control.inner.turns.assignments(asking).await;
        let asked = control.host(asking).assignments(None, Duration::ZERO);
        let early = host::timeout(Duration::from_millis(200), asked).await;
        assert!(early.is_none(), "{early:?}");
        drop(turn);
        let asked = control.host(asking).assignments(None, Duration::ZERO).await;
        let serial = asked.expect("its turn").serial;
        // A call that waits for a change does not delay another.
        let minute = Duration::from_secs(60);
        let waiting = control.host(asking).assignments(Some(serial), minute);
        let reading = control.host(asking).assignments(None, Duration::ZERO);
        let changing = async {
            reading.await.expect("its turn");
            let asked = control.database().hosts().request_reports(Millis(0));
            asked.await.expect("asked");
        };
        let waited = async { waiting.await.expect("something has changed").serial };
        let heard = control.host(asking).note_heard();
        heard.await.expect("kept");
        let (found, ()) = tokio::join!(waited, changing);
        assert!(found > serial);
    }

    /// The owner of a volume with the same name got the other's clients.
    #[test]
    fn volumes_of_two_owners_are_not_served_under_one_name() {
        let name = |owner: &str| export_name(Some(owner.to_owned()), "disk".to_owned());
        assert_eq!(name("local"), "disk");
        assert_eq!(name("alice"), "alice/disk");
        assert_ne!(name("alice"), name("bob"));
    }
}
