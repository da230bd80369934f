//! [`CapabilityCache`]: the capabilities of this host on unit daemons. Controllers sign them, and
//! the host presents them to every daemon (docs/internals/capabilities.md).
//!
//! ```text
//!   a lease, a read, a free ──request──► controllers ──signed──► capability cache
//!                                                                  │ presented
//!         to a connected daemon: now; on a new connection: first, because the link
//!                                     asks for all capabilities
//! ```
//!
//! Invariants:
//!
//! * A capability is presented to each daemon before any request that needs it:
//!   [`Controller::obtain`](super::Controller::obtain) returns when all responsive daemons have
//!   answered, and a link presents it first on its next connection.
//! * The cache holds the newest capabilities for each request; no other part holds any.
//! * A kept capability is renewed at half of its lifetime, as long as something keeps it.
//! * A host without unit daemons requests no capabilities.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::host::{CAPABILITY_REQUESTS_MAX, CapabilityRequest, SignedBytes};
use base::UnitId;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use unit_remote::{Done, Reply, TlsLink};
use unit_wire::Status;
use world::{Clock, host};

/// Timeout of a daemon's answer.
const PRESENT_TIMEOUT: Duration = Duration::from_secs(6);

/// The pause before a refused capability is requested again while it is kept.
const REQUEST_AGAIN: Duration = Duration::from_secs(10);

/// A daemon that verifies capabilities.
pub(crate) trait Verifier: Send + Sync {
    /// Presents a capability to the daemon if it is connected. `done` is called with the answer, at
    /// once if the daemon is unavailable.
    fn present(&self, capability: &[u8], done: Done);
}

impl Verifier for TlsLink {
    fn present(&self, capability: &[u8], done: Done) {
        Self::present(self, capability, done);
    }
}

/// A signed capability. It ends at `ends` by the monotonic clock, counted from before the request.
#[derive(Clone)]
pub(crate) struct Capability {
    bytes: Arc<[u8]>,
    ends: Duration,
}

/// The capabilities for one request.
struct CapabilityAnswer {
    capabilities: Vec<Capability>,
    /// The controllers refused the request.
    is_refused: bool,
    /// When it was sent.
    requested_at: Duration,
    /// When to send it again, if something keeps it.
    renew: Duration,
    ends: Duration,
}

#[derive(Default)]
struct State {
    daemons: BTreeMap<UnitId, Arc<dyn Verifier>>,
    granted: HashMap<CapabilityRequest, CapabilityAnswer>,
    /// The kept requests, and the number of their holders.
    kept: BTreeMap<CapabilityRequest, usize>,
    /// SHA-256 of the public key that this host presents to daemons.
    holder: Option<[u8; 32]>,
}

/// The capabilities of this host, and the daemons that verify them.
pub(crate) struct CapabilityCache {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Requests that are renewed until this is dropped.
pub(crate) struct KeptCapabilities {
    cache: Arc<CapabilityCache>,
    requests: Vec<CapabilityRequest>,
}

impl Drop for KeptCapabilities {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        for request in &self.requests {
            if let Some(count) = state.kept.get_mut(request) {
                *count -= 1;
                if *count == 0 {
                    state.kept.remove(request);
                }
            }
        }
    }
}

impl CapabilityCache {
    /// The period of checks for capabilities that must be renewed.
    pub const RENEW_EVERY: Duration = Duration::from_secs(2);

    /// An empty cache.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::default(),
        })
    }

    /// The current time by the clock that ends capabilities.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Sets the holder of the capabilities: the SHA-256 of a public key.
    pub fn set_holder(&self, holder: [u8; 32]) {
        self.state.lock().holder = Some(holder);
    }

    /// Adds a daemon. Its link asks for all capabilities itself.
    pub fn add(&self, unit: UnitId, daemon: Arc<dyn Verifier>) {
        self.state.lock().daemons.insert(unit, daemon);
    }

    /// The capabilities that have not ended; a new connection presents them first.
    pub fn capabilities(&self) -> Vec<Arc<[u8]>> {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let capabilities = state
            .granted
            .values()
            .flat_map(|granted| &granted.capabilities);
        let lasting = capabilities.filter(|capability| capability.ends > now);
        lasting
            .map(|capability| Arc::clone(&capability.bytes))
            .collect()
    }

    /// Keeps these requests renewed until the returned value is dropped.
    pub fn keep(self: &Arc<Self>, requests: Vec<CapabilityRequest>) -> KeptCapabilities {
        let mut state = self.state.lock();
        for request in &requests {
            *state.kept.entry(*request).or_default() += 1;
        }
        drop(state);
        KeptCapabilities {
            cache: Arc::clone(self),
            requests,
        }
    }

    /// The holder of the capabilities, if there is a daemon to present them to.
    pub fn holder_if_needed(&self) -> Option<[u8; 32]> {
        let state = self.state.lock();
        state.holder.filter(|_| !state.daemons.is_empty())
    }

    /// Removes the answers that have ended, except those to kept requests.
    pub fn remove_ended(&self) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let State { granted, kept, .. } = &mut *state;
        granted.retain(|request, granted| granted.ends > now || kept.contains_key(request));
    }

    /// The kept requests that are due, in batches for one call each.
    pub fn due_requests(&self) -> Vec<Vec<CapabilityRequest>> {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let is_due = |request: &&CapabilityRequest| {
            let granted = state.granted.get(request);
            granted.is_none_or(|granted| now >= granted.renew)
        };
        let due: Vec<CapabilityRequest> = state.kept.keys().filter(is_due).copied().collect();
        drop(state);
        due.chunks(CAPABILITY_REQUESTS_MAX)
            .map(<[CapabilityRequest]>::to_vec)
            .collect()
    }

    /// Stores the answer to a request that was sent at `requested_at`; returns the capabilities to
    /// present.
    pub fn store_answer(
        &self,
        requested_at: Duration,
        request: CapabilityRequest,
        answer: Result<Vec<SignedBytes>, String>,
    ) -> Vec<Capability> {
        let later = |after_ms: u64| requested_at.saturating_add(Duration::from_millis(after_ms));
        let granted = match answer {
            Ok(signed) => {
                let lasts = signed.iter().map(|signed| signed.lasts_ms).min();
                let capabilities = signed.into_iter().map(|signed| Capability {
                    ends: later(signed.lasts_ms),
                    bytes: signed.bytes.into(),
                });
                let lasts = lasts.unwrap_or_default();
                CapabilityAnswer {
                    capabilities: capabilities.collect(),
                    is_refused: false,
                    requested_at,
                    renew: later(lasts / 2),
                    ends: later(lasts),
                }
            }
            Err(reason) => {
                self.log_refusal(request, &reason);
                CapabilityAnswer {
                    capabilities: Vec::new(),
                    is_refused: true,
                    requested_at,
                    renew: requested_at + REQUEST_AGAIN,
                    ends: requested_at,
                }
            }
        };
        let capabilities = granted.capabilities.clone();
        let mut state = self.state.lock();
        let known = state.granted.get(&request);
        // Of two concurrent requests, the later one may have been answered first.
        if known.is_none_or(|known| known.requested_at <= requested_at) {
            state.granted.insert(request, granted);
        }
        capabilities
    }

    /// Logs a refusal; a new refusal of a kept request as a warning, because its holder is stuck.
    fn log_refusal(&self, request: CapabilityRequest, reason: &str) {
        let state = self.state.lock();
        let known = state.granted.get(&request);
        let is_known = known.is_some_and(|granted| granted.is_refused);
        match state.kept.contains_key(&request) && !is_known {
            true => tracing::warn!(
                ?request,
                error = reason,
                "controllers refused capability on unit daemons"
            ),
            false => tracing::debug!(
                ?request,
                error = reason,
                "controllers refused capability on unit daemons"
            ),
        }
    }

    /// Presents capabilities to all daemons; returns when all responsive daemons have answered.
    pub async fn present(&self, capabilities: Vec<Capability>) {
        let daemons: Vec<(UnitId, Arc<dyn Verifier>)> = self
            .state
            .lock()
            .daemons
            .iter()
            .map(|(unit, daemon)| (*unit, Arc::clone(daemon)))
            .collect();
        let (answered, mut answers) = mpsc::unbounded_channel();
        for (unit, daemon) in daemons {
            let (capabilities, answered) = (capabilities.clone(), answered.clone());
            // A busy link makes its callers wait.
            tokio::task::spawn_blocking(move || {
                for capability in capabilities {
                    let answered = answered.clone();
                    let done = move |reply: Result<Reply<'_>, Arc<std::io::Error>>| {
                        // An unavailable daemon gets the capability when it connects again.
                        let refused = reply.ok().filter(|reply| reply.status != Status::Done);
                        let refused = refused.map(|reply| {
                            let message = String::from_utf8_lossy(reply.body).into_owned();
                            (unit, reply.status, message)
                        });
                        // The receiver may have stopped waiting.
                        let _ = answered.send(refused);
                    };
                    daemon.present(&capability.bytes, Box::new(done));
                }
            });
        }
        drop(answered);
        let all = async {
            while let Some(answer) = answers.recv().await {
                if let Some((unit, status, message)) = answer {
                    tracing::warn!(%unit, ?status, message, "unit daemon refused capability");
                }
            }
        };
        host::timeout(PRESENT_TIMEOUT, all).await;
    }
}

#[cfg(test)]
mod tests {
    use base::{Lineage, VolumeId};
    use world::simulated::SimulatedClock;

    use super::*;

    /// A connected daemon that stores the capabilities presented to it.
    #[derive(Default)]
    struct Daemon(Mutex<Vec<Vec<u8>>>);

    impl Verifier for Daemon {
        fn present(&self, capability: &[u8], done: Done) {
            self.0.lock().push(capability.to_vec());
            done(Ok(Reply {
                status: Status::Done,
                body: &[],
                incarnation: 1,
            }));
        }
    }

    const MINUTE_MS: u64 = 60_000;

    fn read(number: u128) -> CapabilityRequest {
        let lineage = Lineage::from_u128(number);
        CapabilityRequest::Read { lineage }
    }

    fn signed(bytes: &[u8]) -> Result<Vec<SignedBytes>, String> {
        Ok(vec![SignedBytes {
            lasts_ms: MINUTE_MS,
            bytes: bytes.to_vec(),
        }])
    }

    fn made() -> (Arc<SimulatedClock>, Arc<CapabilityCache>) {
        let clock = Arc::new(SimulatedClock::default());
        let cache = CapabilityCache::new(Arc::clone(&clock) as _);
        (clock, cache)
    }

    #[test]
    fn a_kept_capability_is_due_at_half_of_its_time_and_another_never() {
        let (clock, cache) = made();
        let volume = VolumeId::from_u128(1);
        let (kept, once) = (CapabilityRequest::Lease { volume, epoch: 3 }, read(2));
        let first = cache.keep(vec![kept]);
        let second = cache.keep(vec![kept]);
        assert_eq!(cache.due_requests(), [[kept]], "it has no capability yet");
        for request in [kept, once] {
            cache.store_answer(clock.monotonic(), request, signed(b"capability"));
        }
        clock.advance(Duration::from_secs(29));
        assert!(cache.due_requests().is_empty());
        clock.advance(Duration::from_secs(1));
        assert_eq!(cache.due_requests(), [[kept]]);
        drop(first);
        assert_eq!(cache.due_requests(), [[kept]], "the second holder keeps it");
        drop(second);
        assert!(cache.due_requests().is_empty());
        clock.advance(Duration::from_secs(31));
        cache.remove_ended();
        assert!(
            cache.state.lock().granted.is_empty(),
            "all capabilities have ended"
        );
    }

    /// Regression: it was requested again every two seconds.
    #[test]
    fn a_refused_capability_is_requested_again_after_a_pause() {
        let (clock, cache) = made();
        let _kept = cache.keep(vec![read(1)]);
        let capabilities = cache.store_answer(
            clock.monotonic(),
            read(1),
            Err("the volume belongs to another host".to_owned()),
        );
        assert!(capabilities.is_empty());
        assert!(cache.due_requests().is_empty());
        clock.advance(Duration::from_secs(10));
        assert_eq!(cache.due_requests(), [[read(1)]]);
    }

    #[test]
    fn many_requests_are_sent_in_batches() {
        let (_, cache) = made();
        let requests: Vec<CapabilityRequest> = (0..600).map(read).collect();
        let _kept = cache.keep(requests);
        let parts: Vec<usize> = cache.due_requests().iter().map(Vec::len).collect();
        assert_eq!(parts, [256, 256, 88]);
    }

    /// Regression: a link kept every capability that it had presented in a day.
    #[test]
    fn the_cache_holds_the_newest_capability_of_each_request_until_it_ends() {
        let (clock, cache) = made();
        assert_eq!(cache.holder_if_needed(), None);
        cache.set_holder([7; 32]);
        assert_eq!(
            cache.holder_if_needed(),
            None,
            "there is no daemon that verifies it"
        );
        cache.store_answer(clock.monotonic(), read(1), signed(b"old"));
        clock.advance(Duration::from_secs(61));
        for bytes in [b"one", b"two"] {
            cache.store_answer(clock.monotonic(), read(2), signed(bytes));
        }
        cache.add(UnitId::from_u128(1), Arc::new(Daemon::default()));
        assert_eq!(cache.holder_if_needed(), Some([7; 32]));
        let there: Vec<Vec<u8>> = cache
            .capabilities()
            .iter()
            .map(|one| one.to_vec())
            .collect();
        assert_eq!(there, [b"two"]);
    }

    #[tokio::test]
    async fn a_capability_is_presented_to_all_daemons() {
        let (clock, cache) = made();
        let daemons = [1, 2].map(|number| {
            let daemon = Arc::new(Daemon::default());
            cache.add(UnitId::from_u128(number), Arc::clone(&daemon) as _);
            daemon
        });
        let capabilities = cache.store_answer(clock.monotonic(), read(1), signed(b"capability"));
        cache.present(capabilities).await;
        for daemon in daemons {
            assert_eq!(*daemon.0.lock(), [b"capability"]);
        }
    }

    /// A connected daemon that answers when the test says so.
    #[derive(Default)]
    struct SlowDaemon(Mutex<Option<Done>>);

    impl Verifier for SlowDaemon {
        fn present(&self, _: &[u8], done: Done) {
            *self.0.lock() = Some(done);
        }
    }

    /// A request that needs the capability begins only then.
    #[tokio::test]
    async fn presenting_ends_only_when_the_last_daemon_has_answered() {
        let (clock, cache) = made();
        cache.add(UnitId::from_u128(1), Arc::new(Daemon::default()));
        let slow = Arc::new(SlowDaemon::default());
        cache.add(UnitId::from_u128(2), Arc::clone(&slow) as _);
        let capabilities = cache.store_answer(clock.monotonic(), read(1), signed(b"capability"));
        let presented = tokio::spawn(async move { cache.present(capabilities).await });
        let done = loop {
            tokio::task::yield_now().await;
            if let Some(done) = slow.0.lock().take() {
                break done;
            }
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!presented.is_finished(), "a daemon has not answered");
        done(Ok(Reply {
            status: Status::Done,
            body: &[],
            incarnation: 1,
        }));
        presented.await.expect("no panic");
    }
}
