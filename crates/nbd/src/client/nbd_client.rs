//! [`NbdClient`]: ties the connection to the log of requests, and completes requests.

use std::time::Duration;

use base::{Completion, IoError, Outcome};
use net::Channel;

use super::super::request::Header;
use super::super::watcher::Watcher;
use super::super::wire::command;
use super::connection::{Connection, Progress};
use super::entry::{Entry, RequestResult, Requester};
use super::request_log::{ENTRIES_MAX, RequestLog};
use super::split::SplitRequests;
use super::{ClientOptions, ConnectionError, State, Target};

/// The pause after which a flush of the client's own that failed is tried again.
const FLUSH_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// An NBD client; see the head of [`super`].
pub struct NbdClient {
    pub(super) options: ClientOptions,
    pub(super) connection: Connection,
    pub(super) log: RequestLog,
    pub(super) split_requests: SplitRequests,
    pub(super) early_flush: EarlyFlush,
    pub(super) completions: Vec<Completion>,
    /// A buffer for the cookies of completed requests.
    completed: Vec<u64>,
    /// The time at the beginning of this turn.
    pub(super) now: Duration,
    /// Since when the server has refused to replay unflushed changes.
    replay_refused_since: Option<Duration>,
    /// Why the device stopped for good: an acknowledged change is lost.
    pub(super) lost: Option<String>,
}

/// The flush that the client requests by itself when there are many unflushed changes.
#[derive(Default)]
pub(super) struct EarlyFlush {
    is_outstanding: bool,
    /// Why the last one failed, until a caller gets the error.
    pub error: Option<IoError>,
    /// When one that failed is tried again.
    retry_at: Option<Duration>,
}

impl NbdClient {
    /// A client that begins to connect. It proceeds as the device is polled.
    #[must_use]
    pub fn new(target: Target, options: ClientOptions, watcher: Watcher) -> Self {
        let (endpoint, channel) = match target {
            Target::Endpoint(endpoint) => (Some(endpoint), None),
            Target::Connected(channel) => (None, Some(channel)),
            Target::Later => (None, None),
        };
        let now = options.clock.monotonic();
        let mut client = Self {
            connection: Connection::new(endpoint, options.reconnect, watcher),
            options,
            log: RequestLog::default(),
            split_requests: SplitRequests::default(),
            early_flush: EarlyFlush::default(),
            completions: Vec::new(),
            completed: Vec::new(),
            now,
            replay_refused_since: None,
            lost: None,
        };
        match channel {
            Some(channel) => client.connect_over(channel),
            None => {
                if let Err(error) = client.connection.connect(&client.options, now) {
                    client.disconnect(error);
                }
            }
        }
        client
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> State {
        self.connection.state()
    }

    /// Waits until the server answers requests, before the device is served. Nothing else in
    /// this client waits. The poller of the calling thread has to be the one of the device.
    ///
    /// # Errors
    /// Why the connection failed. There is no second attempt, since an error of the first one is
    /// likely to be permanent.
    pub fn opened(mut self) -> Result<Self, ConnectionError> {
        loop {
            self.turn();
            match self.state() {
                State::Ready => return Ok(self),
                State::Disconnected { error } => return Err(error),
                State::Connecting => {}
            }
            self.connection.wait(self.timer())?;
        }
    }

    /// Connects over `channel`, which does not block and may still be connecting. An earlier
    /// connection ends.
    pub fn connect_over(&mut self, channel: Channel) {
        self.now = self.options.clock.monotonic();
        if !self.connection.is_disconnected() {
            self.disconnect(ConnectionError::Ended);
        }
        let deadline = self.now + self.options.connect_timeout;
        if let Err(error) = self.connection.open(channel, deadline) {
            self.disconnect(error);
        }
    }

    /// Closes the connection for good. Requests without a reply, and later ones, fail. Unflushed
    /// changes are as durable as the server has made them.
    pub fn end(&mut self) {
        self.connection.stop_reconnecting();
        self.disconnect(ConnectionError::Ended);
    }

    /// Closes the connection, and fails requests unless the client reconnects.
    fn disconnect(&mut self, error: ConnectionError) {
        let message = error.to_string();
        let (options, log) = (&self.options, &mut self.log);
        if self.connection.close(error, options, self.now, log) {
            self.log.interrupt();
        } else {
            let given_up = self.log.give_up();
            self.fail(given_up, &message);
        }
    }

    /// Closes the connection. Requests without a reply fail with the message `why`. Unflushed
    /// changes stay for the next connection ([`NbdClient::connect_over`]).
    pub fn give_up(&mut self, why: &str) {
        if !self.connection.is_disconnected() {
            self.disconnect(ConnectionError::Ended);
        }
        let given_up = self.log.give_up_unanswered();
        self.fail(given_up, why);
    }

    fn fail(&mut self, given_up: Vec<RequestResult>, why: &str) {
        for mut result in given_up {
            result.error = Some(IoError::Unavailable(why.to_owned()));
            self.finish(result);
        }
    }

    /// Stops the device for good, since an acknowledged change is lost.
    fn stop(&mut self, error: &IoError) {
        let lost = format!("an acknowledged write was lost, since its replay failed: {error}");
        tracing::error!(%error, "NBD client stopped: the server refused to replay an acknowledged write");
        self.lost = Some(lost);
        self.end();
    }

    /// Waits for no connection any more: requests fail unless the connection is ready.
    pub(super) fn stop_reconnecting(&mut self) {
        self.connection.stop_reconnecting();
        if !self.connection.is_ready() {
            self.disconnect(ConnectionError::Ended);
        }
    }

    /// Does everything that is possible without waiting.
    pub(super) fn turn(&mut self) {
        self.now = self.options.clock.monotonic();
        let result = match self.connection.advance(&self.options, self.now) {
            Ok(Progress::NotReady) => Ok(()),
            Ok(Progress::Ready) => self.exchange(),
            Ok(Progress::Established) => {
                self.log.retains_unflushed = self.connection.can_replay();
                self.log.resume(self.now);
                self.exchange()
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.disconnect(error);
        }
    }

    /// Receives replies, completes requests, and sends requests.
    fn exchange(&mut self) -> Result<(), ConnectionError> {
        let mut completed = std::mem::take(&mut self.completed);
        let received = self
            .connection
            .receive(&mut self.log, self.now, &mut completed);
        if !completed.is_empty() && self.log.is_replayed() {
            self.connection.reset_pause();
        }
        let finished = self.finish_all(&mut completed);
        completed.clear();
        self.completed = completed;
        if self.log.is_replayed() {
            self.replay_refused_since = None;
        }
        finished?;
        received?;
        self.send()?;
        let timeout = self.options.request_timeout;
        match self.log.oldest_progress_at(self.now) {
            Some(at) if at + timeout <= self.now => Err(ConnectionError::TimedOut {
                what: "a request made no progress",
                within: timeout,
            }),
            _ => Ok(()),
        }
    }

    /// Finishes requests whose whole reply has arrived, until one ends the connection.
    fn finish_all(&mut self, completed: &mut Vec<u64>) -> Result<(), ConnectionError> {
        for cookie in completed.drain(..) {
            let Some(mut result) = self.log.take_result(cookie, self.now) else {
                continue;
            };
            if result.requester.is_none() {
                match result.error.take() {
                    None => continue,
                    Some(error) => return self.replay_refused(&error),
                }
            }
            let lost_changes = result.is_failed_sync()
                && self.replays_over_next_connection()
                && self.log.unflushed() > 0;
            let error = result.error.as_ref().filter(|_| lost_changes);
            let failed = error.map(|error| ConnectionError::FlushFailed(error.to_string()));
            self.finish(result);
            if let Some(error) = failed {
                // The result of a flush that was sent meanwhile does not cover what was lost.
                return Err(error);
            }
        }
        Ok(())
    }

    /// Handles a refusal to replay an unflushed change: the client tries again over another
    /// connection until `replay_timeout`.
    fn replay_refused(&mut self, error: &IoError) -> Result<(), ConnectionError> {
        let since = *self.replay_refused_since.get_or_insert(self.now);
        let is_in_time = self.now < since + self.options.replay_timeout;
        if self.replays_over_next_connection() && is_in_time {
            tracing::warn!(%error, "server refused to replay an acknowledged write; NBD client tries again");
            return Err(ConnectionError::ReplayRefused(error.to_string()));
        }
        self.stop(error);
        Ok(())
    }

    /// Whether the client can lose this connection and replay unflushed changes over another one.
    fn replays_over_next_connection(&self) -> bool {
        self.log.retains_unflushed && self.connection.has_endpoint()
    }

    /// Sends requests, and a flush if one is due.
    pub(super) fn send(&mut self) -> Result<(), ConnectionError> {
        self.flush_early();
        self.connection.send(&mut self.log, self.now)
    }

    /// Sends requests, and disconnects if that fails.
    pub(super) fn send_now(&mut self) {
        if let Err(error) = self.send() {
            self.disconnect(error);
        }
    }

    /// Whether unflushed changes have reached half of a limit, so that a flush is due.
    fn needs_flush(&self) -> bool {
        let log = &self.log;
        log.unflushed_bytes() >= self.options.unflushed_bytes_max / 2
            || log.unflushed() > 0 && log.len() >= ENTRIES_MAX / 2
    }

    /// Requests a flush if one is due. After one that failed, the client waits for a pause, or
    /// until a caller has got the error.
    pub(super) fn flush_early(&mut self) {
        let flush = &self.early_flush;
        let pause_is_over = flush.retry_at.is_none_or(|at| at <= self.now);
        let may_try = pause_is_over || flush.error.is_none();
        if self.needs_flush() && !flush.is_outstanding && may_try {
            self.early_flush.is_outstanding = true;
            self.early_flush.retry_at = None;
            self.push_flush(Requester::Client);
        }
    }

    fn push_flush(&mut self, requester: Requester) {
        let header = header_without_range(command::FLUSH);
        self.log
            .push(Entry::new(header, Vec::new(), requester, self.now));
    }

    /// Passes the result of a request to its requester.
    fn finish(&mut self, result: RequestResult) {
        let Some(requester) = result.requester else {
            return;
        };
        if result.flush_after && result.error.is_none() {
            return self.push_flush(requester);
        }
        if result.command == command::FLUSH {
            self.note_flush(requester, result.error.as_ref());
        }
        let outcome = match result.error {
            Some(error) => Err(error),
            None => Ok(match result.command {
                command::READ => Outcome::Data(result.data),
                command::BLOCK_STATUS => Outcome::Extents(result.extents),
                _ => Outcome::Done,
            }),
        };
        match requester {
            Requester::Caller(token) => self.completions.push(Completion {
                token,
                result: outcome,
            }),
            Requester::Client => self.early_flush.is_outstanding = false,
            Requester::Part(key, offset) => {
                let completion = self.split_requests.complete_part(key, offset, outcome);
                self.completions.extend(completion);
            }
        }
    }

    /// Records the result of a flush for the next early one.
    fn note_flush(&mut self, requester: Requester, error: Option<&IoError>) {
        let flush = &mut self.early_flush;
        flush.error = match (requester, error) {
            (Requester::Client, error) => error.cloned(),
            (_, None) => None,
            (_, Some(_)) => flush.error.take(),
        };
        let retry_at = self.now + FLUSH_RETRY_PAUSE;
        flush.retry_at = flush.error.is_some().then_some(retry_at);
    }

    /// The time until the next turn is needed, unless the socket becomes ready before.
    pub(super) fn timer(&self) -> Option<Duration> {
        let now = self.options.clock.monotonic();
        if !self.completions.is_empty() {
            return Some(Duration::ZERO);
        }
        let mut at = self.connection.next_turn(now, &self.log);
        if at.is_none() && self.connection.is_ready() {
            let progress_at = self.log.oldest_progress_at(now);
            let timeout = progress_at.map(|at| at + self.options.request_timeout);
            let is_due = self.needs_flush() && !self.early_flush.is_outstanding;
            let flush = self.early_flush.retry_at.filter(|_| is_due);
            at = timeout.into_iter().chain(flush).min();
        }
        at.map(|at| at.saturating_sub(now))
    }
}

impl Drop for NbdClient {
    /// Tells the server that its client disconnects, if that is possible without waiting.
    fn drop(&mut self) {
        if self.log.has_sent_changes() {
            // Some servers disconnect at once, before they have carried out all requests.
            return self.end();
        }
        if self.connection.is_ready() && !self.log.has_outgoing() {
            let header = header_without_range(command::DISC);
            let entry = Entry::new(header, Vec::new(), Requester::Client, self.now);
            self.log.push(entry);
            let _ = self.send();
        }
    }
}

fn header_without_range(command: u16) -> Header {
    Header {
        flags: 0,
        command,
        cookie: 0,
        offset: 0,
        length: 0,
    }
}
