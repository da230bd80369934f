//! Journals in folders that several hosts share: which one is current, and who may open a volume
//! without it (docs/internals/leases-and-fencing.md).
//!
//! * A journal is named by the holder of the lease, and stays named until another one replaces it
//!   or the volume is closed.
//! * A host gets no lease on a volume whose journal it cannot reach, unless the lease of the
//!   journal's host was ended by force. The new attachment then says what happened to the journal.

use api::host::catalog_calls::NameJournal;
use api::words::MessageCode;
use base::{JournalFolderId, PartyId, VolumeId};
use catalog::NamedJournal;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};

use crate::database::catalog::leases;
use crate::database::{Catalog, DatabaseError, rows};

/// A volume's last named journal.
pub(in crate::database) struct Journal {
    named: NamedJournal,
    /// How the lease was ended by force, if it was.
    taken: Option<String>,
}

/// The named journal in a row of `volumes`.
pub(in crate::database) fn of_row(row: &AnyRow) -> Result<Option<Journal>, DatabaseError> {
    let Some(folder) = rows::spelled_if_any(row, "journal_folder")? else {
        return Ok(None);
    };
    let epoch = rows::small(row, "journal_epoch")?;
    Ok(Some(Journal {
        named: NamedJournal { epoch, folder },
        taken: row.try_get("journal_taken")?,
    }))
}

/// The named journal of a volume.
async fn of(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<Option<Journal>, DatabaseError> {
    let row = sqlx::query(
        "SELECT journal_epoch, journal_folder, journal_taken FROM volumes WHERE id = $1",
    )
    .bind(volume.to_string())
    .fetch_optional(connection)
    .await?;
    row.as_ref().map_or(Ok(None), of_row)
}

impl Journal {
    /// The named journal, for a new lease of `host`, which reaches the folder `reached`.
    ///
    /// # Errors
    /// [`DatabaseError::JournalUnavailable`] if the journal is in another folder and the lease of
    /// its host was not ended by force.
    pub(in crate::database) async fn for_lease(
        self,
        change: &mut AnyConnection,
        volume: VolumeId,
        host: PartyId,
        reached: Option<JournalFolderId>,
    ) -> Result<NamedJournal, DatabaseError> {
        let NamedJournal { epoch, folder } = self.named;
        let is_reached = reached == Some(folder);
        match self.taken {
            Some(taken) => {
                let end = match is_reached {
                    true => " and are replayed",
                    false => " only, which this host does not use",
                };
                note(change, volume, host, &format!("{taken}{end}")).await?;
            }
            None if is_reached => {}
            None => {
                let has = reached.map_or_else(
                    || "none".to_owned(),
                    |other| format!("another one ({other})"),
                );
                let reason = format!(
                    "the writes that lease {epoch} flushed are in the shared folder of journals \
                     {folder}, but this host uses {has}: start its agent with --journals and that \
                     folder"
                );
                return Err(DatabaseError::JournalUnavailable { volume, reason });
            }
        }
        Ok(self.named)
    }
}

/// Records on the new attachment what happened to the journal.
async fn note(
    change: &mut AnyConnection,
    volume: VolumeId,
    host: PartyId,
    text: &str,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE attachments SET notice = $1, notice_code = $4 WHERE volume = $2 AND host = $3 \
         AND access = 'read-write' AND state <> 'detached'",
    )
    .bind(text)
    .bind(volume.to_string())
    .bind(host.to_string())
    .bind(MessageCode::DetachedByForce.as_str())
    .execute(change)
    .await?;
    Ok(())
}

/// Records that the lease of `volume` was ended by force, and what the journal held that is in no
/// version.
pub(in crate::database) async fn record_forced_detach(
    change: &mut AnyConnection,
    volume: VolumeId,
    taken: &str,
    left: &str,
) -> Result<String, DatabaseError> {
    let taken = match of(&mut *change, volume).await? {
        None => {
            return Ok(format!(
                "{taken}; later writes{left} are only in that host's journal, which it quarantines"
            ));
        }
        // A later holder has acknowledged no write.
        Some(Journal {
            taken: Some(before),
            ..
        }) => before,
        Some(Journal { named, .. }) => format!(
            "{taken}; the writes that it flushed since{left} are in the shared folder of journals \
             {}",
            named.folder
        ),
    };
    sqlx::query("UPDATE volumes SET journal_taken = $1 WHERE id = $2")
        .bind(taken.clone())
        .bind(volume.to_string())
        .execute(change)
        .await?;
    Ok(taken)
}

/// Clears the named journal: everything is in versions, or was discarded.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    put(change, volume, None).await
}

async fn put(
    change: &mut AnyConnection,
    volume: VolumeId,
    named: Option<NamedJournal>,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE volumes SET journal_epoch = $1, journal_folder = $2, journal_taken = NULL \
         WHERE id = $3",
    )
    .bind(named.map(|named| i64::from(named.epoch)))
    .bind(named.map(|named| named.folder.to_string()))
    .bind(volume.to_string())
    .execute(change)
    .await?;
    Ok(())
}

impl Catalog<'_> {
    /// See [`catalog::Catalog::name_journal`].
    pub(in crate::database) async fn name_journal(
        self,
        host: PartyId,
        call: &NameJournal,
    ) -> Result<(), DatabaseError> {
        let NameJournal {
            volume,
            epoch,
            folder,
        } = *call;
        self.database
            .transaction()
            .run(|mut change| async move {
                leases::must_hold(&mut change, volume, host, epoch).await?;
                let named = folder.map(|folder| NamedJournal { epoch, folder });
                put(&mut change, volume, named).await
            })
            .await
    }
}
