//! [`Setup`]: the sizes and the possible faults of a run.
//!
//! Everything is small, so that a few hundred operations fill journals, segments and tails
//! many times over.

use std::time::Duration;

use base::BlockSize;
use catalog::Erasure;
use volume::VolumeConfig;
use world::simulated::SimulatedRandom;

/// The faults that are possible in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hazards {
    /// The power fails, also within an operation of the disk.
    pub power: bool,
    /// The process is killed.
    pub kill: bool,
    /// Units are unavailable, full, read-only, broken or slow for a while.
    pub units: bool,
    /// Units return errors, flipped bits and the content of other slots.
    pub falsified: bool,
    /// Bits flip in segments.
    pub rot: bool,
    /// Journals are lost, fail to sync, or have no room.
    pub journal: bool,
    /// The catalog is unavailable.
    pub catalog: bool,
    /// Units die for good, are rolled back, and are drained.
    pub members: bool,
}

/// A network between host and units.
#[derive(Debug, Clone, Copy)]
pub struct NetSetup {
    /// The seed of everything that happens on it.
    pub seed: u64,
    /// How long daemons keep freed content.
    pub undelete_window: Duration,
    /// Whether it has faults.
    pub breaks: bool,
}

impl NetSetup {
    /// The network of seed `seed`: half of all runs have one. It is chosen by random
    /// numbers of its own, so that those of the other parts do not depend on it.
    #[must_use]
    pub fn choose(seed: u64) -> Option<Self> {
        let random = SimulatedRandom::new(seed ^ 0x6e65_7477_6f72_6b21);
        let has_one = random.below(2) == 0;
        let window_s = [0, 60, 24 * 3600][random.index(3)];
        has_one.then(|| Self {
            seed: random.next(),
            undelete_window: Duration::from_secs(window_s),
            breaks: random.below(8) > 0,
        })
    }
}

/// The configuration of one run.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The number of units.
    pub units: usize,
    /// The number of them that take whole segments only.
    pub whole_units: usize,
    /// Copies of each segment.
    pub replicas: u8,
    /// The erasure code in place of copies, if any.
    pub erasure: Option<Erasure>,
    /// Block size of the first volume and its clones.
    pub block_size: BlockSize,
    /// Whether volumes are sealed.
    pub is_sealed: bool,
    /// Size of the first volume in bytes.
    pub size_bytes: u64,
    /// The configuration of every volume.
    pub volume: VolumeConfig,
    /// Size of the host's cache file in bytes; `None` without a file.
    pub cache_bytes: Option<u64>,
    /// Memory of the host's cache in bytes.
    pub cache_memory_bytes: u64,
    /// One of this many reads misses the page cache; none if zero.
    pub read_misses_one_in: u64,
    /// One of this many jobs runs at once, within the call that starts it; none if zero.
    pub jobs_at_once_one_in: u64,
    /// The number of steps.
    pub steps: usize,
    /// The grace period of frees, in milliseconds.
    pub grace_ms: i64,
    /// The possible faults.
    pub hazards: Hazards,
    /// The network, if units are behind daemons.
    pub net: Option<NetSetup>,
}

impl Setup {
    /// A small machine without faults, for a test that injects its own.
    #[must_use]
    pub fn quiet(units: usize, replicas: u8) -> Self {
        Self {
            units,
            whole_units: 0,
            replicas,
            erasure: None,
            block_size: BlockSize::DEFAULT,
            is_sealed: true,
            size_bytes: 1 << 30,
            volume: VolumeConfig {
                journal_bytes: 256 << 10,
                segment_bytes: 64 << 10,
                destage_width: 2,
                tail_entries_max: 64,
                tail_pages_max: 8,
                ..VolumeConfig::default()
            },
            cache_bytes: None,
            cache_memory_bytes: 0,
            read_misses_one_in: 0,
            jobs_at_once_one_in: 0,
            steps: 0,
            grace_ms: 0,
            hazards: Hazards::default(),
            net: None,
        }
    }

    /// The setup that `random` chooses, without a network.
    #[must_use]
    pub fn choose(random: &SimulatedRandom) -> Self {
        let units = 1 + random.index(8);
        let replicas = 1 + random.index(units.min(3)) as u8;
        let block_bytes = [4096, 4096, 4096, 8192, 16384][random.index(5)];
        let block_size = BlockSize::new(block_bytes).expect("a power of two");
        let unaligned = if random.below(3) == 0 {
            512 * (1 + random.below(7))
        } else {
            0
        };
        let size_bytes = match random.below(4) {
            0 => block_bytes * (20 + random.below(600)),
            1 => block_bytes * (65_536 + random.below(1000)),
            2 => block_bytes * ((1 << 24) + random.below(1000)),
            _ => block_bytes * (66_000 + random.below(1 << 20)),
        } + unaligned;
        // A write may use up to a quarter of the ring.
        let journal_blocks = 32 + random.below(96);
        let no_hazards = random.below(5) == 0;
        let may = |one_in: u64| !no_hazards && random.below(one_in) == 0;
        let mut setup = Self {
            units,
            whole_units: [0, 0, random.index(units + 1)][random.index(3)],
            replicas,
            erasure: None,
            block_size,
            is_sealed: random.below(4) > 0,
            size_bytes,
            volume: VolumeConfig {
                journal_bytes: journal_blocks * block_bytes + 4096 * random.below(8),
                segment_bytes: (4 + random.below(60)) as u32 * block_bytes as u32,
                destage_width: 1 + random.index(6),
                tail_entries_max: 8 + random.index(120),
                tail_pages_max: 2 + random.index(14),
                ..VolumeConfig::default()
            },
            cache_bytes: None,
            cache_memory_bytes: 0,
            read_misses_one_in: [0, 0, 2, 5, 20][random.index(5)],
            jobs_at_once_one_in: 0,
            steps: 60 + random.index(240),
            grace_ms: [0, 0, 60_000][random.index(3)],
            hazards: Hazards {
                power: may(2),
                kill: may(2),
                units: may(3),
                falsified: may(4),
                rot: may(6),
                journal: may(4),
                catalog: may(5),
                members: false,
            },
            net: None,
        };
        setup.choose_extensions(random, !no_hazards);
        setup
    }

    /// Chooses the rest of the setup: parity, changes of members, jobs, caches. These draws
    /// come last, so that older seeds keep the rest of their setup.
    fn choose_extensions(&mut self, random: &SimulatedRandom, has_hazards: bool) {
        let fitting: Vec<Erasure> = [(2, 1), (4, 2), (2, 2)]
            .into_iter()
            .filter_map(|(data, parity)| Erasure::new(data, parity))
            .filter(|erasure| usize::from(erasure.members()) <= self.units)
            .collect();
        if !fitting.is_empty() && random.below(2) == 0 {
            self.erasure = Some(fitting[random.index(fitting.len())]);
            self.replicas = 1;
        }
        self.hazards.members = has_hazards && random.below(2) == 0;
        self.jobs_at_once_one_in = [0, 2, 10][random.index(3)];
        self.cache_bytes = (random.below(2) == 0).then_some(1 << 20);
        self.cache_memory_bytes = random.below(2) * (256 << 10);
    }

    /// A block in an area where errors are likely: near the start, near borders of map
    /// pages, or near the end.
    #[must_use]
    pub fn hot_block(&self, random: &SimulatedRandom, size_bytes: u64) -> u64 {
        let blocks = self.block_size.blocks_in(size_bytes);
        let base: u64 = match random.below(12) {
            0..=5 => 0,
            6 | 7 => 250,
            8 => 65_532,
            9 => (1 << 24) - 4,
            10 => 512 + 256 * random.below(8),
            _ => blocks.saturating_sub(8),
        };
        (base + random.below(10)).min(blocks - 1)
    }
}
