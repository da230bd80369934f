//! [`ChainState`]: which chain a volume is served through, and why not through the desired one.

use std::time::Duration;

use api::host::{Assignment, ChainKey};

/// After this long, filters that did not begin are tried again: a key may have been added.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The desired chain.
pub(crate) fn desired_chain(assignment: &Assignment) -> Option<ChainKey> {
    assignment.chain.as_ref().map(|chain| chain.key)
}

/// The chain that a volume is served through.
#[derive(Debug, Default)]
pub(crate) struct ChainState {
    /// The chain.
    pub served: Option<ChainKey>,
    /// Why it is not the desired one.
    pub problem: Option<String>,
    /// The filters hide that the volume has grown: begun again, they would show it.
    pub hides_growth: bool,
    failure: Option<Failure>,
}

/// A chain that did not begin.
#[derive(Debug, Clone, Copy)]
struct Failure {
    chain: Option<ChainKey>,
    /// The generation of the assignment.
    generation: u64,
    /// When it is tried again.
    retry_at: Duration,
}

impl ChainState {
    /// The volume is served through this chain.
    pub fn served(chain: Option<ChainKey>) -> Self {
        Self {
            served: chain,
            ..Self::default()
        }
    }

    /// Whether other filters are to be tried at `now`.
    pub fn is_to_change(&mut self, assignment: &Assignment, now: Duration) -> bool {
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

    /// The desired filters did not begin.
    pub fn note_failure(&mut self, assignment: &Assignment, why: String, now: Duration) {
        self.problem = Some(why);
        self.failure = Some(Failure {
            chain: desired_chain(assignment),
            generation: assignment.generation,
            retry_at: now + RETRY_AFTER,
        });
    }
}
