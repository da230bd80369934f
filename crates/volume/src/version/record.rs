//! The version record: what the catalog keeps of a version, sealed.
//!
//! ```text
//!  0│ sequence                            │  nonce of the seal
//!  8│ tag, 16 bytes                       │
//! 24│ sealed:                             │
//!   │  0│ format u32 = 1 │ block bytes u32│
//!   │  8│ volume id, 16 bytes             │
//!   │ 24│ version number                  │
//!   │ 32│ volume size in bytes            │
//!   │ 40│ last sequence of the journal    │  the journal's writes up to this one
//!   │   │ that is in the version          │  are in the version
//!   │ 48│ root entries u32 │ tail pages u32│
//!   │ 56│ root entries, 16 bytes each     │
//!   │   │ tail pages, 16 bytes each       │
//! ```

use base::codec::{OutOfBytes, Reader, Writer};
use base::{BlockSize, Sequence, VolumeId};
use catalog::VersionKey;

use crate::map::{Entry, Root};
use crate::seal::{Address, Keyring, Sealer, TagMismatch};

const FORMAT: u32 = 1;

/// A version's record, opened and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The version's key.
    pub key: VersionKey,
    /// Block size of the volume.
    pub block_size: BlockSize,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// The last journal sequence that the version contains.
    pub last_sequence: Sequence,
    /// The root of the map.
    pub root: Root,
    /// The tail's pages, oldest first.
    pub tail: Vec<Entry>,
}

/// Why a stored record is not a valid version record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// It was altered, or sealed with another key.
    #[error(transparent)]
    Encryption(#[from] TagMismatch),
    /// It ends early.
    #[error(transparent)]
    Short(#[from] OutOfBytes),
    /// It was written by a newer build.
    #[error("the version record has format {0}; this build reads format {FORMAT}")]
    Format(u32),
    /// It is another version's record.
    #[error("the catalog returned the record of another version")]
    Swapped,
    /// A field has an impossible value.
    #[error("field {0:?} of the version record has an impossible value")]
    Field(&'static str),
}

impl Record {
    /// Encodes and seals the record.
    #[must_use]
    pub fn seal(&self, sealer: &Sealer, sequence: Sequence) -> Vec<u8> {
        let mut plain = self.encode();
        let tag = sealer.seal(Address::VERSION, sequence, &mut plain);
        let mut sealed = Vec::with_capacity(24 + plain.len());
        sealed.put_u64(sequence.bits());
        sealed.put_bytes(&tag);
        sealed.put_bytes(&plain);
        sealed
    }

    fn encode(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        plain.put_u32(FORMAT);
        plain.put_u32(u32::try_from(self.block_size.bytes()).expect("at most 64 KiB"));
        plain.put_u128(self.key.volume.as_u128());
        plain.put_u64(self.key.number);
        plain.put_u64(self.size_bytes);
        plain.put_u64(self.last_sequence.bits());
        let count = |count: usize| u32::try_from(count).expect("bounded by the volume's size");
        plain.put_u32(count(self.root.entries().len()));
        plain.put_u32(count(self.tail.len()));
        for entry in self.root.entries() {
            Entry::write(*entry, &mut plain);
        }
        for page in &self.tail {
            Entry::write(Some(*page), &mut plain);
        }
        plain
    }

    /// Opens a record and checks that it is version `key`.
    ///
    /// # Errors
    /// [`BadRecord`].
    pub fn open(key: VersionKey, sealed: &[u8], keyring: &Keyring) -> Result<Self, BadRecord> {
        let mut reader = Reader::new(sealed);
        let sequence = Sequence::from_bits(reader.u64()?);
        let tag = reader.array()?;
        let sealed = reader.bytes(reader.remaining())?;
        let mut plain = vec![0; sealed.len()];
        let sealer = keyring.of_epoch(sequence.epoch());
        sealer.open(Address::VERSION, sequence, &tag, sealed, &mut plain)?;
        let record = Self::parse(&plain)?;
        if record.key == key {
            Ok(record)
        } else {
            Err(BadRecord::Swapped)
        }
    }

    fn parse(plain: &[u8]) -> Result<Self, BadRecord> {
        let mut reader = Reader::new(plain);
        let format = reader.u32()?;
        if format != FORMAT {
            return Err(BadRecord::Format(format));
        }
        let block_size =
            BlockSize::new(u64::from(reader.u32()?)).ok_or(BadRecord::Field("block bytes"))?;
        let volume = VolumeId::from_u128(reader.u128()?);
        let key = VersionKey {
            volume,
            number: reader.u64()?,
        };
        let size_bytes = reader.u64()?;
        let last_sequence = Sequence::from_bits(reader.u64()?);
        let (roots, pages) = (reader.u32()?, reader.u32()?);
        let root = (0..roots)
            .map(|_| Entry::read(&mut reader))
            .collect::<Result<_, _>>()?;
        let tail = (0..pages)
            .map(|_| Entry::read(&mut reader)?.ok_or(BadRecord::Field("tail page")))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            key,
            block_size,
            size_bytes,
            last_sequence,
            root: Root::new(root),
            tail,
        })
    }
}

#[cfg(test)]
mod tests {
    use base::Location;

    use super::*;
    use crate::fixture::keyring;

    /// The unsealed bytes of a record of format 1.
    const FIXTURE: [u8; 104] = [
        0x01, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x63, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x09, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    ];

    #[test]
    fn a_record_has_format_1_and_a_newer_one_is_refused_by_its_number() {
        let entry = |bits| Entry {
            location: Location::from_bits(bits),
            sequence: Sequence::new(1, bits).expect("small"),
        };
        let record = Record {
            key: VersionKey {
                volume: VolumeId::from_u128(3),
                number: 4,
            },
            block_size: BlockSize::DEFAULT,
            size_bytes: 1 << 40,
            last_sequence: Sequence::new(1, 99).expect("small"),
            root: Root::new(vec![None, Some(entry(8))]),
            tail: vec![entry(9)],
        };
        assert_eq!(record.encode(), FIXTURE);
        assert_eq!(Record::parse(&FIXTURE), Ok(record));
        let mut newer = FIXTURE;
        newer[0] = 2;
        assert_eq!(Record::parse(&newer), Err(BadRecord::Format(2)));
    }

    #[test]
    fn a_record_is_read_back_and_every_flipped_byte_is_found() {
        let entry = |bits| Entry {
            location: Location::from_bits(bits),
            sequence: Sequence::new(1, bits).expect("small"),
        };
        let record = Record {
            key: VersionKey {
                volume: VolumeId::from_u128(3),
                number: 4,
            },
            block_size: BlockSize::DEFAULT,
            size_bytes: 1 << 40,
            last_sequence: Sequence::new(1, 99).expect("small"),
            root: Root::new(vec![None, Some(entry(8))]),
            tail: vec![entry(9), entry(10)],
        };
        let keyring = keyring(1);
        let mut sealed = record.seal(keyring.own(), Sequence::new(1, 100).expect("small"));
        assert_eq!(
            Record::open(record.key, &sealed, &keyring),
            Ok(record.clone())
        );
        let other = VersionKey {
            number: 5,
            ..record.key
        };
        assert_eq!(
            Record::open(other, &sealed, &keyring),
            Err(BadRecord::Swapped)
        );
        for position in 0..sealed.len() {
            sealed[position] ^= 1;
            assert!(
                Record::open(record.key, &sealed, &keyring).is_err(),
                "byte {position}"
            );
            assert!(Record::open(record.key, &sealed[..position], &keyring).is_err());
            sealed[position] ^= 1;
        }
    }
}
