//! Backends that end, hang or are missing.

use std::time::Duration;

use base::{BlockDevice, Durability, Request, Started};

use super::{BLOCK, BLOCKS, Rig, SIZE};

#[test]
fn a_backend_that_ends_or_hangs_is_restarted_without_an_error_above() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed);
        rig.begin("fail-closed").expect("attached");
        let mut now = [0_u8; BLOCKS];
        for step in 0..200_u32 {
            let block = rig.random.below(8) as usize;
            match rig.random.below(20) {
                0..9 => {
                    let value = (step % 250) as u8 + 1;
                    // The backend may die at any moment of the write.
                    if rig.random.below(4) == 0 {
                        rig.fate.lock().dies = true;
                    }
                    rig.write(block, value).expect("no error");
                    now[block] = value;
                }
                9..15 => {
                    let read = rig.read(block).expect("no error");
                    assert_eq!(read, now[block], "seed {seed}, step {step}: block {block}");
                }
                15..17 => rig.flush().expect("no error"),
                17 => rig.fate.lock().dies = true,
                18 => rig.fate.lock().hangs = true,
                _ => {
                    // The disk below is slow, and the backend dies meanwhile.
                    rig.chain.bottom().holds = true;
                    let (token, at) = (rig.next(), (block * BLOCK) as u64);
                    let value = (step % 250) as u8 + 1;
                    while rig.chain.start(Request::write(
                        token,
                        at,
                        &[value; BLOCK],
                        Durability::Volatile,
                    )) != Started::Pending
                    {
                        rig.poll();
                    }
                    let mut completions = Vec::new();
                    for turn in 0..40 {
                        completions.extend(rig.poll());
                        if turn == 20 {
                            rig.fate.lock().dies = true;
                        }
                    }
                    // A faulty filter would let the write be replayed before its first attempt
                    // ends.
                    let before = rig.fate.lock().starts;
                    while rig.fate.lock().starts == before {
                        completions.extend(rig.poll());
                    }
                    for _ in 0..50 {
                        completions.extend(rig.poll());
                    }
                    rig.chain.bottom().holds = false;
                    while completions.is_empty() {
                        completions.extend(rig.poll());
                    }
                    let newer = value ^ 0x80;
                    rig.write(block, newer).expect("no error");
                    while !rig.chain.bottom().pending.is_empty() {
                        rig.poll();
                    }
                    now[block] = newer;
                }
            }
        }
        rig.flush().expect("no error");
        for (block, value) in now.iter().enumerate() {
            assert_eq!(rig.read(block), Ok(*value), "seed {seed}: block {block}");
        }
        assert!(rig.fate.lock().starts > 1, "it was restarted");
    }
}

#[test]
fn a_fail_closed_disk_fails_without_its_backend_and_loses_no_acknowledged_write() {
    let mut rig = Rig::new(1);
    rig.begin("fail-closed").expect("attached");
    rig.write(1, 11).expect("answered");
    {
        let mut fate = rig.fate.lock();
        (fate.dies, fate.is_missing) = (true, true);
    }
    let failed = rig.write(2, 22).expect_err("the backend is missing");
    assert!(
        failed.to_string().contains("far does not answer"),
        "{failed}"
    );
    assert!(rig.read(1).is_err() && rig.flush().is_err());
    assert!(rig.has_reported("answers with errors"));
    rig.fate.lock().is_missing = false;
    while !rig.has_reported("answers again after") {
        rig.poll();
    }
    // The acknowledged write, which no flush has covered, was replayed.
    assert_eq!(rig.read(1), Ok(11));
    rig.flush().expect("answered");
}

#[test]
fn a_missing_backend_is_bypassed_until_it_is_ready_again() {
    let mut rig = Rig::new(2);
    rig.begin("bypass").expect("attached");
    rig.write(1, 11).expect("answered");
    {
        let mut fate = rig.fate.lock();
        (fate.dies, fate.is_missing) = (true, true);
    }
    rig.write(2, 22).expect("bypassed");
    assert!(rig.has_reported("served without it"));
    assert_eq!((rig.read(1), rig.read(2)), (Ok(11), Ok(22)));
    rig.flush().expect("all is below");
    // The backend is tried in vain, and no request fails.
    for value in 0..200 {
        rig.write(3, value).expect("bypassed");
        rig.clock.advance(Duration::from_millis(300));
    }
    rig.fate.lock().is_missing = false;
    while !rig.has_reported("answers again after") {
        rig.poll();
    }
    assert_eq!(rig.read(3), Ok(199));
    rig.write(4, 44).expect("answered");
    assert_eq!(rig.read(4), Ok(44));
}

#[test]
fn a_restarted_backend_sees_the_size_of_its_first_life() {
    let mut rig = Rig::new(6);
    rig.begin("fail-closed").expect("attached");
    rig.write(1, 11).expect("answered");
    rig.chain.bottom().grown = BLOCK as u64;
    rig.fate.lock().dies = true;
    assert_eq!(
        rig.read(1),
        Ok(11),
        "the restarted backend serves the same disk"
    );
    assert_eq!(rig.chain.geometry().size_bytes, SIZE as u64);
}
