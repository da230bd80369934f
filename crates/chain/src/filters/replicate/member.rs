//! [`Member`]: one of the places where a disk is written, and what is under way there.

use std::collections::VecDeque;
use std::time::Duration;

use base::{BlockDevice, IoError, Op, OpKind, OwnedOp, Request, Started, Token};

use chain_policy::ReplicaLocation;

use super::choice::Choice;
use crate::remote::RemoteDisk;
use crate::tokens::Tokens;

/// One that is out is tried again after so long, at first and at last.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(500);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is being connected to, since then.
    Connecting(Duration),
    /// It has all that there is, and is read.
    InSync,
    /// It gets what it lacks, and what is written where it lacks nothing.
    Filling,
    /// It gets nothing.
    Out,
}

/// What a request below is part of.
#[derive(Debug)]
pub(super) struct Part {
    /// None, if nobody waits for it any more.
    pub request: Option<Token>,
    pub begun: Duration,
    pub bytes: u64,
}

/// See the module's head.
pub(super) struct Member {
    pub name: String,
    /// None of the volume itself.
    pub place: Option<ReplicaLocation>,
    /// What it is to have, if that is not all.
    pub choice: Option<Choice>,
    pub remote: Option<Box<dyn RemoteDisk>>,
    pub state: State,
    pub tokens: Tokens<Part>,
    /// What could not begin yet, in order: whatever comes for it goes behind.
    pub queue: VecDeque<(Token, OwnedOp)>,
    /// Bytes that are asked of it and not answered.
    pub bytes: u64,
    /// When it is tried again, and how long after.
    pub again: Duration,
    pub pause: Duration,
}

impl Member {
    pub fn new(name: &str, place: Option<ReplicaLocation>) -> Self {
        Self {
            name: name.to_owned(),
            place,
            choice: None,
            remote: None,
            state: State::Out,
            tokens: Tokens::default(),
            queue: VecDeque::new(),
            bytes: 0,
            again: Duration::ZERO,
            pause: PAUSE_MIN,
        }
    }

    /// The device that has the member's content.
    ///
    /// # Errors
    /// If it is a replica that is not connected.
    fn device<'a>(
        &'a mut self,
        below: &'a mut dyn BlockDevice,
    ) -> Result<&'a mut dyn BlockDevice, IoError> {
        match (&mut self.remote, &self.place) {
            (Some(remote), _) => Ok(&mut **remote),
            (None, None) => Ok(below),
            (None, Some(_)) => {
                let why = format!("replica {} is not connected", self.name);
                Err(IoError::Unavailable(why))
            }
        }
    }

    /// Starts a part of `request` at `now`.
    pub fn begin(
        &mut self,
        below: &mut dyn BlockDevice,
        (request, now): (Token, Duration),
        op: Op<'_>,
    ) -> Started {
        let token = self.tokens.next();
        let bytes = match op.kind() {
            OpKind::Read | OpKind::Write => op.range().length,
            _ => 0,
        };
        let started = match self.device(below) {
            Ok(device) => device.start(Request { token, op }),
            Err(error) => Started::Failed(error),
        };
        if started == Started::Pending {
            self.bytes += bytes;
            self.tokens.insert(Part {
                request: Some(request),
                begun: now,
                bytes,
            });
        }
        started
    }

    /// Starts a part of `request` that changes the member or flushes it.
    pub fn carry_out(
        &mut self,
        below: &mut dyn BlockDevice,
        of: (Token, Duration),
        op: &OwnedOp,
    ) -> Started {
        let (mut out, mut runs) = (Vec::new(), Vec::new());
        self.begin(below, of, op.borrow(&mut out, &mut runs))
    }

    /// Whether its oldest part has taken longer than `longest` by now.
    pub fn is_stalled(&self, now: Duration, longest: Duration) -> bool {
        let mut parts = self.tokens.iter();
        parts.any(|part| part.request.is_some() && now.saturating_sub(part.begun) >= longest)
    }

    /// Nobody waits for its parts any more, and what is queued does not begin. Which
    /// requests they were of.
    pub fn abandon(&mut self) -> Vec<Token> {
        let mut of: Vec<Token> = self.queue.drain(..).map(|(request, _)| request).collect();
        of.extend(
            self.tokens
                .iter_mut()
                .filter_map(|part| part.request.take()),
        );
        if self.place.is_some() {
            // Its answers go with its connection.
            (self.remote, self.tokens) = (None, Tokens::default());
            self.bytes = 0;
        }
        of
    }
}
