//! Projects: their members and quotas. [`quotas`](crate::database::tenancy::quotas) checks what is
//! added to them.

use std::collections::{BTreeMap, BTreeSet};

use auth::Subject;
use base::{PartyId, ProjectId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::tenancy::{party_rows, principal};
use crate::database::{Database, DatabaseError, ObjectKind, Principal, rows};

/// How much a project may have; none is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// How many volumes.
    pub volumes_max: Option<u64>,
    /// How many snapshots.
    pub snapshots_max: Option<u64>,
    /// How many bytes its volumes may have together, as their guests see them.
    pub bytes_max: Option<u64>,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRow {
    /// The id.
    pub id: ProjectId,
    /// The name.
    pub name: String,
    /// How much it may have.
    pub quota: Quota,
    /// How many volumes it has.
    pub volumes: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// How many bytes its volumes have together.
    pub bytes: u64,
    /// The names of its members.
    pub members: Vec<String>,
    /// When it was created.
    pub created: Millis,
}

/// A project to be created.
#[derive(Debug, Clone)]
pub struct NewProject {
    /// The id.
    pub id: ProjectId,
    /// The name.
    pub name: String,
    /// How much it may have.
    pub quota: Quota,
}

const ROWS: &str = "SELECT j.*, \
     (SELECT COUNT(*) FROM volumes v WHERE v.project = j.id AND v.deleting = 0) AS volumes, \
     (SELECT CAST(COALESCE(SUM(v.size_bytes), 0) AS BIGINT) FROM volumes v \
         WHERE v.project = j.id AND v.deleting = 0) AS bytes, \
     (SELECT COUNT(*) FROM snapshots s WHERE s.project = j.id) AS snapshots FROM projects j";

/// Only those that the principal is a member of, or all for an administrator.
const SEEN: &str = "($2 = 1 OR EXISTS (SELECT 1 FROM project_members m \
     WHERE m.project = j.id AND m.party = $1))";

pub(in crate::database) fn limit(row: &AnyRow, column: &str) -> Result<Option<u64>, DatabaseError> {
    let limit: Option<i64> = row.try_get(column)?;
    Ok(limit.map(i64::cast_unsigned))
}

fn project_row(row: &AnyRow) -> Result<ProjectRow, DatabaseError> {
    Ok(ProjectRow {
        id: rows::spelled(row, "id")?,
        name: row.try_get("name")?,
        quota: Quota {
            volumes_max: limit(row, "volumes_max")?,
            snapshots_max: limit(row, "snapshots_max")?,
            bytes_max: limit(row, "bytes_max")?,
        },
        volumes: rows::number(row, "volumes")?,
        snapshots: rows::number(row, "snapshots")?,
        bytes: rows::number(row, "bytes")?,
        members: Vec::new(),
        created: Millis(row.try_get("created_ms")?),
    })
}

pub(in crate::database) fn not_found(name: &str) -> DatabaseError {
    DatabaseError::not_found(ObjectKind::Project, format_args!("{name:?}"))
}

/// Projects and their quotas.
#[derive(Clone, Copy, Debug)]
pub struct Projects<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Projects<'_> {
    /// Creates a project.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`].
    pub async fn insert(
        self,
        principal: &Principal,
        new: &NewProject,
    ) -> Result<ProjectRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                if let Some(made) = principal.made_before(&mut change).await? {
                    let seen = find(&mut change, principal, &made).await;
                    return seen.map_err(principal::gone_since);
                }
                insert(&mut change, new.id, &new.name, principal.by.at).await?;
                set_quota(&mut change, new.id, new.quota).await?;
                principal
                    .note(&mut change, "add-project", &new.name)
                    .await?;
                principal.note_made(&mut change, new.id).await?;
                find(&mut change, principal, &new.id.to_string()).await
            })
            .await
    }

    /// The projects that `principal` may see: after `after`, in the order of their
    /// ids, at most `count_max`.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(
        self,
        principal: &Principal,
        after: &str,
        count_max: u32,
    ) -> Result<Vec<ProjectRow>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let found = sqlx::query(&format!(
            "{ROWS} WHERE {SEEN} AND j.id > $3 ORDER BY j.id LIMIT $4"
        ))
        .bind(principal.party.id.to_string())
        .bind(i64::from(principal.party.is_administrator))
        .bind(after)
        .bind(i64::from(count_max))
        .fetch_all(&mut *moment)
        .await?;
        let mut members = BTreeMap::<String, Vec<String>>::new();
        let (first, last) = ends(&found)?;
        for row in sqlx::query(
            "SELECT m.project, p.name FROM project_members m JOIN parties p ON p.id = m.party \
             WHERE m.project >= $1 AND m.project <= $2 ORDER BY p.name",
        )
        .bind(first)
        .bind(last)
        .fetch_all(&mut *moment)
        .await?
        {
            let of = members.entry(row.try_get("project")?).or_default();
            of.push(row.try_get("name")?);
        }
        let projects = found.iter().map(|row| {
            let project = project_row(row)?;
            let members = members.remove(&project.id.to_string());
            Ok(ProjectRow {
                members: members.unwrap_or_default(),
                ..project
            })
        });
        projects.collect()
    }

    /// The project with this name or id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn get(self, principal: &Principal, name: &str) -> Result<ProjectRow, DatabaseError> {
        let mut moment = self.database.moment().await?;
        find(&mut moment, principal, name).await
    }

    /// Sets how much a project may have. What it has already, it keeps.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn set_quota(
        self,
        principal: &Principal,
        name: &str,
        quota: Quota,
    ) -> Result<ProjectRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let project = find(&mut change, principal, name).await?;
                set_quota(&mut change, project.id, quota).await?;
                principal
                    .note(&mut change, "set-quota", &project.name)
                    .await?;
                find(&mut change, principal, name).await
            })
            .await
    }

    /// Adds or removes a member of a project.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn set_member(
        self,
        principal: &Principal,
        name: &str,
        user: &Subject,
        is_member: bool,
    ) -> Result<ProjectRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let project = find(&mut change, principal, name).await?;
                let party = party_rows::party_of(&mut change, user).await?;
                let action = if is_member {
                    join(&mut change, project.id, party.id).await?;
                    "join"
                } else {
                    sqlx::query("DELETE FROM project_members WHERE project = $1 AND party = $2")
                        .bind(project.id.to_string())
                        .bind(party.id.to_string())
                        .execute(&mut *change)
                        .await?;
                    "leave"
                };
                let target = format!("{} {}", project.name, user.name());
                principal.note(&mut change, action, target).await?;
                find(&mut change, principal, name).await
            })
            .await
    }

    /// The projects that a user is in.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn of_party(self, party: PartyId) -> Result<BTreeSet<ProjectId>, DatabaseError> {
        sqlx::query("SELECT project FROM project_members WHERE party = $1")
            .bind(party.to_string())
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| rows::spelled(row, "project"))
            .collect()
    }

    /// Deletes a project that has nothing.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it has something.
    pub async fn delete(
        self,
        principal: &Principal,
        name: &str,
    ) -> Result<ProjectRow, DatabaseError> {
        self.database.transaction_for(principal).run(|mut change| async move {
            let project = find(&mut change, principal, name).await?;
            // A volume that is being deleted still refers to the project.
            let volumes: i64 =
                sqlx::query_scalar("SELECT COUNT(*) FROM volumes WHERE project = $1")
                    .bind(project.id.to_string())
                    .fetch_one(&mut *change)
                    .await?;
            if volumes > 0 || project.snapshots > 0 {
                return Err(DatabaseError::Refused {
                    reason: format!(
                        "project {:?} has {volumes} volumes and {} snapshots; delete those first, \
                         or give the volumes to others",
                        project.name, project.snapshots
                    ),
                });
            }
            sqlx::query("DELETE FROM projects WHERE id = $1")
                .bind(project.id.to_string())
                .execute(&mut *change)
                .await?;
            principal
                .note(&mut change, "delete-project", &project.name)
                .await?;
            Ok(project)
        }).await
    }
}

/// The first and the last id of a page of rows that are ordered by id.
pub(in crate::database) fn ends(rows: &[AnyRow]) -> Result<(String, String), DatabaseError> {
    let id = |row: Option<&AnyRow>| match row {
        Some(row) => Ok(row.try_get("id")?),
        None => Ok::<_, DatabaseError>(String::new()),
    };
    Ok((id(rows.first())?, id(rows.last())?))
}

/// Creates a project without limits.
///
/// # Errors
/// [`DatabaseError::Taken`].
pub(in crate::database) async fn insert(
    change: &mut AnyConnection,
    id: ProjectId,
    name: &str,
    created: Millis,
) -> Result<(), DatabaseError> {
    let taken = sqlx::query("SELECT id FROM projects WHERE name = $1")
        .bind(name)
        .fetch_optional(&mut *change)
        .await?;
    if taken.is_some() {
        return Err(DatabaseError::Taken {
            what: format!("a project named {name:?}"),
            remedy: "choose another name, or add the user to that project (`scree user add USER \
                     --project PROJECT`, `scree project join`)",
        });
    }
    sqlx::query("INSERT INTO projects (id, name, created_ms) VALUES ($1, $2, $3)")
        .bind(id.to_string())
        .bind(name)
        .bind(created.0)
        .execute(change)
        .await?;
    Ok(())
}

async fn set_quota(
    change: &mut AnyConnection,
    project: ProjectId,
    quota: Quota,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE projects SET volumes_max = $1, snapshots_max = $2, bytes_max = $3 WHERE id = $4",
    )
    .bind(quota.volumes_max.map(u64::cast_signed))
    .bind(quota.snapshots_max.map(u64::cast_signed))
    .bind(quota.bytes_max.map(u64::cast_signed))
    .bind(project.to_string())
    .execute(change)
    .await?;
    Ok(())
}

/// Adds a member.
pub(in crate::database) async fn join(
    change: &mut AnyConnection,
    project: ProjectId,
    party: PartyId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO project_members (project, party) VALUES ($1, $2) ON CONFLICT DO NOTHING",
    )
    .bind(project.to_string())
    .bind(party.to_string())
    .execute(change)
    .await?;
    Ok(())
}

async fn find(
    connection: &mut AnyConnection,
    principal: &Principal,
    name: &str,
) -> Result<ProjectRow, DatabaseError> {
    let row = sqlx::query(&format!(
        "{ROWS} WHERE {SEEN} AND (j.id = $3 OR j.name = $3) ORDER BY j.id = $3 DESC LIMIT 1"
    ))
    .bind(principal.party.id.to_string())
    .bind(i64::from(principal.party.is_administrator))
    .bind(name)
    .fetch_optional(&mut *connection)
    .await?
    .ok_or_else(|| not_found(name))?;
    let mut project = project_row(&row)?;
    project.members = sqlx::query_scalar(
        "SELECT p.name FROM project_members m JOIN parties p ON p.id = m.party \
         WHERE m.project = $1 ORDER BY p.name",
    )
    .bind(project.id.to_string())
    .fetch_all(connection)
    .await?;
    Ok(project)
}

/// The id of the project with this name or id.
pub(in crate::database) async fn id_of(
    connection: &mut AnyConnection,
    principal: &Principal,
    name: &str,
) -> Result<ProjectId, DatabaseError> {
    Ok(find(connection, principal, name).await?.id)
}
