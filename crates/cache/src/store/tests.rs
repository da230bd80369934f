//! A cache whose process dies, whose power fails, and whose file is made to lie.

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
    Area::Active(VolumeId::from_u128(volume.into()))
}

#[test]
fn what_was_offered_is_given_also_to_the_next_process() {
    let mut rig = Rig::new(1, 4 << 20);
    for number in 0..100 {
        rig.offer(METADATA, number);
        rig.offer(IMAGE, number + 1000);
        rig.offer(active(1), number + 2000);
        rig.settle();
    }
    let all = |rig: &Rig| {
        [
            rig.count(METADATA, 0..100),
            rig.count(IMAGE, 1000..1100),
            rig.count(active(1), 2000..2100),
        ]
    };
    assert_eq!(all(&rig), [100; 3]);
    assert!(!rig.has(IMAGE, 5000));
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
                    0 => METADATA,
                    1 => Area::Image {
                        of: None,
                        pinned: number.is_multiple_of(2),
                    },
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
                if rig.simulation.random.one_in(60) {
                    rig.cache.unpin_all();
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
                kept += usize::from(rig.has(IMAGE, number));
            }
        }
    }
    assert!(kept > 5000, "only {kept}: it keeps nothing");
}

#[test]
fn a_file_that_fails_is_no_cache_for_a_while() {
    let rig = Rig::new(3, 1 << 20);
    rig.offer(IMAGE, 1);
    rig.settle();
    rig.simulation.disk.inject(Path::new("/ssd"), Fault::Broken);
    assert!(!rig.has(IMAGE, 1));
    rig.offer(IMAGE, 2);
    rig.settle();
    assert!(!rig.has(IMAGE, 2));
    assert_eq!(rig.cache.statistics().failures, 1);
    let problem = rig.cache.problem().expect("it is said");
    assert!(problem.contains("has failed"), "{problem}");
    rig.simulation.disk.heal(Path::new("/ssd"));
    assert!(!rig.has(IMAGE, 1), "it is left alone");
    rig.simulation.clock.advance(FAILS_FOR);
    assert!(rig.has(IMAGE, 1));
    rig.offer(IMAGE, 2);
    rig.settle();
    assert!(rig.has(IMAGE, 2));
}

/// All that was in the file was asked of it, one after another, whoever had it too.
#[test]
fn a_file_that_hangs_is_not_asked_until_it_answers() {
    let rig = Rig::new(12, 1 << 20);
    rig.offer(IMAGE, 1);
    rig.settle();
    let (disk, clock) = (&rig.simulation.disk, &rig.simulation.clock);
    disk.inject(Path::new("/ssd"), Fault::Hangs);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| rig.has(IMAGE, 1));
        disk.wait_until_one_hangs();
        let may_be_slow = rig.cache.has(id(1)) && !rig.cache.is_ill();
        assert!(may_be_slow);
        clock.advance(HANGS_AFTER);
        assert!(rig.cache.is_ill() && !rig.cache.has(id(1)));
        let problem = rig.cache.problem().expect("it is said");
        assert!(problem.contains("does not respond"), "{problem}");
        assert!(!rig.has(IMAGE, 1));
        rig.offer(IMAGE, 2);
        disk.heal(Path::new("/ssd"));
        assert!(read.join().expect("it answers"));
    });
    assert!(!rig.cache.is_ill() && rig.has(IMAGE, 1));
    assert!(!rig.cache.has(id(2)), "it was not kept");
    let statistics = rig.cache.statistics();
    assert_eq!((statistics.hangs, statistics.refused), (1, 1));
    // The same of what is written: it is not in the file before that has answered.
    rig.offer(IMAGE, 3);
    disk.inject(Path::new("/ssd"), Fault::Hangs);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| rig.settle());
        disk.wait_until_one_hangs();
        clock.advance(HANGS_AFTER);
        assert!(rig.cache.is_ill());
        disk.heal(Path::new("/ssd"));
        write.join().expect("it answers");
    });
    assert!(rig.has(IMAGE, 3));
}

/// What came into a slot while it was written for another block would be overwritten by that.
#[test]
fn a_slot_that_is_being_written_is_nobody_elses_before_that_has_ended() {
    let rig = Rig::new(13, 1 << 20);
    // As many as the area has, none of which is written yet; then as many again.
    let capacity = rig.cache.statistics().areas[AreaKind::Image as usize].capacity as u64;
    let count = 2 * capacity;
    assert!(count < WRITES_MAX as u64);
    (0..count).for_each(|number| rig.offer(IMAGE, number));
    let found = |rig: &Rig| rig.count(IMAGE, 0..count) as u64;
    assert_eq!(found(&rig), 0, "none can be given yet");
    rig.settle();
    let kept = found(&rig);
    assert!(kept > 0 && kept <= capacity, "{kept}");
    // All slots are somebody's again.
    (count..2 * count).for_each(|number| {
        rig.offer(IMAGE, number);
        rig.settle();
    });
    let areas = rig.cache.statistics().areas;
    assert_eq!(areas[AreaKind::Image as usize].blocks as u64, capacity);
}

#[test]
fn what_does_not_open_makes_room_for_what_units_have() {
    let rig = Rig::new(10, 1 << 20);
    // Somebody put it there, with an entry that fits.
    let (bytes, _) = content(1);
    rig.cache.offer(IMAGE, id(1), [9; 16], &bytes);
    rig.settle();
    rig.offer(IMAGE, 1);
    let mut read = vec![0; SLOT_BYTES];
    assert_eq!(rig.cache.get(IMAGE, id(1), &mut read), Some([9; 16]));
    rig.cache.forget(id(1));
    assert!(!rig.has(IMAGE, 1));
    rig.offer(IMAGE, 1);
    rig.settle();
    assert!(rig.has(IMAGE, 1));
    assert_eq!(rig.cache.statistics().damaged, 1);
}

#[test]
fn no_more_is_written_at_once_than_was_said() {
    let rig = Rig::new(4, 16 << 20);
    for number in 0..3000 {
        rig.offer(IMAGE, number);
    }
    let statistics = rig.cache.statistics();
    assert_eq!(statistics.refused, 3000 - WRITES_MAX as u64);
    rig.settle();
    assert_eq!(rig.count(IMAGE, 0..3000), WRITES_MAX);
}

#[test]
fn the_directory_is_written_behind_and_not_while_nothing_changes() {
    let rig = Rig::new(5, 1 << 20);
    let operations = || rig.simulation.disk.operations();
    rig.offer(IMAGE, 1);
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
fn pages_of_newest_versions_stay_until_others_are_newer_or_their_volume_is_detached() {
    let rig = Rig::new(6, 1 << 20);
    let [one, other] = [(); 2].map(|()| Protector::another());
    let newest = |protector| Area::Metadata {
        newest_of: Some(protector),
    };
    for number in 0..10 {
        rig.offer(newest(one), number);
        rig.offer(newest(other), number + 100);
        // One that is there is protected when it is asked for so.
        rig.offer(METADATA, number + 200);
        rig.settle();
        assert!(rig.has(newest(one), number + 200));
        // Or offered so.
        rig.offer(METADATA, number + 300);
        rig.settle();
        rig.offer(newest(other), number + 300);
    }
    let many = |from: u64| {
        for number in from..from + 500 {
            rig.offer(METADATA, number);
            rig.settle();
        }
    };
    let left = || [0, 100, 200, 300].map(|from| rig.count(METADATA, from..from + 10));
    let protected = || rig.cache.statistics().protected;
    many(1000);
    assert_eq!((left(), protected()), ([10; 4], 40));
    for number in 0..4 {
        rig.cache.release(one, id(number));
    }
    many(2000);
    assert_eq!((left(), protected()), ([6, 10, 10, 10], 36));
    rig.cache.release_all(one);
    many(3000);
    assert_eq!((left(), protected()), ([0, 10, 0, 10], 20));
    assert!(!rig.cache.is_all_protected());
    for number in 5000..5500 {
        rig.offer(newest(one), number);
        rig.settle();
    }
    assert!(rig.cache.is_all_protected());
}

#[test]
fn what_is_pinned_stays_also_for_the_next_process_until_all_is_unpinned() {
    let mut rig = Rig::new(8, 1 << 20);
    let capacity = rig.cache.statistics().areas[AreaKind::Image as usize].capacity;
    let many = |rig: &Rig, from: u64| {
        for number in from..from + 300 {
            rig.offer(IMAGE, number);
            rig.settle();
            // What is asked for once only pushes out nothing that was there before.
            rig.has(IMAGE, number);
        }
    };
    for number in 0..10 {
        rig.offer(PINNED, number);
    }
    // One that is there already is pinned when it is asked for as such.
    rig.offer(IMAGE, 10);
    rig.settle();
    assert!(rig.has(PINNED, 10) && rig.has(IMAGE, 10));
    many(&rig, 1000);
    assert_eq!(rig.count(IMAGE, 0..11), 11);
    assert_eq!(rig.cache.statistics().pinned, 11);
    rig.cache.flush();
    assert!(!rig.open(&config(1 << 20)));
    assert_eq!(rig.cache.statistics().pinned, 11);
    many(&rig, 2000);
    assert_eq!(rig.count(IMAGE, 0..11), 11);
    let image = rig.cache.statistics().areas[AreaKind::Image as usize];
    assert_eq!((image.blocks, image.capacity), (capacity, capacity));
    rig.cache.unpin_all();
    assert_eq!(rig.cache.statistics().pinned, 0);
    assert_eq!(rig.count(IMAGE, 0..11), 11, "it is there still");
    // What is to stay is asked for again.
    assert!(rig.has(PINNED, 3));
    many(&rig, 3000);
    many(&rig, 4000);
    assert_eq!(rig.cache.statistics().pinned, 1);
    assert!(rig.has(IMAGE, 3) && rig.count(IMAGE, 0..11) < 11);
    rig.cache.unpin_all();
    rig.cache.flush();
    assert!(!rig.open(&config(1 << 20)));
    assert_eq!(rig.cache.statistics().pinned, 0);
}

#[test]
fn what_is_an_images_by_now_moves_to_its_area_when_it_is_asked_for() {
    let mut rig = Rig::new(9, 1 << 20);
    for number in 0..20 {
        rig.offer(active(1), number);
    }
    rig.settle();
    assert_eq!(rig.count(IMAGE, 0..10), 10);
    assert!(rig.has(PINNED, 10));
    let blocks = |rig: &Rig| rig.cache.statistics().areas.map(|area| area.blocks);
    assert_eq!(blocks(&rig), [0, 11, 9]);
    for number in 1000..1200 {
        rig.offer(active(2), number);
        rig.settle();
    }
    assert_eq!(rig.count(active(1), 0..11), 11, "a volume finds it there");
    rig.cache.flush();
    assert!(!rig.open(&config(1 << 20)));
    assert_eq!(rig.count(IMAGE, 0..11), 11);
    assert_eq!((blocks(&rig)[1], rig.cache.statistics().pinned), (11, 1));
}

#[test]
fn what_cannot_be_a_cache_is_refused() {
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
    assert!(open(&sizeless).contains("is not a block device"));
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::CreateNew);
    other
        .expect("made")
        .write_at(b"letters", 0)
        .expect("written");
    let others = CacheConfig {
        path: "/ssd/other".into(),
        ..config(1 << 20)
    };
    assert!(open(&others).contains("is not a cache"));
    // As btrfs begins: with 64 KiB of nothing.
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::Write);
    let other = other.expect("opened");
    other.write_at(&[0; 7], 0).expect("written");
    other.write_at(b"_BHRfS_M", 65_600).expect("written");
    assert!(open(&others).contains("is not a cache"));
    // A file is its owner's to its end, however it begins.
    let other = world::Disk::open(&*disk, Path::new("/ssd/other"), world::OpenMode::Write);
    let other = other.expect("opened");
    other.set_length(0).expect("cut");
    other.write_at(b"letters", 3 << 20).expect("written");
    assert!(open(&others).contains("is not a cache"));
    assert_eq!(other.length().expect("known"), (3 << 20) + 7);
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
