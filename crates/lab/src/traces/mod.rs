//! Recorded requests from any of the supported programs: a filter `trace` of Scree, fio
//! (`write_iolog`), or blktrace as printed by blkparse.

mod blkparse;
mod files;
mod foreign;
mod in_flight;
mod iolog;

pub use files::{Part, Traces, read_traces};
pub use foreign::{ForeignError, ForeignTrace, read_foreign};
