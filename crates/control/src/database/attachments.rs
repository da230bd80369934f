//! Attachments: what is wanted of a volume on a host, and how far that is.
//!
//! * At most one that can write is not `detached`: a unique index says so.
//! * Of one that is moved, the transaction that keeps "detached" makes what
//!   follows ([`super::moves`]).
//! * The host's word is taken by a compare-and-swap on the generation: a late
//!   word about an older wish changes nothing.
//! * `epoch` is set in the transaction that gives the lease. From then on the
//!   host's journal may be newer than the head, until the host says `detached`.

use api::host::{Access, AttachmentReport, AttachmentState};
use api::types::READ_ONLY_ATTACHMENTS_MAX;
use base::{AttachmentId, PartyId, VolumeId};
use catalog::VersionKey;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use super::rights::{check_host, check_volume, refuse_if_deleting};
use super::rows::{self, VolumeRow};
use super::{Asker, Database, DatabaseError, Follower, Need, Right, audit};

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentRow {
    /// Its id.
    pub id: AttachmentId,
    /// Of what.
    pub volume: VolumeId,
    /// Where.
    pub host: PartyId,
    /// The VM that it is plugged into; none for a plain export.
    pub vm: Option<String>,
    /// How.
    pub access: Access,
    /// It is to be; otherwise it is to end.
    pub is_wanted: bool,
    /// It is to end whoever says no.
    pub is_forced: bool,
    /// Which wish that is.
    pub generation: u64,
    /// How far it is.
    pub state: AttachmentState,
    /// The wish that `state` is about.
    pub reported: u64,
    /// Why it is as it is.
    pub reason: Option<String>,
    /// What is worth knowing and no error.
    pub note: Option<String>,
    /// The serial by which the VM knows it.
    pub device: Option<String>,
    /// The last lease that was taken for it.
    pub epoch: Option<u32>,
    /// Read-only: what it shows; none of an empty volume.
    pub version: Option<VersionKey>,
    /// The size it is served with, in bytes.
    pub size_bytes: Option<u64>,
    /// What to give to a client on its host.
    pub uri: Option<String>,
    /// What to give to one elsewhere.
    pub tcp_uri: Option<String>,
    /// Who asked for it; none if Scree did.
    pub asked_by: Option<PartyId>,
    /// What follows it as soon as it has let go, or followed it.
    pub follower: Option<Follower>,
    /// When it was asked for.
    pub created: Millis,
    /// When it was detached.
    pub ended: Option<Millis>,
}

/// An attachment to be made.
#[derive(Debug, Clone)]
pub struct NewAttachment {
    /// Its id.
    pub id: AttachmentId,
    /// Of what.
    pub volume: VolumeId,
    /// Where.
    pub host: PartyId,
    /// The VM that it is plugged into; none for a plain export.
    pub vm: Option<String>,
    /// How.
    pub access: Access,
    /// When.
    pub created: Millis,
}

pub(super) fn attachment_row(row: &AnyRow) -> Result<AttachmentRow, DatabaseError> {
    let epoch: Option<i64> = row.try_get("epoch")?;
    let size: Option<i64> = row.try_get("size_bytes")?;
    Ok(AttachmentRow {
        id: rows::spelt(row, "id")?,
        volume: rows::spelt(row, "volume")?,
        host: rows::spelt(row, "host")?,
        vm: row.try_get("vm")?,
        access: rows::spelt(row, "access")?,
        is_forced: rows::flag(row, "forced")?,
        note: row.try_get("note")?,
        device: row.try_get("device")?,
        asked_by: rows::spelt_if_any(row, "asked_by")?,
        follower: super::moves::follower(row)?,
        created: Millis(row.try_get("created_ms")?),
        ended: row.try_get::<Option<i64>, _>("ended_ms")?.map(Millis),
        is_wanted: rows::flag(row, "wanted")?,
        generation: rows::number(row, "generation")?,
        state: rows::spelt(row, "state")?,
        reported: rows::number(row, "reported")?,
        reason: row.try_get("reason")?,
        epoch: epoch.map(|_| rows::small(row, "epoch")).transpose()?,
        version: rows::version_key(row, "version_volume", "version_number")?,
        size_bytes: size.map(i64::cast_unsigned),
        uri: row.try_get("uri")?,
        tcp_uri: row.try_get("tcp_uri")?,
    })
}

async fn of_volume(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<Vec<AttachmentRow>, DatabaseError> {
    sqlx::query(
        "SELECT * FROM attachments WHERE volume = $1 AND state <> 'detached' \
         ORDER BY created_ms, id",
    )
    .bind(volume.to_string())
    .fetch_all(connection)
    .await?
    .iter()
    .map(attachment_row)
    .collect()
}

/// The host whose attachment of `volume` can write, if there is one.
pub(super) async fn writer_of(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<Option<PartyId>, DatabaseError> {
    let all = of_volume(connection, volume).await?;
    let writer = all.iter().find(|one| one.access == Access::ReadWrite);
    Ok(writer.map(|one| one.host))
}

/// Whether it is attached anywhere, or not yet detached.
pub(super) async fn is_attached(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<bool, DatabaseError> {
    Ok(!of_volume(connection, volume).await?.is_empty())
}

/// A lease is given for the attachment of `volume` to `host`.
pub(super) async fn note_lease(
    change: &mut AnyConnection,
    volume: VolumeId,
    host: PartyId,
    epoch: u32,
) -> Result<(), DatabaseError> {
    let noted = sqlx::query(
        "UPDATE attachments SET epoch = $1 WHERE volume = $2 AND host = $3 \
         AND access = 'read-write' AND state <> 'detached'",
    )
    .bind(i64::from(epoch))
    .bind(volume.to_string())
    .bind(host.to_string())
    .execute(&mut *change)
    .await?;
    if noted.rows_affected() == 0 {
        return Err(DatabaseError::Fenced {
            volume,
            reason: "it is not attached to this host".to_owned(),
        });
    }
    sqlx::query("UPDATE volumes SET last_host = $1 WHERE id = $2")
        .bind(host.to_string())
        .bind(volume.to_string())
        .execute(change)
        .await?;
    Ok(())
}

/// Ends every attachment of `volume`. The caller has taken its lease away.
pub(super) async fn fence(
    change: &mut AnyConnection,
    volume: VolumeId,
    now: Millis,
    reason: &str,
) -> Result<(), DatabaseError> {
    for attachment in of_volume(&mut *change, volume).await? {
        sqlx::query(
            "UPDATE attachments SET state = 'detached', wanted = 0, reason = $1, ended_ms = $2, \
             generation = generation + 1 WHERE id = $3",
        )
        .bind(reason)
        .bind(now.0)
        .bind(attachment.id.to_string())
        .execute(&mut *change)
        .await?;
        super::hosts::assign(&mut *change, attachment.host).await?;
    }
    Ok(())
}

/// Every volume is to be opened once more on the host that had it last, or
/// else on `host`: whatever its journal has is to become a version.
pub(super) async fn reopen_all(
    change: &mut AnyConnection,
    host: PartyId,
    now: Millis,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO attachments (id, volume, host, access, wanted, state, epoch, created_ms) \
         SELECT 'att-' || SUBSTR(id, 5), id, COALESCE(last_host, $1), 'read-write', 0, \
         'detaching', epoch, $2 FROM volumes v WHERE deleting = 0 AND NOT EXISTS (SELECT 1 \
         FROM attachments a WHERE a.volume = v.id AND a.state <> 'detached') \
         ON CONFLICT (id) DO UPDATE SET wanted = 0, state = 'detaching', \
         epoch = excluded.epoch, host = excluded.host, next_id = NULL, next_host = NULL, \
         next_vm = NULL, next_asked_by = NULL",
    )
    .bind(host.to_string())
    .bind(now.0)
    .execute(&mut *change)
    .await?;
    super::hosts::assign_all(change).await
}

impl Database {
    /// Attaches a volume to a host: asks for it, that is. The same again is no
    /// error: it is asked for once more.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it is attached in another way.
    pub async fn attach(
        &self,
        asker: &Asker,
        new: &NewAttachment,
    ) -> Result<AttachmentRow, DatabaseError> {
        act!(self, asker, change, {
            if let Some(made) = asker.made_before(&mut *change).await? {
                let seen = attachment_named(&mut *change, asker, &made).await;
                return seen.map_err(super::asker::gone_since);
            }
            let need = Need::Have(match new.access {
                Access::ReadOnly => Right::Read,
                Access::ReadWrite => Right::Use,
            });
            let volume = check_volume(&mut *change, asker, new.volume, need).await?;
            check_host(&mut *change, asker, new.host, new.vm.as_deref()).await?;
            refuse_if_deleting(&volume)?;
            let name = &volume.name;
            let others = of_volume(&mut *change, new.volume).await?;
            let same = others
                .iter()
                .find(|one| (one.host, &one.vm, one.access) == (new.host, &new.vm, new.access));
            // Whose wish it is not must not renew it, nor hear of it.
            if let Some(same) = same
                && !may_see(&mut *change, asker, same).await?
            {
                let reason = format!("volume {name:?} is attached so by another user");
                return Err(DatabaseError::Refused { reason });
            }
            let place = audit::place(&mut *change, new.host, new.vm.as_deref()).await?;
            let target = format!("{} {name} to {place}", volume.id);
            asker.note(&mut *change, "attach", target).await?;
            if let Some(same) = same {
                asker.note_made(&mut *change, same.id).await?;
                if !same.is_wanted || same.state != AttachmentState::Attached {
                    wish(&mut *change, same, true, false).await?;
                }
                return attachment_of(change, same.id).await;
            }
            let excludes = |one: &&AttachmentRow| {
                one.access == Access::ReadWrite || new.access == Access::ReadWrite
            };
            if let Some(other) = others.iter().find(excludes) {
                return Err(DatabaseError::Refused {
                    reason: match may_see(&mut *change, asker, other).await? {
                        true => in_use(&volume.name_for(asker.party.id), other),
                        false => format!("volume {name:?} is attached by another user"),
                    },
                });
            }
            if new.access == Access::ReadOnly {
                refuse_too_many(&mut *change, asker, new.host).await?;
            }
            insert(&mut *change, asker, new, &volume).await?;
            asker.note_made(&mut *change, new.id).await?;
            super::hosts::assign(&mut *change, new.host).await?;
            attachment_of(change, new.id).await
        })
    }

    /// Asks for the end of an attachment: by force without the guest's consent.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn detach(
        &self,
        asker: &Asker,
        id: AttachmentId,
        is_forced: bool,
    ) -> Result<AttachmentRow, DatabaseError> {
        act!(self, asker, change, {
            let attachment = attachment_named(&mut *change, asker, &id.to_string()).await?;
            if attachment.state != AttachmentState::Detached {
                // What was to end by force is not asked for its consent again.
                let is_forced = is_forced || attachment.is_forced;
                wish(&mut *change, &attachment, false, is_forced).await?;
                let how = if is_forced { " by force" } else { "" };
                let volume = audit::volume(&mut *change, attachment.volume).await?;
                let vm = attachment.vm.as_deref();
                let place = audit::place(&mut *change, attachment.host, vm).await?;
                let target = format!("{volume} from {place}{how}");
                asker.note(&mut *change, "detach", target).await?;
            }
            attachment_of(change, id).await
        })
    }

    /// The attachment with this id, if `asker` may see it: their own, or of a
    /// volume that they administer.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn attachment_for(
        &self,
        asker: &Asker,
        id: &str,
    ) -> Result<AttachmentRow, DatabaseError> {
        attachment_named(&mut *self.reader.acquire().await?, asker, id).await
    }

    /// The attachment with this id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn attachment(&self, id: AttachmentId) -> Result<AttachmentRow, DatabaseError> {
        attachment_of(&mut *self.reader.acquire().await?, id).await
    }

    /// The attachments of a volume that are not detached.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn attachments_of(
        &self,
        volume: VolumeId,
    ) -> Result<Vec<AttachmentRow>, DatabaseError> {
        of_volume(&mut *self.reader.acquire().await?, volume).await
    }

    /// All attachments that are not detached.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn attachments(&self) -> Result<Vec<AttachmentRow>, DatabaseError> {
        sqlx::query("SELECT * FROM attachments WHERE state <> 'detached' ORDER BY created_ms, id")
            .fetch_all(&self.reader)
            .await?
            .iter()
            .map(attachment_row)
            .collect()
    }

    /// Those of one host.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn attachments_on(&self, host: PartyId) -> Result<Vec<AttachmentRow>, DatabaseError> {
        sqlx::query(
            "SELECT * FROM attachments WHERE host = $1 AND state <> 'detached' \
             ORDER BY created_ms, id",
        )
        .bind(host.to_string())
        .fetch_all(&self.reader)
        .await?
        .iter()
        .map(attachment_row)
        .collect()
    }

    /// The attachments that were detached last, the newest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn ended_attachments(
        &self,
        count_max: u32,
    ) -> Result<Vec<AttachmentRow>, DatabaseError> {
        sqlx::query(
            "SELECT * FROM attachments WHERE state = 'detached' \
             ORDER BY ended_ms DESC, id LIMIT $1",
        )
        .bind(i64::from(count_max))
        .fetch_all(&self.reader)
        .await?
        .iter()
        .map(attachment_row)
        .collect()
    }

    /// Notes that nothing is open on `host`: what it said before is over.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn nothing_open(&self, host: PartyId) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            sqlx::query(
                "UPDATE attachments SET reported = 0, reason = NULL, uri = NULL, \
                 tcp_uri = NULL, state = CASE wanted WHEN 1 THEN 'attaching' ELSE 'detaching' END \
                 WHERE host = $1 AND state <> 'detached'",
            )
            .bind(host.to_string())
            .execute(change)
            .await?;
            Ok(())
        })
    }

    /// Keeps what a host says of an attachment; `false` if it was about an
    /// older wish, or about somebody else's.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn keep_attachment_report(
        &self,
        host: PartyId,
        id: AttachmentId,
        report: &AttachmentReport,
        now: Millis,
    ) -> Result<bool, DatabaseError> {
        let is_end = report.state == AttachmentState::Detached;
        change_and_tell!(self, change, {
            let kept = sqlx::query(
                "UPDATE attachments SET state = $1, reason = $2, reported = generation, \
                 size_bytes = $3, uri = $4, tcp_uri = $5, ended_ms = $6, \
                 note = COALESCE($11, note), device = $12 WHERE id = $7 AND host = $8 AND generation = $9 AND state <> 'detached' \
                 AND (wanted = 0 OR $10 = 0) RETURNING volume, access, epoch",
            )
            .bind(report.state.as_str())
            .bind(report.reason.clone())
            .bind(report.size_bytes.map(u64::cast_signed))
            .bind(report.uri.clone())
            .bind(report.tcp_uri.clone())
            .bind(is_end.then_some(now.0))
            .bind(id.to_string())
            .bind(host.to_string())
            .bind(report.generation.cast_signed())
            .bind(i64::from(is_end))
            .bind(report.note.clone())
            .bind(report.device.clone())
            .fetch_optional(&mut *change)
            .await?;
            let Some(kept) = kept else { return Ok(false) };
            if is_end {
                let access: Access = rows::spelt(&kept, "access")?;
                if access == Access::ReadWrite {
                    let volume: VolumeId = rows::spelt(&kept, "volume")?;
                    super::snapshots::settle(&mut *change, volume).await?;
                    // Without a lease it has not touched the journal.
                    if kept.try_get::<Option<i64>, _>("epoch")?.is_some() {
                        super::journals::forget(&mut *change, volume).await?;
                    }
                    if let Some(reason) = &report.reason {
                        // It was given up, and with what.
                        let at = super::terms::where_it_is(&mut *change, volume).await?;
                        sqlx::query("UPDATE attachments SET reason = $1 WHERE id = $2")
                            .bind(format!("{reason}: the volume is {at}"))
                            .bind(id.to_string())
                            .execute(&mut *change)
                            .await?;
                    }
                }
                super::moves::follow(&mut *change, id, now).await?;
                super::hosts::clean(&mut *change).await?;
                super::hosts::assign(&mut *change, host).await?;
            }
            Ok(true)
        })
    }
}

/// Says how a volume is in use, and what to do.
fn in_use(name: &str, attachment: &AttachmentRow) -> String {
    let access = attachment.access;
    match (attachment.is_wanted, &attachment.reason) {
        (true, _) if attachment.vm.is_none() => format!(
            "volume {name:?} is exported {access}; run `scree volume unexport {name}` first"
        ),
        (true, _) => format!(
            "volume {name:?} is attached {access} to {vm}; run `scree detach {name} --vm {vm}` \
             first",
            vm = attachment.vm.as_deref().unwrap_or_default()
        ),
        (false, _) if attachment.follower.is_some() => format!(
            "volume {name:?} is being moved to another host; `scree attachment move {id} \
             --call-off` calls that off",
            id = attachment.id
        ),
        (false, None) => format!("volume {name:?} is still being closed; ask again soon"),
        (false, Some(why)) => format!("volume {name:?} is still being closed: {why}"),
    }
}

/// Makes a new wish of a row; what was to follow it does no more.
pub(super) async fn wish(
    change: &mut AnyConnection,
    attachment: &AttachmentRow,
    is_wanted: bool,
    is_forced: bool,
) -> Result<(), DatabaseError> {
    let state = match is_wanted {
        true => AttachmentState::Attaching,
        false => AttachmentState::Detaching,
    };
    sqlx::query(
        "UPDATE attachments SET wanted = $1, state = $2, reason = NULL, forced = $3, \
         next_id = NULL, next_host = NULL, next_vm = NULL, next_asked_by = NULL, \
         generation = generation + 1 WHERE id = $4",
    )
    .bind(i64::from(is_wanted))
    .bind(state.as_str())
    .bind(i64::from(is_forced))
    .bind(attachment.id.to_string())
    .execute(&mut *change)
    .await?;
    super::hosts::assign(change, attachment.host).await
}

/// Refuses one more read-only attachment on `host`: no quota counts them, and a
/// host has each of them open. Whose the hosts are, the administrators, may have
/// more.
async fn refuse_too_many(
    change: &mut AnyConnection,
    asker: &Asker,
    host: PartyId,
) -> Result<(), DatabaseError> {
    if asker.party.is_administrator {
        return Ok(());
    }
    let count: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM attachments WHERE host = $1 AND asked_by = $2 \
         AND access = 'read-only' AND state <> 'detached'",
    )
    .bind(host.to_string())
    .bind(asker.party.id.to_string())
    .fetch_one(change)
    .await?;
    if count < i64::from(READ_ONLY_ATTACHMENTS_MAX) {
        return Ok(());
    }
    Err(DatabaseError::Quota {
        reason: format!(
            "you have {count} read-only attachments on this host, as many as a user may have; \
             detach some first"
        ),
    })
}

async fn insert(
    change: &mut AnyConnection,
    asker: &Asker,
    new: &NewAttachment,
    volume: &VolumeRow,
) -> Result<(), DatabaseError> {
    let version = volume.head.filter(|_| new.access == Access::ReadOnly);
    sqlx::query(
        "INSERT INTO attachments (id, volume, host, access, version_volume, version_number, \
         created_ms, vm, asked_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(new.id.to_string())
    .bind(new.volume.to_string())
    .bind(new.host.to_string())
    .bind(new.access.as_str())
    .bind(version.map(|version| version.volume.to_string()))
    .bind(version.map(|version| version.number.cast_signed()))
    .bind(new.created.0)
    .bind(new.vm.clone())
    .bind(asker.party.id.to_string())
    .execute(&mut *change)
    .await?;
    if new.access == Access::ReadOnly {
        return Ok(());
    }
    // What it is opened with is what its last host left, if that let go of it.
    let last = sqlx::query(
        "SELECT host, forced, reason FROM attachments WHERE volume = $1 AND state = 'detached' \
         AND access = 'read-write' ORDER BY ended_ms DESC LIMIT 1",
    )
    .bind(new.volume.to_string())
    .fetch_optional(&mut *change)
    .await?;
    if let Some(last) = last
        && rows::flag(&last, "forced")?
    {
        sqlx::query("UPDATE attachments SET note = $1 WHERE id = $2")
            .bind(last.try_get::<Option<String>, _>("reason")?)
            .bind(new.id.to_string())
            .execute(change)
            .await?;
    }
    Ok(())
}

/// The attachment with this id, if `asker` may see it, and so end it.
pub(super) async fn attachment_named(
    connection: &mut AnyConnection,
    asker: &Asker,
    id: &str,
) -> Result<AttachmentRow, DatabaseError> {
    let not_found = || DatabaseError::NotFound {
        what: format!("attachment {id}"),
    };
    let parsed: AttachmentId = id.parse().map_err(|_| not_found())?;
    let attachment = attachment_of(&mut *connection, parsed).await?;
    match may_see(connection, asker, &attachment).await? {
        true => Ok(attachment),
        false => Err(not_found()),
    }
}

/// Whether `asker` may see an attachment, and so end it: their own, or of a
/// volume that they administer.
async fn may_see(
    connection: &mut AnyConnection,
    asker: &Asker,
    attachment: &AttachmentRow,
) -> Result<bool, DatabaseError> {
    Ok(attachment.asked_by == Some(asker.party.id)
        || administers(connection, asker, attachment.volume).await?)
}

/// Whether `asker` administers a volume.
pub(super) async fn administers(
    connection: &mut AnyConnection,
    asker: &Asker,
    volume: VolumeId,
) -> Result<bool, DatabaseError> {
    let need = Need::Have(Right::Administer);
    match check_volume(connection, asker, volume, need).await {
        Ok(_) => Ok(true),
        // Its volume may be gone: administrators see it still.
        Err(DatabaseError::NotFound { .. }) => Ok(asker.party.is_administrator),
        Err(DatabaseError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) async fn attachment_of(
    connection: &mut AnyConnection,
    id: AttachmentId,
) -> Result<AttachmentRow, DatabaseError> {
    let row = sqlx::query("SELECT * FROM attachments WHERE id = $1")
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?;
    attachment_row(&row.ok_or_else(|| DatabaseError::NotFound {
        what: format!("attachment {id}"),
    })?)
}
