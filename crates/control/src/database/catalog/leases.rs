//! Leases: who may write a volume, and what it may write.

use std::ops::Range;

use api::host::catalog_calls::{Acquire, ReserveSerials};
use base::{Lineage, PartyId, Sequence, SnapshotId, VolumeId};
use catalog::{Lease, Leftovers, StoredVersion, VersionCommit, VersionKey};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::attach::{journals, reports};
use crate::database::catalog::{frees, ledger, version_rows, versions};
use crate::database::keys::lineages;
use crate::database::repair::{degraded, in_flight};
use crate::database::rows::{self, VolumeRow};
use crate::database::{Catalog, DatabaseError, ObjectKind, hosts, snapshots};

/// By how much [`Catalog::move_ahead`] raises every epoch: far more leases than a volume gets
/// between two backups, and 1/256 of all epochs.
const EPOCHS_AHEAD: u32 = 1 << 16;

/// By how much [`Catalog::move_ahead`] raises the next segment serial: 128 TiB of segments of
/// 8 MiB.
const SERIALS_AHEAD: u32 = 1 << 24;

/// The holder of a lease, and what fences it.
struct Holder {
    epoch: u32,
    head: Option<VersionKey>,
    number_last: u64,
    deleting: bool,
    lineage: Lineage,
    /// Whether the host has it attached and has already held a lease for that attachment.
    is_attached: bool,
}

/// The error for a deleted volume: its writer is fenced, as by another writer.
fn deleted(volume: VolumeId) -> DatabaseError {
    DatabaseError::Fenced {
        volume,
        reason: "the volume was deleted".to_owned(),
    }
}

/// The holder of the lease of `volume`, for `host`. A volume that the host never had does not exist
/// for it.
async fn holder(
    connection: &mut AnyConnection,
    volume: VolumeId,
    host: PartyId,
) -> Result<Holder, DatabaseError> {
    let row = sqlx::query(
        "SELECT v.epoch, v.head_volume, v.head_number, v.number_last, v.deleting, v.lineage, \
         (SELECT MAX(CASE WHEN a.state <> 'detached' AND a.epoch IS NOT NULL THEN 1 ELSE 0 END) \
             FROM attachments a WHERE a.volume = v.id AND a.host = $2 \
             AND a.access = 'read-write') AS attached \
         FROM volumes v WHERE v.id = $1",
    )
    .bind(volume.to_string())
    .bind(host.to_string())
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| deleted(volume))?;
    let attached: Option<i64> = row.try_get("attached")?;
    Ok(Holder {
        epoch: rows::small(&row, "epoch")?,
        head: rows::version_key(&row, "head_volume", "head_number")?,
        number_last: rows::number(&row, "number_last")?,
        deleting: rows::flag(&row, "deleting")?,
        lineage: rows::spelled(&row, "lineage")?,
        is_attached: attached.ok_or_else(|| deleted(volume))? == 1,
    })
}

/// Refuses a host that does not hold lease `epoch` on `volume`.
pub(in crate::database) async fn must_hold(
    connection: &mut AnyConnection,
    volume: VolumeId,
    host: PartyId,
    epoch: u32,
) -> Result<(), DatabaseError> {
    holder_of(connection, volume, host, epoch).await.map(drop)
}

/// The lineage that `host` writes to `volume` under lease `epoch`, if it holds that.
pub(in crate::database) async fn holder_of(
    connection: &mut AnyConnection,
    volume: VolumeId,
    host: PartyId,
    epoch: u32,
) -> Result<Lineage, DatabaseError> {
    let holder = holder(connection, volume, host).await?;
    holder.check_epoch(volume, epoch)?;
    Ok(holder.lineage)
}

impl Holder {
    fn check_epoch(&self, volume: VolumeId, epoch: u32) -> Result<(), DatabaseError> {
        let reason = match self.epoch == epoch {
            true if self.is_attached => return Ok(()),
            true => "it is not attached to this host any more".to_owned(),
            false => format!("lease {} has replaced lease {epoch}", self.epoch),
        };
        Err(DatabaseError::Fenced { volume, reason })
    }

    /// Refuses a version that does not follow the head of its volume.
    fn check_successor(&self, version: &StoredVersion) -> Result<(), DatabaseError> {
        let volume = version.key.volume;
        if self.head != version.parent || self.deleting {
            let reason = match self.head {
                Some(head) => format!("its head is now {} of {}", head.number, head.volume),
                None => "it has no head now".to_owned(),
            };
            return Err(DatabaseError::Fenced { volume, reason });
        }
        if version.key.number <= self.number_last {
            let reason = format!(
                "version {} of {volume} cannot follow version {}",
                version.key.number, self.number_last
            );
            return Err(DatabaseError::Refused { reason });
        }
        Ok(())
    }
}

impl Catalog<'_> {
    /// Moves every volume's epoch, the next segment serial and the count of leases beyond all that
    /// a newer copy of this database, now lost, may have granted. `leases` is the largest
    /// count that any unit knows.
    ///
    /// Each volume then has to be opened once on the host that had it last: its journal may be
    /// newer than this database.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn move_ahead(
        self,
        leases: u64,
        host: PartyId,
        now: Millis,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                sqlx::query("UPDATE volumes SET epoch = epoch + $1 WHERE deleting = 0")
                    .bind(i64::from(EPOCHS_AHEAD))
                    .execute(&mut *change)
                    .await?;
                reports::reopen_all(&mut change, host, now).await?;
                // The members' states in this database may be outdated, and hosts may know of
                // members that it does not have.
                degraded::compare_all(&mut change).await?;
                degraded::renew_joins(&mut change).await?;
                hosts::assign_all(&mut change).await?;
                // A unit that is unavailable now may know of more leases.
                self.skip(&mut change, SERIALS_AHEAD, leases, EPOCHS_AHEAD)
                    .await
            })
            .await
    }

    /// What the last leases of a volume that is being deleted left unfinished.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn leftovers(self, volume: VolumeId) -> Result<Leftovers, DatabaseError> {
        let mut moment = self.database.moment().await?;
        ledger::leftovers_of(&mut moment, volume, u32::MAX).await
    }

    /// See [`catalog::Catalog::acquire`].
    pub(in crate::database) async fn acquire(
        self,
        host: PartyId,
        call: &Acquire,
    ) -> Result<Lease, DatabaseError> {
        let volume = call.volume;
        self.database
            .transaction()
            .run(|mut change| async move {
                let row = row_of(&mut change, volume).await?;
                let number_last = rows::number(&row, "number_last")?;
                let journal_next = rows::number(&row, "journal_next")?;
                let restores = rows::number(&row, "restores")?;
                let journal = journals::of_row(&row)?;
                let VolumeRow {
                    epoch,
                    head,
                    size_bytes,
                    block_size,
                    replicas,
                    erasure,
                    lineage,
                    ..
                } = rows::volume_row(&row)?;
                let epoch = begin_epoch(&mut change, volume, epoch).await?;
                reports::note_lease(&mut change, volume, host, epoch).await?;
                let journal = match journal {
                    Some(last) => Some(
                        last.for_lease(&mut change, volume, host, call.journals)
                            .await?,
                    ),
                    None => None,
                };
                snapshots::fail_taken(&mut change, volume).await?;
                self.count_lease(&mut change).await?;
                lineages::note_salt(&mut change, lineage, epoch, call.salt).await?;
                let keys = lineages::keys_of(&mut change, lineage).await?;
                let head = match head {
                    Some(key) => Some(version_rows::version_of(&mut change, key).await?),
                    None => None,
                };
                let leftovers = ledger::leftovers_of(&mut change, volume, epoch).await?;
                Ok(Lease {
                    volume,
                    epoch,
                    size_bytes,
                    block_size,
                    replicas,
                    erasure,
                    keys,
                    head,
                    journal_next,
                    journal,
                    number_last,
                    leftovers,
                    restores: Some(restores),
                })
            })
            .await
    }

    /// See [`catalog::Catalog::commit`].
    pub(in crate::database) async fn commit_version(
        self,
        host: PartyId,
        commit: &VersionCommit,
        now: Millis,
    ) -> Result<(), DatabaseError> {
        let version = &commit.version;
        let volume = version.key.volume;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let holder = holder(&mut change, volume, host).await?;
                holder.check_epoch(volume, version.epoch)?;
                if version.lineage != holder.lineage {
                    // Otherwise a host could claim any key for its own volume.
                    let reason = format!("{volume} does not write as {}", version.lineage);
                    return Err(DatabaseError::Refused { reason });
                }
                if holder.head == Some(version.key) {
                    // The answer to an earlier call was lost.
                    let there = version_rows::version_of(&mut change, version.key).await?;
                    if there == *version {
                        return Ok(());
                    }
                }
                holder.check_successor(version)?;
                let degraded = commit.degraded.iter().map(|share| share.segment);
                let open = commit.open_segments.iter().map(|open| open.segment);
                ledger::check_segments(&mut change, volume, degraded.chain(open).collect()).await?;
                versions::insert(&mut change, version).await?;
                set_head(&mut change, version, &commit.pins).await?;
                self.database
                    .repair()
                    .record_missed(&mut change, host, commit, now)
                    .await?;
                ledger::note_open_segments(
                    &mut change,
                    volume,
                    version.epoch,
                    &commit.open_segments,
                )
                .await?;
                ledger::note_serials_used(&mut change, volume, version.epoch, commit.serial_next)
                    .await?;
                frees::free_closed(&mut change, volume).await
            })
            .await
    }

    /// See [`catalog::Catalog::reserve_serials`].
    pub(in crate::database) async fn reserve_serials(
        self,
        host: PartyId,
        call: &ReserveSerials,
    ) -> Result<Range<u64>, DatabaseError> {
        let ReserveSerials {
            volume,
            epoch,
            count,
        } = *call;
        self.database
            .transaction()
            .run(|mut change| async move {
                holder(&mut change, volume, host)
                    .await?
                    .check_epoch(volume, epoch)?;
                in_flight::heed_sets(&mut change).await?;
                let range = self.take_serials(&mut change, count).await?;
                if !range.is_empty() {
                    sqlx::query(
                        "INSERT INTO serial_ranges (first, end_before, volume, epoch) \
                 VALUES ($1, $2, $3, $4)",
                    )
                    .bind(range.start.cast_signed())
                    .bind(range.end.cast_signed())
                    .bind(volume.to_string())
                    .bind(i64::from(epoch))
                    .execute(&mut *change)
                    .await?;
                }
                Ok(range)
            })
            .await
    }

    /// See [`catalog::Catalog::finish_sweep`].
    pub(in crate::database) async fn finish_sweep(
        self,
        host: PartyId,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                holder(&mut change, volume, host)
                    .await?
                    .check_epoch(volume, epoch)?;
                for statement in [
                    "DELETE FROM open_segments WHERE volume = $1 AND epoch < $2",
                    "DELETE FROM serial_ranges WHERE volume = $1 AND epoch < $2",
                ] {
                    sqlx::query(statement)
                        .bind(volume.to_string())
                        .bind(i64::from(epoch))
                        .execute(&mut *change)
                        .await?;
                }
                frees::free_closed(&mut change, volume).await
            })
            .await
    }
}

async fn row_of(connection: &mut AnyConnection, volume: VolumeId) -> Result<AnyRow, DatabaseError> {
    sqlx::query(volumes!("WHERE v.id = $1"))
        .bind(volume.to_string())
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| DatabaseError::not_found(ObjectKind::Volume, volume))
}

/// Begins the epoch after `last`, which is returned.
async fn begin_epoch(
    change: &mut AnyConnection,
    volume: VolumeId,
    last: u32,
) -> Result<u32, DatabaseError> {
    let epoch = last + 1;
    if epoch >= Sequence::EPOCH_END {
        return Err(DatabaseError::Refused {
            reason: format!(
                "{volume} has been opened {last} times, and its key cannot be used for more; \
                 clone a snapshot from before it was opened last, and copy that clone into \
                 a new volume"
            ),
        });
    }
    sqlx::query("UPDATE volumes SET epoch = $1 WHERE id = $2")
        .bind(i64::from(epoch))
        .bind(volume.to_string())
        .execute(change)
        .await?;
    Ok(epoch)
}

/// Makes `version` the head of its volume, and completes the snapshots that it `pins`.
async fn set_head(
    change: &mut AnyConnection,
    version: &StoredVersion,
    pins: &[SnapshotId],
) -> Result<(), DatabaseError> {
    let volume = version.key.volume;
    let number = version.key.number.cast_signed();
    sqlx::query(
        "UPDATE volumes SET head_volume = $1, head_number = $2, number_last = $2, \
         journal_next = $3 WHERE id = $1",
    )
    .bind(volume.to_string())
    .bind(number)
    .bind(version.journal_next.cast_signed())
    .execute(&mut *change)
    .await?;
    for pin in pins {
        // A snapshot that was deleted in the meantime pins nothing.
        sqlx::query(
            "UPDATE snapshots SET state = 'completed', version_volume = $1, \
             version_number = $2 WHERE id = $3 AND volume = $1 AND state = 'pending'",
        )
        .bind(volume.to_string())
        .bind(number)
        .bind(pin.to_string())
        .execute(&mut *change)
        .await?;
    }
    Ok(())
}
