//! The settings of a volume: what is given when it is created, may be changed later, and has no
//! effect on its content. A new field of a volume mostly belongs here
//! (docs/internals/add-a-volume-field.md).

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};

use crate::database::attach::attachments::of_volume;
use crate::database::images::administered;
use crate::database::rows::VolumeRow;
use crate::database::{DatabaseError, Principal, Volumes, hosts};

/// The settings of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeSettings {
    /// Length of its journal in bytes; `None`: the host's default.
    pub journal_bytes: Option<u64>,
    /// Its largest share of each host's read cache in bytes; `None`: a fair share.
    pub cache_max_bytes: Option<u64>,
}

impl Volumes<'_> {
    /// Changes the settings. Hosts apply a cache share at once, and a journal length at the next
    /// attachment.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], also if the journal's length
    /// changes and the principal is not an administrator; [`DatabaseError::Refused`] if the volume is
    /// being deleted, or the name is ambiguous.
    pub async fn set_settings(
        self,
        principal: &Principal,
        volume: &str,
        settings: VolumeSettings,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut *change, principal, volume).await?;
                if settings.journal_bytes != row.settings.journal_bytes {
                    settings.refuse_unless_allowed(principal)?;
                }
                settings.write(&mut *change, &row.id.to_string()).await?;
                for attachment in of_volume(&mut *change, row.id).await? {
                    hosts::assign(&mut *change, attachment.host).await?;
                }
                let target = format!("{} {}", row.id, row.name);
                principal.note(&mut *change, "set-sizes", target).await?;
                Ok(VolumeRow { settings, ..row })
            })
            .await
    }
}

impl VolumeSettings {
    /// Reads the settings from a row of `volumes`.
    pub(in crate::database) fn of(row: &AnyRow) -> Result<Self, DatabaseError> {
        let bytes = |column| -> Result<Option<u64>, DatabaseError> {
            let bytes: Option<i64> = row.try_get(column)?;
            Ok(bytes.map(i64::cast_unsigned))
        };
        Ok(Self {
            journal_bytes: bytes("journal_bytes")?,
            cache_max_bytes: bytes("cache_max_bytes")?,
        })
    }

    /// Refuses a journal length that is set by a user: the journal takes space on the host's disk, which
    /// others need, too.
    pub(in crate::database) fn refuse_unless_allowed(
        self,
        principal: &Principal,
    ) -> Result<(), DatabaseError> {
        if self.journal_bytes.is_none() || principal.party.is_administrator {
            return Ok(());
        }
        Err(DatabaseError::Forbidden {
            reason:
                "a journal takes space on its host, so only an administrator may set its length"
                    .to_owned(),
        })
    }

    /// Writes the settings to the row of a volume.
    pub(in crate::database) async fn write(
        self,
        change: &mut AnyConnection,
        volume: &str,
    ) -> Result<(), DatabaseError> {
        sqlx::query("UPDATE volumes SET journal_bytes = $1, cache_max_bytes = $2 WHERE id = $3")
            .bind(self.journal_bytes.map(u64::cast_signed))
            .bind(self.cache_max_bytes.map(u64::cast_signed))
            .bind(volume)
            .execute(change)
            .await?;
        Ok(())
    }
}
