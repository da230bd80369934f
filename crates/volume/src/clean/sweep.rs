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
/// The first unit that could not be asked: then the sweep is to be repeated,
/// for the orphans may still lie there.
pub fn sweep(store: &Store, leftovers: &Leftovers) -> Result<(), UnitError> {
    for open in &leftovers.open_segments {
        sweep_segment(store, *open)?;
    }
    if !leftovers.serials.is_empty() {
        sweep_serials(store, &leftovers.serials)?;
    }
    Ok(())
}

fn sweep_segment(store: &Store, open: OpenSegment) -> Result<(), UnitError> {
    let table = store.table();
    for member in table.members(open.segment.copyset()) {
        let put = match member.unit.stat_segment(open.segment) {
            Ok(stat) => stat.slots,
            // Perhaps a file without content: a crash cut short the put that
            // made it, or the delete that empties it first.
            Err(UnitError::NoSegment { .. }) => {
                member.unit.delete(open.segment)?;
                continue;
            }
            // A header that was torn by the crash: nothing in it is named.
            Err(UnitError::Damaged { .. }) if open.slots == 0 => {
                member.unit.delete(open.segment)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let orphans: Vec<Slot> = (open.slots..put)
            .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
            .collect();
        member.unit.free(open.segment, &orphans, true)?;
    }
    Ok(())
}

fn sweep_serials(store: &Store, serials: &[Range<u64>]) -> Result<(), UnitError> {
    for member in store.table().units() {
        for segment in member.unit.list()? {
            if serials
                .iter()
                .any(|range| range.contains(&segment.serial()))
            {
                member.unit.delete(segment)?;
            }
        }
    }
    Ok(())
}
