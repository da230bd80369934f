//! Rights: who may do what with which volumes, snapshots and hosts (docs/explanation/ownership.md).
//!
//! * An object that a principal may not see does not exist for them: the error is the same.
//! * Rights are checked in the transaction that uses them, so a right that was just revoked does
//!   not count.

use api::words::Right;
use base::{PartyId, SnapshotId, VolumeId};
use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AnyConnection};

use crate::database::rows::{self, SnapshotRow, VolumeRow};
use crate::database::{DatabaseError, ObjectKind, Principal};

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// To know that it is there.
    See,
    /// The same, before a change: a bare name then does not refer to another user's object.
    SeeToChange,
    /// One of the rights.
    Have(Right),
    /// To be its owner, or an administrator of the cluster.
    Own,
}

/// The rights of a principal on one object.
#[derive(Debug, Clone, Default)]
pub(in crate::database) struct Rights {
    owns: bool,
    is_administrator: bool,
    granted: Vec<Right>,
}

impl Rights {
    /// Administrators see and manage everything. To read content, or to let others read it, they
    /// have to be granted the right, and that is in the audit log.
    pub(in crate::database) fn allow(&self, need: Need) -> bool {
        let has =
            |right| self.granted.contains(&right) || self.granted.contains(&Right::Administer);
        let administers = self.is_administrator;
        self.owns
            || match need {
                Need::See | Need::SeeToChange => administers || !self.granted.is_empty(),
                Need::Have(Right::Read) => has(Right::Read) || has(Right::Use),
                Need::Have(Right::Use) => has(Right::Use),
                Need::Have(right) => administers || has(right),
                Need::Own => administers,
            }
    }
}

/// The rights of `principal` on an object of `owner`. Rights may have been granted on any of
/// `objects`.
async fn rights_on(
    connection: &mut AnyConnection,
    principal: &Principal,
    owner: Option<PartyId>,
    objects: [&str; 2],
) -> Result<Rights, DatabaseError> {
    let owns = owner == Some(principal.party.id);
    let granted = if owns {
        Vec::new()
    } else {
        sqlx::query("SELECT right_name FROM grants WHERE party = $1 AND object IN ($2, $3)")
            .bind(principal.party.id.to_string())
            .bind(objects[0])
            .bind(objects[1])
            .fetch_all(connection)
            .await?
            .iter()
            .map(|row| rows::spelled(row, "right_name"))
            .collect::<Result<_, _>>()?
    };
    Ok(Rights {
        owns,
        is_administrator: principal.party.is_administrator,
        granted,
    })
}

/// Refuses what `rights` do not allow. `text` is the name in the request.
fn refuse_unless(
    rights: &Rights,
    need: Need,
    kind: ObjectKind,
    text: &str,
) -> Result<(), DatabaseError> {
    if rights.allow(need) {
        return Ok(());
    }
    if !rights.allow(Need::See) {
        return Err(DatabaseError::not_found(kind, format_args!("{text:?}")));
    }
    Err(DatabaseError::Forbidden {
        reason: match need {
            Need::Have(right) => format!(
                "you do not have the right `{right}` on {kind} {text:?}; its owner can grant it: \
                 `scree grant add USER {right} --{kind} {text}`"
            ),
            _ => format!("only the owner of {kind} {text:?}, or an administrator, may do this"),
        },
    })
}

/// The name of an object in a request: `name`, `owner/name`, or an id.
pub(in crate::database) struct Named<'a> {
    text: &'a str,
    owner: &'a str,
    name: &'a str,
}

impl<'a> Named<'a> {
    pub(in crate::database) fn new(text: &'a str) -> Self {
        let (owner, name) = text.split_once('/').unwrap_or(("", text));
        Self { text, owner, name }
    }
}

/// Selects one of the visible rows with the same name: by its id, else the principal's own, else
/// the only one. `rows` are in this order, each with its id and owner.
///
/// A bare name refers to another user's object only in requests that read. Otherwise a user who
/// grants rights could choose what names of others mean when they change, attach or transfer
/// something.
fn the_one<T>(
    mut rows: Vec<T>,
    named: &Named<'_>,
    principal: &Principal,
    need: Need,
    kind: ObjectKind,
    of: impl Fn(&T) -> (String, Option<PartyId>, Option<String>),
) -> Result<T, DatabaseError> {
    let Some(first) = rows.first() else {
        return Err(DatabaseError::not_found(
            kind,
            format_args!("{:?}", named.text),
        ));
    };
    let (id, owner, owner_name) = of(first);
    let is_certain =
        id == named.text || owner == Some(principal.party.id) || !named.owner.is_empty();
    if is_certain || (rows.len() == 1 && need == Need::See) {
        return Ok(rows.swap_remove(0));
    }
    if rows.len() == 1 {
        let name = &named.name;
        let (whose, whole) = match owner_name {
            Some(owner) => (format!("{owner}'s"), format!("{owner}/{name}")),
            None => ("one without an owner".to_owned(), id),
        };
        return Err(DatabaseError::Refused {
            reason: format!("you have no {kind} {name:?}; name {whose} as {whole}"),
        });
    }
    let names = rows.iter().map(|row| {
        let (_, _, owner) = of(row);
        format!("{}/{}", owner.unwrap_or_default(), named.name)
    });
    let names: Vec<String> = names.collect();
    Err(DatabaseError::Refused {
        reason: format!(
            "several owners have a {kind} {:?}; name one of them, such as {}",
            named.name,
            names.join(" or ")
        ),
    })
}

/// An SQL condition: `principal` may see a row of table `t`. `objects` are the columns on which
/// rights may have been granted.
macro_rules! visible {
    ($t:literal, $objects:literal) => {
        concat!(
            "($3 = 1 OR ",
            $t,
            ".owner = $2 OR EXISTS (SELECT 1 FROM grants g WHERE g.party = $2 AND g.object IN (",
            $objects,
            ")))"
        )
    };
}

/// A query for visible objects of a name: $1 is the whole text of the request, $4 and $5 are a name
/// and its owner's, $2 and $3 are for [`visible!`].
fn called<'q>(
    statement: &'q str,
    named: &Named<'q>,
    principal: &Principal,
) -> Query<'q, Any, AnyArguments<'q>> {
    sqlx::query(statement)
        .bind(named.text)
        .bind(principal.party.id.to_string())
        .bind(i64::from(principal.party.is_administrator))
        .bind(named.name)
        .bind(named.owner)
}

/// The volume that `text` names, if `principal` has the needed right.
pub(in crate::database) async fn volume_for(
    connection: &mut AnyConnection,
    principal: &Principal,
    text: &str,
    need: Need,
) -> Result<VolumeRow, DatabaseError> {
    let named = Named::new(text);
    let found = called(
        volumes!(
            "WHERE (v.id = $1 OR (v.name = $4 AND v.deleting = 0 AND ($5 = '' OR o.name = $5))) AND ",
            visible!("v", "v.id"),
            " ORDER BY v.id = $1 DESC, v.owner = $2 DESC, v.id LIMIT 3"
        ),
        &named,
        principal,
    )
    .fetch_all(&mut *connection)
    .await?;
    let volumes = found.iter().map(rows::volume_row);
    let volumes = volumes.collect::<Result<Vec<_>, _>>()?;
    let volume = the_one(
        volumes,
        &named,
        principal,
        need,
        ObjectKind::Volume,
        |row| (row.id.to_string(), row.owner, row.owner_name.clone()),
    )?;
    let rights = volume_rights(connection, principal, &volume).await?;
    refuse_unless(&rights, need, ObjectKind::Volume, text)?;
    Ok(volume)
}

/// The rights of `principal` on a volume.
pub(in crate::database) async fn volume_rights(
    connection: &mut AnyConnection,
    principal: &Principal,
    volume: &VolumeRow,
) -> Result<Rights, DatabaseError> {
    let id = volume.id.to_string();
    rights_on(connection, principal, volume.owner, [&id, &id]).await
}

/// As [`volume_for`], a snapshot: rights on its volume are rights on it.
pub(in crate::database) async fn snapshot_for(
    connection: &mut AnyConnection,
    principal: &Principal,
    text: &str,
    need: Need,
) -> Result<SnapshotRow, DatabaseError> {
    let named = Named::new(text);
    let found = called(
        snapshots!(
            "WHERE (s.id = $1 OR (s.name = $4 AND ($5 = '' OR o.name = $5))) AND ",
            visible!("s", "s.id, s.volume"),
            " ORDER BY s.id = $1 DESC, s.owner = $2 DESC, s.id LIMIT 3"
        ),
        &named,
        principal,
    )
    .fetch_all(&mut *connection)
    .await?;
    let snapshots = found.iter().map(rows::snapshot_row);
    let snapshots = snapshots.collect::<Result<Vec<_>, _>>()?;
    let snapshot = the_one(
        snapshots,
        &named,
        principal,
        need,
        ObjectKind::Snapshot,
        |row| (row.id.to_string(), row.owner, row.owner_name.clone()),
    )?;
    let rights = snapshot_rights(connection, principal, &snapshot).await?;
    refuse_unless(&rights, need, ObjectKind::Snapshot, text)?;
    Ok(snapshot)
}

async fn snapshot_rights(
    connection: &mut AnyConnection,
    principal: &Principal,
    snapshot: &SnapshotRow,
) -> Result<Rights, DatabaseError> {
    let (id, volume) = (snapshot.id.to_string(), snapshot.volume.to_string());
    rights_on(connection, principal, snapshot.owner, [&id, &volume]).await
}

/// Refuses a principal without the needed right on the volume `id`.
pub(in crate::database) async fn check_volume(
    connection: &mut AnyConnection,
    principal: &Principal,
    id: VolumeId,
    need: Need,
) -> Result<VolumeRow, DatabaseError> {
    volume_for(connection, principal, &id.to_string(), need).await
}

/// Refuses to change a volume that is being deleted.
pub(in crate::database) fn refuse_if_deleting(volume: &VolumeRow) -> Result<(), DatabaseError> {
    match volume.deleting {
        false => Ok(()),
        true => Err(DatabaseError::Refused {
            reason: format!("volume {:?} is being deleted", volume.name),
        }),
    }
}

/// Refuses a principal without the needed right on the snapshot `id`.
pub(in crate::database) async fn check_snapshot(
    connection: &mut AnyConnection,
    principal: &Principal,
    id: SnapshotId,
    need: Need,
) -> Result<SnapshotRow, DatabaseError> {
    snapshot_for(connection, principal, &id.to_string(), need).await
}

/// Refuses a principal who was not granted the use of `host` and of the VM there.
pub(in crate::database) async fn check_host(
    connection: &mut AnyConnection,
    principal: &Principal,
    host: PartyId,
    vm: Option<&str>,
) -> Result<(), DatabaseError> {
    if principal.party.is_administrator {
        return Ok(());
    }
    let grants: Vec<(String,)> =
        sqlx::query_as("SELECT vm FROM grants WHERE party = $1 AND object = $2")
            .bind(principal.party.id.to_string())
            .bind(host.to_string())
            .fetch_all(connection)
            .await?;
    let covers = |prefix: &str| prefix.is_empty() || vm.is_some_and(|vm| vm.starts_with(prefix));
    if grants.iter().any(|(prefix,)| covers(prefix)) {
        return Ok(());
    }
    if grants.is_empty() {
        return Err(DatabaseError::Forbidden {
            reason: "you may not use this host; an administrator can grant it: `scree grant \
                     add USER use --host HOST`"
                .to_owned(),
        });
    }
    let only: Vec<String> = grants
        .iter()
        .map(|(prefix,)| format!("{prefix}…"))
        .collect();
    Err(DatabaseError::Forbidden {
        reason: format!(
            "on this host you may use the VMs {}; an administrator can grant you others: \
             `scree grant add USER use --host HOST --vm ADDRESS`",
            only.join(", ")
        ),
    })
}
