//! The host's side of one connection to a daemon: requests and answers, without I/O.
//!
//! Invariants: `done` is called once for each request, with its answer or by
//! [`Conversation::lose`]; a connection fails if the daemon names another unit or answers a
//! request that was not sent.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::{ClusterId, UnitId};
use unit_wire::{BODY_BYTES_MAX, Frames, Greeting, Malformed, Refusal, Request, Status, VERSION};

use super::{Done, Reply};

/// Tag of the hello. Others are larger.
pub(super) const HELLO_TAG: u64 = 1;

/// Maximum length of the body of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = BODY_BYTES_MAX;

/// A connection to a daemon.
pub struct Conversation {
    unit: UnitId,
    frames: Frames,
    greeting: Option<Greeting>,
    /// Requests by tag, in the order in which they were sent.
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    done: Done,
    /// When the answer is overdue, by the caller's clock.
    deadline: Duration,
}

/// Whether the daemon has sent its greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GreetingProgress {
    /// Not yet.
    No,
    /// In the bytes that were just received.
    Now(Greeting),
    /// Before.
    Before,
}

/// Why a connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The daemon violates the protocol.
    #[error("the daemon violates the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// The daemon refuses the connection.
    #[error("the daemon refused the connection: {text}")]
    Refused {
        /// The daemon's reason.
        text: String,
    },
    /// Another unit's daemon answers.
    #[error("{found} answers in place of {expected}")]
    OtherUnit {
        /// The expected unit.
        expected: UnitId,
        /// The unit that answered.
        found: UnitId,
    },
}

impl Conversation {
    /// Begins a connection to the daemon of `unit` and appends the hello to `out`.
    #[must_use]
    pub fn begin(unit: UnitId, cluster: ClusterId, out: &mut Vec<u8>) -> Self {
        let hello = Request::Hello {
            version: VERSION,
            cluster,
        };
        hello.encode(HELLO_TAG, out);
        Self {
            unit,
            frames: Frames::new(ANSWER_BYTES_MAX),
            greeting: None,
            waiting: BTreeMap::new(),
        }
    }

    /// The daemon's greeting, once it was received. No request may be sent before.
    #[must_use]
    pub fn greeting(&self) -> Option<&Greeting> {
        self.greeting.as_ref()
    }

    /// Registers a request that is being sent. Its tag is larger than 1 and unique; its answer is
    /// overdue at `deadline`.
    pub fn expect(&mut self, tag: u64, deadline: Duration, done: Done) {
        self.waiting.insert(tag, Waiting { done, deadline });
    }

    /// Whether an answer is overdue at `now`.
    #[must_use]
    pub fn is_overdue(&self, now: Duration) -> bool {
        self.waiting.values().any(|waiting| waiting.deadline <= now)
    }

    /// Number of requests that wait for their answers.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Handles received bytes and delivers the answers in them.
    ///
    /// # Errors
    /// The connection must be closed and the conversation [lost](Self::lose).
    pub fn receive(&mut self, bytes: &[u8]) -> Result<GreetingProgress, ConnectionError> {
        self.frames.extend(bytes);
        let mut greeted = match self.greeting {
            Some(_) => GreetingProgress::Before,
            None => GreetingProgress::No,
        };
        while let Some(frame) = self.frames.pop()? {
            let status = Status::of(frame.code)?;
            let Some(greeting) = self.greeting else {
                if status != Status::Done {
                    let Refusal { text, .. } = Refusal::decode(status, frame.body)?;
                    return Err(ConnectionError::Refused { text });
                }
                if frame.tag != HELLO_TAG {
                    return Err(Malformed("an answer to no request").into());
                }
                let greeting = Greeting::decode(frame.body)?;
                if greeting.unit != self.unit {
                    return Err(ConnectionError::OtherUnit {
                        expected: self.unit,
                        found: greeting.unit,
                    });
                }
                self.greeting = Some(greeting);
                greeted = GreetingProgress::Now(greeting);
                continue;
            };
            let Some(Waiting { done, .. }) = self.waiting.remove(&frame.tag) else {
                // With tag 0 the daemon says why it closes the connection.
                return Err(match Refusal::decode(status, frame.body) {
                    Ok(Refusal { text, .. }) if frame.tag == 0 => ConnectionError::Refused { text },
                    _ => Malformed("an answer to no request").into(),
                });
            };
            done(Ok(Reply {
                status,
                body: frame.body,
                incarnation: greeting.incarnation,
            }));
        }
        Ok(greeted)
    }

    /// Fails all waiting requests, in the order in which they were sent: the connection ended.
    pub fn lose(self, why: &Arc<io::Error>) {
        for waiting in self.waiting.into_values() {
            (waiting.done)(Err(Arc::clone(why)));
        }
    }
}
