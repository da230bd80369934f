//! What a program asks of the disk below its filter.

use std::collections::VecDeque;
use std::time::Duration;

use base::{BlockDevice, Completion, IoError, Outcome, OwnedOp, Started, Token};

use crate::Door;
use crate::tokens::Tokens;

/// How soon a disk that was busy is asked again, if it does not wake.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// A request below: whose.
struct UnderWay {
    /// The door's token.
    token: Token,
    /// In which life of the program it was asked.
    life: u64,
}

/// See the module's head.
pub(super) struct Below {
    door: Door,
    tokens: Tokens<UnderWay>,
    /// Not begun yet.
    waiting: VecDeque<(Token, OwnedOp)>,
    life: u64,
    may_change: bool,
    was_busy: bool,
    /// Answers of this turn that count when they are committed.
    done: Vec<(Token, Result<Outcome, IoError>)>,
    completions: Vec<Completion>,
}

impl Below {
    pub fn new(door: Door) -> Self {
        Self {
            door,
            tokens: Tokens::default(),
            waiting: VecDeque::new(),
            life: 0,
            may_change: false,
            was_busy: false,
            done: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Tells the program what the disk is like, once: in each of its lives it is told the
    /// same, whether the disk has grown meanwhile or not.
    pub fn describe(&self, below: &dyn BlockDevice) {
        let mut capabilities = below.capabilities();
        // It has one connection, whose order is that of its requests.
        capabilities.can_multi_conn = false;
        self.door.describe(below.geometry(), capabilities);
    }

    /// The filter is in use.
    pub fn may_change(&mut self) {
        self.may_change = true;
    }

    /// What was asked and not begun is forgotten; what is under way ends before anything
    /// else is begun.
    pub fn next_life(&mut self) {
        self.life += 1;
        self.door.take_asked(&mut self.waiting);
        for (token, _) in self.waiting.drain(..) {
            let words = "who has asked for it is gone".to_owned();
            self.door.answer(token, Err(IoError::Unavailable(words)));
        }
    }

    /// Whether nothing is under way, or waits to be.
    pub fn is_idle(&self) -> bool {
        self.tokens.is_empty() && self.waiting.is_empty()
    }

    /// Collects what has ended, and begins what was asked. Whether there are answers for
    /// the program.
    pub fn serve(&mut self, below: &mut dyn BlockDevice) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        below.poll(&mut completions);
        for completion in completions.drain(..) {
            if let Some(ended) = self.tokens.take(completion.token) {
                self.done.push((ended.token, completion.result));
            }
        }
        self.completions = completions;
        self.door.take_asked(&mut self.waiting);
        self.was_busy = false;
        let is_of_now = |one: &UnderWay| one.life == self.life;
        let mut begun = false;
        if self.tokens.iter().all(is_of_now) {
            while let Some((token, op)) = self.waiting.pop_front() {
                if op.is_change() && !self.may_change {
                    self.waiting.push_front((token, op));
                    break;
                }
                if !self.begin(below, token, &op) {
                    self.waiting.push_front((token, op));
                    self.was_busy = true;
                    break;
                }
                begun = true;
            }
        }
        if begun && let Err(error) = below.commit() {
            // The disk has stopped: nothing that it said counts.
            for (_, result) in &mut self.done {
                *result = Err(error.clone());
            }
        }
        let has_answers = !self.done.is_empty();
        for (token, result) in self.done.drain(..) {
            self.door.answer(token, result);
        }
        has_answers
    }

    /// Starts a request below; false if the disk there is busy.
    fn begin(&mut self, below: &mut dyn BlockDevice, token: Token, op: &OwnedOp) -> bool {
        let own = self.tokens.next();
        let (started, outcome) = op.start_on(below, own);
        match started {
            Started::Busy => return false,
            Started::Pending => self.tokens.insert(UnderWay {
                token,
                life: self.life,
            }),
            Started::Done => self.done.push((token, Ok(outcome))),
            Started::Failed(error) => self.done.push((token, Err(error))),
        }
        true
    }

    pub fn next_timer(&self) -> Option<Duration> {
        self.was_busy.then_some(ASK_AGAIN)
    }
}
