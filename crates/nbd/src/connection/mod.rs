//! One client after the handshake: bytes in, calls to the device, bytes out.
//! Knows no socket.
//!
//! A request's life:
//!
//! ```text
//!  1. decode   its header is here, and is checked
//!  2. offer    to the device; if it is Busy, stay at 1
//!  3. wait     if it is Pending, as an entry in `requests`
//!  4. reply    staged in `output`, sent after the device's commit
//! ```
//!
//! Requests longer than [`PIECE_BYTES`] go to the device in pieces. A write's
//! pieces go as its payload arrives; a structured read's pieces are chunks of
//! their own, in any order. A read whose answer must be one run of bytes (a
//! simple reply, or DF) has the connection to itself while it lasts, and an
//! error after its first piece can only end the connection.
//!
//! Invariants: memory ≤ one input buffer + `bytes_max` + one piece and its
//! buffer; requests ≤ `requests_max`.

mod long;
mod pending;

use std::ops::ControlFlow::{self, Break, Continue};

use base::{BlockDevice, Durability, Started};

use super::buffers::{Input, Output, PIECE_BYTES};
use super::desk::{Desk, Operation};
use super::request::{Command, Header, NotARequest, Range};
use super::slab::{Key, Slab};
use super::wire::{Errno, Fault, PAYLOAD_BYTES_MAX};

use pending::{Kind, Request};

/// A connection that staged this much sends before it goes on: its client can
/// begin to read, others have their turn, and the next large reply finds the
/// same buffer, still in the CPU's cache.
const TURN_BYTES: usize = 128 << 10;

/// A payload that is refused is read and forgotten up to this length. Who
/// sends more is not out by a little.
const DRAIN_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;

/// What a client and the server agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Replies may be structured.
    pub structured: bool,
    /// The client chose `base:allocation`.
    pub allocation: bool,
    /// The client may not write.
    pub read_only: bool,
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The two sides disagree where requests begin.
    #[error(transparent)]
    Garbage(#[from] NotARequest),
    /// More payload than anyone should read to forget it.
    #[error("a write announces {0} bytes")]
    EndlessPayload(u32),
    /// A reply was begun that cannot be finished.
    #[error("a read failed after its reply had begun: {0}")]
    HalfAReply(String),
}

/// Why a connection stopped decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pause {
    /// The rest of a request has not arrived.
    Input,
    /// It staged enough for one turn.
    Turn,
    /// Replies must leave, or requests end, before it may go on.
    Full,
    /// The device takes nothing now: try again after its next poll.
    Stalled,
    /// The client has left.
    Ended,
    /// It cannot go on.
    Broken(Violation),
}

/// A request that is handed to the device in pieces.
#[derive(Debug, Clone, Copy)]
struct Long {
    /// Its entry in `requests`.
    request: Key,
    /// Where the next piece begins.
    next: u64,
    /// Where the last one ends.
    end: u64,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// A header comes next.
    Header,
    /// The rest of a long write's payload comes next.
    Write(Long, Durability),
    /// A long read is being handed to the device.
    Read(Long),
    /// So much payload of a write that was refused comes next.
    Drain(usize),
    /// Nothing comes.
    Ended,
}

/// See the module's head.
#[derive(Debug)]
pub struct Connection {
    /// Its link's key: where completions are sent.
    link: Key,
    settings: Settings,
    /// What was received.
    pub input: Input,
    /// What is to be sent.
    pub output: Output,
    stage: Stage,
    requests: Slab<Request>,
    /// Memory that operations hold in the device on this connection's behalf.
    operation_bytes: usize,
    input_ended: bool,
    broken: Option<Violation>,
}

type Step = ControlFlow<Pause>;

impl Connection {
    /// A connection whose handshake is over.
    #[must_use]
    pub fn new(link: Key, settings: Settings) -> Self {
        Self {
            link,
            settings,
            input: Input::default(),
            output: Output::default(),
            stage: Stage::Header,
            requests: Slab::default(),
            operation_bytes: 0,
            input_ended: false,
            broken: None,
        }
    }

    /// How many requests were not answered yet.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Memory for replies, and for what the device was given, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.output.memory() + self.operation_bytes
    }

    /// The client will send nothing more.
    pub fn end_input(&mut self) {
        self.input_ended = true;
    }

    /// Decodes and begins what it can.
    pub fn advance<D: BlockDevice>(&mut self, desk: &mut Desk<D>) -> Pause {
        let staged_before = self.output.len();
        loop {
            if let Some(violation) = &self.broken {
                return Pause::Broken(violation.clone());
            }
            if self.output.len() >= staged_before + TURN_BYTES {
                return Pause::Turn;
            }
            if self.held_bytes() >= desk.limits.bytes_max {
                return Pause::Full;
            }
            if desk.operations.len() >= desk.limits.operations_max {
                return Pause::Stalled;
            }
            let step = match self.stage {
                Stage::Header => self.next_request(desk),
                Stage::Write(long, durability) => self.next_write_piece(desk, long, durability),
                Stage::Read(long) => self.next_read_piece(desk, long),
                Stage::Drain(left) => self.drain(left),
                Stage::Ended => Break(Pause::Ended),
            };
            match step {
                Continue(()) => {}
                Break(Pause::Input) if self.input_ended => self.cut_off(desk),
                Break(pause) => return pause,
            }
        }
    }

    /// The rest of a request, if one was begun, will never come.
    fn cut_off<D>(&mut self, desk: &mut Desk<D>) {
        self.input.consume(self.input.len());
        if let Stage::Write(long, _) = self.stage {
            if let Some(request) = self.requests.get_mut(long.request) {
                request.fault.get_or_insert(Fault {
                    errno: Errno::Inval,
                    message: "the payload ends before its length".into(),
                });
            }
            self.all_issued(long.request, desk);
        }
        self.stage = Stage::Ended;
    }

    fn next_request<D: BlockDevice>(&mut self, desk: &mut Desk<D>) -> Step {
        if self.requests.len() >= desk.limits.requests_max {
            return Break(Pause::Full);
        }
        let Some(header) = self.input.bytes().first_chunk() else {
            return Break(Pause::Input);
        };
        let header = match Header::decode(header) {
            Ok(header) => header,
            Err(garbage) => return Break(Pause::Broken(garbage.into())),
        };
        match Command::check(&header, &desk.rules(self.settings)) {
            Ok(command) => self.offer(desk, header.cookie, command),
            Err(refusal) => {
                let payload = header.payload();
                if payload > DRAIN_BYTES_MAX {
                    return Break(Pause::Broken(Violation::EndlessPayload(payload)));
                }
                self.input.consume(Header::BYTES);
                if payload > 0 {
                    self.stage = Stage::Drain(payload as usize);
                }
                let mut request = Request::new(header.cookie, Kind::Plain);
                request.fault = Some(refusal.into());
                self.answer(request, desk);
                Continue(())
            }
        }
    }

    fn offer<D: BlockDevice>(&mut self, desk: &mut Desk<D>, cookie: u64, command: Command) -> Step {
        let token = desk.operations.next_key();
        let (kind, started) = match command {
            Command::Disconnect => {
                self.input.consume(self.input.len());
                self.stage = Stage::Ended;
                return Continue(());
            }
            Command::Read { range, fragments } => {
                return self.read(desk, cookie, range, fragments);
            }
            Command::Write { range, durability } => {
                return self.write(desk, cookie, range, durability);
            }
            Command::Plain(op) => {
                let started = desk.device.start(base::Request { token, op });
                (Kind::Plain, started)
            }
            Command::BlockStatus { range, one } => {
                let length = range.length;
                desk.runs.clear();
                let runs = &mut desk.runs;
                let request = base::Request::extents(token, range.offset, length.into(), runs);
                let started = desk.device.start(request);
                (Kind::Extents { length, one }, started)
            }
        };
        self.begin(desk, Request::new(cookie, kind), started, Header::BYTES)
    }

    /// Handles the device's answer to a request that was offered whole, and
    /// takes its `consumed` bytes from the input unless it was Busy.
    fn begin<D>(
        &mut self,
        desk: &mut Desk<D>,
        mut request: Request,
        started: Started,
        consumed: usize,
    ) -> Step {
        if started == Started::Busy {
            return Break(Pause::Stalled);
        }
        self.input.consume(consumed);
        desk.uncommitted = true;
        match started {
            Started::Pending => {
                let (offset, bytes) = match request.kind {
                    Kind::Read(range) => (range.offset, range.length as usize),
                    _ => (0, consumed - Header::BYTES),
                };
                request.outstanding = 1;
                let request = self.requests.insert(request);
                self.wait(desk, request, offset, bytes);
                return Continue(());
            }
            Started::Failed(error) => request.fault = Some(desk.fault(error)),
            Started::Done | Started::Busy => {
                if let Kind::Extents { length, one } = request.kind {
                    let runs = std::mem::take(&mut desk.runs);
                    self.stage_extents(desk, &mut request, &runs, length, one);
                    desk.runs = runs;
                }
            }
        }
        self.answer(request, desk);
        Continue(())
    }

    /// A piece of `request` waits for the device.
    fn wait<D>(&mut self, desk: &mut Desk<D>, request: Key, offset: u64, bytes: usize) {
        self.operation_bytes += bytes;
        desk.operations.insert(Operation {
            link: self.link,
            request,
            offset,
            bytes,
        });
    }

    fn read<D: BlockDevice>(
        &mut self,
        desk: &mut Desk<D>,
        cookie: u64,
        range: Range,
        fragments: bool,
    ) -> Step {
        let length = range.length as usize;
        if length > PIECE_BYTES {
            self.input.consume(Header::BYTES);
            let kind = if fragments {
                Kind::ReadFragments
            } else {
                Kind::ReadWhole(range)
            };
            self.stage = Stage::Read(self.long(cookie, kind, range));
            return Continue(());
        }
        if length == 0 {
            // A chunk of data is never empty; the last chunk alone is.
            let kind = if self.settings.structured {
                Kind::ReadFragments
            } else {
                Kind::Plain
            };
            return self.begin(
                desk,
                Request::new(cookie, kind),
                Started::Done,
                Header::BYTES,
            );
        }
        let request = Request::new(cookie, Kind::Read(range));
        let head = request.head(self.settings.structured, range);
        let (head_space, space) = self.output.space(head.len(), length, &mut desk.pool);
        let token = desk.operations.next_key();
        let started = desk
            .device
            .start(base::Request::read(token, range.offset, space));
        if started == Started::Done {
            head_space.copy_from_slice(&head);
            self.output.staged(head.len() + length);
        } else {
            self.output.release(&mut desk.pool);
        }
        self.begin(desk, request, started, Header::BYTES)
    }

    fn write<D: BlockDevice>(
        &mut self,
        desk: &mut Desk<D>,
        cookie: u64,
        range: Range,
        durability: Durability,
    ) -> Step {
        let length = range.length as usize;
        if length > PIECE_BYTES {
            self.input.consume(Header::BYTES);
            self.stage = Stage::Write(self.long(cookie, Kind::Plain, range), durability);
            return Continue(());
        }
        let consumed = Header::BYTES + length;
        let Some(data) = self.input.bytes().get(Header::BYTES..consumed) else {
            return Break(Pause::Input);
        };
        let token = desk.operations.next_key();
        let started =
            desk.device
                .start(base::Request::write(token, range.offset, data, durability));
        self.begin(desk, Request::new(cookie, Kind::Plain), started, consumed)
    }

    /// Gives back what is not in use.
    pub fn release<D>(&mut self, desk: &mut Desk<D>) {
        self.input.release(&mut desk.pool);
    }

    /// Gives everything back: the connection is over.
    pub fn clear<D>(&mut self, desk: &mut Desk<D>) {
        self.input.consume(self.input.len());
        self.input.release(&mut desk.pool);
        self.output.clear(&mut desk.pool);
    }
}
