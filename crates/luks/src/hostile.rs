//! Hostile headers with valid checksums.

use serde_json::{Value, json};
use world::simulated::SimulatedRandom;

use super::binary::Copy;
use super::tests::{carry_out, formatted};
use super::*;

/// The error for a header with this JSON.
fn said(text: String) -> String {
    let random = SimulatedRandom::new(1);
    let (mut disk, mut header, _) = formatted(&random);
    header.binary.json = text;
    let copies = [Copy::First, Copy::Second].map(|copy| header.step(copy, &random));
    carry_out(&mut disk, &copies);
    match Header::read(&disk) {
        Ok(_) => "it is accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn said_of(edit: impl FnOnce(&mut Value)) -> String {
    let (_, header, _) = formatted(&SimulatedRandom::new(1));
    let mut tree = header.tree;
    edit(&mut tree);
    said(tree.to_string())
}

#[test]
fn a_header_with_an_unsupported_property_is_refused() {
    assert_eq!(said_of(|_| {}), "it is accepted");
    let max = u64::MAX.to_string();
    let slot = "/keyslots/0";
    let segment = "/segments/0";
    let digest = "/digests/0";
    for (place, field, value, expected) in [
        // Null ciphers and other ciphers.
        (
            segment,
            "encryption",
            json!("cipher_null-ecb"),
            "encrypts nothing",
        ),
        (
            segment,
            "encryption",
            json!("aes-cbc-essiv:sha256"),
            "is supported",
        ),
        (
            segment,
            "encryption",
            json!("aes-xts-plain64-null"),
            "is supported",
        ),
        (
            "/keyslots/0/area",
            "encryption",
            json!("cipher_null-ecb"),
            "encrypts nothing",
        ),
        (
            "/keyslots/0/area",
            "encryption",
            json!("aes-xts-plain"),
            "is supported",
        ),
        (
            "/keyslots/0/area",
            "key_size",
            json!(32),
            "its key has 32 bytes",
        ),
        (slot, "key_size", json!(32), "its key has 32 bytes"),
        (slot, "key_size", json!(-1), "invalid value"),
        (slot, "type", json!("reencrypt"), "its type is"),
        (segment, "type", json!("linear"), "its type is \"linear\""),
        (
            segment,
            "integrity",
            json!({ "type": "hmac" }),
            "an integrity",
        ),
        // Positions.
        (
            "/keyslots/0/area",
            "offset",
            json!("0"),
            "is not one of 32768-16777216",
        ),
        (
            "/keyslots/0/area",
            "offset",
            json!("16384"),
            "is not one of",
        ),
        (
            "/keyslots/0/area",
            "offset",
            json!("32769"),
            "is not one of",
        ),
        (
            "/keyslots/0/area",
            "offset",
            json!("16777216"),
            "is not one of",
        ),
        ("/keyslots/0/area", "offset", json!(max), "is not one of"),
        (
            "/keyslots/0/area",
            "offset",
            json!("+32768"),
            "is not a number",
        ),
        ("/keyslots/0/area", "offset", json!(32768), "invalid type"),
        ("/keyslots/0/area", "size", json!(max), "is not one of"),
        (
            "/keyslots/0/area",
            "size",
            json!("4096"),
            "its area has 4096 bytes",
        ),
        ("/keyslots/0/area", "size", json!("258047"), "is not one of"),
        (segment, "offset", json!("0"), "it begins at byte 0"),
        (segment, "offset", json!("32768"), "it begins at byte 32768"),
        (segment, "size", json!("1048576"), "the end of the disk"),
        (segment, "size", json!("all"), "is not a size"),
        (segment, "iv_tweak", json!("8"), "its first tweak is 8"),
        (
            segment,
            "sector_size",
            json!(1024),
            "sectors have 1024 bytes",
        ),
        (segment, "sector_size", json!(0), "sectors have 0 bytes"),
        ("/config", "json_size", json!("4096"), "json_size is 4096"),
        (
            "/config",
            "keyslots_size",
            json!("16777216"),
            "before the data",
        ),
        ("/config", "keyslots_size", json!(max), "before the data"),
        ("/config", "keyslots_size", json!("1"), "before the data"),
        (
            "/config",
            "keyslots_size",
            json!("0"),
            "is not one of 32768-32768",
        ),
        // Unknown requirements.
        (
            "/config",
            "requirements",
            json!({ "mandatory": ["online-reencrypt-v2"] }),
            "online-reencrypt-v2",
        ),
        (
            "/config",
            "requirements",
            json!({ "mandatory": [REQUIREMENT] }),
            "of re-encryptions",
        ),
        (
            "/config",
            "requirements",
            json!({ "mandatory": "x" }),
            "invalid type",
        ),
        // Costs.
        (
            "/keyslots/0/kdf",
            "memory",
            json!(1 << 21),
            "2097152 KiB of memory;",
        ),
        (
            "/keyslots/0/kdf",
            "memory",
            json!(4),
            "Argon2 does not allow",
        ),
        (
            "/keyslots/0/kdf",
            "memory",
            json!(1_u64 << 32),
            "invalid value",
        ),
        ("/keyslots/0/kdf", "time", json!(0), "Argon2 does not allow"),
        (
            "/keyslots/0/kdf",
            "time",
            json!(u32::MAX),
            "trying them costs",
        ),
        ("/keyslots/0/kdf", "cpus", json!(0), "0 lanes"),
        ("/keyslots/0/kdf", "cpus", json!(17), "17 lanes"),
        (
            "/keyslots/0/kdf",
            "salt",
            json!("AAAA"),
            "its salt has 3 bytes",
        ),
        ("/keyslots/0/kdf", "salt", json!("?"), "Invalid"),
        (
            "/keyslots/0/kdf",
            "type",
            json!("md5"),
            "unknown variant `md5`",
        ),
        (
            "/keyslots/0",
            "kdf",
            json!({ "type": "pbkdf2", "hash": "sha256", "iterations": u32::MAX, "salt": "AAAAAAAAAAAA" }),
            "4294967295 iterations",
        ),
        (
            "/keyslots/0",
            "kdf",
            json!({ "type": "pbkdf2", "hash": "sha1", "iterations": 1000, "salt": "AAAAAAAAAAAA" }),
            "its hash is \"sha1\"",
        ),
        ("/keyslots/0/af", "stripes", json!(1), "it has 1 stripes"),
        (
            "/keyslots/0/af",
            "stripes",
            json!(u64::MAX),
            "stripes; only 4000",
        ),
        ("/keyslots/0/af", "hash", json!("md5"), "splitter's hash"),
        (digest, "iterations", json!(0), "it has 0 iterations"),
        (digest, "iterations", json!(u32::MAX), "iterations"),
        (digest, "digest", json!(""), "it has 0 bytes"),
        (digest, "type", json!("none"), "its type is \"none\""),
        (digest, "hash", json!("crc32"), "its hash is \"crc32\""),
        // Digests.
        (digest, "segments", json!([]), "it has no digest"),
        (
            digest,
            "segments",
            json!(["0", "1"]),
            "there is no segment 1",
        ),
        (digest, "keyslots", json!(["9"]), "there is no key slot 9"),
        ("/keyslots", "01", json!(null), "invalid type"),
        ("", "segments", json!({}), "there is no segment 0"),
        ("", "keyslots", json!({}), "there is no key slot 0"),
        ("", "digests", json!([]), "invalid type"),
        ("", "tokens", json!(null), "invalid type"),
        ("", "config", json!(7), "invalid type"),
    ] {
        let refused = said_of(|tree| {
            let object = tree.pointer_mut(place).and_then(Value::as_object_mut);
            object
                .expect("it is there")
                .insert(field.to_owned(), value.clone());
        });
        assert!(
            refused.contains(expected),
            "{place}/{field} = {value}: {refused}"
        );
    }
}

#[test]
fn overlapping_or_too_many_parts_are_refused() {
    let slot_at = |tree: &mut Value, id: &str, offset: u64| {
        let mut slot = tree["keyslots"]["0"].clone();
        slot["area"]["offset"] = json!(offset.to_string());
        tree["keyslots"][id] = slot;
    };
    let refused = said_of(|tree| slot_at(tree, "1", (32 << 10) + 4096));
    assert!(
        refused.contains("key slot 0: it overlaps key slot 1"),
        "{refused}"
    );
    let refused = said_of(|tree| slot_at(tree, "01", 1 << 20));
    assert!(refused.contains("its id is not a number"), "{refused}");
    let refused = said_of(|tree| {
        (1..33).for_each(|id| slot_at(tree, &id.to_string(), (id + 1) * (252 << 10)))
    });
    assert!(refused.contains("there are 33"), "{refused}");
    // Two segments of one key; two digests of one segment.
    let refused = said_of(|tree| tree["segments"]["1"] = tree["segments"]["0"].clone());
    assert!(refused.contains("it has no digest"), "{refused}");
    let refused = said_of(|tree| {
        tree["segments"]["1"] = tree["segments"]["0"].clone();
        tree["digests"]["0"]["segments"] = json!(["0", "1"]);
    });
    assert!(
        refused.contains("there are 2; one is supported"),
        "{refused}"
    );
    let refused = said_of(|tree| tree["digests"]["1"] = tree["digests"]["0"].clone());
    assert!(refused.contains("more than one digest"), "{refused}");
    // Each slot is within the limit, and all of them together are not.
    let refused = said_of(|tree| {
        tree["keyslots"]["0"]["kdf"]["memory"] = json!(1 << 20);
        tree["keyslots"]["0"]["kdf"]["time"] = json!(40);
        slot_at(tree, "1", 1 << 20);
    });
    assert!(refused.contains("trying them costs 83886080"), "{refused}");
}

#[test]
fn an_inconsistent_reencryption_is_refused() {
    let random = SimulatedRandom::new(5);
    let (_, mut header, _) = formatted(&random);
    let begun = header.begin_reencryption(1, super::tests::CHEAP, b"secret", &random);
    begun.expect("begun");
    header.advance(1 << 20, &random).expect("it goes on");
    assert_eq!(said(header.tree.to_string()), "it is accepted");
    let max = u64::MAX.to_string();
    for (place, value, expected) in [
        (
            "/config/requirements",
            json!({}),
            "the token of re-encryptions",
        ),
        (
            "/config/requirements",
            json!({ "mandatory": [REQUIREMENT, "x"] }),
            "requires \"x\"",
        ),
        (
            "/tokens/0/type",
            json!("other"),
            "the token of re-encryptions",
        ),
        ("/tokens/0/run", json!(null), "the token of re-encryptions"),
        ("/tokens/0/done", json!(1), "invalid type"),
        ("/tokens/0/run/id", json!("AAAA"), "id has 16 bytes"),
        (
            "/tokens/0/run/digest",
            json!("0"),
            "its key is not the new one",
        ),
        (
            "/tokens/0/run/digest",
            json!("7"),
            "its key is not the new one",
        ),
        (
            "/segments/0/size",
            json!("dynamic"),
            "something comes after its end",
        ),
        ("/segments/0/size", json!("0"), "it has 0 bytes"),
        ("/segments/0/size", json!("1048064"), "it has 1048064 bytes"),
        ("/segments/0/size", json!(max), "bytes"),
        ("/segments/0/size", json!("1052672"), "it begins at byte"),
        (
            "/segments/0/encryption",
            json!("cipher_null-ecb"),
            "encrypts nothing",
        ),
        (
            "/segments/0/sector_size",
            json!(4096),
            "not those of the other one",
        ),
        (
            "/segments/1/encryption",
            json!("cipher_null-ecb"),
            "encrypts nothing",
        ),
        ("/segments/1/offset", json!("16777216"), "it begins at byte"),
        ("/segments/1/size", json!("4096"), "the end of the disk"),
        ("/segments/1/iv_tweak", json!("0"), "its first tweak is 0"),
        (
            "/digests/0/segments",
            json!(["0", "1"]),
            "more than one digest",
        ),
        ("/digests/1/segments", json!(["1"]), "it has no digest"),
        (
            "/keyslots/0/area/offset",
            json!("16519168"),
            "overlaps the journal",
        ),
    ] {
        let mut tree = header.tree.clone();
        *tree.pointer_mut(place).expect("it is there") = value.clone();
        let refused = said(tree.to_string());
        assert!(refused.contains(expected), "{place} = {value}: {refused}");
    }
}

#[test]
fn invalid_json_is_refused() {
    for (text, expected) in [
        (String::new(), "EOF"),
        ("{".to_owned(), "EOF"),
        ("[]".to_owned(), "invalid length"),
        ("{}".to_owned(), "missing field"),
        ("[".repeat(10_000), "recursion limit"),
        ("7".to_owned(), "invalid type"),
    ] {
        let refused = said(text);
        assert!(refused.contains(expected), "{refused}");
    }
}

/// A slot opens with the right passphrase and holds another key.
#[test]
fn a_key_that_does_not_match_the_segments_digest_is_never_returned() {
    let random = SimulatedRandom::new(2);
    let (mut disk, mut header, _) = formatted(&random);
    let (other, _, _) = {
        let random = SimulatedRandom::new(3);
        formatted(&random)
    };
    // The other disk's slot and its key derivation.
    let area = header.layout().slots[0].area.clone();
    let area = area.start as usize..area.end as usize;
    disk[area.clone()].copy_from_slice(&other[area]);
    let (from, _) = Header::read(&other).expect("read");
    let mut tree = header.tree.clone();
    tree["keyslots"]["0"] = from.tree["keyslots"]["0"].clone();
    carry_out(&mut disk, &header.change(tree, &random).expect("it is one"));
    let (header, _) = Header::read(&disk).expect("read");
    let wrong = Err(UnlockError::Wrong { tried: 1 });
    assert_eq!(header.unlock(&disk, b"secret"), wrong);
    // The same with the other disk's digest, which has no segment.
    let mut tree = header.tree.clone();
    tree["digests"]["1"] = from.tree["digests"]["0"].clone();
    tree["digests"]["1"]["segments"] = json!([]);
    tree["digests"]["0"]["keyslots"] = json!([]);
    let mut header = header;
    carry_out(&mut disk, &header.change(tree, &random).expect("it is one"));
    let (header, _) = Header::read(&disk).expect("read");
    let wrong = Err(UnlockError::Wrong { tried: 0 });
    assert_eq!(header.unlock(&disk, b"secret"), wrong);
}

#[test]
fn random_changes_of_a_header_never_panic() {
    let random = SimulatedRandom::new(4);
    let (disk, header, _) = formatted(&random);
    for _ in 0..2000 {
        // Within the text, with a valid checksum.
        let mut text = header.binary.json.clone().into_bytes();
        for _ in 0..=random.below(3) {
            let at = random.index(text.len());
            text[at] = b"0123456789{}[]\",:ex-"[random.index(20)];
        }
        let mut changed = header.clone();
        changed.binary.json = String::from_utf8(text).expect("ASCII");
        let mut disk = disk[..64 << 10].to_vec();
        let copies = [Copy::First, Copy::Second].map(|copy| changed.step(copy, &random));
        carry_out(&mut disk, &copies);
        let _ = Header::read(&disk);
        let at = random.index(disk.len());
        let _ = Header::read(&disk[at..]);
        let _ = Header::read(&disk[..at]);
    }
}
