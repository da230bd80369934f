//! [`FilterProgram`]: a filter's program as a chain has it: an NBD client of it, an NBD server for
//! it, and what starts it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};
use chain::{Door, Link, Program, Remote};
use nbd::client::{ClientOptions, NbdClient, Reconnect, State, Target};
use nbd::{ExportOptions, Leg, Watched, Watcher};
use net::Channel;
use world::real::{Listener, Stream};
use world::{Clock, Endpoint, Interest};

use crate::launch::{self, Child};

/// The name of the one export on either side.
pub(crate) const EXPORT: &str = "disk";

/// A program that makes its socket itself is tried so often.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// No request is late as such: whether a program hangs its filter says, which knows what is
/// under way below.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A program that was started.
pub(crate) struct Launched {
    /// Where it takes requests.
    pub requests: Requests,
    /// Where it asks for what it needs.
    pub asks: Asks,
    /// The process, which ends with this; none: it runs elsewhere.
    pub child: Option<Child>,
}

/// Where a program takes requests.
pub(crate) enum Requests {
    /// Over this, at once.
    Over(Channel),
    /// At a socket that it makes.
    At(Endpoint),
}

/// Where a program asks for what it needs.
pub(crate) enum Asks {
    /// Over this.
    Over(Channel),
    /// It connects, once or more often.
    By(Listener),
}

/// Starts a program; in a thread that may wait.
pub(crate) trait Launch: Send {
    /// Begins to start it. Who waits is woken when something has come.
    fn launch(&self) -> Receiver<io::Result<Launched>>;
}

enum Life {
    /// Nothing runs.
    None(String),
    /// It is being started.
    Starting(Receiver<io::Result<Launched>>),
    /// It runs, and may not have made its socket yet.
    Running {
        child: Option<Child>,
        listener: Option<Watched<Listener>>,
        /// Where to connect, and when that is tried.
        connect: Option<(Endpoint, Duration)>,
    },
    /// All goes round it.
    Bypassed,
}

/// See the module's head.
pub(crate) struct FilterProgram {
    client: NbdClient,
    leg: Leg<Door>,
    life: Life,
    launch: Box<dyn Launch>,
    watcher: Watcher,
    clock: Arc<dyn Clock>,
}

impl FilterProgram {
    pub fn new(
        door: Door,
        launch: Box<dyn Launch>,
        export: &str,
        clock: Arc<dyn Clock>,
        watcher: Watcher,
    ) -> Self {
        let mut options = ClientOptions::new(export, Arc::clone(&clock));
        // Only so that acknowledged changes are kept: where to go on the launch says.
        options.reconnect = Reconnect::Again {
            min: TRY_AGAIN,
            max: TRY_AGAIN,
        };
        options.request_timeout = NEVER;
        let client = NbdClient::new(Target::Later, options, watcher.clone());
        let export = ExportOptions::new(EXPORT, Arc::clone(&clock));
        Self {
            client,
            leg: Leg::new(door, export, watcher.clone()),
            life: Life::None("it was not started".to_owned()),
            launch,
            watcher,
            clock,
        }
    }

    /// Ends what runs.
    fn end(&mut self, why: &str) {
        self.life = Life::None(why.to_owned());
        self.leg.close_all();
    }

    /// The program is there, or is coming.
    fn began(&mut self, launched: Launched) -> io::Result<()> {
        let listener = match launched.asks {
            Asks::Over(channel) => {
                self.leg.welcome(channel)?;
                None
            }
            Asks::By(listener) => Some(self.watcher.watch(listener, Interest::READABLE)?),
        };
        let connect = match launched.requests {
            Requests::Over(channel) => {
                self.client.connect_over(channel);
                None
            }
            Requests::At(endpoint) => Some((endpoint, self.clock.monotonic())),
        };
        self.life = Life::Running {
            child: launched.child,
            listener,
            connect,
        };
        Ok(())
    }

    /// Looks after the program's beginning.
    fn look(&mut self) -> io::Result<()> {
        match &mut self.life {
            Life::Starting(coming) => match coming.try_recv() {
                Ok(launched) => {
                    let launched = launched?;
                    self.began(launched)?;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("nobody starts it"));
                }
            },
            Life::Running {
                child,
                listener,
                connect,
            } => {
                // While it is connected a socket says so first.
                let is_waited_for = connect.is_some() || self.client.state() != State::Ready;
                if is_waited_for
                    && let Some(child) = child
                    && let Some(status) = child.ended()?
                {
                    return Err(io::Error::other(format!("it has ended: {status}")));
                }
                if let Some(listener) = listener
                    && listener.take_seen().readable
                {
                    while let Some(stream) = listener.source().accept()? {
                        self.leg.welcome(Channel::new(stream))?;
                    }
                }
                let now = self.clock.monotonic();
                if let Some((endpoint, at)) = connect
                    && *at <= now
                {
                    match Stream::connect(endpoint) {
                        Ok(stream) => {
                            *connect = None;
                            self.client.connect_over(Channel::new(stream));
                        }
                        // It has not made its socket yet; how long that may take its filter says.
                        Err(_) => *at = now + TRY_AGAIN,
                    }
                }
            }
            Life::None(_) | Life::Bypassed => {}
        }
        Ok(())
    }
}

impl Program for FilterProgram {
    fn launch(&mut self) {
        self.end("it was ended");
        self.life = Life::Starting(self.launch.launch());
    }

    fn bypass(&mut self) {
        self.end("it was ended");
        let joined = launch::pair().and_then(|(one, other)| {
            self.leg.welcome(Channel::new(other))?;
            self.client.connect_over(Channel::new(one));
            Ok(())
        });
        self.life = match joined {
            Ok(()) => Life::Bypassed,
            Err(error) => Life::None(error.to_string()),
        };
    }

    fn give_up(&mut self, why: &str) {
        self.end(why);
        self.client.give_up(why);
    }
}

impl Remote for FilterProgram {
    fn link(&self) -> Link {
        match (&self.life, self.client.state()) {
            (Life::None(why), _) => Link::Broken(why.clone()),
            (Life::Starting(_), _) => Link::Connecting,
            // It has not been connected yet: what was before does not count.
            (
                Life::Running {
                    connect: Some(_), ..
                },
                _,
            ) => Link::Connecting,
            (_, State::Connecting) => Link::Connecting,
            (_, State::Ready) => Link::Ready,
            (_, State::Broken { why }) => Link::Broken(why.to_string()),
        }
    }
}

impl BlockDevice for FilterProgram {
    fn geometry(&self) -> DeviceGeometry {
        self.client.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.client.capabilities()
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        self.client.start(request)
    }

    fn commit(&mut self) -> Result<(), IoError> {
        self.client.commit()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if let Err(error) = self.look() {
            self.end(&error.to_string());
        }
        self.client.poll(completions);
        self.leg.turn();
    }

    fn next_timer(&self) -> Option<Duration> {
        let connect = match &self.life {
            Life::Running {
                connect: Some((_, at)),
                ..
            } => Some(at.saturating_sub(self.clock.monotonic())),
            _ => None,
        };
        let timers = [connect, self.client.next_timer(), self.leg.sleep()];
        timers.into_iter().flatten().min()
    }
}
