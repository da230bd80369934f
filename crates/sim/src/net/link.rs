//! [`Link`]: a host's link to a daemon. It behaves like `TlsLink`, without threads, and
//! with the faults that the seed chooses.
//!
//! ```text
//!   send ─► queue ──┐            1. connect, greet, present capabilities
//!   try_send ───────┤ pump:      2. send the queued requests        ◄── faults
//!        └─ a job ──┘            3. the daemon carries them out     ◄── faults
//!                                4. complete them with the answers  ◄── faults
//! ```
//!
//! Invariants: each request is completed once, and never while a lock is held that another
//! request needs.

use std::io::{self, ErrorKind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::ClusterId;
use parking_lot::Mutex;
use unit_remote::{Conversation, Done, GreetingProgress, Pauses, Reply};
use unit_wire::{Request, Verb};
use world::simulated::{SimulatedClock, SimulatedRandom};
use world::{Clock, Pool};

use super::capabilities::CapabilityCache;
use super::daemon::{Abandoned, Daemon};
use super::faults::{LinkFault, LinkFaults};
use super::record::{Counts, Records};

/// The timeouts of the product's links.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const WORK_TIMEOUT: Duration = Duration::from_secs(30);
const SHOW_TIMEOUT: Duration = Duration::from_secs(6);

/// The offset of the tag in a frame, in bytes.
const TAG_AT: usize = 8;

/// The parts of a link.
pub struct Params {
    /// The cluster.
    pub cluster: ClusterId,
    /// The host, as capabilities name it.
    pub holder: [u8; 32],
    /// The daemon at the other end.
    pub daemon: Arc<Daemon>,
    /// The host's clock.
    pub clock: Arc<SimulatedClock>,
    /// The link's own random numbers.
    pub random: SimulatedRandom,
    /// The host's pool.
    pub pool: Arc<dyn Pool>,
    /// Whether requests of abandoned connections may arrive during any other exchange, or
    /// in part. If not, they arrive only by [`Daemon::deliver_abandoned`].
    pub delivers_abandoned: bool,
    /// The current faults.
    pub faults: Arc<Mutex<LinkFaults>>,
    /// The host's capabilities.
    pub capability_cache: Arc<CapabilityCache>,
    /// The record of events.
    pub records: Records,
}

/// A host's simulated link to a unit daemon.
pub struct Link {
    params: Params,
    itself: OnceLock<Weak<Self>>,
    queue: Mutex<Queue>,
    /// Locked by the caller that moves bytes.
    driver: Mutex<Driver>,
}

#[derive(Default)]
struct Queue {
    requests: Vec<QueuedRequest>,
    /// No connection is tried before this time, because of this error.
    pause: Option<(Duration, Arc<io::Error>)>,
    /// Whether the last connection failed.
    is_unavailable: bool,
}

struct QueuedRequest {
    /// The encoded request, with tag 0.
    frame: Vec<u8>,
    timeout: Duration,
    done: Done,
}

#[derive(Default)]
struct Driver {
    connection: Option<Connection>,
    pauses: Pauses,
}

/// An open connection.
struct Connection {
    conversation: Conversation,
    /// The daemon's number of the connection.
    number: u64,
    /// Encoded requests that are not sent yet.
    out: Vec<u8>,
    last_tag: u64,
    /// The longest timeout of the requests of the current exchange.
    timeout: Duration,
}

impl Connection {
    /// Adds a queued request to the next send.
    fn add(&mut self, request: QueuedRequest, now: Duration) {
        self.last_tag += 1;
        let mut frame = request.frame;
        frame[TAG_AT..TAG_AT + 8].copy_from_slice(&self.last_tag.to_le_bytes());
        self.out.extend(frame);
        let until = now + request.timeout;
        self.conversation.expect(self.last_tag, until, request.done);
        self.timeout = self.timeout.max(request.timeout);
    }
}

/// The completion of a request whose answer is ignored.
fn ignored() -> Done {
    Box::new(|_: Result<Reply<'_>, Arc<io::Error>>| {})
}

fn reset() -> io::Error {
    ErrorKind::ConnectionReset.into()
}

impl Link {
    /// A link without a connection.
    #[must_use]
    pub fn new(params: Params) -> Arc<Self> {
        let link = Arc::new(Self {
            params,
            itself: OnceLock::new(),
            queue: Mutex::default(),
            driver: Mutex::default(),
        });
        let _ = link.itself.set(Arc::downgrade(&link));
        link
    }

    /// Ends the link: the host's process has ended. Requests that it has sent may still
    /// arrive.
    pub fn end(&self) {
        let mut queue = self.queue.lock();
        let error = io::Error::other("the process has ended");
        queue.pause = Some((Duration::MAX, Arc::new(error)));
        let requests = std::mem::take(&mut queue.requests);
        drop(queue);
        drop(requests);
        if let Some(connection) = self.driver.lock().connection.take() {
            self.params
                .daemon
                .abandon(connection.number, Abandoned::ArrivesLater);
        }
    }

    /// Presents a capability. If the last connection failed, the next one begins with it.
    pub fn present(&self, capability: &[u8]) {
        if !self.queue.lock().is_unavailable {
            self.enqueue(&Request::Present(capability), ignored());
            self.pump();
        }
    }

    /// The error of the last connection, while the link pauses.
    fn pause_error(&self) -> Option<Arc<io::Error>> {
        let queue = self.queue.lock();
        let (until, error) = queue.pause.as_ref()?;
        (self.params.clock.monotonic() < *until).then(|| Arc::clone(error))
    }

    fn enqueue(&self, request: &Request<'_>, done: Done) {
        let mut frame = Vec::new();
        request.encode(0, &mut frame);
        self.count(|counts| counts.requests += 1);
        self.queue.lock().requests.push(QueuedRequest {
            frame,
            timeout: timeout_of(request.verb()),
            done,
        });
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.params.records.lock().counts);
    }

    /// Moves requests and answers until the queue is empty.
    fn pump(&self) {
        // A caller that has the driver also moves what was queued since.
        let Some(mut guard) = self.driver.try_lock() else {
            return;
        };
        let driver = &mut *guard;
        while !self.queue.lock().requests.is_empty() {
            // A daemon may close an idle connection. That is no failure.
            let daemon = &self.params.daemon;
            driver
                .connection
                .take_if(|connection| !daemon.has(connection.number));
            let moved = match &mut driver.connection {
                Some(connection) => self.exchange(connection).map(|()| driver.pauses.answered()),
                None => {
                    driver.pauses.connects();
                    self.connect()
                        .map(|connection| driver.connection = Some(connection))
                }
            };
            if let Err(error) = moved {
                self.fail(driver, &Arc::new(error));
            }
        }
    }

    /// Fails all requests with the error of their connection.
    fn fail(&self, driver: &mut Driver, error: &Arc<io::Error>) {
        let until = driver.pauses.failed(self.params.clock.monotonic(), error);
        let requests = {
            let mut queue = self.queue.lock();
            queue.pause = Some((until, Arc::clone(error)));
            queue.is_unavailable = true;
            std::mem::take(&mut queue.requests)
        };
        if let Some(connection) = driver.connection.take() {
            connection.conversation.lose(error);
        }
        for request in requests {
            (request.done)(Err(Arc::clone(error)));
        }
    }

    fn connect(&self) -> io::Result<Connection> {
        let Params {
            daemon,
            clock,
            faults,
            random,
            ..
        } = &self.params;
        let faults = *faults.lock();
        if faults.is_partitioned {
            clock.advance(CONNECT_TIMEOUT);
            return Err(ErrorKind::TimedOut.into());
        }
        clock.advance(Duration::from_micros(300));
        let refused = || io::Error::from(ErrorKind::ConnectionRefused);
        let number = daemon.connect(self.params.holder).ok_or_else(refused)?;
        let mut out = Vec::new();
        let (cluster, unit) = (self.params.cluster, daemon.id());
        let mut conversation = Conversation::begin(unit, cluster, &mut out);
        daemon.send(number, &out);
        let mut answer = Vec::new();
        let is_open = daemon.work(number, &mut answer);
        if !is_open || random.one_in(faults.before_one_in * 8) {
            daemon.abandon(number, Abandoned::Lost);
            return Err(reset());
        }
        let greeted = conversation.receive(&answer).map_err(io::Error::other)?;
        assert!(
            matches!(greeted, GreetingProgress::Now(_)),
            "a daemon greets"
        );
        let mut connection = Connection {
            conversation,
            number,
            out: Vec::new(),
            last_tag: 1,
            timeout: Duration::ZERO,
        };
        for capability in self.params.capability_cache.capabilities() {
            connection.last_tag += 1;
            let tag = connection.last_tag;
            Request::Present(&capability).encode(tag, &mut connection.out);
            let until = clock.monotonic() + WORK_TIMEOUT;
            connection.conversation.expect(tag, until, ignored());
        }
        let mut queue = self.queue.lock();
        queue.pause = None;
        queue.is_unavailable = false;
        Ok(connection)
    }

    /// Sends the queued requests, and completes them with their answers.
    fn exchange(&self, connection: &mut Connection) -> io::Result<()> {
        let Params {
            daemon,
            clock,
            random,
            delivers_abandoned,
            ..
        } = &self.params;
        let now = clock.monotonic();
        connection.timeout = Duration::ZERO;
        for request in std::mem::take(&mut self.queue.lock().requests) {
            connection.add(request, now);
        }
        let sent = std::mem::take(&mut connection.out);
        let fault = self.choose_fault(u16::from_le_bytes([sent[4], sent[5]]));
        if *delivers_abandoned && random.one_in(4) {
            daemon.deliver_abandoned();
        }
        clock.advance(Duration::from_micros(100 + random.below(400)));
        self.fail_before(connection, fault, &sent)?;
        daemon.send(connection.number, &sent);
        let mut answers = Vec::new();
        let is_open = daemon.work(connection.number, &mut answers);
        if *delivers_abandoned && random.one_in(8) {
            daemon.deliver_abandoned();
        }
        if !is_open || !daemon.is_running() {
            return Err(reset());
        }
        self.fail_after(connection, fault, &mut answers)?;
        self.receive(connection, &answers)
    }

    /// The faults of an exchange before its requests are carried out.
    fn fail_before(
        &self,
        connection: &Connection,
        fault: LinkFault,
        sent: &[u8],
    ) -> io::Result<()> {
        let (daemon, random) = (&self.params.daemon, &self.params.random);
        let number = connection.number;
        match fault {
            LinkFault::Before => {
                self.count(|counts| counts.broken_before += 1);
                daemon.abandon(number, Abandoned::Lost);
                Err(reset())
            }
            LinkFault::InRequests => {
                self.count(|counts| counts.cut_in_frame += 1);
                daemon.send(number, &sent[..random.index(sent.len())]);
                daemon.work(number, &mut Vec::new());
                daemon.abandon(number, Abandoned::Lost);
                Err(reset())
            }
            LinkFault::Late { is_unresponsive } => {
                let arrives = match random.below(4) {
                    0 if self.params.delivers_abandoned => random.index(sent.len()),
                    _ => sent.len(),
                };
                daemon.send(number, &sent[..arrives]);
                if random.one_in(2) {
                    // The requests have arrived, and wait for their turn.
                    daemon.read(number, &mut Vec::new());
                }
                daemon.abandon(number, Abandoned::ArrivesLater);
                if !is_unresponsive {
                    return Err(reset());
                }
                self.params.clock.advance(connection.timeout);
                Err(self.timed_out())
            }
            LinkFault::None | LinkFault::After | LinkFault::InAnswers | LinkFault::Slow => Ok(()),
        }
    }

    /// The faults of an exchange after its requests were carried out.
    fn fail_after(
        &self,
        connection: &mut Connection,
        fault: LinkFault,
        answers: &mut Vec<u8>,
    ) -> io::Result<()> {
        let (daemon, random) = (&self.params.daemon, &self.params.random);
        match fault {
            LinkFault::After => {
                self.count(|counts| counts.answers_lost += 1);
                daemon.abandon(connection.number, Abandoned::Lost);
                Err(reset())
            }
            LinkFault::InAnswers => {
                self.count(|counts| counts.cut_in_frame += 1);
                answers.truncate(random.index(answers.len().max(1)));
                let received = connection.conversation.receive(answers);
                daemon.abandon(connection.number, Abandoned::Lost);
                Err(match received {
                    Ok(_) => reset(),
                    Err(broken) => io::Error::new(ErrorKind::InvalidData, broken),
                })
            }
            LinkFault::Slow => {
                let short = Duration::from_millis(1 + random.below(2000));
                let delay = match random.below(4) {
                    0 => connection.timeout,
                    _ => short,
                };
                self.params.clock.advance(delay);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Completes requests with their answers, unless they have timed out.
    fn receive(&self, connection: &mut Connection, answers: &[u8]) -> io::Result<()> {
        let Params { daemon, clock, .. } = &self.params;
        if connection.conversation.is_overdue(clock.monotonic()) {
            daemon.abandon(connection.number, Abandoned::Lost);
            return Err(self.timed_out());
        }
        for piece in self.pieces(answers) {
            let received = connection.conversation.receive(piece);
            received.map_err(|broken| io::Error::new(ErrorKind::InvalidData, broken))?;
        }
        if connection.conversation.waiting() > 0 {
            let violation = "an idle daemon has not answered a request".to_owned();
            self.params.records.lock().violations.push(violation);
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn timed_out(&self) -> io::Error {
        self.count(|counts| counts.timed_out += 1);
        io::Error::new(ErrorKind::TimedOut, "the daemon does not answer")
    }

    /// The answers, in pieces of random length.
    fn pieces<'a>(&self, answers: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let length_max = match self.params.random.below(4) {
            0 => 1 + self.params.random.index(100),
            _ => 256 << 10,
        };
        answers.chunks(length_max)
    }

    /// Chooses the fault of an exchange whose first request has this verb code.
    fn choose_fault(&self, code: u16) -> LinkFault {
        let random = &self.params.random;
        let faults = *self.params.faults.lock();
        if faults.is_partitioned {
            return LinkFault::Late {
                is_unresponsive: true,
            };
        }
        let fault = faults.choose(code, random);
        if fault != LinkFault::None && faults.is_once {
            *self.params.faults.lock() = LinkFaults::default();
        }
        fault
    }
}

impl unit_remote::Link for Link {
    fn send(&self, request: &Request<'_>, done: Done) {
        self.params.capability_cache.renew();
        if let Some(error) = self.pause_error() {
            return done(Err(error));
        }
        self.enqueue(request, done);
        self.pump();
    }

    fn try_send(&self, request: &Request<'_>, done: Done) -> bool {
        if self.pause_error().is_some() {
            return false;
        }
        self.enqueue(request, done);
        let itself = self.itself.get().and_then(Weak::upgrade);
        let itself = itself.expect("the caller has a reference");
        self.params.pool.run(Box::new(move || itself.pump()));
        true
    }
}

/// The time after which a daemon that has not answered counts as unavailable.
fn timeout_of(verb: Verb) -> Duration {
    match verb {
        Verb::Present => SHOW_TIMEOUT,
        Verb::Sync | Verb::Free | Verb::Delete | Verb::List | Verb::Replace | Verb::Scrub => {
            WORK_TIMEOUT
        }
        _ => ANSWER_TIMEOUT,
    }
}
