//! Time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment on the wall clock, in milliseconds since 1970-01-01 UTC. It may
/// jump; nothing but what people see, and retention, may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub i64);

/// Tells time. Two kinds, never mixed: intervals come from `monotonic`, dates
/// from `wall`.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;

    /// The date.
    fn wall(&self) -> Millis;
}
