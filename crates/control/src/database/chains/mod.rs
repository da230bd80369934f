//! Chains: the filters between a volume and its users, as its owner defines them
//! (docs/reference/policies.md).
//!
//! * A volume has at most one chain for each VM, and one for all other VMs.
//! * To change a chain, a user must administer the volume and be able to read and write it: a
//!   filter may send its content elsewhere.
//! * Every change is a new generation of the desired state of the attachments concerned: a report
//!   on that generation says how the host applied the chain.

pub(in crate::database) mod chain_addresses;
pub(in crate::database) mod chain_volumes;

use std::collections::{BTreeSet, HashMap};

pub use api::host::ChainKey;
use base::{ChainId, PartyId, VolumeId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::attach::attachments;
use crate::database::tenancy::rights::{check_volume, refuse_if_deleting};
use crate::database::{
    ChainVolumes, Database, DatabaseError, Need, ObjectKind, Page, Principal, Right, VolumeRow,
    hosts, rows, volumes,
};

/// The largest number of chains of a volume: one for each VM that uses it in turn.
const CHAINS_MAX: i64 = 64;

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainRow {
    /// The id.
    pub id: ChainId,
    /// The volume.
    pub volume: VolumeId,
    /// The VM it applies to; `None`: all VMs without a chain of their own.
    pub vm: Option<String>,
    /// The policy, as its owner wrote it.
    pub policy: String,
    /// Grows by one with every change.
    pub revision: u64,
    /// When it was changed last.
    pub changed: Millis,
}

impl ChainRow {
    /// The current revision.
    #[must_use]
    pub fn key(&self) -> ChainKey {
        ChainKey {
            id: self.id,
            revision: self.revision,
        }
    }
}

/// A new chain, or a new revision of one.
#[derive(Debug, Clone)]
pub struct NewChain {
    /// The id, if it is new.
    pub id: ChainId,
    /// The volume.
    pub volume: VolumeId,
    /// The VM that it applies to; `None`: all VMs without a chain of their own.
    pub vm: Option<String>,
    /// The policy in TOML.
    pub policy: String,
    /// The other volumes that its filters write.
    pub volumes: ChainVolumes,
    /// The addresses of its remote replicas.
    pub addresses: BTreeSet<String>,
    /// When it was set.
    pub changed: Millis,
}

/// The chains of some volumes.
#[derive(Debug, Default)]
pub struct ChainRows(HashMap<(VolumeId, Option<String>), ChainRow>);

impl ChainRows {
    fn of(found: &[AnyRow]) -> Result<Self, DatabaseError> {
        let rows = found.iter().map(chain_row);
        let keyed = rows.map(|row| row.map(|row| ((row.volume, row.vm.clone()), row)));
        Ok(Self(keyed.collect::<Result<_, _>>()?))
    }

    /// The chain of a volume in `vm`, or without a VM.
    #[must_use]
    pub fn for_one(&self, volume: VolumeId, vm: Option<&str>) -> Option<&ChainRow> {
        let own = vm.and_then(|vm| self.0.get(&(volume, Some(vm.to_owned()))));
        own.or_else(|| self.0.get(&(volume, None)))
    }
}

/// Deletes the chains of a volume that changes its owner or is deleted.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    chain_volumes::forget(&mut *change, volume).await?;
    chain_addresses::forget(&mut *change, volume).await?;
    sqlx::query("DELETE FROM chains WHERE volume = $1")
        .bind(volume.to_string())
        .execute(change)
        .await?;
    Ok(())
}

/// The volume, if `principal` may set its chains.
async fn check(
    change: &mut AnyConnection,
    principal: &Principal,
    volume: VolumeId,
) -> Result<VolumeRow, DatabaseError> {
    for right in [Right::Administer, Right::Use] {
        check_volume(&mut *change, principal, volume, Need::Have(right)).await?;
    }
    let row = volumes::by_id(change, volume).await?;
    refuse_if_deleting(&row)?;
    Ok(row)
}

/// Begins a new generation of the attachments that a chain for `vm` may concern.
pub(in crate::database) async fn request_again(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    let hosts = sqlx::query(
        "UPDATE attachments SET generation = generation + 1 \
         WHERE volume = $1 AND desired = 1 AND state <> 'detached' RETURNING host",
    )
    .bind(volume.to_string())
    .fetch_all(&mut *change)
    .await?;
    for host in &hosts {
        let host: PartyId = rows::spelled(host, "host")?;
        hosts::assign(&mut *change, host).await?;
    }
    Ok(())
}

/// Chains of filters.
#[derive(Clone, Copy, Debug)]
pub struct Chains<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Chains<'_> {
    /// Refuses a principal who may not see the requests between a volume and its users: that takes
    /// the rights to administer and to read it.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`].
    pub async fn check_watcher(
        self,
        principal: &Principal,
        volume: VolumeId,
    ) -> Result<(), DatabaseError> {
        let connection = &mut *self.database.reader.acquire().await?;
        for right in [Right::Administer, Right::Read] {
            check_volume(&mut *connection, principal, volume, Need::Have(right)).await?;
        }
        Ok(())
    }
}

async fn by_id(connection: &mut AnyConnection, id: ChainId) -> Result<ChainRow, DatabaseError> {
    let row = sqlx::query("SELECT * FROM chains WHERE id = $1")
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?;
    chain_row(&row.ok_or_else(|| DatabaseError::not_found(ObjectKind::Chain, id))?)
}

impl Chains<'_> {
    /// Sets the chain of a volume for a VM. Returns whether it changed.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] (the volume); [`DatabaseError::Forbidden`] unless the
    /// principal administers the volume and may use it; [`DatabaseError::Refused`] if it is
    /// being deleted, or its filters would write a volume or address that they may not;
    /// [`DatabaseError::Quota`] of chains of one volume.
    pub async fn set(
        self,
        principal: &Principal,
        new: &NewChain,
    ) -> Result<(ChainRow, bool), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let volume = check(&mut change, principal, new.volume).await?;
                let vm = new.vm.as_deref().unwrap_or_default();
                let found = sqlx::query("SELECT * FROM chains WHERE volume = $1 AND vm = $2")
                    .bind(new.volume.to_string())
                    .bind(vm)
                    .fetch_optional(&mut *change)
                    .await?;
                let old = found.as_ref().map(chain_row).transpose()?;
                if let Some(old) = old.as_ref().filter(|old| old.policy == new.policy)
                    && chain_volumes::of(&mut change, old.id).await? == new.volumes
                {
                    // The stored addresses may be missing.
                    if chain_addresses::of(&mut change, old.id).await? != new.addresses {
                        chain_addresses::check(&mut change, &volume, &new.addresses).await?;
                        chain_addresses::set(&mut change, old.id, &new.addresses).await?;
                    }
                    return Ok((old.clone(), false));
                }
                chain_volumes::check(&mut change, principal, &volume, &new.volumes).await?;
                chain_addresses::check(&mut change, &volume, &new.addresses).await?;
                if old.is_none() {
                    refuse_too_many(&mut change, new.volume).await?;
                }
                let kept = sqlx::query(
                    "INSERT INTO chains (id, volume, vm, policy, revision, changed_ms) \
                 VALUES ($1, $2, $3, $4, 1, $5) ON CONFLICT (volume, vm) DO UPDATE SET \
                 policy = excluded.policy, changed_ms = excluded.changed_ms, \
                 revision = chains.revision + 1 RETURNING *",
                )
                .bind(new.id.to_string())
                .bind(new.volume.to_string())
                .bind(vm)
                .bind(&new.policy)
                .bind(new.changed.0)
                .fetch_one(&mut *change)
                .await?;
                let kept = chain_row(&kept)?;
                chain_volumes::set(&mut change, kept.id, &new.volumes).await?;
                chain_addresses::set(&mut change, kept.id, &new.addresses).await?;
                request_again(&mut change, new.volume).await?;
                let target = format!("{} {}: {}", volume.id, volume.name, described(&kept));
                principal.note(&mut change, "apply-chain", target).await?;
                Ok((kept, true))
            })
            .await
    }

    /// Deletes a chain: the volume is then served without filters, or through its chain for all
    /// VMs.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`] as
    /// [`Chains::set`].
    pub async fn delete(
        self,
        principal: &Principal,
        id: ChainId,
    ) -> Result<ChainRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let chain = administered(&mut change, principal, id).await?;
                let volume = check(&mut change, principal, chain.volume).await?;
                chain_volumes::set(&mut change, id, &ChainVolumes::new()).await?;
                chain_addresses::set(&mut change, id, &BTreeSet::new()).await?;
                sqlx::query("DELETE FROM chains WHERE id = $1")
                    .bind(id.to_string())
                    .execute(&mut *change)
                    .await?;
                request_again(&mut change, chain.volume).await?;
                let target = format!("{} {}: {}", volume.id, volume.name, described(&chain));
                principal.note(&mut change, "delete-chain", target).await?;
                Ok(chain)
            })
            .await
    }

    /// A chain of a volume that `principal` administers.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], also if they do not administer it.
    pub async fn find(self, principal: &Principal, id: ChainId) -> Result<ChainRow, DatabaseError> {
        administered(&mut *self.database.reader.acquire().await?, principal, id).await
    }

    /// The chains of the volumes that are attached to `host`.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn on_host(self, host: PartyId) -> Result<ChainRows, DatabaseError> {
        let found = sqlx::query(
            "SELECT c.* FROM chains c WHERE EXISTS (SELECT 1 FROM attachments a \
             WHERE a.volume = c.volume AND a.host = $1 AND a.state <> 'detached')",
        )
        .bind(host.to_string())
        .fetch_all(&self.database.reader)
        .await?;
        ChainRows::of(&found)
    }

    /// The chains of one volume.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn of_volume(self, volume: VolumeId) -> Result<ChainRows, DatabaseError> {
        let found = sqlx::query("SELECT * FROM chains WHERE volume = $1")
            .bind(volume.to_string())
            .fetch_all(&self.database.reader)
            .await?;
        ChainRows::of(&found)
    }

    /// The chains of the volumes that `principal` administers, or of one of them.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn page(
        self,
        principal: &Principal,
        volume: Option<VolumeId>,
        page: &Page,
    ) -> Result<(Vec<ChainRow>, Option<String>), DatabaseError> {
        let (found, next) = self.page_of_chains(principal, volume, page).await?;
        let rows = found.iter().map(chain_row);
        Ok((rows.collect::<Result<_, _>>()?, next))
    }
}

/// A chain, if `principal` administers its volume.
async fn administered(
    connection: &mut AnyConnection,
    principal: &Principal,
    id: ChainId,
) -> Result<ChainRow, DatabaseError> {
    let chain = by_id(&mut *connection, id).await?;
    match attachments::administers(connection, principal, chain.volume).await? {
        true => Ok(chain),
        false => Err(DatabaseError::not_found(ObjectKind::Chain, id)),
    }
}

/// Refuses one more chain if `volume` has too many. The limit is the same for all volumes, and
/// not part of a project's quota.
async fn refuse_too_many(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM chains WHERE volume = $1")
        .bind(volume.to_string())
        .fetch_one(change)
        .await?;
    if count < CHAINS_MAX {
        return Ok(());
    }
    Err(DatabaseError::Quota {
        reason: format!(
            "the volume has {count} chains, the largest number allowed; delete some first"
        ),
    })
}

/// The text of the chain in the audit log.
fn described(chain: &ChainRow) -> String {
    let vm = chain.vm.as_deref().map(|vm| format!(" in {vm}"));
    let (id, vm) = (chain.id, vm.unwrap_or_default());
    format!("{id}{vm}, revision {}", chain.revision)
}

fn chain_row(row: &AnyRow) -> Result<ChainRow, DatabaseError> {
    let vm: String = row.try_get("vm")?;
    Ok(ChainRow {
        id: rows::spelled(row, "id")?,
        volume: rows::spelled(row, "volume")?,
        vm: (!vm.is_empty()).then_some(vm),
        policy: row.try_get("policy")?,
        revision: rows::number(row, "revision")?,
        changed: Millis(row.try_get("changed_ms")?),
    })
}
