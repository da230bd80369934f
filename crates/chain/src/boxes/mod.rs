//! The boxes that there are.

mod encrypt;
mod fault;
mod hop;
pub mod journal;
mod monitor;
mod rate;
mod replicate;

pub use encrypt::Encrypt;
pub use fault::Fault;
pub use hop::Hop;
pub use journal::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
pub use monitor::{Detail, Event, FileEvent, Monitor, What};
pub use rate::Rate;
pub use replicate::Replicate;
