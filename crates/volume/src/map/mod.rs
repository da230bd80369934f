//! The map: volume block → where its sealed block is (HVSTO §III-B).
//!
//! Three levels of pages, addressed directly: no search, no chain. Every page
//! has 256 entries of 16 bytes, is sealed, and is scattered like data.
//!
//! ```text
//!   version record      one entry for each root page
//!     └ root page       256 index pages      64 GiB of volume at 4 KiB blocks
//!         └ index page  256 leaves          256 MiB
//!             └ leaf    256 blocks            1 MiB
//!                 └ (location, sequence)
//! ```
//!
//! On top of the tree is an [`Overlay`]: what was destaged since the last
//! checkpoint. It is the tail of the version, in memory. A checkpoint merges
//! it into new pages ([`merge`]); nothing is overwritten.
//!
//! The map knows locations and sequences. It does not know units, keys or the
//! journal: callers fetch and open pages ([`FetchPages`]).

mod entry;
mod merge;
mod overlay;
mod page;
mod page_cache;
mod tree;
mod walk;

pub use entry::Entry;
pub use merge::{MergeError, PageSink, merge};
pub use overlay::{BlockMap, Found, Overlay};
pub use page::{PAGE_BYTES, PAGE_ENTRIES, Page};
pub use page_cache::{PageBudget, PageCache};
pub use tree::{FetchPages, Level, Lookup, Position, Root};
pub use walk::{Leaf, Leaves};
