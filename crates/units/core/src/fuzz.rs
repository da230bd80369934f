//! Entry points for fuzzers: pure functions over bytes, which return whatever
//! the bytes are. They panic if an answer breaks what holds of all answers.

use super::marker::Marker;

/// Reads `data` as a unit's marker file.
pub fn fuzz_marker(data: &[u8]) {
    if let Ok(marker) = Marker::parse(data) {
        let text = marker.encode();
        let again = Marker::parse(text.as_bytes());
        assert_eq!(again.as_ref().map(Marker::encode), Ok(text));
        assert_eq!(again, Ok(marker));
    }
}
