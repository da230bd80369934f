//! [`NbdClient`]: the connection's life, and who is told of what.
//!
//! ```text
//!      ┌─────────────── pause over ─────────────┐
//!      ▼                                        │
//!  (Held) ─▶ Connecting ─▶ Greeting ─▶ Ready ─▶ Broken ┴─▶ (Reconnect::Never: for good)
//!      └─────────┴────────────┴── late, refused ──▲
//!
//!  Held: an earlier connection to the same export is not over
//! ```

use std::io;
use std::time::Duration;

use base::{Completion, IoError, Outcome, Token};
use net::Channel;
use world::real::Stream;

use super::super::buffers::BufferPool;
use super::super::request::Header;
use super::super::slab::{Key, Slab};
use super::super::watcher::Watcher;
use super::super::wire::{command, transmission_flags as flags};
use super::leaving::Leaving;
use super::line::Line;
use super::log::{Answered, ENTRIES_MAX, Entry, Log, Owner};
use super::{Agreed, Broken, ClientOptions, Greeting, Reconnect, Replies, State, Step, Target};

/// A flush of the client's own that has failed is asked for again after so long.
const FLUSH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Whether an earlier connection is over is looked at as often.
const LOOK_AT_DEPARTED: Duration = Duration::from_millis(50);

/// A request that has been cut into several.
pub(super) struct Whole {
    pub token: Token,
    pub left: usize,
    /// Of a read.
    pub data: Vec<u8>,
    pub error: Option<IoError>,
}

pub(super) enum Phase {
    Held(Duration),
    Connecting(Line, Duration),
    Greeting(Line, Greeting, Duration),
    Ready(Line, Replies),
    Broken {
        why: Broken,
        again_at: Option<Duration>,
    },
}

/// A client. See the head of [`super`].
pub struct NbdClient {
    pub(super) options: ClientOptions,
    way: Way,
    watcher: Watcher,
    pub(super) phase: Phase,
    /// With the first connection that was ready.
    pub(super) agreed: Option<Agreed>,
    pub(super) log: Log,
    pub(super) wholes: Slab<Whole>,
    pub(super) completions: Vec<Completion>,
    pool: BufferPool,
    /// Scratch: what was answered.
    done: Vec<u64>,
    pause: Duration,
    /// Why there is no connection, as that was said last; none, if there is one.
    said: Option<String>,
    pub(super) now: Duration,
    /// A flush of the client's own is under way.
    flushes: bool,
    /// The last one failed.
    pub(super) flush_error: Option<IoError>,
    /// And is tried again then.
    flush_again_at: Option<Duration>,
    /// Since when the server refuses to make once more what it had acknowledged.
    refused_since: Option<Duration>,
    /// An acknowledged change is lost.
    pub(super) lost: Option<String>,
}

/// How to connect again.
enum Way {
    Endpoint(world::Endpoint),
    /// Only the owner can say.
    Given,
}

impl NbdClient {
    /// Begins to connect; that and all else goes on as the device is polled.
    #[must_use]
    pub fn new(target: Target, options: ClientOptions, watcher: Watcher) -> Self {
        let now = options.clock.monotonic();
        let mut client = Self {
            options,
            way: Way::Given,
            watcher,
            phase: Phase::Broken {
                why: Broken::Ended,
                again_at: None,
            },
            agreed: None,
            log: Log::default(),
            wholes: Slab::default(),
            completions: Vec::new(),
            pool: BufferPool::default(),
            done: Vec::new(),
            pause: Duration::ZERO,
            said: None,
            now,
            flushes: false,
            flush_error: None,
            flush_again_at: None,
            refused_since: None,
            lost: None,
        };
        match target {
            Target::Endpoint(endpoint) => {
                client.way = Way::Endpoint(endpoint);
                client.connect();
            }
            Target::Connected(channel) => client.connect_over(channel),
            Target::Later => {}
        }
        client
    }

    /// How the connection is.
    #[must_use]
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Held(_) | Phase::Connecting(..) | Phase::Greeting(..) => State::Connecting,
            Phase::Ready(..) => State::Ready,
            Phase::Broken { why, .. } => State::Broken { why: why.clone() },
        }
    }

    /// Waits until requests can be answered, before the device is served: the only place
    /// where it waits. The thread's own poller must be the one of the device.
    ///
    /// # Errors
    /// Why there is no connection. It is not tried twice: what is wrong at the beginning is
    /// likely to be wrong for ever.
    pub fn opened(mut self) -> Result<Self, Broken> {
        loop {
            self.turn();
            match &self.phase {
                Phase::Ready(..) => return Ok(self),
                Phase::Broken { why, .. } => return Err(why.clone()),
                Phase::Held(_) | Phase::Connecting(..) | Phase::Greeting(..) => {}
            }
            self.watcher.wait(self.timer())?;
        }
    }

    /// Goes on over `channel`, which does not block, and may not be connected yet; what there
    /// was ends.
    pub fn connect_over(&mut self, channel: Channel) {
        self.now = self.options.clock.monotonic();
        if matches!(self.phase, Phase::Broken { .. }) {
            let deadline = self.now + self.options.connect_timeout;
            match Line::new(channel, &self.watcher) {
                Ok(line) => self.phase = Phase::Connecting(line, deadline),
                Err(why) => self.lose(why),
            }
        } else {
            self.lose(Broken::Ended);
            self.connect_over(channel);
        }
    }

    fn connect(&mut self) {
        let Way::Endpoint(endpoint) = &self.way else {
            return;
        };
        let deadline = self.now + self.options.connect_timeout;
        let place = self.place();
        if place.is_some_and(|place| self.options.departed.is_in_the_way(&place)) {
            match &self.phase {
                Phase::Held(until) if *until <= self.now => self.lose(Broken::Unheard),
                Phase::Held(_) => {}
                _ => self.phase = Phase::Held(deadline),
            }
            return;
        }
        let begun = Stream::connect(endpoint).map_err(Broken::from);
        match begun.and_then(|stream| Line::new(Channel::new(stream), &self.watcher)) {
            Ok(line) => self.phase = Phase::Connecting(line, deadline),
            Err(why) => self.lose(why),
        }
    }

    /// By what connections that lead to the same export are known, if they are the client's
    /// to make.
    fn place(&self) -> Option<String> {
        match &self.way {
            Way::Endpoint(endpoint) => Some(format!("{endpoint} {}", self.options.export)),
            Way::Given => None,
        }
    }

    /// Leaves a connection; what was asked over it is heard out before there is another one.
    fn leave(&mut self, line: Line, replies: Option<Replies>) {
        let unheard = self.log.unheard();
        let (Some(place), Some((unheard, is_cut))) = (self.place(), unheard) else {
            return line.close(&mut self.pool);
        };
        let mut leaving = Leaving::new(line, replies, unheard, is_cut);
        if !leaving.is_over() {
            self.options.departed.add(place, leaving);
        }
    }

    /// Ends it: what is unanswered fails, and all that comes. What is kept and was never
    /// flushed is as durable as the server has made it.
    pub fn end(&mut self) {
        self.options.reconnect = Reconnect::Never;
        self.lose(Broken::Ended);
    }

    /// The connection is lost.
    fn lose(&mut self, why: Broken) {
        let phase = Phase::Broken {
            why: why.clone(),
            again_at: None,
        };
        match std::mem::replace(&mut self.phase, phase) {
            Phase::Connecting(line, _) | Phase::Greeting(line, ..) => line.close(&mut self.pool),
            Phase::Ready(line, replies) => {
                let makes_sense = !matches!(why, Broken::Nonsense(_));
                self.leave(line, makes_sense.then_some(replies));
            }
            Phase::Held(_) | Phase::Broken { .. } => {}
        }
        match self.options.reconnect {
            Reconnect::Never => {
                tracing::debug!(%why, "an NBD server is lost");
                self.fail_all(&why);
            }
            Reconnect::Again { min, max } => {
                self.say(&why);
                self.log.interrupt();
                self.pause = (self.pause * 2).clamp(min, max);
                if matches!(self.way, Way::Endpoint(_)) {
                    self.phase = Phase::Broken {
                        why,
                        again_at: Some(self.now + self.pause),
                    };
                }
            }
        }
    }

    /// Requests wait now, which nobody else hears of. Each reason is said once.
    fn say(&mut self, why: &Broken) {
        let why = why.to_string();
        if self.said.as_ref() != Some(&why) {
            tracing::warn!(
                why,
                "an NBD server cannot be used; it is connected to again, and requests wait"
            );
            self.said = Some(why);
        }
    }

    /// Ends the connection. What was not answered fails; acknowledged changes that no flush
    /// has covered are kept for the next one ([`NbdClient::connect_over`]).
    pub fn give_up(&mut self, why: &str) {
        if !matches!(self.phase, Phase::Broken { .. }) {
            self.lose(Broken::Ended);
        }
        let given_up = self.log.give_up_unanswered();
        self.fail(given_up, why);
    }

    fn fail_all(&mut self, why: &Broken) {
        let given_up = self.log.give_up();
        self.fail(given_up, &why.to_string());
    }

    fn fail(&mut self, given_up: Vec<Answered>, why: &str) {
        for mut answered in given_up {
            answered.error = Some(IoError::Unavailable(why.to_owned()));
            self.finish(answered);
        }
    }

    /// An acknowledged change is lost: nothing more can be said of this disk.
    fn stop(&mut self, error: &IoError) {
        let reason = format!("an acknowledged write could not be made once more: {error}");
        tracing::error!(reason, "an NBD client is stopped");
        self.lost = Some(reason);
        self.options.reconnect = Reconnect::Never;
        self.lose(Broken::Ended);
    }

    /// Nothing waits for a connection any more.
    pub(super) fn wait_no_more(&mut self) {
        self.options.reconnect = Reconnect::Never;
        if !matches!(self.phase, Phase::Ready(..)) {
            self.lose(Broken::Ended);
        }
    }

    /// Does all that can be done now.
    pub(super) fn turn(&mut self) {
        self.now = self.options.clock.monotonic();
        match &self.phase {
            Phase::Broken {
                again_at: Some(at), ..
            } if *at <= self.now => self.connect(),
            Phase::Held(_) => self.connect(),
            _ => {}
        }
        let went_on = match &self.phase {
            Phase::Connecting(..) | Phase::Greeting(..) => self.shake_hands(),
            Phase::Ready(..) => self.exchange(),
            Phase::Held(_) | Phase::Broken { .. } => Ok(()),
        };
        if let Err(why) = went_on {
            self.lose(why);
        }
    }

    fn shake_hands(&mut self) -> Result<(), Broken> {
        let options = &self.options;
        if let Phase::Connecting(line, deadline) = &mut self.phase {
            line.look();
            if !line.is_connected()? {
                return late(*deadline, self.now, options.connect_timeout);
            }
            let nobody = Phase::Broken {
                why: Broken::Ended,
                again_at: None,
            };
            if let Phase::Connecting(line, deadline) = std::mem::replace(&mut self.phase, nobody) {
                let greeting = Greeting::new(&options.export, options.tls.is_some());
                self.phase = Phase::Greeting(line, greeting, deadline);
            }
        }
        let Phase::Greeting(line, greeting, deadline) = &mut self.phase else {
            return Ok(());
        };
        line.look();
        loop {
            line.send()?;
            let (input, output) = line.talk();
            let (used, step) = greeting.advance(input, output)?;
            line.consume(used);
            match (step, &options.tls) {
                (Step::Agreed(agreed), _) => return self.agree(agreed),
                (Step::StartTls, Some(tls)) => {
                    line.channel().begin_tls(tls.begin()?);
                    greeting.tls_started(line.talk().1);
                }
                (Step::StartTls | Step::Wait, _) => {
                    if !line.receive(&mut self.pool)? {
                        line.send()?;
                        return late(*deadline, self.now, options.connect_timeout);
                    }
                }
            }
        }
    }

    /// The handshake is over.
    fn agree(&mut self, agreed: Agreed) -> Result<(), Broken> {
        let agreed = match &self.agreed {
            Some(was) => as_before(was, agreed)?,
            None => agreed,
        };
        self.agreed = Some(agreed);
        self.log.keeps =
            self.options.reconnect != Reconnect::Never && agreed.can(flags::SEND_FLUSH);
        let nobody = Phase::Broken {
            why: Broken::Ended,
            again_at: None,
        };
        if let Phase::Greeting(line, ..) = std::mem::replace(&mut self.phase, nobody) {
            let replies = Replies::new(agreed.structured, agreed.allocation);
            self.phase = Phase::Ready(line, replies);
            if self.said.take().is_some() {
                tracing::info!("the NBD server can be used again");
            }
        }
        self.log.resume(self.now);
        self.exchange()
    }

    /// Receives answers, tells of them, and sends what there is.
    fn exchange(&mut self) -> Result<(), Broken> {
        let Phase::Ready(line, replies) = &mut self.phase else {
            return Ok(());
        };
        line.look();
        let mut done = std::mem::take(&mut self.done);
        let (log, pool) = (&mut self.log, &mut self.pool);
        let received = line.receive_replies(replies, log, pool, self.now, &mut done);
        if !done.is_empty() && self.log.is_open() {
            self.pause = Duration::ZERO;
        }
        let mut failed = None;
        for cookie in done.drain(..) {
            let Some(mut answered) = self.log.answered(cookie, self.now) else {
                continue;
            };
            if answered.owner.is_none() {
                // It was made once more.
                let Some(error) = answered.error.take() else {
                    continue;
                };
                failed = self.refused(&error);
                break;
            }
            let can_be_made = self.makes_again() && self.log.kept() > 0;
            let is_failed = answered.is_failed_sync() && can_be_made;
            let why = answered.error.as_ref().filter(|_| is_failed);
            failed = why.map(|error| Broken::Unflushed(error.to_string()));
            self.finish(answered);
            if failed.is_some() {
                // A flush that was asked for meanwhile says nothing of what is lost.
                break;
            }
        }
        done.clear();
        self.done = done;
        if self.log.is_open() {
            self.refused_since = None;
        }
        if let Some(why) = failed {
            return Err(why);
        }
        received?;
        self.send()?;
        let timeout = self.options.request_timeout;
        match self.log.oldest_since(self.now) {
            Some(since) if since + timeout <= self.now => Err(Broken::Late {
                what: "nothing of a request went on",
                within: timeout,
            }),
            _ => Ok(()),
        }
    }

    /// A change that was acknowledged is not made once more: over another connection it may
    /// be, but not for ever.
    fn refused(&mut self, error: &IoError) -> Option<Broken> {
        let since = *self.refused_since.get_or_insert(self.now);
        if self.makes_again() && self.now < since + self.options.refused_for {
            tracing::warn!(%error, "what was acknowledged is not made once more; it is tried again");
            return Some(Broken::Unmade(error.to_string()));
        }
        self.stop(error);
        None
    }

    /// Whether what is kept can be made once more whenever that is needed.
    fn makes_again(&self) -> bool {
        self.log.keeps && matches!(self.way, Way::Endpoint(_))
    }

    /// Sends what there is.
    pub(super) fn send(&mut self) -> Result<(), Broken> {
        self.flush_early();
        match &mut self.phase {
            Phase::Ready(line, _) => line.send_requests(&mut self.log, self.now),
            _ => Ok(()),
        }
    }

    /// As [`NbdClient::send`], and the consequences.
    pub(super) fn send_now(&mut self) {
        if let Err(why) = self.send() {
            self.lose(why);
        }
    }

    /// Whether a flush is due, whoever asks for it.
    fn keeps_much(&self) -> bool {
        let log = &self.log;
        log.kept_bytes() >= self.options.kept_bytes_max / 2
            || log.kept() > 0 && log.len() >= ENTRIES_MAX / 2
    }

    /// Asks for a flush before there is more to be kept than may be. One that has failed is
    /// asked for again after a pause, or when somebody was told.
    pub(super) fn flush_early(&mut self) {
        let may_try = self.flush_again_at.is_none_or(|at| at <= self.now);
        let may_try = may_try || self.flush_error.is_none();
        if self.keeps_much() && !self.flushes && may_try {
            self.flushes = true;
            self.flush_again_at = None;
            let flush = Entry::new(flush_header(), Vec::new(), Owner::Client, self.now);
            self.log.push(flush);
        }
    }

    /// Tells what came of a request.
    fn finish(&mut self, answered: Answered) {
        let Some(owner) = answered.owner else {
            return;
        };
        if answered.flush_after && answered.error.is_none() {
            let flush = Entry::new(flush_header(), Vec::new(), owner, self.now);
            return self.log.push(flush);
        }
        if answered.command == command::FLUSH {
            self.flush_error = match owner {
                Owner::Client => answered.error.clone(),
                _ if answered.error.is_none() => None,
                _ => self.flush_error.take(),
            };
            let again_at = self.now + FLUSH_AGAIN_AFTER;
            self.flush_again_at = self.flush_error.is_some().then_some(again_at);
        }
        let result = match answered.error {
            Some(error) => Err(error),
            None => Ok(match answered.command {
                command::READ => Outcome::Data(answered.data),
                command::BLOCK_STATUS => Outcome::Extents(answered.extents),
                _ => Outcome::Done,
            }),
        };
        match owner {
            Owner::Caller(token) => self.completions.push(Completion { token, result }),
            Owner::Client => self.flushes = false,
            Owner::Part(key, at) => self.finish_part(key, at, result),
        }
    }

    fn finish_part(&mut self, key: Key, at: u64, result: Result<Outcome, IoError>) {
        let Some(whole) = self.wholes.get_mut(key) else {
            return;
        };
        whole.left -= 1;
        match result {
            Ok(Outcome::Data(data)) => {
                whole.data[at as usize..][..data.len()].copy_from_slice(&data);
            }
            Ok(_) => {}
            Err(error) => whole.error = Some(error),
        }
        if whole.left == 0
            && let Some(whole) = self.wholes.remove(key)
        {
            let result = match (whole.error, whole.data) {
                (Some(error), _) => Err(error),
                (None, data) if data.is_empty() => Ok(Outcome::Done),
                (None, data) => Ok(Outcome::Data(data)),
            };
            let token = whole.token;
            self.completions.push(Completion { token, result });
        }
    }

    /// How long nothing has to be done, if nothing is seen.
    pub(super) fn timer(&self) -> Option<Duration> {
        let now = self.options.clock.monotonic();
        if !self.completions.is_empty() {
            return Some(Duration::ZERO);
        }
        let at = match &self.phase {
            Phase::Held(until) => Some((*until).min(now + LOOK_AT_DEPARTED)),
            Phase::Connecting(_, deadline) | Phase::Greeting(.., deadline) => Some(*deadline),
            Phase::Broken { again_at, .. } => *again_at,
            Phase::Ready(line, _) if line.is_busy(self.log.has_outgoing()) => Some(now),
            Phase::Ready(..) => {
                let since = self.log.oldest_since(now);
                let late = since.map(|since| since + self.options.request_timeout);
                let flush = self
                    .flush_again_at
                    .filter(|_| self.keeps_much() && !self.flushes);
                late.into_iter().chain(flush).min()
            }
        };
        at.map(|at| at.saturating_sub(now))
    }
}

impl Drop for NbdClient {
    /// A server is told that its client leaves, if it can be told now.
    fn drop(&mut self) {
        if self.log.has_sent_changes() {
            // Some servers leave at once, before what was asked is carried out.
            self.options.reconnect = Reconnect::Never;
            return self.lose(Broken::Ended);
        }
        if let Phase::Ready(..) = self.phase
            && !self.log.has_outgoing()
        {
            let leave = Header {
                command: command::DISC,
                ..flush_header()
            };
            self.log
                .push(Entry::new(leave, Vec::new(), Owner::Client, self.now));
            let _ = self.send();
        }
    }
}

fn flush_header() -> Header {
    Header {
        flags: 0,
        command: command::FLUSH,
        cookie: 0,
        offset: 0,
        length: 0,
    }
}

fn late(deadline: Duration, now: Duration, within: Duration) -> Result<(), Broken> {
    if now < deadline {
        return Ok(());
    }
    let what = "the server was not ready";
    Err(Broken::Late { what, within })
}

/// Whoever uses the disk goes on with what he knows of it: what the server can do beside
/// that does not count.
fn as_before(was: &Agreed, is: Agreed) -> Result<Agreed, Broken> {
    let read_only = |of: &Agreed| u64::from(of.flags & flags::READ_ONLY);
    // Nobody knows how many connections this is.
    let wanted = was.flags & !flags::CAN_MULTI_CONN;
    let size = (was.size_bytes, is.size_bytes);
    let kept = (wanted.into(), (wanted & is.flags).into());
    let block = (was.block_min.into(), is.block_min.into());
    let payload = (was.payload_max.into(), is.payload_max.into());
    let extents = (was.allocation.is_some(), is.allocation.is_some());
    let facts = [
        ("its size", size, size.0 == size.1),
        (
            "whether it can be written",
            (read_only(was), read_only(&is)),
            read_only(was) == read_only(&is),
        ),
        ("what it can do", kept, kept.0 == kept.1),
        ("its smallest block", block, block.0.is_multiple_of(block.1)),
        ("its longest payload", payload, payload.0 <= payload.1),
        (
            "whether it tells of extents",
            (extents.0.into(), extents.1.into()),
            extents.0 <= extents.1,
        ),
    ];
    match facts.into_iter().find(|(.., is_kept)| !is_kept) {
        Some((what, (was, is), _)) => Err(Broken::Changed { what, was, is }),
        None => Ok(Agreed {
            structured: is.structured,
            allocation: is.allocation.filter(|_| extents.0),
            ..*was
        }),
    }
}

impl From<rustls::Error> for Broken {
    fn from(error: rustls::Error) -> Self {
        Self::Socket(io::Error::other(error).to_string())
    }
}
