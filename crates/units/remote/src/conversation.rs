//! One connection to a daemon, from the host's side: requests and answers,
//! without I/O.
//!
//! Invariants: each request that was asked is told of once, by its answer or by
//! [`Conversation::lose`]; nothing is believed of a daemon that names another
//! unit, or answers what was not asked.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::{ClusterId, UnitId};
use unit_wire::{BODY_BYTES_MAX, Frames, Greeting, Malformed, Refusal, Request, Status, VERSION};

use super::{Done, Reply};

/// The tag of the hello. Others are larger.
pub(super) const HELLO: u64 = 1;

/// What a host holds of answers that have not come whole, in bytes, less one
/// frame.
const ANSWER_BYTES_MAX: usize = BODY_BYTES_MAX;

/// A connection to a daemon.
pub struct Conversation {
    unit: UnitId,
    frames: Frames,
    greeting: Option<Greeting>,
    /// By their tags, which are in the order in which they were asked.
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    done: Done,
    /// By the clock of whoever drives the conversation.
    until: Duration,
}

/// Whether the daemon has greeted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeted {
    /// Not yet.
    No,
    /// In what was received just now.
    Now(Greeting),
    /// Before.
    Before,
}

/// Why a connection is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The daemon does not speak as it should.
    #[error("the daemon's answer cannot be read: {0}")]
    Malformed(#[from] Malformed),
    /// The daemon does not want to speak.
    #[error("the daemon refuses: {text}")]
    Refused {
        /// Why, in its words.
        text: String,
    },
    /// It is another one.
    #[error("unit {found} answers where {expected} should be")]
    OtherUnit {
        /// Which should be there.
        expected: UnitId,
        /// Which is.
        found: UnitId,
    },
}

impl Conversation {
    /// A connection to the daemon of `unit`; the hello is appended to `out`.
    #[must_use]
    pub fn begin(unit: UnitId, cluster: ClusterId, out: &mut Vec<u8>) -> Self {
        let hello = Request::Hello {
            version: VERSION,
            cluster,
        };
        hello.encode(HELLO, out);
        Self {
            unit,
            frames: Frames::new(ANSWER_BYTES_MAX),
            greeting: None,
            waiting: BTreeMap::new(),
        }
    }

    /// The daemon's greeting, once it has come. Before that nothing may be
    /// sent.
    #[must_use]
    pub fn greeting(&self) -> Option<&Greeting> {
        self.greeting.as_ref()
    }

    /// A request with this tag, larger than 1 and no other's, is being sent; it
    /// should be answered `until` then.
    pub fn expect(&mut self, tag: u64, until: Duration, done: Done) {
        self.waiting.insert(tag, Waiting { done, until });
    }

    /// Whether an answer should have come by `now`.
    #[must_use]
    pub fn is_overdue(&self, now: Duration) -> bool {
        self.waiting.values().any(|waiting| waiting.until <= now)
    }

    /// How many requests wait for their answers.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Something has come: whoever is answered by it is told.
    ///
    /// # Errors
    /// The connection is of no use any more, and to be [lost](Self::lose).
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Greeted, Broken> {
        self.frames.extend(bytes);
        let mut greeted = match self.greeting {
            Some(_) => Greeted::Before,
            None => Greeted::No,
        };
        while let Some(frame) = self.frames.cut()? {
            let status = Status::of(frame.code)?;
            let Some(greeting) = self.greeting else {
                if status != Status::Done {
                    let Refusal { text, .. } = Refusal::decode(status, frame.body)?;
                    return Err(Broken::Refused { text });
                }
                if frame.tag != HELLO {
                    return Err(Malformed("it answers what was not asked").into());
                }
                let greeting = Greeting::decode(frame.body)?;
                if greeting.unit != self.unit {
                    return Err(Broken::OtherUnit {
                        expected: self.unit,
                        found: greeting.unit,
                    });
                }
                self.greeting = Some(greeting);
                greeted = Greeted::Now(greeting);
                continue;
            };
            let Some(Waiting { done, .. }) = self.waiting.remove(&frame.tag) else {
                // With tag 0 it says why it closes the connection.
                return Err(match Refusal::decode(status, frame.body) {
                    Ok(Refusal { text, .. }) if frame.tag == 0 => Broken::Refused { text },
                    _ => Malformed("it answers what was not asked").into(),
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

    /// The connection is gone: whoever waits is told so, in the order in which they asked.
    pub fn lose(self, why: &Arc<io::Error>) {
        for waiting in self.waiting.into_values() {
            (waiting.done)(Err(Arc::clone(why)));
        }
    }
}
