//! [`CapabilityCache`]: what this host may do on unit daemons. Controllers sign capabilities, and
//! the host shows them to every daemon (docs/internals/capabilities.md).
//!
//! ```text
//!   a lease, a read, a free ──want──► controllers ──signed──► capability cache
//!                                                               │ shown
//!         to a connected daemon: now; on each new connection: first, as the link
//!                                     asks for all capabilities
//! ```
//!
//! Invariants:
//!
//! * A capability is shown to each daemon before any request that needs it:
//!   [`Controller::obtain`](super::Controller::obtain) returns when all connected daemons that are
//!   quick have answered, and a link shows it first on its next connection.
//! * The cache holds what was signed last for each want; nothing else holds any.
//! * A kept capability is renewed at half of its time, as long as something keeps it.
//! * A host without unit daemons asks for nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::host::{SignedBytes, WANTS_MAX, Want};
use base::UnitId;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use unit_remote::{Done, Reply, TlsLink};
use unit_wire::Status;
use world::{Clock, host};

/// How long a daemon's answer is waited for.
const SHOWN_WITHIN: Duration = Duration::from_secs(6);

/// After this long, a refused capability is asked for again, as long as it is kept.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// A daemon that capabilities are shown to.
pub(crate) trait Verifier: Send + Sync {
    /// Shows one, now if the daemon is connected; `done` is called with the answer, at once if
    /// the daemon is unavailable.
    fn show(&self, capability: &[u8], done: Done);
}

impl Verifier for TlsLink {
    fn show(&self, capability: &[u8], done: Done) {
        Self::present(self, capability, done);
    }
}

/// A capability, and the moment it ends: by the monotonic clock, counted from before it was
/// asked for.
#[derive(Clone)]
pub(crate) struct Capability {
    bytes: Arc<[u8]>,
    ends: Duration,
}

/// The capabilities for a want.
struct Granted {
    capabilities: Vec<Capability>,
    /// The controllers have refused it.
    is_refused: bool,
    /// When it was asked for.
    asked: Duration,
    /// When it is to be asked for again, if something keeps it.
    renew: Duration,
    ends: Duration,
}

#[derive(Default)]
struct State {
    daemons: BTreeMap<UnitId, Arc<dyn Verifier>>,
    granted: HashMap<Want, Granted>,
    /// The kept wants, and how many keep each.
    kept: BTreeMap<Want, usize>,
    /// The SHA-256 of the public key that this host shows to daemons.
    holder: Option<[u8; 32]>,
}

/// The capabilities of this host, and the daemons they are shown to.
pub(crate) struct CapabilityCache {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Wants that are renewed until this is dropped.
pub(crate) struct KeptCapabilities {
    cache: Arc<CapabilityCache>,
    wants: Vec<Want>,
}

impl Drop for KeptCapabilities {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        for want in &self.wants {
            if let Some(count) = state.kept.get_mut(want) {
                *count -= 1;
                if *count == 0 {
                    state.kept.remove(want);
                }
            }
        }
    }
}

impl CapabilityCache {
    /// How often it is looked which capabilities have to be renewed.
    pub const RENEW_EVERY: Duration = Duration::from_secs(2);

    /// An empty one.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::default(),
        })
    }

    /// The moment, by the clock that capabilities end by.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// From now on capabilities are for the holder of this key.
    pub fn set_holder(&self, holder: [u8; 32]) {
        self.state.lock().holder = Some(holder);
    }

    /// Adds a daemon. Its link asks for all capabilities by itself.
    pub fn add(&self, unit: UnitId, daemon: Arc<dyn Verifier>) {
        self.state.lock().daemons.insert(unit, daemon);
    }

    /// The capabilities that have not ended: they are shown first on a new connection.
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

    /// Keeps these renewed from now on.
    pub fn keep(self: &Arc<Self>, wants: Vec<Want>) -> KeptCapabilities {
        let mut state = self.state.lock();
        for want in &wants {
            *state.kept.entry(*want).or_default() += 1;
        }
        drop(state);
        KeptCapabilities {
            cache: Arc::clone(self),
            wants,
        }
    }

    /// The holder to ask for, if there is a daemon to show capabilities to.
    pub fn principal(&self) -> Option<[u8; 32]> {
        let state = self.state.lock();
        state.holder.filter(|_| !state.daemons.is_empty())
    }

    /// The kept wants that are due, in batches that one call may have.
    pub fn due(&self) -> Vec<Vec<Want>> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let State { granted, kept, .. } = &mut *state;
        granted.retain(|want, granted| granted.ends > now || kept.contains_key(want));
        let is_due = |want: &&Want| {
            let granted = granted.get(want);
            granted.is_none_or(|granted| now >= granted.renew)
        };
        let due: Vec<Want> = kept.keys().filter(is_due).copied().collect();
        due.chunks(WANTS_MAX).map(<[Want]>::to_vec).collect()
    }

    /// Stores the answer to a want that was asked for at `asked`; returns the capabilities that
    /// are to be shown.
    pub fn put(
        &self,
        asked: Duration,
        want: Want,
        answer: Result<Vec<SignedBytes>, String>,
    ) -> Vec<Capability> {
        let later = |after_ms: u64| asked.saturating_add(Duration::from_millis(after_ms));
        let granted = match answer {
            Ok(signed) => {
                let lasts = signed.iter().map(|signed| signed.lasts_ms).min();
                let capabilities = signed.into_iter().map(|signed| Capability {
                    ends: later(signed.lasts_ms),
                    bytes: signed.bytes.into(),
                });
                let lasts = lasts.unwrap_or_default();
                Granted {
                    capabilities: capabilities.collect(),
                    is_refused: false,
                    asked,
                    renew: later(lasts / 2),
                    ends: later(lasts),
                }
            }
            Err(reason) => {
                self.log_refusal(want, &reason);
                Granted {
                    capabilities: Vec::new(),
                    is_refused: true,
                    asked,
                    renew: asked + ASK_AGAIN,
                    ends: asked,
                }
            }
        };
        let capabilities = granted.capabilities.clone();
        let mut state = self.state.lock();
        let known = state.granted.get(&want);
        // Of two that were asked for at once, the later one may have come first.
        if known.is_none_or(|known| known.asked <= asked) {
            state.granted.insert(want, granted);
        }
        capabilities
    }

    /// Logs a refusal; a new one of a kept want as a warning, since what keeps it is stuck.
    fn log_refusal(&self, want: Want, reason: &str) {
        let state = self.state.lock();
        let known = state.granted.get(&want);
        let is_known = known.is_some_and(|granted| granted.is_refused);
        match state.kept.contains_key(&want) && !is_known {
            true => tracing::warn!(
                ?want,
                reason,
                "controllers refused a capability on unit daemons"
            ),
            false => tracing::debug!(
                ?want,
                reason,
                "controllers refused a capability on unit daemons"
            ),
        }
    }

    /// Shows capabilities to all daemons; returns when those that are quick have answered.
    pub async fn show(&self, capabilities: Vec<Capability>) {
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
                        // An unavailable daemon is shown it when it connects again.
                        let refused = reply.ok().filter(|reply| reply.status != Status::Done);
                        let refused = refused.map(|reply| {
                            let said = String::from_utf8_lossy(reply.body).into_owned();
                            (unit, reply.status, said)
                        });
                        // The receiver may have stopped waiting.
                        let _ = answered.send(refused);
                    };
                    daemon.show(&capability.bytes, Box::new(done));
                }
            });
        }
        drop(answered);
        let all = async {
            while let Some(answer) = answers.recv().await {
                if let Some((unit, status, said)) = answer {
                    tracing::warn!(%unit, ?status, said, "a unit daemon refused a capability");
                }
            }
        };
        host::timeout(SHOWN_WITHIN, all).await;
    }
}

#[cfg(test)]
mod tests {
    use base::{Lineage, VolumeId};
    use world::simulated::SimulatedClock;

    use super::*;

    /// A connected daemon, and the capabilities it was shown.
    #[derive(Default)]
    struct Daemon(Mutex<Vec<Vec<u8>>>);

    impl Verifier for Daemon {
        fn show(&self, capability: &[u8], done: Done) {
            self.0.lock().push(capability.to_vec());
            done(Ok(Reply {
                status: Status::Done,
                body: &[],
                incarnation: 1,
            }));
        }
    }

    const MINUTE_MS: u64 = 60_000;

    fn read(number: u128) -> Want {
        let lineage = Lineage::from_u128(number);
        Want::Read { lineage }
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
        let (kept, once) = (Want::Lease { volume, epoch: 3 }, read(2));
        let first = cache.keep(vec![kept]);
        let second = cache.keep(vec![kept]);
        assert_eq!(cache.due(), [[kept]], "there is none yet");
        for want in [kept, once] {
            cache.put(clock.monotonic(), want, signed(b"capability"));
        }
        clock.advance(Duration::from_secs(29));
        assert!(cache.due().is_empty());
        clock.advance(Duration::from_secs(1));
        assert_eq!(cache.due(), [[kept]]);
        drop(first);
        assert_eq!(cache.due(), [[kept]], "the second one keeps it");
        drop(second);
        assert!(cache.due().is_empty());
        clock.advance(Duration::from_secs(31));
        cache.due();
        assert!(cache.state.lock().granted.is_empty(), "all has ended");
    }

    /// It was asked for again every two seconds.
    #[test]
    fn a_refused_capability_is_asked_for_again_after_a_while() {
        let (clock, cache) = made();
        let _kept = cache.keep(vec![read(1)]);
        let capabilities = cache.put(
            clock.monotonic(),
            read(1),
            Err("it is another host's".to_owned()),
        );
        assert!(capabilities.is_empty());
        assert!(cache.due().is_empty());
        clock.advance(Duration::from_secs(10));
        assert_eq!(cache.due(), [[read(1)]]);
    }

    #[test]
    fn many_wants_are_asked_for_in_batches() {
        let (_, cache) = made();
        let wants: Vec<Want> = (0..600).map(read).collect();
        let _kept = cache.keep(wants);
        let parts: Vec<usize> = cache.due().iter().map(Vec::len).collect();
        assert_eq!(parts, [256, 256, 88]);
    }

    /// A link kept every capability that it had been shown in a day.
    #[test]
    fn the_cache_has_what_was_signed_last_for_each_want_until_it_ends() {
        let (clock, cache) = made();
        assert_eq!(cache.principal(), None);
        cache.set_holder([7; 32]);
        assert_eq!(
            cache.principal(),
            None,
            "there is no daemon to show anything to"
        );
        cache.put(clock.monotonic(), read(1), signed(b"old"));
        clock.advance(Duration::from_secs(61));
        for bytes in [b"one", b"two"] {
            cache.put(clock.monotonic(), read(2), signed(bytes));
        }
        cache.add(UnitId::from_u128(1), Arc::new(Daemon::default()));
        assert_eq!(cache.principal(), Some([7; 32]));
        let there: Vec<Vec<u8>> = cache
            .capabilities()
            .iter()
            .map(|one| one.to_vec())
            .collect();
        assert_eq!(there, [b"two"]);
    }

    #[tokio::test]
    async fn a_capability_is_shown_to_all_daemons_before_it_is_used() {
        let (clock, cache) = made();
        let daemons = [1, 2].map(|number| {
            let daemon = Arc::new(Daemon::default());
            cache.add(UnitId::from_u128(number), Arc::clone(&daemon) as _);
            daemon
        });
        let capabilities = cache.put(clock.monotonic(), read(1), signed(b"capability"));
        cache.show(capabilities).await;
        for daemon in daemons {
            assert_eq!(daemon.0.lock().len(), 1);
        }
    }
}
