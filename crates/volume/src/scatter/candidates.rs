//! Which copysets an assignment may choose from.

use base::{CopysetId, UnitId};
use unit::UnitState;

use super::layout::Layout;
use super::table::{Member, Table};

/// The copysets of `replicas` units with the most members that take writes.
/// All members healthy is best; but a volume whose units are nearly all down
/// keeps writing with fewer copies rather than stopping its VM.
pub(super) fn best_copysets(table: &Table, replicas: u8, layout: Layout) -> Vec<CopysetId> {
    // With parity, a row needs as many members as it has data slots.
    let mut best = layout.row_slots() as usize;
    let mut found = Vec::new();
    for id in fitting(table, replicas, layout) {
        let writable = writable_members(table, id).len();
        if writable > best {
            best = writable;
            found.clear();
        }
        if writable == best {
            found.push(id);
        }
    }
    // The table is a hash map: sorted, so that the seed alone decides the order.
    found.sort_unstable();
    found
}

/// The copysets of the required size and layout.
fn fitting(table: &Table, replicas: u8, layout: Layout) -> impl Iterator<Item = CopysetId> {
    table
        .copysets()
        .filter(move |(id, its_layout, _)| {
            let members = table.write_target_ids(*id).len();
            let is_as_wide = layout.erasure().is_some() || members == usize::from(replicas);
            *its_layout == layout && is_as_wide
        })
        .map(|(id, ..)| id)
}

/// Whether some copyset would take writes if all its units were available.
pub(super) fn could_take_writes(table: &Table, replicas: u8, layout: Layout) -> bool {
    let may = |member: &&Member| {
        let state = member.unit.state();
        state.can_write() || matches!(state, UnitState::Missing | UnitState::Failing)
    };
    fitting(table, replicas, layout)
        .any(|id| table.write_targets(id).filter(may).count() >= layout.row_slots() as usize)
}

/// The members of a copyset that take writes.
pub(super) fn writable_members(table: &Table, copyset: CopysetId) -> Vec<UnitId> {
    let writable_members = table.write_targets(copyset);
    let writable_members = writable_members.filter(|member| member.unit.can_write());
    writable_members.map(|member| member.id).collect()
}
