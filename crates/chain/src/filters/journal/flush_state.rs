//! [`FlushState`]: which changes are durable below.

use super::record::LogPosition;

/// The flush below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FlushPhase {
    #[default]
    Idle,
    Pending,
    /// A flush failed. Everything that no flush has covered is written again as soon as no change
    /// is being written.
    Failed,
}

#[derive(Default)]
pub(super) struct FlushState {
    /// Everything before this position is durable below.
    pub flushed: LogPosition,
    pub phase: FlushPhase,
    /// Whether the disk below has flushes. Without them a change is durable once it is written.
    pub is_supported: bool,
}
