//! Parity in the place of copies: k+m (docs/units.md, "Redundancy").
//!
//! * `field`, `code`: Reed-Solomon, without I/O.
//! * `masks`: of which slots a segment's parity is made, as a slot of its own.
//! * `put`: writing rows and their parity. `recover`: reading a slot whose
//!   member does not give it. `give_back`: freeing what is dead, with
//!   parity made `anew`. `rebuild`: what a
//!   member that was lost should hold.

mod anew;
mod code;
mod field;
mod give_back;
mod masks;
mod put;
mod rebuild;
mod recover;
#[cfg(test)]
pub(crate) mod rig;
#[cfg(test)]
mod tests;

pub use code::Mask;
#[cfg(test)]
pub use give_back::give_back;
pub use give_back::give_back_if;
pub use masks::{BadMasks, Masks};
pub(super) use put::put_rows;
pub use rebuild::{Held, HeldSlot, rebuild};
pub(super) use recover::{Recovered, RowReader};
