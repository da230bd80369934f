//! What whoever captures some of the storage units can read (HVSTO §II-C; docs/models.md,
//! "Leakage").
//!
//! ```text
//!  placement, captured ─▶ Shares: which share of all blocks is readable, and how likely
//!                            │
//!  lengths of files ─────────┴─▶ Estimate: files and bytes that leak, on the mean
//! ```

mod documents;
mod estimate;
mod files;
mod placement;
mod plan;
mod shares;
mod simulate;

pub use estimate::{Estimate, estimate};
pub use files::{Class, FileList};
pub use placement::{Placement, PlacementError, Sets, Spread};
pub use plan::{Choice, Site, plan};
pub use shares::Shares;
pub use simulate::{Mean, Simulation};
