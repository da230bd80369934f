//! Key files and passphrases.

use std::fs;
use std::path::Path;

use agent::keys::{KeyEntry, KeyParameters, KeySource, OpenKeyError, PassphraseError};
use base::{KeyId, Lineage};
use volume::seal::{DataKey, WrappingKey};
use world::real::RealRandom;

use super::conformance::{conforms, opened};
use super::{Place, chmod, text};

fn passphrase(path: &Path) -> KeyEntry {
    KeyEntry::Passphrase {
        path: path.to_owned(),
    }
}

#[test]
fn a_key_file_is_a_wrapping_key() {
    let place = Place::new();
    conforms(&place.keys, &place.key_file("a"), &place.key_file("b"));
}

#[test]
fn a_passphrase_is_a_wrapping_key() {
    let place = Place::new();
    let ours = passphrase(&place.private("ours", "a walrus at noon\n"));
    let theirs = passphrase(&place.private("theirs", "a walrus at night"));
    conforms(&place.keys, &ours, &theirs);
}

#[test]
fn a_key_file_is_created_once_private_and_with_its_own_key() {
    let place = Place::new();
    let (a, b) = (place.key_file("a.key"), place.key_file("b.key"));
    assert_ne!(a, b);
    let read = |name| fs::read_to_string(place.path(name)).expect("a file");
    assert_ne!(read("a.key"), read("b.key"));
    assert_eq!(
        world::host::mode(&place.path("a.key")).expect("mode"),
        0o600
    );
    let before = read("a.key");
    let refused = place.keys.create(&a).expect_err("it exists");
    assert!(text(&refused).contains("exists"), "{refused}");
    assert_eq!(read("a.key"), before);
    let nowhere = KeyEntry::File {
        path: place.path("none/a.key"),
    };
    assert!(place.keys.create(&nowhere).is_err());
}

#[test]
fn a_key_that_was_wrapped_by_a_fixture_still_opens() {
    let place = Place::new();
    let path = place.private("key", format!("{}\n", "0aF1".repeat(16)));
    let bytes: Vec<u8> = [0x0a, 0xf1].repeat(16);
    let before = WrappingKey::from_bytes(&bytes.try_into().expect("32"));
    let verifier = before.wrap(
        Lineage::from_u128(0),
        &DataKey::generate(&RealRandom),
        &RealRandom,
    );
    let parameters = KeyParameters {
        source: KeySource::File,
        verifier,
    };
    let id = KeyId::from_u128(3);
    let now = place.keys.open(id, &KeyEntry::File { path }, &parameters);
    let lineage = Lineage::from_u128(9);
    let wrapped = before.wrap(lineage, &DataKey::from_bytes([1; 32]), &RealRandom);
    assert_eq!(
        opened(&*now.expect("open"), lineage, &wrapped),
        Some([1; 32])
    );
}

#[test]
fn a_file_that_is_no_key_file_is_refused() {
    let place = Place::new();
    let with = |content: &str| {
        let path = place.private("key", content);
        place.refusal(&KeyEntry::File { path })
    };
    for content in [
        "",
        "1234",
        &"g".repeat(64),
        &"é".repeat(32),
        &"0".repeat(65),
    ] {
        assert!(with(content).contains("64 hex digits"), "{content}");
    }
    assert!(with(&"0".repeat(5000)).contains("5000 bytes"));
    let path = place.private("key", "0".repeat(64));
    let entry = KeyEntry::File { path: path.clone() };
    for mode in [0o640, 0o604, 0o644, 0o660] {
        chmod(&path, mode);
        assert!(place.refusal(&entry).contains("chmod 600"));
    }
    fs::remove_file(&path).expect("removed");
    assert!(place.refusal(&entry).contains("cannot read"));
    assert!(!path.exists(), "a missing file is not created");
}

#[test]
fn a_file_without_a_passphrase_is_refused() {
    let place = Place::new();
    for content in ["", "\nsecond line"] {
        let entry = passphrase(&place.private("words", content));
        assert!(place.refusal(&entry).contains("should hold the passphrase"));
    }
    let entry = passphrase(&place.private("words", [0xff, 0xfe]));
    assert!(place.refusal(&entry).contains("not text"));
    let path = place.private("words", "a walrus");
    chmod(&path, 0o604);
    assert!(place.refusal(&passphrase(&path)).contains("chmod 600"));
}

#[test]
fn parameters_that_were_altered_in_the_database_open_nothing() {
    let place = Place::new();
    let path = place.private("words", "a walrus");
    let parameters = place
        .keys
        .new_parameters(&passphrase(&path))
        .expect("parameters");
    let open = |memory: u32, passes: u32, salted: u8| {
        let mut altered = parameters.clone();
        if let KeySource::Passphrase {
            salt,
            memory_kib,
            passes: asked,
            ..
        } = &mut altered.source
        {
            salt[0] ^= salted;
            (*memory_kib, *asked) = (memory, passes);
        }
        let id = KeyId::from_u128(1);
        place.keys.open(id, &passphrase(&path), &altered)
    };
    assert!(open(64 << 10, 3, 0).is_ok());
    for wrong in [open(64 << 10, 3, 1), open(64, 1, 0)] {
        assert!(matches!(wrong, Err(OpenKeyError::Wrong(_))), "{wrong:?}");
    }
    for (memory, passes) in [(u32::MAX, 3), (64 << 10, u32::MAX), (0, 3), (64 << 10, 0)] {
        let refused = open(memory, passes, 0);
        let damaged = PassphraseError::Parameters;
        assert_eq!(
            text(&refused.expect_err("no sense")),
            damaged.to_string(),
            "{memory} {passes}"
        );
    }
}

#[test]
fn nothing_prints_a_secret() {
    let place = Place::new();
    let entry = place.key_file("a");
    let secret = fs::read_to_string(place.path("a")).expect("a file");
    let parameters = place.keys.new_parameters(&entry).expect("parameters");
    let id = KeyId::from_u128(1);
    let key = place.keys.open(id, &entry, &parameters).expect("open");
    let printed = format!("{key:?} {:?} {parameters:?} {entry:?}", place.keys);
    assert!(!printed.contains(secret.trim()));
    assert!(printed.contains("the key file"), "{printed}");
}
