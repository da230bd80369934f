//! Sealing: makes a block unreadable, unforgeable and unmistakable (docs/internals/sealing.md).
//!
//! Every block, map page, tail page and version record is sealed under
//! *(lineage, address, sequence)*. The sequence is the nonce and is never used
//! twice under one key (invariant 7):
//!
//! * within a lease the counter only grows ([`SequenceSource`]);
//! * every lease takes a new, larger epoch before it writes anything, and seals
//!   with a key of its own, derived from the volume's data key and random bytes:
//!   so even a database that was rolled back and hands out an epoch twice does
//!   not repeat a key;
//! * a clone has a data key of its own, from an epoch above its parent's on.
//!
//! So an epoch names the key, and a reader that knows the expected sequence of a
//! block detects every old, foreign or damaged one (invariant 4).
//!
//! Volumes created with `--encryption none` carry a 128-bit checksum over the same
//! three and the content in place of the tag: HVSTO as published (§III), scattered
//! plaintext. It detects rot and misdirected reads, not an attacker.

mod keys;
mod sealed_report;
mod sequence;

pub use catalog::{LeaseSalt, WrappedKey};
pub use keys::{DataKey, KeyError, Keyring, LeaseKey, UnwrapKeys, Unwrapped, WrappingKey};
pub use sealed_report::{BadSealedReport, ReportKey, SealedReport};
pub use sequence::{SequenceExhausted, SequenceSource};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base::{BlockIndex, Lineage, Sequence};
use unit::Tag;
use xxhash_rust::xxh3::Xxh3;

/// The identity of a sealed piece within its lineage. It is part of the associated
/// data, so a piece never opens in the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address(u64);

impl Address {
    /// Block `block` of a volume.
    #[must_use]
    pub const fn data(block: BlockIndex) -> Self {
        Self(block.0)
    }

    /// Whether it is a block of a volume rather than a page of the engine's own.
    #[must_use]
    pub const fn is_data(self) -> bool {
        self.0 >> 60 == 0
    }

    /// A map page: `level` is 1 (leaf) to 3 (root page), `index` counts pages
    /// of that level from the start of the volume.
    #[must_use]
    pub const fn page(level: u8, index: u64) -> Self {
        Self((level as u64) << 60 | index)
    }

    /// A page of a tail.
    pub const TAIL: Self = Self(4 << 60);

    /// A version record.
    pub const VERSION: Self = Self(5 << 60);
}

/// The piece is not the one that was sealed: it is damaged, old or foreign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tag does not match sequence {expected:?}")]
pub struct TagMismatch {
    /// The sequence that was expected.
    pub expected: Sequence,
}

enum Method {
    Aead(LessSafeKey),
    Checksum,
}

/// Seals and opens pieces of one lineage.
pub struct Sealer {
    lineage: Lineage,
    method: Method,
}

impl Sealer {
    /// A sealer with AES-256-GCM.
    #[must_use]
    pub fn aead(lineage: Lineage, key: &LeaseKey) -> Self {
        let unbound = UnboundKey::new(&AES_256_GCM, key.bytes())
            .expect("a lease key has the length that AES-256 requires");
        Self {
            lineage,
            method: Method::Aead(LessSafeKey::new(unbound)),
        }
    }

    /// A sealer that only checks (`--encryption none`).
    #[must_use]
    pub fn checksum(lineage: Lineage) -> Self {
        Self {
            lineage,
            method: Method::Checksum,
        }
    }

    /// Whether content can be read without a key.
    #[must_use]
    pub fn is_plaintext(&self) -> bool {
        matches!(self.method, Method::Checksum)
    }

    /// The lineage whose pieces it seals.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Seals `piece` in place and returns its tag. The caller must never pass
    /// the same sequence twice: it takes each from the lease's [`SequenceSource`],
    /// which returns none twice.
    pub fn seal(&self, address: Address, sequence: Sequence, piece: &mut [u8]) -> Tag {
        match &self.method {
            Method::Aead(key) => {
                let tag = key
                    .seal_in_place_separate_tag(
                        nonce(sequence),
                        Aad::from(self.associated(address)),
                        piece,
                    )
                    .expect("pieces are far below GCM's length limit");
                let mut bytes = [0; 16];
                bytes.copy_from_slice(tag.as_ref());
                bytes
            }
            Method::Checksum => self.checksum_of(address, sequence, piece),
        }
    }

    /// Opens `sealed` into `plain`, which has the same length.
    ///
    /// # Errors
    /// [`TagMismatch`]; `plain` then holds nothing of use.
    pub fn open(
        &self,
        address: Address,
        sequence: Sequence,
        tag: &Tag,
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<(), TagMismatch> {
        let mismatch = TagMismatch { expected: sequence };
        match &self.method {
            Method::Aead(key) => key
                .open_separate_gather(
                    nonce(sequence),
                    Aad::from(self.associated(address)),
                    sealed,
                    tag,
                    plain,
                )
                .map_err(|_| mismatch),
            Method::Checksum if self.checksum_of(address, sequence, sealed) == *tag => {
                plain.copy_from_slice(sealed);
                Ok(())
            }
            Method::Checksum => Err(mismatch),
        }
    }

    fn associated(&self, address: Address) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.lineage.as_u128().to_le_bytes());
        bytes[16..].copy_from_slice(&address.0.to_le_bytes());
        bytes
    }

    fn checksum_of(&self, address: Address, sequence: Sequence, piece: &[u8]) -> Tag {
        let mut hasher = Xxh3::new();
        hasher.update(&self.associated(address));
        hasher.update(&sequence.bits().to_le_bytes());
        hasher.update(piece);
        hasher.digest128().to_le_bytes()
    }
}

fn nonce(sequence: Sequence) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&sequence.bits().to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::keys::tests::{DATA_KEY, SALT};
    use super::*;

    fn sealers() -> [Sealer; 2] {
        let lineage = Lineage::from_u128(9);
        let lease_key = DataKey::from_bytes([3; 32]).lease_key(1, LeaseSalt([0; 16]));
        [Sealer::aead(lineage, &lease_key), Sealer::checksum(lineage)]
    }

    #[test]
    fn a_piece_opens_only_as_what_it_was_sealed_as() {
        let one = Sequence::new(1, 1).expect("small");
        let two = Sequence::new(1, 2).expect("small");
        let block = Address::data(BlockIndex(5));
        for sealer in sealers() {
            let mut sealed = vec![7; 4096];
            let tag = sealer.seal(block, one, &mut sealed);
            let mut plain = vec![0; 4096];
            sealer
                .open(block, one, &tag, &sealed, &mut plain)
                .expect("it opens");
            assert_eq!(plain, [7; 4096]);
            assert!(
                sealer.open(block, two, &tag, &sealed, &mut plain).is_err(),
                "old"
            );
            let other = Address::data(BlockIndex(6));
            assert!(
                sealer.open(other, one, &tag, &sealed, &mut plain).is_err(),
                "misdirected"
            );
            let page = Address::page(1, 5);
            assert!(
                sealer.open(page, one, &tag, &sealed, &mut plain).is_err(),
                "another kind"
            );
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let sequence = Sequence::new(1, 1).expect("small");
        let address = Address::data(BlockIndex(0));
        for sealer in sealers() {
            let mut sealed = vec![1; 64];
            let tag = sealer.seal(address, sequence, &mut sealed);
            let mut plain = vec![0; 64];
            for bit in 0..64 * 8 {
                sealed[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    sealer
                        .open(address, sequence, &tag, &sealed, &mut plain)
                        .is_err()
                );
                sealed[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in 0..128 {
                let mut wrong = tag;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    sealer
                        .open(address, sequence, &wrong, &sealed, &mut plain)
                        .is_err()
                );
            }
        }
    }

    /// One block of format 1, sealed in both ways, byte by byte. It protects the bytes of the
    /// nonce and of the associated data, the algorithms of the tags, and so every block that was
    /// ever written: other bytes would be taken for damage. The bytes were computed without this
    /// code, from docs/internals/formats.md.
    #[test]
    fn the_fixture_of_a_sealed_block_is_read_and_written() {
        #[rustfmt::skip]
        const SEALED: [u8; 32] = [
            0x9f, 0xd0, 0xe7, 0x35, 0x84, 0x19, 0x6c, 0xea, 0xeb, 0x52, 0x09, 0x77,
            0x0a, 0xd7, 0x7c, 0x81, 0x51, 0xa4, 0xe4, 0x36, 0xe8, 0x3d, 0x9e, 0xa3,
            0x0b, 0xab, 0x01, 0x73, 0xeb, 0x78, 0xbd, 0xc2,
        ];
        #[rustfmt::skip]
        const TAG: [u8; 16] = [
            0x76, 0xa2, 0xb9, 0x4f, 0x27, 0x74, 0xfc, 0x53, 0x95, 0xd4, 0x42, 0x64,
            0x3d, 0xbc, 0xef, 0x9f,
        ];
        #[rustfmt::skip]
        const CHECKSUM: [u8; 16] = [
            0x15, 0x3a, 0x1a, 0x4e, 0x8e, 0xef, 0xf0, 0xce, 0x0a, 0xdf, 0x20, 0x23,
            0xdb, 0x67, 0xb8, 0x04,
        ];
        let lineage = Lineage::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let epoch = 0x01_0203;
        let lease_key = DataKey::from_bytes(DATA_KEY).lease_key(epoch, LeaseSalt(SALT));
        let sequence = Sequence::new(epoch, 0x04_0506_0708).expect("in range");
        let address = Address::data(BlockIndex(0x1234));
        for (sealer, sealed, tag) in [
            (Sealer::aead(lineage, &lease_key), SEALED, TAG),
            (Sealer::checksum(lineage), [7; 32], CHECKSUM),
        ] {
            let mut piece = [7; 32];
            assert_eq!(sealer.seal(address, sequence, &mut piece), tag);
            assert_eq!(piece, sealed);
            let mut plain = [0; 32];
            let opened = sealer.open(address, sequence, &tag, &sealed, &mut plain);
            assert_eq!((opened, plain), (Ok(()), [7; 32]));
        }
    }

    /// The numbers are part of the associated data, and so of every sealed page.
    #[test]
    fn addresses_have_the_documented_numbers() {
        assert_eq!(Address::data(BlockIndex(0x1234)).0, 0x1234);
        assert_eq!(Address::page(1, 7).0, 0x1000_0000_0000_0007);
        assert_eq!(Address::page(3, 7).0, 0x3000_0000_0000_0007);
        assert_eq!(Address::TAIL.0, 0x4000_0000_0000_0000);
        assert_eq!(Address::VERSION.0, 0x5000_0000_0000_0000);
    }
}
