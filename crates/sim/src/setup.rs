//! What a seed runs: sizes, faults, and which parts of a volume are busy.
//!
//! Everything is small, so that a few hundred operations fill journals,
//! segments and tails many times over.

use std::time::Duration;

use base::BlockSize;
use volume::catalog::Erasure;
use world::simulated::SimulatedRandom;

/// What may go wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hazards {
    /// The power fails in any operation of the disk.
    pub power: bool,
    /// The process dies.
    pub kill: bool,
    /// Units are away, full, read-only, broken or slow for a while.
    pub units: bool,
    /// Units err, and bring flipped bits and other slots' content.
    pub lies: bool,
    /// Bits turn over in segments.
    pub rot: bool,
    /// The journal's disk is lost, fails to sync, or is full.
    pub journal: bool,
    /// The catalog does not answer.
    pub catalog: bool,
    /// Units die for good, come back older, and are drained.
    pub members: bool,
}

/// A network between host and units.
#[derive(Debug, Clone, Copy)]
pub struct NetSetup {
    /// What chooses all that happens on it.
    pub seed: u64,
    /// For how long daemons keep what is freed.
    pub keeps_freed: Duration,
    /// Whether anything goes wrong on it.
    pub breaks: bool,
}

impl NetSetup {
    /// Half of all runs have one: by their seed alone, so that the others choose what
    /// they chose before there were any.
    #[must_use]
    pub fn choose(seed: u64) -> Option<Self> {
        let random = SimulatedRandom::new(seed ^ 0x6e65_7477_6f72_6b21);
        let has_one = random.below(2) == 0;
        let keeps_s = [0, 60, 24 * 3600][random.index(3)];
        has_one.then(|| Self {
            seed: random.next(),
            keeps_freed: Duration::from_secs(keeps_s),
            breaks: random.below(8) > 0,
        })
    }
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// How many units there are.
    pub units: usize,
    /// To how many of them every put makes a whole segment.
    pub whole_units: usize,
    /// Copies of each segment.
    pub replicas: u8,
    /// What is in their place.
    pub erasure: Option<Erasure>,
    /// Block size of the first volume and its clones.
    pub block_size: BlockSize,
    /// Whether volumes are sealed.
    pub is_sealed: bool,
    /// Size of the first volume.
    pub size_bytes: u64,
    /// Size of the journal's ring.
    pub journal_bytes: u64,
    /// Size of a segment.
    pub segment_bytes: u32,
    /// Over how many copysets a destage scatters.
    pub scatter_width: usize,
    /// How large the host's cache is, if it has one.
    pub cache_bytes: Option<u64>,
    /// How much memory that has.
    pub cache_memory_bytes: u64,
    /// When a checkpoint is due.
    pub tail_entries_max: usize,
    /// Or when there are so many pages.
    pub tail_pages_max: usize,
    /// One in so many reads misses the page cache.
    pub read_misses_one_in: u64,
    /// One in so many jobs ends before whoever begins it goes on.
    pub jobs_at_once_one_in: u64,
    /// How many steps the run takes.
    pub steps: usize,
    /// How often frees are put off: the grace period.
    pub grace_ms: i64,
    /// What may go wrong.
    pub hazards: Hazards,
    /// Whether units are behind daemons.
    pub net: Option<NetSetup>,
}

impl Setup {
    /// A small machine on which nothing goes wrong by itself, for a test that
    /// tells a story of its own.
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
            journal_bytes: 256 << 10,
            segment_bytes: 64 << 10,
            scatter_width: 2,
            cache_bytes: None,
            cache_memory_bytes: 0,
            tail_entries_max: 64,
            tail_pages_max: 8,
            read_misses_one_in: 0,
            jobs_at_once_one_in: 0,
            steps: 0,
            grace_ms: 0,
            hazards: Hazards::default(),
            net: None,
        }
    }

    /// Chooses a run.
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
        // A write may take up to a quarter of the ring.
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
            journal_bytes: journal_blocks * block_bytes + 4096 * random.below(8),
            segment_bytes: (4 + random.below(60)) as u32 * block_bytes as u32,
            scatter_width: 1 + random.index(6),
            cache_bytes: None,
            cache_memory_bytes: 0,
            tail_entries_max: 8 + random.index(120),
            tail_pages_max: 2 + random.index(14),
            read_misses_one_in: [0, 0, 2, 5, 20][random.index(5)],
            jobs_at_once_one_in: 0,
            steps: 60 + random.index(240),
            grace_ms: [0, 0, 60_000][random.index(3)],
            hazards: Hazards {
                power: may(2),
                kill: may(2),
                units: may(3),
                lies: may(4),
                rot: may(6),
                journal: may(4),
                catalog: may(5),
                members: false,
            },
            net: None,
        };
        // Last, so that a seed has chosen all else as it did before.
        let fitting: Vec<Erasure> = [(2, 1), (4, 2), (2, 2)]
            .into_iter()
            .filter_map(|(data, parity)| Erasure::new(data, parity))
            .filter(|erasure| usize::from(erasure.members()) <= units)
            .collect();
        if !fitting.is_empty() && random.below(2) == 0 {
            setup.erasure = Some(fitting[random.index(fitting.len())]);
            setup.replicas = 1;
        }
        setup.hazards.members = !no_hazards && random.below(2) == 0;
        setup.jobs_at_once_one_in = [0, 2, 10][random.index(3)];
        setup.cache_bytes = (random.below(2) == 0).then_some(1 << 20);
        setup.cache_memory_bytes = random.below(2) * (256 << 10);
        setup
    }

    /// A byte offset where something interesting may happen: near the start,
    /// near borders of map pages, near the end.
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
