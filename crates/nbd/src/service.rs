//! [`Service`]: serves one device to all connections of an export. It knows no sockets and never
//! waits: the owner reports which pipes are ready and calls [`Service::turn`].
//!
//! A turn:
//!
//! ```text
//!  1. poll     the device; completions become staged replies
//!  2. receive  once per connection that is ready
//!  3. advance  decode requests, start them on the device, stage replies
//!  4. end      the device's batch, once
//!  5. send     the staged replies
//! ```
//!
//! Invariant: no staged reply is sent before the batch of its request has ended. If the batch
//! fails, all connections are closed, and their staged replies are dropped.

use std::io::ErrorKind;
use std::time::Duration;

use base::{BlockDevice, IoError, Request, Started};
use world::{Interest, Ready};

use super::Limits;
use super::buffers::PIECE_BYTES;
use super::connection::{Connection, Pause, Settings};
use super::export_state::{ExportState, Operation};
use super::slab::{Key, Slab};
use net::Pipe;

/// The time after which a request is offered again to a busy device, unless it wakes the thread.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// The key of no link: the request is the service's own.
const NO_LINK: Key = Key::MAX;

/// A connection and its pipe.
struct Link<P> {
    pipe: P,
    connection: Connection,
    /// Why the connection stopped decoding.
    pause: Pause,
    readable: bool,
    writable: bool,
    /// Whether the device accepted a request of it in its last turn.
    made_progress: bool,
    /// Whether it is in the list of links that need a turn.
    is_scheduled: bool,
    hung_up: bool,
    interest: Interest,
}

impl<P: Pipe> Link<P> {
    fn has_unsent(&self) -> bool {
        !self.connection.requests.output.is_empty() || self.pipe.holds_unsent()
    }
}

/// A device and the connections of its export.
pub struct Service<D, P> {
    state: ExportState<D>,
    links: Slab<Link<P>>,
    /// The links that need a turn.
    scheduled: Vec<Key>,
    /// A buffer for the links of the current turn.
    in_turn: Vec<Key>,
    /// The links that wait for a busy device, in the order in which it gets their requests.
    stalled: Vec<Key>,
    /// The links whose interest has changed.
    changed: Vec<Key>,
    /// The pipes of closed connections.
    closed: Vec<P>,
    failure: Option<IoError>,
    flush: FinalFlush,
}

/// The flush with which the service ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FinalFlush {
    NotStarted,
    Pending,
    Ended(Result<(), IoError>),
}

impl<D: BlockDevice, P: Pipe> Service<D, P> {
    /// A service without connections.
    pub fn new(device: D, limits: Limits) -> Self {
        Self {
            state: ExportState::new(device, limits),
            links: Slab::default(),
            scheduled: Vec::new(),
            in_turn: Vec::new(),
            stalled: Vec::new(),
            changed: Vec::new(),
            closed: Vec::new(),
            failure: None,
            flush: FinalFlush::NotStarted,
        }
    }

    /// Adds a connection whose handshake has ended. Its last `replies` have not been sent, and
    /// `received` are the bytes that followed it.
    pub fn open(&mut self, pipe: P, settings: Settings, replies: &[u8], received: &[u8]) -> Key {
        let mut connection = Connection::new(self.links.next_key(), settings);
        for part in replies.chunks(PIECE_BYTES) {
            connection.requests.output.put(part, &mut self.state.pool);
        }
        if !received.is_empty() {
            let space = connection.input.space(&mut self.state.pool);
            assert!(
                received.len() <= space.len(),
                "a handshake's buffer is smaller than a connection's"
            );
            space[..received.len()].copy_from_slice(received);
            connection.input.received(received.len());
        }
        let key = self.links.insert(Link {
            pipe,
            connection,
            pause: Pause::Input,
            readable: true,
            writable: true,
            made_progress: false,
            is_scheduled: false,
            hung_up: false,
            interest: Interest::READABLE,
        });
        self.schedule(key);
        key
    }

    /// The key of the next connection.
    pub fn next_key(&self) -> Key {
        self.links.next_key()
    }

    fn schedule(&mut self, key: Key) {
        if let Some(link) = self.links.get_mut(key)
            && !link.is_scheduled
        {
            link.is_scheduled = true;
            self.scheduled.push(key);
        }
    }

    /// Records that a pipe is ready.
    pub fn ready(&mut self, ready: Ready) {
        if let Some(link) = self.links.get_mut(ready.key) {
            link.readable |= ready.readable;
            link.writable |= ready.writable;
            link.hung_up |= ready.hung_up;
            self.schedule(ready.key);
        }
    }

    /// The time until the next turn is needed, unless a pipe becomes ready or the device wakes
    /// the thread before; `None` if no turn is needed.
    pub fn next_timer(&self) -> Option<Duration> {
        if !self.scheduled.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.state.device.next_timer();
        let retries = !self.stalled.is_empty() || self.flush == FinalFlush::Pending;
        if retries {
            return Some(timer.map_or(BUSY_RETRY, |timer| timer.min(BUSY_RETRY)));
        }
        timer
    }

    /// Does everything that is possible without waiting, in the steps of the module's head.
    pub fn turn(&mut self) {
        self.poll_device();
        let mut scheduled = std::mem::take(&mut self.in_turn);
        std::mem::swap(&mut scheduled, &mut self.scheduled);
        for &key in &scheduled {
            self.receive(key);
        }
        self.end_batch();
        for &key in &scheduled {
            self.send(key);
        }
        scheduled.clear();
        self.in_turn = scheduled;
    }

    fn poll_device(&mut self) {
        let state = &mut self.state;
        let mut completions = std::mem::take(&mut state.completions);
        state.device.poll(&mut completions);
        state.geometry = state.device.geometry();
        state.capabilities = state.device.capabilities();
        for completion in completions.drain(..) {
            let Some(operation) = self.state.operations.remove(completion.token) else {
                tracing::warn!(token = completion.token, "device completed unknown request");
                continue;
            };
            if operation.link == NO_LINK {
                self.flush = FinalFlush::Ended(completion.result.map(|_| ()));
            } else if let Some(link) = self.links.get_mut(operation.link) {
                link.connection
                    .requests
                    .complete(&mut self.state, &operation, completion.result);
                self.schedule(operation.link);
            }
        }
        self.state.completions = completions;
        // Links that wait for a busy device come before links with new requests. Those without
        // progress come first, since the device may accept only the first request.
        let mut stalled = std::mem::take(&mut self.stalled);
        let made_progress = |key: &Key| self.links.get(*key).is_some_and(|link| link.made_progress);
        stalled.sort_by_key(made_progress);
        if !stalled.is_empty() {
            let arrived = std::mem::take(&mut self.scheduled);
            for key in arrived.iter().chain(&stalled) {
                if let Some(link) = self.links.get_mut(*key) {
                    link.is_scheduled = false;
                }
            }
            for key in stalled.drain(..).chain(arrived) {
                self.schedule(key);
            }
        }
        self.stalled = stalled;
    }

    /// Receives bytes and handles requests.
    fn receive(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.is_scheduled = false;
        if link.hung_up && link.pause != Pause::Input {
            // The client does not read replies either.
            self.close(key, "the client disconnected");
            return;
        }
        if link.readable && link.pause == Pause::Input {
            let space = link.connection.input.space(&mut self.state.pool);
            match link.pipe.receive(space) {
                Ok(0) if !space.is_empty() => link.connection.end_input(),
                Ok(count) => link.connection.input.received(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.close(key, &error.to_string());
                    return;
                }
            }
            // The poller reports further bytes again.
            link.readable = link.pipe.holds_received();
        }
        let had_batch = std::mem::take(&mut self.state.has_batch);
        link.pause = link.connection.advance(&mut self.state);
        link.made_progress = self.state.has_batch;
        self.state.has_batch |= had_batch;
        link.connection.release(&mut self.state);
    }

    fn end_batch(&mut self) {
        if !self.state.has_batch {
            return;
        }
        self.state.has_batch = false;
        if let Err(error) = self.state.device.end_batch() {
            tracing::error!(%error, "device stopped; NBD server closes its connections");
            self.failure = Some(error);
            self.close_all("the device stopped");
        }
    }

    /// Sends replies, and determines what the link waits for.
    fn send(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let mut sent = 0;
        while link.writable && link.has_unsent() {
            let (slices, count) = link.connection.requests.output.slices();
            match link.pipe.send(&slices[..count]) {
                Ok(taken) => {
                    link.connection
                        .requests
                        .output
                        .sent(taken.bytes, &mut self.state.pool);
                    link.writable = !taken.blocked;
                    sent += taken.bytes;
                }
                Err(error) => {
                    self.close(key, &error.to_string());
                    return;
                }
            }
        }
        let unsent = link.has_unsent();
        let again = match &link.pause {
            Pause::Input => link.readable,
            Pause::Turn => link.writable,
            Pause::Full => sent > 0,
            Pause::Stalled => {
                self.stalled.push(key);
                false
            }
            Pause::Ended if link.connection.requests.len() == 0 && !unsent => {
                self.close(key, "the client disconnected");
                return;
            }
            Pause::Ended => false,
            Pause::Broken(violation) => {
                let reason = violation.to_string();
                self.close(key, &reason);
                return;
            }
        };
        let interest = Interest {
            readable: link.pause == Pause::Input,
            writable: unsent,
        };
        if interest != link.interest {
            link.interest = interest;
            self.changed.push(key);
        }
        if again {
            self.schedule(key);
        }
    }

    fn close(&mut self, key: Key, reason: &str) {
        if let Some(mut link) = self.links.remove(key) {
            tracing::debug!(connection = key, reason, "NBD server closed connection");
            link.connection.clear(&mut self.state);
            self.closed.push(link.pipe);
        }
    }

    /// Closes the pipes of closed connections. Clients notice nothing before, so the owner can
    /// publish a failure first.
    pub fn hang_up(&mut self) {
        self.closed.clear();
    }

    /// The next pipe whose interest has changed.
    pub fn next_changed(&mut self) -> Option<(Key, &mut P, Interest)> {
        while let Some(key) = self.changed.pop() {
            if self.links.get(key).is_some() {
                let link = self.links.get_mut(key)?;
                return Some((key, &mut link.pipe, link.interest));
            }
        }
        None
    }

    /// The pipe of an open connection.
    pub fn pipe(&self, key: Key) -> Option<&P> {
        self.links.get(key).map(|link| &link.pipe)
    }

    /// The keys of the open connections.
    pub fn keys(&self) -> Vec<Key> {
        self.links.keys().collect()
    }

    /// Closes all connections. The results of their operations are dropped.
    pub fn close_all(&mut self, reason: &str) {
        for key in self.keys() {
            self.close(key, reason);
        }
    }

    /// Refuses new requests, and fails those that wait for something unavailable.
    pub fn refuse_requests(&mut self) {
        self.state.stopping = true;
        self.state.device.stop_waiting();
    }

    /// Flushes the device after all operations have completed. Returns the result once there is
    /// one.
    pub fn flush(&mut self) -> Option<Result<(), IoError>> {
        if self.flush == FinalFlush::NotStarted && self.state.operations.is_empty() {
            if !self.state.capabilities.can_flush || self.state.capabilities.read_only {
                self.flush = FinalFlush::Ended(Ok(()));
            } else {
                self.begin_flush();
            }
        }
        match &self.flush {
            FinalFlush::Ended(result) => Some(result.clone()),
            FinalFlush::NotStarted | FinalFlush::Pending => None,
        }
    }

    fn begin_flush(&mut self) {
        let token = self.state.operations.next_key();
        match self.state.device.start(Request::flush(token)) {
            Started::Done => self.flush = FinalFlush::Ended(self.state.device.end_batch()),
            Started::Failed(error) => self.flush = FinalFlush::Ended(Err(error)),
            Started::Busy => {}
            Started::Pending => {
                self.state.operations.insert(Operation {
                    link: NO_LINK,
                    request: NO_LINK,
                    offset: 0,
                    bytes: 0,
                });
                self.state.has_batch = true;
                self.flush = FinalFlush::Pending;
            }
        }
    }

    /// Whether every reply has been sent.
    pub fn all_sent(&self) -> bool {
        !self.links.values().any(Link::has_unsent)
    }

    /// Why the device stopped; `None` if it works.
    pub fn failure(&self) -> Option<&IoError> {
        self.failure.as_ref()
    }

    /// The export state.
    pub fn state(&mut self) -> &mut ExportState<D> {
        &mut self.state
    }

    /// Notes that the owner may have started requests on the device, whose batch must end.
    pub fn device_was_used(&mut self) {
        self.state.has_batch = true;
    }

    /// The number of operations that are pending in the device.
    pub fn operations(&self) -> usize {
        self.state.operations.len()
    }

    /// Checks every connection against its limits.
    ///
    /// # Panics
    /// If one exceeds them.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn check_memory(&self) {
        for link in self.links.values() {
            let held = link.connection.requests.held_bytes();
            let most = self.state.limits.bytes_max + super::buffers::BUFFER_BYTES + PIECE_BYTES;
            assert!(
                held <= most,
                "a connection holds {held} bytes; the limit is {most}"
            );
            let requests = link.connection.requests.len();
            assert!(requests <= self.state.limits.requests_max);
        }
    }

    /// Closes the connections and returns the device.
    pub fn into_device(self) -> D {
        self.state.device
    }
}

#[cfg(test)]
mod tests;
