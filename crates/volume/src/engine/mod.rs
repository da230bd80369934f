//! The owner of an attached volume.
//!
//! One thread owns a [`Volume`]: it takes a request, a finished job or a
//! timer, applies it, and never waits. What waits (syncs, reads that miss,
//! destages, checkpoints) runs as jobs on the world's pool and reports back with
//! `event::Event`s through a channel.
//!
//! A block's newest state is found in the first of these layers that has it:
//!
//! ```text
//!   active    admitted since the last consistency    in the journal
//!             point
//!   frozen    consistency points that wait for       in the journal
//!             destage, or are being destaged
//!   young     destaged since the checkpoint began    on units, in the tail
//!   old       what the running checkpoint merges     on units, in the tail
//!   tree      the map as of the last checkpoint      on units
//! ```
//!
//! Lifecycle of a write: 1. admit (sealed into the journal's batch; `active`),
//! 2. write the batch to the journal's file (may be acknowledged), 3. freeze
//! (`frozen`), 4. destage (placed, synced), 5. commit the version, 6. `young`, and
//! the journal's space is released.
//!
//! While the lease is expired, 1 and 2 wait until it is renewed (`lease.rs`). Reads
//! of what only unavailable units have wait, too (`reader/unavailable.rs`); slow reads are
//! hedged (`reader/hedge.rs`). A version can be read without any of this (`read_only.rs`).
//!
//! Invariants: every layer is newer than those below it; a block's journal
//! copy is released only after a committed version has it; nothing is
//! acknowledged as durable before a sync of the journal that began after its batch was written.

mod checkpoint;
mod config;
mod destage;
mod device;
mod env;
mod event;
mod flush;
mod layers;
mod lease;
mod map_preload;
mod open;
mod open_journal;
mod pages;
mod read_only;
mod reader;
mod request;
mod status;
mod stored_pages;
mod tail_pages;
mod volume;
mod write;

pub use config::VolumeConfig;
pub(crate) use open::open_version;
pub use open::{OpenError, OpenParams};
pub use read_only::{ReadOnlyParams, ReadOnlyVolume};
pub use reader::unavailable_queue::READS_WAIT_MAX;
pub use status::VolumeStatus;
pub use stored_pages::StoredPages;
pub use volume::Volume;
