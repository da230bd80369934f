//! The anti-forensic splitter of LUKS (`luks1`, SHA-256): it splits a key into many stripes, all of
//! which are needed to restore it. So a disk that keeps some old sectors of an overwritten area
//! keeps nothing of the key.
//!
//! ```text
//!  s0, s1, … random           d = H(d ^ s0), H(d ^ s1), …           the last is  d ^ key
//! ```

use sha2::{Digest, Sha256};
use world::Random;
use zeroize::Zeroizing;

use super::xts::{KEY_BYTES, KeyBytes};

/// The number of stripes of a LUKS2 key slot.
pub const STRIPES: usize = 4000;

/// The length of a split key, in bytes.
pub const SPLIT_BYTES: usize = STRIPES * KEY_BYTES;

/// The length of a SHA-256 hash, in bytes.
const HASH_BYTES: usize = 32;

fn mix(into: &mut [u8], stripe: &[u8]) {
    into.iter_mut().zip(stripe).for_each(|(a, b)| *a ^= b);
}

/// Replaces each part of the key by the hash of its number and itself.
fn diffuse(key: &mut [u8; KEY_BYTES]) {
    for (number, part) in (0_u32..).zip(key.chunks_mut(HASH_BYTES)) {
        let hash = Sha256::new()
            .chain_update(number.to_be_bytes())
            .chain_update(&*part)
            .finalize();
        part.copy_from_slice(&hash);
    }
}

/// The concatenated stripes of a key.
#[must_use]
pub fn split(key: &KeyBytes, random: &dyn Random) -> Zeroizing<Vec<u8>> {
    let mut stripes = Zeroizing::new(vec![0; SPLIT_BYTES]);
    let (fresh, last) = stripes.split_at_mut(SPLIT_BYTES - KEY_BYTES);
    random.fill(fresh);
    let mut mixed = Zeroizing::new([0; KEY_BYTES]);
    for stripe in fresh.chunks(KEY_BYTES) {
        mix(&mut *mixed, stripe);
        diffuse(&mut mixed);
    }
    last.copy_from_slice(&**key);
    mix(last, &*mixed);
    stripes
}

/// The key of [`SPLIT_BYTES`] bytes of stripes.
#[must_use]
pub fn merge(stripes: &[u8]) -> KeyBytes {
    assert_eq!(stripes.len(), SPLIT_BYTES, "all stripes are there");
    let (others, last) = stripes.split_at(SPLIT_BYTES - KEY_BYTES);
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    for stripe in others.chunks(KEY_BYTES) {
        mix(&mut *key, stripe);
        diffuse(&mut key);
    }
    mix(&mut *key, last);
    key
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    #[test]
    fn every_stripe_is_needed_for_the_key() {
        let random = SimulatedRandom::new(7);
        let key = Zeroizing::new([0xa5; KEY_BYTES]);
        let mut stripes = split(&key, &random);
        assert_eq!(merge(&stripes), key);
        for bit in [0, SPLIT_BYTES * 4, SPLIT_BYTES * 8 - 1] {
            stripes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(merge(&stripes), key, "bit {bit}");
            stripes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
