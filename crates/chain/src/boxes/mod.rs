//! The boxes that there are.

mod encrypt;
mod fault;
mod rate;

pub use encrypt::{Encrypt, EncryptConfig, Format};
pub use fault::{Fault, FaultConfig};
pub use rate::{Rate, RateConfig};
