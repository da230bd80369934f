//! Models that say beforehand what a break-in leaks (docs/models.md).
//!
//! Mathematics only: this crate knows no files, clocks or units that are there.

pub mod leakage;
