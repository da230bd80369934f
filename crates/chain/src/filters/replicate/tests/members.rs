//! Which members are written, read, rebuilt and excluded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Durability, Request, Started};
use world::Clock;

use super::{BLOCK, Rig, Servers, history, lock};

#[test]
fn replicas_are_rebuilt_and_then_read() {
    let mut rig = Rig::new(1, 2);
    lock(&rig.servers[0]).live[5 << 20..6 << 20].fill(7);
    rig.open().expect("it opens");
    rig.until_equal();
    rig.write(100 * BLOCK, &[9; BLOCK]);
    rig.flush();
    assert!(rig.are_equal());
    // A moment later they are in sync.
    for _ in 0..1000 {
        rig.poll();
    }
    for at in 0..200 {
        let read = rig.read((5 << 20) + at * BLOCK, BLOCK);
        assert_eq!(read, [7; BLOCK]);
    }
    for server in &rig.servers {
        assert!(lock(server).reads >= 20, "all members are read");
    }
}

/// Copied regions counted as rebuilt, and were lost with the replica's power, since nothing had
/// flushed them.
#[test]
fn copies_that_were_not_flushed_are_repeated() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, 1);
        lock(&rig.servers[0]).live.fill(7);
        rig.open().expect("it opens");
        for _ in 0..seed * 8 {
            rig.poll();
        }
        lock(&rig.servers[1]).crash();
        rig.until_equal();
    }
}

/// A long write over two regions was left to the rebuild of the second one, and the first one
/// counted as rebuilt.
#[test]
fn a_write_over_several_regions_reaches_all_of_a_rebuilding_member() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, 1);
        lock(&rig.servers[0]).live.fill(7);
        rig.open().expect("it opens");
        for region in 1..7_usize {
            let length = (1 << 20) + 2 * BLOCK;
            rig.write((region << 20) - BLOCK, &vec![region as u8; length]);
        }
        rig.until_equal();
    }
}

#[test]
fn a_member_that_fails_or_hangs_is_excluded_without_errors_above() {
    for (hangs, victim) in [(false, 1), (true, 1), (true, 0)] {
        let mut rig = Rig::new(3, 2);
        rig.open().expect("it opens");
        rig.until_equal();
        for _ in 0..1000 {
            rig.poll();
        }
        match hangs {
            true => lock(&rig.servers[victim]).hangs = true,
            false => lock(&rig.servers[victim]).is_up = false,
        }
        for at in 0..60 {
            rig.write(at * 3 * BLOCK, &[at as u8 + 1; BLOCK]);
            assert_eq!(rig.read(at * 3 * BLOCK, BLOCK), [at as u8 + 1; BLOCK]);
        }
        rig.flush();
        assert!(!rig.are_equal());
        {
            let mut server = lock(&rig.servers[victim]);
            (server.hangs, server.is_up) = (false, true);
            if victim != 0 {
                server.crash();
            }
        }
        rig.until_equal();
        assert_eq!(rig.read(3 * BLOCK, BLOCK), [2; BLOCK]);
    }
}

/// The only member with the last writes was unavailable, and another one was served.
#[test]
fn a_member_without_the_last_writes_is_never_the_source() {
    let mut rig = Rig::new(4, 1);
    rig.open().expect("it opens");
    rig.until_equal();
    for _ in 0..1000 {
        rig.poll();
    }
    lock(&rig.servers[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.servers[0]).hangs = false;
    lock(&rig.servers[1]).is_up = false;
    let why = rig.crash().expect_err("the volume has an older state");
    assert!(why.contains("only replica r1 has the last writes"), "{why}");
    lock(&rig.servers[1]).is_up = true;
    rig.open().expect("the replica is available");
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    rig.until_equal();
}

#[test]
fn the_volume_is_used_without_a_replica_that_cannot_be_opened() {
    let mut rig = Rig::new(5, 2);
    rig.targets = Arc::new(Servers(BTreeMap::new()));
    rig.open().expect("the volume is available");
    rig.write(0, &[1; BLOCK]);
    assert_eq!(rig.read(0, BLOCK), [1; BLOCK]);
}

#[test]
fn the_only_complete_member_is_waited_for_and_not_excluded() {
    let mut rig = Rig::new(21, 1);
    rig.open().expect("it opens");
    rig.until_in_sync();
    lock(&rig.servers[1]).is_up = false;
    rig.write(0, &[1; BLOCK]);
    lock(&rig.servers[0]).hangs = true;
    let begun = rig.clock.monotonic();
    let token = rig.next();
    while rig
        .chain
        .start(Request::write(token, 0, &[2; BLOCK], Durability::Volatile))
        == Started::Busy
    {
        rig.poll();
    }
    while rig.clock.monotonic() < begun + Duration::from_secs(30) {
        assert_eq!(rig.poll(), []);
        rig.clock.advance(Duration::from_millis(10));
    }
    lock(&rig.servers[0]).hangs = false;
    while rig.poll().is_empty() {}
    assert_eq!(rig.read(0, BLOCK), [2; BLOCK]);
    rig.flush();
    lock(&rig.servers[1]).is_up = true;
    rig.until_equal();
    rig.crash().expect("the volume is complete");
    assert_eq!(rig.read(0, BLOCK), [2; BLOCK]);
}

#[test]
fn an_incomplete_volume_keeps_its_filter() {
    let mut rig = Rig::new(22, 1);
    rig.open().expect("it opens");
    rig.until_in_sync();
    lock(&rig.servers[0]).hangs = true;
    for _ in 0..10 {
        // The volume is excluded, and only the replica is complete.
        rig.write(0, &[3; BLOCK]);
    }
    let refused = rig.remove().expect_err("the volume is incomplete");
    assert!(
        refused.contains("cannot be removed: the volume is missing writes"),
        "{refused}"
    );
    lock(&rig.servers[0]).hangs = false;
    rig.until_equal();
    while rig.remove().is_err() {
        rig.poll();
    }
    assert_eq!(rig.read(0, BLOCK), [3; BLOCK]);
}

#[test]
fn replicas_are_missing_what_was_written_without_the_filter() {
    for (epoch, turn, follows, is_rebuilt) in [
        (1, 2, 1, false), // The same filter again, by a hot swap.
        (1, 3, 2, true),  // Another chain was in use meanwhile.
        (2, 2, 1, false), // The volume was opened again.
        (3, 2, 1, true),  // And by another host in between.
    ] {
        let mut rig = Rig::new(23, 1);
        rig.history = history(1, 1, 0);
        rig.open().expect("it opens");
        rig.write(0, &[4; BLOCK]);
        rig.flush();
        rig.until_equal();
        if is_rebuilt {
            rig.remove().expect("the volume is complete");
            rig.write(0, &[5; BLOCK]);
            rig.flush();
        }
        rig.history = history(epoch, turn, follows);
        rig.open().expect("it opens");
        let expected = if is_rebuilt { 5 } else { 4 };
        for _ in 0..50 {
            assert_eq!(
                rig.read(0, BLOCK),
                [expected; BLOCK],
                "epoch {epoch}, turn {turn}"
            );
        }
        rig.until_equal();
    }
}
