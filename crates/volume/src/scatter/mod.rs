//! Scattering: placing sealed blocks at random over storage units (HVSTO §II-B).
//!
//! A *copyset* is the small set of units that holds a segment's copies. A
//! [`Placer`] keeps segments open on several copysets and assigns each block to
//! one of them at random; [`Store`] knows the units, writes every copy, reads
//! whichever copy opens, and skips units that fail.
//!
//! This module moves ciphertext. It opens a block only to learn whether the
//! copy that it read is intact.

mod async_read;
mod candidates;
pub mod erasure;
mod exposure;
mod layout;
mod ledger;
mod piece;
mod placer;
mod progress;
mod read;
mod serials;
mod store;
mod table;
#[cfg(test)]
mod unresponsive_tests;
mod view;
mod write;

pub use async_read::start_read_pieces;
pub use exposure::{CompromisedError, Exposure, KnownPiece, exposure_of};
pub use layout::{Layout, MemberSlot};
pub use ledger::{Ledger, OpenSegments};
pub use piece::Piece;
pub(crate) use piece::data_piece;
pub use placer::{AssignError, Placer, PlacerConfig};
pub use progress::{Progress, StopReason};
pub use read::{ReadError, read_pieces, read_pieces_through};
pub use serials::Serials;
pub use store::Store;
pub use table::{Member, MemberRun, Table};
pub(crate) use view::Buffers;
pub use view::{CacheCounts, CacheView, ImagePart};
pub use write::{PlaceError, Placement, Source, discard_confirmed, discard_unconfirmed, place};
