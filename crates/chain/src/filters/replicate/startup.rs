//! [`Startup`]: the phases of the filter's start.
//!
//! ```text
//!  new ─▶ loading ─▶ connecting ─▶ reading (with partial replicas) ─▶ ready
//!            └───────────┴─▶ failed: the source is unknown or unavailable
//! ```

use std::time::Duration;

/// The phase of the filter's start.
pub(super) enum Startup {
    New,
    /// The file is read, since this time.
    Loading {
        since: Duration,
    },
    /// Replicas are connected to, since the file was requested.
    Connecting {
        since: Duration,
    },
    /// The disk is read, to know what partial replicas should have.
    Reading {
        since: Duration,
    },
    Ready,
    /// The filter cannot start, for this reason.
    Failed(String),
}
