//! [`Map`]: which parts of which member may be otherwise than they should be; in memory, and
//! in a file that is there after a crash.
//!
//! ```text
//!  a slot of the file, of which there are two; the newer one that is whole counts
//!
//!    0 ┌───────────────┬───────────────┐
//!      │ magic         │ sequence      │   "SCRMAP03"; grows by one
//!   16 ├───────────────┼───────────────┤
//!      │ disk's bytes  │ epoch + 1     │   of the lease that it was written under; 0: none
//!   32 ├───────┬───────┼───────────────┤
//!      │members│ out   │ checksum      │   bits of members; CRC-32C of all the rest
//!   48 ├───────┼───────┼───────┬───────┤
//!      │ what each is to have          │   4 bytes a member: 0 is all, else of the paths
//!   64 ├───────┬───────┬───────┬───────┤
//!      │ which each is                 │   4 bytes a member: of its name and place
//!   80 ├───────┴───────┼───────┴───────┤
//!      │ left          │ zeroes        │   by which chain, if its filters were swapped; 0: not
//!   96 ├───────────────┴───────────────┤
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

use crate::ChainHistory;

const MAGIC: [u8; 8] = *b"SCRMAP03";
const HEAD_BYTES: usize = 96;

/// So many members have room in the head.
const MEMBERS_MAX: usize = 4;

/// A disk has so many regions at most, of 1 MiB at least.
const REGIONS_MAX: u64 = 1 << 16;
const REGION_BYTES_MIN: u64 = 1 << 20;

/// No slot is longer, in bytes.
pub(super) const SLOT_BYTES_MAX: usize = HEAD_BYTES + REGIONS_MAX as usize / 8 * (1 + MEMBERS_MAX);

/// Why a slot that is whole is of no use, though somebody needs what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Useless {
    /// It has another size now.
    #[error(
        "by its file others have what the volume lacks, and of a disk of {was} bytes; it has {is}"
    )]
    Size {
        /// Then, in bytes.
        was: u64,
        /// Now, in bytes.
        is: u64,
    },
    /// Somebody wrote it without this filter.
    #[error(
        "by its file others have what the volume lacks, and the volume was used without this filter \
         since; give the filter another name to go on from the volume as it is"
    )]
    Interrupted,
}

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

    /// With those of `other`.
    pub fn merge(&mut self, other: &Self) {
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
    /// Of the lease that it is written under.
    pub epoch: Option<u32>,
    /// By which chain it was left; 0: it was not.
    pub left: u64,
    /// Which members there are.
    members: Vec<u32>,
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
    /// has a name and a place, and a number of what it is to have: 0 is all, as the first one
    /// has.
    pub fn new(disk_bytes: u64, members: &[(&str, u32)]) -> Self {
        assert!(members.len() <= MEMBERS_MAX, "policies have fewer");
        let region_bytes = (disk_bytes / REGIONS_MAX)
            .next_power_of_two()
            .max(REGION_BYTES_MIN);
        let regions = disk_bytes.div_ceil(region_bytes) as usize;
        let mut all = Regions::new(regions);
        (0..regions).for_each(|region| all.set(region));
        let mut lacking = vec![all; members.len()];
        lacking[0] = Regions::new(regions);
        let mut is_out = vec![true; members.len()];
        is_out[0] = false;
        Self {
            sequence: 0,
            disk_bytes,
            epoch: None,
            left: 0,
            members: members.iter().map(|(name, _)| hash_of(name)).collect(),
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
        let epoch = self.epoch.map_or(0, |epoch| u64::from(epoch) + 1);
        bytes.extend(epoch.to_le_bytes());
        bytes.extend((self.is_out.len() as u32).to_le_bytes());
        let bits = (0..).zip(&self.is_out);
        let out: u32 = bits.map(|(at, is)| u32::from(*is) << at).sum();
        bytes.extend(out.to_le_bytes());
        bytes.extend([0; 8]);
        for member in 0..MEMBERS_MAX {
            let choice = self.choices.get(member).copied().unwrap_or_default();
            bytes.extend(choice.to_le_bytes());
        }
        for member in 0..MEMBERS_MAX {
            let which = self.members.get(member).copied().unwrap_or_default();
            bytes.extend(which.to_le_bytes());
        }
        bytes.extend(self.left.to_le_bytes());
        bytes.extend([0; 8]);
        for regions in std::iter::once(&self.in_flight).chain(&self.lacking) {
            for word in &regions.0 {
                bytes.extend(word.to_le_bytes());
            }
        }
        let sum = u64::from(checksum::crc32c(&bytes));
        bytes[40..48].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What a slot says, if it is whole; of whatever disk and members.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let half = |at: usize| Some((word(at / 8 * 8)? >> (at % 8 * 8)) as u32);
        if bytes.get(..8)? != MAGIC {
            return None;
        }
        let (disk_bytes, count) = (word(16)?, half(32)? as usize);
        let is_possible = (1..=MEMBERS_MAX).contains(&count);
        let members = vec![("", 0); count.min(MEMBERS_MAX)];
        let mut read = is_possible.then(|| Self::new(disk_bytes, &members))?;
        let mut summed = bytes.get(..read.slot_bytes())?.to_vec();
        summed[40..48].fill(0);
        if u64::from(checksum::crc32c(&summed)) != word(40)? {
            return None;
        }
        let words = read.regions.div_ceil(64);
        let regions = |number: usize| {
            let first = HEAD_BYTES + number * words * 8;
            let words = (0..words).map(|at| word(first + at * 8));
            words.collect::<Option<Vec<_>>>().map(Regions)
        };
        let out = half(36)?;
        read.sequence = word(8)?;
        read.epoch = word(24)?.checked_sub(1).map(|epoch| epoch as u32);
        read.left = word(80)?;
        read.in_flight = regions(0)?;
        for at in 0..count {
            read.is_out[at] = out >> at & 1 == 1;
            read.choices[at] = half(48 + at * 4)?;
            read.members[at] = half(64 + at * 4)?;
            read.lacking[at] = regions(1 + at)?;
        }
        Some(read)
    }

    /// Goes on from what a file says: what it says of the members that there are still. If
    /// somebody may have written the volume without it, it says nothing: another host, or this
    /// one through another chain.
    ///
    /// # Errors
    /// [`Useless`], if others have what the volume lacks.
    pub fn go_on_from(self, before: &Self, history: &ChainHistory) -> Result<Self, Useless> {
        let epoch = history.epoch;
        let is_next = match (before.epoch, epoch) {
            // Nobody says what happened meanwhile.
            (_, None) => true,
            // This host may have begun in vain in between, however often.
            (Some(was), Some(is)) => {
                was <= is && was.saturating_add(1) >= history.epoch_first.unwrap_or(is)
            }
            (None, Some(_)) => false,
        };
        // One that nobody has left is gone on from by the first chain of a lease only: what
        // came before another one had no filter of this name.
        let is_whole = is_next && before.left == history.predecessor;
        let volume_lacks = before.is_out[0];
        let mut new = Self {
            sequence: before.sequence,
            epoch,
            ..self
        };
        let (was, is) = (before.disk_bytes, new.disk_bytes);
        if was > is {
            return match volume_lacks {
                true => Err(Useless::Size { was, is }),
                false => Ok(new),
            };
        }
        let before = &before.grown(is);
        if !is_whole {
            return match volume_lacks {
                true => Err(Useless::Interrupted),
                false => Ok(new),
            };
        }
        new.in_flight = before.in_flight.clone();
        for at in 0..new.members.len() {
            let which = new.members[at];
            let Some(was) = before.members.iter().position(|other| *other == which) else {
                continue;
            };
            // What is to have something else has whatever it may.
            if before.choices[was] == new.choices[at] {
                new.is_out[at] = before.is_out[was];
                new.lacking[at] = before.lacking[was].clone();
            }
        }
        Ok(new)
    }

    /// The same of a disk that has grown to `disk_bytes`: what it has grown by all lack but the
    /// one that has all, which says what is there.
    fn grown(&self, disk_bytes: u64) -> Self {
        let mut grown = Self {
            sequence: self.sequence,
            epoch: self.epoch,
            left: self.left,
            members: self.members.clone(),
            is_out: self.is_out.clone(),
            choices: self.choices.clone(),
            ..Self::new(disk_bytes, &vec![("", 0); self.members.len()])
        };
        // Regions only become longer, twice as long each time.
        let times = (grown.region_bytes / self.region_bytes) as usize;
        let spread = |old: &Regions, new: &mut Regions| {
            (0..self.regions)
                .filter(|region| old.has(*region))
                .for_each(|region| new.set(region / times));
        };
        spread(&self.in_flight, &mut grown.in_flight);
        let fresh = grown.regions_of(self.disk_bytes, disk_bytes - self.disk_bytes);
        let source = self.source();
        for (at, old) in self.lacking.iter().enumerate() {
            let mut lacking = Regions::new(grown.regions);
            spread(old, &mut lacking);
            if Some(at) != source {
                fresh.clone().for_each(|region| lacking.set(region));
                grown.is_out[at] |= lacking.count() > 0;
            }
            grown.lacking[at] = lacking;
        }
        grown
    }

    /// The first member that has all.
    pub fn source(&self) -> Option<usize> {
        let mut members = 0..self.is_out.len();
        members.find(|member| !self.is_out[*member] && self.choices[*member] == 0)
    }

    /// After a crash: what was in flight is as the first member has it that has all. Which
    /// one that is; `None` if there is none. It stays in flight, as that one may still lose it,
    /// until a flush has covered it.
    pub fn recover(&mut self) -> Option<usize> {
        let source = self.source()?;
        self.lacking[source].clear_all();
        for (at, lacking) in self.lacking.iter_mut().enumerate() {
            if at != source {
                lacking.merge(&self.in_flight);
                self.is_out[at] |= lacking.count() > 0;
            }
        }
        Some(source)
    }
}

fn hash_of(name: &str) -> u32 {
    checksum::crc32c(name.as_bytes())
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
        (map.epoch, map.left) = (Some(0), 1 << 40);
        let bytes = map.encode();
        assert_eq!(Map::decode(&bytes), Some(map));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(Map::decode(&flipped), None, "byte {at}");
        }
        for length in 0..bytes.len() {
            assert_eq!(Map::decode(&bytes[..length]), None);
        }
    }

    fn history(epoch: Option<u32>, follows: u64) -> ChainHistory {
        ChainHistory {
            epoch,
            predecessor: follows,
            ..ChainHistory::default()
        }
    }

    #[test]
    fn a_file_counts_only_if_nobody_can_have_written_without_it() {
        let fresh = || Map::new(10 << 20, &[("volume", 0), ("b", 0)]);
        let mut before = fresh();
        before.is_out = vec![false, false];
        before.lacking[1] = Regions::new(10);
        before.lacking[1].set(3);
        (before.epoch, before.sequence) = (Some(7), 40);
        let lacks = |before: &Map, epoch, follows| {
            let map = fresh().go_on_from(before, &history(epoch, follows));
            map.map(|map| {
                assert_eq!((map.sequence, map.left), (40, 0));
                map.lacking[1].count()
            })
        };
        for (epoch, expected) in [(Some(7), 1), (Some(8), 1), (None, 1), (Some(9), 10)] {
            assert_eq!(lacks(&before, epoch, 0), Ok(expected), "{epoch:?}");
        }
        // Nobody was let in meanwhile, however often that was tried.
        for (since, expected) in [(7, 1), (8, 1), (9, 10)] {
            let history = ChainHistory {
                epoch_first: Some(since),
                ..history(Some(20), 0)
            };
            let map = fresh().go_on_from(&before, &history).expect("it goes on");
            assert_eq!(map.lacking[1].count(), expected, "{since}");
        }
        // Its filters were swapped: by those that follow, or by others.
        before.left = 5;
        assert_eq!(lacks(&before, Some(7), 5), Ok(1));
        assert_eq!(lacks(&before, Some(7), 6), Ok(10));
        before.is_out[0] = true;
        assert_eq!(lacks(&before, Some(7), 6), Err(Useless::Interrupted));
        assert_eq!(lacks(&before, Some(9), 5), Err(Useless::Interrupted));
        assert_eq!(lacks(&before, Some(8), 5), Ok(1));
        let smaller = Map::new(9 << 20, &[("volume", 0), ("b", 0)]);
        let refused = smaller.clone().go_on_from(&before, &history(Some(8), 5));
        assert!(matches!(refused, Err(Useless::Size { .. })));
        before.is_out[0] = false;
        let begun = smaller
            .go_on_from(&before, &history(Some(8), 5))
            .expect("nobody needs it");
        assert_eq!(begun.lacking[1].count(), 9);
    }

    #[test]
    fn a_disk_that_has_grown_keeps_what_is_known_of_it() {
        let members = [("volume", 0), ("b", 0)];
        let is = |map: &Map, at: usize| {
            let regions = (0..map.regions).filter(|region| map.lacking[at].has(*region));
            (map.is_out[at], regions.collect::<Vec<_>>())
        };
        let grown = |before: &Map, bytes: u64| {
            let fresh = Map::new(bytes, &members);
            fresh
                .go_on_from(before, &ChainHistory::default())
                .expect("it counts")
        };
        // The last region had a part only; b alone has what was written last.
        let mut before = Map::new((10 << 20) - 4096, &members);
        before.is_out = vec![true, false];
        before.lacking = vec![Regions::new(10); 2];
        before.lacking[0].set(3);
        before.in_flight.set(5);
        let map = grown(&before, 12 << 20);
        assert_eq!(is(&map, 0), (true, vec![3, 9, 10, 11]));
        assert_eq!(is(&map, 1), (false, vec![]));
        assert!(map.in_flight.has(5));
        // All were alike.
        before.is_out[0] = false;
        before.lacking[0].clear_all();
        let map = grown(&before, 12 << 20);
        assert_eq!(is(&map, 0), (false, vec![]));
        assert_eq!(is(&map, 1), (true, vec![9, 10, 11]));
        // Its regions are longer.
        let mut before = Map::new(64 << 30, &members);
        before.is_out = vec![true, false];
        before.lacking = vec![Regions::new(1 << 16); 2];
        before.lacking[0].set(7);
        let map = grown(&before, (64 << 30) + (4 << 20));
        assert_eq!(map.region_bytes, 2 << 20);
        assert_eq!(is(&map, 0), (true, vec![3, 1 << 15, (1 << 15) + 1]));
    }

    #[test]
    fn whoever_is_new_or_elsewhere_lacks_all() {
        let mut before = Map::new(10 << 20, &[("volume", 0), ("b nbd://1", 0), ("c", 0)]);
        before.is_out = vec![true, false, false];
        for lacking in &mut before.lacking {
            lacking.clear_all();
        }
        let members = [("volume", 0), ("d", 0), ("c", 0), ("b nbd://2", 0)];
        let map = Map::new(10 << 20, &members[..]);
        let map = map
            .go_on_from(&before, &ChainHistory::default())
            .expect("it goes on");
        assert_eq!(map.is_out, [true, true, false, true]);
        let counts: Vec<u32> = map.lacking.iter().map(Regions::count).collect();
        assert_eq!(counts, [0, 10, 0, 10]);
        // Who had all is not among them any more: nobody has.
        let map = Map::new(10 << 20, &[("volume", 0), ("d", 0)]);
        let mut map = map
            .go_on_from(&before, &ChainHistory::default())
            .expect("it goes on");
        assert_eq!(map.recover(), None);
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
        assert_eq!(map.lacking[1].count(), 0);
        assert!(map.in_flight.has(5), "it may not be durable there yet");
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
        let go_on = |other: Map| {
            other
                .go_on_from(&map, &ChainHistory::default())
                .expect("it goes on")
        };
        assert_eq!(go_on(of(7, 0)), map);
        for other in [of(0, 0), of(8, 0)] {
            let read = go_on(other);
            assert_eq!(read.is_out, [true, true, false]);
            assert_eq!((read.lacking[1].count(), read.lacking[2].count()), (10, 0));
        }
        let mut read = go_on(of(7, 9));
        assert_eq!(read.recover(), None, "nobody has all");
    }

    #[test]
    fn a_large_disk_has_large_regions() {
        let map = Map::new(64 << 40, &[("volume", 0), ("b", 0)]);
        assert!(map.regions <= 1 << 16 && map.slot_bytes() < 32 << 10);
        assert_eq!(map.regions_of(map.region_bytes - 1, 2), 0..2);
    }
}
