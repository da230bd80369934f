//! The cache when its process dies, the power fails, and its file fails or is damaged.

mod areas;

use base::VolumeId;
use world::simulated::{Fault, SimulatedRandom, Simulation};

use std::path::Path;

use super::writes::{WRITE_BEHIND, WRITES_MAX};
use super::*;

const PATH: &str = "/ssd/cache";
const METADATA: Area = Area::Metadata { newest_of: None };
const IMAGE: Area = Area::Image {
    of: None,
    pinned: false,
};
const PINNED: Area = Area::Image {
    of: None,
    pinned: true,
};

fn config(bytes: u64) -> CacheConfig {
    CacheConfig {
        path: PATH.into(),
        bytes: Some(bytes),
        division: Division::default(),
        cluster: [7; 16],
    }
}

/// The content and tag of block `number`.
fn content(number: u64) -> (Vec<u8>, [u8; 16]) {
    let random = SimulatedRandom::new(number);
    let mut bytes = vec![0; SLOT_BYTES];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    (bytes, [number as u8; 16])
}

/// A cache on a simulated disk.
struct TestCache {
    simulation: Simulation,
    cache: Arc<Cache>,
}

impl TestCache {
    fn new(seed: u64, bytes: u64) -> Self {
        let simulation = Simulation::new(seed);
        let disk = simulation.world().disk;
        disk.create_directory(Path::new("/ssd")).expect("made");
        disk.sync_directory(Path::new("/")).expect("synced");
        let (cache, is_new) = Cache::open(&simulation.world(), &config(bytes)).expect("made");
        assert!(is_new);
        Self { simulation, cache }
    }

    fn open(&mut self, config: &CacheConfig) -> bool {
        let opened = Cache::open(&self.simulation.world(), config).expect("opened");
        let (cache, is_new) = opened;
        self.cache = cache;
        is_new
    }

    fn offer(&self, area: Area, number: u64) {
        let (bytes, tag) = content(number);
        self.cache.offer(area, id(number), tag, &bytes);
    }

    fn run_jobs(&self) {
        self.simulation.pool.run_all(&self.simulation.random);
    }

    /// Whether a block is cached. Checks its content and tag.
    fn has(&self, area: Area, number: u64) -> bool {
        let mut read = vec![0; SLOT_BYTES];
        let found = self.cache.get(area, id(number), &mut read);
        let (bytes, tag) = content(number);
        assert!(
            found.is_none_or(|found| found == tag && read == bytes),
            "{number}"
        );
        found.is_some()
    }

    fn count(&self, area: Area, numbers: std::ops::Range<u64>) -> usize {
        numbers.filter(|number| self.has(area, *number)).count()
    }
}

fn active(volume: u64) -> Area {
    Area::Active(VolumeId::from_u128(volume.into()))
}

#[test]
fn offered_blocks_are_found_also_by_the_next_process() {
    let mut test = TestCache::new(1, 4 << 20);
    for number in 0..100 {
        test.offer(METADATA, number);
        test.offer(IMAGE, number + 1000);
        test.offer(active(1), number + 2000);
        test.run_jobs();
    }
    let all = |test: &TestCache| {
        [
            test.count(METADATA, 0..100),
            test.count(IMAGE, 1000..1100),
            test.count(active(1), 2000..2100),
        ]
    };
    assert_eq!(all(&test), [100; 3]);
    assert!(!test.has(IMAGE, 5000));
    test.cache.flush();
    assert!(!test.open(&config(4 << 20)), "an existing cache");
    assert_eq!(all(&test), [100; 3]);
    let statistics = test.cache.statistics();
    assert_eq!(statistics.areas.map(|area| area.blocks), [100; 3]);
    // With another division, as many blocks stay as fit.
    let other = CacheConfig {
        division: Division {
            metadata: 5,
            image: 90,
            active: 5,
        },
        ..config(4 << 20)
    };
    assert!(!test.open(&other));
    let [metadata, image, active] = all(&test);
    assert!(
        (40..60).contains(&metadata) && (40..60).contains(&active),
        "{metadata} {active}"
    );
    assert_eq!(image, 100);
    // A cache of another cluster is discarded.
    let other_cluster = CacheConfig {
        cluster: [8; 16],
        ..config(4 << 20)
    };
    assert!(test.open(&other_cluster));
    assert_eq!(all(&test), [0; 3]);
}

#[test]
fn a_cache_stays_within_its_size_and_reuses_slots() {
    let test = TestCache::new(2, 1 << 20);
    let capacity: usize = test
        .cache
        .statistics()
        .areas
        .map(|area| area.capacity)
        .iter()
        .sum();
    assert!((240..250).contains(&capacity), "{capacity}");
    for round in 0..20 {
        for number in 0..200 {
            test.offer(active(round % 3), round * 1000 + number);
            // Blocks that are read once are evicted soon, and slots that are being written are not
            // reused.
            test.run_jobs();
        }
        assert!(test.has(active(round % 3), round * 1000 + 199));
    }
    let statistics = test.cache.statistics().areas[AreaKind::Active as usize];
    assert_eq!(statistics.blocks, statistics.capacity);
    assert_eq!(
        statistics.inserted,
        statistics.evicted + statistics.blocks as u64
    );
    let length = test.simulation.disk.files_under(Path::new(PATH))[0].1;
    assert!(length <= 1 << 20, "{length}");
}

/// The cache is never synced: a block that is found after a crash is right.
#[test]
fn after_crashes_and_bit_flips_a_block_is_right_or_missing() {
    let mut kept = 0;
    for seed in 0..60 {
        let mut test = TestCache::new(seed, 1 << 20);
        for life in 0..4 {
            for _ in 0..150 {
                let number = test.simulation.random.below(400);
                let area = match number % 3 {
                    0 => METADATA,
                    1 => Area::Image {
                        of: None,
                        pinned: number.is_multiple_of(2),
                    },
                    _ => active(number % 2),
                };
                if !test.has(area, number) {
                    test.offer(area, number);
                }
                if test.simulation.random.one_in(3) {
                    test.simulation.pool.run_one(&test.simulation.random);
                }
                if test.simulation.random.one_in(40) {
                    test.cache.flush();
                }
                if test.simulation.random.one_in(60) {
                    test.cache.unpin_all();
                }
            }
            match life % 3 {
                0 => test.simulation.crash(),
                1 => test.simulation.kill(),
                _ => {}
            }
            for _ in 0..test.simulation.random.below(20) {
                let at = test.simulation.random.below(1 << 20);
                let bit = test.simulation.random.below(8) as u8;
                // The offset may be after the end of the file.
                let _ = test.simulation.disk.flip_bit(Path::new(PATH), at, bit);
            }
            test.open(&config(1 << 20));
            for number in 0..400 {
                kept += usize::from(test.has(IMAGE, number));
            }
        }
    }
    assert!(kept > 5000, "only {kept} blocks were found");
}

#[test]
fn a_file_that_fails_is_not_used_for_a_while() {
    let test = TestCache::new(3, 1 << 20);
    test.offer(IMAGE, 1);
    test.run_jobs();
    test.simulation
        .disk
        .inject(Path::new("/ssd"), Fault::Broken);
    assert!(!test.has(IMAGE, 1));
    test.offer(IMAGE, 2);
    test.run_jobs();
    assert!(!test.has(IMAGE, 2));
    assert_eq!(test.cache.statistics().failures, 1);
    let problem = test.cache.problem().expect("a problem");
    assert!(problem.contains("has failed"), "{problem}");
    test.simulation.disk.heal(Path::new("/ssd"));
    assert!(!test.has(IMAGE, 1), "the file is not used");
    test.simulation.clock.advance(FAILURE_PAUSE);
    assert!(test.has(IMAGE, 1));
    test.offer(IMAGE, 2);
    test.run_jobs();
    assert!(test.has(IMAGE, 2));
}

/// Once each read of a cached block waited for a file that hung, although units have the blocks.
#[test]
fn a_file_that_hangs_is_not_used_until_it_responds() {
    let test = TestCache::new(12, 1 << 20);
    test.offer(IMAGE, 1);
    test.run_jobs();
    let (disk, clock) = (&test.simulation.disk, &test.simulation.clock);
    disk.inject(Path::new("/ssd"), Fault::Hangs);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| test.has(IMAGE, 1));
        disk.wait_until_one_hangs();
        let may_be_slow = test.cache.has(id(1)) && !test.cache.is_unusable();
        assert!(may_be_slow);
        clock.advance(HANG_TIMEOUT);
        assert!(test.cache.is_unusable() && !test.cache.has(id(1)));
        let problem = test.cache.problem().expect("a problem");
        assert!(problem.contains("does not respond"), "{problem}");
        assert!(!test.has(IMAGE, 1));
        test.offer(IMAGE, 2);
        disk.heal(Path::new("/ssd"));
        assert!(read.join().expect("the file responds"));
    });
    assert!(!test.cache.is_unusable() && test.has(IMAGE, 1));
    assert!(!test.cache.has(id(2)), "the block was refused");
    let statistics = test.cache.statistics();
    assert_eq!((statistics.hangs, statistics.refused), (1, 1));
    // A block is not found before its write has ended.
    test.offer(IMAGE, 3);
    disk.inject(Path::new("/ssd"), Fault::Hangs);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| test.run_jobs());
        disk.wait_until_one_hangs();
        clock.advance(HANG_TIMEOUT);
        assert!(test.cache.is_unusable());
        disk.heal(Path::new("/ssd"));
        write.join().expect("the file responds");
    });
    assert!(test.has(IMAGE, 3));
}

/// Otherwise the write of the evicted block would overwrite the new one.
#[test]
fn a_slot_is_not_reused_before_its_write_has_ended() {
    let test = TestCache::new(13, 1 << 20);
    // Twice as many blocks as fit, before any is written.
    let capacity = test.cache.statistics().areas[AreaKind::Image as usize].capacity as u64;
    let count = 2 * capacity;
    assert!(count < WRITES_MAX as u64);
    (0..count).for_each(|number| test.offer(IMAGE, number));
    let found = |test: &TestCache| test.count(IMAGE, 0..count) as u64;
    assert_eq!(found(&test), 0, "no block is written yet");
    test.run_jobs();
    let kept = found(&test);
    assert!(kept > 0 && kept <= capacity, "{kept}");
    // All slots are used again.
    (count..2 * count).for_each(|number| {
        test.offer(IMAGE, number);
        test.run_jobs();
    });
    let areas = test.cache.statistics().areas;
    assert_eq!(areas[AreaKind::Image as usize].blocks as u64, capacity);
}

#[test]
fn a_block_that_does_not_open_is_replaced() {
    let test = TestCache::new(10, 1 << 20);
    // A wrong block with a valid checksum.
    let (bytes, _) = content(1);
    test.cache.offer(IMAGE, id(1), [9; 16], &bytes);
    test.run_jobs();
    test.offer(IMAGE, 1);
    let mut read = vec![0; SLOT_BYTES];
    assert_eq!(test.cache.get(IMAGE, id(1), &mut read), Some([9; 16]));
    test.cache.forget(id(1));
    assert!(!test.has(IMAGE, 1));
    test.offer(IMAGE, 1);
    test.run_jobs();
    assert!(test.has(IMAGE, 1));
    assert_eq!(test.cache.statistics().damaged, 1);
}

#[test]
fn queued_writes_are_bounded() {
    let test = TestCache::new(4, 16 << 20);
    for number in 0..3000 {
        test.offer(IMAGE, number);
    }
    let statistics = test.cache.statistics();
    assert_eq!(statistics.refused, 3000 - WRITES_MAX as u64);
    test.run_jobs();
    assert_eq!(test.count(IMAGE, 0..3000), WRITES_MAX);
}

#[test]
fn the_directory_is_written_after_a_delay_and_only_if_it_changed() {
    let test = TestCache::new(5, 1 << 20);
    let operations = || test.simulation.disk.operations();
    test.offer(IMAGE, 1);
    test.run_jobs();
    let before = operations();
    test.cache.write_behind();
    assert_eq!(operations(), before, "the delay is not over");
    test.simulation.clock.advance(WRITE_BEHIND);
    test.cache.write_behind();
    let written = operations();
    assert!(written > before);
    test.simulation.clock.advance(WRITE_BEHIND * 100);
    test.cache.write_behind();
    assert_eq!(operations(), written);
}

#[test]
fn a_file_that_is_not_a_cache_is_refused() {
    let simulation = Simulation::new(7);
    let disk = Arc::clone(&simulation.disk);
    let open = |config: &CacheConfig| {
        let opened = Cache::open(&simulation.world(), config);
        opened.map(|_| ()).expect_err("refused").to_string()
    };
    assert!(open(&config(1000)).contains("at least 1 MiB"));
    let division = Division {
        metadata: 0,
        image: 50,
        active: 50,
    };
    let invalid = CacheConfig {
        division,
        ..config(1 << 20)
    };
    assert!(open(&invalid).contains("100 % together"));
    assert!(
        open(&config(1 << 20)).contains("/ssd/cache"),
        "the folder does not exist"
    );
    world::Disk::create_directory(&*disk, Path::new("/ssd")).expect("made");
    disk.set_capacity(Path::new("/ssd"), 1 << 20);
    let sizeless = CacheConfig {
        bytes: None,
        ..config(1 << 20)
    };
    assert!(open(&sizeless).contains("is not a block device"));
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::CreateNew);
    other
        .expect("made")
        .write_at(b"letters", 0)
        .expect("written");
    let other_file = CacheConfig {
        path: "/ssd/other".into(),
        ..config(1 << 20)
    };
    assert!(open(&other_file).contains("is not a cache"));
    // As btrfs: the first 64 KiB are zeroes.
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::Write);
    let other = other.expect("opened");
    other.write_at(&[0; 7], 0).expect("written");
    other.write_at(b"_BHRfS_M", 65_600).expect("written");
    assert!(open(&other_file).contains("is not a cache"));
    // A file is checked to its end.
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::Write);
    let other = other.expect("opened");
    other.set_length(0).expect("cut");
    other.write_at(b"letters", 3 << 20).expect("written");
    assert!(open(&other_file).contains("is not a cache"));
    assert_eq!(other.length().expect("known"), (3 << 20) + 7);
    world::Disk::remove(&*disk, Path::new("/ssd/other")).expect("the blocks are still cached");
    let full = open(&config(8 << 20));
    assert!(
        full.contains("cannot be made") && full.contains("No space"),
        "{full}"
    );
    assert_eq!(
        disk.files_under(Path::new("/ssd")),
        [],
        "the new file is removed"
    );
}
