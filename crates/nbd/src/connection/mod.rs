//! [`Connection`]: one client after the handshake. Received bytes become requests to the device,
//! and results become bytes to send. It knows no socket.
//!
//! Life of a request:
//!
//! ```text
//!  1. decode   the header, and check it
//!  2. start    it on the device; if that is Busy, stay at 1
//!  3. wait     if it is Pending, in `requests`
//!  4. reply    stage the reply in `requests.output`; it is sent when the device's batch has ended
//! ```
//!
//! Requests longer than [`PIECE_BYTES`] are started in pieces (`long`). The pieces of a write
//! start as its payload arrives. The pieces of a structured read are chunks of their own, in any
//! order. A read whose data must be contiguous (a simple reply, or DF) excludes other requests of
//! the connection meanwhile, and an error after its first piece can only end the connection.
//!
//! Invariants: memory ≤ one input buffer + `bytes_max` + one piece and its buffer; requests ≤
//! `requests_max`.

mod long;
mod open_requests;

use std::ops::ControlFlow::{self, Break, Continue};

use base::{BlockDevice, Durability, Started};

use super::buffers::{Input, PIECE_BYTES};
use super::export_state::ExportState;
use super::request::{Command, Header, MalformedRequest, Range};
use super::slab::Key;
use super::wire::{Errno, Fault, PAYLOAD_BYTES_MAX};

use open_requests::{OpenRequests, ReplyKind, Request};

/// The number of staged bytes after which a connection sends before it decodes further requests.
/// So its client can begin to read, other connections get their turn, and the next large reply
/// uses the same buffer, which is still in the CPU's cache.
const TURN_BYTES: usize = 128 << 10;

/// The maximal length of a refused payload that is received and discarded, in bytes. A longer one
/// ends the connection.
const DRAIN_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;

/// What a client and the server have negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Whether replies may be structured.
    pub structured: bool,
    /// Whether the client selected `base:allocation`.
    pub allocation: bool,
    /// Whether the client may not write.
    pub read_only: bool,
}

/// Why a connection has to end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A request has the wrong magic number.
    #[error(transparent)]
    Malformed(#[from] MalformedRequest),
    /// A refused payload is too long to be discarded.
    #[error("a write has a payload of {0} bytes")]
    LongPayload(u32),
    /// A read failed after part of its reply had been staged.
    #[error("a read failed after its reply had begun: {0}")]
    PartialReply(String),
}

/// Why a connection stopped decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pause {
    /// The rest of a request has not arrived.
    Input,
    /// It has staged enough for one turn.
    Turn,
    /// Its limits are reached until replies are sent or requests end.
    Full,
    /// The device is busy until its next poll.
    Stalled,
    /// The client disconnected.
    Ended,
    /// The connection has to end.
    Broken(Violation),
}

/// A request that is started in pieces.
#[derive(Debug, Clone, Copy)]
struct LongRequest {
    /// Its key in `requests`.
    request: Key,
    /// The offset of the next piece on the device.
    next: u64,
    /// The offset of the end of the last piece.
    end: u64,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// A header arrives next.
    Header,
    /// The rest of a long write's payload arrives next.
    Write(LongRequest, Durability),
    /// The pieces of a long read are started.
    Read(LongRequest),
    /// This number of bytes of a refused payload is discarded.
    Drain(usize),
    /// No further request arrives.
    Ended,
}

/// One client's connection after the handshake.
#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    /// Received bytes.
    pub input: Input,
    input_ended: bool,
    stage: Stage,
    /// The requests that have started, and their staged replies.
    pub requests: OpenRequests,
}

type Step = ControlFlow<Pause>;

impl Connection {
    /// A connection whose handshake has ended.
    #[must_use]
    pub fn new(link: Key, settings: Settings) -> Self {
        Self {
            settings,
            input: Input::default(),
            input_ended: false,
            stage: Stage::Header,
            requests: OpenRequests::new(link, settings.structured),
        }
    }

    /// Records that the client sends nothing more.
    pub fn end_input(&mut self) {
        self.input_ended = true;
    }

    /// Decodes and starts requests until it has to pause.
    pub fn advance<D: BlockDevice>(&mut self, state: &mut ExportState<D>) -> Pause {
        let staged_before = self.requests.output.len();
        loop {
            if let Some(violation) = &self.requests.broken {
                return Pause::Broken(violation.clone());
            }
            if self.requests.output.len() >= staged_before + TURN_BYTES {
                return Pause::Turn;
            }
            if self.requests.held_bytes() >= state.limits.bytes_max {
                return Pause::Full;
            }
            if state.operations.len() >= state.limits.operations_max {
                return Pause::Stalled;
            }
            let step = match self.stage {
                Stage::Header => self.next_request(state),
                Stage::Write(long, durability) => self.next_write_piece(state, long, durability),
                Stage::Read(long) => self.next_read_piece(state, long),
                Stage::Drain(left) => self.drain(left),
                Stage::Ended => Break(Pause::Ended),
            };
            match step {
                Continue(()) => {}
                Break(Pause::Input) if self.input_ended => self.cut_off(state),
                Break(pause) => return pause,
            }
        }
    }

    /// Handles the end of the input: the rest of a request never arrives.
    fn cut_off<D>(&mut self, state: &mut ExportState<D>) {
        self.input.consume(self.input.len());
        if let Stage::Write(long, _) = self.stage {
            if let Some(request) = self.requests.entries.get_mut(long.request) {
                request.fault.get_or_insert(Fault {
                    errno: Errno::Inval,
                    message: "the payload ends before its length".into(),
                });
            }
            self.requests.all_issued(long.request, state);
        }
        self.stage = Stage::Ended;
    }

    fn next_request<D: BlockDevice>(&mut self, state: &mut ExportState<D>) -> Step {
        if self.requests.len() >= state.limits.requests_max {
            return Break(Pause::Full);
        }
        let Some(header) = self.input.bytes().first_chunk() else {
            return Break(Pause::Input);
        };
        let header = match Header::decode(header) {
            Ok(header) => header,
            Err(malformed) => return Break(Pause::Broken(malformed.into())),
        };
        match Command::check(&header, &state.rules(self.settings)) {
            Ok(command) => self.start(state, header.cookie, command),
            Err(refusal) => {
                let payload = header.payload();
                if payload > DRAIN_BYTES_MAX {
                    return Break(Pause::Broken(Violation::LongPayload(payload)));
                }
                self.input.consume(Header::BYTES);
                if payload > 0 {
                    self.stage = Stage::Drain(payload as usize);
                }
                let mut request = Request::new(header.cookie, ReplyKind::NoData);
                request.fault = Some(refusal.into());
                self.requests.answer(request, state);
                Continue(())
            }
        }
    }

    fn start<D: BlockDevice>(
        &mut self,
        state: &mut ExportState<D>,
        cookie: u64,
        command: Command,
    ) -> Step {
        let token = state.operations.next_key();
        let (kind, started) = match command {
            Command::Disconnect => {
                self.input.consume(self.input.len());
                self.stage = Stage::Ended;
                return Continue(());
            }
            Command::Read { range, fragments } => {
                return self.read(state, cookie, range, fragments);
            }
            Command::Write { range, durability } => {
                return self.write(state, cookie, range, durability);
            }
            Command::NoData(op) => {
                let started = state.device.start(base::Request { token, op });
                (ReplyKind::NoData, started)
            }
            Command::BlockStatus { range, first_only } => {
                let length = range.length;
                state.runs.clear();
                let runs = &mut state.runs;
                let request = base::Request::extents(token, range.offset, length.into(), runs);
                let started = state.device.start(request);
                (ReplyKind::Extents { length, first_only }, started)
            }
        };
        self.begin(state, Request::new(cookie, kind), started, Header::BYTES)
    }

    /// Handles the device's answer to a whole request, and removes its `consumed` bytes from the
    /// input unless the device is busy.
    fn begin<D>(
        &mut self,
        state: &mut ExportState<D>,
        mut request: Request,
        started: Started,
        consumed: usize,
    ) -> Step {
        if started == Started::Busy {
            return Break(Pause::Stalled);
        }
        self.input.consume(consumed);
        state.has_batch = true;
        match started {
            Started::Pending => {
                let (offset, bytes) = match request.kind {
                    ReplyKind::Read(range) => (range.offset, range.length as usize),
                    _ => (0, consumed - Header::BYTES),
                };
                request.outstanding = 1;
                let request = self.requests.entries.insert(request);
                self.requests.add_operation(state, request, offset, bytes);
                return Continue(());
            }
            Started::Failed(error) => request.fault = Some(state.count_failure(error)),
            Started::Done | Started::Busy => {
                if let ReplyKind::Extents { length, first_only } = request.kind {
                    let runs = std::mem::take(&mut state.runs);
                    self.requests
                        .stage_extents(state, &mut request, &runs, length, first_only);
                    state.runs = runs;
                }
            }
        }
        self.requests.answer(request, state);
        Continue(())
    }

    fn read<D: BlockDevice>(
        &mut self,
        state: &mut ExportState<D>,
        cookie: u64,
        range: Range,
        fragments: bool,
    ) -> Step {
        let length = range.length as usize;
        if length > PIECE_BYTES {
            self.input.consume(Header::BYTES);
            let kind = if fragments {
                ReplyKind::ReadFragments
            } else {
                ReplyKind::ReadWhole(range)
            };
            self.stage = Stage::Read(self.requests.add_long(cookie, kind, range));
            return Continue(());
        }
        if length == 0 {
            // A chunk of data is never empty, so the reply is only the last chunk.
            let kind = if self.settings.structured {
                ReplyKind::ReadFragments
            } else {
                ReplyKind::NoData
            };
            return self.begin(
                state,
                Request::new(cookie, kind),
                Started::Done,
                Header::BYTES,
            );
        }
        let request = Request::new(cookie, ReplyKind::Read(range));
        let head = request.head(self.settings.structured, range);
        let (head_space, space) = self
            .requests
            .output
            .space(head.len(), length, &mut state.pool);
        let token = state.operations.next_key();
        let started = state
            .device
            .start(base::Request::read(token, range.offset, space));
        if started == Started::Done {
            head_space.copy_from_slice(&head);
            self.requests.output.staged(head.len() + length);
        } else {
            self.requests.output.release(&mut state.pool);
        }
        self.begin(state, request, started, Header::BYTES)
    }

    fn write<D: BlockDevice>(
        &mut self,
        state: &mut ExportState<D>,
        cookie: u64,
        range: Range,
        durability: Durability,
    ) -> Step {
        let length = range.length as usize;
        if length > PIECE_BYTES {
            self.input.consume(Header::BYTES);
            self.stage = Stage::Write(
                self.requests.add_long(cookie, ReplyKind::NoData, range),
                durability,
            );
            return Continue(());
        }
        let consumed = Header::BYTES + length;
        let Some(data) = self.input.bytes().get(Header::BYTES..consumed) else {
            return Break(Pause::Input);
        };
        let token = state.operations.next_key();
        let started =
            state
                .device
                .start(base::Request::write(token, range.offset, data, durability));
        self.begin(
            state,
            Request::new(cookie, ReplyKind::NoData),
            started,
            consumed,
        )
    }

    /// Returns unused buffers to the pool.
    pub fn release<D>(&mut self, state: &mut ExportState<D>) {
        self.input.release(&mut state.pool);
    }

    /// Returns all buffers to the pool, when the connection is closed.
    pub fn clear<D>(&mut self, state: &mut ExportState<D>) {
        self.input.consume(self.input.len());
        self.input.release(&mut state.pool);
        self.requests.output.clear(&mut state.pool);
    }
}
