//! [`FilterServer`]: filters for the disks of other machines: `scree filter-server`.
//!
//! Each connection has a thread until its greeting is there; the second one of a session
//! becomes the session's thread. Nobody is heard who shows no certificate of the authority.
//!
//! Invariant: whatever a connection waits for, it counts as one, and what does not follow in
//! time ends it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::with_causes;
use chain::{Attribution, Filter};
use nbd::Watcher;
use net::{Channel, Pipe as _};
use rustls::{ServerConfig, ServerConnection};
use world::real::{Listener, Poller, Stream};
use world::{Interest, Wake, World};

use crate::machine::{Greeting, GreetingReader, Role};
use crate::serve::{ServeError, serve_filters};

/// A connection says who it is within this, and the second one follows within it.
const GREETING_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether it did, while there are connections.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// So many connections there are at most: those of sessions, of which each has two, and those
/// that wait.
const CONNECTIONS_MAX: usize = 512;

/// Makes the filters of a disk: what they are called, whose disk it is, and what they are woken
/// and watched by.
pub type MakeFilters =
    dyn Fn(&str, Attribution, Wake, &Watcher) -> Result<Vec<Box<dyn Filter>>, String> + Send + Sync;

/// The first connection of a session.
struct Half {
    came: Duration,
    greeting: Greeting,
    channel: Channel,
    place: Arc<()>,
}

/// See the module's head.
pub struct FilterServer {
    world: World,
    tls: Arc<ServerConfig>,
    make: Box<MakeFilters>,
    /// Those of sessions whose second connection is to come.
    halves: Mutex<HashMap<String, Half>>,
    /// One for each connection, and this one.
    places: Arc<()>,
}

impl FilterServer {
    /// Clients are known by `tls`, which must ask for a certificate.
    #[must_use]
    pub fn new(world: World, tls: Arc<ServerConfig>, make: Box<MakeFilters>) -> Arc<Self> {
        Arc::new(Self {
            world,
            tls,
            make,
            halves: Mutex::default(),
            places: Arc::default(),
        })
    }

    /// Takes connections until the process ends.
    ///
    /// # Errors
    /// If it cannot listen any more.
    pub fn run(self: &Arc<Self>, listener: &Listener) -> io::Result<()> {
        let poller = Poller::new()?;
        poller.add(listener, 0, Interest::READABLE)?;
        let mut ready = Vec::new();
        loop {
            ready.clear();
            let is_used = Arc::strong_count(&self.places) > 1;
            poller.wait(is_used.then_some(LOOK_EVERY), &mut ready)?;
            drop(self.halves());
            while let Some(stream) = listener.accept()? {
                self.welcome(stream);
            }
        }
    }

    fn welcome(self: &Arc<Self>, stream: Stream) {
        // It is counted as long as it has this.
        let place = Arc::clone(&self.places);
        if Arc::strong_count(&place) > CONNECTIONS_MAX + 1 {
            tracing::warn!("a connection is refused: there are too many");
            return;
        }
        let server = Arc::clone(self);
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the session: no job for a pool"
        )]
        let begun = std::thread::Builder::new()
            .name("filter".to_owned())
            .spawn(move || {
                if let Err(why) = server.attend(stream, place) {
                    tracing::warn!(why, "a connection has ended");
                }
            });
        if let Err(error) = begun {
            tracing::warn!(%error, "a connection is refused");
        }
    }

    /// Those that wait; what has waited for too long has ended.
    fn halves(&self) -> MutexGuard<'_, HashMap<String, Half>> {
        let now = self.world.clock.monotonic();
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        halves.retain(|_, half| {
            let is_waiting = half.came + GREETING_WITHIN > now;
            if !is_waiting {
                tracing::warn!(
                    name = half.greeting.name,
                    "the second connection did not come"
                );
            }
            is_waiting
        });
        halves
    }

    fn attend(&self, stream: Stream, place: Arc<()>) -> Result<(), String> {
        let (greeting, channel) = self.greeted(stream).map_err(|error| error.to_string())?;
        let half = {
            let mut halves = self.halves();
            match halves.remove(&greeting.session) {
                Some(half) => half,
                None => {
                    let half = Half {
                        came: self.world.clock.monotonic(),
                        greeting,
                        channel,
                        place,
                    };
                    halves.insert(half.greeting.session.clone(), half);
                    return Ok(());
                }
            }
        };
        // Both have theirs until the session ends.
        let _places = (place, half.place);
        let (first, other) = (half.greeting, half.channel);
        let matches = Greeting {
            role: first.role,
            ..greeting.clone()
        };
        let (requests, asks) = match (first.role, greeting.role) {
            (Role::Requests, Role::Asks) if matches == first => (other, channel),
            (Role::Asks, Role::Requests) if matches == first => (channel, other),
            _ => return Err("two connections of a session do not belong together".to_owned()),
        };
        let whose = greeting.whose;
        tracing::info!(
            tenant = whose.tenant,
            volume = whose.volume,
            vm = whose.vm,
            name = greeting.name,
            "a disk has a filter here"
        );
        let served = serve_filters(&self.world, (requests, asks), |wake, watcher| {
            (self.make)(&greeting.name, whose, wake, watcher).map_err(ServeError::Filters)
        });
        served.map_err(|error| with_causes(&error))
    }

    /// Waits for the greeting.
    fn greeted(&self, stream: Stream) -> io::Result<(Greeting, Channel)> {
        let deadline = self.world.clock.monotonic() + GREETING_WITHIN;
        let tls = ServerConnection::new(Arc::clone(&self.tls)).map_err(io::Error::other)?;
        let mut channel = Channel::with_tls(stream, tls.into());
        let poller = Poller::new()?;
        poller.add(&channel, 0, Interest::READABLE)?;
        let (mut reader, mut ready) = (GreetingReader::default(), Vec::new());
        loop {
            let greeting = reader.receive(&mut channel)?;
            // The handshake's own bytes.
            while channel.holds_unsent() && !channel.send(&[])?.blocked {}
            if let Some(greeting) = greeting {
                if channel.peer_certificates().is_empty() {
                    return Err(io::Error::other("it has shown no certificate"));
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
    use crate::machine::call;
    use crate::program::Requests;

    struct Known(String, Zeroizing<String>);

    impl HostIdentity for Known {
        fn credentials(&self) -> Result<(String, Zeroizing<String>), String> {
            Ok((self.0.clone(), self.1.clone()))
        }
    }

    /// What was only half there was ended when another connection came, and did not count
    /// before: whoever made first connections only had any number of them.
    #[test]
    fn half_a_session_counts_and_ends_by_itself() {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let real = World::real(1);
        let now = real.clock.wall();
        let (authority, key) = Authority::found("filter", &*real.random, now).expect("made");
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
        let whose = Attribution {
            tenant: "alice".to_owned(),
            vm: None,
            volume: "disk".to_owned(),
            volume_id: None,
        };
        let request = KeyRequest::generate().expect("made");
        let subject = Subject::new(Kind::Host, "h").expect("a subject");
        let (asked, day) = (&request.request_pem, Lifetime::day(now));
        let host = authority.sign(asked, &subject, &[], day, &*real.random);
        let known = Known(host.expect("signed"), request.key_pem);
        let launched = call((at, &fingerprint), "a", &whose, &known, &*real.random);
        let launched = launched.expect("it connects");
        let Requests::Over(mut first) = launched.requests else {
            panic!("it is a connection");
        };
        // The second one never says what it is.
        drop(launched.asks);

        let runs = Arc::clone(&server);
        #[expect(clippy::disallowed_methods, reason = "it ends with the process")]
        std::thread::spawn(move || runs.run(&listener));
        let waits = || Arc::strong_count(&server.places) - 1;
        let poller = Poller::new().expect("a poller");
        let mut until = |is: &dyn Fn() -> bool| {
            for round in 0.. {
                if is() {
                    return;
                }
                assert!(round < 2000, "it does not come");
                // Who holds unsent bytes sends them.
                let _ = first.send(&[]);
                let _ = first.receive(&mut [0; 16]);
                let short = Duration::from_millis(5);
                poller.wait(Some(short), &mut Vec::new()).expect("waited");
            }
        };
        until(&|| server.halves().len() == 1 && waits() == 1);
        clock.advance(GREETING_WITHIN);
        until(&|| waits() == 0);
    }
}
