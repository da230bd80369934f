//! The ledger of each volume: the segments that its leases left open, and the serials that are
//! reserved for it and that no version names yet.

use std::collections::HashSet;

use base::{SegmentId, VolumeId};
use catalog::{Leftovers, OpenSegment};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use crate::database::{DatabaseError, rows};

/// What the leases before `epoch` left unfinished.
pub(in crate::database) async fn leftovers_of(
    connection: &mut AnyConnection,
    volume: VolumeId,
    epoch: u32,
) -> Result<Leftovers, DatabaseError> {
    let open_segments = sqlx::query(
        "SELECT segment, slots FROM open_segments WHERE volume = $1 AND epoch < $2 \
         ORDER BY segment",
    )
    .bind(volume.to_string())
    .bind(i64::from(epoch))
    .fetch_all(&mut *connection)
    .await?;
    let serials = sqlx::query(
        "SELECT first, end_before FROM serial_ranges WHERE volume = $1 AND epoch < $2 \
         ORDER BY first",
    )
    .bind(volume.to_string())
    .bind(i64::from(epoch))
    .fetch_all(&mut *connection)
    .await?;
    Ok(Leftovers {
        open_segments: open_segments
            .iter()
            .map(open_segment)
            .collect::<Result<_, _>>()?,
        serials: serials
            .iter()
            .map(|row| Ok(rows::number(row, "first")?..rows::number(row, "end_before")?))
            .collect::<Result<_, DatabaseError>>()?,
    })
}

fn open_segment(row: &AnyRow) -> Result<OpenSegment, DatabaseError> {
    let bits = rows::number(row, "segment")?;
    let segment = SegmentId::from_bits(bits).ok_or_else(|| DatabaseError::Damaged {
        what: format!("segment number {bits}"),
    })?;
    Ok(OpenSegment {
        segment,
        slots: rows::small(row, "slots")?,
    })
}

/// Refuses segments that were never reserved for the volume: the next lease may delete what this
/// one leaves open.
pub(super) async fn check_segments(
    connection: &mut AnyConnection,
    volume: VolumeId,
    segments: Vec<SegmentId>,
) -> Result<(), DatabaseError> {
    let own = leftovers_of(connection, volume, u32::MAX).await?;
    let open: HashSet<SegmentId> = own.open_segments.iter().map(|open| open.segment).collect();
    let is_own = |segment: SegmentId| {
        let mut ranges = own.serials.iter();
        open.contains(&segment) || ranges.any(|range| range.contains(&segment.serial()))
    };
    match segments.into_iter().find(|segment| !is_own(*segment)) {
        None => Ok(()),
        Some(segment) => Err(DatabaseError::Refused {
            reason: format!("segment {segment:?} was not reserved for {volume}"),
        }),
    }
}

/// Replaces the open segments of lease `epoch`.
pub(super) async fn note_open_segments(
    connection: &mut AnyConnection,
    volume: VolumeId,
    epoch: u32,
    segments: &[OpenSegment],
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM open_segments WHERE volume = $1 AND epoch = $2")
        .bind(volume.to_string())
        .bind(i64::from(epoch))
        .execute(&mut *connection)
        .await?;
    for open in segments {
        sqlx::query(
            "INSERT INTO open_segments (volume, epoch, segment, slots) VALUES ($1, $2, $3, $4)",
        )
        .bind(volume.to_string())
        .bind(i64::from(epoch))
        .bind(open.segment.bits().cast_signed())
        .bind(i64::from(open.slots))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Serials below `next` are in committed versions, or in open segments.
pub(super) async fn note_serials_used(
    connection: &mut AnyConnection,
    volume: VolumeId,
    epoch: u32,
    next: u64,
) -> Result<(), DatabaseError> {
    for statement in [
        "DELETE FROM serial_ranges WHERE volume = $1 AND epoch = $2 AND end_before <= $3",
        "UPDATE serial_ranges SET first = $3 WHERE volume = $1 AND epoch = $2 AND first < $3",
    ] {
        sqlx::query(statement)
            .bind(volume.to_string())
            .bind(i64::from(epoch))
            .bind(next.cast_signed())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}
