//! `replicate`: what is written goes to two or three places, and what is read comes from any
//! (docs/internals/replication.md; StorM's replica dispatch).
//!
//! ```text
//!               ┌──▶ below, the volume itself    in sync
//!  request ──▶ filter ─▶ replica b                  filling: written where it lacks nothing
//!               └──▶ replica c                   out: nothing
//! ```
//!
//! * `member`: one place, and what is under way there. `asking`, `answers`: what is asked of
//!   them, and what comes of it.
//! * `map`, `store`, `keeping`: what each lacks, also after a crash. `beginning`, `fill`: how
//!   it is found who has all, and how the others get it.
//! * `choice`, `granules`, `looking`: replicas that are to have some files only.
//!
//! Invariants:
//!
//! * Two changes that overlap are never under way together, so all members have them in one
//!   order.
//! * A change is acknowledged when all members have it that are not out, and it is in the
//!   file that the others are. At least one has it that has all. While that one is away
//!   nothing begins, and what was under way fails.
//! * A member that fails, or answers nothing for so long, is out: whatever it was asked is
//!   nobody's, and is read elsewhere. It is in sync again when it has all that it lacks, and
//!   that is on its stable storage.
//! * Only members in sync are read. One that is not to have all is never read, and what it
//!   has acknowledged alone is not acknowledged.

mod answers;
mod asking;
mod beginning;
mod choice;
mod fill;
mod granules;
mod keeping;
mod looking;
mod map;
mod member;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, DeviceGeometry, Extent, ExtentKind, IoError,
    Op, Outcome, OwnedOp, ReadBuffer, Started, Token, ZeroMode,
};
use chain_policy::ReplicateConfig;

use choice::Choice;
use fill::Fill;
use looking::Looking;
use map::{Map, Regions};
use member::{Member, State};
use store::Store;

pub use store::REPLICAS_SUFFIX;

use crate::tokens::Tokens;
use crate::{Filter, FilterContext, Opening, StateFolder};

/// A replica that is not there within so long is out as the filter begins.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Regions that a flush has covered are in flight for so long still: what is written once
/// is soon written again, and each change of that costs a sync.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// The volume is not given up for a moment's slowness: what it lacks then keeps it from
/// being used without the others.
const VOLUME_STALL_MIN: Duration = Duration::from_secs(5);

/// The volume itself, among the members.
const VOLUME: usize = 0;

/// What a request is.
#[derive(Debug, Clone)]
enum Kind {
    Read {
        offset: u64,
        length: usize,
    },
    Change {
        offset: u64,
        length: u64,
    },
    Flush,
    /// Of what a member lacks.
    Fill,
}

/// What was asked, and is not answered.
#[derive(Debug)]
struct Request {
    /// By whom; nobody above asks to fill a member.
    token: Option<Token>,
    /// It is read to know what is on the disk.
    look: Option<Token>,
    kind: Kind,
    /// So many parts are under way.
    parts: usize,
    /// Some member has read it; or carried it out, if it is to be filled.
    is_done: bool,
    /// A bit for each member that is to have all and has carried it out.
    done_by: u32,
    data: Option<Vec<u8>>,
    error: Option<IoError>,
}

impl Request {
    /// One part of it is about to be asked.
    fn new(token: Option<Token>, kind: Kind) -> Self {
        Self {
            token,
            look: None,
            kind,
            parts: 1,
            is_done: false,
            done_by: 0,
            data: None,
            error: None,
        }
    }
}

/// How far the filter has come with beginning.
enum Begun {
    Not,
    Loading {
        since: Duration,
    },
    Connecting {
        since: Duration,
    },
    /// It is found out what partial replicas are to have.
    Looking {
        since: Duration,
    },
    Yes,
}

/// See the module's head.
pub struct Replicate {
    name: Arc<str>,
    context: FilterContext,
    stall: Duration,
    members: Vec<Member>,
    map: Map,
    store: Option<Store>,
    begun: Begun,
    /// Why it cannot begin.
    failed: Option<String>,
    /// In the file, up to here.
    stored: u64,
    /// What was in flight then; and will be, when what is written now is there.
    in_file: Regions,
    writing: Option<Regions>,
    /// Why it cannot be written, and when that is tried again.
    store_error: Option<(String, Duration)>,
    /// Nothing is acknowledged before that is there.
    needed: u64,
    requests: Tokens<Request>,
    /// Changes under way: where each begins, and ends.
    ranges: BTreeMap<u64, u64>,
    /// What ended outside of a poll.
    ended: Vec<Completion>,
    /// Answers that wait for the file.
    late: Vec<(Token, Result<Outcome, IoError>)>,
    /// Reads that are to be tried elsewhere.
    again: Vec<Token>,
    /// Regions written since the flush that is under way began.
    touched: Regions,
    /// Regions that a flush has covered, and nobody has written since.
    covered: Regions,
    forget_at: Duration,
    /// The flush that is under way, of which that will be true.
    covering: Option<Token>,
    fill: Option<Fill>,
    /// What is on the disk, if replicas are to have some of it only.
    looking: Option<Looking>,
    is_resting: bool,
    /// Whoever alone has all and is away is waited for no more.
    gives_up: bool,
    /// It was away, and may have lost what was acknowledged and not flushed: the next flush
    /// says so.
    may_have_lost: bool,
    /// Something was asked that is not committed.
    has_asked: bool,
    /// It was in use.
    is_used: bool,
    disk_bytes: u64,
    turn: usize,
}

impl Replicate {
    /// As `config` says.
    #[must_use]
    pub fn new(name: &str, config: &ReplicateConfig, context: FilterContext) -> Self {
        let replicas = config.replicas.iter();
        let mut members = vec![Member::new("volume", None)];
        members.extend(replicas.map(|one| {
            let mut member = Member::new(&one.name, Some(one.location.clone()));
            member.choice = one.paths.clone().map(Choice::new);
            member
        }));
        let map = Map::new(0, &[("volume", 0)]);
        let mut new = Self {
            name: name.into(),
            context,
            stall: Duration::from_millis(config.stall_ms),
            members,
            touched: map.in_flight.clone(),
            covered: map.in_flight.clone(),
            in_file: map.in_flight.clone(),
            writing: None,
            store_error: None,
            map,
            store: None,
            begun: Begun::Not,
            failed: None,
            stored: 0,
            needed: 0,
            requests: Tokens::default(),
            ranges: BTreeMap::new(),
            ended: Vec::new(),
            late: Vec::new(),
            again: Vec::new(),
            forget_at: Duration::ZERO,
            covering: None,
            fill: None,
            looking: None,
            is_resting: true,
            gives_up: false,
            may_have_lost: false,
            has_asked: false,
            is_used: false,
            disk_bytes: 0,
            turn: 0,
        };
        if new.members.iter().any(|member| member.choice.is_some()) {
            new.looking = Some(Looking::new(
                new.follower(config.memory_max.min(new.context.attachment.memory_max)),
            ));
        }
        new
    }

    fn now(&self) -> Duration {
        self.context.host.clock.monotonic()
    }

    fn note(&self, note: String) {
        self.context.report(&self.name, note);
    }

    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        mut out: ReadBuffer<'_>,
    ) -> Started {
        let length = out.len();
        if let Err(error) = ByteRange::new(offset, length as u64).check(self.disk_bytes) {
            return Started::Failed(error);
        }
        let id = self
            .requests
            .add(Request::new(Some(token), Kind::Read { offset, length }));
        let started = self.read_somewhere(below, id, offset, &mut out);
        if started != Some(Started::Pending) {
            self.withdraw(id);
        }
        match started {
            Some(started) => started,
            None if self.has_source() || !self.gives_up => Started::Busy,
            None => Started::Failed(none_is_there()),
        }
    }

    fn zero(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        range: ByteRange,
        mode: ZeroMode,
    ) -> Started {
        let ByteRange { offset, length } = range;
        let op = OwnedOp::WriteZeroes {
            offset,
            length,
            mode,
        };
        self.change(below, token, op)
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if self.members.iter().any(|member| !member.queue.is_empty()) {
            return Started::Busy;
        }
        let under_way = self.ranges.iter().map(|(begin, end)| (*begin, end - begin));
        let under_way: Vec<(u64, u64)> = under_way.collect();
        let before = self.touched.clone();
        // Of two at once only the first one counts.
        if self.covering.is_none() {
            self.touched.clear_all();
            for (offset, length) in under_way {
                for region in self.map.regions_of(offset, length) {
                    self.touched.set(region);
                }
            }
        }
        let started = self.dispatch(below, token, Kind::Flush, &OwnedOp::Flush);
        if matches!(started, Started::Busy | Started::Failed(_)) {
            self.touched.merge(&before);
        }
        started
    }
}

fn none_is_there() -> IoError {
    IoError::Unavailable("no replica is there that has all".to_owned())
}

/// Whether the volume lacks what its replicas have, by the file of the filter `name` in `state`:
/// one that was not left in order.
///
/// # Errors
/// If the file cannot be read.
pub fn volume_lacks(state: &StateFolder, name: &str) -> io::Result<bool> {
    let loaded = store::load(&*state.disk, &store::path_in(state, name))?;
    Ok(loaded.is_some_and(|map| map.left == 0 && map.is_out[VOLUME]))
}

impl Filter for Replicate {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        // A volume that has grown is as large as its replicas are, until they are opened anew.
        let known = (self.disk_bytes > 0).then_some(self.disk_bytes);
        DeviceGeometry {
            size_bytes: known.map_or(below.size_bytes, |known| known.min(below.size_bytes)),
            ..below
        }
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities {
            can_trim: below.can_trim && below.can_write_zeroes,
            ..below
        }
    }

    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        self.begin(below);
        match (&self.failed, &self.begun) {
            (Some(why), _) => Opening::Failed(why.clone()),
            (None, Begun::Yes) => Opening::Ready,
            (None, _) => Opening::Pending,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: base::Request<'_>) -> Started {
        let base::Request { token, op } = request;
        match op {
            Op::Read { offset, out } => self.read(below, token, offset, out),
            Op::Write { .. } => self.change(below, token, op.to_owned()),
            Op::Flush => self.flush(below, token),
            // What a trim leaves at its ends is each device's choice: all are to have the same.
            Op::Trim { durability, .. } => {
                let mode = ZeroMode {
                    durability,
                    may_punch: true,
                    fast_only: false,
                };
                self.zero(below, token, op.range(), mode)
            }
            // A replica that has no fast way has a slow one.
            Op::WriteZeroes { mode, .. } => {
                let mode = ZeroMode {
                    fast_only: false,
                    ..mode
                };
                self.zero(below, token, op.range(), mode)
            }
            // Which holes each has is its own affair.
            Op::Extents {
                offset,
                length,
                runs,
            } => {
                let length = length.min(self.disk_bytes.saturating_sub(offset));
                if length == 0 {
                    return Started::Failed(IoError::OutOfRange {
                        offset,
                        length,
                        size: self.disk_bytes,
                    });
                }
                runs.push(Extent {
                    length,
                    kind: ExtentKind::Data,
                });
                Started::Done
            }
            // It will be read from any of them.
            Op::Prefetch { .. } => Started::Done,
        }
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        self.has_asked = false;
        let mut completions = Vec::new();
        for at in 1..self.members.len() {
            let sent = self.members[at]
                .remote
                .as_mut()
                .map(|remote| remote.commit());
            if let Some(Err(error)) = sent {
                self.put_out(at, &error.to_string(), &mut completions);
            }
        }
        self.ended.append(&mut completions);
        below.commit()
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let now = self.now();
        let before = completions.len();
        completions.append(&mut self.ended);
        self.collect(below, completions);
        self.look_at_members(now, completions);
        self.look_at_store(completions);
        if matches!(self.begun, Begun::Looking { .. }) {
            self.read_again(below, completions);
            self.look(below);
        }
        if matches!(self.begun, Begun::Yes) {
            self.look(below);
            self.let_go_of_held(below, completions);
            self.empty_queues(below, completions);
            self.read_again(below, completions);
            self.bring_back(now);
            self.go_on_filling(below, completions);
            self.forget(now);
        }
        // Who answers at once counts on it, and whoever polls commits only what he asked for.
        if self.has_asked
            && let Err(error) = self.commit(below)
        {
            for one in completions.iter_mut().skip(before) {
                if let Ok(Outcome::Done) = one.result {
                    one.result = Err(error.clone());
                }
            }
        }
        completions.append(&mut self.ended);
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        self.gives_up = true;
        for member in &mut self.members {
            if let Some(remote) = &mut member.remote {
                remote.stop_waiting();
            }
        }
        below.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.now();
        let remotes = self
            .members
            .iter()
            .filter_map(|one| one.remote.as_ref()?.next_timer());
        let members = (0..self.members.len()).filter(|at| !self.is_only_source(*at));
        let stalled = members.filter_map(|at| {
            let parts = self.members[at].tokens.iter();
            let waited_for = parts.filter(|part| part.request.is_some());
            let oldest = waited_for.map(|part| part.begun).min()?;
            Some((oldest + self.stalls_after(at)).saturating_sub(now))
        });
        let stalled = stalled.min();
        // One that hangs is tried when it has answered.
        let may_try = |one: &&Member| one.place.is_some() || one.tokens.is_empty();
        let out = self.members.iter().filter(|one| one.state == State::Out);
        let again = out.filter(may_try).map(|one| one.again.saturating_sub(now));
        let again = again.min().filter(|_| !self.is_resting);
        let looking = self.looking.as_ref();
        let due = looking.and_then(|one| one.follower.due());
        let due = due.filter(|_| !self.is_resting);
        let due = due.map(|due| due.saturating_sub(now));
        let is_looking = looking.is_some_and(Looking::is_pressed);
        let is_held = looking.is_some_and(|looking| !looking.held.is_empty());
        let is_pressed = !self.again.is_empty() && (self.has_source() || self.gives_up)
            || is_held
            || is_looking && (!self.is_resting || matches!(self.begun, Begun::Looking { .. }))
            || self.members.iter().any(|one| !one.queue.is_empty())
            || (self.fill.as_ref().is_some_and(Fill::is_waiting)
                && !self.is_resting
                && self.has_source());
        let pressed = match self.ended.is_empty() {
            true => is_pressed.then_some(Duration::from_millis(1)),
            false => Some(Duration::ZERO),
        };
        let forget = (!self.forget_at.is_zero()).then(|| self.forget_at.saturating_sub(now));
        let store = self
            .store_error
            .as_ref()
            .map(|(_, at)| at.saturating_sub(now));
        let timers = [stalled, again, pressed, forget, store, due];
        remotes.chain(timers.into_iter().flatten()).min()
    }

    fn check_removable(&self) -> Result<(), String> {
        match self.is_source(VOLUME) || !self.is_used {
            true => Ok(()),
            false => Err("the volume lacks what its replicas have, and is being filled".to_owned()),
        }
    }

    fn quiesce(&mut self) -> bool {
        self.is_resting = true;
        if self.is_used && self.map.left == 0 {
            // Others may write the volume before it is used again.
            self.map.left = self.context.attachment.history.chain.max(1);
            self.changed(true);
        }
        let is_idle = self.fill.as_ref().is_none_or(|fill| !fill.is_under_way());
        let looking = self.looking.as_ref();
        let looks = looking.is_some_and(|looking| !looking.follower.is_idle());
        let is_kept = self.writing.is_none() && (!self.is_used || self.stored >= self.map.sequence);
        is_idle && !looks && is_kept
    }

    fn resume(&mut self) {
        self.is_resting = false;
        if std::mem::take(&mut self.map.left) != 0 {
            self.changed(true);
        }
        self.is_used = true;
        self.write_map();
    }
}
