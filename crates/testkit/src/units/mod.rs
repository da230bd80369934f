//! Storage units: what each kind of them must do, and one that fails.
//!
//! * [`conformance`]: one suite for every implementation of [`unit::Unit`].
//! * [`FaultyUnit`]: a unit that injects faults by a seed.

pub mod conformance;
mod faulty;

pub use faulty::{FaultyUnit, InjectedFaults};
