//! What a volume may take of hosts: the length of its journal, and its part of their caches.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};

use crate::database::attach::attachments::of_volume;
use crate::database::images::administered;
use crate::database::rows::VolumeRow;
use crate::database::{DatabaseError, Principal, Volumes, hosts};

/// What a volume may take of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeSizes {
    /// How long its journal is, in bytes; none: as its host has it for all.
    pub journal_bytes: Option<u64>,
    /// What it may have of each host's cache for what volumes read, in bytes; none: its fair
    /// share.
    pub cache_max_bytes: Option<u64>,
}

impl Volumes<'_> {
    /// Says what a volume may take of hosts: of their caches at once, of a journal from its
    /// next attachment on.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], also if its journal is to be
    /// of another length and the principal is no administrator; [`DatabaseError::Refused`] if it
    /// is being deleted, or the name is not clear.
    pub async fn set_sizes(
        self,
        principal: &Principal,
        volume: &str,
        sizes: VolumeSizes,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut *change, principal, volume).await?;
                if sizes.journal_bytes != row.sizes.journal_bytes {
                    sizes.refuse_unless_allowed(principal)?;
                }
                sizes.keep(&mut *change, &row.id.to_string()).await?;
                for attachment in of_volume(&mut *change, row.id).await? {
                    hosts::assign(&mut *change, attachment.host).await?;
                }
                let target = format!("{} {}", row.id, row.name);
                principal.note(&mut *change, "set-sizes", target).await?;
                Ok(VolumeRow { sizes, ..row })
            })
            .await
    }
}

impl VolumeSizes {
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

    /// A journal takes room of its host's disk, which others need, too.
    pub(in crate::database) fn refuse_unless_allowed(
        self,
        principal: &Principal,
    ) -> Result<(), DatabaseError> {
        if self.journal_bytes.is_none() || principal.party.is_administrator {
            return Ok(());
        }
        Err(DatabaseError::Forbidden {
            reason: "a journal takes room of its host, and only an administrator says how much"
                .to_owned(),
        })
    }

    pub(in crate::database) async fn keep(
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
