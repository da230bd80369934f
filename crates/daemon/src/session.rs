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
//! requests and answers are held, and the frame that goes beyond; a capability
//! that was shown counts for every request that comes after it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use unit::wire::{
    BODY_BYTES_MAX, Frames, HEAD_BYTES, Refusal, Request, Status, VERSION, Verb, put_frame,
};

use crate::keeper::{HELD_BYTES_MAX, Job, Keeper};
use crate::shown::Shown;

/// One host's connection.
pub struct Session {
    keeper: Arc<Keeper>,
    /// The SHA-256 of the public key in the host's certificate.
    holder: [u8; 32],
    frames: Frames,
    has_greeted: bool,
    shown: Arc<Mutex<Shown>>,
    /// Requests that are not answered yet, and what is held for each, in bytes.
    open: HashMap<u64, usize>,
    held_bytes: usize,
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
    /// A connection of the host whose certificate has this key.
    #[must_use]
    pub fn new(keeper: Arc<Keeper>, holder: [u8; 32]) -> Self {
        Self {
            keeper,
            holder,
            frames: Frames::new(BODY_BYTES_MAX),
            has_greeted: false,
            shown: Arc::default(),
            open: HashMap::new(),
            held_bytes: 0,
        }
    }

    /// More has come.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.frames.extend(bytes);
    }

    /// Whether more may be received: no more is held than may be.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.held_bytes + self.frames.kept_bytes() < HELD_BYTES_MAX
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
        let frame = match self.frames.cut() {
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
        match &request {
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
                return Ok(Step::Answered);
            }
            Request::Show(signed) => {
                let show = || keeper.show(signed, &self.holder, &self.shown);
                match keeper.timed(Verb::Show, show) {
                    Ok(()) => put_frame(out, Status::Done as u16, tag, |_| {}),
                    Err(refusal) => {
                        keeper.counters().refused(refusal.status);
                        refusal.encode(tag, out);
                    }
                }
                return Ok(Step::Answered);
            }
            Request::Read { run, slot_bytes } => {
                if request.answer_bytes() > BODY_BYTES_MAX {
                    let reason = "the read is longer than frames may be";
                    return closing(tag, Status::Malformed, reason, out);
                }
                if keeper.read_now(&self.shown, *run, *slot_bytes, tag, out) {
                    return Ok(Step::Answered);
                }
            }
            _ => {}
        }
        let held = HEAD_BYTES + frame.body.len() + request.answer_bytes();
        let job = Job {
            keeper: Arc::clone(keeper),
            shown: Arc::clone(&self.shown),
            tag,
            verb: request.verb(),
            body: frame.body.to_vec(),
        };
        self.open.insert(tag, held);
        self.held_bytes += held;
        Ok(Step::Job(job))
    }

    /// A job has ended, and its answer was taken to be sent.
    pub fn answered(&mut self, tag: u64) {
        if let Some(held) = self.open.remove(&tag) {
            self.held_bytes -= held;
        }
    }
}
