//! Repair: comparing the members of a copyset, and copying what one is missing
//! (docs/internals, "Repair").
//!
//! No key is needed: sealed blocks are copied as they are, and each unit checks its
//! slots by its own checksums.
//!
//! ```text
//!  1. list     the copyset's segments on every member that answers
//!  2. compare  each segment: which slots are kept, freed, or were never written
//!  3. copy     what a member is missing, from a copy with a matching checksum; sync
//!  4. verify   the source again: slots that were freed there meanwhile are freed
//!              on the target, too
//!  5. repeat   from 1, until a pass finds nothing to copy; what was copied is not
//!              read again
//! ```
//!
//! Invariants:
//!
//! * A slot that any member keeps belongs on all of them, unless it was freed there.
//!   During a rebuild, only members that are not being rebuilt count.
//!   Nothing is freed or deleted because another member says so, except what the same
//!   pass has written: a unit that falsifies its reports costs no other its content.
//! * Of a segment that a lease has open, only the committed slots are compared.
//! * A member is in sync after a pass that began with what the catalog knew then, found
//!   nothing to copy to it, and queried an in-sync member (with parity: as many as there
//!   is data), or all members.
//!
//! `inspection` asks the members about a segment, and `pass` decides what to do; `copy`
//! restores copies, `rows` restores rows with parity; `verdict` collects the result.

#[cfg(test)]
mod byzantine_tests;
mod compare;
mod copy;
mod copy_error;
mod decision;
#[cfg(test)]
mod deletion_tests;
mod inspection;
#[cfg(test)]
mod leftover_tests;
mod outdated;
mod pass;
mod put_rows;
mod report;
#[cfg(test)]
mod rot_tests;
mod row_content;
mod rows;
#[cfg(test)]
mod rows_tests;
mod spread;
#[cfg(test)]
mod tests;
mod verdict;

pub use compare::Uncommitted;
pub use pass::CopysetRepair;
pub use report::{Depth, Pace, PassReport, RepairMember, Stopped, SuspectUnit};
