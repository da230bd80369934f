//! The areas of a cache: blocks of newest versions and images stay, pinned ones longest.

use super::*;

#[test]
fn map_pages_of_newest_versions_stay_until_they_are_released() {
    let test = TestCache::new(6, 1 << 20);
    let [one, other] = [(); 2].map(|()| Protector::another());
    let newest = |protector| Area::Metadata {
        newest_of: Some(protector),
    };
    for number in 0..10 {
        test.offer(newest(one), number);
        test.offer(newest(other), number + 100);
        // A cached page becomes protected when it is read as one of a newest version.
        test.offer(METADATA, number + 200);
        test.run_jobs();
        assert!(test.has(newest(one), number + 200));
        // Or when it is offered as one.
        test.offer(METADATA, number + 300);
        test.run_jobs();
        test.offer(newest(other), number + 300);
    }
    let many = |from: u64| {
        for number in from..from + 500 {
            test.offer(METADATA, number);
            test.run_jobs();
        }
    };
    let left = || [0, 100, 200, 300].map(|from| test.count(METADATA, from..from + 10));
    let protected = || test.cache.statistics().protected;
    many(1000);
    assert_eq!((left(), protected()), ([10; 4], 40));
    for number in 0..4 {
        test.cache.release(one, id(number));
    }
    many(2000);
    assert_eq!((left(), protected()), ([6, 10, 10, 10], 36));
    test.cache.release_all(one);
    many(3000);
    assert_eq!((left(), protected()), ([0, 10, 0, 10], 20));
    assert!(!test.cache.is_all_protected());
    for number in 5000..5500 {
        test.offer(newest(one), number);
        test.run_jobs();
    }
    assert!(test.cache.is_all_protected());
}

#[test]
fn pinned_blocks_stay_also_after_a_restart_until_they_are_unpinned() {
    let mut test = TestCache::new(8, 1 << 20);
    let capacity = test.cache.statistics().areas[AreaKind::Image as usize].capacity;
    let many = |test: &TestCache, from: u64| {
        for number in from..from + 300 {
            test.offer(IMAGE, number);
            test.run_jobs();
            // A second read, since blocks that are read once evict no older ones.
            test.has(IMAGE, number);
        }
    };
    for number in 0..10 {
        test.offer(PINNED, number);
    }
    // A cached block is pinned when it is read as a pinned one.
    test.offer(IMAGE, 10);
    test.run_jobs();
    assert!(test.has(PINNED, 10) && test.has(IMAGE, 10));
    many(&test, 1000);
    assert_eq!(test.count(IMAGE, 0..11), 11);
    assert_eq!(test.cache.statistics().pinned, 11);
    test.cache.flush();
    assert!(!test.open(&config(1 << 20)));
    assert_eq!(test.cache.statistics().pinned, 11);
    many(&test, 2000);
    assert_eq!(test.count(IMAGE, 0..11), 11);
    let image = test.cache.statistics().areas[AreaKind::Image as usize];
    assert_eq!((image.blocks, image.capacity), (capacity, capacity));
    test.cache.unpin_all();
    assert_eq!(test.cache.statistics().pinned, 0);
    assert_eq!(test.count(IMAGE, 0..11), 11, "the blocks are still cached");
    // A pinned read pins a block again.
    assert!(test.has(PINNED, 3));
    many(&test, 3000);
    many(&test, 4000);
    assert_eq!(test.cache.statistics().pinned, 1);
    assert!(test.has(IMAGE, 3) && test.count(IMAGE, 0..11) < 11);
    test.cache.unpin_all();
    test.cache.flush();
    assert!(!test.open(&config(1 << 20)));
    assert_eq!(test.cache.statistics().pinned, 0);
}

#[test]
fn a_block_of_a_new_image_moves_to_the_image_area_when_it_is_read() {
    let mut test = TestCache::new(9, 1 << 20);
    for number in 0..20 {
        test.offer(active(1), number);
    }
    test.run_jobs();
    assert_eq!(test.count(IMAGE, 0..10), 10);
    assert!(test.has(PINNED, 10));
    let blocks = |test: &TestCache| test.cache.statistics().areas.map(|area| area.blocks);
    assert_eq!(blocks(&test), [0, 11, 9]);
    for number in 1000..1200 {
        test.offer(active(2), number);
        test.run_jobs();
    }
    assert_eq!(
        test.count(active(1), 0..11),
        11,
        "the volume finds them in the image area"
    );
    test.cache.flush();
    assert!(!test.open(&config(1 << 20)));
    assert_eq!(test.count(IMAGE, 0..11), 11);
    assert_eq!((blocks(&test)[1], test.cache.statistics().pinned), (11, 1));
}
