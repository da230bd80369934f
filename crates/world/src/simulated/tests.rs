//! What the simulated world promises.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Fault, SimulatedDisk, SimulatedRandom, Simulation};
use crate::{Disk, File, OpenMode};

const FILE: &str = "/file";

fn create(disk: &SimulatedDisk, path: &str) -> Arc<dyn File> {
    disk.open(Path::new(path), OpenMode::CreateNew)
        .expect("a new file")
}

fn contents(disk: &SimulatedDisk, path: &str) -> Option<Vec<u8>> {
    let file = disk.open(Path::new(path), OpenMode::Read).ok()?;
    let mut bytes = vec![0; file.length().expect("open") as usize];
    file.read_at(&mut bytes, 0).expect("its own length");
    Some(bytes)
}

fn names(disk: &SimulatedDisk, folder: &str) -> Vec<String> {
    let entries = disk.list(Path::new(folder)).expect("a folder");
    entries.into_iter().map(|entry| entry.name).collect()
}

/// A disk with one durable file of 8 KiB, all ones, and the open file.
fn disk_with_file(seed: u64) -> (SimulatedDisk, Arc<dyn File>) {
    let disk = SimulatedDisk::new(seed);
    let file = create(&disk, FILE);
    file.write_at(&[1; 8192], 0).expect("written");
    file.sync_data().expect("synced");
    disk.sync_directory(Path::new("/")).expect("synced");
    (disk, file)
}

#[test]
fn an_unsynced_write_may_be_torn_at_sectors_but_synced_bytes_never_change() {
    let (mut whole, mut none, mut torn) = (0, 0, 0);
    for seed in 0..400 {
        let random = SimulatedRandom::new(seed);
        let (disk, file) = disk_with_file(seed);
        file.write_at(&[2; 2048], 1000).expect("written");
        disk.crash(&random);
        let bytes = contents(&disk.spawn(), FILE).expect("it was durable");
        assert_eq!(bytes.len(), 8192);
        assert!(bytes[..1000].iter().all(|byte| *byte == 1));
        assert!(bytes[3048..].iter().all(|byte| *byte == 1));
        for sector in bytes[1024..2560].chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
        }
        match bytes.iter().filter(|byte| **byte == 2).count() {
            0 => none += 1,
            2048 => whole += 1,
            _ => torn += 1,
        }
    }
    assert!(
        whole > 50 && none > 50 && torn > 50,
        "{whole} {none} {torn}"
    );
}

#[test]
fn of_unsynced_writes_any_subset_survives_in_any_order() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..500 {
        let (disk, file) = disk_with_file(seed);
        for byte in [2, 3] {
            file.write_at(&[byte; 512], 0).expect("written");
        }
        file.write_at(&[4; 512], 4096).expect("written");
        disk.crash(&SimulatedRandom::new(seed));
        let bytes = contents(&disk.spawn(), FILE).expect("it was durable");
        seen.insert((bytes[0], bytes[4096]));
    }
    let all = [(1, 1), (1, 4), (2, 1), (2, 4), (3, 1), (3, 4)];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn a_killed_process_leaves_its_writes_and_loses_its_handles() {
    let (disk, file) = disk_with_file(1);
    file.write_at(&[2; 8192], 0).expect("written");
    create(&disk, "/other");
    disk.kill();
    assert!(file.write_at(&[3], 0).is_err());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(disk.list(Path::new("/")).is_err());
    let next = disk.spawn();
    assert_eq!(contents(&next, FILE), Some(vec![2; 8192]));
    assert_eq!(names(&next, "/"), ["file", "other"]);
}

#[test]
fn a_name_that_was_not_synced_may_vanish_and_a_synced_one_does_not() {
    let mut kept = 0;
    for seed in 0..100 {
        let (disk, _) = disk_with_file(seed);
        let other = create(&disk, "/other");
        other.write_at(&[1], 0).expect("written");
        other.sync_data().expect("synced");
        disk.crash(&SimulatedRandom::new(seed));
        let names = names(&disk.spawn(), "/");
        assert!(names.contains(&"file".to_owned()));
        kept += names.len() - 1;
    }
    assert!((20..80).contains(&kept), "{kept}");
}

#[test]
fn a_rename_is_atomic_and_replaces() {
    let mut replaced = 0;
    for seed in 0..100 {
        let (disk, _) = disk_with_file(seed);
        let new = create(&disk, "/new");
        new.write_at(&[2; 8192], 0).expect("written");
        new.sync_data().expect("synced");
        let (from, to) = (Path::new("/new"), Path::new(FILE));
        disk.rename(from, to).expect("renamed");
        assert_eq!(contents(&disk, FILE), Some(vec![2; 8192]));
        disk.crash(&SimulatedRandom::new(seed));
        let disk = disk.spawn();
        let bytes = contents(&disk, FILE).expect("one or the other");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        if bytes[0] == 2 {
            replaced += 1;
            assert_eq!(names(&disk, "/"), ["file"], "never under two names");
        }
    }
    assert!((20..90).contains(&replaced), "{replaced}");
}

#[test]
fn a_removed_file_may_reappear_unless_its_folder_was_synced() {
    let mut back = 0;
    for seed in 0..100 {
        let (disk, file) = disk_with_file(seed);
        drop(file);
        disk.remove(Path::new(FILE)).expect("removed");
        assert_eq!(contents(&disk, FILE), None);
        let copy = disk.crashed_copy(&SimulatedRandom::new(seed));
        if let Some(bytes) = contents(&copy, FILE) {
            assert_eq!(bytes, [1; 8192]);
            back += 1;
        }
        disk.sync_directory(Path::new("/")).expect("synced");
        disk.crash(&SimulatedRandom::new(seed));
        assert_eq!(contents(&disk.spawn(), FILE), None);
    }
    assert!((20..80).contains(&back), "{back}");
}

#[test]
fn a_file_in_a_folder_whose_own_name_was_not_synced_may_vanish_with_it() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        let folder = Path::new("/folder");
        disk.create_directory(folder).expect("made");
        create(&disk, "/folder/file").sync_data().expect("synced");
        disk.sync_directory(folder).expect("synced");
        let copy = disk.crashed_copy(&SimulatedRandom::new(seed));
        match copy.list(folder) {
            Ok(entries) => assert_eq!(entries.len(), 1),
            Err(_) => lost += 1,
        }
        disk.sync_directory(Path::new("/")).expect("synced");
        disk.crash(&SimulatedRandom::new(seed));
        assert_eq!(names(&disk.spawn(), "/folder"), ["file"]);
    }
    assert!((20..80).contains(&lost), "{lost}");
}

/// Files move between folders. After any crash a durable file has exactly one name.
#[test]
fn moving_a_file_never_loses_nor_duplicates_it() {
    for seed in 0..500 {
        let random = SimulatedRandom::new(seed);
        let (disk, _) = disk_with_file(seed);
        let folders = ["/", "/a", "/b"];
        let mut at = FILE.to_owned();
        for (step, _) in (0..8).enumerate() {
            match random.below(4) {
                0 => {
                    let folder = Path::new(folders[random.index(3)]);
                    let _ = disk.sync_directory(folder);
                }
                1 => {
                    let folder = Path::new(folders[1 + random.index(2)]);
                    disk.create_directory(folder).expect("made");
                }
                _ => {
                    let to = format!("{}/{step}", folders[random.index(3)].trim_end_matches('/'));
                    if disk.rename(Path::new(&at), Path::new(&to)).is_ok() {
                        at = to;
                    }
                }
            }
        }
        disk.crash(&random);
        let files = disk.files_under(Path::new("/"));
        assert_eq!(files.len(), 1, "seed {seed}: {files:?}");
    }
}

#[test]
fn after_an_armed_crash_every_operation_fails_until_the_reboot() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..100 {
        let (disk, file) = disk_with_file(seed);
        disk.arm_crash(disk.operations() + 1);
        file.write_at(&[2; 512], 0).expect("the one before");
        assert!(file.sync_data().is_err());
        assert!(disk.is_off());
        assert!(file.read_at(&mut [0], 0).is_err());
        assert!(disk.spawn().list(Path::new("/")).is_err());
        disk.crash(&SimulatedRandom::new(seed));
        let disk = disk.spawn();
        match contents(&disk, FILE).expect("durable")[0] {
            1 => before += 1,
            _ => after += 1,
        }
        assert!(file.write_at(&[3], 0).is_err(), "a handle from before");
        create(&disk, "/works");
    }
    assert!(before > 10 && after > 10, "{before} {after}");
}

#[test]
fn faults_affect_their_prefix_until_they_are_healed() {
    let disk = SimulatedDisk::new(1);
    let (good, bad) = (Path::new("/good"), Path::new("/bad"));
    for folder in [good, bad] {
        disk.create_directory(folder).expect("made");
    }
    let other = create(&disk, "/good/file");
    let file = create(&disk, "/bad/file");
    file.write_at(&[1; 10], 0).expect("written");

    let write_error = |fault| {
        disk.inject(bad, fault);
        other.write_at(&[1], 0).expect("another prefix");
        let error = file.write_at(&[2], 0).map_err(|error| error.kind());
        let read = file.read_at(&mut [0], 0).map_err(|error| error.kind());
        disk.heal(bad);
        (error.err(), read.err())
    };
    assert_eq!(
        write_error(Fault::Full),
        (Some(ErrorKind::StorageFull), None)
    );
    assert_eq!(
        write_error(Fault::ReadOnly),
        (Some(ErrorKind::ReadOnlyFilesystem), None)
    );
    let (write, read) = write_error(Fault::Broken);
    assert!(write.is_some() && read.is_some());
    let (write, read) = write_error(Fault::Unreadable);
    assert!(write.is_none() && read.is_some());
    let stale = Some(ErrorKind::StaleNetworkFileHandle);
    assert_eq!(write_error(Fault::Missing), (stale, stale));

    disk.inject(bad, Fault::Missing);
    assert_eq!(
        disk.list(bad).expect_err("gone").kind(),
        ErrorKind::NotFound
    );
    disk.heal(bad);
    disk.inject(bad, Fault::Slow(Duration::from_millis(5)));
    file.write_at(&[1], 0).expect("slow");
    file.read_at(&mut [0], 0).expect("slow");
    assert_eq!(disk.take_waited(), Duration::from_millis(10));
    assert_eq!(disk.take_waited(), Duration::ZERO);
}

/// A file that could not be written as a whole leaves no draft.
#[test]
fn a_full_disk_keeps_the_old_content_of_a_file() {
    let disk = SimulatedDisk::new(1);
    let folder = Path::new("/kept");
    disk.create_directory(folder).expect("made");
    let file = folder.join("file");
    crate::host::write_whole(&disk, &file, b"before").expect("written");
    disk.set_capacity(folder, 6);
    let full = crate::host::write_whole(&disk, &file, b"after").expect_err("full");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(
        contents(&disk, "/kept/file").as_deref(),
        Some(&b"before"[..])
    );
    assert_eq!(names(&disk, "/kept"), ["file"]);
}

#[test]
fn a_prefix_holds_no_more_than_its_capacity() {
    let disk = SimulatedDisk::new(1);
    let folder = Path::new("/unit");
    disk.create_directory(folder).expect("made");
    disk.set_capacity(folder, 16_384);
    let one = create(&disk, "/unit/one");
    one.write_at(&[1; 8192], 0).expect("fits");
    let two = create(&disk, "/unit/two");
    two.allocate(8192).expect("fits");
    let full = one.write_at(&[1], 8192).expect_err("full").kind();
    assert_eq!(full, ErrorKind::StorageFull);
    two.write_at(&[1; 8192], 0).expect("reserved before");
    one.write_at(&[2; 8192], 0).expect("no new room");
    create(&disk, "/elsewhere")
        .write_at(&[1; 100_000], 0)
        .expect("another prefix");

    one.punch(0, 4096).expect("punched");
    let space = disk.space(folder).expect("there");
    assert_eq!((space.total_bytes, space.free_bytes), (16_384, 4096));
    disk.remove(Path::new("/unit/two")).expect("removed");
    assert_eq!(disk.space(folder).expect("there").free_bytes, 4096);
    drop(two);
    assert_eq!(disk.space(folder).expect("there").free_bytes, 12_288);
}

#[test]
fn a_flipped_bit_stays_flipped() {
    let (disk, _) = disk_with_file(1);
    disk.flip_bit(Path::new(FILE), 5000, 3).expect("it exists");
    disk.crash(&SimulatedRandom::new(1));
    let bytes = contents(&disk.spawn(), FILE).expect("durable");
    let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!((bytes[5000], ones), (1 ^ 8, 8193));
}

#[test]
fn read_now_sometimes_would_have_to_wait() {
    let (disk, file) = disk_with_file(1);
    let hits = || {
        let hit = |_: &i32| file.read_now(&mut [0; 10], 0).expect("there");
        (0..1000).filter(hit).count()
    };
    assert_eq!(hits(), 1000);
    disk.set_read_now_misses(4);
    assert!((600..900).contains(&hits()));
}

#[test]
fn a_seed_replays_exactly() {
    let run = |seed| {
        let mut simulation = Simulation::new(seed);
        for round in 0..10_u8 {
            let world = simulation.world();
            let path = format!("/{}", world.random.u64() % 4);
            let path = Path::new(&path);
            let file = world
                .disk
                .open(path, OpenMode::Write)
                .or_else(|_| world.disk.open(path, OpenMode::CreateNew))
                .expect("one or the other");
            file.write_at(&[round; 3000], u64::from(round) * 500)
                .expect("written");
            if simulation.random.below(2) == 0 {
                simulation.crash();
            } else {
                simulation.kill();
            }
        }
        let disk = &simulation.disk;
        let files = disk.files_under(Path::new("/")).into_iter();
        files
            .map(|(path, _)| contents(disk, path.to_str().expect("UTF-8")))
            .collect::<Vec<_>>()
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn a_world_from_before_a_crash_is_dead() {
    let mut simulation = Simulation::new(1);
    let before = simulation.world();
    before.pool.run(Box::new(|| unreachable!("it died")));
    simulation.crash();
    before.pool.run(Box::new(|| unreachable!("it is dead")));
    assert_eq!(simulation.pool.waiting(), 0);
    assert!(before.disk.list(Path::new("/")).is_err());
    let after = simulation.world();
    assert!(after.disk.list(Path::new("/")).is_ok());
}
