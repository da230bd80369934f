//! Damaged bytes, for tests of formats.

use std::fmt::Debug;

use base::checksum::crc32c;

/// Checks that the reader of a format detects each flipped bit of `bytes`.
///
/// # Panics
/// If `parse` accepts `bytes` with one flipped bit, or refuses them as they are.
pub fn assert_flipped_bits_are_detected<T, E: Debug>(
    bytes: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, E>,
) {
    if let Err(error) = parse(bytes) {
        panic!("the undamaged bytes were refused: {error:?}");
    }
    let mut damaged = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&damaged).is_err(), "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A header with version 2 at offset 8, and the right CRC-32C in its last 4 bytes.
///
/// # Panics
/// If the header has less than 14 bytes.
#[must_use]
pub fn of_version_2(header: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes[8..10].copy_from_slice(&2_u16.to_le_bytes());
    let (checked, crc) = bytes
        .split_last_chunk_mut()
        .expect("a header with a checksum");
    *crc = crc32c(checked).to_le_bytes();
    bytes
}
