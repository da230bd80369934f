//! The journal: the write-back log of one attached volume, on the host's SSD
//! (HVSTO §III-C: 100 MB for each active VM).
//!
//! A ring file. Records are named by their *log position*, which only grows;
//! position `p` is at byte `4096 + p % ring_bytes` of the file, after one
//! page that identifies the journal.
//!
//! ```text
//!            tail                    head
//!  …─────────┬───────┬───────┬───────┬ ─ ─ ─ ─ ─ ─ ─
//!   free     │record │record │record │ free            head - tail <= ring_bytes
//!  …─────────┴───────┴───────┴───────┴ ─ ─ ─ ─ ─ ─ ─
//!            ▲ the committed version says where this is
//! ```
//!
//! A record never wraps: where less than a header and a block is left before
//! the ring's end, the log continues at the ring's start. That rule needs no
//! mark, so recovery follows it blindly: it starts at the position that the
//! committed version names, reads record after record, and ends at the first
//! that does not follow. There is no other root pointer.
//!
//! Which host's file it is, and how another host takes it over: `files.rs`; where
//! it is: `location.rs`.
//!
//! Lifecycle of a write: 1. append (sealed into the batch), 2. write the
//! batch to the file, 3. sync (durable), 4. destage, 5. release.
//!
//! Invariant: the sequences of the records that recovery follows strictly grow. A
//! record that an earlier lap of the journal left beyond a torn one has an older
//! epoch than what was written in its place, so it is never followed.

mod files;
mod location;
mod record;
mod replay;
mod ring;
#[cfg(test)]
mod tests;

pub use files::{Claim, JournalError};
pub use location::{JournalLocation, SharedFolder};
pub use record::{BadHeader, ENTRIES_MAX, Entry, HEADER_BYTES, Header};
pub use replay::{ReplayedWrite, replay, replay_from};
pub use ring::{Journal, JournalSlot, JournalSpec};
