//! A host's way to a daemon: what `TlsLink` is, without threads, and with whatever
//! the seed does to it.
//!
//! ```text
//!   ask ──► asked ──┐            1. connect, greet, show
//!   try_ask ────────┤ pump:      2. send what was asked        ◄── struck here
//!        └─ a job ──┘            3. the daemon carries it out  ◄── or here
//!                                4. whoever asked is told      ◄── or here
//! ```
//!
//! Invariants: whoever asked is told once; nobody is told under a lock that asking
//! takes.

use std::io::{self, ErrorKind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::ClusterId;
use parking_lot::Mutex;
use unit_remote::{Conversation, Done, Greeted, Pauses, Reply};
use unit_wire::{Request, Verb};
use world::simulated::{SimulatedClock, SimulatedRandom};
use world::{Clock, Pool};

use super::Records;
use super::capabilities::CapabilityCache;
use super::daemon::Daemon;

/// As with the product's links: when a connection is given up.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const WORK_WITHIN: Duration = Duration::from_secs(30);
const SHOWN_WITHIN: Duration = Duration::from_secs(6);

/// Where a frame has its tag.
const TAG_AT: usize = 8;

/// What goes wrong on the way to a daemon: one in so many exchanges, none if zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strikes {
    /// Nothing passes.
    pub is_cut: bool,
    /// The connection breaks before what is sent arrives.
    pub before_one_in: u64,
    /// It breaks after that was carried out.
    pub after_one_in: u64,
    /// It breaks in the middle of what is sent, or of what is answered.
    pub within_one_in: u64,
    /// It is given up, and what was sent arrives later.
    pub late_one_in: u64,
    /// It takes a while, up to more than is waited for.
    pub slow_one_in: u64,
    /// The first of these is the last.
    pub is_once: bool,
    /// Only what begins with such a request is struck.
    pub only: Option<Verb>,
}

/// What happens to one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    Nothing,
    Before,
    After,
    InRequest,
    InAnswer,
    Late { is_unresponsive: bool },
    Slow,
}

/// What a link is made of.
pub struct Params {
    /// The cluster.
    pub cluster: ClusterId,
    /// Whose it is.
    pub holder: [u8; 32],
    /// Where it leads.
    pub daemon: Arc<Daemon>,
    /// The host's.
    pub clock: Arc<SimulatedClock>,
    /// Its own.
    pub random: SimulatedRandom,
    /// The host's.
    pub pool: Arc<dyn Pool>,
    /// Whether what was given up may arrive whenever something else is asked, or in
    /// part. Else all of it does, when that is said.
    pub haunts: bool,
    /// What goes wrong.
    pub strikes: Arc<Mutex<Strikes>>,
    /// What the host may do.
    pub capability_cache: Arc<CapabilityCache>,
    /// Where it is told what happens.
    pub records: Records,
}

/// A host's simulated link to a unit daemon.
pub struct Link {
    params: Params,
    itself: OnceLock<Weak<Self>>,
    queue: Mutex<Queue>,
    /// Taken by whoever moves bytes.
    driver: Mutex<Driver>,
}

#[derive(Default)]
struct Queue {
    asked: Vec<Asked>,
    /// Nothing is tried before then, and this is why.
    pause: Option<(Duration, Arc<io::Error>)>,
    is_away: bool,
}

struct Asked {
    /// With tag 0.
    frame: Vec<u8>,
    within: Duration,
    done: Done,
}

struct Driver {
    used: Option<Used>,
    pauses: Pauses,
}

/// A connection that is used.
struct Used {
    conversation: Conversation,
    number: u64,
    out: Vec<u8>,
    tag: u64,
    /// The longest that anybody waits on it.
    patience: Duration,
}

impl Link {
    /// A link without a connection.
    #[must_use]
    pub fn new(params: Params) -> Arc<Self> {
        let link = Arc::new(Self {
            params,
            itself: OnceLock::new(),
            queue: Mutex::default(),
            driver: Mutex::new(Driver {
                used: None,
                pauses: Pauses::default(),
            }),
        });
        let _ = link.itself.set(Arc::downgrade(&link));
        link
    }

    /// The host's process has ended. What it has sent may still arrive.
    pub fn end(&self) {
        let mut queue = self.queue.lock();
        let why = io::Error::other("the process has ended");
        queue.pause = Some((Duration::MAX, Arc::new(why)));
        let asked = std::mem::take(&mut queue.asked);
        drop(queue);
        drop(asked);
        if let Some(used) = self.driver.lock().used.take() {
            self.params.daemon.give_up(used.number, true);
        }
    }

    /// Shows a capability, unless the daemon was away: then it is shown first when it
    /// is back.
    pub fn show(&self, capability: &[u8]) {
        if !self.queue.lock().is_away {
            let nobody = |_: Result<Reply<'_>, Arc<io::Error>>| {};
            self.put(&Request::Present(capability), Box::new(nobody));
            self.pump();
        }
    }

    fn why_not(&self) -> Option<Arc<io::Error>> {
        let queue = self.queue.lock();
        let (until, why) = queue.pause.as_ref()?;
        (self.params.clock.monotonic() < *until).then(|| Arc::clone(why))
    }

    fn put(&self, request: &Request<'_>, done: Done) {
        let mut frame = Vec::new();
        request.encode(0, &mut frame);
        self.params.records.lock().counts.asked += 1;
        self.queue.lock().asked.push(Asked {
            frame,
            within: within(request.verb()),
            done,
        });
    }

    /// Moves what was asked there, and answers back, until nobody waits.
    fn pump(&self) {
        // Whoever has it goes on with what was asked since.
        let Some(mut guard) = self.driver.try_lock() else {
            return;
        };
        let driver = &mut *guard;
        while !self.queue.lock().asked.is_empty() {
            // One that has closed what nobody used has not failed.
            let daemon = &self.params.daemon;
            driver.used.take_if(|used| !daemon.has(used.number));
            let exchanged = match &mut driver.used {
                Some(used) => self.exchange(used).map(|()| driver.pauses.answered()),
                None => {
                    driver.pauses.connects();
                    self.connect().map(|used| driver.used = Some(used))
                }
            };
            if let Err(why) = exchanged {
                self.fail(driver, &Arc::new(why));
            }
        }
    }

    /// Whoever waits is told why there is no connection any more.
    fn fail(&self, driver: &mut Driver, why: &Arc<io::Error>) {
        let until = driver.pauses.failed(self.params.clock.monotonic(), why);
        let asked = {
            let mut queue = self.queue.lock();
            queue.pause = Some((until, Arc::clone(why)));
            queue.is_away = true;
            std::mem::take(&mut queue.asked)
        };
        if let Some(used) = driver.used.take() {
            used.conversation.lose(why);
        }
        for asked in asked {
            (asked.done)(Err(Arc::clone(why)));
        }
    }

    fn connect(&self) -> io::Result<Used> {
        let Params {
            daemon,
            clock,
            strikes,
            random,
            ..
        } = &self.params;
        let strikes = *strikes.lock();
        if strikes.is_cut {
            clock.advance(CONNECT_WITHIN);
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
        let is_there = daemon.work(number, &mut answer);
        if !is_there || random.one_in(strikes.before_one_in * 8) {
            daemon.give_up(number, false);
            return Err(ErrorKind::ConnectionReset.into());
        }
        let greeted = conversation.receive(&answer).map_err(io::Error::other)?;
        assert!(matches!(greeted, Greeted::Now(_)), "a daemon greets");
        let mut used = Used {
            conversation,
            number,
            out: Vec::new(),
            tag: 1,
            patience: Duration::ZERO,
        };
        for capability in self.params.capability_cache.capabilities() {
            let nobody = |_: Result<Reply<'_>, Arc<io::Error>>| {};
            used.tag += 1;
            Request::Present(&capability).encode(used.tag, &mut used.out);
            let until = clock.monotonic() + WORK_WITHIN;
            used.conversation.expect(used.tag, until, Box::new(nobody));
        }
        let mut queue = self.queue.lock();
        queue.pause = None;
        queue.is_away = false;
        Ok(used)
    }

    /// Sends what was asked, and takes the answers.
    fn exchange(&self, used: &mut Used) -> io::Result<()> {
        let Params {
            daemon,
            clock,
            random,
            records,
            ..
        } = &self.params;
        let now = clock.monotonic();
        used.patience = Duration::ZERO;
        for asked in std::mem::take(&mut self.queue.lock().asked) {
            used.tag += 1;
            let mut frame = asked.frame;
            frame[TAG_AT..TAG_AT + 8].copy_from_slice(&used.tag.to_le_bytes());
            used.out.extend(frame);
            let until = now + asked.within;
            used.conversation.expect(used.tag, until, asked.done);
            used.patience = used.patience.max(asked.within);
        }
        let sent = std::mem::take(&mut used.out);
        let strike = self.strike(u16::from_le_bytes([sent[4], sent[5]]));
        let count = |count: fn(&mut super::Counts)| count(&mut records.lock().counts);
        if self.params.haunts && random.one_in(4) {
            daemon.haunt();
        }
        clock.advance(Duration::from_micros(100 + random.below(400)));
        match strike {
            Strike::Before => {
                count(|counts| counts.broken_before += 1);
                daemon.give_up(used.number, false);
                return Err(ErrorKind::ConnectionReset.into());
            }
            Strike::InRequest => {
                count(|counts| counts.cut_in_frame += 1);
                daemon.send(used.number, &sent[..random.index(sent.len())]);
                daemon.work(used.number, &mut Vec::new());
                daemon.give_up(used.number, false);
                return Err(ErrorKind::ConnectionReset.into());
            }
            Strike::Late { is_unresponsive } => {
                let arrives = match random.below(4) {
                    0 if self.params.haunts => random.index(sent.len()),
                    _ => sent.len(),
                };
                daemon.send(used.number, &sent[..arrives]);
                if random.one_in(2) {
                    // It has come, and waits its turn.
                    daemon.read(used.number, &mut Vec::new());
                }
                daemon.give_up(used.number, true);
                if !is_unresponsive {
                    return Err(ErrorKind::ConnectionReset.into());
                }
                clock.advance(used.patience);
                return Err(self.timed_out());
            }
            Strike::Nothing | Strike::After | Strike::InAnswer | Strike::Slow => {}
        }
        daemon.send(used.number, &sent);
        let mut answers = Vec::new();
        let is_there = daemon.work(used.number, &mut answers);
        if self.params.haunts && random.one_in(8) {
            daemon.haunt();
        }
        if !is_there || !daemon.is_running() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        match strike {
            Strike::After => {
                count(|counts| counts.answers_lost += 1);
                daemon.give_up(used.number, false);
                return Err(ErrorKind::ConnectionReset.into());
            }
            Strike::InAnswer => {
                count(|counts| counts.cut_in_frame += 1);
                answers.truncate(random.index(answers.len().max(1)));
                let read = used.conversation.receive(&answers);
                daemon.give_up(used.number, false);
                return Err(match read {
                    Ok(_) => ErrorKind::ConnectionReset.into(),
                    Err(broken) => io::Error::new(ErrorKind::InvalidData, broken),
                });
            }
            Strike::Slow => {
                let least = Duration::from_millis(1 + random.below(2000));
                let takes = match random.below(4) {
                    0 => used.patience,
                    _ => least,
                };
                clock.advance(takes);
            }
            _ => {}
        }
        if used.conversation.is_overdue(clock.monotonic()) {
            daemon.give_up(used.number, false);
            return Err(self.timed_out());
        }
        for piece in self.pieces(&answers) {
            let received = used.conversation.receive(piece);
            received.map_err(|broken| io::Error::new(ErrorKind::InvalidData, broken))?;
        }
        if used.conversation.waiting() > 0 {
            let wrong = "a daemon that has nothing more to do owes an answer".to_owned();
            records.lock().wrong.push(wrong);
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn timed_out(&self) -> io::Error {
        self.params.records.lock().counts.timed_out += 1;
        io::Error::new(ErrorKind::TimedOut, "its daemon does not answer")
    }

    /// Answers as they come.
    fn pieces<'a>(&self, answers: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let most = match self.params.random.below(4) {
            0 => 1 + self.params.random.index(100),
            _ => 256 << 10,
        };
        answers.chunks(most)
    }

    /// What happens to what begins with a request of this kind.
    fn strike(&self, code: u16) -> Strike {
        let random = &self.params.random;
        let strikes = *self.params.strikes.lock();
        if strikes.is_cut {
            return Strike::Late {
                is_unresponsive: true,
            };
        }
        if strikes.only.is_some_and(|verb| verb as u16 != code) {
            return Strike::Nothing;
        }
        let (one, other) = (random.one_in(2), random.one_in(3));
        let possible = [
            (strikes.before_one_in, Strike::Before),
            (strikes.after_one_in, Strike::After),
            (
                strikes.within_one_in,
                match one {
                    true => Strike::InRequest,
                    false => Strike::InAnswer,
                },
            ),
            (
                strikes.late_one_in,
                Strike::Late {
                    is_unresponsive: other,
                },
            ),
            (strikes.slow_one_in, Strike::Slow),
        ];
        let struck = possible
            .into_iter()
            .find(|(one_in, _)| random.one_in(*one_in));
        let Some((_, strike)) = struck else {
            return Strike::Nothing;
        };
        if strikes.is_once {
            *self.params.strikes.lock() = Strikes::default();
        }
        strike
    }
}

impl unit_remote::Link for Link {
    fn send(&self, request: &Request<'_>, done: Done) {
        self.params.capability_cache.renew();
        if let Some(why) = self.why_not() {
            return done(Err(why));
        }
        self.put(request, done);
        self.pump();
    }

    fn try_send(&self, request: &Request<'_>, done: Done) -> bool {
        if self.why_not().is_some() {
            return false;
        }
        self.put(request, done);
        let itself = self.itself.get().and_then(Weak::upgrade);
        let itself = itself.expect("somebody asks it");
        self.params.pool.run(Box::new(move || itself.pump()));
        true
    }
}

/// A daemon answers within this, or is taken for gone.
fn within(verb: Verb) -> Duration {
    match verb {
        Verb::Present => SHOWN_WITHIN,
        Verb::Sync | Verb::Free | Verb::Delete | Verb::List | Verb::Replace | Verb::Scrub => {
            WORK_WITHIN
        }
        _ => ANSWER_WITHIN,
    }
}
