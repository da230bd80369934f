//! [`Copyset`]: the units that hold segments together, and the states of its members.

use base::{CopysetId, UnitId};
use serde::{Deserialize, Serialize};

use crate::Erasure;

/// A set of units that hold segments together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copyset {
    /// The copyset's number.
    pub id: CopysetId,
    /// The units that segments are written to: one for each replica, or those of a row's
    /// data followed by those of its parity.
    pub members: Vec<UnitId>,
    /// The number of data members, which come first; 1 if every member has a copy.
    pub data: u8,
    /// Members that may be incomplete, and do not count as a copy.
    pub rebuilding: Vec<UnitId>,
    /// Former members that still hold what was written until they were replaced.
    pub draining: Vec<DrainingMember>,
    /// A counter of the whole table that grows whenever a unit becomes a member of an
    /// existing copyset: its value when the last unit joined this one.
    pub joined: u64,
}

/// A former member of a copyset that is being drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainingMember {
    /// The place of its replacement: an index of [`Copyset::members`].
    pub place: u8,
    /// The unit.
    pub unit: UnitId,
}

/// The state of a unit in a copyset.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// The member has everything that it should have: it counts as a copy.
    #[default]
    InSync,
    /// Nothing more is written to the member. It counts as a copy until its
    /// replacement is in sync.
    Draining,
    /// The member may be incomplete, and is being repaired.
    Rebuilding,
}

impl Copyset {
    /// A copyset of in-sync members that each have a copy.
    #[must_use]
    pub const fn of_copies(id: CopysetId, members: Vec<UnitId>) -> Self {
        Self {
            id,
            members,
            data: 1,
            rebuilding: Vec::new(),
            draining: Vec::new(),
            joined: 0,
        }
    }

    /// The erasure code; `None` if every member has a copy.
    #[must_use]
    pub fn erasure(&self) -> Option<Erasure> {
        let parity = u8::try_from(self.members.len())
            .ok()?
            .checked_sub(self.data)?;
        Erasure::new(self.data, parity)
    }

    /// All units that may hold segments of it, with place and state: the members in their
    /// order, then the draining ones.
    pub fn members_by_place(&self) -> impl Iterator<Item = (u8, UnitId, MemberState)> {
        let members = (0..).zip(&self.members).map(|(place, unit)| {
            let state = match self.rebuilding.contains(unit) {
                true => MemberState::Rebuilding,
                false => MemberState::InSync,
            };
            (place, *unit, state)
        });
        let leaving = self.draining.iter();
        members.chain(leaving.map(|leaving| (leaving.place, leaving.unit, MemberState::Draining)))
    }

    /// As [`Copyset::members_by_place`], without the places.
    pub fn member_states(&self) -> impl Iterator<Item = (UnitId, MemberState)> {
        self.members_by_place()
            .map(|(_, unit, state)| (unit, state))
    }
}
