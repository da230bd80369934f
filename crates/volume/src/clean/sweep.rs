//! [`sweep`]: frees slots that a lease wrote and never committed.

use std::ops::Range;

use base::{SegmentId, Slot};
use catalog::Leftovers;
use unit::{Unit, UnitError};

use crate::scatter::Store;

/// Frees leftovers: slots beyond the committed ones in segments that were open,
/// and whole segments with serials beyond the last one committed. Nothing is
/// ever appended to any of them again. May be repeated.
///
/// # Errors
/// That of the first unit that failed; the others were swept. Then the sweep is to
/// be repeated, for leftovers may still be there.
pub fn sweep(store: &Store, leftovers: &Leftovers) -> Result<(), UnitError> {
    let table = store.table();
    let mut swept = Ok(());
    for open in &leftovers.open_segments {
        let copyset = open.segment.copyset();
        // Commits end with whole rows.
        let layout = table.layout(copyset);
        let rows = layout.rows(open.slots);
        for member in table.members(copyset) {
            let part = match layout.erasure() {
                Some(_) if rows == 0 => Part::Copies,
                Some(erasure) if member.place >= erasure.data() => Part::Parity,
                Some(_) => Part::Data,
                None => Part::Copies,
            };
            let result = sweep_segment(&*member.unit, open.segment, rows, part);
            swept = swept.and(result);
        }
    }
    if !leftovers.serials.is_empty() {
        for member in table.units() {
            let result = sweep_serials(&*member.unit, &leftovers.serials);
            swept = swept.and(result);
        }
    }
    swept
}

/// A member's part of a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Copies: the segment is deleted if nothing is left of it.
    Copies,
    /// Data with parity: freed slots mark padding while the segment exists.
    Data,
    /// From generation 1 on, the slot after the rows holds their masks. A second sweep of
    /// the same leftovers finds it if slots were reclaimed in between, and must keep it.
    Parity,
}

/// Frees what a unit has of a segment beyond its first `committed` slots.
fn sweep_segment(
    unit: &dyn Unit,
    segment: SegmentId,
    committed: u32,
    part: Part,
) -> Result<(), UnitError> {
    let put = match unit.stat_segment(segment) {
        Ok(stat) if part == Part::Parity && stat.generation > 0 => stat.slots.saturating_sub(1),
        Ok(stat) => stat.slots,
        // Perhaps a file without content: a crash interrupted the put that
        // created it, or the delete that empties it first.
        Err(UnitError::NoSegment { .. }) => return unit.delete(segment),
        // A header that was torn by the crash: no version names a slot in it.
        Err(UnitError::Damaged { .. }) if committed == 0 => return unit.delete(segment),
        Err(error) => return Err(error),
    };
    let leftovers: Vec<Slot> = (committed..put)
        .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
        .collect();
    unit.free(segment, &leftovers, part == Part::Copies)
}

fn sweep_serials(unit: &dyn Unit, serials: &[Range<u64>]) -> Result<(), UnitError> {
    let mut swept = Ok(());
    for range in serials {
        for segment in unit.list_serials(range.clone())? {
            let result = unit.delete(segment);
            swept = swept.and(result);
        }
    }
    swept
}
