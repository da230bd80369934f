//! Formatting disks and opening them.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Durability, Request};
use chain_policy::EncryptConfig;
use luks::{Header, Step};
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::simulated::SimulatedRandom;

use super::{CHEAP, HEADER, OneKey, Rig, decrypted, formatted, fresh, rig};
use crate::HotSwapError;

#[test]
fn an_empty_disk_is_formatted_if_the_policy_allows_it() {
    let mut rig = rig(Misbehavior {
        pending_one_in: 2,
        busy_one_in: 3,
        ..Misbehavior::default()
    });
    let refused = rig.attach(&EncryptConfig::new("disk"));
    let reason = refused.expect_err("it has no header");
    assert!(
        reason.contains("the disk has no LUKS2 header; format = \"if-empty\""),
        "{reason}"
    );
    assert_eq!(rig.chain.bottom().calls.writes, 0);
    rig.attach(&fresh()).expect("attached");
    assert_eq!(rig.chain.bottom().calls.writes, 0, "it is not in use yet");
    rig.write(5, b"hello");
    assert_eq!(rig.read(5, 5), b"hello");
    assert_eq!(&decrypted(rig.chain.bottom().bytes())[5..10], b"hello");
    // The next filter finds the same disk.
    rig.attach(&fresh()).expect("attached");
    assert_eq!(rig.read(5, 5), b"hello");
}

#[test]
fn interrupted_formatting_is_repeated() {
    let random = SimulatedRandom::new(3);
    let made = Header::format(512, 0, CHEAP, b"secret", &random);
    let steps = made.expect("made").2;
    for done in 0..steps.len() {
        let mut rig = rig(Misbehavior::default());
        for (at, step) in steps[..=done].iter().enumerate() {
            if let Step::Write { offset, bytes } = step {
                let half = match at == done {
                    true => bytes.len().min(512).max(bytes.len() / 2),
                    false => bytes.len(),
                };
                rig.chain.bottom().start(Request::write(
                    0,
                    *offset,
                    &bytes[..half],
                    Durability::Volatile,
                ));
            }
        }
        rig.attach(&fresh()).expect("attached");
        rig.write(0, b"hello");
        let bytes = rig.chain.bottom().bytes();
        assert_eq!(&decrypted(bytes)[..5], b"hello", "step {done}");
        assert!(!Header::is_being_formatted(bytes));
    }
}

#[test]
fn a_disk_that_is_not_empty_is_not_formatted() {
    for at in [0, 4096, HEADER as u64 - 1] {
        let mut rig = rig(Misbehavior::default());
        rig.chain
            .bottom()
            .start(Request::write(0, at, &[1], Durability::Volatile));
        let reason = rig.attach(&fresh()).expect_err("there is something");
        assert!(reason.contains("not empty"), "{reason}");
    }
    // Nor one with a damaged header.
    let mut device = formatted(512, 1);
    for copy in [0, 16 << 10] {
        device.start(Request::write(0, copy + 300, &[1], Durability::Volatile));
    }
    let reason = Rig::new(device, 1).attach(&fresh()).expect_err("damaged");
    assert!(
        reason.contains("the header at byte 0 is damaged"),
        "{reason}"
    );
    // Nor one that cannot be read.
    let mut rig = rig(Misbehavior {
        damaged: 5000..5001,
        ..Misbehavior::default()
    });
    let reason = rig.attach(&fresh()).expect_err("damaged");
    assert!(reason.contains("its header cannot be read"), "{reason}");
}

#[test]
fn the_error_of_a_disk_that_cannot_be_opened_has_the_reason() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    let reason = rig
        .attach(&EncryptConfig::new("other"))
        .expect_err("no key");
    assert!(reason.contains("there is no key other here"), "{reason}");
    rig.context.attachment.keys = Arc::new(OneKey(b"wrong"));
    let reason = rig.attach(&EncryptConfig::new("disk")).expect_err("wrong");
    assert!(
        reason.ends_with("opens none of the 1 key slots"),
        "{reason}"
    );
    let mut small = Rig::new(MemoryDevice::new(1 << 20), 1);
    let reason = small.attach(&fresh()).expect_err("small");
    assert!(
        reason.contains("the header alone takes 16777216"),
        "{reason}"
    );
    // A host that is being stopped runs no jobs.
    rig.pool.close();
    let reason = rig.attach(&EncryptConfig::new("disk")).expect_err("closed");
    assert!(reason.ends_with("the host is being stopped"), "{reason}");
}

/// A header whose key takes a minute was derived again after each timeout, until all threads of the
/// host were deriving keys of one disk.
#[test]
fn a_disk_has_one_key_derivation_at_a_time() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    let config = EncryptConfig::new("disk");
    for _ in 0..3 {
        rig.begin(&config);
        let ended = loop {
            rig.clock.advance(Duration::from_secs(1));
            rig.chain.poll(&mut Vec::new());
            if let Some(ended) = rig.ended() {
                break ended;
            }
        };
        assert!(
            matches!(ended, Err(HotSwapError::TimedOut { .. })),
            "{ended:?}"
        );
        assert_eq!(rig.pool.waiting(), 1);
    }
    // Another disk has its own permit.
    let mut other = Rig::new(formatted(512, 2), 2);
    other.context.host.key_derivations = Arc::clone(&rig.context.host.key_derivations);
    other.context.attachment.attribution = Arc::new(crate::Attribution {
        volume: "other".to_owned(),
        ..(*rig.context.attachment.attribution).clone()
    });
    other.begin(&config);
    for _ in 0..20 {
        other.chain.poll(&mut Vec::new());
    }
    assert_eq!(rig.pool.waiting(), 2);
    rig.attach(&config).expect("attached");
}

#[test]
fn a_damaged_copy_of_the_header_is_repaired() {
    for copy in [0, 16 << 10] {
        let mut device = formatted(512, 1);
        device.start(Request::write(0, copy + 300, &[1], Durability::Volatile));
        let mut rig = Rig::new(device, 1);
        rig.attach(&EncryptConfig::new("disk")).expect("attached");
        rig.write(0, b"hello");
        assert_eq!(rig.poll(), []);
        assert_eq!(&decrypted(rig.chain.bottom().bytes())[..5], b"hello");
    }
}
