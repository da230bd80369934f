//! The filter `journal`: an active relay. It acknowledges a change when its own journal has it,
//! and carries it out below afterwards (docs/internals/journal-filter.md).
//!
//! ```text
//!  write ─▶ batch ─▶ commit: in the file ─▶ acknowledged
//!                        └─▶ carried out below, a window of them, overlapping ones in order
//! ```
//!
//! Lifecycle of a change: 1. append, 2. commit (in the file; survives this process),
//! 3. carry out below, 4. flush below, 5. forget (the ring begins behind it).
//!
//! Invariants:
//!
//! * Nothing is carried out below before it is in the file, and nothing is acknowledged as
//!   durable before a sync of the file that began after it was there.
//! * The ring begins behind a change only when a flush below that was asked for after the
//!   change was carried out has been answered, and the page that says so is durable before
//!   what lies there is overwritten.
//! * What the journal has and the disk below has not is read from memory. That, and what no
//!   flush has covered there, is `memory_max` at most; beyond it, or with the ring full, the
//!   filter is busy.
//! * An error below loses nothing: it is tried again each second; if a flush failed, all that
//!   it was to cover. An error of the file is the end: every verb says `Stopped`.
//!
//! It chooses all tokens that it asks below with. A job on the pool does what waits for the
//! file, one at a time.

mod active;
mod carry;
mod carrying;
mod changing;
pub mod fuzz;
mod left;
mod of_chain;
mod opening;
mod origin;
mod overlay;
mod record;
mod ring;
#[cfg(test)]
mod tests;
mod waiting;

use std::path::{Path, PathBuf};

use crate::ChainHistory;

pub use active::Journal;
pub use left::{
    ASIDE, BESIDE, JOURNAL_SUFFIX, JournalLeft, journal_is_there, journal_left, put_journal_aside,
};
pub(crate) use of_chain::{JOURNAL_MEMORY_MAX, below_of};

/// When a flush is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// When all before it is carried out and flushed below, and the journal is synced.
    Through,
    /// When the journal is synced: as good as the medium that it lies on.
    Journal,
}

/// The smallest ring: some records of the longest payload.
pub const RING_BYTES_MIN: u64 = 4 << 20;

/// What a journal is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalConfig {
    /// The file; its folder is there.
    pub path: PathBuf,
    /// The ring's length, if it is made; [`RING_BYTES_MIN`] at least, and a multiple of 4096.
    pub ring_bytes: u64,
    /// When a flush is answered.
    pub flush: FlushMode,
    /// Bytes of changes that are not below, or that no flush has covered there, and of what is
    /// noted of each.
    pub memory_max: u64,
    /// What the disk below takes multiples of only, in bytes, or 1. Other changes are refused:
    /// they could be acknowledged, and never carried out.
    pub block_min: u32,
    /// In whose time it has the disk; none: whoever starts it sees to that.
    pub history: Option<ChainHistory>,
    /// Of the filters below that make something else of what is written.
    pub below: Option<u32>,
    /// Which disk is below, by a number that no other one is likely to have; none: nobody says.
    pub disk: Option<u32>,
    /// It had another number when the journal was written.
    pub has_moved: bool,
}

impl JournalConfig {
    /// A file as it is told of: of a chain's journal a tenant hears, to whom the host's folders
    /// are no news.
    fn told(&self, path: &Path) -> String {
        let shown = match path.file_name() {
            Some(name) if self.history.is_some() => Path::new(name),
            _ => path,
        };
        shown.display().to_string()
    }

    fn told_path(&self) -> String {
        self.told(&self.path)
    }
}
