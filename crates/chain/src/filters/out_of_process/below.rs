//! The requests of a filter's backend to the disk below, from the queue to the disk and back.

use std::collections::VecDeque;
use std::time::Duration;

use base::{BlockDevice, Completion, IoError, Outcome, OwnedOp, Started, Token};

use crate::PendingQueue;
use crate::tokens::Tokens;

/// The time after which a request is retried if the disk was busy.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// A request that is pending below.
struct PendingBelow {
    /// The token that the backend gave it.
    token: Token,
    /// The life of the backend that started it.
    life: u64,
}

/// Carries out the requests of a filter's backend.
pub(super) struct Below {
    queue: PendingQueue,
    tokens: Tokens<PendingBelow>,
    /// Requests that were not started yet, in order.
    waiting: VecDeque<(Token, OwnedOp)>,
    life: u64,
    may_change: bool,
    was_busy: bool,
    /// Results of this loop turn, which are valid when its batch has ended.
    done: Vec<(Token, Result<Outcome, IoError>)>,
    completions: Vec<Completion>,
}

impl Below {
    pub fn new(queue: PendingQueue) -> Self {
        Self {
            queue,
            tokens: Tokens::default(),
            waiting: VecDeque::new(),
            life: 0,
            may_change: false,
            was_busy: false,
            done: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Describes the disk to the backend. Called once: each life of the backend sees the same size,
    /// even if the disk has grown meanwhile.
    pub fn describe(&self, below: &dyn BlockDevice) {
        let mut capabilities = below.capabilities();
        // The backend has one connection, whose order is that of its requests.
        capabilities.can_multi_conn = false;
        self.queue.describe(below.geometry(), capabilities);
    }

    /// Lets the backend change the disk: the filter is in use from now on.
    pub fn may_change(&mut self) {
        self.may_change = true;
    }

    /// Fails the requests that were not started. The pending ones end before any request of the
    /// next life is started.
    pub fn next_life(&mut self) {
        self.life += 1;
        self.queue.take_requests(&mut self.waiting);
        for (token, _) in self.waiting.drain(..) {
            let message = "the program that started this request has ended".to_owned();
            self.queue
                .complete(token, Err(IoError::Unavailable(message)));
        }
    }

    /// Whether no request is pending or waiting.
    pub fn is_idle(&self) -> bool {
        self.tokens.is_empty() && self.waiting.is_empty()
    }

    /// Collects completions and starts waiting requests. Returns whether there are completions
    /// for the backend.
    pub fn serve(&mut self, below: &mut dyn BlockDevice) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        below.poll(&mut completions);
        for completion in completions.drain(..) {
            if let Some(request) = self.tokens.take(completion.token) {
                self.done.push((request.token, completion.result));
            }
        }
        self.completions = completions;
        self.queue.take_requests(&mut self.waiting);
        self.was_busy = false;
        let is_of_this_life = |pending: &PendingBelow| pending.life == self.life;
        let mut has_started = false;
        if self.tokens.iter().all(is_of_this_life) {
            while let Some((token, op)) = self.waiting.pop_front() {
                if op.is_change() && !self.may_change {
                    self.waiting.push_front((token, op));
                    break;
                }
                if !self.start(below, token, &op) {
                    self.waiting.push_front((token, op));
                    self.was_busy = true;
                    break;
                }
                has_started = true;
            }
        }
        if has_started && let Err(error) = below.end_batch() {
            // The disk has stopped: none of its results is valid.
            for (_, result) in &mut self.done {
                *result = Err(error.clone());
            }
        }
        let has_results = !self.done.is_empty();
        for (token, result) in self.done.drain(..) {
            self.queue.complete(token, result);
        }
        has_results
    }

    /// Starts a request below; returns false if the disk is busy.
    fn start(&mut self, below: &mut dyn BlockDevice, token: Token, op: &OwnedOp) -> bool {
        let own = self.tokens.next();
        let (started, outcome) = op.start_on(below, own);
        match started {
            Started::Busy => return false,
            Started::Pending => self.tokens.insert(PendingBelow {
                token,
                life: self.life,
            }),
            Started::Done => self.done.push((token, Ok(outcome))),
            Started::Failed(error) => self.done.push((token, Err(error))),
        }
        true
    }

    pub fn next_timer(&self) -> Option<Duration> {
        self.was_busy.then_some(RETRY_AFTER)
    }
}
