//! The boxes that a volume is served through: put in place before anybody is let in, and
//! exchanged while it is served, as its owner wants them (docs/chains.md).

use std::sync::Arc;
use std::time::Duration;

use api::host::{Assignment, ChainKey, WantedChain};
use chain::{Exchange, ExchangeError, Policy, PolicyError, SizeRule};
use frontend::nbd::ExportGone;
use tokio::sync::oneshot;

use crate::agent::{Agent, TaskEnded, blocking};
use crate::attached::Attached;

/// Why a volume is not served through the boxes that are wanted.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The policy is none to this program.
    #[error("this host does not know its policy, and may be older than the controller: {0}")]
    Policy(#[from] PolicyError),
    /// The boxes that there were go on.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// Its thread ended.
    #[error(transparent)]
    Gone(#[from] ExportGone),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

impl Agent {
    /// Puts the boxes in place that are wanted of a volume: none, without a chain.
    /// Nothing that was asked of it meanwhile is lost.
    pub(crate) async fn put_chain(
        &self,
        chain: Option<&WantedChain>,
        attached: &Arc<Attached>,
        rule: SizeRule,
    ) -> Result<(), ChainError> {
        let policy = chain.map(|chain| Policy::parse(&chain.policy));
        let policy = policy.transpose()?;
        let clock = Arc::clone(&self.inner.world.clock);
        let build = move || policy.map_or_else(Vec::new, |policy| policy.build(&clock));
        let (tell, told) = oneshot::channel();
        let exchange = move || Exchange {
            boxes: build(),
            rule,
            told: Box::new(move |ended| {
                // Who has stopped waiting needs no answer.
                let _ = tell.send(ended);
            }),
        };
        let served = Arc::clone(attached);
        blocking(move || served.exchange(exchange)).await??;
        match told.await {
            Ok(ended) => ended?,
            Err(_) => return Err(ExportGone.into()),
        }
        // New clients hear what the disk is like by now.
        let served = Arc::clone(attached);
        Ok(blocking(move || served.publish()).await??)
    }
}

/// Which chain is wanted.
pub(crate) fn wanted(wish: &Assignment) -> Option<ChainKey> {
    wish.chain.as_ref().map(|chain| chain.key)
}

/// What does not begin is tried again after so long: a key may have been brought.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Through which boxes a volume is served, and why not through others.
#[derive(Debug, Default)]
pub(crate) struct ChainState {
    /// The chain that it is served through.
    pub served: Option<ChainKey>,
    /// Why that is not the one that is wanted.
    pub problem: Option<String>,
    /// What was tried in vain, for which wish, and when that is tried again.
    tried: Option<(Option<ChainKey>, u64, Duration)>,
}

impl ChainState {
    /// As it is wanted.
    pub fn served(wish: &Assignment) -> Self {
        Self {
            served: wanted(wish),
            ..Self::default()
        }
    }

    /// Whether other boxes are to be tried at `now`.
    pub fn is_to_change(&mut self, wish: &Assignment, now: Duration) -> bool {
        let wanted = wanted(wish);
        if self.served == wanted {
            // What was tried in vain is not wanted any more.
            (self.problem, self.tried) = (None, None);
            return false;
        }
        let is_waiting = self.tried.is_some_and(|(chain, generation, again)| {
            chain == wanted && generation == wish.generation && now < again
        });
        !is_waiting
    }

    /// The boxes that are wanted do not begin.
    pub fn failed(&mut self, wish: &Assignment, why: String, now: Duration) {
        self.problem = Some(why);
        self.tried = Some((wanted(wish), wish.generation, now + RETRY_AFTER));
    }
}
