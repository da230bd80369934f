//! [`Map`]: which parts of which member may be otherwise than they should be; in memory, and
//! in a file that is there after a crash.
//!
//! ```text
//!  a slot of the file, of which there are two; the newer one that is whole counts
//!
//!    0 ┌───────────────┬───────────────┐
//!      │ magic         │ sequence      │   "SCRMAP02"; grows by one
//!   16 ├───────────────┼───────────────┤
//!      │ disk's bytes  │ names' hash   │   another disk, or other members: worth nothing
//!   32 ├───────┬───────┼───────────────┤
//!      │members│ out   │ checksum      │   bits of members; CRC-32C of all the rest
//!   48 ├───────┼───────┼───────┬───────┤
//!      │ what each is to have          │   4 bytes a member: 0 is all, else of the paths
//!   64 ├───────┴───────┴───────┴───────┤
//!      │ in flight: a bit a region     │   may have been written in part
//!      ├───────────────────────────────┤
//!      │ lacking: the same, a member   │   not written as the others
//!      └───────────────────────────────┘
//! ```
//!
//! Invariants:
//!
//! * A region is in flight in the file before anything is written to it, and until a flush
//!   has covered that: what a crash leaves different is found there.
//! * A member that is out is out in the file before anything is acknowledged that it has
//!   not: it is never what others are filled from. Nor is one that is not to have all, ever.
//! * Of one that is not to have all, what it is to have and has not is in regions that it
//!   lacks.
//!
//! What is assumed of the media: a slot is written whole or not, or its checksum is wrong;
//! what was synced stays.

use base::checksum;

const MAGIC: [u8; 8] = *b"SCRMAP02";
const HEAD_BYTES: usize = 64;

/// So many members have room in the head.
const MEMBERS_MAX: usize = 4;

/// A disk has so many regions at most, of 1 MiB at least.
const REGIONS_MAX: u64 = 1 << 16;
const REGION_BYTES_MIN: u64 = 1 << 20;

/// A bit for each region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Regions(Vec<u64>);

impl Regions {
    /// Of so many regions none.
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    pub fn has(&self, region: usize) -> bool {
        self.0[region / 64] >> (region % 64) & 1 == 1
    }

    pub fn set(&mut self, region: usize) {
        self.0[region / 64] |= 1 << (region % 64);
    }

    pub fn clear(&mut self, region: usize) {
        self.0[region / 64] &= !(1 << (region % 64));
    }

    /// The first one from `from` on.
    pub fn first(&self, from: usize, count: usize) -> Option<usize> {
        (from..count).find(|region| self.has(*region))
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn clear_all(&mut self) {
        self.0.fill(0);
    }

    /// Without those of `other`.
    pub fn remove(&mut self, other: &Self) {
        for (word, less) in self.0.iter_mut().zip(&other.0) {
            *word &= !less;
        }
    }

    fn merge(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pub sequence: u64,
    disk_bytes: u64,
    names: u64,
    pub region_bytes: u64,
    pub regions: usize,
    /// By member.
    pub is_out: Vec<bool>,
    /// By member: 0, if it is to have all.
    choices: Vec<u32>,
    pub in_flight: Regions,
    /// By member.
    pub lacking: Vec<Regions>,
}

impl Map {
    /// Of a disk that was never written so: all but the first member lack everything. Each
    /// has a name, and a number of what it is to have: 0 is all, as the first one has.
    pub fn new(disk_bytes: u64, members: &[(&str, u32)]) -> Self {
        assert!(members.len() <= MEMBERS_MAX, "policies have fewer");
        let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
        let region_bytes = (disk_bytes / REGIONS_MAX)
            .next_power_of_two()
            .max(REGION_BYTES_MIN);
        let regions = disk_bytes.div_ceil(region_bytes) as usize;
        let mut all = Regions::new(regions);
        (0..regions).for_each(|region| all.set(region));
        let mut lacking = vec![all; names.len()];
        lacking[0] = Regions::new(regions);
        let mut is_out = vec![true; names.len()];
        is_out[0] = false;
        Self {
            sequence: 0,
            disk_bytes,
            names: hash_of(&names),
            region_bytes,
            regions,
            is_out,
            choices: members.iter().map(|(_, choice)| *choice).collect(),
            in_flight: Regions::new(regions),
            lacking,
        }
    }

    /// How long a slot is, in bytes.
    pub fn slot_bytes(&self) -> usize {
        HEAD_BYTES + self.regions.div_ceil(64) * 8 * (1 + self.lacking.len())
    }

    /// A member may lack what is in `regions`.
    pub fn lack(&mut self, member: usize, regions: &Regions) {
        self.lacking[member].merge(regions);
    }

    /// A member may lack anything. Whether it did already.
    pub fn lack_all(&mut self, member: usize) -> bool {
        let lacking = &mut self.lacking[member];
        let did = lacking.count() as usize == self.regions;
        (0..self.regions).for_each(|region| lacking.set(region));
        did
    }

    /// The regions that a range of the disk lies in.
    pub fn regions_of(&self, offset: u64, length: u64) -> std::ops::Range<usize> {
        let end = (offset + length).div_ceil(self.region_bytes);
        (offset / self.region_bytes) as usize..(end as usize).min(self.regions)
    }

    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.slot_bytes());
        bytes.extend(MAGIC);
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.disk_bytes.to_le_bytes());
        bytes.extend(self.names.to_le_bytes());
        bytes.extend((self.is_out.len() as u32).to_le_bytes());
        let bits = (0..).zip(&self.is_out);
        let out: u32 = bits.map(|(at, is)| u32::from(*is) << at).sum();
        bytes.extend(out.to_le_bytes());
        bytes.extend([0; 8]);
        for member in 0..MEMBERS_MAX {
            let choice = self.choices.get(member).copied().unwrap_or_default();
            bytes.extend(choice.to_le_bytes());
        }
        for regions in std::iter::once(&self.in_flight).chain(&self.lacking) {
            for word in &regions.0 {
                bytes.extend(word.to_le_bytes());
            }
        }
        let sum = u64::from(checksum::crc32c(&bytes));
        bytes[40..48].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Takes over what a slot says, if it is whole, and of this disk and these members.
    pub fn decode(&self, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..self.slot_bytes())?;
        let word = |at: usize| {
            let bytes = bytes[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let mut summed = bytes.to_vec();
        summed[40..48].fill(0);
        let is_whole = bytes[..8] == MAGIC && u64::from(checksum::crc32c(&summed)) == word(40);
        let (members, out) = (word(32) as u32, (word(32) >> 32) as u32);
        let is_ours = (word(16), word(24), members as usize)
            == (self.disk_bytes, self.names, self.lacking.len());
        if !is_whole || !is_ours {
            return None;
        }
        let words = self.regions.div_ceil(64);
        let regions = |number: usize| {
            let first = HEAD_BYTES + number * words * 8;
            Regions((0..words).map(|at| word(first + at * 8)).collect())
        };
        let mut read = Self {
            sequence: word(8),
            is_out: (0..self.is_out.len())
                .map(|at| out >> at & 1 == 1)
                .collect(),
            in_flight: regions(0),
            lacking: (1..=self.lacking.len()).map(regions).collect(),
            ..self.clone()
        };
        for (member, choice) in self.choices.iter().enumerate() {
            let before = (word(48 + member / 2 * 8) >> (member % 2 * 32)) as u32;
            if before != *choice {
                // Whatever it has, it is something else that it is to have.
                read.lack_all(member);
                read.is_out[member] = true;
            }
        }
        Some(read)
    }

    /// The first member that has all.
    pub fn source(&self) -> Option<usize> {
        let mut members = 0..self.is_out.len();
        members.find(|member| !self.is_out[*member] && self.choices[*member] == 0)
    }

    /// After a crash: what was in flight is as the first member has it that has all. Which
    /// one that is; `None` if there is none.
    pub fn recover(&mut self) -> Option<usize> {
        let source = self.source()?;
        for (at, lacking) in self.lacking.iter_mut().enumerate() {
            if at != source {
                lacking.merge(&self.in_flight);
                self.is_out[at] |= lacking.count() > 0;
            }
        }
        self.in_flight = Regions::new(self.regions);
        Some(source)
    }
}

fn hash_of(names: &[&str]) -> u64 {
    checksum::crc32c(names.join("\n").as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_as_it_was_written_and_no_byte_may_differ() {
        let fresh = Map::new(100 << 20, &[("volume", 0), ("b", 0)]);
        assert_eq!((fresh.regions, fresh.lacking[1].count()), (100, 100));
        let mut map = fresh.clone();
        map.sequence = 7;
        map.is_out = vec![true, false];
        map.in_flight.set(3);
        map.lacking[1] = Regions::new(100);
        map.lacking[0].set(99);
        let bytes = map.encode();
        assert_eq!(fresh.decode(&bytes), Some(map));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(fresh.decode(&flipped), None, "byte {at}");
        }
        assert_eq!(fresh.decode(&bytes[1..]), None);
        assert_eq!(
            Map::new(100 << 20, &[("volume", 0), ("c", 0)]).decode(&bytes),
            None
        );
        assert_eq!(
            Map::new(99 << 20, &[("volume", 0), ("b", 0)]).decode(&bytes),
            None
        );
    }

    #[test]
    fn what_was_in_flight_is_as_one_member_has_it() {
        let mut map = Map::new(10 << 20, &[("volume", 0), ("b", 0), ("c", 0)]);
        map.is_out = vec![true, false, false];
        map.lacking = vec![Regions::new(10), Regions::new(10), Regions::new(10)];
        map.lacking[0].set(1);
        map.in_flight.set(5);
        assert_eq!(map.recover(), Some(1), "one that was never out");
        assert!(map.lacking[0].has(1) && map.lacking[0].has(5) && map.lacking[2].has(5));
        assert_eq!((map.lacking[1].count(), map.in_flight.count()), (0, 0));
        assert_eq!(map.is_out, [true, false, true]);
        map.is_out = vec![true; 3];
        assert_eq!(map.recover(), None);
    }

    #[test]
    fn who_is_not_to_have_all_is_never_the_source_and_lacks_all_when_that_changes() {
        let of = |b: u32, c: u32| Map::new(10 << 20, &[("volume", 0), ("b", b), ("c", c)]);
        let mut map = of(7, 0);
        map.is_out = vec![true, false, false];
        map.lacking = vec![Regions::new(10), Regions::new(10), Regions::new(10)];
        assert_eq!(map.clone().recover(), Some(2));
        let bytes = map.encode();
        assert_eq!(of(7, 0).decode(&bytes), Some(map));
        for other in [of(0, 0), of(8, 0)] {
            let read = other.decode(&bytes).expect("it is whole");
            assert_eq!(read.is_out, [true, true, false]);
            assert_eq!((read.lacking[1].count(), read.lacking[2].count()), (10, 0));
        }
        let mut read = of(7, 9).decode(&bytes).expect("it is whole");
        assert_eq!(read.recover(), None, "nobody has all");
    }

    #[test]
    fn a_large_disk_has_large_regions() {
        let map = Map::new(64 << 40, &[("volume", 0), ("b", 0)]);
        assert!(map.regions <= 1 << 16 && map.slot_bytes() < 32 << 10);
        assert_eq!(map.regions_of(map.region_bytes - 1, 2), 0..2);
    }
}
