//! Times as text, for people and for the API.

use world::Millis;

/// A time in RFC 3339; a time beyond year 9999 in milliseconds.
#[must_use]
pub fn rfc3339(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map_or_else(|_| format!("{} ms", time.0), |time| time.to_string())
}
