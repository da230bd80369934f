//! Limits how many calls of one host run at the same time.
//!
//! All hosts share the database's connections, and each has to renew its leases over them in time.
//! So a host that sends too many calls, because it is broken or compromised, waits for itself: it
//! has [`CALLS_MAX`] permits, and one more each for renewing leases and for reading its desired
//! state. One of its calls may have a long body, since a body is read into memory before it is
//! parsed.

use std::collections::HashMap;
use std::sync::Arc;

use base::PartyId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest number of concurrent calls of a host: fewer than there are connections.
const CALLS_MAX: usize = 6;

/// The permits of all hosts.
#[derive(Default)]
pub(crate) struct HostTurns(Mutex<HashMap<PartyId, Turns>>);

/// The permits of one host.
#[derive(Clone)]
struct Turns {
    calls: Arc<Semaphore>,
    renewals: Arc<Semaphore>,
    assignments: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// A permit, which is released when it is dropped.
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl HostTurns {
    /// Waits until `host` may make a call.
    pub async fn call(&self, host: PartyId) -> Turn {
        taken(self.of(host).calls).await
    }

    /// Waits until `host` may make a call with a long body.
    pub async fn long(&self, host: PartyId) -> Turn {
        taken(self.of(host).long).await
    }

    /// Waits until `host` may renew its leases.
    pub async fn renewal(&self, host: PartyId) -> Turn {
        taken(self.of(host).renewals).await
    }

    /// Waits until the desired state of `host` may be read. The permit is not held while waiting
    /// for a change.
    pub async fn assignments(&self, host: PartyId) -> Turn {
        taken(self.of(host).assignments).await
    }

    fn of(&self, host: PartyId) -> Turns {
        let mut turns = self.0.lock();
        let own = turns.entry(host).or_insert_with(|| Turns {
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            renewals: Arc::new(Semaphore::new(1)),
            assignments: Arc::new(Semaphore::new(1)),
            long: Arc::new(Semaphore::new(1)),
        });
        own.clone()
    }
}

async fn taken(turns: Arc<Semaphore>) -> Turn {
    let permit = turns.acquire_owned().await;
    Turn {
        _permit: permit.expect("the semaphore is never closed"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn at_once<T>(what: impl Future<Output = T>) -> Option<T> {
        match pin!(what).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_host_that_floods_calls_delays_only_itself() {
        let turns = HostTurns::default();
        let [greedy, other] = [1, 2].map(PartyId::from_u128);
        let mut going_on = Vec::new();
        for _ in 0..CALLS_MAX {
            going_on.push(at_once(turns.call(greedy)).expect("its turn"));
        }
        assert!(at_once(turns.call(greedy)).is_none(), "it has its turns");
        let renewal = at_once(turns.renewal(greedy)).expect("its leases go on");
        assert!(at_once(turns.renewal(greedy)).is_none(), "one at a time");
        let wanted = at_once(turns.assignments(greedy)).expect("it hears of what is wanted");
        assert!(
            at_once(turns.assignments(greedy)).is_none(),
            "one at a time"
        );
        assert!(at_once(turns.call(other)).is_some());
        assert!(at_once(turns.renewal(other)).is_some());
        assert!(at_once(turns.assignments(other)).is_some());
        drop((going_on.pop(), renewal, wanted));
        assert!(at_once(turns.call(greedy)).is_some());
        assert!(at_once(turns.renewal(greedy)).is_some());
        assert!(at_once(turns.assignments(greedy)).is_some());
    }

    #[test]
    fn a_host_makes_one_long_call_at_a_time() {
        let turns = HostTurns::default();
        let [greedy, other] = [1, 2].map(PartyId::from_u128);
        let long = at_once(turns.long(greedy)).expect("its turn");
        assert!(at_once(turns.long(greedy)).is_none(), "one at a time");
        assert!(at_once(turns.call(greedy)).is_some(), "short ones go on");
        assert!(at_once(turns.long(other)).is_some());
        drop(long);
        assert!(at_once(turns.long(greedy)).is_some());
    }
}
