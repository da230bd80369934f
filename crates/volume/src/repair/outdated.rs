//! Parity that is made of what is not there any more.

use std::collections::BTreeMap;

use super::compare::Held as HeldBy;
use super::copy::CopyError;
use super::rows::Rows;
use crate::catalog::MemberState;
use crate::scatter::erasure::HeldSlot;

impl Rows<'_> {
    /// Whether the parity that the member has is made of slots that were freed since:
    /// it was put back to an earlier state, or somebody freed who has an old table. With
    /// one that is whole some other parity has to say so, too.
    pub fn is_outdated(&mut self) -> Result<bool, CopyError> {
        let to = self.on.to;
        let member = &self.on.members[to];
        let Some((_, masks)) = self.masks.get(&to).cloned() else {
            return Ok(false);
        };
        let is_sure =
            |other: &usize| *other != to && self.on.members[*other].state != MemberState::Filling;
        let others: Vec<usize> = self.masks.keys().copied().filter(is_sure).collect();
        if member.state == MemberState::Whole && others.is_empty() {
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

    /// Whether a slot was freed at its place, and nobody keeps it.
    fn is_freed(&self, place: u8, row: usize) -> bool {
        let held = |member: usize| {
            let copy = self.on.copies[member].as_ref();
            copy.map_or(HeldBy::Never, |copy| copy.held(row))
        };
        self.at(place).any(|member| held(member) == HeldBy::Freed)
            && !self.at(place).any(|member| held(member) == HeldBy::Kept)
    }

    /// Whether the member's parity of a row is not what comes of the row as it is.
    fn differs(&mut self, row: usize) -> Result<bool, CopyError> {
        let rows = row..row + 1;
        let is = self.read(self.on.to, rows.clone(), |_| true)?.pop();
        let Some(is @ HeldSlot::There(..)) = is else {
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
        let made = |columns: &BTreeMap<u8, Vec<HeldSlot>>| {
            let made = self.rebuilt((0, row), columns)?;
            made.slots.into_iter().next()
        };
        if made(&as_read).as_ref() == Some(&is) {
            return Ok(false);
        }
        // Perhaps something has rotted that it is made of.
        let mut columns = BTreeMap::new();
        for place in 0..self.erasure.data() {
            if self.at(place).next().is_some() {
                columns.insert(place, self.column(place, &rows, &mut None)?);
            }
        }
        let made = self.rebuilt((0, row), &columns);
        let made = made.and_then(|made| made.slots.into_iter().next());
        Ok(made.is_some_and(|made| made != is))
    }
}
