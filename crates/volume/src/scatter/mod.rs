//! Scattering: dealing sealed blocks at random over units (HVSTO §II-B).
//!
//! A *copyset* is the small set of units that holds a segment's copies. A
//! [`Dealer`] keeps segments open on several copysets and deals each block to
//! one of them at random; [`Store`] knows the units, puts every copy, reads
//! whichever copy opens, and passes over units that fail.
//!
//! This module moves ciphertext. It opens a block only to know whether the
//! copy it read is good.

mod candidates;
mod compromised;
mod dealer;
pub mod erasure;
#[cfg(test)]
mod hang_tests;
mod later;
mod layout;
mod ledger;
mod progress;
mod read;
mod store;
mod view;
mod write;

pub use compromised::{CompromisedError, Held, Truth, held_by};
pub use dealer::{DealError, Dealer, DealerConfig, Serials};
pub use later::read_pieces_later;
pub use layout::{Home, Layout};
pub use ledger::{Ledger, OpenSegments};
pub use progress::{Ended, Progress};
pub use read::{Piece, ReadError, read_pieces, read_pieces_through};
pub use store::{Member, Store, Table};
pub(crate) use view::data_piece;
pub use view::{CacheCounts, CacheView, ImagePart};
pub use write::{PlaceError, Placement, Source, give_up, give_up_settled, place};
