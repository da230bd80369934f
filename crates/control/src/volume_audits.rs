//! Requests on audits: how much of a volume some units alone reveal
//! (docs/explanation/leakage.md).

use std::collections::BTreeSet;
use std::time::Duration;

use api::host::AuditReport;
use api::types::{AUDIT_UNITS_MAX, AuditKey, AuditPlacement};
use base::{AuditId, PartyId, SnapshotId, UnitId, VolumeId};
use catalog::{Copyset, Erasure};

use crate::authorized_request::AuthorizedRequest;
use crate::database::{AuditOfVolume, Need, NewAudit, Right, SnapshotRow, UnitRow, VolumeRow};
use crate::error::ControlError;
use crate::host_request::HostRequest;
use crate::units::{is_called, no_unit};

/// An audit as it is shown.
#[derive(Debug, Clone)]
pub struct AuditView {
    /// The row.
    pub row: AuditOfVolume,
    /// How blocks were placed on units when it was requested.
    pub placement: AuditPlacement,
    /// The wrapped data key that decrypts the sealed part of the result.
    pub key: Option<AuditKey>,
    /// How much the journal of the volume's host held then that was in no version, in bytes; `None`
    /// if it is unknown or irrelevant.
    pub journal_bytes: Option<u64>,
}

/// Audits of volumes, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Audits<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Audits of volumes.
    #[must_use]
    pub fn audits(&self) -> Audits<'_> {
        Audits { request: self }
    }
}

impl Audits<'_> {
    /// Requests an audit of a volume or a snapshot.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the volume, the snapshot, a unit);
    /// [`ControlError::Forbidden`] unless the principal may read the volume, and may use a host
    /// that could run it; [`ControlError::Conflict`] if the volume was never destaged or is being
    /// deleted, the snapshot belongs to another volume or is not completed, a unit is in no
    /// copyset, or too many audits are running; [`ControlError::Invalid`] if no unit is named;
    /// [`ControlError::Unavailable`] if no such host reports.
    pub async fn begin(
        self,
        volume: &str,
        units: &[String],
        snapshot: Option<&str>,
        files: bool,
    ) -> Result<AuditView, ControlError> {
        let row = self.request.living(volume, Right::Read).await?;
        let snapshot = match snapshot {
            Some(name) => Some(self.snapshot_to_audit(name).await?.id),
            None if row.head.is_none() => {
                let reason = format!("volume {:?} has no data on the units yet", row.name);
                return Err(ControlError::conflict(reason));
            }
            None => None,
        };
        let units = self.compromised(units).await?;
        let new = NewAudit {
            id: AuditId::from_u128(self.request.inner.world.random.u128()),
            placement: self.placement(&row, &units).await?,
            journal_bytes: self.journal_bytes(row.id, snapshot).await?,
            units,
            snapshot,
            files,
            host: self.auditor_of(&row).await?,
        };
        let now = self.request.now().await?;
        let database = &self.request.inner.database;
        let volume = row.id.to_string();
        let begun = database
            .audits()
            .begin(self.request.principal(), &volume, &new, now);
        self.view(&row, begun.await?).await
    }

    /// An audit, once it has ended, or `wait` has passed.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], also a day after it has ended; [`ControlError::Forbidden`]
    /// unless the principal may read the volume.
    pub async fn get(
        self,
        volume: &str,
        id: AuditId,
        wait: Duration,
    ) -> Result<AuditView, ControlError> {
        self.request.reconcile_jobs().await?;
        let database = &self.request.inner.database;
        let now = self.request.now().await?;
        let look = || {
            database
                .audits()
                .find(self.request.principal(), volume, id, now)
        };
        let ended = self.request.until(wait, || async {
            let (row, audit) = look().await?;
            Ok(audit.ended.is_some().then_some((row, audit)))
        });
        let (row, audit) = match ended.await? {
            Some(ended) => ended,
            None => look().await?,
        };
        self.view(&row, audit).await
    }

    /// The audits of a volume, newest first, without their results.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Forbidden`] unless the principal may read the
    /// volume.
    pub async fn list(self, volume: &str) -> Result<Vec<AuditView>, ControlError> {
        self.request.reconcile_jobs().await?;
        let now = self.request.now().await?;
        let database = &self.request.inner.database;
        let (row, audits) = database
            .audits()
            .list(self.request.principal(), volume, now)
            .await?;
        let mut views = Vec::new();
        for audit in audits {
            views.push(self.view(&row, audit).await?);
        }
        Ok(views)
    }

    /// Cancels an audit or deletes its result. Returns it as it was, without the result for a
    /// principal who may not read the volume.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Forbidden`] if another user requested it and the
    /// principal does not administer the volume.
    pub async fn delete(self, volume: &str, id: AuditId) -> Result<AuditView, ControlError> {
        let now = self.request.now().await?;
        let database = &self.request.inner.database;
        let deleted = database
            .audits()
            .delete(self.request.principal(), volume, id, now);
        let (row, audit) = deleted.await?;
        self.view(&row, audit).await
    }

    async fn snapshot_to_audit(self, name: &str) -> Result<SnapshotRow, ControlError> {
        let need = Need::Have(Right::Read);
        let database = &self.request.inner.database;
        Ok(database
            .snapshots()
            .find(self.request.principal(), name, need)
            .await?)
    }

    /// The named units, each once.
    async fn compromised(self, names: &[String]) -> Result<Vec<UnitId>, ControlError> {
        if !(1..=AUDIT_UNITS_MAX).contains(&names.len()) {
            let reason =
                format!("name 1 to {AUDIT_UNITS_MAX} units that are assumed to be compromised");
            return Err(ControlError::invalid("units", reason));
        }
        let database = &self.request.inner.database;
        let (known, sets) = (
            database.units().all().await?,
            database.units().copysets().await?,
        );
        let mut compromised = BTreeSet::new();
        for name in names {
            let is_it = |unit: &&UnitRow| is_called(unit, name);
            let unit = known
                .iter()
                .find(is_it)
                .or_else(|| with_last_part(&known, name));
            let unit = unit.ok_or_else(|| no_unit(name))?;
            let has_it = |set: &Copyset| {
                let leaving = set.draining.iter().map(|leaving| leaving.unit);
                set.members
                    .iter()
                    .copied()
                    .chain(leaving)
                    .any(|member| member == unit.id)
            };
            if !sets.iter().any(has_it) {
                let reason = format!("unit {name} is in no copyset: it holds nothing of a volume");
                return Err(ControlError::conflict(reason));
            }
            compromised.insert(unit.id);
        }
        Ok(compromised.into_iter().collect())
    }

    /// The host that audits a volume, and whether that host has the volume: the host that has it
    /// attached, or had it last, or any that the principal may use.
    async fn auditor_of(self, row: &VolumeRow) -> Result<(PartyId, bool), ControlError> {
        let database = &self.request.inner.database;
        let since = self.request.unresponsive_before().await?;
        let hosts = database.hosts().all().await?;
        let is_there = |host: PartyId| {
            let mut hosts = hosts.iter().filter(|one| one.host == host);
            hosts.any(|host| host.heard.is_some_and(|heard| heard > since))
        };
        let attachments = database.attachments().of_volume(row.id).await?;
        let has_it = attachments
            .iter()
            .find(|attachment| is_there(attachment.host));
        if let Some(attachment) = has_it {
            return Ok((attachment.host, true));
        }
        let there = self.request.responsive_hosts().await?;
        let last = row.last_host.filter(|host| there.contains(host));
        Ok((last.unwrap_or(there[0]), false))
    }

    async fn view(self, row: &VolumeRow, audit: AuditOfVolume) -> Result<AuditView, ControlError> {
        // Without a recorded placement, the current one is shown.
        let (placement, journal_bytes) = match &audit.placement {
            Some(placement) => (placement.clone(), audit.journal_bytes),
            None => (
                self.placement(row, &audit.units).await?,
                self.journal_bytes(row.id, audit.snapshot).await?,
            ),
        };
        let result = audit.result.as_ref();
        let key = match result.and_then(|result| result.sealed.as_ref()) {
            Some(sealed) => self.key(row, &sealed.lineage).await?,
            None => None,
        };
        Ok(AuditView {
            key,
            placement,
            journal_bytes,
            row: audit,
        })
    }

    /// The wrapped data key of a lineage that a host has named, if it is the volume's, or one
    /// that the volume was cloned from.
    async fn key(self, row: &VolumeRow, lineage: &str) -> Result<Option<AuditKey>, ControlError> {
        let keys = self
            .request
            .inner
            .database
            .keys()
            .wrapped_keys_of(row.lineage)
            .await?;
        let mut keys = keys.into_iter();
        let Some(key) = keys.find(|key| key.lineage.to_string() == lineage) else {
            return Ok(None);
        };
        let wrapping = self.request.wrapping_keys().await?;
        let by = wrapping
            .into_iter()
            .find(|by| Some(by.id) == key.wrapped_by);
        let both = by.zip(key.wrapped);
        Ok(both.map(|(by, wrapped)| AuditKey {
            lineage: lineage.to_owned(),
            wrapped: wrapped.0,
            key: by.id.to_string(),
            name: by.name,
            parameters: by.parameters,
        }))
    }

    /// How much the journal of the volume's host holds beyond the newest version, in bytes, as last
    /// reported. For a snapshot nothing is missing.
    async fn journal_bytes(
        self,
        volume: VolumeId,
        snapshot: Option<SnapshotId>,
    ) -> Result<Option<u64>, ControlError> {
        if snapshot.is_some() {
            return Ok(None);
        }
        let database = &self.request.inner.database;
        let mut bytes = None;
        for attachment in database.attachments().of_volume(volume).await? {
            let Some(said) = database.hosts().report(attachment.host).await? else {
                continue;
            };
            let mut open = said.report.volumes.into_iter();
            let its = open.find(|open| open.attachment == attachment.id);
            bytes = bytes.max(its.map(|open| open.engine.journal_used_bytes));
        }
        Ok(bytes)
    }

    async fn placement(
        self,
        row: &VolumeRow,
        compromised: &[UnitId],
    ) -> Result<AuditPlacement, ControlError> {
        let size = row.erasure.map_or(row.replicas, Erasure::members);
        let data = row.erasure.map_or(1, Erasure::data);
        let all = self.request.inner.database.units().copysets().await?;
        let counted = counted(&all, (usize::from(size), data), compromised);
        let [units, compromised, sets] =
            counted.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Ok(AuditPlacement {
            units,
            compromised,
            replicas: row.replicas,
            erasure: row.erasure.map(|erasure| erasure.to_string()),
            scatter_width: u32::try_from(self.request.inner.scatter_width).unwrap_or(u32::MAX),
            sets,
            block_size: row.block_size.bytes() as u64,
        })
    }
}

/// Counts the units that hold segments with this many members, `data` of them with data; how many
/// of those are compromised; and the copysets. A draining unit holds what was written until it
/// began to drain, and is counted.
fn counted(all: &[Copyset], (members, data): (usize, u8), compromised: &[UnitId]) -> [usize; 3] {
    let is_such = |set: &&Copyset| set.members.len() == members && set.data == data;
    let (mut units, mut sets) = (BTreeSet::new(), 0);
    for set in all.iter().filter(is_such) {
        units.extend(set.draining.iter().map(|leaving| leaving.unit));
        units.extend(&set.members);
        sets += 1;
    }
    let are_compromised = compromised.iter().filter(|unit| units.contains(unit));
    [units.len(), are_compromised.count(), sets]
}

/// The only unit whose URL ends with this text.
fn with_last_part<'a>(units: &'a [UnitRow], name: &str) -> Option<&'a UnitRow> {
    let is_it = |unit: &&UnitRow| unit.url.rsplit('/').next() == Some(name);
    let mut found = units.iter().filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

impl HostRequest<'_> {
    /// Records the progress of an audit on `host`; `false` if the audit no longer exists.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn audit_reported(
        self,
        id: AuditId,
        report: &AuditReport,
    ) -> Result<bool, ControlError> {
        let now = self.note_loss(self.now().await)?;
        let database = &self.inner.database;
        let kept = database.audits().record_report(self.host, id, report, now);
        self.note_loss(kept.await.map_err(ControlError::from))
    }
}

#[cfg(test)]
mod tests {
    use base::CopysetId;
    use catalog::DrainingMember;

    use super::*;

    /// A draining unit was once audited without being counted as compromised.
    #[test]
    fn a_draining_unit_is_counted() {
        let unit = |number: u128| UnitId::from_u128(number);
        let set = |id: u16, members: &[u128], leaving: &[u128]| Copyset {
            id: CopysetId::new(id).expect("a number"),
            members: members.iter().map(|number| unit(*number)).collect(),
            data: 1,
            rebuilding: Vec::new(),
            draining: leaving
                .iter()
                .map(|number| DrainingMember {
                    place: 0,
                    unit: unit(*number),
                })
                .collect(),
            joined: 0,
        };
        let sets = [
            set(1, &[1, 2], &[]),
            set(2, &[2, 3], &[4]),
            set(3, &[1, 2, 3], &[5]),
        ];
        let compromised = [unit(4), unit(5)];
        assert_eq!(counted(&sets, (2, 1), &compromised), [4, 1, 2]);
        assert_eq!(counted(&sets, (3, 1), &compromised), [4, 1, 1]);
        assert_eq!(counted(&sets, (3, 2), &compromised), [0, 0, 0]);
    }
}
