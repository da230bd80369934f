//! Entry points for fuzzers: pure functions over bytes, which return whatever
//! the bytes are. They panic if an answer breaks what holds of all answers.

use super::marker::Marker;

/// Reads `data` as a unit's marker file.
pub fn fuzz_marker(data: &[u8]) {
    if let Ok(marker) = Marker::parse(data) {
        let again = marker.encode();
        assert_eq!(Marker::parse(again.as_bytes()), Ok(marker));
    }
}
