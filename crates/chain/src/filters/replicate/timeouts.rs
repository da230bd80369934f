//! How long members, connections and the first read of the disk may take.

use std::time::Duration;

/// The pause before an excluded member is tried again: the first one, and the longest. Each is
/// twice as long as the one before.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(500);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long a connection may take. A replica that is not connected by then is excluded.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long the disk is read before the filter is used without the result.
pub(super) const READ_FIRST_FOR: Duration = Duration::from_secs(5);
