//! Models that say beforehand what a break-in leaks and what encryption costs (docs/models.md).
//!
//! Mathematics only: this crate knows no files, clocks or units that are there.

pub mod cost;
pub mod leakage;
