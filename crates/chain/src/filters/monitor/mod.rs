//! `monitor`: reports the accesses to the files of a disk, which it reconstructs from the requests
//! that pass (docs/internals/monitor.md; StorM's storage access monitor).
//!
//! ```text
//!            ┌──────────────────── monitor ───────────────────┐
//!  request ─▶│ forwarded ──────────────────────────────────── │─▶ below
//!            │   └▶ follow: blocks of which files? ─▶ rules ─ │─▶ events
//!            │ follow: partitions, file systems ◀── reads ─── │── below
//!            └────────────────────────────────────────────────┘
//! ```
//!
//! * [`crate::follow`] reads the disk first, and again when another file system may be there, and
//!   follows its writes. Writes during a read are kept and reported afterwards.
//! * `rules` decides what is reported or denied; `reporter` makes events; `event` is their form.
//!
//! Invariants: the filter never waits, and leaves events out rather than delay a request; its
//! memory is bounded; it does not forward a request that a rule denies. It chooses all tokens below
//! itself.

mod event;
mod reporter;
mod rules;
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
use reporter::Reporter;

use crate::follow::{Access, Follower, FollowerEvent};
use crate::tokens::Tokens;
use crate::{Filter, FilterContext, Opening};

/// The filter opens after this time even if the disk is not read yet.
const OPEN_WITHOUT_DISK_AFTER: Duration = Duration::from_secs(5);

/// The largest number of changes that were followed and found the disk busy.
const FOLLOWED_MAX: usize = 1024;

/// The piece of zeroes that is followed at a time.
const ZEROES: &[u8] = &[0; 64 << 10];

/// Longer ranges of zeroes are judged as a trim is, and then the disk is read again, in bytes.
const ZEROES_MAX: u64 = 64 << 20;

/// The length of a trim that is judged at a time, in bytes.
const TRIM_BYTES: u64 = 64 << 20;

/// The purpose of a request below.
enum Purpose {
    /// A request from above with this token.
    Above(Token),
    /// A read of the follower with this token.
    Follower(Token),
}

/// The content that a change leaves in its range.
#[derive(Clone, Copy)]
enum NewContent<'a> {
    Data(WriteBuffer<'a>),
    Zeroes,
    /// The range is trimmed.
    Unknown,
}

impl<'a> NewContent<'a> {
    fn of(op: &Op<'a>) -> Self {
        match op {
            Op::Write { data, .. } => Self::Data(*data),
            Op::WriteZeroes { .. } => Self::Zeroes,
            _ => Self::Unknown,
        }
    }
}

/// Identifies a [`NewContent`].
#[derive(PartialEq, Eq)]
enum ContentHash {
    /// The SHA-256 of the data.
    Data([u8; 32]),
    Zeroes,
    Unknown,
}

impl From<NewContent<'_>> for ContentHash {
    fn from(content: NewContent<'_>) -> Self {
        match content {
            NewContent::Data(data) => {
                let mut hash = Sha256::new();
                data.slices().for_each(|slice| hash.update(slice));
                Self::Data(hash.finalize().into())
            }
            NewContent::Zeroes => Self::Zeroes,
            NewContent::Unknown => Self::Unknown,
        }
    }
}

/// A change that was followed and then found the disk busy. It is recognized by its range and its
/// content when it is retried, since its token may differ.
struct FollowedChange {
    range: Range<u64>,
    content: ContentHash,
}

impl FollowedChange {
    fn is(&self, range: &Range<u64>, content: NewContent<'_>) -> bool {
        self.range == *range && self.content == content.into()
    }
}

/// The `monitor` filter of a chain.
pub struct Monitor {
    clock: Arc<dyn Clock>,
    /// The largest memory for all file systems of the disk together, in bytes.
    memory_max: u64,
    reporter: Reporter,
    tokens: Tokens<Purpose>,
    follower: Follower,
    /// The time at which opening began, by the monotonic clock.
    opened: Option<Duration>,
    /// Changes that were followed and are not forwarded yet.
    followed: Vec<FollowedChange>,
    is_quiescent: bool,
}

impl Monitor {
    /// A filter with these parameters.
    #[must_use]
    pub fn new(name: &str, config: MonitorConfig, context: FilterContext) -> Self {
        let clock = Arc::clone(&context.host.clock);
        let wake = context.attachment.wake.clone();
        let memory_max = config.memory_max.min(context.attachment.memory_max);
        Self {
            follower: Follower::new(memory_max, Arc::clone(&clock), wake),
            memory_max,
            clock,
            reporter: Reporter::new(name, config, context),
            tokens: Tokens::default(),
            opened: None,
            followed: Vec::new(),
            is_quiescent: false,
        }
    }

    /// Forwards a request with a token of the filter.
    fn forward(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        let own = self.tokens.next();
        let started = below.start(Request { token: own, op });
        if started == Started::Pending {
            self.tokens.insert(Purpose::Above(token));
        }
        started
    }

    /// Forwards a read unless a rule denies it, and reports it once it has started.
    fn read(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        let range = op.range();
        let range = range.offset..range.offset + range.length;
        let may_deny = self.reporter.may_deny();
        if may_deny {
            // A read that finds the disk busy is reported when it is retried.
            if let Some(why) = self.reporter.denies_read(self.follower.disk(), &range) {
                return Started::Failed(IoError::Unavailable(why));
            }
        }
        let started = self.forward(below, token, op);
        let mut seen = Vec::new();
        if matches!(started, Started::Done | Started::Pending) {
            match self.follower.disk() {
                Some(disk) => disk.was_read(&range, &mut seen),
                None if self.follower.is_reading() => {}
                None => seen.push(Access::Blocks(None, chain_policy::Operation::Read, range)),
            }
            if !seen.is_empty() {
                self.report(seen);
            }
        }
        started
    }

    /// Handles events of the follower.
    fn handle_follower(&mut self, events: Vec<FollowerEvent>) {
        for event in events {
            match event {
                FollowerEvent::Accesses(accesses) => drop(self.report(accesses)),
                FollowerEvent::DiskRead => {
                    if let Some(disk) = self.follower.disk() {
                        self.reporter.report_disk(disk);
                    }
                }
                FollowerEvent::ReadFailed {
                    reason,
                    retry_after,
                } => {
                    let meanwhile = match self.follower.disk() {
                        Some(_) => "events are reported from its earlier state",
                        None => "events are reported by block",
                    };
                    let seconds = retry_after.as_secs();
                    self.reporter.report_message(&format!(
                        "the disk could not be read: {reason}; {meanwhile}; it is read again in \
                         {seconds} s"
                    ));
                }
            }
        }
    }

    /// Reports accesses. Returns the reason if a rule denies them.
    fn report(&mut self, accesses: Vec<Access>) -> Option<String> {
        let denied = self.reporter.report(self.follower.disk(), accesses);
        if denied.is_some() {
            // The change was followed and will not be carried out.
            self.follower.reread_now();
        }
        denied
    }

    /// Follows a write. Returns the reason if a rule denies it.
    fn follow_write(&mut self, offset: u64, data: &[u8]) -> Option<String> {
        let seen = self.follower.was_written(offset, data);
        match seen.is_empty() {
            true => None,
            false => self.report(seen),
        }
    }

    /// Forwards a change and follows it. With a rule that denies, it is followed first.
    fn change(&mut self, below: &mut dyn BlockDevice, token: Token, mut op: Op<'_>) -> Started {
        if !self.reporter.may_deny() {
            let started = self.forward(below, token, op.reborrow());
            if matches!(started, Started::Done | Started::Pending) {
                self.follow(&op);
            }
            return started;
        }
        let range = op.range();
        let range = range.offset..range.end();
        let content = NewContent::of(&op);
        match self
            .followed
            .iter()
            .position(|change| change.is(&range, content))
        {
            Some(at) => drop(self.followed.remove(at)),
            None => {
                // Overlapping changes that wait come after this one, and are followed again.
                self.followed.retain(|change| {
                    change.range.end <= range.start || range.end <= change.range.start
                });
                if let Some(why) = self.follow(&op) {
                    return Started::Failed(IoError::Unavailable(why));
                }
            }
        }
        let started = self.forward(below, token, op.reborrow());
        match &started {
            Started::Busy => {
                if self.followed.len() == FOLLOWED_MAX {
                    // The requester of the oldest one no longer retries it.
                    self.followed.remove(0);
                }
                let content = NewContent::of(&op).into();
                self.followed.push(FollowedChange { range, content });
            }
            // The change was followed and was not carried out.
            Started::Failed(_) => self.follower.reread_later(),
            Started::Done | Started::Pending => {}
        }
        started
    }

    /// Follows a change. Returns the reason if a rule denies it.
    fn follow(&mut self, op: &Op<'_>) -> Option<String> {
        match op {
            Op::Write { offset, data, .. } => self.follow_write(*offset, &data.contiguous()),
            Op::WriteZeroes { offset, length, .. } => self.follow_zeroes(*offset, *length),
            Op::Trim { offset, length, .. } => self.follow_trim(*offset, *length),
            Op::Read { .. } | Op::Flush | Op::Extents { .. } | Op::Prefetch { .. } => None,
        }
    }

    /// Follows a write of zeroes. Returns the reason if a rule denies it.
    fn follow_zeroes(&mut self, offset: u64, length: u64) -> Option<String> {
        if length > ZEROES_MAX {
            self.follower.reread_later();
            return self.follow_trim(offset, length);
        }
        let mut at = 0;
        while at < length {
            let piece = (length - at).min(ZEROES.len() as u64);
            let denied = self.follow_write(offset + at, &ZEROES[..piece as usize]);
            if denied.is_some() {
                return denied;
            }
            at += piece;
        }
        None
    }

    /// Follows a trim, which leaves unknown content and so counts as a write. Returns the reason if
    /// a rule denies it.
    fn follow_trim(&mut self, offset: u64, length: u64) -> Option<String> {
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let next = end.min(at.saturating_add(TRIM_BYTES));
            let seen = self.follower.was_trimmed(at..next);
            let denied = self.reporter.report(self.follower.disk(), seen);
            if denied.is_some() {
                return denied;
            }
            at = next;
        }
        None
    }

    /// Starts the reads of the follower.
    fn start_reads(&mut self, below: &mut dyn BlockDevice) {
        while !self.is_quiescent {
            let Some(read) = self.follower.next_read() else {
                break;
            };
            let mut content = vec![0; read.length()];
            let own = self.tokens.next();
            let result = match below.start(Request::read(own, read.offset(), &mut content)) {
                Started::Done => Ok(Outcome::Data(content)),
                Started::Failed(error) => Err(error),
                Started::Pending => {
                    let token = self.follower.started(read);
                    self.tokens.insert(Purpose::Follower(token));
                    continue;
                }
                Started::Busy => {
                    self.follower.return_read(read);
                    break;
                }
            };
            let events = self.follower.was_read(read, result);
            self.handle_follower(events);
        }
    }

    /// Handles a completion of the device below.
    fn completed(&mut self, completion: Completion, completions: &mut Vec<Completion>) {
        let Completion { token, result } = completion;
        match self.tokens.take(token) {
            Some(Purpose::Above(token)) => {
                if result.is_err() {
                    // It may be a change that was followed.
                    self.follower.reread_later();
                }
                completions.push(Completion { token, result });
            }
            Some(Purpose::Follower(token)) => {
                let events = self.follower.completed(token, result);
                self.handle_follower(events);
            }
            None => debug_assert!(false, "no request has the token {token}"),
        }
    }

    /// Continues the filter's own work: follows the disk and reports events.
    fn proceed(&mut self, below: &mut dyn BlockDevice) {
        let now = self.clock.monotonic();
        let disk_bytes = below.geometry().size_bytes;
        let events = self.follower.proceed(disk_bytes, !self.is_quiescent);
        self.handle_follower(events);
        self.start_reads(below);
        self.reporter.send_due(now);
    }
}

impl Filter for Monitor {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let now = self.clock.monotonic();
        if self.opened.is_none() {
            self.reporter.report_memory(self.memory_max);
        }
        let opened = *self.opened.get_or_insert(now);
        self.proceed(below);
        let is_first = self.follower.disk().is_none() && self.follower.is_reading();
        match is_first && now.saturating_sub(opened) < OPEN_WITHOUT_DISK_AFTER {
            true => Opening::Pending,
            false => Opening::Ready,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op.kind() {
            OpKind::Read => self.read(below, token, op),
            OpKind::Write | OpKind::Trim | OpKind::WriteZeroes => self.change(below, token, op),
            OpKind::Flush | OpKind::Extents | OpKind::Prefetch => self.forward(below, token, op),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        let below_completions = completions.split_off(before);
        for completion in below_completions {
            self.completed(completion, completions);
        }
        self.proceed(below);
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let read = self.follower.due().filter(|_| !self.is_quiescent);
        let retry = self.follower.has_reads() && !self.is_quiescent;
        let retry = retry.then_some(now + reporter::GATHER_FOR);
        let times = [read, retry, self.reporter.due()];
        let next = times.into_iter().flatten().min();
        next.map(|next| next.saturating_sub(now))
    }

    fn quiesce(&mut self) -> bool {
        self.is_quiescent = true;
        self.follower.is_idle()
    }

    fn resume(&mut self) {
        self.is_quiescent = false;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reporter.send_all();
    }
}
