//! A link's thread: from requests that wait to a connection, and back.
//!
//! The daemon's own address is tried first. If it does not answer, others are
//! that may pass the connection on; and as long as one of these does, the own one
//! is tried beside it. When that has greeted, nothing more is sent the long way, and
//! what was is waited for. So it is when this host has a new certificate: what was
//! asked under the old one is waited for, and the next is asked under the new one.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use net::Pipe as _;
use rustls::ClientConfig;
use unit_wire::Request;
use world::real::Poller;
use world::{Endpoint, Interest, Ready};

use super::attempt::{Attempt, Connected, RECEIVE_BYTES};
use super::link::{Asked, LinkConfig, Shared, WORK_WITHIN, stopping};
use super::{Conversation, Pauses, Reply};

/// A connection is there and greeted within this, whichever way.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// One way is tried no longer than this, if there is another one.
const DETOUR_AFTER: Duration = Duration::from_secs(1);

/// How often a daemon's own address is tried while it is reached through another.
const TRY_OWN_EVERY: Duration = Duration::from_secs(30);

/// How often it is looked whether an answer is overdue.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The poller's keys: the connection's is that of its attempt, and the next attempt's
/// is the other one.
pub(super) const WAKER: u64 = 0;
const SOCKETS: [u64; 2] = [1, 2];

/// The link's thread.
pub(super) struct Driver {
    shared: Arc<Shared>,
    poller: Poller,
    pauses: Pauses,
}

/// A connection that is used.
struct Used {
    connected: Connected,
    detour: Option<Detour>,
}

/// The own address, while another one is used.
struct Detour {
    /// When to try it next.
    next: Duration,
    trial: Option<Attempt>,
    /// It has greeted.
    own: Option<Connected>,
}

/// How a connection has ended.
enum End {
    /// Nobody waits for anything that was asked on it. Here is a better one, if there
    /// is one already.
    Quiet(Option<Connected>),
    /// It broke, or the link ends. Here is who waits for an answer.
    Broken(io::Error, Option<Conversation>),
}

impl Driver {
    pub fn new(shared: Arc<Shared>, poller: Poller) -> Self {
        Self {
            shared,
            poller,
            pauses: Pauses::default(),
        }
    }

    pub fn run(mut self) {
        let mut next = None;
        loop {
            if next.is_none() && self.wait_for_work() {
                break;
            }
            let used = match next.take() {
                Some(connected) => Ok(Used {
                    connected,
                    detour: None,
                }),
                None => self.connect(),
            };
            let end = match used {
                Ok(used) => self.serve(used),
                Err(error) => End::Broken(error, None),
            };
            self.shared.lock().via = None;
            match end {
                End::Quiet(better) => next = better,
                End::Broken(why, lost) => self.fail(&Arc::new(why), lost),
            }
        }
        self.fail(&Arc::new(stopping()), None);
    }

    /// Waits until something is asked and no pause is over it; `true`: it ends.
    fn wait_for_work(&self) -> bool {
        let mut ready = Vec::new();
        loop {
            {
                let state = self.shared.lock();
                if state.is_stopping {
                    return true;
                }
                if !state.asked.is_empty() {
                    return false;
                }
            }
            // Nobody waits: there is nothing to connect for.
            self.wait(None, &mut ready);
        }
    }

    fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<world::Ready>) {
        let waited = self.poller.wait(timeout, ready);
        waited.expect("an epoll of this thread can be waited on");
        if ready.iter().any(|ready| ready.key == WAKER) {
            self.shared.waker.clear();
        }
    }

    /// Whoever waits is told why there is no connection: once that is known to all, so
    /// that who asks again when it is told has not asked before.
    fn fail(&mut self, why: &Arc<io::Error>, lost: Option<Conversation>) {
        let pause_until = self.pauses.failed(self.shared.clock.monotonic(), why);
        let asked = {
            let mut state = self.shared.lock();
            state.pause = Some((pause_until, Arc::clone(why)));
            state.is_away = true;
            state.outbox.clear();
            std::mem::take(&mut state.asked)
        };
        if let Some(lost) = lost {
            lost.lose(why);
        }
        for asked in asked {
            (asked.done)(Err(Arc::clone(why)));
        }
        self.shared.room.notify_all();
    }

    /// The first endpoint that answers.
    fn connect(&mut self) -> io::Result<Used> {
        self.pauses.connects();
        let config = self.shared.lock().config.clone();
        let Some(tls) = &config.tls else {
            let reason = "this host has no certificate for unit daemons yet";
            return Err(io::Error::new(ErrorKind::NotConnected, reason));
        };
        let mut detours = (config.detours)();
        detours.retain(|detour| *detour != config.own);
        let begun = self.shared.clock.monotonic();
        let within = match detours.is_empty() {
            true => CONNECT_WITHIN,
            false => DETOUR_AFTER,
        };
        // What is said of the unit is what its own daemon has to do with.
        let failure = match self.connect_to(&config.own, begun + within, &config, tls) {
            Ok(connected) => {
                return Ok(Used {
                    connected,
                    detour: None,
                });
            }
            Err(error) => io::Error::new(error.kind(), format!("{}: {error}", config.own)),
        };
        for detour in &detours {
            let now = self.shared.clock.monotonic();
            if self.shared.lock().is_stopping {
                return Err(stopping());
            }
            let deadline = (now + DETOUR_AFTER).min(begun + CONNECT_WITHIN);
            // Why there is no way through is less than why there is none but that.
            if let Ok(connected) = self.connect_to(detour, deadline, &config, tls) {
                let detour = Some(Detour {
                    next: self.shared.clock.monotonic() + TRY_OWN_EVERY,
                    trial: None,
                    own: None,
                });
                return Ok(Used { connected, detour });
            }
        }
        Err(failure)
    }

    fn connect_to(
        &self,
        endpoint: &Endpoint,
        deadline: Duration,
        config: &LinkConfig,
        tls: &Arc<ClientConfig>,
    ) -> io::Result<Connected> {
        let key = SOCKETS[0];
        let mut attempt = Attempt::begin(&self.poller, key, endpoint, config, tls, deadline)?;
        loop {
            self.wait_until(key, deadline)?;
            if let Some(connected) = attempt.go_on(&self.poller)? {
                return Ok(connected);
            }
        }
    }

    fn watch(&self, connected: &Connected, writable: bool) -> io::Result<()> {
        let interest = Interest {
            readable: true,
            writable,
        };
        self.poller
            .modify(&connected.channel, connected.key, interest)
    }

    /// What comes on it is of no interest until it is used: it would keep whoever still
    /// waits for answers on another one from sleeping.
    fn unwatch(&self, connected: &Connected) -> io::Result<()> {
        let interest = Interest {
            readable: false,
            writable: false,
        };
        self.poller
            .modify(&connected.channel, connected.key, interest)
    }

    /// Waits for the socket.
    fn wait_until(&self, key: u64, deadline: Duration) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let now = self.shared.clock.monotonic();
            if now >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            if self.shared.lock().is_stopping {
                return Err(stopping());
            }
            self.wait(Some(deadline - now), &mut ready);
            if ready.iter().any(|ready| ready.key == key) {
                return Ok(());
            }
        }
    }

    /// Carries requests and answers until the connection ends.
    fn serve(&mut self, mut used: Used) -> End {
        {
            let mut state = self.shared.lock();
            let greeting = &used.connected.greeting;
            state.under_way_max = greeting.held_bytes_max as usize / 2;
            state.via = Some(used.connected.endpoint.clone());
            state.pause = None;
            state.is_away = false;
        }
        let why = match self.carry(&mut used) {
            Ok(true) => return End::Quiet(used.detour.and_then(|detour| detour.own)),
            Ok(false) => stopping(),
            Err(error) => error,
        };
        End::Broken(why, Some(used.connected.conversation))
    }

    /// Returns when the link is to end, or (`true`) nobody waits for anything and the
    /// connection is not to be used any more.
    fn carry(&mut self, used: &mut Used) -> io::Result<bool> {
        self.show_first(&mut used.connected);
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut ready = Vec::new();
        loop {
            let Used { connected, detour } = &mut *used;
            let has_own = detour.as_ref().is_some_and(|detour| detour.own.is_some());
            let is_over = {
                let state = self.shared.lock();
                if state.is_stopping {
                    return Ok(false);
                }
                // A certificate that was renewed.
                let tls = state.config.tls.as_ref();
                has_own || tls.is_some_and(|tls| !Arc::ptr_eq(tls, &connected.tls))
            };
            if !is_over {
                self.take_asked(connected);
            }
            let is_blocked = connected.send()?;
            let is_waiting = connected.conversation.waiting() > 0;
            if is_over && !is_waiting {
                return Ok(true);
            }
            self.watch(connected, is_blocked)?;
            let timeout = match () {
                () if connected.channel.holds_received() => Some(Duration::ZERO),
                () => (is_waiting || detour.is_some()).then_some(LOOK_EVERY),
            };
            self.wait(timeout, &mut ready);
            if let Some(detour) = detour {
                self.try_own(detour, connected, &ready);
            }
            let is_ready = ready.iter().any(|ready| ready.key == connected.key);
            if is_ready || connected.channel.holds_received() {
                match connected.receive(&mut buffer) {
                    // It has closed what nobody used: that is no failure.
                    Err(error)
                        if error.kind() == ErrorKind::UnexpectedEof
                            && connected.conversation.waiting() == 0 =>
                    {
                        return Ok(true);
                    }
                    other => other?,
                };
                self.pauses.answered();
            }
            let now = self.shared.clock.monotonic();
            if connected.conversation.is_overdue(now) {
                let reason = "its daemon does not answer";
                return Err(io::Error::new(ErrorKind::TimedOut, reason));
            }
        }
    }

    /// Looks now and then whether there is a shorter way: until its daemon has greeted.
    fn try_own(&self, detour: &mut Detour, connected: &Connected, ready: &[Ready]) {
        if detour.own.is_some() {
            return;
        }
        let now = self.shared.clock.monotonic();
        let key = SOCKETS[usize::from(connected.key == SOCKETS[0])];
        if let Some(trial) = &mut detour.trial {
            let is_told = ready.iter().any(|ready| ready.key == key);
            let gone_on = match is_told {
                true => trial.go_on(&self.poller),
                false => Ok(None),
            };
            match gone_on {
                Ok(None) if now < trial.deadline => {}
                Ok(own) => {
                    detour.own = own.filter(|own| self.unwatch(own).is_ok());
                    detour.trial = None;
                }
                // It is tried again later.
                Err(_) => detour.trial = None,
            }
        } else if now >= detour.next {
            detour.next = now + TRY_OWN_EVERY;
            let config = self.shared.lock().config.clone();
            let tls = &connected.tls;
            let deadline = now + CONNECT_WITHIN;
            let trial = Attempt::begin(&self.poller, key, &config.own, &config, tls, deadline);
            detour.trial = trial.ok();
        }
    }

    /// What was shown on connections before.
    fn show_first(&self, connected: &mut Connected) {
        let capabilities = self.shared.lock().config.capabilities.clone();
        // Asked without a lock: whoever answers has its own.
        let capabilities = capabilities();
        let mut state = self.shared.lock();
        let now = self.shared.clock.monotonic();
        for capability in capabilities {
            state.last_tag += 1;
            Request::Show(&capability).encode(state.last_tag, connected.out.bytes());
            // Who uses it is told if it is refused.
            let done = Box::new(|_: Result<Reply<'_>, Arc<io::Error>>| {});
            connected
                .conversation
                .expect(state.last_tag, now + WORK_WITHIN, done);
        }
    }

    /// Takes what was asked.
    fn take_asked(&self, connected: &mut Connected) {
        let mut state = self.shared.lock();
        let out = connected.out.bytes();
        match out.is_empty() {
            true => std::mem::swap(out, &mut state.outbox),
            false => out.append(&mut state.outbox),
        }
        let asked = std::mem::take(&mut state.asked);
        drop(state);
        let now = self.shared.clock.monotonic();
        for Asked { tag, within, done } in asked {
            connected.conversation.expect(tag, now + within, done);
        }
    }
}
