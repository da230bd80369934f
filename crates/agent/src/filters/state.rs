//! [`ChainState`]: the chain through which a volume is served, and why it is not the desired one.

use std::time::Duration;

use api::host::{Assignment, ChainKey};

/// Pause before filters that did not start are tried again: a key may have been added.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The desired chain.
pub(crate) fn desired_chain(assignment: &Assignment) -> Option<ChainKey> {
    assignment.chain.as_ref().map(|chain| chain.key)
}

/// The chain through which a volume is served.
#[derive(Debug, Default)]
pub(crate) struct ChainState {
    /// The chain.
    pub served: Option<ChainKey>,
    /// Why the served chain is not the desired one.
    pub problem: Option<String>,
    /// The filters hide that the volume has grown; a restart of them would show it.
    pub hides_growth: bool,
    failure: Option<Failure>,
}

/// A chain that did not start.
#[derive(Debug, Clone, Copy)]
struct Failure {
    chain: Option<ChainKey>,
    /// Generation of the assignment.
    generation: u64,
    /// When to retry, by the monotonic clock.
    retry_at: Duration,
}

impl ChainState {
    /// The state of a volume that is served through `chain`.
    pub fn served(chain: Option<ChainKey>) -> Self {
        Self {
            served: chain,
            ..Self::default()
        }
    }

    /// Whether to reconfigure the chain at `now`.
    pub fn is_change_due(&mut self, assignment: &Assignment, now: Duration) -> bool {
        let desired = desired_chain(assignment);
        if self.served == desired && !self.hides_growth {
            // The chain that failed is not desired any more.
            (self.problem, self.failure) = (None, None);
            return false;
        }
        let is_waiting = self.failure.is_some_and(|failure| {
            failure.chain == desired
                && failure.generation == assignment.generation
                && now < failure.retry_at
        });
        !is_waiting
    }

    /// Notes that the desired filters did not start.
    pub fn note_failure(&mut self, assignment: &Assignment, why: String, now: Duration) {
        self.problem = Some(why);
        self.failure = Some(Failure {
            chain: desired_chain(assignment),
            generation: assignment.generation,
            retry_at: now + RETRY_AFTER,
        });
    }
}
