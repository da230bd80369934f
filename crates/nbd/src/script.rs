//! A client without a socket, for fuzzers and property tests. It sends bytes in pieces, receives
//! replies after random pauses, and records them.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::rc::Rc;

use base::BlockDevice;
use world::simulated::SimulatedRandom;
use world::{Interest, Ready};

use super::Limits;
use super::connection::Settings;
use super::service::Service;
use net::{Pipe, Sent};

/// What a client sends and receives.
#[derive(Debug, Default)]
struct Script {
    /// What it sends.
    incoming: Vec<u8>,
    /// The number of these bytes that the server has received.
    received: usize,
    /// The number of these bytes that have arrived.
    arrived: usize,
    /// What it has received.
    outgoing: Vec<u8>,
    /// The number of further bytes that it accepts.
    room: usize,
    /// Whether it may send more after `incoming`.
    sends_more: bool,
    /// Whether the server has closed the connection.
    closed: bool,
}

/// The server's end.
struct ScriptedPipe(Rc<RefCell<Script>>);

impl Drop for ScriptedPipe {
    fn drop(&mut self) {
        self.0.borrow_mut().closed = true;
    }
}

impl Pipe for ScriptedPipe {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut script = self.0.borrow_mut();
        let (from, to) = (script.received, script.arrived);
        if from == to && (script.sends_more || to < script.incoming.len()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = (to - from).min(into.len());
        into[..count].copy_from_slice(&script.incoming[from..from + count]);
        script.received += count;
        Ok(count)
    }

    fn holds_received(&self) -> bool {
        false
    }

    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<Sent> {
        let mut script = self.0.borrow_mut();
        let mut bytes = 0;
        for slice in from {
            let count = slice.len().min(script.room);
            script.outgoing.extend_from_slice(&slice[..count]);
            script.room -= count;
            bytes += count;
        }
        let offered: usize = from.iter().map(|slice| slice.len()).sum();
        Ok(Sent {
            bytes,
            blocked: bytes < offered,
        })
    }

    fn holds_unsent(&self) -> bool {
        false
    }
}

/// A client that accepts all replies at once.
#[cfg(test)]
pub(super) struct Scripted(Rc<RefCell<Script>>);

#[cfg(test)]
impl Scripted {
    /// A client that sends `incoming` first.
    pub fn new(incoming: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(Script {
            arrived: incoming.len(),
            incoming,
            room: 1 << 40,
            sends_more: true,
            ..Script::default()
        })))
    }

    /// The server's end.
    pub fn pipe(&self) -> impl Pipe + use<> {
        ScriptedPipe(Rc::clone(&self.0))
    }

    /// Sends more bytes.
    pub fn send(&self, more: &[u8]) {
        let mut script = self.0.borrow_mut();
        script.incoming.extend_from_slice(more);
        script.arrived = script.incoming.len();
    }

    /// The number of bytes of the replies.
    pub fn replies(&self) -> usize {
        self.0.borrow().outgoing.len()
    }
}

/// The result of a conversation.
pub struct Conversation<D> {
    /// All bytes that the client received.
    pub replies: Vec<u8>,
    /// The device.
    pub device: D,
}

/// Lets a client send `incoming` to a server of `device`, in pieces and with pauses drawn from
/// `random`, until the client has received all replies and the server has closed the connection.
///
/// # Panics
/// If the server holds more memory than `limits` allow, or never closes the connection.
pub fn converse<D: BlockDevice>(
    device: D,
    settings: Settings,
    limits: Limits,
    incoming: Vec<u8>,
    random: &SimulatedRandom,
) -> Conversation<D> {
    let script = Rc::new(RefCell::new(Script {
        incoming,
        ..Script::default()
    }));
    let mut service = Service::new(device, limits);
    let pipe = ScriptedPipe(Rc::clone(&script));
    let key = service.open(pipe, settings, &[], &[]);
    let mut interest = Interest::READABLE;
    let mut turns = 0;
    while !script.borrow().closed {
        {
            let mut script = script.borrow_mut();
            // Many small pieces, and some large ones.
            let size = if random.one_in(4) { 1 << 20 } else { 1 << 11 };
            let arrived = script.arrived + random.index(size);
            script.arrived = arrived.min(script.incoming.len());
            script.room += if random.one_in(3) {
                0
            } else {
                random.index(1 << 20)
            };
        }
        // As a poller, reports only readiness that the server waits for.
        let (has_input, room) = {
            let script = script.borrow();
            let is_complete = script.arrived == script.incoming.len();
            (is_complete || script.received < script.arrived, script.room)
        };
        let readable = interest.readable && has_input;
        let writable = interest.writable && room > 0;
        if readable || writable {
            service.ready(Ready {
                key,
                readable,
                writable,
                hung_up: false,
            });
        }
        service.turn();
        while let Some((_, _, changed)) = service.next_changed() {
            interest = changed;
        }
        service.check_memory();
        service.hang_up();
        turns += 1;
        assert!(turns < 1_000_000, "the server never closes the connection");
    }
    // Operations of a closed connection complete.
    while service.operations() > 0 {
        service.turn();
        turns += 1;
        assert!(turns < 1_000_000, "an operation never completes");
    }
    let replies = std::mem::take(&mut script.borrow_mut().outgoing);
    Conversation {
        replies,
        device: service.into_device(),
    }
}
