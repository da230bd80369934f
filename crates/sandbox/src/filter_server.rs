//! [`FilterServer`]: serves filters to the disks of other machines (`scree filter-server`).
//!
//! Each connection has a thread until its greeting has arrived. The thread of a session's second
//! connection becomes the thread of the session. A client without a certificate of the authority
//! is refused.
//!
//! Invariants: every connection counts against the maximum from the moment it is accepted; a
//! connection whose greeting or counterpart does not arrive in time is closed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::with_causes;
use chain::{Attribution, Filter};
use nbd::Watcher;
use net::{Channel, Pipe as _};
use parking_lot::{Mutex, MutexGuard};
use rustls::{ServerConfig, ServerConnection};
use world::real::{Listener, Poller, Stream};
use world::{Interest, Wake, World};

use crate::remote::{Greeting, GreetingReader, Role};
use crate::serve::{ServeError, serve_filters};

/// The time for a connection's greeting to arrive, and then for the session's second connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// How often timeouts are checked while there are connections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before the server accepts again after it failed to: most likely the process has no
/// file descriptor left, until some connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The maximal number of connections. A session has two.
const CONNECTIONS_MAX: usize = 512;

/// A function that makes the filters with a name, for a disk that belongs to the attribution. The
/// filters wake and watch their thread with the last two arguments.
pub type MakeFilters =
    dyn Fn(&str, Attribution, Wake, &Watcher) -> Result<Vec<Box<dyn Filter>>, String> + Send + Sync;

/// The first connection of a session, which waits for the second.
struct HalfSession {
    since: Duration,
    greeting: Greeting,
    channel: Channel,
    permit: Arc<()>,
}

/// A server of filters for the disks of other machines.
pub struct FilterServer {
    world: World,
    tls: Arc<ServerConfig>,
    make: Box<MakeFilters>,
    /// The sessions that wait for their second connection, by session.
    half_sessions: Mutex<HashMap<String, HalfSession>>,
    /// Each connection holds a clone, so the count is the number of connections and one.
    permits: Arc<()>,
}

impl FilterServer {
    /// A server that knows its clients by `tls`, which has to require a certificate.
    #[must_use]
    pub fn new(world: World, tls: Arc<ServerConfig>, make: Box<MakeFilters>) -> Arc<Self> {
        Arc::new(Self {
            world,
            tls,
            make,
            half_sessions: Mutex::default(),
            permits: Arc::default(),
        })
    }

    /// Accepts connections until the process ends. If one cannot be accepted, it waits in the
    /// listener's queue, and the server tries again after a pause.
    ///
    /// # Errors
    /// The operating system's, if the listener cannot be watched.
    pub fn run(self: &Arc<Self>, listener: &Listener) -> io::Result<()> {
        let poller = Poller::new()?;
        poller.add(listener, 0, Interest::READABLE)?;
        let mut ready = Vec::new();
        let mut is_paused = false;
        loop {
            ready.clear();
            let is_used = Arc::strong_count(&self.permits) > 1;
            let timeout = match is_paused {
                true => Some(ACCEPT_PAUSE),
                false => is_used.then_some(CHECK_INTERVAL),
            };
            poller.wait(timeout, &mut ready)?;
            drop(self.expire_half_sessions());
            let has_failed = self.accept_all(listener);
            if has_failed != is_paused {
                // While the server pauses, the connections that wait must not wake it.
                let interest = Interest {
                    readable: !has_failed,
                    writable: false,
                };
                poller.modify(listener, 0, interest)?;
                is_paused = has_failed;
            }
        }
    }

    /// Accepts the connections that wait. Returns whether one could not be accepted.
    fn accept_all(self: &Arc<Self>, listener: &Listener) -> bool {
        loop {
            match listener.accept() {
                Ok(Some(stream)) => self.accept(stream),
                Ok(None) => return false,
                Err(error) => {
                    tracing::warn!(%error, "filter server cannot accept connection");
                    return true;
                }
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: Stream) {
        let permit = Arc::clone(&self.permits);
        if Arc::strong_count(&permit) > CONNECTIONS_MAX + 1 {
            tracing::warn!(
                connections_max = CONNECTIONS_MAX,
                "filter server refused connection: too many connections"
            );
            return;
        }
        let server = Arc::clone(self);
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread lives as long as the session, which is too long for a pool"
        )]
        let started = std::thread::Builder::new()
            .name("filter".to_owned())
            .spawn(move || {
                if let Err(why) = server.handle(stream, permit) {
                    tracing::warn!(error = why, "filter server closed connection");
                }
            });
        if let Err(error) = started {
            tracing::warn!(%error, "filter server refused connection: cannot start a thread");
        }
    }

    /// Closes the sessions whose second connection timed out, and returns those that still wait.
    fn expire_half_sessions(&self) -> MutexGuard<'_, HashMap<String, HalfSession>> {
        let now = self.world.clock.monotonic();
        let mut halves = self.half_sessions.lock();
        halves.retain(|_, half| {
            let is_waiting = half.since + GREETING_TIMEOUT > now;
            if !is_waiting {
                tracing::warn!(
                    name = half.greeting.name,
                    "filter server closed connection: the session's second connection timed out"
                );
            }
            is_waiting
        });
        halves
    }

    /// Handles a connection: keeps the first of a session, and serves the session on the thread
    /// of the second.
    fn handle(&self, stream: Stream, permit: Arc<()>) -> Result<(), String> {
        let received = self.receive_greeting(stream);
        let (greeting, channel) = received.map_err(|error| error.to_string())?;
        let half = {
            let mut halves = self.expire_half_sessions();
            match halves.remove(&greeting.session) {
                Some(half) => half,
                None => {
                    let half = HalfSession {
                        since: self.world.clock.monotonic(),
                        greeting,
                        channel,
                        permit,
                    };
                    halves.insert(half.greeting.session.clone(), half);
                    return Ok(());
                }
            }
        };
        // Both connections count until the session ends.
        let _permits = (permit, half.permit);
        let (first, other) = (half.greeting, half.channel);
        let is_same_session = first
            == Greeting {
                role: first.role,
                ..greeting.clone()
            };
        let (requests, below) = match (first.role, greeting.role) {
            (Role::Requests, Role::Below) if is_same_session => (other, channel),
            (Role::Below, Role::Requests) if is_same_session => (channel, other),
            _ => return Err("the greetings of a session's two connections differ".to_owned()),
        };
        let attribution = greeting.attribution;
        tracing::info!(
            tenant = attribution.tenant,
            volume = attribution.volume,
            vm = attribution.vm,
            name = greeting.name,
            "filter server serves disk"
        );
        let served = serve_filters(&self.world, requests, below, |wake, watcher| {
            (self.make)(&greeting.name, attribution, wake, watcher).map_err(ServeError::Filters)
        });
        served.map_err(|error| with_causes(&error))
    }

    /// Waits for the greeting of a connection.
    fn receive_greeting(&self, stream: Stream) -> io::Result<(Greeting, Channel)> {
        let deadline = self.world.clock.monotonic() + GREETING_TIMEOUT;
        let tls = ServerConnection::new(Arc::clone(&self.tls)).map_err(io::Error::other)?;
        let mut channel = Channel::with_tls(stream, tls.into());
        let poller = Poller::new()?;
        poller.add(&channel, 0, Interest::READABLE)?;
        let (mut reader, mut ready) = (GreetingReader::default(), Vec::new());
        loop {
            let greeting = reader.receive(&mut channel)?;
            // Send the bytes of the TLS handshake.
            while channel.holds_unsent() && !channel.send(&[])?.blocked {}
            if let Some(greeting) = greeting {
                if channel.peer_certificates().is_empty() {
                    return Err(io::Error::other("the client has no certificate"));
                }
                poller.remove(&channel)?;
                return Ok((greeting, channel));
            }
            let left = deadline.saturating_sub(self.world.clock.monotonic());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let interest = Interest {
                readable: true,
                writable: channel.holds_unsent(),
            };
            poller.modify(&channel, 0, interest)?;
            ready.clear();
            poller.wait(Some(left), &mut ready)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use auth::{Authority, Credentials, KeyRequest, Kind, Lifetime, Subject, server_config};
    use world::simulated::SimulatedClock;
    use world::{Endpoint, Millis};
    use zeroize::Zeroizing;

    use super::*;
    use crate::HostIdentity;
    use crate::connection::RequestConnection;
    use crate::remote::connect;

    struct TestIdentity {
        chain_pem: String,
        key_pem: Zeroizing<String>,
    }

    impl HostIdentity for TestIdentity {
        fn credentials(&self) -> Result<(String, Zeroizing<String>), String> {
            Ok((self.chain_pem.clone(), self.key_pem.clone()))
        }
    }

    /// A first connection once did not count against the maximum, and timed out only when
    /// another connection arrived, so a client could hold any number of them.
    #[test]
    fn half_a_session_counts_as_a_connection_and_times_out() {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let real = World::real(1);
        let now = real.clock.wall();
        let (authority, key) = Authority::create("filter", &*real.random, now).expect("made");
        let pem = authority.certificate_pem().to_owned();
        let credentials = Credentials {
            chain_pem: &pem,
            key_pem: &key,
        };
        let tls = server_config(&[&pem], credentials).expect("a server's");
        let fingerprint = auth::certificate_key(&pem).expect("a key").to_string();
        let world = World {
            clock: Arc::clone(&clock) as _,
            ..real.clone()
        };
        let make = |_: &str, _: Attribution, _: Wake, _: &Watcher| Err("none".to_owned());
        let server = FilterServer::new(world, Arc::new(tls), Box::new(make));
        let at = "127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&Endpoint::Tcp(at), 0o600).expect("it listens");
        let Endpoint::Tcp(at) = *listener.endpoint() else {
            panic!("it is an address");
        };
        let attribution = Attribution {
            tenant: "alice".to_owned(),
            vm: None,
            volume: "disk".to_owned(),
            volume_id: None,
        };
        let request = KeyRequest::generate().expect("made");
        let subject = Subject::new(Kind::Host, "h").expect("a subject");
        let (csr, day) = (&request.request_pem, Lifetime::day(now));
        let host = authority.sign(csr, &subject, &[], day, &*real.random);
        let identity = TestIdentity {
            chain_pem: host.expect("signed"),
            key_pem: request.key_pem,
        };
        let config = chain_policy::RemoteConfig {
            address: at,
            key: fingerprint,
        };
        let launched = connect(&config, "a", &attribution, &identity, &*real.random);
        let launched = launched.expect("it connects");
        let RequestConnection::Open(mut first) = launched.requests else {
            panic!("it is a connection");
        };
        // The second connection ends before its greeting.
        drop(launched.below);

        let runs = Arc::clone(&server);
        #[expect(clippy::disallowed_methods, reason = "it ends with the process")]
        std::thread::spawn(move || runs.run(&listener));
        let connections = || Arc::strong_count(&server.permits) - 1;
        let poller = Poller::new().expect("a poller");
        let mut until = |is: &dyn Fn() -> bool| {
            for round in 0.. {
                if is() {
                    return;
                }
                assert!(round < 2000, "it never happened");
                // The handshake proceeds as the channel is used.
                let _ = first.send(&[]);
                let _ = first.receive(&mut [0; 16]);
                let short = Duration::from_millis(5);
                poller.wait(Some(short), &mut Vec::new()).expect("waited");
            }
        };
        until(&|| server.expire_half_sessions().len() == 1 && connections() == 1);
        clock.advance(GREETING_TIMEOUT);
        until(&|| connections() == 0);
    }
}
