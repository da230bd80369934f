//! Grants: rights that owners grant to others on their volumes and snapshots, and administrators on
//! hosts.

use std::fmt;

use auth::Subject;
use base::{GrantId, PartyId, SnapshotId, VolumeId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::tenancy::{party_rows, principal, rights};
use crate::database::{Database, DatabaseError, Need, ObjectKind, Principal, Right, rows, volumes};

/// The object of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// A volume with its snapshots.
    Volume(VolumeId),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A host, on which the user may attach volumes.
    Host(PartyId),
}

impl Object {
    fn id(self) -> String {
        match self {
            Self::Volume(id) => id.to_string(),
            Self::Snapshot(id) => id.to_string(),
            Self::Host(id) => id.to_string(),
        }
    }

    fn parse(text: &str) -> Result<Self, DatabaseError> {
        let volume = text.parse().map(Self::Volume);
        let snapshot = || text.parse().map(Self::Snapshot);
        let host = || text.parse().map(Self::Host);
        volume
            .or_else(|_| snapshot())
            .or_else(|_| host())
            .map_err(|_| DatabaseError::Damaged {
                what: format!("a grant on {text:?}"),
            })
    }
}

/// A granted right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRow {
    /// The id.
    pub id: GrantId,
    /// The object.
    pub object: Object,
    /// The object's name; `None` if it was deleted.
    pub object_name: Option<String>,
    /// The name of the owner of the volume or snapshot.
    pub object_owner: Option<String>,
    /// The name of the user who has the right.
    pub user: String,
    /// The right.
    pub right: Right,
    /// On a host: for VMs whose address starts with this.
    pub vm: String,
    /// When it was granted.
    pub created: Millis,
}

/// The text of the grant in the audit log.
impl fmt::Display for GrantRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.object.id())?;
        if let Some(name) = &self.object_name {
            write!(formatter, " {name}")?;
        }
        write!(formatter, " {} {}", self.right, self.user)?;
        match self.vm.as_str() {
            "" => Ok(()),
            vm => write!(formatter, " VMs {vm}"),
        }
    }
}

/// A new grant.
#[derive(Debug, Clone)]
pub struct NewGrant {
    /// The id.
    pub id: GrantId,
    /// The object.
    pub object: Object,
    /// The user who gets the right.
    pub user: Subject,
    /// The right.
    pub right: Right,
    /// On a host: for VMs whose address starts with this; empty: all VMs.
    pub vm: String,
}

const ROWS: &str = "SELECT g.*, p.name AS user_name, \
     COALESCE(v.name, s.name, h.name) AS object_name, o.name AS object_owner FROM grants g \
     JOIN parties p ON p.id = g.party LEFT JOIN volumes v ON v.id = g.object \
     LEFT JOIN snapshots s ON s.id = g.object LEFT JOIN parties h ON h.id = g.object \
     LEFT JOIN parties o ON o.id = COALESCE(v.owner, s.owner)";

/// An SQL condition: the principal has the right, or can revoke it.
const SEEN: &str = "($2 = 1 OR g.party = $1 OR v.owner = $1 OR s.owner = $1 \
     OR EXISTS (SELECT 1 FROM snapshots left_over WHERE left_over.volume = g.object \
         AND left_over.owner = $1) \
     OR EXISTS (SELECT 1 FROM grants a WHERE a.party = $1 AND a.right_name = 'administer' \
         AND a.object IN (g.object, s.volume)))";

fn grant_row(row: &AnyRow) -> Result<GrantRow, DatabaseError> {
    Ok(GrantRow {
        id: rows::spelled(row, "id")?,
        object: Object::parse(row.try_get("object")?)?,
        object_name: row.try_get("object_name")?,
        object_owner: row.try_get("object_owner")?,
        user: row.try_get("user_name")?,
        right: rows::spelled(row, "right_name")?,
        vm: row.try_get("vm")?,
        created: Millis(row.try_get("created_ms")?),
    })
}

/// Deletes the grants on an object that is deleted.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    object: &str,
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM grants WHERE object = $1")
        .bind(object)
        .execute(change)
        .await?;
    Ok(())
}

/// Deletes the grants on deleted volumes of which no snapshot is left: a right on a volume covers
/// its snapshots as long as there are any.
pub(in crate::database) async fn forget_gone(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "DELETE FROM grants WHERE object = $1 \
         AND NOT EXISTS (SELECT 1 FROM volumes WHERE id = $1) \
         AND NOT EXISTS (SELECT 1 FROM snapshots WHERE volume = $1)",
    )
    .bind(volume.to_string())
    .execute(change)
    .await?;
    Ok(())
}

/// Refuses a principal who may not grant or revoke rights on `object`.
async fn check(
    change: &mut AnyConnection,
    principal: &Principal,
    object: Object,
) -> Result<(), DatabaseError> {
    let need = Need::Have(Right::Administer);
    match object {
        Object::Volume(id) => drop(rights::check_volume(change, principal, id, need).await?),
        Object::Snapshot(id) => drop(rights::check_snapshot(change, principal, id, need).await?),
        Object::Host(_) if principal.party.is_administrator => {}
        Object::Host(_) => {
            return Err(DatabaseError::Forbidden {
                reason: "only an administrator may grant the use of a host".to_owned(),
            });
        }
    }
    Ok(())
}

/// Whether `principal` may revoke any right on `object`, even if the object was deleted: rights on
/// a volume are rights on the snapshots that are left of it.
async fn may_take(
    change: &mut AnyConnection,
    principal: &Principal,
    object: Object,
) -> Result<bool, DatabaseError> {
    if principal.party.is_administrator {
        return Ok(true);
    }
    let left = sqlx::query("SELECT id FROM snapshots WHERE volume = $1 AND owner = $2 LIMIT 1")
        .bind(object.id())
        .bind(principal.party.id.to_string())
        .fetch_optional(change)
        .await?;
    Ok(left.is_some())
}

async fn find(
    connection: &mut AnyConnection,
    principal: &Principal,
    id: &str,
) -> Result<GrantRow, DatabaseError> {
    let row = sqlx::query(&format!("{ROWS} WHERE {SEEN} AND g.id = $3"))
        .bind(principal.party.id.to_string())
        .bind(i64::from(principal.party.is_administrator))
        .bind(id)
        .fetch_optional(connection)
        .await?;
    grant_row(
        &row.ok_or_else(|| DatabaseError::not_found(ObjectKind::Grant, format_args!("{id:?}")))?,
    )
}

/// Rights that were granted to users.
#[derive(Clone, Copy, Debug)]
pub struct Grants<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Grants<'_> {
    /// Grants a right. If it exists, nothing changes.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`].
    pub async fn insert(
        self,
        principal: &Principal,
        new: &NewGrant,
    ) -> Result<GrantRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                if let Some(made) = principal.made_before(&mut change).await? {
                    let seen = find(&mut change, principal, &made).await;
                    return seen.map_err(principal::gone_since);
                }
                check(&mut change, principal, new.object).await?;
                if let Object::Volume(id) = new.object {
                    rights::refuse_if_deleting(&volumes::by_id(&mut change, id).await?)?;
                }
                let user = party_rows::party_of(&mut change, &new.user).await?;
                sqlx::query(
                    "INSERT INTO grants (id, object, party, right_name, vm, created_ms) \
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                )
                .bind(new.id.to_string())
                .bind(new.object.id())
                .bind(user.id.to_string())
                .bind(new.right.as_str())
                .bind(&new.vm)
                .bind(principal.by.at.0)
                .execute(&mut *change)
                .await?;
                let id: String = sqlx::query_scalar(
                    "SELECT id FROM grants WHERE object = $1 AND party = $2 AND right_name = $3 \
                 AND vm = $4",
                )
                .bind(new.object.id())
                .bind(user.id.to_string())
                .bind(new.right.as_str())
                .bind(&new.vm)
                .fetch_one(&mut *change)
                .await?;
                let grant = find(&mut change, principal, &id).await?;
                principal.note(&mut change, "grant", &grant).await?;
                principal.note_made(&mut change, &id).await?;
                Ok(grant)
            })
            .await
    }

    /// The grants that `principal` has or can revoke, on `object` or on all objects: at most
    /// `count_max` with ids after `after`, in the order of ids.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn list(
        self,
        principal: &Principal,
        object: Option<Object>,
        after: &str,
        count_max: u32,
    ) -> Result<Vec<GrantRow>, DatabaseError> {
        sqlx::query(&format!(
            "{ROWS} WHERE {SEEN} AND g.id > $3 AND ($4 = '' OR g.object = $4) \
             ORDER BY g.id LIMIT $5"
        ))
        .bind(principal.party.id.to_string())
        .bind(i64::from(principal.party.is_administrator))
        .bind(after)
        .bind(object.map_or_else(String::new, Object::id))
        .bind(i64::from(count_max))
        .fetch_all(&self.database.reader)
        .await?
        .iter()
        .map(grant_row)
        .collect()
    }

    /// Revokes a right. The user who has it may revoke it as well. Existing attachments stay.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`].
    pub async fn delete(self, principal: &Principal, id: &str) -> Result<GrantRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let grant = find(&mut change, principal, id).await?;
                let is_own = grant.user == principal.party.subject.name();
                if !is_own && !may_take(&mut change, principal, grant.object).await? {
                    check(&mut change, principal, grant.object).await?;
                }
                sqlx::query("DELETE FROM grants WHERE id = $1")
                    .bind(id)
                    .execute(&mut *change)
                    .await?;
                principal.note(&mut change, "revoke", &grant).await?;
                Ok(grant)
            })
            .await
    }
}
