//! Volumes that chains write beside their own: local replicas (docs/internals/replication.md).
//!
//! * Each has the same owner as the chain's volume. When it is transferred or deleted, no chain
//!   writes it any more.
//! * A volume is a replica of at most one other volume, and the relation has no cycle.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{ChainId, PartyId, VolumeId};
use sqlx::{AnyConnection, Row as _};

use crate::database::tenancy::rights::{check_volume, refuse_if_deleting};
use crate::database::{
    Chains, DatabaseError, Need, Principal, Right, VolumeRow, chains, rows, volumes,
};

/// The volumes that a chain writes, by their names in its policy.
pub type ChainVolumes = BTreeMap<String, VolumeId>;

fn refused(reason: String) -> DatabaseError {
    DatabaseError::Refused { reason }
}

/// Refuses volumes that chains of `volume` may not write.
pub(in crate::database) async fn check(
    change: &mut AnyConnection,
    principal: &Principal,
    volume: &VolumeRow,
    named: &ChainVolumes,
) -> Result<(), DatabaseError> {
    for (name, &id) in named {
        check_volume(&mut *change, principal, id, Need::Have(Right::Use)).await?;
        let replica = volumes::by_id(&mut *change, id).await?;
        refuse_if_deleting(&replica)?;
        if id == volume.id {
            return Err(refused(format!("{name:?} would be a replica of itself")));
        }
        if replica.owner != volume.owner {
            let reason =
                format!("{name:?} belongs to another owner and cannot be a replica of this");
            return Err(refused(reason));
        }
        for (other, ..) in writers(&mut *change, id).await? {
            if other != volume.id {
                let other = volumes::by_id(&mut *change, other).await?.name;
                return Err(refused(format!("{name:?} is a replica of {other:?}")));
            }
        }
        if leads_to(&mut *change, id, volume.id).await? {
            return Err(refused(format!(
                "the chains form a loop: writes to {name:?} also reach {:?}; choose another \
                 replica",
                volume.name
            )));
        }
    }
    Ok(())
}

/// The volumes whose chains write `volume`, with those chains.
async fn writers(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<Vec<(VolumeId, ChainId)>, DatabaseError> {
    let found = sqlx::query(
        "SELECT c.volume AS volume, c.id AS id FROM chain_volumes v \
         JOIN chains c ON c.id = v.chain WHERE v.volume = $1",
    )
    .bind(volume.to_string())
    .fetch_all(connection)
    .await?;
    let pair = |row| Ok((rows::spelled(row, "volume")?, rows::spelled(row, "id")?));
    found.iter().map(pair).collect()
}

/// Whether writes to `from` also reach `to`.
async fn leads_to(
    connection: &mut AnyConnection,
    from: VolumeId,
    to: VolumeId,
) -> Result<bool, DatabaseError> {
    let (mut seen, mut next) = (HashSet::new(), vec![from]);
    while let Some(volume) = next.pop() {
        if volume == to {
            return Ok(true);
        }
        if !seen.insert(volume) {
            continue;
        }
        let found = sqlx::query(
            "SELECT v.volume AS volume FROM chain_volumes v JOIN chains c ON c.id = v.chain \
             WHERE c.volume = $1",
        )
        .bind(volume.to_string())
        .fetch_all(&mut *connection)
        .await?;
        for row in &found {
            next.push(rows::spelled(row, "volume")?);
        }
    }
    Ok(false)
}

/// The volumes that a chain writes.
pub(in crate::database) async fn of(
    connection: &mut AnyConnection,
    chain: ChainId,
) -> Result<ChainVolumes, DatabaseError> {
    let found = sqlx::query("SELECT name, volume FROM chain_volumes WHERE chain = $1")
        .bind(chain.to_string())
        .fetch_all(connection)
        .await?;
    let pair = |row| Ok((row_name(row)?, rows::spelled(row, "volume")?));
    found.iter().map(pair).collect()
}

fn row_name(row: &sqlx::any::AnyRow) -> Result<String, DatabaseError> {
    Ok(row.try_get("name")?)
}

/// Records the volumes that a chain writes, which were checked.
pub(in crate::database) async fn set(
    change: &mut AnyConnection,
    chain: ChainId,
    named: &ChainVolumes,
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM chain_volumes WHERE chain = $1")
        .bind(chain.to_string())
        .execute(&mut *change)
        .await?;
    for (name, volume) in named {
        sqlx::query("INSERT INTO chain_volumes (chain, name, volume) VALUES ($1, $2, $3)")
            .bind(chain.to_string())
            .bind(name)
            .bind(volume.to_string())
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// Deletes the chains of a volume, and removes it from other chains.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "DELETE FROM chain_volumes WHERE chain IN (SELECT id FROM chains WHERE volume = $1)",
    )
    .bind(volume.to_string())
    .execute(&mut *change)
    .await?;
    for (writer, chain) in writers(&mut *change, volume).await? {
        sqlx::query("UPDATE chains SET revision = revision + 1 WHERE id = $1")
            .bind(chain.to_string())
            .execute(&mut *change)
            .await?;
        chains::request_again(&mut *change, writer).await?;
    }
    sqlx::query("DELETE FROM chain_volumes WHERE volume = $1")
        .bind(volume.to_string())
        .execute(change)
        .await?;
    Ok(())
}

impl Chains<'_> {
    /// The volumes that the chains on `host` write, by chain.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn volumes_on_host(
        self,
        host: PartyId,
    ) -> Result<HashMap<ChainId, ChainVolumes>, DatabaseError> {
        let found = sqlx::query(
            "SELECT v.* FROM chain_volumes v JOIN chains c ON c.id = v.chain WHERE EXISTS \
             (SELECT 1 FROM attachments a \
             WHERE a.volume = c.volume AND a.host = $1 AND a.state <> 'detached')",
        )
        .bind(host.to_string())
        .fetch_all(&self.database.reader)
        .await?;
        let mut all: HashMap<ChainId, ChainVolumes> = HashMap::new();
        for row in &found {
            let named = all.entry(rows::spelled(row, "chain")?).or_default();
            named.insert(row_name(row)?, rows::spelled(row, "volume")?);
        }
        Ok(all)
    }
}
