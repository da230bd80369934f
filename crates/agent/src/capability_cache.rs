//! What this host may do on unit daemons: capabilities, got from controllers and
//! shown to every daemon (docs/units.md, "Who may do what").
//!
//! ```text
//!   a lease, a reading, a free ──want──► controllers ──signed──► capability cache
//!                                                                  │ shown
//!            daemon that is there: now; on each new connection: first, as the link
//!                                       asks for what there is
//! ```
//!
//! Invariants:
//!
//! * What is wanted is shown to each daemon before anything is asked of it that
//!   needs it: [`Controller::obtain`] returns when all have answered that are there
//!   and answer soon, and a link shows it before all else on its next connection.
//! * Of each want there is what was signed last, and nowhere else.
//! * What is kept is renewed at half of its time, as long as somebody keeps it.
//! * A host all of whose units are folders asks for nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::{AskCapabilities, Capabilities, SignedBytes, WANTS_MAX, Want};
use base::UnitId;
use catalog::CatalogError;
use tokio::sync::mpsc;
use unit_remote::{Done, Reply, TlsLink};
use unit_wire::Status;
use world::{Clock, host};

use crate::agent::lock;
use crate::controller::Controller;

/// Daemons that do not answer are waited for no longer.
const SHOWN_WITHIN: Duration = Duration::from_secs(6);

/// How often it is looked what has to be renewed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What was refused is asked for again after so long, as long as it is kept.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Where capabilities are shown.
pub(crate) trait Shows: Send + Sync {
    /// Shows one, now if there is a daemon to be had; `done` is told what came of it,
    /// at once if the daemon is away.
    fn show(&self, capability: &[u8], done: Done);
}

impl Shows for TlsLink {
    fn show(&self, capability: &[u8], done: Done) {
        Self::show(self, capability, done);
    }
}

/// A capability, until it ends: by the monotonic clock, counted from before it was
/// asked for.
#[derive(Clone)]
struct Capability {
    bytes: Arc<[u8]>,
    ends: Duration,
}

/// What is there for a want.
struct Granted {
    capabilities: Vec<Capability>,
    /// It was refused.
    is_refused: bool,
    /// When it was asked for.
    asked: Duration,
    /// When it is to be asked for again, if somebody keeps it.
    renew: Duration,
    ends: Duration,
}

#[derive(Default)]
struct State {
    daemons: BTreeMap<UnitId, Arc<dyn Shows>>,
    granted: HashMap<Want, Granted>,
    /// What is kept, and how many times.
    kept: BTreeMap<Want, usize>,
    /// The SHA-256 of the public key that daemons are shown.
    holder: Option<[u8; 32]>,
}

/// See the module's head.
pub(crate) struct CapabilityCache {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Something that is renewed until this is dropped.
pub(crate) struct Kept {
    cache: Arc<CapabilityCache>,
    wants: Vec<Want>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = lock(&self.cache.state);
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
    /// An empty one.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::default(),
        })
    }

    /// Capabilities are for whoever has this key, from now on.
    pub fn set_holder(&self, holder: [u8; 32]) {
        lock(&self.state).holder = Some(holder);
    }

    /// A daemon is used. Its link asks for what there is by itself.
    pub fn add(&self, unit: UnitId, daemon: Arc<dyn Shows>) {
        lock(&self.state).daemons.insert(unit, daemon);
    }

    /// All that has not ended: what is shown first on a new connection.
    pub fn capabilities(&self) -> Vec<Arc<[u8]>> {
        let now = self.clock.monotonic();
        let state = lock(&self.state);
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
    pub fn keep(self: &Arc<Self>, wants: Vec<Want>) -> Kept {
        let mut state = lock(&self.state);
        for want in &wants {
            *state.kept.entry(*want).or_default() += 1;
        }
        drop(state);
        Kept {
            cache: Arc::clone(self),
            wants,
        }
    }

    /// For whom to ask, if there is a daemon to show something to.
    fn principal(&self) -> Option<[u8; 32]> {
        let state = lock(&self.state);
        state.holder.filter(|_| !state.daemons.is_empty())
    }

    /// What is kept and due, in parts that can be asked for.
    fn due(&self) -> Vec<Vec<Want>> {
        let now = self.clock.monotonic();
        let mut state = lock(&self.state);
        let State { granted, kept, .. } = &mut *state;
        granted.retain(|want, granted| granted.ends > now || kept.contains_key(want));
        let is_due = |want: &&Want| {
            let granted = granted.get(want);
            granted.is_none_or(|granted| now >= granted.renew)
        };
        let due: Vec<Want> = kept.keys().filter(is_due).copied().collect();
        due.chunks(WANTS_MAX).map(<[Want]>::to_vec).collect()
    }

    /// Puts away what was answered to what was asked for at `asked`; returns what is
    /// to be shown.
    fn put(
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
                self.tell_of_refusal(want, &reason);
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
        let mut state = lock(&self.state);
        let known = state.granted.get(&want);
        // Of two that were asked for at once, the later one may have come first.
        if known.is_none_or(|known| known.asked <= asked) {
            state.granted.insert(want, granted);
        }
        capabilities
    }

    /// Controllers refuse what this host wants: whoever keeps that will not get far.
    fn tell_of_refusal(&self, want: Want, reason: &str) {
        let state = lock(&self.state);
        let known = state.granted.get(&want);
        let is_known = known.is_some_and(|granted| granted.is_refused);
        match state.kept.contains_key(&want) && !is_known {
            true => tracing::warn!(?want, reason, "not allowed on unit daemons"),
            false => tracing::debug!(?want, reason, "not allowed on unit daemons"),
        }
    }

    /// Shows these to all daemons; returns when all have answered that answer soon.
    async fn show(&self, capabilities: Vec<Capability>) {
        let daemons: Vec<(UnitId, Arc<dyn Shows>)> = lock(&self.state)
            .daemons
            .iter()
            .map(|(unit, daemon)| (*unit, Arc::clone(daemon)))
            .collect();
        let (answered, mut answers) = mpsc::unbounded_channel();
        for (unit, daemon) in daemons {
            let (capabilities, answered) = (capabilities.clone(), answered.clone());
            // A link that has much to do lets its callers wait.
            tokio::task::spawn_blocking(move || {
                for capability in capabilities {
                    let answered = answered.clone();
                    let done = move |reply: Result<Reply<'_>, Arc<std::io::Error>>| {
                        // One that is away is shown it when it is back.
                        let refused = reply.ok().filter(|reply| reply.status != Status::Done);
                        let refused = refused.map(|reply| {
                            let said = String::from_utf8_lossy(reply.body).into_owned();
                            (unit, reply.status, said)
                        });
                        // Nobody may be listening any more.
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
                    tracing::warn!(%unit, ?status, said, "a unit daemon takes no capability");
                }
            }
        };
        host::timeout(SHOWN_WITHIN, all).await;
    }
}

impl Controller {
    /// Has capabilities for `wants` signed, and shows them to all unit daemons, if
    /// there are any. What is refused to this host, daemons will refuse, too.
    ///
    /// # Errors
    /// [`CatalogError::Unavailable`], if no controller answers.
    pub(crate) async fn obtain(&self, wants: &[Want]) -> Result<(), CatalogError> {
        let cache = self.capability_cache();
        let Some(holder) = cache.principal() else {
            return Ok(());
        };
        let asked = cache.clock.monotonic();
        let ask = AskCapabilities {
            holder,
            wants: wants.to_vec(),
        };
        let answers: Capabilities = self.capabilities(&ask).await?;
        if answers.len() != wants.len() {
            let reason = "the controller has not answered what it was asked".to_owned();
            return Err(CatalogError::Unavailable { reason });
        }
        let capabilities = wants.iter().zip(answers);
        let capabilities = capabilities.flat_map(|(want, answer)| cache.put(asked, *want, answer));
        let capabilities = capabilities.collect();
        cache.show(capabilities).await;
        Ok(())
    }

    /// Renews what is kept, again and again.
    pub(crate) async fn keep_capabilities(&self) {
        let mut ticks = host::ticks(LOOK_EVERY);
        loop {
            ticks.tick().await;
            self.renew_capabilities().await;
        }
    }

    /// Renews what is kept and due.
    pub(crate) async fn renew_capabilities(&self) {
        if self.capability_cache().principal().is_none() {
            return;
        }
        for wants in self.capability_cache().due() {
            if let Err(error) = self.obtain(&wants).await {
                tracing::warn!(%error, "what this host may do on unit daemons is not renewed");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Lineage, VolumeId};
    use world::simulated::SimulatedClock;

    use super::*;

    /// A daemon that is there, and what it was shown.
    #[derive(Default)]
    struct Daemon(Mutex<Vec<Vec<u8>>>);

    impl Shows for Daemon {
        fn show(&self, capability: &[u8], done: Done) {
            lock(&self.0).push(capability.to_vec());
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
    fn what_is_kept_is_due_at_half_of_its_time_and_what_is_not_kept_never() {
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
        assert_eq!(cache.due(), [[kept]], "somebody keeps it still");
        drop(second);
        assert!(cache.due().is_empty());
        clock.advance(Duration::from_secs(31));
        cache.due();
        assert!(lock(&cache.state).granted.is_empty(), "all has ended");
    }

    /// It was asked for again every two seconds.
    #[test]
    fn what_was_refused_is_asked_for_again_after_a_while() {
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
    fn many_wants_are_asked_for_in_parts() {
        let (_, cache) = made();
        let wants: Vec<Want> = (0..600).map(read).collect();
        let _kept = cache.keep(wants);
        let parts: Vec<usize> = cache.due().iter().map(Vec::len).collect();
        assert_eq!(parts, [256, 256, 88]);
    }

    /// A link kept each that it had been shown in a day.
    #[test]
    fn there_is_of_each_want_what_was_signed_last_and_has_not_ended() {
        let (clock, cache) = made();
        assert_eq!(cache.principal(), None);
        cache.set_holder([7; 32]);
        assert_eq!(
            cache.principal(),
            None,
            "there is nobody to show anything to"
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
    async fn what_is_got_is_shown_to_all_before_it_is_used() {
        let (clock, cache) = made();
        let daemons = [1, 2].map(|number| {
            let daemon = Arc::new(Daemon::default());
            cache.add(UnitId::from_u128(number), Arc::clone(&daemon) as _);
            daemon
        });
        let capabilities = cache.put(clock.monotonic(), read(1), signed(b"capability"));
        cache.show(capabilities).await;
        for daemon in daemons {
            assert_eq!(lock(&daemon.0).len(), 1);
        }
    }
}
