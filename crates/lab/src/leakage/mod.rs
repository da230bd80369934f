//! What the owner of some compromised storage units can read (HVSTO §II-C;
//! docs/explanation/leakage.md).
//!
//! ```text
//!  placement, compromised ─▶ Shares: the readable share of all blocks, with probabilities
//!                            │
//!  lengths of files ─────────┴─▶ Estimate: the mean of the files and bytes that leak
//! ```
//!
//! If consecutive blocks are placed together, or one destage writes to few copysets, [`Shares`]
//! treats files piece by piece (`pieces`), and a trial draws the copysets (`trial_sets`).

mod alignments;
#[cfg(test)]
mod cases;
mod distributions;
mod documents;
mod estimate;
mod files;
mod mean;
mod pieces;
mod placement;
mod plan;
mod planned_sets;
mod shares;
mod simulate;
mod trial_sets;

pub use estimate::{Estimate, estimate};
pub use files::{Class, FileList};
pub use mean::Mean;
pub use placement::{Placement, PlacementError, Redundancy, Sets, Striping};
pub use plan::{Choice, Site, plan};
pub use shares::Shares;
pub use simulate::Simulation;
