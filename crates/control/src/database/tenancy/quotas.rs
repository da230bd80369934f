//! Quotas: the project that an object is charged to, and whether its limits allow it.
//!
//! Quota is checked in the transaction that consumes it. Without a limit nothing is counted, so
//! that concurrent creations do not conflict.

use base::size::about_bytes;
use base::{PartyId, ProjectId};
use sqlx::{AnyConnection, Row as _};

use crate::database::rows::VolumeRow;
use crate::database::tenancy::projects::{limit, not_found};
use crate::database::{DatabaseError, Principal};

/// The objects and bytes that a request adds to a project.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::database) struct Addition {
    pub volumes: u64,
    pub snapshots: u64,
    pub bytes: u64,
}

/// The project that an object which `party` creates is charged to: the named one, or the only one
/// that the party is a member of, or the one with the party's name.
pub(in crate::database) async fn account_of(
    change: &mut AnyConnection,
    party: &crate::database::PartyRow,
    name: Option<&str>,
) -> Result<ProjectId, DatabaseError> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT j.id, j.name FROM projects j JOIN project_members m ON m.project = j.id \
         WHERE m.party = $1 ORDER BY j.name",
    )
    .bind(party.id.to_string())
    .fetch_all(change)
    .await?;
    let own = party.subject.name();
    let found = match name {
        Some(name) => rows.iter().find(|(id, one)| id == name || one == name),
        None => match rows.as_slice() {
            [one] => Some(one),
            several => several.iter().find(|(_, name)| name == own),
        },
    };
    match (found, name) {
        (Some((id, _)), _) => id.parse().map_err(|error| DatabaseError::Damaged {
            what: format!("a project's id: {error}"),
        }),
        (None, Some(name)) => Err(not_found(name)),
        (None, None) if rows.is_empty() => Err(DatabaseError::Refused {
            reason: format!(
                "{own} is a member of no project to charge this to; an administrator can change \
                 that: `scree project join PROJECT {own}`"
            ),
        }),
        (None, None) => {
            let names: Vec<&str> = rows.iter().map(|(_, name)| name.as_str()).collect();
            Err(DatabaseError::Refused {
                reason: format!(
                    "{own} is a member of several projects ({}); name the one to \
                     charge (`--project`)",
                    names.join(", ")
                ),
            })
        }
    }
}

/// Refuses to grow `volume` if its owner is not a member of its project any more. Administrators,
/// who decide on membership, may.
///
/// # Errors
/// [`DatabaseError::Forbidden`].
pub(in crate::database) async fn check_membership(
    change: &mut AnyConnection,
    principal: &Principal,
    volume: &VolumeRow,
) -> Result<(), DatabaseError> {
    let (Some(project), Some(owner)) = (volume.project, volume.owner) else {
        return Ok(());
    };
    if principal.party.is_administrator || is_member(change, project, owner).await? {
        return Ok(());
    }
    let (name, user) = (&volume.name, principal.party.subject.name());
    Err(DatabaseError::Forbidden {
        reason: match owner == principal.party.id {
            true => format!(
                "volume {name:?} is charged to project {:?}, of which you are no longer a member, so \
                 it cannot grow or get snapshots; charge it to another project first: \
                 `scree volume transfer {name} {user} --project PROJECT`",
                volume.project_name.as_deref().unwrap_or_default()
            ),
            false => format!(
                "volume {name:?} is charged to a project of which its owner is no longer a member, \
                 so it cannot grow or get snapshots; the owner can charge it to another project: \
                 `scree volume transfer {name} {} --project PROJECT`",
                volume.owner_name.as_deref().unwrap_or("OWNER")
            ),
        },
    })
}

/// Refuses what would exceed the limits of `project`. A principal who is not a member learns only
/// that.
///
/// # Errors
/// [`DatabaseError::Quota`].
pub(in crate::database) async fn check_quota(
    change: &mut AnyConnection,
    principal: &Principal,
    project: Option<ProjectId>,
    more: Addition,
) -> Result<(), DatabaseError> {
    let Some(project) = project else {
        return Ok(());
    };
    let row = sqlx::query("SELECT * FROM projects WHERE id = $1")
        .bind(project.to_string())
        .fetch_optional(&mut *change)
        .await?;
    let Some(row) = row else { return Ok(()) };
    let name: String = row.try_get("name")?;
    for resource in Resource::ALL {
        let more = resource.added_by(more);
        let limit = limit(&row, resource.limit_column())?.filter(|_| more > 0);
        let Some(limit) = limit else { continue };
        let has: i64 = sqlx::query_scalar(resource.count_statement())
            .bind(project.to_string())
            .fetch_one(&mut *change)
            .await?;
        let has = has.cast_unsigned();
        if has.saturating_add(more) > limit {
            let is_insider = principal.party.is_administrator
                || is_member(&mut *change, project, principal.party.id).await?;
            let reason = match is_insider {
                true => resource.exceeded(&name, has, limit, more),
                false => "the quota of its project is exhausted; the owner can delete something, \
                          or ask an administrator for a larger quota"
                    .to_owned(),
            };
            return Err(DatabaseError::Quota { reason });
        }
    }
    Ok(())
}

/// What the quota of a project limits.
#[derive(Clone, Copy)]
enum Resource {
    Volumes,
    Snapshots,
    Bytes,
}

impl Resource {
    const ALL: [Self; 3] = [Self::Volumes, Self::Snapshots, Self::Bytes];

    /// The column of `projects` with the limit.
    fn limit_column(self) -> &'static str {
        match self {
            Self::Volumes => "volumes_max",
            Self::Snapshots => "snapshots_max",
            Self::Bytes => "bytes_max",
        }
    }

    /// The statement that counts what the project $1 has.
    fn count_statement(self) -> &'static str {
        match self {
            Self::Volumes => "SELECT COUNT(*) FROM volumes WHERE project = $1 AND deleting = 0",
            Self::Snapshots => "SELECT COUNT(*) FROM snapshots WHERE project = $1",
            Self::Bytes => {
                "SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM volumes \
                 WHERE project = $1 AND deleting = 0"
            }
        }
    }

    fn added_by(self, addition: Addition) -> u64 {
        match self {
            Self::Volumes => addition.volumes,
            Self::Snapshots => addition.snapshots,
            Self::Bytes => addition.bytes,
        }
    }

    /// Why a project that has `has` of this cannot have `more`.
    fn exceeded(self, project: &str, has: u64, limit: u64, more: u64) -> String {
        let (of, spell): (_, fn(u64) -> String) = match self {
            Self::Volumes => (" volumes", |number| number.to_string()),
            Self::Snapshots => (" snapshots", |number| number.to_string()),
            Self::Bytes => ("", about_bytes),
        };
        format!(
            "project {project:?} has {}{of}, its quota is {}, and this needs {} more; delete \
             something, or ask an administrator for a larger quota (`scree project quota {project} \
             …`)",
            spell(has),
            spell(limit),
            spell(more)
        )
    }
}

async fn is_member(
    connection: &mut AnyConnection,
    project: ProjectId,
    party: PartyId,
) -> Result<bool, DatabaseError> {
    let found = sqlx::query("SELECT 1 FROM project_members WHERE project = $1 AND party = $2")
        .bind(project.to_string())
        .bind(party.to_string())
        .fetch_optional(connection)
        .await?;
    Ok(found.is_some())
}
