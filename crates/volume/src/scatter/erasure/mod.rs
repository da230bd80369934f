//! Erasure coding: k+m parity in place of copies (docs/explanation, "Redundancy").
//!
//! * `field`, `code`: Reed-Solomon, without I/O.
//! * `masks`: of which slots a segment's parity is made, as a slot of its own.
//! * `put`: writing rows and their parity.
//! * `recover`: reading a slot that its member does not return.
//! * `reclaim`: freeing dead slots; `parity_rewrite` computes parity without them.
//! * `rebuild`: the content that a lost member should hold.

mod code;
mod field;
mod masks;
mod member_segment;
mod parity_rewrite;
mod put;
mod rebuild;
mod reclaim;
mod recover;
#[cfg(test)]
pub(crate) mod rig;
#[cfg(test)]
mod tests;

pub use code::Mask;
pub use masks::{BadMasks, Masks};
pub(super) use put::put_rows;
pub use rebuild::{MemberPart, SlotContent, rebuild};
#[cfg(test)]
pub use reclaim::reclaim;
pub use reclaim::reclaim_if;
pub(super) use recover::{Recovered, RowReader};
