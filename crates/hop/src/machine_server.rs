//! [`BoxServer`]: boxes for the disks of other machines: `scree box`.
//!
//! Each connection has a thread until its greeting is there; the second one of a session
//! becomes the session's thread. Nobody is heard who shows no certificate of the authority.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::with_causes;
use chain::{Attribution, MiddleBox};
use channel::{Channel, Pipe as _};
use frontend::nbd::Watcher;
use rustls::{ServerConfig, ServerConnection};
use world::real::{Listener, Poller, Stream};
use world::{Interest, Wake, World};

use crate::machine::{Greeting, GreetingReader, Role};
use crate::serve::{ServeError, serve_boxes};

/// A connection says who it is within this, and the second one follows within it.
const GREETING_WITHIN: Duration = Duration::from_secs(10);

/// So many connections there are at most.
const CONNECTIONS_MAX: usize = 512;

/// Makes the boxes of a disk: what they are called, whose disk it is, and what they are woken
/// and watched by.
pub type MakeBoxes = dyn Fn(&str, Attribution, Wake, &Watcher) -> Result<Vec<Box<dyn MiddleBox>>, String>
    + Send
    + Sync;

/// See the module's head.
pub struct BoxServer {
    world: World,
    tls: Arc<ServerConfig>,
    make: Box<MakeBoxes>,
    /// First connections of sessions, each with when it came.
    halves: Mutex<HashMap<String, (Duration, Greeting, Channel)>>,
    /// One for each connection, and this one.
    places: Arc<()>,
}

impl BoxServer {
    /// Clients are known by `tls`, which must ask for a certificate.
    #[must_use]
    pub fn new(world: World, tls: Arc<ServerConfig>, make: Box<MakeBoxes>) -> Arc<Self> {
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
            poller.wait(None, &mut ready)?;
            while let Some(stream) = listener.accept()? {
                self.welcome(stream);
            }
        }
    }

    fn welcome(self: &Arc<Self>, stream: Stream) {
        // It is counted as long as its thread has this.
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
            .name("box".to_owned())
            .spawn(move || {
                if let Err(why) = server.attend(stream) {
                    tracing::warn!(why, "a connection has ended");
                }
                drop(place);
            });
        if let Err(error) = begun {
            tracing::warn!(%error, "a connection is refused");
        }
    }

    fn attend(&self, stream: Stream) -> Result<(), String> {
        let (greeting, channel) = self.greeted(stream).map_err(|error| error.to_string())?;
        let now = self.world.clock.monotonic();
        let other = {
            let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
            halves.retain(|_, (came, ..)| *came + GREETING_WITHIN > now);
            match halves.remove(&greeting.session) {
                Some(other) => other,
                None => {
                    halves.insert(greeting.session.clone(), (now, greeting, channel));
                    return Ok(());
                }
            }
        };
        let (_, first, other) = other;
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
            "a disk has a box here"
        );
        let served = serve_boxes(&self.world, (requests, asks), |wake, watcher| {
            (self.make)(&greeting.name, whose, wake, watcher).map_err(ServeError::Boxes)
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
