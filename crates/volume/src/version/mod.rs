//! Versions: committed states of a volume.
//!
//! A version is *(map root, tail)*. The root is the tree as of the last
//! checkpoint; the tail is a list of sealed pages that say what was destaged
//! since, oldest first. Opening a version reads its tail into an overlay over
//! the root. Both are scattered; the catalog keeps the [`Record`] that leads
//! to them, sealed.

mod record;
mod tail;

pub use record::{BadRecord, Record};
pub use tail::{BadTail, decode_tail_page, encode_tail, tail_entries_per_page};
