//! One connection: bytes in, jobs and bytes out. No sockets, no threads.
//!
//! ```text
//!              receive              step                       run, elsewhere
//!   bytes ────────────► frames ──┬──────► answered at once ─┐ ┌──────────► frame
//!                                └──────► Job ──────────────┼─┘              │
//!                                                           ▼                ▼
//!                                                          out ◄──────── answered
//! ```
//!
//! Invariants: a request is answered once; no more than [`HELD_BYTES_MAX`] of
//! requests and answers are held, and the frame that goes beyond; none is received
//! to its end before the budget of all connections has room for it; a capability
//! that was shown counts for every request that comes after it, so these wait until
//! it was looked at.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use unit::NOTE_BYTES;
use unit_wire::{BODY_BYTES_MAX, Frames, Refusal, Request, Status, VERSION, Verb, put_frame};
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
    /// Requests that are not answered yet, and what is held for each, in bytes.
    open: HashMap<u64, usize>,
    held_bytes: usize,
    /// A capability that is being looked at: its request's tag.
    showing: Option<u64>,
    member: Member,
    /// What the next frame may take.
    next: Share,
    /// That one has to wait: for room, or for what comes before it.
    is_held_up: bool,
    /// How many have come.
    requests: u64,
}

/// What is to be done next.
pub enum Step {
    /// Nothing, until more is received or answered.
    Wait,
    /// Nothing: a request was answered at once.
    Answered,
    /// This, where waiting harms nobody.
    Job(Job),
}

/// The connection is to be closed when what was appended so far is sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Closing(pub &'static str);

impl Session {
    /// A connection of the host whose certificate has this key, which takes its room
    /// from `budget`; `wake` is woken when there is some again.
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
            showing: None,
            next: member.nothing(),
            member,
            is_held_up: false,
            requests: 0,
            keeper,
        }
    }

    /// More has come.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.frames.extend(bytes);
    }

    /// Whether more may be received: no more is held than may be.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let own = self.held_bytes + self.frames.kept_bytes();
        own < HELD_BYTES_MAX && !self.is_held_up
    }

    /// Whether the host has said hello.
    #[must_use]
    pub fn has_greeted(&self) -> bool {
        self.has_greeted
    }

    /// How many requests have come.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether a part of a request has come, and not the rest of it.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        self.frames.kept_bytes() > 0
    }

    /// Gives back memory that is not needed now.
    pub fn shrink(&mut self) {
        self.frames.shrink();
    }

    /// A share of nothing, of the budget that this connection has.
    pub(crate) fn nothing(&self) -> Share {
        self.member.nothing()
    }

    /// Whether a request waits for its answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes the next request; what is answered at once is appended to `out`.
    ///
    /// # Errors
    /// [`Closing`]; why was appended to `out`.
    pub fn step(&mut self, out: &mut Vec<u8>) -> Result<Step, Closing> {
        if self.held_bytes >= HELD_BYTES_MAX {
            return Ok(Step::Wait);
        }
        let keeper = &self.keeper;
        let closing = |tag, status, reason: &'static str, out: &mut Vec<u8>| {
            keeper.counters().refused(status);
            Refusal::new(status, reason).encode(tag, out);
            Err(Closing(reason))
        };
        self.is_held_up = false;
        let whole = match self.frames.next_bytes() {
            Ok(Some(whole)) => whole,
            Ok(None) => return Ok(Step::Wait),
            Err(malformed) => return closing(0, Status::Malformed, malformed.0, out),
        };
        // Most answers are no longer: whoever has received all needs no more then.
        let lacking = (whole + NOTE_BYTES).saturating_sub(self.next.bytes());
        if !self.member.grow(&mut self.next, lacking) {
            self.is_held_up = true;
            return Ok(Step::Wait);
        }
        let frame = match self.frames.peek() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(Step::Wait),
            Err(malformed) => return closing(0, Status::Malformed, malformed.0, out),
        };
        let tag = frame.tag;
        if tag == 0 || self.open.contains_key(&tag) {
            let reason = "the tag is 0, or that of a request that is not answered yet";
            return closing(tag, Status::Malformed, reason, out);
        }
        let request = match Request::decode(frame.code, frame.body) {
            Ok(request) => request,
            Err(malformed) => return closing(tag, Status::Malformed, malformed.0, out),
        };
        if !self.has_greeted && !matches!(request, Request::Hello { .. }) {
            return closing(tag, Status::Malformed, "the first request is no hello", out);
        }
        if request.answer_bytes() > BODY_BYTES_MAX {
            let reason = "the answer would be longer than frames may be";
            return closing(tag, Status::Malformed, reason, out);
        }
        let held = whole + request.answer_bytes();
        let lacking = held.saturating_sub(self.next.bytes());
        if !self.member.grow(&mut self.next, lacking) {
            self.is_held_up = true;
            return Ok(Step::Wait);
        }
        let is_answered = match &request {
            Request::Hello { version, cluster } => {
                if *version != VERSION {
                    return closing(tag, Status::Version, "this daemon speaks version 1", out);
                }
                if *cluster != self.keeper.cluster() {
                    let reason = "the unit belongs to another cluster";
                    return closing(tag, Status::Foreign, reason, out);
                }
                self.has_greeted = true;
                let greeting = keeper.timed(Verb::Hello, || keeper.greeting());
                put_frame(out, Status::Done as u16, tag, |body| greeting.encode(body));
                true
            }
            // What reads may be done already is not held up.
            Request::Read { run, slot_bytes } => {
                keeper.read_now(&self.rights, *run, *slot_bytes, tag, out)
            }
            Request::Show(signed) if self.showing.is_none() => {
                match keeper.show_now(signed, &self.holder, &self.rights) {
                    None => false,
                    Some(Ok(())) => {
                        put_frame(out, Status::Done as u16, tag, |_| {});
                        true
                    }
                    Some(Err(refusal)) => {
                        keeper.counters().refused(refusal.status);
                        refusal.encode(tag, out);
                        true
                    }
                }
            }
            _ => false,
        };
        if !is_answered && self.showing.is_some() {
            self.is_held_up = true;
            return Ok(Step::Wait);
        }
        let share = std::mem::replace(&mut self.next, self.member.nothing());
        self.requests += 1;
        if is_answered {
            self.frames.skip(whole);
            return Ok(Step::Answered);
        }
        if matches!(request, Request::Show(_)) {
            self.showing = Some(tag);
        }
        let job = Job {
            keeper: Arc::clone(keeper),
            rights: Arc::clone(&self.rights),
            holder: self.holder,
            tag,
            verb: request.verb(),
            body: frame.body.to_vec(),
            _share: share,
        };
        self.frames.skip(whole);
        self.open.insert(tag, held);
        self.held_bytes += held;
        Ok(Step::Job(job))
    }

    /// A job has ended, and its answer was taken to be sent.
    pub fn answered(&mut self, tag: u64) {
        if let Some(held) = self.open.remove(&tag) {
            self.held_bytes -= held;
        }
        if self.showing == Some(tag) {
            self.showing = None;
        }
    }
}
