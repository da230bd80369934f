//! The boxes that there are.

mod encrypt;
mod fault;
mod monitor;
mod rate;
mod replicate;

pub use encrypt::Encrypt;
pub use fault::Fault;
pub use monitor::{Detail, Event, FileEvent, Monitor, What};
pub use rate::Rate;
pub use replicate::Replicate;
