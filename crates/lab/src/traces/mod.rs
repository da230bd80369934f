//! Requests that were recorded, whichever program recorded them: a filter `trace` of Scree, fio
//! (`write_iolog`), or blktrace as blkparse prints it.

mod blkparse;
mod files;
mod foreign;
mod in_flight;
mod iolog;

pub use files::{Part, Traces, read_traces};
pub use foreign::{ForeignError, ForeignTrace, read_foreign};
