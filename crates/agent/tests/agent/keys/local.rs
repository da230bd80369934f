//! Key files and passphrases.

use std::fs;
use std::path::Path;

use agent::keys::{KeyEntry, KeySource, OpenKeyError, PassphraseError};
use base::KeyId;

use super::conformance::conforms;
use super::{Place, SALT, chmod, opens_the_fixture, text};

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

/// A verifier and a data key that the key file of the test has wrapped, byte by byte. They protect
/// what a key file is and what it wraps: with another reading of it, no volume of an existing
/// cluster opens. The bytes were computed without Scree, from docs/internals/formats.md.
#[test]
fn the_fixture_of_a_key_file_opens() {
    #[rustfmt::skip]
    const VERIFIER: [u8; 60] = [
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c,
        0x37, 0xf6, 0x69, 0xbe, 0xc5, 0xf3, 0x66, 0xa5, 0x56, 0x9d, 0xc5, 0x83,
        0x41, 0x1a, 0x38, 0xd2, 0xfc, 0xb1, 0x45, 0x1b, 0x59, 0x63, 0x52, 0xd8,
        0x62, 0x42, 0x43, 0x47, 0x4b, 0x38, 0xb5, 0x55, 0x82, 0x9a, 0xe7, 0x81,
        0x73, 0xc5, 0xe1, 0x0e, 0x1f, 0x68, 0xaa, 0x2f, 0x44, 0x06, 0x09, 0xf9,
    ];
    #[rustfmt::skip]
    const WRAPPED: [u8; 60] = [
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c,
        0x12, 0x5a, 0x42, 0x95, 0x83, 0x24, 0x8a, 0xe1, 0x44, 0x11, 0x5b, 0x56,
        0x8c, 0x07, 0x98, 0x43, 0x89, 0x5d, 0xb7, 0x22, 0xcc, 0xd8, 0xdb, 0xb1,
        0x7e, 0x93, 0x69, 0xa3, 0xbd, 0x2d, 0x9d, 0x80, 0x45, 0x2a, 0x94, 0xd9,
        0x9d, 0x86, 0xdc, 0xdb, 0x3e, 0x2a, 0xc6, 0xab, 0x2c, 0x31, 0x78, 0x4d,
    ];
    let place = Place::new();
    let path = place.private("key", format!("{}\n", "0aF1".repeat(16)));
    opens_the_fixture(
        &place,
        &KeyEntry::File { path },
        KeySource::File,
        VERIFIER,
        WRAPPED,
    );
}

/// The same, wrapped by a key that is derived from a passphrase. They protect the parameters of
/// Argon2id, too.
#[test]
fn the_fixture_of_a_passphrase_opens() {
    #[rustfmt::skip]
    const VERIFIER: [u8; 60] = [
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c,
        0x84, 0x66, 0x66, 0xa1, 0x18, 0x7c, 0x8c, 0x3d, 0xe9, 0xe7, 0x3e, 0x06,
        0xb0, 0x49, 0x52, 0x7b, 0xaf, 0xca, 0x9f, 0x3a, 0x58, 0xcc, 0x6d, 0xbc,
        0x28, 0x9a, 0x1c, 0x04, 0x30, 0x2d, 0x88, 0x83, 0xda, 0x92, 0xf2, 0xfd,
        0x80, 0xd8, 0x0d, 0xa1, 0x36, 0x8a, 0x5c, 0x50, 0x49, 0x49, 0xd3, 0xe1,
    ];
    #[rustfmt::skip]
    const WRAPPED: [u8; 60] = [
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c,
        0x90, 0xa5, 0x04, 0x5f, 0x89, 0xb6, 0xc9, 0x63, 0xcb, 0x7f, 0x4c, 0x24,
        0xf2, 0x75, 0x8d, 0xec, 0x67, 0xb5, 0xa4, 0xff, 0xb5, 0xca, 0xee, 0x79,
        0x44, 0x3a, 0xe8, 0x7a, 0x0d, 0x74, 0x1c, 0x17, 0xbf, 0xbf, 0x13, 0x21,
        0x24, 0x05, 0xf2, 0xd2, 0x7a, 0xea, 0x21, 0xc0, 0x86, 0x5a, 0x67, 0x4a,
    ];
    let place = Place::new();
    let entry = passphrase(&place.private("words", "a walrus at noon\n"));
    let source = KeySource::Passphrase {
        salt: SALT,
        memory_kib: 64 << 10,
        passes: 3,
        lanes: 4,
    };
    opens_the_fixture(&place, &entry, source, VERIFIER, WRAPPED);
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
