//! Transferring a volume: its owner and project change, and rights that were granted on it end.

use auth::{Kind, Subject};
use base::{PartyId, ProjectId, VolumeId};
use sqlx::AnyConnection;

use crate::database::attach::attachments;
use crate::database::rows::VolumeRow;
use crate::database::tenancy::quotas::{Addition, account_of, check_quota};
use crate::database::tenancy::{party_rows, rights};
use crate::database::volumes::{self, create};
use crate::database::{DatabaseError, Need, ObjectKind, PartyRow, Principal, Volumes, chains};

impl Volumes<'_> {
    /// Transfers a volume to another user, charged to one of their projects. A principal who is not
    /// an administrator must be a member of that project, too. The snapshots are transferred with
    /// the volume; rights on it and on them end. A transfer to its owner changes only the project,
    /// and is allowed while the volume is attached.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] (the volume, the user, the project);
    /// [`DatabaseError::Forbidden`]; [`DatabaseError::Taken`] if the user has a volume or
    /// snapshot of that name; [`DatabaseError::Quota`]; [`DatabaseError::Refused`] if it is
    /// being deleted, attached and not the user's already, or there is no project that it could be
    /// charged to.
    pub async fn transfer(
        self,
        principal: &Principal,
        volume: &str,
        user: &str,
        project: Option<&str>,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let volume = rights::volume_for(&mut change, principal, volume, Need::Own).await?;
                let subject = Subject::new(Kind::User, user).map_err(|_| {
                    DatabaseError::not_found(ObjectKind::User, format_args!("{user:?}"))
                })?;
                let party = party_rows::party_of(&mut change, &subject).await?;
                refuse_if_in_use(&mut change, &volume, party.id).await?;
                let account = account_for(&mut change, principal, &party, project).await?;
                if volume.owner != Some(party.id) {
                    create::refuse_name(&mut change, party.id, &volume.name).await?;
                    refuse_snapshot_names(&mut change, party.id, user, volume.id).await?;
                }
                if volume.project != Some(account) {
                    let snapshots: i64 =
                        sqlx::query_scalar("SELECT COUNT(*) FROM snapshots WHERE volume = $1")
                            .bind(volume.id.to_string())
                            .fetch_one(&mut *change)
                            .await?;
                    let more = Addition {
                        volumes: 1,
                        bytes: volume.size_bytes,
                        snapshots: snapshots.cast_unsigned(),
                    };
                    check_quota(&mut change, principal, Some(account), more).await?;
                }
                hand_over(&mut change, &volume, party.id, account).await?;
                let target = format!("{} {} to {user}", volume.id, volume.name);
                principal.note(&mut change, "transfer", target).await?;
                volumes::by_id(&mut change, volume.id).await
            })
            .await
    }
}

async fn refuse_if_in_use(
    change: &mut AnyConnection,
    volume: &VolumeRow,
    party: PartyId,
) -> Result<(), DatabaseError> {
    let name = &volume.name;
    let is_kept = volume.owner == Some(party);
    rights::refuse_if_deleting(volume)?;
    if is_kept || !attachments::is_attached(change, volume.id).await? {
        return Ok(());
    }
    Err(DatabaseError::Refused {
        reason: format!(
            "volume {name:?} is attached; detach it first, so that no host keeps using it"
        ),
    })
}

/// The project that it will be charged to. Projects of which the principal is not a member are not
/// revealed.
async fn account_for(
    change: &mut AnyConnection,
    principal: &Principal,
    party: &PartyRow,
    project: Option<&str>,
) -> Result<ProjectId, DatabaseError> {
    let account = account_of(&mut *change, party, project).await;
    if principal.party.is_administrator || principal.party.id == party.id {
        return account;
    }
    if let Ok(account) = account {
        // A user may not charge a volume to a project of others without being a member.
        let shared = account_of(&mut *change, &principal.party, Some(&account.to_string())).await;
        if shared.is_ok() {
            return Ok(account);
        }
    }
    let user = party.subject.name();
    let which = project.map_or_else(
        || "none was found: name one".to_owned(),
        |name| format!("{name:?} is not one: name another one"),
    );
    Err(DatabaseError::Refused {
        reason: format!(
            "the volume can be charged only to a project with both you and {user} as members, and \
             {which} (`--project`), or ask an administrator to transfer the volume"
        ),
    })
}

async fn refuse_snapshot_names(
    change: &mut AnyConnection,
    party: PartyId,
    user: &str,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    let taken = sqlx::query(
        "SELECT s.id FROM snapshots s JOIN snapshots t ON t.name = s.name \
         AND t.owner = $1 AND t.id <> s.id WHERE s.volume = $2 LIMIT 1",
    )
    .bind(party.to_string())
    .bind(volume.to_string())
    .fetch_optional(change)
    .await?;
    match taken {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a snapshot of {user} with the same name as a snapshot of this volume"),
            remedy: "delete one of the two first (`scree snapshot list` lists yours)",
        }),
    }
}

async fn hand_over(
    change: &mut AnyConnection,
    volume: &VolumeRow,
    party: PartyId,
    account: ProjectId,
) -> Result<(), DatabaseError> {
    let id = volume.id.to_string();
    for statement in [
        "UPDATE volumes SET owner = $1, project = $2 WHERE id = $3",
        "UPDATE snapshots SET owner = $1, project = $2 WHERE volume = $3",
    ] {
        sqlx::query(statement)
            .bind(party.to_string())
            .bind(account.to_string())
            .bind(&id)
            .execute(&mut *change)
            .await?;
    }
    if volume.owner == Some(party) {
        return Ok(());
    }
    for statement in [
        "DELETE FROM grants WHERE object = $1",
        "DELETE FROM grants WHERE object IN (SELECT id FROM snapshots WHERE volume = $1)",
    ] {
        sqlx::query(statement)
            .bind(&id)
            .execute(&mut *change)
            .await?;
    }
    // The previous owner chose where its filters send what is written.
    chains::forget(change, volume.id).await
}
