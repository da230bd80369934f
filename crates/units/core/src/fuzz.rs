//! Entry points for fuzzers: pure functions over bytes. They return for any bytes, and panic if a
//! result violates an invariant.

use super::marker::Marker;

/// Parses `data` as a unit's marker.
pub fn fuzz_marker(data: &[u8]) {
    if let Ok(marker) = Marker::parse(data) {
        let text = marker.encode();
        let again = Marker::parse(text.as_bytes());
        assert_eq!(again.as_ref().map(Marker::encode), Ok(text));
        assert_eq!(again, Ok(marker));
    }
}
