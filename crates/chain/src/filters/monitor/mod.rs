//! `monitor`: says what happens to the files of a disk, as it is seen from the blocks that
//! pass (docs/internals/monitor.md; StorM's storage access monitor).
//!
//! ```text
//!            ┌────────────────── monitor ──────────────────┐
//!  request ─▶│ passes ──────────────────────────────────── │─▶ below
//!            │   └▶ follow: whose blocks are they? ▶ rules │─▶ events
//!            │ follow: partitions, file systems ◀── asks ──│── below
//!            └─────────────────────────────────────────────┘
//! ```
//!
//! * [`crate::follow`] reads the disk first, and anew when another file system may be there,
//!   and follows it. What is written meanwhile is kept, and told of afterwards.
//! * `rules` judge; `event` is what is told.
//!
//! Invariants: it never waits, and what it cannot tell of it leaves out rather than hold a
//! request up; what it keeps is bounded; a request that a rule denies is not passed on. It
//! asks below with tokens of its own.

mod event;
mod rules;
mod telling;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Completion, IoError, Op, OpKind, Outcome, Request, Started, Token, WriteBuffer,
};
use chain_policy::MonitorConfig;
use sha2::{Digest as _, Sha256};
use world::Clock;

pub use event::{Detail, Event, EventKind, FileEvent};
use telling::Telling;

use crate::follow::{Follower, News, Seen};
use crate::tokens::Tokens;
use crate::{Filter, FilterContext, Opening};

/// A disk that takes longer to read is used meanwhile; what is written then is kept.
const READ_FIRST_FOR: Duration = Duration::from_secs(5);

/// So many changes wait at most that were followed before they could be passed on.
const FOLLOWED_MAX: usize = 1024;

/// Zeroes are followed in pieces of so many bytes; where there are more of them than so
/// many, it is judged whose blocks they meet, and the disk is read anew.
const ZEROES: &[u8] = &[0; 64 << 10];
const ZEROES_MAX: u64 = 64 << 20;

/// It is judged of so many bytes at a time whose blocks a trim meets.
const TRIM_BYTES: u64 = 64 << 20;

/// What a request below is for.
enum Waiting {
    /// Somebody above asked for it, with this token.
    Above(Token),
    /// To follow the disk.
    Own(Token),
}

/// What a change leaves in its place.
#[derive(Clone, Copy)]
enum Left<'a> {
    Data(WriteBuffer<'a>),
    Zeroes,
    /// It is trimmed.
    Nothing,
}

impl<'a> Left<'a> {
    fn of(op: &Op<'a>) -> Self {
        match op {
            Op::Write { data, .. } => Self::Data(*data),
            Op::WriteZeroes { .. } => Self::Zeroes,
            _ => Self::Nothing,
        }
    }
}

/// The same, known again.
#[derive(PartialEq, Eq)]
enum Known {
    /// Its SHA-256.
    Data([u8; 32]),
    Zeroes,
    Nothing,
}

impl From<Left<'_>> for Known {
    fn from(left: Left<'_>) -> Self {
        match left {
            Left::Data(data) => {
                let mut hash = Sha256::new();
                data.slices().for_each(|slice| hash.update(slice));
                Self::Data(hash.finalize().into())
            }
            Left::Zeroes => Self::Zeroes,
            Left::Nothing => Self::Nothing,
        }
    }
}

/// A change that was followed, by what stays the same when it is offered again: its token
/// may not. What it leaves counts, since another one to the same place was not judged.
struct Followed {
    place: Range<u64>,
    left: Known,
}

impl Followed {
    fn is(&self, place: &Range<u64>, left: Left<'_>) -> bool {
        self.place == *place && self.left == left.into()
    }
}

/// See the module's head.
pub struct Monitor {
    clock: Arc<dyn Clock>,
    /// Of all file systems of the disk together, in bytes.
    memory_max: u64,
    telling: Telling,
    tokens: Tokens<Waiting>,
    follower: Follower,
    /// When it began to read the disk first.
    opened: Option<Duration>,
    /// Changes that were followed, and could not be passed on yet.
    followed: Vec<Followed>,
    is_resting: bool,
}

impl Monitor {
    /// As `config` says.
    #[must_use]
    pub fn new(name: &str, config: MonitorConfig, context: FilterContext) -> Self {
        let clock = Arc::clone(&context.host.clock);
        let wake = context.attachment.wake.clone();
        let memory_max = config.memory_max.min(context.attachment.memory_max);
        Self {
            follower: Follower::new(memory_max, Arc::clone(&clock), wake),
            memory_max,
            clock,
            telling: Telling::new(name, config, context),
            tokens: Tokens::default(),
            opened: None,
            followed: Vec::new(),
            is_resting: false,
        }
    }

    /// Passes a request on with a token of its own.
    fn pass(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        let own = self.tokens.next();
        let started = below.start(Request { token: own, op });
        if started == Started::Pending {
            self.tokens.insert(Waiting::Above(token));
        }
        started
    }

    /// Passes on a read, unless a rule denies it, and tells of it once it has begun.
    fn read(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        let range = op.range();
        let range = range.offset..range.offset + range.length;
        let may_deny = self.telling.may_deny();
        if may_deny {
            // What cannot begin yet is told of when it does.
            if let Some(why) = self.telling.denies_read(self.follower.disk(), &range) {
                return Started::Failed(IoError::Unavailable(why));
            }
        }
        let started = self.pass(below, token, op);
        let mut seen = Vec::new();
        if matches!(started, Started::Done | Started::Pending) {
            match self.follower.disk() {
                Some(disk) => disk.was_read(&range, &mut seen),
                None if self.follower.is_reading() => {}
                None => seen.push(Seen::Blocks(None, chain_policy::Operation::Read, range)),
            }
            if !seen.is_empty() {
                self.tell(seen);
            }
        }
        started
    }

    /// Tells what came of following the disk.
    fn tell_news(&mut self, news: Vec<News>) {
        for news in news {
            match news {
                News::Seen(seen) => drop(self.tell(seen)),
                News::Found => {
                    if let Some(disk) = self.follower.disk() {
                        self.telling.found(disk);
                    }
                }
                News::GivenUp(why, pause) => {
                    let meanwhile = match self.follower.disk() {
                        Some(_) => "what happens is told as if nothing else had changed",
                        None => "what happens is told by block",
                    };
                    let seconds = pause.as_secs();
                    self.telling.note(&format!(
                        "the disk could not be read: {why}; {meanwhile}; it is read again in \
                         {seconds} s"
                    ));
                }
            }
        }
    }

    /// Tells of it; why it is denied, if a rule says so.
    fn tell(&mut self, seen: Vec<Seen>) -> Option<String> {
        let denied = self.telling.tell(self.follower.disk(), seen);
        if denied.is_some() {
            // What was followed does not come to pass.
            self.follower.read_anew(true);
        }
        denied
    }

    /// A write or a part of one that was passed on, or is about to be.
    fn saw_write(&mut self, offset: u64, data: &[u8]) -> Option<String> {
        let seen = self.follower.was_written(offset, data);
        match seen.is_empty() {
            true => None,
            false => self.tell(seen),
        }
    }

    /// Passes on a change, and follows it: before it is passed, if it may be denied.
    fn change(&mut self, below: &mut dyn BlockDevice, token: Token, mut op: Op<'_>) -> Started {
        if !self.telling.may_deny() {
            let started = self.pass(below, token, op.reborrow());
            if matches!(started, Started::Done | Started::Pending) {
                self.follow(&op);
            }
            return started;
        }
        let range = op.range();
        let place = range.offset..range.end();
        let left = Left::of(&op);
        match self.followed.iter().position(|one| one.is(&place, left)) {
            Some(at) => drop(self.followed.remove(at)),
            None => {
                // What waits and meets this comes after it, and is followed once more.
                self.followed
                    .retain(|one| one.place.end <= place.start || place.end <= one.place.start);
                if let Some(why) = self.follow(&op) {
                    return Started::Failed(IoError::Unavailable(why));
                }
            }
        }
        let started = self.pass(below, token, op.reborrow());
        match &started {
            Started::Busy => {
                if self.followed.len() == FOLLOWED_MAX {
                    // Whoever asked that has gone.
                    self.followed.remove(0);
                }
                let left = Left::of(&op).into();
                self.followed.push(Followed { place, left });
            }
            // What was followed does not come to pass.
            Started::Failed(_) => self.follower.read_anew(false),
            Started::Done | Started::Pending => {}
        }
        started
    }

    /// Follows a change; why it is denied, if a rule says so.
    fn follow(&mut self, op: &Op<'_>) -> Option<String> {
        match op {
            Op::Write { offset, data, .. } => self.saw_write(*offset, &data.contiguous()),
            Op::WriteZeroes { offset, length, .. } => self.saw_zeroes(*offset, *length),
            Op::Trim { offset, length, .. } => self.saw_trim(*offset, *length),
            Op::Read { .. } | Op::Flush | Op::Extents { .. } | Op::Prefetch { .. } => None,
        }
    }

    /// Follows zeroes.
    fn saw_zeroes(&mut self, offset: u64, length: u64) -> Option<String> {
        if length > ZEROES_MAX {
            self.follower.read_anew(false);
            return self.saw_trim(offset, length);
        }
        let mut at = 0;
        while at < length {
            let piece = (length - at).min(ZEROES.len() as u64);
            let denied = self.saw_write(offset + at, &ZEROES[..piece as usize]);
            if denied.is_some() {
                return denied;
            }
            at += piece;
        }
        None
    }

    /// Tells of a trim, which leaves in files what nobody can say, and so counts as a write.
    fn saw_trim(&mut self, offset: u64, length: u64) -> Option<String> {
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let next = end.min(at.saturating_add(TRIM_BYTES));
            let seen = self.follower.was_trimmed(at..next);
            let denied = self.telling.tell(self.follower.disk(), seen);
            if denied.is_some() {
                return denied;
            }
            at = next;
        }
        None
    }

    /// Asks below for what is needed to follow the disk.
    fn ask_for_own(&mut self, below: &mut dyn BlockDevice) {
        while !self.is_resting {
            let Some(need) = self.follower.next() else {
                break;
            };
            let mut content = vec![0; need.length()];
            let own = self.tokens.next();
            let result = match below.start(Request::read(own, need.offset(), &mut content)) {
                Started::Done => Ok(Outcome::Data(content)),
                Started::Failed(error) => Err(error),
                Started::Pending => {
                    let asked = self.follower.asked(need);
                    self.tokens.insert(Waiting::Own(asked));
                    continue;
                }
                Started::Busy => {
                    self.follower.put_back(need);
                    break;
                }
            };
            let news = self.follower.was_read(need, result);
            self.tell_news(news);
        }
    }

    /// What was asked below has ended; what is to be told above.
    fn ended(&mut self, completion: Completion, completions: &mut Vec<Completion>) {
        let Completion { token, result } = completion;
        match self.tokens.take(token) {
            Some(Waiting::Above(token)) => {
                if result.is_err() {
                    // It may be a write that was followed.
                    self.follower.read_anew(false);
                }
                completions.push(Completion { token, result });
            }
            Some(Waiting::Own(token)) => {
                let news = self.follower.answered(token, result);
                self.tell_news(news);
            }
            None => debug_assert!(false, "nobody asked for {token}"),
        }
    }

    /// Goes on with what the monitor does by itself.
    fn go_on(&mut self, below: &mut dyn BlockDevice) {
        let now = self.clock.monotonic();
        let disk_bytes = below.geometry().size_bytes;
        let news = self.follower.go_on(disk_bytes, !self.is_resting);
        self.tell_news(news);
        self.ask_for_own(below);
        self.telling.hand_over(now);
    }
}

impl Filter for Monitor {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let now = self.clock.monotonic();
        if self.opened.is_none() {
            self.telling.begins(self.memory_max);
        }
        let opened = *self.opened.get_or_insert(now);
        self.go_on(below);
        let is_first = self.follower.disk().is_none() && self.follower.is_reading();
        match is_first && now.saturating_sub(opened) < READ_FIRST_FOR {
            true => Opening::Pending,
            false => Opening::Ready,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op.kind() {
            OpKind::Read => self.read(below, token, op),
            OpKind::Write | OpKind::Trim | OpKind::WriteZeroes => self.change(below, token, op),
            OpKind::Flush | OpKind::Extents | OpKind::Prefetch => self.pass(below, token, op),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        let ended = completions.split_off(before);
        for completion in ended {
            self.ended(completion, completions);
        }
        self.go_on(below);
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let read = self.follower.due().filter(|_| !self.is_resting);
        let retry = self.follower.has_needs() && !self.is_resting;
        let retry = retry.then_some(now + telling::GATHER_FOR);
        let times = [read, retry, self.telling.due()];
        let next = times.into_iter().flatten().min();
        next.map(|next| next.saturating_sub(now))
    }

    fn quiesce(&mut self) -> bool {
        self.is_resting = true;
        self.follower.is_idle()
    }

    fn resume(&mut self) {
        self.is_resting = false;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.telling.end();
    }
}
