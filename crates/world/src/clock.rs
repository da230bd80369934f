//! [`Clock`]: the time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time of the wall clock, in milliseconds since 1970-01-01 UTC. The wall clock may jump, so only
/// what users see, and retention, may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub i64);

/// The clocks of a machine. Intervals come from `monotonic` and dates from `wall`; the two are
/// never mixed.
pub trait Clock: Send + Sync {
    /// The time since a fixed moment. It never goes back.
    fn monotonic(&self) -> Duration;

    /// The current date and time.
    fn wall(&self) -> Millis;
}
