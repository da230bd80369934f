//! age identities. The fixtures were created by age 1.1.1 (`age-keygen`, `age -p`, `age -p -a`,
//! `age -r`), all from the same identity.

use std::path::Path;

use agent::keys::{KeyEntry, KeySource, OpenKeyError};
use base::KeyId;

use super::conformance::conforms;
use super::{Place, SALT, opens_the_fixture, text};

const IDENTITY: &str = include_str!("fixtures/identity.txt");
const ENCRYPTED: &[u8] = include_bytes!("fixtures/identity.age");
const ARMORED: &str = include_str!("fixtures/identity.age.txt");
const TO_RECIPIENT: &[u8] = include_bytes!("fixtures/to-recipient.age");
const PASSPHRASE: &str = "a walrus at noon\n";

/// Another identity.
const OTHER: &str = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";

fn entry(path: &Path, passphrase: Option<&Path>) -> KeyEntry {
    KeyEntry::Age {
        path: path.to_owned(),
        passphrase_path: passphrase.map(Path::to_owned),
    }
}

#[test]
fn an_age_identity_is_a_wrapping_key() {
    let place = Place::new();
    let ours = entry(&place.private("ours", IDENTITY), None);
    let theirs = entry(&place.private("theirs", OTHER), None);
    conforms(&place.keys, &ours, &theirs);
}

/// A verifier and a data key that a key derived from the identity has wrapped, byte by byte. They
/// protect the derivation. The bytes were computed without Scree.
#[test]
fn the_fixture_of_an_identity_opens() {
    #[rustfmt::skip]
    const VERIFIER: [u8; 60] = [
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c,
        0x63, 0x73, 0xde, 0xa6, 0x7b, 0x42, 0x93, 0xb6, 0xd6, 0x90, 0xd9, 0xad,
        0xd6, 0xac, 0xb7, 0xa2, 0x69, 0x98, 0xec, 0x64, 0x0d, 0x3c, 0x48, 0x6a,
        0x0e, 0xc9, 0x62, 0x94, 0x47, 0x2d, 0x25, 0x64, 0xe3, 0x09, 0xd1, 0x9e,
        0xa5, 0xec, 0xa7, 0x2e, 0xa3, 0xd7, 0xfa, 0x9e, 0x0f, 0xe9, 0x52, 0x04,
    ];
    #[rustfmt::skip]
    const WRAPPED: [u8; 60] = [
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c,
        0x92, 0x65, 0x36, 0xa7, 0xc5, 0xc4, 0xca, 0xeb, 0x23, 0xa4, 0xbb, 0x67,
        0xe1, 0x00, 0x62, 0x4d, 0x2b, 0xfb, 0x22, 0xbb, 0xd0, 0x92, 0xdb, 0x3e,
        0x73, 0xb6, 0x41, 0x6d, 0xcb, 0x84, 0xaa, 0x16, 0xed, 0x27, 0x93, 0xd2,
        0xff, 0x9b, 0x25, 0x48, 0x74, 0x07, 0xca, 0xb8, 0xde, 0xe9, 0x87, 0xde,
    ];
    let place = Place::new();
    let ours = entry(&place.private("ours", IDENTITY), None);
    let source = KeySource::Age { salt: SALT };
    opens_the_fixture(&place, &ours, source, VERIFIER, WRAPPED);
}

#[test]
fn an_identity_is_the_same_key_whether_encrypted_or_not() {
    let place = Place::new();
    let passphrase = place.private("words", PASSPHRASE);
    let plain = entry(&place.private("plain", IDENTITY), None);
    let parameters = place.keys.new_parameters(&plain).expect("parameters");
    let id = KeyId::from_u128(1);
    for (name, content) in [("binary", ENCRYPTED), ("armored", ARMORED.as_bytes())] {
        let encrypted = entry(&place.private(name, content), Some(&passphrase));
        let opened = place.keys.open(id, &encrypted, &parameters);
        assert!(opened.is_ok(), "{name}: {opened:?}");
    }
    let mut altered = parameters;
    if let KeySource::Age { salt } = &mut altered.source {
        salt[15] ^= 1;
    }
    let refused = place.keys.open(id, &plain, &altered);
    assert!(matches!(refused, Err(OpenKeyError::Wrong(_))));
}

#[test]
fn a_file_that_is_no_identity_file_is_refused() {
    let place = Place::new();
    let with = |content: &str| place.refusal(&entry(&place.private("id", content), None));
    let (_, identity) = IDENTITY.split_at(IDENTITY.find("AGE-SECRET").expect("one"));
    assert!(with("").contains("holds 0 identities"));
    assert!(with("# nothing\n").contains("holds 0 identities"));
    assert!(with(&format!("{identity}{OTHER}\n")).contains("holds 2 identities"));
    for other in [
        "AGE-PLUGIN-YUBIKEY-1QQPSXQCRQ",
        "AGE-SECRET-KEY-PQ-1QQPSXQCRQ",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "age1yre4xcwwl0n5e2469jptvthr45fz32wenhu4lk29xsyz86d5ae4q0trmqu",
    ] {
        assert!(with(other).contains("age-keygen"), "{other}");
    }
    let identity = identity.trim();
    for place in "AGE-SECRET-KEY-1".len()..identity.len() {
        let mut misspelled = identity.as_bytes().to_vec();
        misspelled[place] = if misspelled[place] == b'Q' {
            b'P'
        } else {
            b'Q'
        };
        let misspelled = String::from_utf8(misspelled).expect("text");
        assert!(with(&misspelled).contains("typing error"), "{misspelled}");
    }
    // A valid checksum over 31 bytes.
    let short = "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ6J6TAE";
    assert!(with(short).contains("typing error"));
}

#[test]
fn an_encrypted_identity_file_reports_what_is_wrong() {
    let place = Place::new();
    let passphrase = place.private("words", PASSPHRASE);
    let with = |content: &[u8], words: Option<&Path>| {
        let path = place.private("id", content);
        place
            .keys
            .new_parameters(&entry(&path, words))
            .map_err(|error| text(&error))
    };
    let refusal = |content: &[u8], words| with(content, words).expect_err("refused");
    assert!(refusal(ENCRYPTED, None).contains("passphrase_path"));
    assert!(refusal(IDENTITY.as_bytes(), Some(&passphrase)).contains("is not encrypted"));
    assert!(refusal(TO_RECIPIENT, Some(&passphrase)).contains("to a recipient"));
    let wrong = place.private("wrong", "a walrus at night\n");
    assert!(refusal(ENCRYPTED, Some(&wrong)).contains("the passphrase is wrong"));

    let at = ENCRYPTED.windows(4).position(|bytes| bytes == b" 18\n");
    let at = at.expect("a work factor") + 1;
    let factor = |text: &str| [&ENCRYPTED[..at], text.as_bytes(), &ENCRYPTED[at + 2..]].concat();
    assert!(refusal(&factor("40"), Some(&passphrase)).contains("work factor 40"));
    for invalid in ["", "-1", "999", "64 18"] {
        let refused = refusal(&factor(invalid), Some(&passphrase));
        assert!(
            refused.contains("work factor") || refused.contains("recipient"),
            "{refused}"
        );
    }

    // Damage before the payload costs one scrypt, so only a few positions are tried.
    for place in [0, 30, 60, 110, 200, ENCRYPTED.len() - 1] {
        let mut flipped = ENCRYPTED.to_vec();
        flipped[place] ^= 1;
        assert!(with(&flipped, Some(&passphrase)).is_err(), "byte {place}");
    }
    for length in (0..ENCRYPTED.len()).step_by(61) {
        assert!(
            with(&ENCRYPTED[..length], Some(&passphrase)).is_err(),
            "{length} bytes"
        );
    }
    let cut = ARMORED.replace("-----END AGE ENCRYPTED FILE-----", "");
    assert!(refusal(cut.as_bytes(), Some(&passphrase)).contains("armor"));
}
