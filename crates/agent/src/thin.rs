//! Blocks with fewer copies than their volume should have.
//!
//! A destage that finds no copyset whose units all take writes places those
//! copies it can. The engine notes the segments before it commits them, and
//! they are shown until they are gone: no copy is made later.

use std::sync::Arc;

use base::SegmentId;
use unit::{Unit as _, UnitError, UnitState};
use volume::Store;
use volume::scatter::Member;

use crate::agent::{Agent, blocking};
use crate::cleaning::CleaningError;

/// How many segments are looked for in one turn.
const AT_ONCE: u32 = 256;

impl Agent {
    /// Forgets the segments that have gone, some of those above `after`;
    /// returns from where to go on the next time.
    pub(crate) async fn forget_thin(&self, after: u64) -> Result<u64, CleaningError> {
        let controller = &self.inner.controller;
        let segments = controller.thin_segments(after, AT_ONCE).await?;
        let Some(last) = segments.last().copied() else {
            return Ok(0);
        };
        let store = Arc::clone(&self.inner.store);
        let gone: Vec<SegmentId> = blocking(move || {
            let segments = segments.into_iter();
            segments
                .filter(|segment| is_gone(&store, *segment))
                .collect()
        })
        .await?;
        if !gone.is_empty() {
            controller.forget_thin(gone).await?;
        }
        Ok(last.bits())
    }
}

/// Whether no unit has anything of a segment, and each has said so. Nothing is
/// asked of units that are not well: they may not answer.
fn is_gone(store: &Store, segment: SegmentId) -> bool {
    if store.open_segments().contains(segment) {
        return false;
    }
    let table = store.table();
    let members = table.members(segment.copyset());
    if members
        .iter()
        .any(|member| member.unit.state() != UnitState::Healthy)
    {
        return false;
    }
    let is_without = |member: &Member| match member.unit.stat_segment(segment) {
        Err(UnitError::NoSegment { .. }) => true,
        Ok(stat) => stat.freed == stat.slots,
        Err(_) => false,
    };
    !members.is_empty() && members.iter().all(is_without)
}
