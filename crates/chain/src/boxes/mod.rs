//! The boxes that there are.

mod fault;
mod journal;
mod rate;

pub use fault::{Fault, FaultConfig};
pub use journal::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
pub use rate::{Rate, RateConfig};
