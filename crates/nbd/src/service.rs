//! One export and all its connections, without a socket and without waiting:
//! the owner says which pipes are ready and calls [`Service::turn`].
//!
//! A turn:
//!
//! ```text
//!  1. poll     the device; completions become staged replies
//!  2. receive  once per connection that is ready
//!  3. advance  decode, call the device, stage replies
//!  4. commit   the device, once
//!  5. send     what is staged
//! ```
//!
//! Invariant: nothing staged leaves before the commit that covers it. If a
//! commit fails, all connections are dropped with what they had staged.

use std::io::ErrorKind;
use std::time::Duration;

use base::{BlockDevice, IoError, Request, Started};
use world::{Interest, Ready};

use super::Limits;
use super::buffers::{BUFFER_BYTES, PIECE_BYTES};
use super::connection::{Connection, Pause, Settings};
use super::desk::{Desk, Operation};
use super::slab::{Key, Slab};
use net::Pipe;

/// How soon a device that was busy is asked again, if it does not call before.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// The key of no link: the service itself asked.
const NO_LINK: Key = Key::MAX;

struct Link<P> {
    pipe: P,
    connection: Connection,
    /// Why it decodes no further.
    pause: Pause,
    readable: bool,
    writable: bool,
    /// The device has taken something of it when it was looked at last.
    got_on: bool,
    /// It is in the list of those to look at.
    touched: bool,
    hung_up: bool,
    interest: Interest,
}

impl<P: Pipe> Link<P> {
    fn has_unsent(&self) -> bool {
        !self.connection.output.is_empty() || self.pipe.holds_unsent()
    }
}

/// See the module's head.
pub struct Service<D, P> {
    desk: Desk<D>,
    links: Slab<Link<P>>,
    touched: Vec<Key>,
    /// Scratch: those looked at in this turn.
    looked_at: Vec<Key>,
    /// Those who wait for a busy device, in the order in which they are asked again.
    stalled: Vec<Key>,
    changed: Vec<Key>,
    /// Pipes of connections that are over.
    gone: Vec<P>,
    failure: Option<IoError>,
    flush: Flush,
}

/// The last flush, when the service ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Flush {
    Unasked,
    Asked,
    Over(Result<(), IoError>),
}

impl<D: BlockDevice, P: Pipe> Service<D, P> {
    /// A service without connections.
    pub fn new(device: D, limits: Limits) -> Self {
        Self {
            desk: Desk::new(device, limits),
            links: Slab::default(),
            touched: Vec::new(),
            looked_at: Vec::new(),
            stalled: Vec::new(),
            changed: Vec::new(),
            gone: Vec::new(),
            failure: None,
            flush: Flush::Unasked,
        }
    }

    /// Takes a connection whose handshake is over, but for its last `replies`;
    /// `received` came behind it.
    pub fn open(
        &mut self,
        pipe: P,
        settings: Settings,
        replies: &[u8],
        mut received: &[u8],
    ) -> Key {
        let mut connection = Connection::new(self.links.next_key(), settings);
        for part in replies.chunks(PIECE_BYTES) {
            connection.output.put(part, &mut self.desk.pool);
        }
        if !received.is_empty() {
            let space = connection.input.space(&mut self.desk.pool);
            let count = received.len().min(space.len());
            space[..count].copy_from_slice(&received[..count]);
            connection.input.received(count);
            received = &received[count..];
        }
        assert!(
            received.is_empty(),
            "a handshake's buffer is smaller than a connection's"
        );
        let key = self.links.insert(Link {
            pipe,
            connection,
            pause: Pause::Input,
            readable: true,
            writable: true,
            got_on: false,
            touched: false,
            hung_up: false,
            interest: Interest::READABLE,
        });
        self.touch(key);
        key
    }

    /// The key that the next connection will get.
    pub fn next_key(&self) -> Key {
        self.links.next_key()
    }

    fn touch(&mut self, key: Key) {
        if let Some(link) = self.links.get_mut(key)
            && !link.touched
        {
            link.touched = true;
            self.touched.push(key);
        }
    }

    /// The owner saw that a pipe is ready.
    pub fn ready(&mut self, ready: Ready) {
        if let Some(link) = self.links.get_mut(ready.key) {
            link.readable |= ready.readable;
            link.writable |= ready.writable;
            link.hung_up |= ready.hung_up;
            self.touch(ready.key);
        }
    }

    /// How long the owner may sleep if no pipe becomes ready and the device
    /// does not wake it; `None` for as long as it likes.
    pub fn sleep(&self) -> Option<Duration> {
        if !self.touched.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.desk.device.next_timer();
        let asks_again = !self.stalled.is_empty() || self.flush == Flush::Asked;
        if asks_again {
            return Some(timer.map_or(BUSY_RETRY, |timer| timer.min(BUSY_RETRY)));
        }
        timer
    }

    /// Does all that can be done now. See the module's head.
    pub fn turn(&mut self) {
        self.poll_device();
        let mut touched = std::mem::take(&mut self.looked_at);
        std::mem::swap(&mut touched, &mut self.touched);
        for &key in &touched {
            self.take_in(key);
        }
        self.commit();
        for &key in &touched {
            self.send_out(key);
        }
        touched.clear();
        self.looked_at = touched;
    }

    fn poll_device(&mut self) {
        let desk = &mut self.desk;
        let mut completions = std::mem::take(&mut desk.completions);
        desk.device.poll(&mut completions);
        desk.geometry = desk.device.geometry();
        desk.capabilities = desk.device.capabilities();
        for completion in completions.drain(..) {
            let Some(operation) = self.desk.operations.remove(completion.token) else {
                tracing::warn!(
                    token = completion.token,
                    "the device answered nobody's request"
                );
                continue;
            };
            if operation.link == NO_LINK {
                self.flush = Flush::Over(completion.result.map(|_| ()));
            } else if let Some(link) = self.links.get_mut(operation.link) {
                link.connection
                    .complete(&mut self.desk, &operation, completion.result);
                self.touch(operation.link);
            }
        }
        self.desk.completions = completions;
        // Those who wait for a busy device come before those who have just asked; and among
        // them those who got nothing the last time: the first one may get all there is.
        let mut stalled = std::mem::take(&mut self.stalled);
        let got_on = |key: &Key| self.links.get(*key).is_some_and(|link| link.got_on);
        stalled.sort_by_key(got_on);
        if !stalled.is_empty() {
            let arrived = std::mem::take(&mut self.touched);
            for key in arrived.iter().chain(&stalled) {
                if let Some(link) = self.links.get_mut(*key) {
                    link.touched = false;
                }
            }
            for key in stalled.drain(..).chain(arrived) {
                self.touch(key);
            }
        }
        self.stalled = stalled;
    }

    /// Receives and decodes.
    fn take_in(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.touched = false;
        if link.hung_up && link.pause != Pause::Input {
            // It does not read either: nobody is there to answer.
            self.close(key, "the client hung up");
            return;
        }
        if link.readable && link.pause == Pause::Input {
            let space = link.connection.input.space(&mut self.desk.pool);
            match link.pipe.receive(space) {
                Ok(0) if !space.is_empty() => link.connection.end_input(),
                Ok(count) => link.connection.input.received(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.close(key, &error.to_string());
                    return;
                }
            }
            // If there is more, the poller says so again.
            link.readable = link.pipe.holds_received();
        }
        let uncommitted = std::mem::take(&mut self.desk.uncommitted);
        link.pause = link.connection.advance(&mut self.desk);
        link.got_on = self.desk.uncommitted;
        self.desk.uncommitted |= uncommitted;
        link.connection.release(&mut self.desk);
    }

    fn commit(&mut self) {
        if !self.desk.uncommitted {
            return;
        }
        self.desk.uncommitted = false;
        if let Err(error) = self.desk.device.commit() {
            tracing::error!(%error, "the device stopped; its connections are dropped");
            self.failure = Some(error);
            self.close_all("the device stopped");
        }
    }

    /// Sends, and finds out what the link waits for.
    fn send_out(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let mut sent = 0;
        while link.writable && link.has_unsent() {
            let (slices, count) = link.connection.output.slices();
            match link.pipe.send(&slices[..count]) {
                Ok(taken) => {
                    link.connection
                        .output
                        .sent(taken.bytes, &mut self.desk.pool);
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
            Pause::Ended if link.connection.requests() == 0 && !unsent => {
                self.close(key, "the client left");
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
            self.touch(key);
        }
    }

    fn close(&mut self, key: Key, reason: &str) {
        if let Some(mut link) = self.links.remove(key) {
            tracing::debug!(connection = key, reason, "connection closed");
            link.connection.clear(&mut self.desk);
            self.gone.push(link.pipe);
        }
    }

    /// Closes the pipes of connections that are over. Until then their clients
    /// see nothing of it, so that the owner can tell others first.
    pub fn hang_up(&mut self) {
        self.gone.clear();
    }

    /// A pipe whose interest has changed since this was asked last.
    pub fn next_changed(&mut self) -> Option<(Key, &mut P, Interest)> {
        while let Some(key) = self.changed.pop() {
            if self.links.get(key).is_some() {
                let link = self.links.get_mut(key)?;
                return Some((key, &mut link.pipe, link.interest));
            }
        }
        None
    }

    /// The pipe of a connection that is open.
    pub fn pipe(&self, key: Key) -> Option<&P> {
        self.links.get(key).map(|link| &link.pipe)
    }

    /// Those of all connections that are open.
    pub fn keys(&self) -> Vec<Key> {
        self.links.keys().collect()
    }

    /// Ends all connections: what they wait for is nobody's.
    pub fn close_all(&mut self, reason: &str) {
        for key in self.keys() {
            self.close(key, reason);
        }
    }

    /// From now on requests are refused, and those that wait for what is away fail.
    pub fn refuse_requests(&mut self) {
        self.desk.stopping = true;
        self.desk.device.stop_waiting();
    }

    /// Begins the last flush as soon as the device has answered everything
    /// else, and says how it ended.
    pub fn flush(&mut self) -> Option<Result<(), IoError>> {
        if self.flush == Flush::Unasked && self.desk.operations.is_empty() {
            if !self.desk.capabilities.can_flush || self.desk.capabilities.read_only {
                self.flush = Flush::Over(Ok(()));
            } else {
                self.begin_flush();
            }
        }
        match &self.flush {
            Flush::Over(result) => Some(result.clone()),
            Flush::Unasked | Flush::Asked => None,
        }
    }

    fn begin_flush(&mut self) {
        let token = self.desk.operations.next_key();
        match self.desk.device.start(Request::flush(token)) {
            Started::Done => self.flush = Flush::Over(self.desk.device.commit()),
            Started::Failed(error) => self.flush = Flush::Over(Err(error)),
            Started::Busy => {}
            Started::Pending => {
                self.desk.operations.insert(Operation {
                    link: NO_LINK,
                    request: NO_LINK,
                    offset: 0,
                    bytes: 0,
                });
                self.desk.uncommitted = true;
                self.flush = Flush::Asked;
            }
        }
    }

    /// Whether every reply has left.
    pub fn all_sent(&self) -> bool {
        !self.links.values().any(Link::has_unsent)
    }

    /// Why the device stopped, if it did.
    pub fn failure(&self) -> Option<&IoError> {
        self.failure.as_ref()
    }

    /// The shared part: the device, and what was done with it.
    pub fn desk(&mut self) -> &mut Desk<D> {
        &mut self.desk
    }

    /// Its device may have been given work that has to be committed.
    pub fn device_was_used(&mut self) {
        self.desk.uncommitted = true;
    }

    /// How many requests and pieces the device has not answered.
    pub fn operations(&self) -> usize {
        self.desk.operations.len()
    }

    /// Holds every connection against its limits.
    ///
    /// # Panics
    /// If one has more than it may have.
    pub fn check_memory(&self) {
        for link in self.links.values() {
            let held = link.connection.held_bytes();
            let most = self.desk.limits.bytes_max + BUFFER_BYTES + PIECE_BYTES;
            assert!(
                held <= most,
                "a connection holds {held} bytes, and {most} are allowed"
            );
            let requests = link.connection.requests();
            assert!(requests <= self.desk.limits.requests_max);
        }
    }

    /// Drops the connections and returns the device.
    pub fn into_device(self) -> D {
        self.desk.device
    }
}

#[cfg(test)]
mod tests {
    use base::{Capabilities, Completion, DeviceGeometry, Op};

    use super::super::request::Header;
    use super::super::script::Scripted;
    use super::super::wire::command;
    use super::*;

    /// Takes one request between two polls, as one whose rate is limited does.
    #[derive(Default)]
    struct OneAtATime {
        is_free: bool,
        /// How often each place was read.
        reads: [u64; 3],
    }

    impl BlockDevice for OneAtATime {
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry {
                size_bytes: 3 * 512,
                block_bytes: 512,
            }
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::ALL
        }

        fn start(&mut self, request: Request<'_>) -> Started {
            let op = request.op;
            match op {
                Op::Read { offset, .. } => {
                    if !std::mem::take(&mut self.is_free) {
                        return Started::Busy;
                    }
                    self.reads[offset as usize / 512] += 1;
                    Started::Done
                }
                Op::Flush | Op::Prefetch { .. } => Started::Done,
                Op::Write { .. }
                | Op::Trim { .. }
                | Op::WriteZeroes { .. }
                | Op::Extents { .. } => Started::Failed(IoError::NotSupported),
            }
        }

        fn commit(&mut self) -> Result<(), IoError> {
            Ok(())
        }

        fn poll(&mut self, _: &mut Vec<Completion>) {}
    }

    fn reads_at(offset: u64, count: u64) -> Vec<u8> {
        let header = |cookie| Header {
            flags: 0,
            command: command::READ,
            cookie,
            offset,
            length: 512,
        };
        (0..count)
            .flat_map(|cookie| header(cookie).encode())
            .collect()
    }

    /// Whoever had many requests under way at once, or had just asked, was first each time.
    #[test]
    fn who_waits_for_a_busy_device_has_their_turn_beside_who_asks_more() {
        let limits = Limits::default();
        let mut service = Service::new(OneAtATime::default(), limits);
        // One has many requests on their way; two ask for the next when one is answered.
        let clients = [(0, 1000), (512, 1), (1024, 1)].map(|(offset, count)| {
            let client = Scripted::new(reads_at(offset, count));
            let key = service.open(client.pipe(), Settings::default(), &[], &[]);
            (offset, client, key)
        });
        let mut replied = [0; 3];
        for round in 0..900 {
            // The device is free in every third turn.
            service.desk().device.is_free = round % 3 == 0;
            service.turn();
            for ((offset, client, key), replied) in clients.iter().zip(&mut replied) {
                let replies = client.replies();
                if *offset > 0 && replies > *replied {
                    client.say(&reads_at(*offset, 1));
                }
                *replied = replies;
                service.ready(Ready {
                    key: *key,
                    readable: true,
                    writable: true,
                    hung_up: false,
                });
            }
        }
        let reads = service.desk().device.reads;
        assert_eq!(reads.iter().sum::<u64>(), 300);
        assert!(reads.iter().all(|count| *count >= 90), "{reads:?}");
    }
}
