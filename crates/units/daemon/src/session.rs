//! One connection as a state machine: bytes in, jobs and bytes out. No sockets, no threads.
//!
//! ```text
//!              receive              step                       run, elsewhere
//!   bytes ────────────► frames ──┬──────► answered at once ─┐ ┌──────────► frame
//!                                └──────► Job ──────────────┼─┘              │
//!                                                           ▼                ▼
//!                                                          out ◄──────── answered
//! ```
//!
//! Invariants:
//!
//! * A request is answered once.
//! * At most [`HELD_BYTES_MAX`] of requests and answers are held, and one frame more. A body is
//!   received only once the budget of all connections has room for it.
//! * A capability counts for every request that comes after it, so these wait until it was
//!   verified.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use unit::NOTE_BYTES;
use unit_wire::{
    BODY_BYTES_MAX, Frame, Frames, Malformed, Refusal, Request, Status, VERSION, Verb, put_frame,
};
use world::Wake;

use crate::budget::{Budget, Member, Share};
use crate::keeper::{HELD_BYTES_MAX, Job, Keeper};
use crate::rights::Rights;

/// One host's connection.
pub struct Session {
    keeper: Arc<Keeper>,
    /// The SHA-256 of the public key in the host's certificate.
    holder: [u8; 32],
    frames: Frames,
    has_greeted: bool,
    rights: Arc<Mutex<Rights>>,
    /// Bytes that are held for each unanswered request, by tag.
    open: HashMap<u64, usize>,
    held_bytes: usize,
    /// Tag of the request whose capability is being verified.
    presenting: Option<u64>,
    member: Member,
    /// The share of the budget for the next frame.
    next: Share,
    /// Whether the next frame waits for room or for a capability.
    is_held_up: bool,
    /// Number of requests that were received.
    requests: u64,
}

/// The outcome of [`Session::step`].
pub enum Step {
    /// No request can begin until more is received or answered.
    Wait,
    /// A request was answered.
    Answered,
    /// A request to carry out on a thread that may wait.
    Job(Job),
}

/// A request that closes the connection.
struct Violation {
    /// Its tag; 0 if it has none.
    tag: u64,
    status: Status,
    reason: &'static str,
}

impl From<Malformed> for Violation {
    fn from(malformed: Malformed) -> Self {
        Self {
            tag: 0,
            status: Status::Malformed,
            reason: malformed.0,
        }
    }
}

/// The connection must be closed once the answers that were appended are sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Closing(pub &'static str);

impl Session {
    /// A connection of the host whose certificate has the key with hash `holder`. It takes room
    /// from `budget`, which wakes it through `wake`.
    #[must_use]
    pub fn new(keeper: Arc<Keeper>, holder: [u8; 32], budget: &Arc<Budget>, wake: Wake) -> Self {
        let member = budget.join(wake);
        Self {
            holder,
            frames: Frames::new(BODY_BYTES_MAX),
            has_greeted: false,
            rights: Arc::new(Mutex::new(Rights::on(keeper.next_connection()))),
            open: HashMap::new(),
            held_bytes: 0,
            presenting: None,
            next: member.empty_share(),
            member,
            is_held_up: false,
            requests: 0,
            keeper,
        }
    }

    /// Adds bytes that were received.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.frames.extend(bytes);
    }

    /// Whether more may be received within the limits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let own = self.held_bytes + self.frames.buffered_bytes();
        own < HELD_BYTES_MAX && !self.is_held_up
    }

    /// Whether the host has sent a hello.
    #[must_use]
    pub fn has_greeted(&self) -> bool {
        self.has_greeted
    }

    /// Number of requests that were received.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether a part of a request was received, and not the rest.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        self.frames.buffered_bytes() > 0
    }

    /// Frees memory that is not needed now.
    pub fn shrink(&mut self) {
        self.frames.shrink();
    }

    /// An empty share of this connection's budget.
    pub(crate) fn empty_share(&self) -> Share {
        self.member.empty_share()
    }

    /// Whether no request waits for its answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Handles the next request. An answer that needs no waiting is appended to `out`.
    ///
    /// # Errors
    /// [`Closing`]; the reason was appended to `out`.
    pub fn step(&mut self, out: &mut Vec<u8>) -> Result<Step, Closing> {
        self.handle_next(out).map_err(|violation| {
            let Violation {
                tag,
                status,
                reason,
            } = violation;
            self.keeper.counters().refused(status);
            Refusal::new(status, reason).encode(tag, out);
            Closing(reason)
        })
    }

    fn handle_next(&mut self, out: &mut Vec<u8>) -> Result<Step, Violation> {
        if self.held_bytes >= HELD_BYTES_MAX {
            return Ok(Step::Wait);
        }
        self.is_held_up = false;
        let Some(length) = self.frames.next_bytes()? else {
            return Ok(Step::Wait);
        };
        // Most answers are no longer than a note, so most requests need no more room once they
        // are received.
        if !grow_to(&self.member, &mut self.next, length + NOTE_BYTES) {
            self.is_held_up = true;
            return Ok(Step::Wait);
        }
        let Some(frame) = self.frames.peek()? else {
            return Ok(Step::Wait);
        };
        let tag = frame.tag;
        let request = self.parse(&frame)?;
        let held = length + request.answer_bytes();
        if !grow_to(&self.member, &mut self.next, held) {
            self.is_held_up = true;
            return Ok(Step::Wait);
        }
        let is_answered = self.answer_now(tag, &request, out)?;
        self.has_greeted = true;
        if !is_answered && self.presenting.is_some() {
            self.is_held_up = true;
            return Ok(Step::Wait);
        }
        let share = std::mem::replace(&mut self.next, self.member.empty_share());
        self.requests += 1;
        if is_answered {
            self.frames.skip(length);
            return Ok(Step::Answered);
        }
        if matches!(request, Request::Present(_)) {
            self.presenting = Some(tag);
        }
        let job = Job {
            keeper: Arc::clone(&self.keeper),
            rights: Arc::clone(&self.rights),
            holder: self.holder,
            tag,
            verb: request.verb(),
            body: frame.body.to_vec(),
            _share: share,
        };
        self.frames.skip(length);
        self.open.insert(tag, held);
        self.held_bytes += held;
        Ok(Step::Job(job))
    }

    /// Parses a request and checks that it may come now.
    fn parse<'a>(&self, frame: &Frame<'a>) -> Result<Request<'a>, Violation> {
        let tag = frame.tag;
        let malformed = |reason| Violation {
            tag,
            status: Status::Malformed,
            reason,
        };
        if tag == 0 || self.open.contains_key(&tag) {
            return Err(malformed("the tag is 0, or that of an unanswered request"));
        }
        let request = Request::decode(frame.code, frame.body);
        let request = request.map_err(|error| malformed(error.0))?;
        if !self.has_greeted && !matches!(request, Request::Hello { .. }) {
            return Err(malformed("the first request is not a hello"));
        }
        if request.answer_bytes() > BODY_BYTES_MAX {
            return Err(malformed("the answer would be longer than a frame may be"));
        }
        Ok(request)
    }

    /// Answers a request if that needs no waiting. Returns whether it did.
    fn answer_now(
        &self,
        tag: u64,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Violation> {
        let keeper = &self.keeper;
        match request {
            Request::Hello { version, cluster } => {
                let refused = |status, reason| Violation {
                    tag,
                    status,
                    reason,
                };
                if *version != VERSION {
                    return Err(refused(Status::Version, "this daemon supports version 1"));
                }
                if *cluster != keeper.cluster() {
                    let reason = "the unit belongs to another cluster";
                    return Err(refused(Status::Foreign, reason));
                }
                let greeting = keeper.timed(Verb::Hello, || keeper.greeting());
                put_frame(out, Status::Done as u16, tag, |body| greeting.encode(body));
                Ok(true)
            }
            // A read that was allowed before need not wait for a capability.
            Request::Read { run, slot_bytes } => {
                Ok(keeper.read_now(&self.rights, *run, *slot_bytes, tag, out))
            }
            Request::Present(signed) if self.presenting.is_none() => {
                match keeper.try_present(signed, &self.holder, &self.rights) {
                    None => return Ok(false),
                    Some(Ok(())) => put_frame(out, Status::Done as u16, tag, |_| {}),
                    Some(Err(refusal)) => {
                        keeper.counters().refused(refusal.status);
                        refusal.encode(tag, out);
                    }
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Records that a job has ended and its answer is to be sent.
    pub fn answered(&mut self, tag: u64) {
        if let Some(held) = self.open.remove(&tag) {
            self.held_bytes -= held;
        }
        if self.presenting == Some(tag) {
            self.presenting = None;
        }
    }
}

/// Grows `share` to at least `bytes`. Returns `false` if there is no room.
fn grow_to(member: &Member, share: &mut Share, bytes: usize) -> bool {
    let missing = bytes.saturating_sub(share.bytes());
    member.grow(share, missing)
}
