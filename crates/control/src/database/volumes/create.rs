//! Creating a volume, empty or from a snapshot: the transaction, which checks rights and the quota.
//! `volumes::making` checks names, sizes and capacity before it.

use api::host::Encryption;
use base::{BlockSize, Lineage, PartyId, ProjectId, SnapshotId, VolumeId};
use catalog::{Erasure, VersionKey};
use sqlx::AnyConnection;
use world::Millis;

use crate::database::catalog::version_rows;
use crate::database::rows::{self, SnapshotState, VolumeRow};
use crate::database::tenancy::principal;
use crate::database::tenancy::quotas::{Addition, account_of, check_quota};
use crate::database::tenancy::rights::{check_snapshot, volume_for};
use crate::database::volumes::by_id;
use crate::database::volumes::tags::{self, Tags};
use crate::database::{DatabaseError, Need, ObjectKind, Principal, Right, VolumeSettings, Volumes};

/// A new volume. The caller has checked its name and sizes and chosen its ids.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// The id.
    pub id: VolumeId,
    /// The name.
    pub name: String,
    /// The project that it is charged to; the principal's own by default.
    pub project: Option<String>,
    /// The tags.
    pub tags: Tags,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The block size.
    pub block_size: BlockSize,
    /// How it is encrypted.
    pub encryption: Encryption,
    /// The number of copies of each segment.
    pub replicas: u8,
    /// Erasure coding in place of copies.
    pub erasure: Option<Erasure>,
    /// The lineage that it writes. The first host that opens it creates the lineage's key.
    pub lineage: Lineage,
    /// The settings.
    pub settings: VolumeSettings,
    /// The snapshot that it is cloned from.
    pub origin: Option<SnapshotId>,
    /// When it is created.
    pub created: Millis,
}

/// The state at which a clone starts.
#[derive(Default)]
struct Start {
    head: Option<VersionKey>,
    epoch: u32,
    parent: Option<Lineage>,
}

impl Volumes<'_> {
    /// Creates a volume, empty or as a clone. A clone's epochs and version numbers are larger than
    /// those of its origin, so that along a chain of clones an epoch names one key, and a number
    /// one version.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`]; [`DatabaseError::NotFound`] (the snapshot, the project);
    /// [`DatabaseError::Forbidden`] if the snapshot may be seen and not read;
    /// [`DatabaseError::Quota`]; [`DatabaseError::Refused`] if the snapshot is not
    /// completed, or it is ambiguous which project the volume is charged to;
    /// [`DatabaseError::OtherRequest`].
    pub async fn insert(
        self,
        principal: &Principal,
        new: &NewVolume,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                if let Some(made) = principal.made_before(&mut change).await? {
                    let need = Need::See;
                    let seen = volume_for(&mut change, principal, &made, need).await;
                    return seen.map_err(principal::gone_since);
                }
                new.settings.refuse_unless_allowed(principal)?;
                let party = &principal.party;
                let account = account_of(&mut change, party, new.project.as_deref()).await?;
                refuse_name(&mut change, party.id, &new.name).await?;
                let more = Addition {
                    volumes: 1,
                    bytes: new.size_bytes,
                    snapshots: 0,
                };
                check_quota(&mut change, principal, Some(account), more).await?;
                if let Some(origin) = new.origin {
                    let need = Need::Have(Right::Read);
                    check_snapshot(&mut change, principal, origin, need).await?;
                }
                let start = match new.origin {
                    Some(origin) => start_of(&mut change, origin).await?,
                    None => Start::default(),
                };
                sqlx::query(
                    "INSERT INTO lineages (lineage, parent, epoch_first) VALUES ($1, $2, $3)",
                )
                .bind(new.lineage.to_string())
                .bind(start.parent.map(|parent| parent.to_string()))
                .bind(i64::from(start.epoch + 1))
                .execute(&mut *change)
                .await?;
                insert_row(&mut change, new, &start, party.id, account).await?;
                new.settings.write(&mut change, &new.id.to_string()).await?;
                tags::set(&mut change, &new.id.to_string(), &new.tags).await?;
                let target = format!("{} {}", new.id, new.name);
                principal.note(&mut change, "create", target).await?;
                principal.note_made(&mut change, new.id).await?;
                by_id(&mut change, new.id).await
            })
            .await
    }
}

/// Inserts the row of a volume of `owner` that is charged to the project `account`.
async fn insert_row(
    change: &mut AnyConnection,
    new: &NewVolume,
    start: &Start,
    owner: PartyId,
    account: ProjectId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO volumes (id, name, size_bytes, block_bytes, encryption, replicas, lineage, \
         epoch, number_last, head_volume, head_number, origin, created_ms, origin_volume, \
         origin_number, owner, project, data, parity) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $10, $11, $14, $15, \
         $16, $17)",
    )
    .bind(new.id.to_string())
    .bind(&new.name)
    .bind(new.size_bytes.cast_signed())
    .bind(new.block_size.bytes() as i64)
    .bind(new.encryption.as_str())
    .bind(i64::from(new.replicas))
    .bind(new.lineage.to_string())
    .bind(i64::from(start.epoch))
    .bind(start.head.map_or(0, |head| head.number).cast_signed())
    .bind(start.head.map(|head| head.volume.to_string()))
    .bind(start.head.map(|head| head.number.cast_signed()))
    .bind(new.origin.map(|origin| origin.to_string()))
    .bind(new.created.0)
    .bind(owner.to_string())
    .bind(account.to_string())
    .bind(new.erasure.map_or(1, |erasure| i64::from(erasure.data())))
    .bind(new.erasure.map_or(0, |erasure| i64::from(erasure.parity())))
    .execute(change)
    .await?;
    Ok(())
}

/// Refuses a name that another volume of the same owner has.
pub(in crate::database) async fn refuse_name(
    change: &mut AnyConnection,
    owner: PartyId,
    name: &str,
) -> Result<(), DatabaseError> {
    let taken =
        sqlx::query("SELECT id FROM volumes WHERE owner = $1 AND name = $2 AND deleting = 0")
            .bind(owner.to_string())
            .bind(name)
            .fetch_optional(change)
            .await?;
    match taken {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a volume named {name:?}"),
            remedy: "choose another name, or delete that volume first (`scree volume delete`)",
        }),
    }
}

/// The state at which a clone of `snapshot` starts.
async fn start_of(
    connection: &mut AnyConnection,
    snapshot: SnapshotId,
) -> Result<Start, DatabaseError> {
    let row = sqlx::query(snapshots!("WHERE s.id = $1"))
        .bind(snapshot.to_string())
        .fetch_optional(&mut *connection)
        .await?
        .ok_or_else(|| DatabaseError::not_found(ObjectKind::Snapshot, snapshot))?;
    let snapshot = rows::snapshot_row(&row)?;
    let refused = |reason| Err(DatabaseError::Refused { reason });
    match snapshot.state {
        SnapshotState::Completed(None) => Ok(Start::default()),
        SnapshotState::Completed(Some(key)) => {
            let version = version_rows::version_of(connection, key).await?;
            Ok(Start {
                head: Some(key),
                epoch: version.epoch,
                parent: Some(version.lineage),
            })
        }
        SnapshotState::Pending => refused(format!(
            "snapshot {:?} is still pending; wait until it is completed",
            snapshot.name
        )),
        SnapshotState::Error { reason } => refused(format!(
            "snapshot {:?} failed: {reason}; take another",
            snapshot.name
        )),
    }
}
