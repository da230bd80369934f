//! [`LeaseCheck`]: whether changes may be acknowledged, by the lease on the volume.

use std::time::Duration;

use super::policy::ChainContext;

/// The interval at which an expired lease is checked for a renewal.
const LEASE_RETRY: Duration = Duration::from_millis(20);

/// The state of the lease, which is checked at most once a turn.
#[derive(Default)]
pub(super) struct LeaseCheck {
    /// The result of this turn's check.
    holds: Option<bool>,
    /// A request waits because the lease has expired.
    has_expired: bool,
}

impl LeaseCheck {
    /// Whether the lease holds. Without a chain there is no lease, and nothing expires.
    pub fn holds(&mut self, chain: Option<&ChainContext>) -> bool {
        let holds = self
            .holds
            .unwrap_or_else(|| chain.is_none_or(ChainContext::lease_holds));
        self.holds = Some(holds);
        self.has_expired |= !holds;
        holds
    }

    /// A poll begins: expired leases are checked again.
    pub fn begin_poll(&mut self) {
        *self = Self::default();
    }

    /// A turn has ended.
    pub fn end_turn(&mut self) {
        self.holds = None;
    }

    pub fn timer(&self) -> Option<Duration> {
        self.has_expired.then_some(LEASE_RETRY)
    }
}
