//! Traces, which are recordings of the requests of a disk
//! (docs/internals/filter-formats.md). A trace consists of batches of fixed-length records. Each
//! batch has a checksum, so that a torn end is noticed.
//!
//! ```text
//!  bytes ─▶ Batches ─▶ Batch, Batch … or an error ─▶ Trace: records in order of time, with gaps
//!  Record ─▶ line of a log of fio
//! ```
//!
//! The input may be hostile: nothing is used before its checksum was verified, and memory is
//! bounded by the length of the input.
//!
//! Must not know: where files are, who records, or what a cache policy is.

mod batch;
mod iolog;
mod record;
mod whole;

pub use base::OpKind;
pub use batch::{BATCH_RECORDS_MAX, Batch, BatchHead, Batches, HEAD_BYTES, TraceError};
pub use iolog::{IOLOG_HEAD, iolog_file, iolog_line};
pub use record::{Outcome, RECORD_BYTES, Record};
pub use whole::Trace;
