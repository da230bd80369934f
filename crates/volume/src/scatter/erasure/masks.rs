//! [`Masks`]: of which slots the parity of each row is made.
//!
//! A parity segment of generation 0 is made of all slots of its rows. From
//! generation 1 on, the slot after the last row holds the masks:
//!
//! ```text
//!  0 │ "screemsk"                                  │
//!  8 │ version u16 = 1 │ k u8 │ parity u8 │ rows u32 │
//! 16 │ segment u64                                 │
//! 24 │ CRC of bytes 0–23 and of the masks, u32 │ 0, u32 │
//! 32 │ a byte for each row: bit i is slot i of it  │
//! ```
//!
//! Its tag is zero: a member may falsify it, as all else, and then what is recovered
//! with it does not open.

use base::codec::{OutOfBytes, Reader, Writer as _};
use base::{SegmentId, Slot, checksum};
use catalog::Erasure;
use unit::{Read, SlotRun, Tag, Unit, UnitError};

use super::code::{Mask, whole};

const MAGIC: &[u8; 8] = b"screemsk";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 32;

/// Why a slot holds no valid masks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMasks {
    /// There are too few bytes.
    #[error("the slot is too short: {0}")]
    Short(#[from] OutOfBytes),
    /// It is something else, or belongs to another segment or member.
    #[error("the last slot holds no masks of this parity")]
    Foreign,
    /// A newer build wrote it.
    #[error("the masks have format {0}; this build reads format {VERSION}")]
    Version(u16),
}

/// The masks of a segment's rows on one parity member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masks {
    rows: Vec<u8>,
}

impl Masks {
    /// Masks of rows whose parity is made of all slots.
    #[must_use]
    pub fn whole(erasure: Erasure, rows: u32) -> Self {
        Self {
            rows: vec![whole(erasure) as u8; rows as usize],
        }
    }

    /// Masks of rows whose parity is made of no slots.
    #[cfg(test)]
    pub(crate) fn none(rows: u32) -> Self {
        Self {
            rows: vec![0; rows as usize],
        }
    }

    /// The masks of one row alone.
    #[must_use]
    pub fn row(&self, row: u32) -> Self {
        Self {
            rows: vec![self.of(row) as u8],
        }
    }

    /// The masks of the first `rows` rows.
    #[must_use]
    pub fn first(&self, rows: usize) -> Self {
        Self {
            rows: self.rows.iter().copied().take(rows).collect(),
        }
    }

    /// Appends the masks of more rows.
    pub fn extend(&mut self, more: &Self) {
        self.rows.extend(&more.rows);
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The slots that a row's parity is made of; none if there is no such row.
    #[must_use]
    pub fn of(&self, row: u32) -> Mask {
        self.rows.get(row as usize).copied().unwrap_or(0).into()
    }

    /// Sets the slots that the parity of `row` is made of.
    pub fn set(&mut self, row: u32, mask: Mask) {
        if let Some(of_row) = self.rows.get_mut(row as usize) {
            *of_row = mask as u8;
        }
    }

    /// Encodes the masks as a slot of `slot_bytes` on parity member number `parity`.
    #[must_use]
    pub fn encode(
        &self,
        segment: SegmentId,
        erasure: Erasure,
        parity: u8,
        slot_bytes: u32,
    ) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(slot_bytes as usize);
        bytes.put_bytes(MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u8(erasure.data());
        bytes.put_u8(parity);
        bytes.put_u32(self.rows());
        bytes.put_u64(segment.bits());
        let crc = checksum::crc32c_append(checksum::crc32c(&bytes), &self.rows);
        bytes.put_u32(crc);
        bytes.put_u32(0);
        bytes.put_bytes(&self.rows);
        assert!(bytes.len() <= slot_bytes as usize, "rows fit into a slot");
        bytes.resize(slot_bytes as usize, 0);
        bytes
    }

    /// Decodes the masks that [`Masks::encode`] wrote for the same member.
    ///
    /// # Errors
    /// [`BadMasks`].
    pub fn decode(
        bytes: &[u8],
        segment: SegmentId,
        erasure: Erasure,
        parity: u8,
    ) -> Result<Self, BadMasks> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(BadMasks::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(BadMasks::Version(version));
        }
        let (data, number, rows) = (reader.u8()?, reader.u8()?, reader.u32()?);
        let bits = reader.u64()?;
        let (crc, reserved) = (reader.u32()?, reader.u32()?);
        let rows = reader.bytes(rows as usize)?;
        let expected = checksum::crc32c_append(checksum::crc32c(&bytes[..HEAD_BYTES - 8]), rows);
        let is_its = (data, number, bits) == (erasure.data(), parity, segment.bits())
            && crc == expected
            && reserved == 0
            && rows
                .iter()
                .all(|mask| Mask::from(*mask) & !whole(erasure) == 0);
        if !is_its {
            return Err(BadMasks::Foreign);
        }
        Ok(Self {
            rows: rows.to_vec(),
        })
    }

    /// Reads the generation and the masks of parity member number `parity`.
    ///
    /// # Errors
    /// [`UnitError`]; [`UnitError::Damaged`] if there are no valid masks.
    pub fn read(
        unit: &dyn Unit,
        segment: SegmentId,
        erasure: Erasure,
        parity: u8,
    ) -> Result<(u16, Self), UnitError> {
        let stat = unit.stat_segment(segment)?;
        if stat.generation == 0 {
            return Ok((0, Self::whole(erasure, stat.slots)));
        }
        let damaged = |reason: String| UnitError::Damaged {
            url: unit.url().to_owned(),
            segment,
            reason,
        };
        let last = stat
            .slots
            .checked_sub(1)
            .and_then(|last| u16::try_from(last).ok());
        let last = last.ok_or_else(|| damaged("it has no slot with masks".to_owned()))?;
        let run = SlotRun {
            segment,
            first: Slot(last),
            count: 1,
        };
        let mut tags: [Tag; 1] = [[0; 16]];
        let mut bytes = vec![0; stat.slot_bytes as usize];
        unit.read(Read {
            run,
            slot_bytes: stat.slot_bytes,
            tags: &mut tags,
            data: &mut bytes,
        })?;
        let masks = Self::decode(&bytes, segment, erasure, parity)
            .ok()
            .filter(|masks| masks.rows() == u32::from(last));
        let masks = masks.ok_or_else(|| damaged(BadMasks::Foreign.to_string()))?;
        Ok((stat.generation, masks))
    }
}

#[cfg(test)]
mod tests {
    use base::CopysetId;

    use super::*;

    fn segment(serial: u64) -> SegmentId {
        SegmentId::new(CopysetId::new(3).expect("12 bits"), serial).expect("36 bits")
    }

    /// A slot of masks of format 1, up to where its zeroes begin.
    const FIXTURE: [u8; 35] = [
        0x73, 0x63, 0x72, 0x65, 0x65, 0x6d, 0x73, 0x6b, 0x01, 0x00, 0x04, 0x01, 0x03, 0x00, 0x00,
        0x00, 0x01, 0x00, 0x00, 0x00, 0x30, 0x00, 0x00, 0x00, 0x51, 0x6e, 0xf8, 0xb3, 0x00, 0x00,
        0x00, 0x00, 0x0f, 0x05, 0x00,
    ];

    #[test]
    fn masks_have_format_1_and_newer_ones_are_refused_by_their_number() {
        let erasure = Erasure::new(4, 2).expect("allowed");
        let mut masks = Masks::whole(erasure, 3);
        masks.set(1, 0b0101);
        masks.set(2, 0);
        let slot = masks.encode(segment(1), erasure, 1, 4096);
        assert_eq!(slot[..FIXTURE.len()], FIXTURE);
        let decode = |slot: &[u8]| Masks::decode(slot, segment(1), erasure, 1);
        assert_eq!(decode(&slot), Ok(masks));
        let mut newer = slot;
        newer[8] = 2;
        assert_eq!(decode(&newer), Err(BadMasks::Version(2)));
    }

    #[test]
    fn masks_round_trip_and_every_flipped_bit_is_detected() {
        let erasure = Erasure::new(4, 2).expect("allowed");
        let mut masks = Masks::whole(erasure, 2047);
        masks.set(5, 0b0101);
        masks.set(2046, 0);
        let bytes = masks.encode(segment(1), erasure, 1, 4096);
        let decode = |bytes: &[u8]| Masks::decode(bytes, segment(1), erasure, 1);
        assert_eq!(decode(&bytes).as_ref(), Ok(&masks));
        assert_eq!((masks.of(5), masks.of(6), masks.of(9999)), (5, 15, 0));
        for bit in 0..(HEAD_BYTES + 2047) * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for length in 0..HEAD_BYTES + 2047 {
            assert!(decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Masks::decode(&bytes, segment(2), erasure, 1).is_err());
        assert!(Masks::decode(&bytes, segment(1), erasure, 0).is_err());
    }
}
