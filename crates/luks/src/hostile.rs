//! Hostile headers with valid checksums.

use serde_json::{Value, json};
use world::simulated::SimulatedRandom;

use super::binary::Copy;
use super::tests::{carry_out, formatted};
use super::*;

/// The error for a header with this JSON.
fn error_of(text: String) -> String {
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

fn error_after(edit: impl FnOnce(&mut Value)) -> String {
    let (_, header, _) = formatted(&SimulatedRandom::new(1));
    let mut tree = header.tree;
    edit(&mut tree);
    error_of(tree.to_string())
}

/// A header with a changed field, which is refused.
struct Case {
    line: &'static str,
    /// The changed field, as a JSON pointer.
    pointer: &'static str,
    value: Value,
    /// A part of the error.
    expected: &'static str,
}

fn cases(lines: &'static str) -> impl Iterator<Item = Case> {
    let lines = lines.lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let [pointer, value, expected] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("a case has three parts: {line}");
        };
        Case {
            line,
            pointer,
            value: serde_json::from_str(value).expect("JSON"),
            expected,
        }
    })
}

/// Headers that are refused. Each line has the changed field as a JSON pointer, its value, and a
/// part of the error.
const UNSUPPORTED: &str = r##"
# Null ciphers and other ciphers
/segments/0/encryption | "cipher_null-ecb" | encrypts nothing
/segments/0/encryption | "aes-cbc-essiv:sha256" | is supported
/segments/0/encryption | "aes-xts-plain64-null" | is supported
/keyslots/0/area/encryption | "cipher_null-ecb" | encrypts nothing
/keyslots/0/area/encryption | "aes-xts-plain" | is supported
/keyslots/0/area/key_size | 32 | its key has 32 bytes
/keyslots/0/key_size | 32 | its key has 32 bytes
/keyslots/0/key_size | -1 | invalid value
/keyslots/0/type | "reencrypt" | its type is
/segments/0/type | "linear" | its type is "linear"
/segments/0/integrity | {"type": "hmac"} | an integrity
# Positions
/keyslots/0/area/offset | "0" | is not one of 32768-16777216
/keyslots/0/area/offset | "16384" | is not one of
/keyslots/0/area/offset | "32769" | is not one of
/keyslots/0/area/offset | "16777216" | is not one of
/keyslots/0/area/offset | "18446744073709551615" | is not one of
/keyslots/0/area/offset | "+32768" | is not a number
/keyslots/0/area/offset | 32768 | invalid type
/keyslots/0/area/size | "18446744073709551615" | is not one of
/keyslots/0/area/size | "4096" | its area has 4096 bytes
/keyslots/0/area/size | "258047" | is not one of
/segments/0/offset | "0" | it begins at byte 0
/segments/0/offset | "32768" | it begins at byte 32768
/segments/0/size | "1048576" | the end of the disk
/segments/0/size | "all" | is not a size
/segments/0/iv_tweak | "8" | its first tweak is 8
/segments/0/sector_size | 1024 | sectors have 1024 bytes
/segments/0/sector_size | 0 | sectors have 0 bytes
/config/json_size | "4096" | json_size is 4096
/config/keyslots_size | "16777216" | before the data
/config/keyslots_size | "18446744073709551615" | before the data
/config/keyslots_size | "1" | before the data
/config/keyslots_size | "0" | is not one of 32768-32768
# Unknown requirements
/config/requirements | {"mandatory": ["online-reencrypt-v2"]} | online-reencrypt-v2
/config/requirements | {"mandatory": ["scree-reencrypt-v1"]} | of re-encryptions
/config/requirements | {"mandatory": "x"} | invalid type
# Costs
/keyslots/0/kdf/memory | 2097152 | 2097152 KiB of memory;
/keyslots/0/kdf/memory | 4 | Argon2 does not allow
/keyslots/0/kdf/memory | 4294967296 | invalid value
/keyslots/0/kdf/time | 0 | Argon2 does not allow
/keyslots/0/kdf/time | 4294967295 | trying them costs
/keyslots/0/kdf/cpus | 0 | 0 lanes
/keyslots/0/kdf/cpus | 17 | 17 lanes
/keyslots/0/kdf/salt | "AAAA" | its salt has 3 bytes
/keyslots/0/kdf/salt | "?" | Invalid
/keyslots/0/kdf/type | "md5" | unknown variant `md5`
/keyslots/0/kdf | {"type": "pbkdf2", "hash": "sha256", "iterations": 4294967295, "salt": "AAAAAAAAAAAA"} | 4294967295 iterations
/keyslots/0/kdf | {"type": "pbkdf2", "hash": "sha1", "iterations": 1000, "salt": "AAAAAAAAAAAA"} | its hash is "sha1"
/keyslots/0/af/stripes | 1 | it has 1 stripes
/keyslots/0/af/stripes | 18446744073709551615 | stripes; only 4000
/keyslots/0/af/hash | "md5" | splitter's hash
/digests/0/iterations | 0 | it has 0 iterations
/digests/0/iterations | 4294967295 | iterations
/digests/0/digest | "" | it has 0 bytes
/digests/0/type | "none" | its type is "none"
/digests/0/hash | "crc32" | its hash is "crc32"
# Digests
/digests/0/segments | [] | it has no digest
/digests/0/segments | ["0", "1"] | there is no segment 1
/digests/0/keyslots | ["9"] | there is no key slot 9
/keyslots/01 | null | invalid type
/segments | {} | there is no segment 0
/keyslots | {} | there is no key slot 0
/digests | [] | invalid type
/tokens | null | invalid type
/config | 7 | invalid type
"##;

#[test]
fn a_header_with_an_unsupported_property_is_refused() {
    assert_eq!(error_after(|_| {}), "it is accepted");
    for case in cases(UNSUPPORTED) {
        let (place, field) = case.pointer.rsplit_once('/').expect("a pointer");
        let refused = error_after(|tree| {
            let object = tree.pointer_mut(place).and_then(Value::as_object_mut);
            object
                .expect("the field exists")
                .insert(field.to_owned(), case.value);
        });
        assert!(refused.contains(case.expected), "{}: {refused}", case.line);
    }
}

#[test]
fn overlapping_or_too_many_parts_are_refused() {
    let slot_at = |tree: &mut Value, id: &str, offset: u64| {
        let mut slot = tree["keyslots"]["0"].clone();
        slot["area"]["offset"] = json!(offset.to_string());
        tree["keyslots"][id] = slot;
    };
    let refused = error_after(|tree| slot_at(tree, "1", (32 << 10) + 4096));
    assert!(
        refused.contains("key slot 0: it overlaps key slot 1"),
        "{refused}"
    );
    let refused = error_after(|tree| slot_at(tree, "01", 1 << 20));
    assert!(refused.contains("its id is not a number"), "{refused}");
    let refused = error_after(|tree| {
        (1..33).for_each(|id| slot_at(tree, &id.to_string(), (id + 1) * (252 << 10)))
    });
    assert!(refused.contains("there are 33"), "{refused}");
    // Two segments of one key; two digests of one segment.
    let refused = error_after(|tree| tree["segments"]["1"] = tree["segments"]["0"].clone());
    assert!(refused.contains("it has no digest"), "{refused}");
    let refused = error_after(|tree| {
        tree["segments"]["1"] = tree["segments"]["0"].clone();
        tree["digests"]["0"]["segments"] = json!(["0", "1"]);
    });
    assert!(
        refused.contains("there are 2; one is supported"),
        "{refused}"
    );
    let refused = error_after(|tree| tree["digests"]["1"] = tree["digests"]["0"].clone());
    assert!(refused.contains("more than one digest"), "{refused}");
    // Each slot is within the limit, and all of them together are not.
    let refused = error_after(|tree| {
        tree["keyslots"]["0"]["kdf"]["memory"] = json!(1 << 20);
        tree["keyslots"]["0"]["kdf"]["time"] = json!(40);
        slot_at(tree, "1", 1 << 20);
    });
    assert!(refused.contains("trying them costs 83886080"), "{refused}");
}

/// Headers of a re-encryption that are refused.
const INCONSISTENT: &str = r##"
/config/requirements | {} | the token of re-encryptions
/config/requirements | {"mandatory": ["scree-reencrypt-v1", "x"]} | requires "x"
/tokens/0/type | "other" | the token of re-encryptions
/tokens/0/run | null | the token of re-encryptions
/tokens/0/done | 1 | invalid type
/tokens/0/run/id | "AAAA" | id has 16 bytes
/tokens/0/run/digest | "0" | its key is not the new one
/tokens/0/run/digest | "7" | its key is not the new one
/segments/0/size | "dynamic" | something comes after its end
/segments/0/size | "0" | it has 0 bytes
/segments/0/size | "1048064" | it has 1048064 bytes
/segments/0/size | "18446744073709551615" | bytes
/segments/0/size | "1052672" | it begins at byte
/segments/0/encryption | "cipher_null-ecb" | encrypts nothing
/segments/0/sector_size | 4096 | not those of the other one
/segments/1/encryption | "cipher_null-ecb" | encrypts nothing
/segments/1/offset | "16777216" | it begins at byte
/segments/1/size | "4096" | the end of the disk
/segments/1/iv_tweak | "0" | its first tweak is 0
/digests/0/segments | ["0", "1"] | more than one digest
/digests/1/segments | ["1"] | it has no digest
/keyslots/0/area/offset | "16519168" | overlaps the journal
"##;

#[test]
fn an_inconsistent_reencryption_is_refused() {
    let random = SimulatedRandom::new(5);
    let (_, mut header, _) = formatted(&random);
    let begun = header.begin_reencryption(1, super::tests::CHEAP, b"secret", &random);
    begun.expect("begun");
    header.advance(1 << 20, &random).expect("advanced");
    assert_eq!(error_of(header.tree.to_string()), "it is accepted");
    for case in cases(INCONSISTENT) {
        let mut tree = header.tree.clone();
        *tree.pointer_mut(case.pointer).expect("the field exists") = case.value;
        let refused = error_of(tree.to_string());
        assert!(refused.contains(case.expected), "{}: {refused}", case.line);
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
        let refused = error_of(text);
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
    carry_out(
        &mut disk,
        &header.change(tree, &random).expect("a valid header"),
    );
    let (header, _) = Header::read(&disk).expect("read");
    let wrong = Err(UnlockError::Wrong { tried: 1 });
    assert_eq!(header.unlock(&disk, b"secret"), wrong);
    // The same with the other disk's digest, which is of no segment.
    let mut tree = header.tree.clone();
    tree["digests"]["1"] = from.tree["digests"]["0"].clone();
    tree["digests"]["1"]["segments"] = json!([]);
    tree["digests"]["0"]["keyslots"] = json!([]);
    let mut header = header;
    carry_out(
        &mut disk,
        &header.change(tree, &random).expect("a valid header"),
    );
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
