//! How many audits run, and how many results are kept, of a volume and of one owner's volumes.

use sqlx::AnyConnection;

use crate::database::rows::VolumeRow;
use crate::database::{DatabaseError, Principal};

/// The largest number of running audits of a volume: each has a host read all of it.
const UNDER_WAY_MAX: i64 = 4;

/// The largest number of running audits of one owner's volumes: a host runs one at a time, and
/// others wait.
const UNDER_WAY_OF_OWNER_MAX: i64 = 8;

/// The largest number of results that are kept of a volume. If there are more, those that ended
/// first are deleted, and those of the requesting user before others.
const KEPT_MAX: i64 = 16;

/// The largest number of results that are kept of one owner's volumes: each may be as long as a
/// report.
const KEPT_OF_OWNER_MAX: i64 = 64;

/// Deletes results so that there is room for one more, those of the requesting user first: a user
/// who may read a volume does not displace what its owner keeps.
pub(super) async fn make_room(
    change: &mut AnyConnection,
    principal: &Principal,
    row: &VolumeRow,
) -> Result<(), DatabaseError> {
    let principal = principal.party.id.to_string();
    sqlx::query(
        "DELETE FROM volume_audits WHERE volume = $1 AND ended_ms IS NOT NULL AND id NOT \
         IN (SELECT id FROM volume_audits WHERE volume = $1 AND ended_ms IS NOT NULL \
         ORDER BY CASE WHEN principal = $2 THEN 1 ELSE 0 END, ended_ms DESC, id LIMIT $3)",
    )
    .bind(row.id.to_string())
    .bind(&principal)
    .bind(KEPT_MAX - 1)
    .execute(&mut *change)
    .await?;
    let Some(owner) = row.owner else {
        return Ok(());
    };
    sqlx::query(
        "DELETE FROM volume_audits WHERE ended_ms IS NOT NULL \
         AND volume IN (SELECT id FROM volumes WHERE owner = $1) \
         AND id NOT IN (SELECT a.id FROM volume_audits a JOIN volumes v ON v.id = a.volume \
         WHERE v.owner = $1 AND a.ended_ms IS NOT NULL \
         ORDER BY CASE WHEN a.principal = $2 THEN 1 ELSE 0 END, a.ended_ms DESC, a.id LIMIT $3)",
    )
    .bind(owner.to_string())
    .bind(&principal)
    .bind(KEPT_OF_OWNER_MAX - 1)
    .execute(change)
    .await?;
    Ok(())
}

/// Refuses one more audit if enough are running, of the volume or of its owner's volumes.
pub(super) async fn check_room(
    change: &mut AnyConnection,
    row: &VolumeRow,
) -> Result<(), DatabaseError> {
    let of_volume = format!("volume {:?}", row.name);
    let of_volumes = "volumes of its owner's".to_owned();
    let owner = row.owner.map(|owner| owner.to_string());
    for (whose, what, id, count_max) in [
        ("= $1", of_volume, Some(row.id.to_string()), UNDER_WAY_MAX),
        (
            "IN (SELECT id FROM volumes WHERE owner = $1)",
            of_volumes,
            owner,
            UNDER_WAY_OF_OWNER_MAX,
        ),
    ] {
        let statement =
            format!("SELECT COUNT(*) FROM volume_audits WHERE ended_ms IS NULL AND volume {whose}");
        let under_way: i64 = sqlx::query_scalar(&statement)
            .bind(id)
            .fetch_one(&mut *change)
            .await?;
        if under_way >= count_max {
            return Err(DatabaseError::Refused {
                reason: format!(
                    "{under_way} audits of {what} are running; wait until one has ended"
                ),
            });
        }
    }
    Ok(())
}
