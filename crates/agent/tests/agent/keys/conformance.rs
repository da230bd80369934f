//! The guarantees of every wrapping key.

use std::sync::Arc;

use agent::keys::{KeyEntry, KeyParameters, KeyProvider, OpenKeyError, WrappingKeys, rewrap};
use base::{KeyId, Lineage};
use catalog::WrappedKey;
use volume::seal::{DataKey, KeyError, UnwrapKeys, Unwrapped};

const OURS: Lineage = Lineage::from_u128(0x5eed);
const OTHER: Lineage = Lineage::from_u128(0xbad);

/// The data key in `wrapped`, or `None` for the mark of an unencrypted volume.
pub fn opened(key: &dyn UnwrapKeys, lineage: Lineage, wrapped: &WrappedKey) -> Option<[u8; 32]> {
    match key.unwrap_key(lineage, wrapped).expect("it opens") {
        Unwrapped::Key(key) => Some(*key.bytes()),
        Unwrapped::None => None,
    }
}

fn is_refused(key: &dyn UnwrapKeys, lineage: Lineage, wrapped: &[u8]) -> bool {
    let wrapped = WrappedKey(wrapped.to_vec());
    match key.unwrap_key(lineage, &wrapped) {
        Err(KeyError::Unwrap { lineage: named }) => named == lineage,
        Err(error) => panic!("not refused, but {}", base::with_causes(&error)),
        Ok(_) => false,
    }
}

/// Checks all guarantees of `ours`; `theirs` is another key of the same kind. Both exist.
pub fn conforms(keys: &WrappingKeys, ours: &KeyEntry, theirs: &KeyEntry) {
    let (our_id, their_id) = (KeyId::from_u128(1), KeyId::from_u128(2));
    let our_parameters = keys.new_parameters(ours).expect("parameters");
    let their_parameters = keys.new_parameters(theirs).expect("parameters");
    let stored = serde_json::to_string(&our_parameters).expect("JSON");
    let read: KeyParameters = serde_json::from_str(&stored).expect("JSON");
    assert_eq!(read, our_parameters);

    // The verifier detects a wrong key.
    let wrong = KeyParameters {
        source: our_parameters.source.clone(),
        verifier: their_parameters.verifier.clone(),
    };
    let refused = keys.open(our_id, ours, &wrong).expect_err("another's");
    assert!(matches!(refused, OpenKeyError::Wrong(_)), "{refused:?}");
    let refused = keys.open(our_id, theirs, &read).expect_err("another's");
    assert!(matches!(refused, OpenKeyError::Wrong(_)), "{refused:?}");
    assert!(keys.get(our_id).is_none());

    let our_key = keys.open(our_id, ours, &read).expect("ours");
    let their_key = keys
        .open(their_id, theirs, &their_parameters)
        .expect("theirs");
    assert!(Arc::ptr_eq(&our_key, &keys.get(our_id).expect("open")));
    wraps(&*our_key);
    rejects_forgeries(&*our_key, &*their_key);
    rewraps(&*our_key, &*their_key);
}

fn wraps(key: &dyn KeyProvider) {
    let data_key = DataKey::from_bytes([0x42; 32]);
    let wrapped = key.wrap(OURS, &data_key).expect("wrapped");
    assert_eq!(opened(key, OURS, &wrapped), Some([0x42; 32]));
    assert!(!wrapped.0.windows(8).any(|bytes| bytes == [0x42; 8]));
    let again = key.wrap(OURS, &data_key).expect("wrapped");
    assert_ne!(again, wrapped, "a nonce was reused");
    let none = key.wrap_none(OURS).expect("wrapped");
    assert_eq!(opened(key, OURS, &none), None);
    // A data key of zeroes is a key like others.
    let zeroes = DataKey::from_bytes([0; 32]);
    let wrapped = key.wrap(OURS, &zeroes).expect("wrapped");
    assert_eq!(opened(key, OURS, &wrapped), Some([0; 32]));
}

fn rejects_forgeries(key: &dyn KeyProvider, theirs: &dyn KeyProvider) {
    let data_key = DataKey::from_bytes([0x42; 32]);
    let a_key = key.wrap(OURS, &data_key).expect("wrapped").0;
    let none = key.wrap_none(OURS).expect("wrapped").0;
    for wrapped in [&a_key, &none] {
        assert!(is_refused(key, OTHER, wrapped), "another lineage's");
        assert!(is_refused(theirs, OURS, wrapped), "another key's");
        for place in 0..wrapped.len() {
            for flip in [1, 0x80] {
                let mut flipped = wrapped.clone();
                flipped[place] ^= flip;
                assert!(is_refused(key, OURS, &flipped), "byte {place} ^ {flip}");
            }
        }
        for length in 0..wrapped.len() {
            assert!(is_refused(key, OURS, &wrapped[..length]), "{length} bytes");
        }
        assert!(is_refused(key, OURS, &[wrapped, [0].as_slice()].concat()));
        assert!(is_refused(key, OURS, &wrapped.repeat(100)));
    }
    // Neither can be assembled from the other: the beginning and the end of a key with the length
    // of the mark, and both joined.
    let ends = [&a_key[..12], &a_key[a_key.len() - (none.len() - 12)..]].concat();
    let pieced = [&none[..none.len() / 2], &a_key[none.len() / 2..]].concat();
    for forged in [&a_key[..none.len()], &ends, &pieced] {
        assert!(is_refused(key, OURS, forged));
    }
    for forged in ["", "unsealed", "vault:v1:", "vault:v1:dW5zZWFsZWQ="] {
        assert!(is_refused(key, OURS, forged.as_bytes()), "{forged}");
    }
}

fn rewraps(from: &dyn KeyProvider, to: &dyn KeyProvider) {
    let data_key = DataKey::from_bytes([0x42; 32]);
    let a_key = from.wrap(OURS, &data_key).expect("wrapped");
    let none = from.wrap_none(OURS).expect("wrapped");
    let rewrapped = rewrap(OURS, &a_key, from, to).expect("rewrapped");
    assert_eq!(opened(to, OURS, &rewrapped), Some([0x42; 32]));
    assert!(is_refused(from, OURS, &rewrapped.0));
    let rewrapped = rewrap(OURS, &none, from, to).expect("rewrapped");
    assert_eq!(opened(to, OURS, &rewrapped), None);
    for (lineage, wrapped, from) in [(OTHER, &a_key, from), (OURS, &a_key, to)] {
        let refused = rewrap(lineage, wrapped, from, to).expect_err("not its own");
        assert!(matches!(refused, KeyError::Unwrap { .. }), "{refused:?}");
    }
}
