//! What a host may do on units, read from rows: the content of capabilities.
//!
//! Each check is the same as in the catalog call that leads to the operation, and refuses for the
//! same reasons.

use std::ops::Range;

use base::{Lineage, PartyId, SegmentId, VolumeId};
use catalog::{FreePlan, Leftovers};
use world::Millis;

use crate::database::catalog::leases::holder_of;
use crate::database::catalog::ledger::leftovers_of;
use crate::database::{Catalog, DatabaseError, ObjectKind, Reach, rows};

/// The rights to carry out a free plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeRights {
    /// The segments in which it frees, in order.
    pub segments: Vec<SegmentId>,
    /// The lineages that wrote them.
    pub lineages: Vec<Lineage>,
}

/// The rights of a lease on a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRights {
    /// The lineage that writes.
    pub lineage: Lineage,
    /// The lease's epoch.
    pub epoch: u32,
    /// The serials that it has reserved and not used up, and those that earlier leases left open:
    /// in order, joined where they touch.
    pub serials: Vec<Range<u64>>,
}

impl Catalog<'_> {
    /// The rights of lease `epoch` of `volume`, if `host` holds it.
    ///
    /// # Errors
    /// [`DatabaseError::Fenced`] and the others.
    pub async fn lease_rights(
        self,
        host: PartyId,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<LeaseRights, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let lineage = holder_of(&mut moment, volume, host, epoch).await?;
        let left = leftovers_of(&mut moment, volume, u32::MAX).await?;
        Ok(LeaseRights {
            lineage,
            epoch,
            serials: serials_of(&left),
        })
    }

    /// The rights to sweep what the leases of a deleted volume left, if the host cleans it.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] and the others.
    pub async fn sweep_rights(
        self,
        reach: &Reach,
        volume: VolumeId,
    ) -> Result<LeaseRights, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let none = || DatabaseError::not_found(ObjectKind::Volume, volume);
        reach.must_clean(&mut moment, volume, none).await?;
        let row = sqlx::query("SELECT epoch, lineage FROM volumes WHERE id = $1 AND deleting = 1")
            .bind(volume.to_string())
            .fetch_optional(&mut *moment)
            .await?
            .ok_or_else(none)?;
        let left = leftovers_of(&mut moment, volume, u32::MAX).await?;
        Ok(LeaseRights {
            lineage: rows::spelled(&row, "lineage")?,
            epoch: rows::small(&row, "epoch")?,
            serials: serials_of(&left),
        })
    }

    /// A lineage and all lineages above it, if the host may have their keys.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] and the others.
    pub async fn read_rights(
        self,
        reach: &Reach,
        lineage: Lineage,
    ) -> Result<Vec<Lineage>, DatabaseError> {
        let keys = self.database.keys().of_lineage(reach, lineage).await?;
        Ok(keys.into_iter().map(|key| key.lineage).collect())
    }

    /// The rights of a free plan that is due, if the host carries it out.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] and the others.
    pub async fn free_rights(
        self,
        reach: &Reach,
        now: Millis,
        plan: i64,
    ) -> Result<FreeRights, DatabaseError> {
        let Some((bytes, lineages)) = self.due_free(reach, now, plan).await? else {
            return Err(DatabaseError::not_found(ObjectKind::Plan, plan));
        };
        // The plan may have 1 MiB.
        let read = move || {
            let plan = FreePlan::decode(&bytes)?;
            Ok(plan.segments().map(|(segment, _)| segment).collect())
        };
        let read = crate::database::joined(tokio::task::spawn_blocking(read).await)?;
        let segments = read.map_err(|error: catalog::BadPlan| DatabaseError::Damaged {
            what: format!("plan {plan}: {error}"),
        })?;
        Ok(FreeRights { segments, lineages })
    }
}

/// The serials of leftover segments, in order and joined.
fn serials_of(left: &Leftovers) -> Vec<Range<u64>> {
    let open = left.open_segments.iter().map(|open| {
        let serial = open.segment.serial();
        serial..serial + 1
    });
    let mut all: Vec<Range<u64>> = left.serials.iter().cloned().chain(open).collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in all.into_iter().filter(|range| !range.is_empty()) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use base::CopysetId;
    use catalog::OpenSegment;

    use super::*;

    #[test]
    fn what_touches_is_one_range() {
        let copyset = CopysetId::new(3).expect("one");
        let open = |serial| OpenSegment {
            segment: SegmentId::new(copyset, serial).expect("one"),
            slots: 1,
        };
        let left = Leftovers {
            open_segments: vec![open(4), open(9), open(30)],
            serials: vec![10..20, 5..9, 20..20, 21..22],
        };
        let serials = serials_of(&left);
        assert_eq!(serials, [4..20, 21..22, 30..31]);
    }
}
