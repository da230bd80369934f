//! [`FilterConnection`]: an out-of-process filter as its chain uses it. It consists of an NBD
//! client that sends requests to the filter, an embedded NBD server through which the filter uses
//! the disk below, and a launcher that starts the filter.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};
use chain::{FilterBackend, LinkState, PendingQueue, RemoteDisk};
use nbd::client::{ClientOptions, NbdClient, Reconnect, State, Target};
use nbd::{EmbeddedServer, ExportOptions, WatchedSource, Watcher};
use net::Channel;
use world::real::{Listener, Stream};
use world::{Clock, Endpoint, Interest};

use crate::launchers::Launcher;
use crate::process::{FilterProcess, socket_pair};

/// The name of the export on either side.
pub(crate) const EXPORT: &str = "disk";

/// The interval of attempts to connect to a socket that the filter creates.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// A request timeout that never expires. Only the chain's filter knows what is outstanding below,
/// so it decides when the process hangs.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A filter that was started.
pub(crate) struct LaunchedFilter {
    pub requests: RequestConnection,
    pub below: BelowConnection,
    /// The process, which is killed when this is dropped; `None` if the filter runs on another
    /// machine.
    pub process: Option<FilterProcess>,
}

/// How requests reach the filter.
pub(crate) enum RequestConnection {
    /// Over an open channel.
    Open(Channel),
    /// Over a socket that the filter creates.
    Socket(Endpoint),
}

/// How the filter reaches the disk below.
pub(crate) enum BelowConnection {
    /// Over an open channel.
    Open(Channel),
    /// Over connections that it makes to a socket.
    Listening(Listener),
}

/// A connection that is to be made.
struct PendingConnect {
    endpoint: Endpoint,
    /// The time of the next attempt.
    at: Duration,
}

enum Life {
    /// Nothing runs, for this reason.
    Stopped(String),
    /// The filter is being started.
    Starting(Receiver<io::Result<LaunchedFilter>>),
    /// The filter runs.
    Running {
        process: Option<FilterProcess>,
        listener: Option<WatchedSource<Listener>>,
        /// `Some` while the filter has not created its socket.
        connect: Option<PendingConnect>,
    },
    /// Requests go directly to the disk below.
    Bypassed,
}

/// An out-of-process filter as its chain uses it.
pub(crate) struct FilterConnection {
    client: NbdClient,
    server: EmbeddedServer<PendingQueue>,
    life: Life,
    launcher: Box<dyn Launcher>,
    watcher: Watcher,
    clock: Arc<dyn Clock>,
}

impl FilterConnection {
    pub fn new(
        queue: PendingQueue,
        launcher: Box<dyn Launcher>,
        export: &str,
        clock: Arc<dyn Clock>,
        watcher: Watcher,
    ) -> Self {
        let mut options = ClientOptions::new(export, Arc::clone(&clock));
        // The client keeps acknowledged changes only if it reconnects. It has no target: each
        // launch gives it a channel.
        options.reconnect = Reconnect::Backoff {
            min: CONNECT_INTERVAL,
            max: CONNECT_INTERVAL,
        };
        options.request_timeout = NEVER;
        let client = NbdClient::new(Target::Later, options, watcher.clone());
        let export = ExportOptions::new(EXPORT, Arc::clone(&clock));
        Self {
            client,
            server: EmbeddedServer::new(queue, export, watcher.clone()),
            life: Life::Stopped("the filter was not started".to_owned()),
            launcher,
            watcher,
            clock,
        }
    }

    /// Stops the filter.
    fn stop(&mut self, why: &str) {
        self.life = Life::Stopped(why.to_owned());
        self.server.close_all();
    }

    /// Connects to a filter that was started.
    fn attach(&mut self, launched: LaunchedFilter) -> io::Result<()> {
        let listener = match launched.below {
            BelowConnection::Open(channel) => {
                self.server.add_connection(channel)?;
                None
            }
            BelowConnection::Listening(listener) => {
                Some(self.watcher.watch(listener, Interest::READABLE)?)
            }
        };
        let connect = match launched.requests {
            RequestConnection::Open(channel) => {
                self.client.connect_over(channel);
                None
            }
            RequestConnection::Socket(endpoint) => Some(PendingConnect {
                endpoint,
                at: self.clock.monotonic(),
            }),
        };
        self.life = Life::Running {
            process: launched.process,
            listener,
            connect,
        };
        Ok(())
    }

    /// Takes the next step of starting and connecting.
    fn advance(&mut self) -> io::Result<()> {
        match &mut self.life {
            Life::Starting(launching) => match launching.try_recv() {
                Ok(launched) => {
                    let launched = launched?;
                    self.attach(launched)?;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other(
                        "the job that starts the filter was dropped",
                    ));
                }
            },
            Life::Running {
                process,
                listener,
                connect,
            } => {
                // While the client is connected, its socket reports the end first.
                let is_connecting = connect.is_some() || self.client.state() != State::Ready;
                if is_connecting
                    && let Some(process) = process
                    && let Some(status) = process.exit_status()?
                {
                    return Err(io::Error::other(format!("its process exited: {status}")));
                }
                if let Some(listener) = listener
                    && listener.take_readiness().readable
                {
                    while let Some(stream) = listener.source().accept()? {
                        self.server.add_connection(Channel::new(stream))?;
                    }
                }
                let now = self.clock.monotonic();
                if let Some(pending) = connect
                    && pending.at <= now
                {
                    match Stream::connect(&pending.endpoint) {
                        Ok(stream) => {
                            *connect = None;
                            self.client.connect_over(Channel::new(stream));
                        }
                        // The filter has not created its socket yet. The chain's filter decides
                        // how long that may take.
                        Err(_) => pending.at = now + CONNECT_INTERVAL,
                    }
                }
            }
            Life::Stopped(_) | Life::Bypassed => {}
        }
        Ok(())
    }
}

impl FilterBackend for FilterConnection {
    fn launch(&mut self) {
        self.stop("the filter was stopped");
        self.life = Life::Starting(self.launcher.launch());
    }

    fn bypass(&mut self) {
        self.stop("the filter was stopped");
        let joined = socket_pair().and_then(|(one, other)| {
            self.server.add_connection(Channel::new(other))?;
            self.client.connect_over(Channel::new(one));
            Ok(())
        });
        self.life = match joined {
            Ok(()) => Life::Bypassed,
            Err(error) => Life::Stopped(error.to_string()),
        };
    }

    fn give_up(&mut self, why: &str) {
        self.stop(why);
        self.client.give_up(why);
    }
}

impl RemoteDisk for FilterConnection {
    fn link_state(&self) -> LinkState {
        match (&self.life, self.client.state()) {
            (Life::Stopped(why), _) => LinkState::Broken(why.clone()),
            (Life::Starting(_), _) => LinkState::Connecting,
            // The client's state is that of the connection before.
            (
                Life::Running {
                    connect: Some(_), ..
                },
                _,
            ) => LinkState::Connecting,
            (_, State::Connecting) => LinkState::Connecting,
            (_, State::Ready) => LinkState::Ready,
            (_, State::Disconnected { error }) => LinkState::Broken(error.to_string()),
        }
    }
}

impl BlockDevice for FilterConnection {
    fn geometry(&self) -> DeviceGeometry {
        self.client.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.client.capabilities()
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        self.client.start(request)
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.client.end_batch()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if let Err(error) = self.advance() {
            self.stop(&error.to_string());
        }
        self.client.poll(completions);
        self.server.turn();
    }

    fn next_timer(&self) -> Option<Duration> {
        let connect = match &self.life {
            Life::Running {
                connect: Some(pending),
                ..
            } => Some(pending.at.saturating_sub(self.clock.monotonic())),
            _ => None,
        };
        let timers = [connect, self.client.next_timer(), self.server.next_timer()];
        timers.into_iter().flatten().min()
    }
}
