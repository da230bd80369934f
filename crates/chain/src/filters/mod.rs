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
    FlushMode, JOURNAL_SUFFIX, Journal, JournalConfig, JournalLeftover, QUARANTINED_INFIX,
    REPLACEMENT_SUFFIX, RING_BYTES_MIN, journal_exists, journal_leftover, quarantine_journal,
};
pub(crate) use journal::{JOURNAL_MEMORY_MAX, transforming_filters};
pub use monitor::{Detail, Event, EventKind, FileEvent, Monitor};
pub use out_of_process::OutOfProcess;
pub use rate::Rate;
pub use replicate::{REPLICAS_SUFFIX, Replicate, volume_is_missing_writes};
pub use trace::{TRACE_SUFFIX, Trace};
