//! Segments of which some unit has no copy.

use base::{PartyId, SegmentId, VolumeId};
use catalog::ThinShare;

use super::{Database, DatabaseError, Reach, rows};

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
        host: PartyId,
        volume: VolumeId,
        thin: &[ThinShare],
    ) -> Result<(), DatabaseError> {
        change!(self, change, {
            super::leases::must_write(&mut *change, volume, host).await?;
            for share in thin {
                sqlx::query(
                    "INSERT INTO thin_segments (segment, volume, slots) VALUES ($1, $2, $3) \
                     ON CONFLICT (segment) \
                     DO UPDATE SET slots = thin_segments.slots + excluded.slots \
                     WHERE thin_segments.volume = excluded.volume",
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

    /// The first `count_max` such segments whose numbers are above `after`, of
    /// volumes that a host is to clean.
    pub(super) async fn thin_segments_of(
        &self,
        reach: &Reach,
        after: u64,
        count_max: u32,
    ) -> Result<Vec<SegmentId>, DatabaseError> {
        let statement = concat!(
            "SELECT t.segment FROM thin_segments t WHERE t.segment > $3 AND ",
            cleans!("t.volume"),
            " ORDER BY t.segment LIMIT $4"
        );
        reach
            .query(statement)
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

    /// Forgets segments that are gone, of volumes that a host is to clean.
    pub(super) async fn forget_thin(
        &self,
        reach: &Reach,
        segments: &[SegmentId],
    ) -> Result<(), DatabaseError> {
        let statement = concat!(
            "DELETE FROM thin_segments WHERE segment = $3 AND ",
            cleans!("thin_segments.volume")
        );
        change!(self, change, {
            for segment in segments {
                reach
                    .query(statement)
                    .bind(segment.bits().cast_signed())
                    .execute(&mut *change)
                    .await?;
            }
            super::deleting::forget_departed(change).await
        })
    }
}
