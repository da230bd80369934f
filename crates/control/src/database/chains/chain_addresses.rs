//! Remote replicas of chains: network addresses.
//!
//! An address holds the replica of at most one volume of an owner, since a second one would
//! overwrite it. Chains of other owners are not considered: a refusal would reveal them.

use std::collections::BTreeSet;

use base::{ChainId, VolumeId};
use sqlx::{AnyConnection, Row as _};

use crate::database::{DatabaseError, VolumeRow, rows, volumes};

/// Refuses addresses that chains of another volume of the same owner write.
pub(in crate::database) async fn check(
    change: &mut AnyConnection,
    volume: &VolumeRow,
    addresses: &BTreeSet<String>,
) -> Result<(), DatabaseError> {
    for address in addresses {
        let found = sqlx::query(
            "SELECT c.volume AS volume FROM chain_addresses a \
             JOIN chains c ON c.id = a.chain WHERE a.address = $1",
        )
        .bind(address)
        .fetch_all(&mut *change)
        .await?;
        for row in &found {
            let other = volumes::by_id(&mut *change, rows::spelled(row, "volume")?).await?;
            if other.id != volume.id && other.owner == volume.owner {
                return Err(DatabaseError::Refused {
                    reason: format!(
                        "{address} already holds a replica of {:?}; choose another \
                         address",
                        other.name
                    ),
                });
            }
        }
    }
    Ok(())
}

/// The addresses of a chain's replicas.
pub(in crate::database) async fn of(
    change: &mut AnyConnection,
    chain: ChainId,
) -> Result<BTreeSet<String>, DatabaseError> {
    let found = sqlx::query("SELECT address FROM chain_addresses WHERE chain = $1")
        .bind(chain.to_string())
        .fetch_all(change)
        .await?;
    let addresses = found.iter().map(|row| row.try_get("address"));
    Ok(addresses.collect::<Result<_, _>>()?)
}

/// Records the addresses of a chain's replicas, which were checked.
pub(in crate::database) async fn set(
    change: &mut AnyConnection,
    chain: ChainId,
    addresses: &BTreeSet<String>,
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM chain_addresses WHERE chain = $1")
        .bind(chain.to_string())
        .execute(&mut *change)
        .await?;
    for address in addresses {
        sqlx::query("INSERT INTO chain_addresses (chain, address) VALUES ($1, $2)")
            .bind(chain.to_string())
            .bind(address)
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// Deletes the addresses of the chains of a volume.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "DELETE FROM chain_addresses WHERE chain IN (SELECT id FROM chains WHERE volume = $1)",
    )
    .bind(volume.to_string())
    .execute(change)
    .await?;
    Ok(())
}
