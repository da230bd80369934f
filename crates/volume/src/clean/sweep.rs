//! Freeing what a lease wrote and never committed.

use std::ops::Range;

use base::Slot;
use unit::{Unit, UnitError};

use crate::catalog::{Leftovers, OpenSegment};
use crate::scatter::Store;

/// Frees orphans: slots beyond the committed ones in segments that were open,
/// and whole segments with serials beyond the last one committed. Nothing is
/// ever appended to any of them again. May be done twice.
///
/// # Errors
/// The first unit that could not be asked; the others were. Then the sweep is
/// to be repeated, for the orphans may still lie there.
pub fn sweep(store: &Store, leftovers: &Leftovers) -> Result<(), UnitError> {
    let table = store.table();
    let mut swept = Ok(());
    for open in &leftovers.open_segments {
        for member in table.members(open.segment.copyset()) {
            let result = sweep_segment(&*member.unit, *open);
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

fn sweep_segment(unit: &dyn Unit, open: OpenSegment) -> Result<(), UnitError> {
    let put = match unit.stat_segment(open.segment) {
        Ok(stat) => stat.slots,
        // Perhaps a file without content: a crash cut short the put that
        // made it, or the delete that empties it first.
        Err(UnitError::NoSegment { .. }) => return unit.delete(open.segment),
        // A header that was torn by the crash: nothing in it is named.
        Err(UnitError::Damaged { .. }) if open.slots == 0 => return unit.delete(open.segment),
        Err(error) => return Err(error),
    };
    let orphans: Vec<Slot> = (open.slots..put)
        .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
        .collect();
    unit.free(open.segment, &orphans, true)
}

fn sweep_serials(unit: &dyn Unit, serials: &[Range<u64>]) -> Result<(), UnitError> {
    let mut swept = Ok(());
    for range in serials {
        for orphan in unit.list_serials(range.clone())? {
            let result = unit.delete(orphan);
            swept = swept.and(result);
        }
    }
    swept
}
