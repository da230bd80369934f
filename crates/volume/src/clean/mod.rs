//! Cleaning: freeing the slots that no kept version needs.
//!
//! 1. *expire*: retention names automatic versions to drop ([`catalog::retention`]);
//! 2. *plan*: [`dead`] compares the version with its neighbors in the version
//!    tree and names exactly the slots that only it holds;
//! 3. *remove*: one transaction drops the version and records the plan;
//! 4. *wait* for the end of the grace period;
//! 5. *free* the slots on every copy;
//! 6. *forget* the plan.
//!
//! A crash between any two steps loses nothing: 1 and 2 change nothing, 3 is
//! one transaction, 5 may be repeated, since slots are never reused. Snapshots
//! are kept versions like others, and do not delay the removal of other versions.
//!
//! [`dead`] decides only about slots of removed versions. Slots that were never committed
//! are freed by others (docs/internals/catalog.md, "Who frees what"): [`sweep`] frees those
//! that an ended lease left.

mod cleaner;
mod dead;
mod sweep;

pub use cleaner::{CleanError, Cleaner, OpenKeys, Removal};
pub use dead::{DeadError, Side, View, dead};
pub use sweep::sweep;
