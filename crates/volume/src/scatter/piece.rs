//! [`Piece`]: a sealed block or page, and how it is opened.

use base::BlockIndex;
use unit::Tag;

use crate::map::Entry;
use crate::seal::{Address, Keyring, TagMismatch};

/// A sealed piece: where it is and what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its location and sequence.
    pub entry: Entry,
    /// The address that it was sealed under.
    pub address: Address,
}

/// A block's location, as a piece.
pub(crate) fn data_piece(block: BlockIndex, entry: Entry) -> Piece {
    Piece {
        entry,
        address: Address::data(block),
    }
}

/// Opens `sealed` if it is this piece.
pub(super) fn open(
    keyring: &Keyring,
    piece: &Piece,
    tag: &Tag,
    sealed: &[u8],
) -> Result<Vec<u8>, TagMismatch> {
    let mut plain = vec![0; sealed.len()];
    open_into(keyring, piece, tag, sealed, &mut plain)?;
    Ok(plain)
}

/// As [`open`], into `plain`, which has the same length.
pub(super) fn open_into(
    keyring: &Keyring,
    piece: &Piece,
    tag: &Tag,
    sealed: &[u8],
    plain: &mut [u8],
) -> Result<(), TagMismatch> {
    let Piece { entry, address } = *piece;
    let sealer = keyring.of_epoch(entry.sequence.epoch());
    sealer.open(address, entry.sequence, tag, sealed, plain)
}
