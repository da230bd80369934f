//! What whoever captures some of the storage units can read (HVSTO §II-C; docs/models.md,
//! "Leakage").
//!
//! ```text
//!  placement, compromised ─▶ Shares: which share of all blocks is readable, and how likely
//!                            │
//!  lengths of files ─────────┴─▶ Estimate: files and bytes that leak, on the mean
//! ```
//!
//! Where blocks that follow each other do not lie each by itself, or what is written at once lies
//! on few sets, [`Shares`] has what is known of files in pieces (`pieces`), and a
//! trial draws the sets (`drawn`).

mod beginnings;
#[cfg(test)]
mod cases;
mod documents;
mod drawn;
mod estimate;
mod files;
mod grown;
mod pieces;
mod placement;
mod plan;
mod shares;
mod simulate;

pub use estimate::{Estimate, estimate};
pub use files::{Class, FileList};
pub use placement::{Deal, Placement, PlacementError, Sets, Spread};
pub use plan::{Choice, Site, plan};
pub use shares::Shares;
pub use simulate::{Mean, Simulation};
