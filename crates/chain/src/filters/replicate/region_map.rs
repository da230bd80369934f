//! [`RegionMap`]: which regions of which member may differ from what they should be, in memory
//! and, by [`super::slot`], in a file that survives a crash.
//!
//! Invariants:
//!
//! * A region is in flight in the file before anything is written to it, until a flush has covered
//!   that. So a crash leaves differences only in such regions.
//! * That a member is excluded is in the file before anything is acknowledged that it does not
//!   have. So it is never a source. Nor is a partial replica, ever.
//! * What a partial replica should have and does not have is in regions that it is missing.

use base::checksum;

use super::regions::Regions;
use crate::ChainHistory;

/// The maximal number of members in a slot.
pub(super) const MEMBERS_MAX: usize = 4;

/// The maximal number of regions of a disk.
pub(super) const REGIONS_MAX: u64 = 1 << 16;

/// The minimal length of a region, in bytes.
const REGION_BYTES_MIN: u64 = 1 << 20;

/// Why the filter cannot start from its file, though replicas have writes that only they have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableMap {
    /// The volume is smaller than it was.
    #[error(
        "according to the filter's file, the replicas have writes that the volume is missing, of a \
         disk of {recorded} bytes; the volume has {current}"
    )]
    Size {
        /// The size when the file was written, in bytes.
        recorded: u64,
        /// The size now, in bytes.
        current: u64,
    },
    /// The volume may have been written without the filter.
    #[error(
        "according to the filter's file, the replicas have writes that the volume is missing, and \
         the volume was used without this filter since; give the filter another name to start from \
         the volume as it is"
    )]
    Interrupted,
}

/// A member of a new map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberSpec {
    /// A number of its name and address, by which the file recognizes it.
    pub identity: u32,
    /// A number of the paths that it should have; 0 for everything.
    pub selection: u32,
}

impl MemberSpec {
    pub fn new(identity: &str, selection: u32) -> Self {
        Self {
            identity: checksum::crc32c(identity.as_bytes()),
            selection,
        }
    }
}

/// What is known of each member's regions. The first member is the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegionMap {
    pub sequence: u64,
    /// The size of the disk, in bytes.
    pub disk_bytes: u64,
    /// The epoch of the lease that it is written under.
    pub epoch: Option<u32>,
    /// The number of the chain that was replaced in order; 0 if none was.
    pub released_by: u64,
    pub members: Vec<MemberSpec>,
    /// The length of a region, in bytes.
    pub region_bytes: u64,
    /// The number of regions.
    pub regions: usize,
    /// By member.
    pub is_excluded: Vec<bool>,
    pub in_flight: Regions,
    /// By member.
    pub missing: Vec<Regions>,
}

impl RegionMap {
    /// The map of a disk that was never replicated: all members but the first are missing
    /// everything.
    pub fn new(disk_bytes: u64, members: &[MemberSpec]) -> Self {
        assert!(members.len() <= MEMBERS_MAX, "policies have fewer");
        let region_bytes = (disk_bytes / REGIONS_MAX)
            .next_power_of_two()
            .max(REGION_BYTES_MIN);
        let regions = disk_bytes.div_ceil(region_bytes) as usize;
        let mut all = Regions::new(regions);
        (0..regions).for_each(|region| all.set(region));
        let mut missing = vec![all; members.len()];
        missing[0] = Regions::new(regions);
        let mut is_excluded = vec![true; members.len()];
        is_excluded[0] = false;
        Self {
            sequence: 0,
            disk_bytes,
            epoch: None,
            released_by: 0,
            members: members.to_vec(),
            region_bytes,
            regions,
            is_excluded,
            in_flight: Regions::new(regions),
            missing,
        }
    }

    /// Adds `regions` to those that a member is missing.
    pub fn add_missing(&mut self, member: usize, regions: &Regions) {
        self.missing[member].merge(regions);
    }

    /// A member may be missing everything. Returns whether it was before.
    pub fn add_all_missing(&mut self, member: usize) -> bool {
        let missing = &mut self.missing[member];
        let was_all = missing.count() as usize == self.regions;
        (0..self.regions).for_each(|region| missing.set(region));
        was_all
    }

    /// The regions that a range of the disk touches.
    pub fn regions_of(&self, offset: u64, length: u64) -> std::ops::Range<usize> {
        let end = (offset + length).div_ceil(self.region_bytes);
        (offset / self.region_bytes) as usize..(end as usize).min(self.regions)
    }

    /// The range of the disk that a region covers.
    pub fn range_of(&self, region: usize) -> std::ops::Range<u64> {
        let begin = region as u64 * self.region_bytes;
        begin..(begin + self.region_bytes).min(self.disk_bytes)
    }

    /// Takes over what the file `before` says of the members that are still there. If another
    /// host, or another chain of this one, may have written the volume without the file, nothing
    /// is taken over.
    ///
    /// # Errors
    /// [`UnusableMap`], if replicas have writes that the volume is missing.
    pub fn continue_from(self, before: &Self, history: &ChainHistory) -> Result<Self, UnusableMap> {
        let epoch = history.epoch;
        let is_next_lease = match (before.epoch, epoch) {
            // Leases are unknown here.
            (_, None) => true,
            // In between this host may have tried to start under other leases, in vain.
            (Some(recorded), Some(current)) => {
                recorded <= current
                    && recorded.saturating_add(1) >= history.epoch_first.unwrap_or(current)
            }
            (None, Some(_)) => false,
        };
        // The file of a chain that crashed counts only for the first chain of the next lease:
        // chains before a later one had no filter of this name.
        let is_complete = is_next_lease && before.released_by == history.predecessor;
        let is_volume_incomplete = before.is_excluded[0];
        let mut new = Self {
            sequence: before.sequence,
            epoch,
            ..self
        };
        let (recorded, current) = (before.disk_bytes, new.disk_bytes);
        if recorded > current {
            return match is_volume_incomplete {
                true => Err(UnusableMap::Size { recorded, current }),
                false => Ok(new),
            };
        }
        if !is_complete {
            return match is_volume_incomplete {
                true => Err(UnusableMap::Interrupted),
                false => Ok(new),
            };
        }
        let before = &before.grown(current);
        new.in_flight = before.in_flight.clone();
        for (at, member) in new.members.iter().enumerate() {
            // A member with another selection may have anything: it starts over.
            if let Some(was) = before.members.iter().position(|other| other == member) {
                new.is_excluded[at] = before.is_excluded[was];
                new.missing[at] = before.missing[was].clone();
            }
        }
        Ok(new)
    }

    /// The map of the disk when it has grown to `disk_bytes`. All members are missing the new
    /// part, except the source, which decides what is there.
    fn grown(&self, disk_bytes: u64) -> Self {
        let mut grown = Self {
            sequence: self.sequence,
            epoch: self.epoch,
            released_by: self.released_by,
            is_excluded: self.is_excluded.clone(),
            ..Self::new(disk_bytes, &self.members)
        };
        // Regions only become longer, by powers of two.
        let times = (grown.region_bytes / self.region_bytes) as usize;
        let spread = |old: &Regions, new: &mut Regions| {
            (0..self.regions)
                .filter(|region| old.has(*region))
                .for_each(|region| new.set(region / times));
        };
        spread(&self.in_flight, &mut grown.in_flight);
        let added = grown.regions_of(self.disk_bytes, disk_bytes - self.disk_bytes);
        let source = self.source();
        for (at, old) in self.missing.iter().enumerate() {
            let mut missing = Regions::new(grown.regions);
            spread(old, &mut missing);
            if Some(at) != source {
                added.clone().for_each(|region| missing.set(region));
                grown.is_excluded[at] |= missing.count() > 0;
            }
            grown.missing[at] = missing;
        }
        grown
    }

    /// The first member that has everything.
    pub fn source(&self) -> Option<usize> {
        let mut members = 0..self.is_excluded.len();
        members.find(|at| !self.is_excluded[*at] && self.members[*at].selection == 0)
    }

    /// After a crash: regions in flight are as the source has them, and the other members are
    /// missing them. Returns the source; `None` if there is none. The regions stay in flight until
    /// a flush has covered them, as the source may still lose them.
    pub fn recover(&mut self) -> Option<usize> {
        let source = self.source()?;
        self.missing[source].clear_all();
        for (at, missing) in self.missing.iter_mut().enumerate() {
            if at != source {
                missing.merge(&self.in_flight);
                self.is_excluded[at] |= missing.count() > 0;
            }
        }
        Some(source)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A map of a disk with members of these names and selections.
    pub fn map_of(disk_bytes: u64, members: &[(&str, u32)]) -> RegionMap {
        let specs = members.iter();
        let specs = specs.map(|(name, selection)| MemberSpec::new(name, *selection));
        RegionMap::new(disk_bytes, &specs.collect::<Vec<_>>())
    }

    fn history(epoch: Option<u32>, follows: u64) -> ChainHistory {
        ChainHistory {
            epoch,
            predecessor: follows,
            ..ChainHistory::default()
        }
    }

    #[test]
    fn a_file_counts_only_if_the_volume_cannot_have_been_written_without_it() {
        let fresh = || map_of(10 << 20, &[("volume", 0), ("b", 0)]);
        let mut before = fresh();
        before.is_excluded = vec![false, false];
        before.missing[1] = Regions::new(10);
        before.missing[1].set(3);
        (before.epoch, before.sequence) = (Some(7), 40);
        let missing = |before: &RegionMap, epoch, follows| {
            let map = fresh().continue_from(before, &history(epoch, follows));
            map.map(|map| {
                assert_eq!((map.sequence, map.released_by), (40, 0));
                map.missing[1].count()
            })
        };
        for (epoch, expected) in [(Some(7), 1), (Some(8), 1), (None, 1), (Some(9), 10)] {
            assert_eq!(missing(&before, epoch, 0), Ok(expected), "{epoch:?}");
        }
        // No client was let in meanwhile, however often the chain was opened.
        for (since, expected) in [(7, 1), (8, 1), (9, 10)] {
            let history = ChainHistory {
                epoch_first: Some(since),
                ..history(Some(20), 0)
            };
            let map = fresh()
                .continue_from(&before, &history)
                .expect("it continues");
            assert_eq!(map.missing[1].count(), expected, "{since}");
        }
        // A hot swap to the chain that follows, or to another one.
        before.released_by = 5;
        assert_eq!(missing(&before, Some(7), 5), Ok(1));
        assert_eq!(missing(&before, Some(7), 6), Ok(10));
        before.is_excluded[0] = true;
        assert_eq!(missing(&before, Some(7), 6), Err(UnusableMap::Interrupted));
        assert_eq!(missing(&before, Some(9), 5), Err(UnusableMap::Interrupted));
        assert_eq!(missing(&before, Some(8), 5), Ok(1));
        let smaller = map_of(9 << 20, &[("volume", 0), ("b", 0)]);
        let refused = smaller.clone().continue_from(&before, &history(Some(8), 5));
        assert!(matches!(refused, Err(UnusableMap::Size { .. })));
        before.is_excluded[0] = false;
        let map = smaller
            .continue_from(&before, &history(Some(8), 5))
            .expect("the volume has everything");
        assert_eq!(map.missing[1].count(), 9);
    }

    #[test]
    fn a_grown_disk_keeps_what_is_known_of_it() {
        let members = [("volume", 0), ("b", 0)];
        let is = |map: &RegionMap, at: usize| {
            let regions = (0..map.regions).filter(|region| map.missing[at].has(*region));
            (map.is_excluded[at], regions.collect::<Vec<_>>())
        };
        let grown = |before: &RegionMap, bytes: u64| {
            let fresh = map_of(bytes, &members);
            fresh
                .continue_from(before, &ChainHistory::default())
                .expect("it continues")
        };
        // The last region was partial; only b has the last writes.
        let mut before = map_of((10 << 20) - 4096, &members);
        before.is_excluded = vec![true, false];
        before.missing = vec![Regions::new(10); 2];
        before.missing[0].set(3);
        before.in_flight.set(5);
        let map = grown(&before, 12 << 20);
        assert_eq!(is(&map, 0), (true, vec![3, 9, 10, 11]));
        assert_eq!(is(&map, 1), (false, vec![]));
        assert!(map.in_flight.has(5));
        // All members were equal.
        before.is_excluded[0] = false;
        before.missing[0].clear_all();
        let map = grown(&before, 12 << 20);
        assert_eq!(is(&map, 0), (false, vec![]));
        assert_eq!(is(&map, 1), (true, vec![9, 10, 11]));
        // The regions become longer.
        let mut before = map_of(64 << 30, &members);
        before.is_excluded = vec![true, false];
        before.missing = vec![Regions::new(1 << 16); 2];
        before.missing[0].set(7);
        let map = grown(&before, (64 << 30) + (4 << 20));
        assert_eq!(map.region_bytes, 2 << 20);
        assert_eq!(is(&map, 0), (true, vec![3, 1 << 15, (1 << 15) + 1]));
    }

    #[test]
    fn a_new_or_moved_member_is_missing_everything() {
        let mut before = map_of(10 << 20, &[("volume", 0), ("b nbd://1", 0), ("c", 0)]);
        before.is_excluded = vec![true, false, false];
        for missing in &mut before.missing {
            missing.clear_all();
        }
        let members = [("volume", 0), ("d", 0), ("c", 0), ("b nbd://2", 0)];
        let map = map_of(10 << 20, &members[..]);
        let map = map
            .continue_from(&before, &ChainHistory::default())
            .expect("it continues");
        assert_eq!(map.is_excluded, [true, true, false, true]);
        let counts: Vec<u32> = map.missing.iter().map(Regions::count).collect();
        assert_eq!(counts, [0, 10, 0, 10]);
        // The members that had everything are gone, so no source is left.
        let map = map_of(10 << 20, &[("volume", 0), ("d", 0)]);
        let mut map = map
            .continue_from(&before, &ChainHistory::default())
            .expect("it continues");
        assert_eq!(map.recover(), None);
    }

    #[test]
    fn regions_in_flight_are_as_the_source_has_them() {
        let mut map = map_of(10 << 20, &[("volume", 0), ("b", 0), ("c", 0)]);
        map.is_excluded = vec![true, false, false];
        map.missing = vec![Regions::new(10), Regions::new(10), Regions::new(10)];
        map.missing[0].set(1);
        map.in_flight.set(5);
        assert_eq!(map.recover(), Some(1), "a member that was never excluded");
        assert!(map.missing[0].has(1) && map.missing[0].has(5) && map.missing[2].has(5));
        assert_eq!(map.missing[1].count(), 0);
        assert!(map.in_flight.has(5), "they may not be durable there yet");
        assert_eq!(map.is_excluded, [true, false, true]);
        map.is_excluded = vec![true; 3];
        assert_eq!(map.recover(), None);
    }

    #[test]
    fn a_partial_replica_is_never_a_source_and_starts_over_with_another_selection() {
        let of = |b: u32, c: u32| map_of(10 << 20, &[("volume", 0), ("b", b), ("c", c)]);
        let mut map = of(7, 0);
        map.is_excluded = vec![true, false, false];
        map.missing = vec![Regions::new(10), Regions::new(10), Regions::new(10)];
        assert_eq!(map.clone().recover(), Some(2));
        let continued = |other: RegionMap| {
            other
                .continue_from(&map, &ChainHistory::default())
                .expect("it continues")
        };
        assert_eq!(continued(of(7, 0)), map);
        for other in [of(0, 0), of(8, 0)] {
            let read = continued(other);
            assert_eq!(read.is_excluded, [true, true, false]);
            assert_eq!((read.missing[1].count(), read.missing[2].count()), (10, 0));
        }
        let mut read = continued(of(7, 9));
        assert_eq!(read.recover(), None, "no member has everything");
    }

    #[test]
    fn a_large_disk_has_large_regions() {
        let map = map_of(64 << 40, &[("volume", 0), ("b", 0)]);
        assert!(map.regions <= 1 << 16 && map.slot_bytes() < 32 << 10);
        assert_eq!(map.regions_of(map.region_bytes - 1, 2), 0..2);
    }
}
