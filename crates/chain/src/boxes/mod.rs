//! The boxes that there are.

mod fault;
mod rate;

pub use fault::{Fault, FaultConfig};
pub use rate::{Rate, RateConfig};
