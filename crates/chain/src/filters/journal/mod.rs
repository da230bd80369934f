//! The filter `journal`: an active relay. It acknowledges a change once its own journal file has
//! it, and writes it to the disk below afterwards (docs/internals/journal-filter.md).
//!
//! ```text
//!  write ─▶ batch ─▶ written to the file ─▶ acknowledged
//!                        └─▶ written back below, many at a time, overlapping ones in order
//! ```
//!
//! Life of a change: 1. append, 2. write to the file (survives this process), 3. write back,
//! 4. flush below, 5. forget (the ring begins behind it).
//!
//! Invariants:
//!
//! * A change is in the file before it is written back. A change is acknowledged as durable only
//!   after a sync of the file that began when the change was in the file.
//! * The ring begins behind a change only after a flush below that was started after the change
//!   was written back. The start page that says so is durable before the change is overwritten.
//! * Changes that the disk below does not have are read from memory. These changes, and those that
//!   no flush below has covered, take at most `memory_max` bytes. If memory or the ring is full,
//!   the filter answers `Busy`.
//! * An error below loses nothing: the change is retried each second. After a failed flush
//!   everything that the flush should have covered is written again. An error of the journal file
//!   is final: every later request fails with `Stopped`.
//!
//! The filter chooses all tokens of requests below. A job on the pool does the file operations
//! that may wait, one at a time.
//!
//! | part | what it holds |
//! |---|---|
//! | `lifecycle`: `stage`, `verdict`, `jobs` | opening and replaying the file; the phase |
//! | `file`, `ring`, `record` | the file's bytes |
//! | `backlog`: `changes`, `overlay` | changes that are not durable below, and how reads see them |
//! | `accept`, `waiting` | new changes, and requests that wait until theirs are safe |
//! | `write_back`: `flush_state`, `retry` | the changes that go below, and what failed there |
//! | `advance`, `gathering`, `pending` | when something goes below, and what comes back |
//! | `lease`, `policy` | a journal as a filter of a chain |

mod accept;
mod advance;
mod backlog;
mod changes;
mod file;
mod filter;
mod flush_state;
pub mod fuzz;
mod gathering;
mod jobs;
mod lease;
mod leftover;
mod lifecycle;
mod origin;
mod overlay;
mod pending;
mod policy;
mod record;
mod retry;
mod ring;
mod stage;
#[cfg(test)]
mod tests;
mod verdict;
mod waiting;
mod write_back;

use std::path::{Path, PathBuf};

use crate::ChainHistory;

pub use filter::Journal;
pub use leftover::{
    JOURNAL_SUFFIX, JournalLeftover, QUARANTINED_INFIX, REPLACEMENT_SUFFIX, journal_exists,
    journal_leftover, quarantine_journal,
};
use origin::Origin;
pub(crate) use policy::{JOURNAL_MEMORY_MAX, transforming_filters};

/// When a flush is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// When everything before it is written back and flushed below, and the journal is synced.
    Through,
    /// When the journal is synced. This is as durable as the medium of the journal.
    Journal,
}

/// The minimal length of a ring, in bytes: a few records with the longest payload.
pub const RING_BYTES_MIN: u64 = 4 << 20;

/// The settings of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalConfig {
    /// The journal file. Its folder must exist.
    pub path: PathBuf,
    /// The length of a new ring, in bytes: a multiple of 4096 and at least [`RING_BYTES_MIN`].
    pub ring_bytes: u64,
    /// When a flush is answered.
    pub flush: FlushMode,
    /// The maximal memory for changes that are not durable below, with their bookkeeping, in
    /// bytes.
    pub memory_max: u64,
    /// The block size that the disk below insists on, in bytes, or 1. A change that is not a
    /// multiple of it is refused, since it could be acknowledged but never written back.
    pub block_min: u32,
    /// The history of the chain, by which the journal knows whether the volume was written without
    /// it. `None` for a journal outside of a chain, whose user guarantees that.
    pub history: Option<ChainHistory>,
    /// A checksum of the filters below that transform writes; `None` if unknown.
    pub below: Option<u32>,
    /// A number that identifies the disk below; `None` if it has none.
    pub disk: Option<u32>,
    /// Whether the disk had another number when the journal was written.
    pub has_moved: bool,
}

impl JournalConfig {
    /// A file's path for messages. Tenants read the messages of a chain's journal and must not
    /// learn the folders of the host, so these have the file name only.
    fn shown(&self, path: &Path) -> String {
        let shown = match path.file_name() {
            Some(name) if self.history.is_some() => Path::new(name),
            _ => path,
        };
        shown.display().to_string()
    }

    fn shown_path(&self) -> String {
        self.shown(&self.path)
    }

    /// The origin of a journal that is made now.
    fn origin(&self) -> Origin {
        let history = self.history;
        Origin {
            lease: history.and_then(|history| history.epoch),
            restores: history.and_then(|history| history.restores),
            below: self.below,
            disk: self.disk,
        }
    }

    /// Where a journal is created that will take the place of this one.
    fn replacement_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(REPLACEMENT_SUFFIX);
        name.into()
    }
}
