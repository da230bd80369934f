//! The filters that there are.

mod encrypt;
mod fault;
mod hop;
pub mod journal;
mod monitor;
mod rate;
mod replicate;
mod trace;

pub use encrypt::Encrypt;
pub use fault::Fault;
pub use hop::Hop;
pub use journal::{
    ASIDE, BESIDE, FlushMode, JOURNAL_SUFFIX, Journal, JournalConfig, JournalLeft, RING_BYTES_MIN,
    journal_is_there, journal_left, put_journal_aside,
};
pub(crate) use journal::{JOURNAL_MEMORY_MAX, below_of};
pub use monitor::{Detail, Event, FileEvent, Monitor, What};
pub use rate::Rate;
pub use replicate::{REPLICAS_SUFFIX, Replicate, volume_lacks};
pub use trace::{TRACE_SUFFIX, Trace};
