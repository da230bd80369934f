//! Floor 1: what was asked of a disk, as it is recorded (docs/chains.md, "Traces"): batches of
//! records of one length, each with a checksum, so that a torn end is found.
//!
//! ```text
//!  bytes ─▶ Batches ─▶ Batch, Batch … or why that is none ─▶ Trace: in order of time, with gaps
//!  Record ─▶ line of fio's log
//! ```
//!
//! Whatever is read may be made to harm: nothing is counted on before its checksum was right,
//! and no more is kept than there are bytes.
//!
//! Must not know: where files are, who records, what a policy of a cache is.

mod batch;
mod iolog;
mod record;
mod whole;

pub use batch::{BATCH_RECORDS_MAX, Batch, BatchHead, Batches, HEAD_BYTES, TraceError};
pub use iolog::{IOLOG_HEAD, iolog_file, iolog_line};
pub use record::{Outcome, RECORD_BYTES, Record, Verb};
pub use whole::Trace;
