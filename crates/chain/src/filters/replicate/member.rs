//! [`Member`]: one of the disks that are replicated, and what is pending there; and [`Members`].

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use base::{BlockDevice, IoError, Op, OpKind, OwnedOp, Request, Started, Token};
use chain_policy::ReplicaLocation;

use super::region_map::RegionMap;
use super::selection::{KnownFiles, Selection};
use super::timeouts::PAUSE_MIN;
use crate::remote::{LinkState, RemoteDisk};
use crate::tokens::Tokens;

/// The volume is not excluded for a short stall: what it would miss then keeps it from being used
/// without its replicas.
const VOLUME_STALL_MIN: Duration = Duration::from_secs(5);

/// The volume's place among the members.
pub(super) const VOLUME: usize = 0;

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberState {
    /// A connection is being made, since this time.
    Connecting(Duration),
    /// The member has everything that it should have.
    InSync,
    /// The member gets what it is missing, and changes of regions that it is not missing.
    Rebuilding,
    /// The member gets nothing.
    Excluded,
}

/// A request that is pending at a member, as a part of a request to the filter.
#[derive(Debug)]
pub(super) struct Part {
    /// The request; `None` if its result does not matter any more.
    pub request: Option<Token>,
    pub started: Duration,
    pub bytes: u64,
}

/// The request for which a part is started, and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartOf {
    pub request: Token,
    pub now: Duration,
}

/// One of the disks that are replicated: the volume below the filter, or a replica.
pub(super) struct Member {
    pub name: String,
    /// `None` for the volume.
    pub location: Option<ReplicaLocation>,
    /// What a partial replica should have; `None` for everything.
    pub selection: Option<Selection>,
    pub remote: Option<Box<dyn RemoteDisk>>,
    pub state: MemberState,
    pub parts: Tokens<Part>,
    /// Changes and flushes that could not be started yet, in order. Later ones go behind them.
    pub queue: VecDeque<(Token, OwnedOp)>,
    /// The length of pending reads and writes, in bytes.
    pub pending_bytes: u64,
    /// When an excluded member is tried again.
    pub retry_at: Duration,
    /// The pause after the next failure.
    pub pause: Duration,
    /// What has been reported of it, so that each change is reported once.
    pub reports: Reports,
}

/// The reports on a member: why it cannot be used, and that it can be used again.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The reported reason why it cannot be used; `None` if it can.
    pub trouble: Option<String>,
    /// The report of its return. It waits until the member has answered a request: a server that
    /// accepts connections and then fails would return at each attempt.
    pub pending_return: Option<String>,
    /// The last report of its return since it was in sync.
    pub last_return: Option<String>,
}

impl Member {
    pub fn new(name: &str, location: Option<ReplicaLocation>) -> Self {
        Self {
            name: name.to_owned(),
            location,
            selection: None,
            remote: None,
            state: MemberState::Excluded,
            parts: Tokens::default(),
            queue: VecDeque::new(),
            pending_bytes: 0,
            retry_at: Duration::ZERO,
            pause: PAUSE_MIN,
            reports: Reports::default(),
        }
    }

    /// The member as messages call it: `replica b`, or `the volume`.
    pub fn label(&self) -> String {
        match self.location {
            Some(_) => format!("replica {}", self.name),
            None => "the volume".to_owned(),
        }
    }

    /// The device with the member's content.
    ///
    /// # Errors
    /// If the member is a replica that is not connected.
    fn device<'a>(
        &'a mut self,
        below: &'a mut dyn BlockDevice,
    ) -> Result<&'a mut dyn BlockDevice, IoError> {
        match (&mut self.remote, &self.location) {
            (Some(remote), _) => Ok(&mut **remote),
            (None, None) => Ok(below),
            (None, Some(_)) => {
                let reason = format!("replica {} is not connected", self.name);
                Err(IoError::Unavailable(reason))
            }
        }
    }

    /// Starts a part of a request.
    pub fn start(&mut self, below: &mut dyn BlockDevice, of: PartOf, op: Op<'_>) -> Started {
        let token = self.parts.next();
        let bytes = match op.kind() {
            OpKind::Read | OpKind::Write => op.range().length,
            _ => 0,
        };
        let started = match self.device(below) {
            Ok(device) => device.start(Request { token, op }),
            Err(error) => Started::Failed(error),
        };
        if started == Started::Pending {
            self.pending_bytes += bytes;
            self.parts.insert(Part {
                request: Some(of.request),
                started: of.now,
                bytes,
            });
        }
        started
    }

    /// Starts a part of a request that changes or flushes the member.
    pub fn start_change(
        &mut self,
        below: &mut dyn BlockDevice,
        of: PartOf,
        op: &OwnedOp,
    ) -> Started {
        let (mut out, mut runs) = (Vec::new(), Vec::new());
        self.start(below, of, op.borrow(&mut out, &mut runs))
    }

    /// It is unknown which blocks a partial replica has of the regions that it is missing, by
    /// `map`, in which it is the member `at`.
    pub fn forget_missing_blocks(&mut self, at: usize, map: &RegionMap) {
        if let Some(selection) = &mut self.selection {
            for region in (0..map.regions).filter(|region| map.missing[at].has(*region)) {
                selection.has.clear(&map.range_of(region));
            }
        }
    }

    /// When the oldest part that matters was started.
    pub fn oldest_part(&self) -> Option<Duration> {
        let parts = self.parts.iter();
        let awaited = parts.filter(|part| part.request.is_some());
        awaited.map(|part| part.started).min()
    }

    /// Gives up all parts: their results do not matter any more, and what is queued is not
    /// started. Returns the requests that they were parts of.
    pub fn abandon(&mut self) -> Vec<Token> {
        let queued = self.queue.drain(..).map(|(request, _)| request);
        let mut requests: Vec<Token> = queued.collect();
        let pending = self.parts.iter_mut();
        requests.extend(pending.filter_map(|part| part.request.take()));
        if self.location.is_some() {
            // Answers of a replica are lost with its connection.
            (self.remote, self.parts) = (None, Tokens::default());
            self.pending_bytes = 0;
        }
        requests
    }

    /// Whether a connection is still being made.
    pub fn is_connecting(&self) -> bool {
        let remote = self.remote.as_ref();
        remote.is_some_and(|remote| remote.link_state() == LinkState::Connecting)
    }

    /// Checks that a replica can be used for a disk of `disk_bytes`.
    ///
    /// # Errors
    /// Why it cannot be used now.
    pub fn check_connection(&self, disk_bytes: u64) -> Result<(), String> {
        let Some(remote) = &self.remote else {
            return Err("it cannot be connected to".to_owned());
        };
        match remote.link_state() {
            LinkState::Ready => {}
            LinkState::Connecting => return Err("it does not answer".to_owned()),
            LinkState::Broken(reason) => return Err(reason),
        }
        let (size, can) = (remote.geometry().size_bytes, remote.capabilities());
        if size < disk_bytes {
            return Err(format!("it has {size} bytes, and {disk_bytes} are needed"));
        }
        match can.read_only || !can.can_flush || !can.can_write_zeroes {
            true => Err("it cannot be written, flushed or zeroed".to_owned()),
            false => Ok(()),
        }
    }
}

/// The members: the volume first, then its replicas.
pub(super) struct Members {
    all: Vec<Member>,
    /// The time after which a member that does not answer is excluded.
    stall: Duration,
    /// The member at which the search for a source begins, so that equal ones take turns.
    turn: usize,
}

impl Index<usize> for Members {
    type Output = Member;

    fn index(&self, at: usize) -> &Member {
        &self.all[at]
    }
}

impl IndexMut<usize> for Members {
    fn index_mut(&mut self, at: usize) -> &mut Member {
        &mut self.all[at]
    }
}

impl Members {
    pub fn new(all: Vec<Member>, stall: Duration) -> Self {
        Self {
            all,
            stall,
            turn: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.all.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.all.iter_mut()
    }

    /// The selections of partial replicas.
    pub fn selections_mut(&mut self) -> impl Iterator<Item = &mut Selection> {
        self.all
            .iter_mut()
            .filter_map(|member| member.selection.as_mut())
    }

    /// Whether a member is a partial replica.
    pub fn is_partial(&self, at: usize) -> bool {
        self.all[at].selection.is_some()
    }

    /// Whether it is known what a member should have.
    pub fn is_certain(&self, at: usize, files: KnownFiles<'_>) -> bool {
        !self.is_partial(at) || files.is_certain
    }

    /// Whether a member may be read: it is in sync, and not partial.
    pub fn is_source(&self, at: usize) -> bool {
        self.all[at].state == MemberState::InSync && !self.is_partial(at)
    }

    pub fn has_source(&self) -> bool {
        (0..self.len()).any(|at| self.is_source(at))
    }

    /// Whether a member has everything that was acknowledged, even if it is unavailable now.
    pub fn is_complete(&self, at: usize, map: &RegionMap) -> bool {
        !map.is_excluded[at] && !self.is_partial(at)
    }

    /// Whether a member is the only complete one.
    pub fn is_only_complete(&self, at: usize, map: &RegionMap) -> bool {
        let mut others = (0..self.len()).filter(|other| *other != at);
        self.is_complete(at, map) && !others.any(|other| self.is_complete(other, map))
    }

    /// Whether a change or a flush that these members (a bit for each) have carried out may be
    /// acknowledged: one of them is complete. What the others have may be overwritten, since they
    /// are rebuilding or were excluded meanwhile.
    pub fn may_acknowledge(&self, done_by: u32, map: &RegionMap) -> bool {
        (0..self.len()).any(|at| done_by >> at & 1 == 1 && self.is_complete(at, map))
    }

    /// Whether a member has changes that could not be started yet.
    pub fn have_queues(&self) -> bool {
        self.all.iter().any(|member| !member.queue.is_empty())
    }

    /// The time after which a member that does not answer is excluded.
    pub fn stall_of(&self, at: usize) -> Duration {
        match at {
            VOLUME => self.stall.max(VOLUME_STALL_MIN),
            _ => self.stall,
        }
    }

    /// The time until a member has stalled for too long.
    pub fn stall_timer(&self, now: Duration, map: &RegionMap) -> Option<Duration> {
        let may_be_excluded = (0..self.len()).filter(|at| !self.is_only_complete(*at, map));
        let due = may_be_excluded.filter_map(|at| {
            let oldest = self.all[at].oldest_part()?;
            Some((oldest + self.stall_of(at)).saturating_sub(now))
        });
        due.min()
    }

    /// The time until an excluded member is tried again. A volume that hangs is tried when it has
    /// answered.
    pub fn retry_timer(&self, now: Duration) -> Option<Duration> {
        let excluded = self
            .all
            .iter()
            .filter(|member| member.state == MemberState::Excluded);
        let may_try = |member: &&Member| member.location.is_some() || member.parts.is_empty();
        let due = excluded.filter(may_try).map(|member| member.retry_at);
        due.min().map(|at| at.saturating_sub(now))
    }

    /// The next read begins its search at the next member.
    pub fn next_turn(&mut self) {
        self.turn = (self.turn + 1) % self.len();
    }

    /// The source with the least to read, except the members `tried` (a bit for each).
    pub fn choose_source(&self, tried: u32) -> Option<usize> {
        let count = self.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let may_read = |at: &usize| self.is_source(*at) && tried >> at & 1 == 0;
        in_turn
            .filter(may_read)
            .min_by_key(|at| self.all[*at].pending_bytes)
    }
}
