//! Segments of which some unit has no copy.

use base::{SegmentId, VolumeId};
use catalog::ThinShare;

use super::{Database, DatabaseError, rows};

/// What of one volume has too few copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinVolume {
    /// Who wrote it; it may be gone, and its versions held by snapshots.
    pub volume: VolumeId,
    /// In how many segments.
    pub segments: u64,
    /// How many slots, those among them that were freed since.
    pub slots: u64,
}

impl Database {
    /// See [`catalog::Catalog::note_thin`].
    pub(super) async fn note_thin(
        &self,
        volume: VolumeId,
        thin: &[ThinShare],
    ) -> Result<(), DatabaseError> {
        change!(self, change, {
            for share in thin {
                sqlx::query(
                    "INSERT INTO thin_segments (segment, volume, slots) VALUES ($1, $2, $3) \
                     ON CONFLICT (segment) \
                     DO UPDATE SET slots = thin_segments.slots + excluded.slots",
                )
                .bind(share.segment.bits().cast_signed())
                .bind(volume.to_string())
                .bind(i64::from(share.slots))
                .execute(&mut *change)
                .await?;
            }
            Ok(())
        })
    }

    /// What has too few copies, by volume.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn thin_volumes(&self) -> Result<Vec<ThinVolume>, DatabaseError> {
        sqlx::query(
            "SELECT volume, COUNT(*) AS segments, CAST(SUM(slots) AS BIGINT) AS slots FROM thin_segments \
             GROUP BY volume ORDER BY volume",
        )
        .fetch_all(&self.reader)
        .await?
        .iter()
        .map(|row| {
            Ok(ThinVolume {
                volume: rows::spelt(row, "volume")?,
                segments: rows::number(row, "segments")?,
                slots: rows::number(row, "slots")?,
            })
        })
        .collect()
    }

    /// The first `count_max` such segments whose numbers are above `after`.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn thin_segments(
        &self,
        after: u64,
        count_max: u32,
    ) -> Result<Vec<SegmentId>, DatabaseError> {
        sqlx::query(
            "SELECT segment FROM thin_segments WHERE segment > $1 ORDER BY segment LIMIT $2",
        )
        .bind(after.cast_signed())
        .bind(i64::from(count_max))
        .fetch_all(&self.reader)
        .await?
        .iter()
        .map(|row| {
            let bits = rows::number(row, "segment")?;
            SegmentId::from_bits(bits).ok_or_else(|| DatabaseError::Damaged {
                what: format!("segment number {bits}"),
            })
        })
        .collect()
    }

    /// Forgets segments that are gone.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn forget_thin(&self, segments: &[SegmentId]) -> Result<(), DatabaseError> {
        change!(self, change, {
            for segment in segments {
                sqlx::query("DELETE FROM thin_segments WHERE segment = $1")
                    .bind(segment.bits().cast_signed())
                    .execute(&mut *change)
                    .await?;
            }
            Ok(())
        })
    }
}
