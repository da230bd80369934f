//! A cache whose process dies, whose power fails, and whose file is made to lie.

use base::{Location, VolumeId};
use world::simulated::{Fault, SimulatedRandom, Simulation};

use std::path::Path;

use super::*;

const PATH: &str = "/ssd/cache";

fn config(bytes: u64) -> CacheConfig {
    CacheConfig {
        path: PATH.into(),
        bytes: Some(bytes),
        division: Division::default(),
        cluster: [7; 16],
    }
}

fn id(number: u64) -> Id {
    Id {
        location: Location::from_bits(number),
        part: 0,
    }
}

/// What lies at a place, for ever.
fn content(number: u64) -> (Vec<u8>, [u8; 16]) {
    let random = SimulatedRandom::new(number);
    let mut bytes = vec![0; SLOT_BYTES];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    (bytes, [number as u8; 16])
}

struct Rig {
    simulation: Simulation,
    cache: Arc<Cache>,
}

impl Rig {
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

    fn settle(&self) {
        self.simulation.pool.run_all(&self.simulation.random);
    }

    /// Whether it is there; what is given is right.
    fn has(&self, area: Area, number: u64) -> bool {
        let mut read = vec![0; SLOT_BYTES];
        let given = self.cache.get(area, id(number), &mut read);
        let (bytes, tag) = content(number);
        assert!(
            given.is_none_or(|given| given == tag && read == bytes),
            "{number}"
        );
        given.is_some()
    }

    fn count(&self, area: Area, numbers: std::ops::Range<u64>) -> usize {
        numbers.filter(|number| self.has(area, *number)).count()
    }
}

fn active(volume: u64) -> Area {
    Area::Active(VolumeId::from_random(volume.into()))
}

#[test]
fn what_was_offered_is_given_also_to_the_next_process() {
    let mut rig = Rig::new(1, 4 << 20);
    for number in 0..100 {
        rig.offer(Area::Metadata, number);
        rig.offer(Area::Image, number + 1000);
        rig.offer(active(1), number + 2000);
        rig.settle();
    }
    let all = |rig: &Rig| {
        [
            rig.count(Area::Metadata, 0..100),
            rig.count(Area::Image, 1000..1100),
            rig.count(active(1), 2000..2100),
        ]
    };
    assert_eq!(all(&rig), [100; 3]);
    assert!(!rig.has(Area::Image, 5000));
    rig.cache.flush();
    assert!(!rig.open(&config(4 << 20)), "it is the same");
    assert_eq!(all(&rig), [100; 3]);
    let statistics = rig.cache.statistics();
    assert_eq!(statistics.areas.map(|area| area.blocks), [100; 3]);
    // Divided otherwise it keeps what there is room for.
    let other = CacheConfig {
        division: Division {
            metadata: 5,
            image: 90,
            active: 5,
        },
        ..config(4 << 20)
    };
    assert!(!rig.open(&other));
    let [metadata, image, active] = all(&rig);
    assert!(
        (40..60).contains(&metadata) && (40..60).contains(&active),
        "{metadata} {active}"
    );
    assert_eq!(image, 100);
    // Of another cluster there is nothing.
    let anothers = CacheConfig {
        cluster: [8; 16],
        ..config(4 << 20)
    };
    assert!(rig.open(&anothers));
    assert_eq!(all(&rig), [0; 3]);
}

#[test]
fn a_cache_is_no_larger_than_it_may_be_and_its_slots_are_used_again() {
    let rig = Rig::new(2, 1 << 20);
    let capacity: usize = rig
        .cache
        .statistics()
        .areas
        .map(|area| area.capacity)
        .iter()
        .sum();
    assert!((240..250).contains(&capacity), "{capacity}");
    for round in 0..20 {
        for number in 0..200 {
            rig.offer(active(round % 3), round * 1000 + number);
            // What comes once goes soon, and a slot that is being written is given to nobody.
            rig.settle();
        }
        assert!(rig.has(active(round % 3), round * 1000 + 199));
    }
    let statistics = rig.cache.statistics().areas[AreaKind::Active as usize];
    assert_eq!(statistics.blocks, statistics.capacity);
    assert_eq!(
        statistics.brought,
        statistics.evicted + statistics.blocks as u64
    );
    let length = rig.simulation.disk.files_under(Path::new(PATH))[0].1;
    assert!(length <= 1 << 20, "{length}");
}

/// Nobody has to sync anything: whatever a crash leaves, what is given is right.
#[test]
fn whatever_a_crash_or_a_flipped_bit_leaves_is_right_or_not_there() {
    let mut kept = 0;
    for seed in 0..60 {
        let mut rig = Rig::new(seed, 1 << 20);
        for life in 0..4 {
            for _ in 0..150 {
                let number = rig.simulation.random.below(400);
                let area = match number % 3 {
                    0 => Area::Metadata,
                    1 => Area::Image,
                    _ => active(number % 2),
                };
                if !rig.has(area, number) {
                    rig.offer(area, number);
                }
                if rig.simulation.random.one_in(3) {
                    rig.simulation.pool.run_one(&rig.simulation.random);
                }
                if rig.simulation.random.one_in(40) {
                    rig.cache.flush();
                }
            }
            match life % 3 {
                0 => rig.simulation.crash(),
                1 => rig.simulation.kill(),
                _ => {}
            }
            for _ in 0..rig.simulation.random.below(20) {
                let at = rig.simulation.random.below(1 << 20);
                let bit = rig.simulation.random.below(8) as u8;
                // It may lie beyond what is left of the file.
                let _ = rig.simulation.disk.flip_bit(Path::new(PATH), at, bit);
            }
            rig.open(&config(1 << 20));
            for number in 0..400 {
                kept += usize::from(rig.has(Area::Image, number));
            }
        }
    }
    assert!(kept > 5000, "only {kept}: it keeps nothing");
}

#[test]
fn a_file_that_fails_is_no_cache_for_a_while() {
    let rig = Rig::new(3, 1 << 20);
    rig.offer(Area::Image, 1);
    rig.settle();
    rig.simulation.disk.inject(Path::new("/ssd"), Fault::Broken);
    assert!(!rig.has(Area::Image, 1));
    rig.offer(Area::Image, 2);
    rig.settle();
    assert!(!rig.has(Area::Image, 2));
    assert_eq!(rig.cache.statistics().failures, 1);
    rig.simulation.disk.heal(Path::new("/ssd"));
    assert!(!rig.has(Area::Image, 1), "it is left alone");
    rig.simulation.clock.advance(FAILS_FOR);
    assert!(rig.has(Area::Image, 1));
    rig.offer(Area::Image, 2);
    rig.settle();
    assert!(rig.has(Area::Image, 2));
}

#[test]
fn no_more_is_written_at_once_than_was_said() {
    let rig = Rig::new(4, 16 << 20);
    for number in 0..3000 {
        rig.offer(Area::Image, number);
    }
    let statistics = rig.cache.statistics();
    assert_eq!(statistics.refused, 3000 - WRITES_MAX as u64);
    rig.settle();
    assert_eq!(rig.count(Area::Image, 0..3000), WRITES_MAX);
}

#[test]
fn the_directory_is_written_behind_and_not_while_nothing_changes() {
    let rig = Rig::new(5, 1 << 20);
    let operations = || rig.simulation.disk.operations();
    rig.offer(Area::Image, 1);
    rig.settle();
    let before = operations();
    rig.cache.write_behind();
    assert_eq!(operations(), before, "more may come");
    rig.simulation.clock.advance(WRITE_BEHIND);
    rig.cache.write_behind();
    let written = operations();
    assert!(written > before);
    rig.simulation.clock.advance(WRITE_BEHIND * 100);
    rig.cache.write_behind();
    assert_eq!(operations(), written);
}

#[test]
fn protected_pages_stay() {
    let rig = Rig::new(6, 1 << 20);
    for number in 0..10 {
        rig.cache.protect(id(number), true);
        rig.offer(Area::Metadata, number);
    }
    for number in 1000..1500 {
        rig.offer(Area::Metadata, number);
        rig.settle();
    }
    assert_eq!(
        (
            rig.count(Area::Metadata, 0..10),
            rig.cache.statistics().protected
        ),
        (10, 10)
    );
}

#[test]
fn what_cannot_be_a_cache_is_refused() {
    let simulation = Simulation::new(7);
    let disk = Arc::clone(&simulation.disk);
    let open = |config: &CacheConfig| {
        let opened = Cache::open(&simulation.world(), config);
        opened.map(|_| ()).expect_err("refused").to_string()
    };
    assert!(open(&config(1000)).contains("1 MiB at least"));
    let division = Division {
        metadata: 0,
        image: 50,
        active: 50,
    };
    let lopsided = CacheConfig {
        division,
        ..config(1 << 20)
    };
    assert!(open(&lopsided).contains("100 % together"));
    assert!(
        open(&config(1 << 20)).contains("/ssd/cache"),
        "there is no folder"
    );
    world::Disk::create_directory(&*disk, Path::new("/ssd")).expect("made");
    disk.set_capacity(Path::new("/ssd"), 1 << 20);
    let sizeless = CacheConfig {
        bytes: None,
        ..config(1 << 20)
    };
    assert!(open(&sizeless).contains("is no block device"));
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::CreateNew);
    other
        .expect("made")
        .write_at(b"letters", 0)
        .expect("written");
    let others = CacheConfig {
        path: "/ssd/other".into(),
        ..config(1 << 20)
    };
    assert!(open(&others).contains("something else"));
    world::Disk::remove(&*disk, Path::new("/ssd/other")).expect("it is there still");
    let full = open(&config(8 << 20));
    assert!(
        full.contains("cannot be made") && full.contains("No space"),
        "{full}"
    );
    assert_eq!(
        disk.files_under(Path::new("/ssd")),
        [],
        "nothing is left of it"
    );
}
