//! Parity in the place of copies: k+m (docs/units.md, "Redundancy").
//!
//! * `field`, `code`: Reed-Solomon, without I/O.
//! * `masks`: of which slots a segment's parity is made, as a slot of its own.
//! * `put`: writing rows and their parity. `recover`: reading a slot whose
//!   member does not give it. `reclaim`: freeing what is dead, with
//!   parity made `anew`. `rebuild`: what a
//!   member that was lost should hold.

mod code;
mod field;
mod masks;
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
pub use rebuild::{Held, HeldSlot, rebuild};
#[cfg(test)]
pub use reclaim::reclaim;
pub use reclaim::reclaim_if;
pub(super) use recover::{Recovered, RowReader};
