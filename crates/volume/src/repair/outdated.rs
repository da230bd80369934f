//! Outdated parity: parity that is made of slots which were freed.

use std::collections::BTreeMap;

use catalog::MemberState;

use super::compare::SlotState;
use super::copy_error::CopyError;
use super::rows::Rows;
use crate::scatter::erasure::SlotContent;

impl Rows<'_> {
    /// Whether the member's parity is made of slots that were freed since: the unit was
    /// rolled back, or a host with an old table freed them. For an in-sync member, some
    /// other parity has to confirm it.
    pub fn is_outdated(&mut self) -> Result<bool, CopyError> {
        let to = self.on.to;
        let member = &self.on.members[to];
        let Some((_, masks)) = self.masks.get(&to).cloned() else {
            return Ok(false);
        };
        let is_sure = |other: &usize| {
            *other != to && self.on.members[*other].state != MemberState::Rebuilding
        };
        let others: Vec<usize> = self.masks.keys().copied().filter(is_sure).collect();
        if member.state == MemberState::InSync && others.is_empty() {
            return Ok(false);
        }
        for row in 0..self.own(to) {
            let mask = masks.of(row as u32);
            let is_left_out = |place: u8| {
                let masks = others.iter().map(|other| &self.masks[other].1);
                let mut masks = masks.map(|masks| masks.of(row as u32));
                masks.all(|mask| mask >> place & 1 == 0)
            };
            let is_gone = |place: &u8| {
                mask >> place & 1 == 1 && self.is_freed(*place, row) && is_left_out(*place)
            };
            let is_suspected = (0..self.erasure.data()).any(|place| is_gone(&place));
            if is_suspected && self.differs(row)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a slot was freed at its place, and no member keeps it.
    fn is_freed(&self, place: u8, row: usize) -> bool {
        let held = |member: usize| {
            let copy = self.on.copies[member].as_ref();
            copy.map_or(SlotState::Never, |copy| copy.held(row))
        };
        self.at(place)
            .any(|member| held(member) == SlotState::Freed)
            && !self.at(place).any(|member| held(member) == SlotState::Kept)
    }

    /// Whether the member's parity of a row differs from the one computed from the row.
    fn differs(&mut self, row: usize) -> Result<bool, CopyError> {
        let rows = row..row + 1;
        let is = self.read(self.on.to, rows.clone(), |_| true)?.pop();
        let Some(is @ SlotContent::Present(..)) = is else {
            return Ok(false);
        };
        let mut as_read = BTreeMap::new();
        for place in 0..self.erasure.data() {
            let Some(member) = self.at(place).next() else {
                continue;
            };
            match self.read(member, rows.clone(), |_| true) {
                Err(CopyError::Source(_)) => continue,
                column => as_read.insert(place, column?),
            };
        }
        let made = |columns: &BTreeMap<u8, Vec<SlotContent>>| {
            let made = self.rebuilt(0, row, columns)?;
            made.slots.into_iter().next()
        };
        if made(&as_read).as_ref() == Some(&is) {
            return Ok(false);
        }
        // Perhaps a slot that it is made of has rotted.
        let mut columns = BTreeMap::new();
        for place in 0..self.erasure.data() {
            if self.at(place).next().is_some() {
                columns.insert(place, self.column(place, &rows, &mut None)?);
            }
        }
        let made = self.rebuilt(0, row, &columns);
        let made = made.and_then(|made| made.slots.into_iter().next());
        Ok(made.is_some_and(|made| made != is))
    }
}
