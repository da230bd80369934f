//! Preloads: requests to hosts to read images into their caches, and their progress.
//!
//! Preloads are jobs (`hosts::jobs`). The last one of each image and host is kept until the image
//! is unmarked.

use std::collections::BTreeMap;

use api::host::{DesiredPreload, PreloadReport};
use api::words::{ImageMark, PreloadState};
use base::{PartyId, VolumeId};
use catalog::VersionKey;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::hosts::{self, jobs};
use crate::database::images::{administered, no_image};
use crate::database::rows::{self, VolumeRow};
use crate::database::tenancy::{audit_log, rights};
use crate::database::{DatabaseError, Images, Job, Need, Principal, Right};

/// Refuses a host that has never reported.
async fn check_heard(change: &mut AnyConnection, host: PartyId) -> Result<(), DatabaseError> {
    let row = sqlx::query(
        "SELECT name FROM parties p WHERE id = $1 \
         AND NOT EXISTS (SELECT 1 FROM host_reports r WHERE r.party = p.id)",
    )
    .bind(host.to_string())
    .fetch_optional(change)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let name: String = row.try_get(0)?;
    Err(DatabaseError::Refused {
        reason: format!("host {name:?} has never reported; start its agent"),
    })
}

/// Requests `host` to read a version of an image, unless it is reading one.
async fn request(
    change: &mut AnyConnection,
    image: VolumeId,
    version: VersionKey,
    host: PartyId,
    now: Millis,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO preloads (volume, host, generation, version_volume, \
         version_number, state, created_ms) VALUES ($1, $2, 1, $3, $4, $5, $6) \
         ON CONFLICT (volume, host) DO UPDATE SET \
         generation = preloads.generation + 1, \
         version_volume = excluded.version_volume, \
         version_number = excluded.version_number, state = excluded.state, \
         done_bytes = 0, total_bytes = NULL, message = NULL, \
         created_ms = excluded.created_ms, ended_ms = NULL \
         WHERE preloads.ended_ms IS NOT NULL",
    )
    .bind(image.to_string())
    .bind(host.to_string())
    .bind(version.volume.to_string())
    .bind(version.number.cast_signed())
    .bind(PreloadState::Waiting.as_str())
    .bind(now.0)
    .execute(change)
    .await?;
    Ok(())
}

/// Ends the preloads of an image on disabled hosts.
async fn end_on_disabled_hosts(
    change: &mut AnyConnection,
    image: VolumeId,
    now: Millis,
) -> Result<(), DatabaseError> {
    let disabled = sqlx::query(
        "SELECT id FROM parties WHERE disabled = 1 AND id IN \
         (SELECT host FROM preloads WHERE volume = $1 AND ended_ms IS NULL)",
    )
    .bind(image.to_string())
    .fetch_all(&mut *change)
    .await?;
    for host in &disabled {
        let host = rows::spelled(host, "id")?;
        Job::Preload
            .end_of_host(&mut *change, host, jobs::IS_DISABLED, now)
            .await?;
    }
    Ok(())
}

/// The progress of a host with an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreloadRow {
    /// The image.
    pub volume: VolumeId,
    /// The host's name.
    pub host_name: String,
    /// The state.
    pub state: PreloadState,
    /// How much it has read, in bytes.
    pub done_bytes: u64,
    /// How much there is to read, in bytes, if it was reported.
    pub total_bytes: Option<u64>,
    /// Why it failed or was skipped.
    pub message: Option<String>,
    /// When it was requested.
    pub created: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
}

impl Images<'_> {
    /// Requests hosts to read the current version of an image into their caches. A preload that is
    /// running continues; one on a disabled host ends at once.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`] unless the principal administers
    /// the volume and may read it, and may use each host; [`DatabaseError::Refused`] if it is
    /// not an image, was never destaged, is being deleted, its name is ambiguous, or a host has
    /// never reported.
    pub async fn begin_preloads(
        self,
        principal: &Principal,
        volume: &str,
        hosts: &[PartyId],
        now: Millis,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut change, principal, volume).await?;
                // A user who may read it could attach it there as well.
                let need = Need::Have(Right::Read);
                rights::check_volume(&mut change, principal, row.id, need).await?;
                if row.image.is_none() {
                    return Err(no_image(&row));
                }
                let Some(version) = row.head else {
                    let name = &row.name;
                    return Err(DatabaseError::Refused {
                        reason: format!("volume {name:?} has no data on the units yet"),
                    });
                };
                for host in hosts {
                    rights::check_host(&mut change, principal, *host, None).await?;
                    check_heard(&mut change, *host).await?;
                    request(&mut change, row.id, version, *host, now).await?;
                    hosts::assign(&mut change, *host).await?;
                    let place = audit_log::place(&mut change, *host, None).await?;
                    let target = format!("{} {} on {place}", row.id, row.name);
                    principal.note(&mut change, "preload", target).await?;
                }
                end_on_disabled_hosts(&mut change, row.id, now).await?;
                Ok(row)
            })
            .await
    }

    /// Cancels the preloads of an image. What was read stays in the caches.
    ///
    /// # Errors
    /// As [`Images::unmark`].
    pub async fn end_preloads(
        self,
        principal: &Principal,
        volume: &str,
        now: Millis,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut change, principal, volume).await?;
                if row.image.is_none() {
                    return Err(no_image(&row));
                }
                let ended = sqlx::query(
                    "UPDATE preloads SET state = $1, message = $2, ended_ms = $3 \
                 WHERE volume = $4 AND ended_ms IS NULL RETURNING host",
                )
                .bind(PreloadState::Error.as_str())
                .bind("it was canceled")
                .bind(now.0)
                .bind(row.id.to_string())
                .fetch_all(&mut *change)
                .await?;
                jobs::assign(&mut change, &ended).await?;
                let target = format!("{} {}", row.id, row.name);
                principal.note(&mut change, "end-preloads", target).await?;
                Ok(row)
            })
            .await
    }

    /// The images that a host should read into its cache.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn preloads_on(self, host: PartyId) -> Result<Vec<DesiredPreload>, DatabaseError> {
        Job::Preload.desired(self.database, host, desired).await
    }

    /// Records the progress of a host; `false` if the preload was replaced or canceled.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_preload_report(
        self,
        host: PartyId,
        volume: VolumeId,
        report: &PreloadReport,
        now: Millis,
    ) -> Result<bool, DatabaseError> {
        let (state, message, ended) = match &report.end {
            None => (PreloadState::Loading, None, None),
            Some(Ok(())) => (PreloadState::Done, None, Some(now.0)),
            Some(Err(why)) if report.has_no_cache => {
                (PreloadState::Skipped, Some(why.as_str()), Some(now.0))
            }
            Some(Err(why)) => (PreloadState::Error, Some(why.as_str()), Some(now.0)),
        };
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let kept = sqlx::query(
                    "UPDATE preloads SET state = $1, message = $2, ended_ms = $3, done_bytes = $4, \
                 total_bytes = $5 WHERE volume = $6 AND host = $7 AND generation = $8 \
                 AND ended_ms IS NULL",
                )
                .bind(state.as_str())
                .bind(message)
                .bind(ended)
                .bind(report.done_bytes.cast_signed())
                .bind(report.total_bytes.cast_signed())
                .bind(volume.to_string())
                .bind(host.to_string())
                .bind(report.generation.cast_signed())
                .execute(&mut *change)
                .await?;
                if kept.rows_affected() > 0 && ended.is_some() {
                    hosts::assign(&mut change, host).await?;
                }
                Ok(kept.rows_affected() > 0)
            })
            .await
    }

    /// The preloads of some images, by image.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn preloads_of(
        self,
        volumes: impl Iterator<Item = VolumeId>,
    ) -> Result<BTreeMap<VolumeId, Vec<PreloadRow>>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let mut all = BTreeMap::new();
        for volume in volumes {
            let found = sqlx::query(
                "SELECT p.*, h.name AS host_name FROM preloads p JOIN parties h ON h.id = p.host \
                 WHERE p.volume = $1 ORDER BY h.name",
            )
            .bind(volume.to_string())
            .fetch_all(&mut *moment)
            .await?;
            let rows = found.iter().map(preload_row).collect::<Result<_, _>>()?;
            all.insert(volume, rows);
        }
        Ok(all)
    }
}

/// Converts a row; `None` if the volume's row is damaged, which the list of volumes shows.
fn desired(row: &AnyRow) -> Result<Option<DesiredPreload>, DatabaseError> {
    let Ok(block_size) = rows::block_size(row) else {
        return Ok(None);
    };
    let mark: ImageMark = rows::spelled(row, "image")?;
    let version = rows::version_key(row, "version_volume", "version_number")?;
    let volume = rows::spelled(row, "volume")?;
    let generation = rows::number(row, "generation")?;
    let size_bytes = rows::number(row, "size_bytes")?;
    Ok(version.map(|version| DesiredPreload {
        volume,
        generation,
        version,
        size_bytes,
        block_size,
        is_pinned: mark == ImageMark::Pinned,
    }))
}

fn preload_row(row: &AnyRow) -> Result<PreloadRow, DatabaseError> {
    let total_bytes: Option<i64> = row.try_get("total_bytes")?;
    Ok(PreloadRow {
        volume: rows::spelled(row, "volume")?,
        host_name: row.try_get("host_name")?,
        state: rows::spelled(row, "state")?,
        done_bytes: rows::number(row, "done_bytes")?,
        total_bytes: total_bytes.map(i64::cast_unsigned),
        message: row.try_get("message")?,
        created: Millis(row.try_get("created_ms")?),
        ended: row.try_get::<Option<i64>, _>("ended_ms")?.map(Millis),
    })
}
