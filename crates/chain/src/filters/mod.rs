//! The filters that there are.

mod encrypt;
mod fault;
pub mod journal;
mod monitor;
mod out_of_process;
mod rate;
mod replicate;
mod trace;

pub use encrypt::Encrypt;
pub use fault::Fault;
pub use journal::{
    ASIDE, BESIDE, FlushMode, JOURNAL_SUFFIX, Journal, JournalConfig, JournalLeft, RING_BYTES_MIN,
    journal_is_there, journal_left, put_journal_aside,
};
pub(crate) use journal::{JOURNAL_MEMORY_MAX, below_of};
pub use monitor::{Detail, Event, EventKind, FileEvent, Monitor};
pub use out_of_process::OutOfProcess;
pub use rate::Rate;
pub use replicate::{REPLICAS_SUFFIX, Replicate, volume_lacks};
pub use trace::{TRACE_SUFFIX, Trace};
