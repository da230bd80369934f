//! Repair: comparing the members of a copyset, and copying what one lacks
//! (docs/units.md, "Repair").
//!
//! No key is needed: sealed blocks are copied as they are, and what a unit has is
//! compared by its own checksums.
//!
//! ```text
//!  1. list     the copyset's segments on every member that answers
//!  2. compare  of each: which slots are kept, freed, or were never put
//!  3. copy     what one lacks, from a copy whose checksum is right; sync
//!  4. look     again at where it was copied from: what was freed there meanwhile
//!              is freed here, too
//!  5. again    from 1, until a pass finds nothing to copy; what was copied is not
//!              read once more
//! ```
//!
//! Invariants:
//!
//! * A slot that any member keeps belongs on all of them, unless it was freed there; where
//!   members are filled, one that any keeps who is not filled.
//!   Nothing is freed or deleted because another member says so, but what the same
//!   pass has put: a unit that falsifies what it says costs no other its content.
//! * Of a segment that a lease has open only the committed slots are looked at, and
//!   nothing of those that no version names yet.
//! * A member is whole after a pass that began with what the catalog knew then, found
//!   nothing to copy to it, and asked a whole member (with parity: as many as there is
//!   data), or all that there are.
//!
//! What one lacks is brought by `copy`; where there is parity in the place of copies,
//! by `rows`.

#[cfg(test)]
mod byzantine_tests;
mod compare;
mod copy;
#[cfg(test)]
mod deletion_tests;
#[cfg(test)]
mod leftover_tests;
mod outdated;
mod pass;
mod put_rows;
mod report;
#[cfg(test)]
mod rot_tests;
mod rows;
#[cfg(test)]
mod rows_tests;
mod spread;
#[cfg(test)]
mod tests;
mod verdict;

pub use compare::Uncommitted;
pub use pass::Task;
pub use report::{Depth, Found, Pace, Repairable, Stopped, SuspectUnit};
