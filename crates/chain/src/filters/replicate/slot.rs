//! The bytes of a [`RegionMap`] in its file.
//!
//! ```text
//!  a slot of the file, of which there are two; the newer valid one counts
//!
//!    0 ┌───────────────┬───────────────┐
//!      │ "SCRRMAP", 1  │ sequence      │   magic and format; grows by one
//!   16 ├───────────────┼───────────────┤
//!      │ disk's bytes  │ epoch + 1     │   of the lease that it was written under; 0: none
//!   32 ├───────┬───────┼───────────────┤
//!      │members│exclud.│ checksum      │   a bit for each member; CRC-32C of all the rest
//!   48 ├───────┼───────┼───────┬───────┤
//!      │ selections                    │   4 bytes a member: 0 is everything, else of its paths
//!   64 ├───────┬───────┬───────┬───────┤
//!      │ identities                    │   4 bytes a member: of its name and address
//!   80 ├───────┴───────┼───────┴───────┤
//!      │ released by   │ zeroes        │   the chain that was replaced in order; 0: none
//!   96 ├───────────────┴───────────────┤
//!      │ in flight: a bit a region     │   may have been written in part
//!      ├───────────────────────────────┤
//!      │ missing: the same, a member   │   the member may have other content
//!      └───────────────────────────────┘
//! ```
//!
//! What is assumed of the media: a slot is written completely, or its checksum is wrong; what was
//! synced stays.

use base::checksum;

use super::region_map::{MEMBERS_MAX, MemberSpec, REGIONS_MAX, RegionMap};
use super::regions::Regions;

const MAGIC: &[u8; 7] = b"SCRRMAP";
const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 96;
const CHECKSUM: std::ops::Range<usize> = 40..48;

/// The maximal length of a slot, in bytes.
pub(super) const SLOT_BYTES_MAX: usize = HEAD_BYTES + REGIONS_MAX as usize / 8 * (1 + MEMBERS_MAX);

/// A slot of a format that this build cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has format {0}; this build reads format {format}", format = FORMAT)]
pub(super) struct UnknownFormat(u8);

impl RegionMap {
    /// The length of a slot, in bytes.
    pub fn slot_bytes(&self) -> usize {
        HEAD_BYTES + self.regions.div_ceil(64) * 8 * (1 + self.missing.len())
    }

    /// The bytes of a slot.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.slot_bytes());
        bytes.extend(MAGIC);
        bytes.push(FORMAT);
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.disk_bytes.to_le_bytes());
        let epoch = self.epoch.map_or(0, |epoch| u64::from(epoch) + 1);
        bytes.extend(epoch.to_le_bytes());
        bytes.extend((self.is_excluded.len() as u32).to_le_bytes());
        let bits = (0..).zip(&self.is_excluded);
        let excluded: u32 = bits
            .map(|(at, is_excluded)| u32::from(*is_excluded) << at)
            .sum();
        bytes.extend(excluded.to_le_bytes());
        bytes.extend([0; 8]);
        for at in 0..MEMBERS_MAX {
            let selection = self.members.get(at).map_or(0, |member| member.selection);
            bytes.extend(selection.to_le_bytes());
        }
        for at in 0..MEMBERS_MAX {
            let identity = self.members.get(at).map_or(0, |member| member.identity);
            bytes.extend(identity.to_le_bytes());
        }
        bytes.extend(self.released_by.to_le_bytes());
        bytes.extend([0; 8]);
        for regions in std::iter::once(&self.in_flight).chain(&self.missing) {
            for word in regions.words() {
                bytes.extend(word.to_le_bytes());
            }
        }
        let sum = u64::from(checksum::crc32c(&bytes));
        bytes[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a slot, of any disk and members; `None` if it is not valid.
    ///
    /// # Errors
    /// [`UnknownFormat`] if the slot has a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, UnknownFormat> {
        match (bytes.get(..MAGIC.len()), bytes.get(MAGIC.len())) {
            (Some(magic), Some(&FORMAT)) if magic == MAGIC => Ok(Self::parse(bytes)),
            (Some(magic), Some(&format)) if magic == MAGIC && format > FORMAT => {
                Err(UnknownFormat(format))
            }
            _ => Ok(None),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let half = |at: usize| Some((word(at / 8 * 8)? >> (at % 8 * 8)) as u32);
        let (disk_bytes, count) = (word(16)?, half(32)? as usize);
        if !(1..=MEMBERS_MAX).contains(&count) {
            return None;
        }
        let member = |at: usize| {
            Some(MemberSpec {
                selection: half(48 + at * 4)?,
                identity: half(64 + at * 4)?,
            })
        };
        let members: Option<Vec<_>> = (0..count).map(member).collect();
        let mut map = Self::new(disk_bytes, &members?);
        let mut summed = bytes.get(..map.slot_bytes())?.to_vec();
        summed[CHECKSUM].fill(0);
        if u64::from(checksum::crc32c(&summed)) != word(CHECKSUM.start)? {
            return None;
        }
        let words = map.regions.div_ceil(64);
        let regions = |number: usize| {
            let first = HEAD_BYTES + number * words * 8;
            let words = (0..words).map(|at| word(first + at * 8));
            words.collect::<Option<Vec<_>>>().map(Regions::from_words)
        };
        let excluded = half(36)?;
        map.sequence = word(8)?;
        map.epoch = word(24)?.checked_sub(1).map(|epoch| epoch as u32);
        map.released_by = word(80)?;
        map.in_flight = regions(0)?;
        for at in 0..count {
            map.is_excluded[at] = excluded >> at & 1 == 1;
            map.missing[at] = regions(1 + at)?;
        }
        Some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::super::region_map::tests::map_of;
    use super::*;

    /// A slot of format 1.
    const FIXTURE: [u8; 120] = [
        0x53, 0x43, 0x52, 0x52, 0x4d, 0x41, 0x50, 0x01, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0xbb, 0xee, 0x3e, 0xb4, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x7b, 0xfd, 0x29, 0xbc, 0xc4, 0xb0, 0x80, 0xd2, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn a_slot_has_format_1_and_a_newer_one_is_refused_by_its_number() {
        let mut map = map_of(2 << 20, &[("volume", 0), ("b", 7)]);
        (map.sequence, map.epoch, map.released_by) = (7, Some(0), 1 << 40);
        map.is_excluded = vec![true, false];
        map.in_flight.set(0);
        map.missing[0].set(1);
        assert_eq!(map.encode(), FIXTURE);
        assert_eq!(RegionMap::decode(&FIXTURE), Ok(Some(map)));
        let mut newer = FIXTURE;
        newer[7] = FORMAT + 1;
        let refused = RegionMap::decode(&newer).expect_err("it is newer");
        assert_eq!(
            refused.to_string(),
            "it has format 2; this build reads format 1"
        );
    }

    #[test]
    fn a_map_round_trips_and_a_flipped_byte_is_detected() {
        let fresh = map_of(100 << 20, &[("volume", 0), ("b", 0)]);
        assert_eq!((fresh.regions, fresh.missing[1].count()), (100, 100));
        let mut map = fresh.clone();
        map.sequence = 7;
        map.is_excluded = vec![true, false];
        map.in_flight.set(3);
        map.missing[1] = Regions::new(100);
        map.missing[0].set(99);
        (map.epoch, map.released_by) = (Some(0), 1 << 40);
        let bytes = map.encode();
        assert_eq!(RegionMap::decode(&bytes), Ok(Some(map)));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(RegionMap::decode(&flipped), Ok(None), "byte {at}");
        }
        for length in 0..bytes.len() {
            assert_eq!(RegionMap::decode(&bytes[..length]), Ok(None));
        }
    }
}
