//! `replicate`: what is written goes to two or three places, and what is read comes from any
//! (docs/chains.md, "Replication"; StorM's replica dispatch).
//!
//! ```text
//!               ┌──▶ below, the volume itself    in sync
//!  request ──▶ box ─▶ replica b                  filling: written where it lacks nothing
//!               └──▶ replica c                   out: nothing
//! ```
//!
//! * `member`: one place, and what is under way there. `map`, `store`: what each lacks, also
//!   after a crash. `fill`: how it gets that.
//!
//! Invariants:
//!
//! * Two changes that overlap are never under way together, so all members have them in one
//!   order.
//! * A change is acknowledged when all members have it that are not out, and it is in the
//!   file that the others are. At least one has it.
//! * A member that fails, or answers nothing for so long, is out: whatever it was asked is
//!   nobody's, and is read elsewhere. It is in sync again when it has all that it lacks, and
//!   that is on its stable storage.
//! * Only members in sync are read.

mod fill;
mod map;
mod member;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, ExtentKind, IoError,
    Outcome, Started, Token, ZeroMode,
};
use policy::ReplicateConfig;

use fill::Fill;
use map::{Map, Regions};
use member::{Ask, Member, PAUSE_MAX, PAUSE_MIN, State};
use store::{Store, Stored};

use crate::boxes::{Event, What};
use crate::remote::Link;
use crate::tokens::Tokens;
use crate::{MiddleBox, Opening, Surroundings};

/// A replica that is not there within so long is out as the box begins.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Regions that a flush has covered are in flight for so long still: what is written once
/// is soon written again, and each change of that costs a sync.
const FORGET_AFTER: Duration = Duration::from_secs(10);

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
    kind: Kind,
    /// So many parts are under way.
    parts: usize,
    /// Some member has done it.
    is_done: bool,
    data: Option<Vec<u8>>,
    error: Option<IoError>,
}

/// How far the box has come with beginning.
enum Begun {
    Not,
    Loading { since: Duration },
    Connecting { since: Duration },
    Yes,
}

/// See the module's head.
pub struct Replicate {
    name: Arc<str>,
    surroundings: Surroundings,
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
    is_resting: bool,
    disk_bytes: u64,
    turn: usize,
}

impl Replicate {
    /// As `config` says.
    #[must_use]
    pub fn new(name: &str, config: &ReplicateConfig, surroundings: Surroundings) -> Self {
        let replicas = config.replicas.iter();
        let mut members = vec![Member::new("volume", None)];
        members.extend(replicas.map(|one| Member::new(&one.name, Some(&one.uri))));
        let map = Map::new(0, &["volume"]);
        Self {
            name: name.into(),
            surroundings,
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
            is_resting: true,
            disk_bytes: 0,
            turn: 0,
        }
    }

    fn now(&self) -> Duration {
        self.surroundings.clock.monotonic()
    }

    fn note(&self, note: String) {
        self.surroundings.events.tell(vec![Event {
            time: self.surroundings.clock.wall(),
            whose: Arc::clone(&self.surroundings.whose),
            monitor: Arc::clone(&self.name),
            partition: None,
            what: What::Note(note),
            rule: None,
        }]);
    }

    /// The map is another one; nothing is acknowledged before that is in the file, if
    /// `is_needed`.
    fn changed(&mut self, is_needed: bool) {
        self.map.sequence += 1;
        if is_needed {
            self.needed = self.map.sequence;
        }
        self.write_map();
    }

    fn write_map(&mut self) {
        // Until it is in use, another box may have the file.
        if self.is_resting || self.writing.is_some() || self.stored >= self.map.sequence {
            return;
        }
        if let Some(store) = &mut self.store {
            self.writing = Some(self.map.in_flight.clone());
            store.write(&self.map);
        }
    }

    /// What was written to the file, and what waits for that.
    fn look_at_store(&mut self, completions: &mut Vec<Completion>) {
        while let Some(stored) = self.store.as_mut().and_then(Store::next) {
            match stored {
                Stored::Loaded(loaded) => self.loaded(loaded),
                Stored::Written(Ok(sequence)) => {
                    self.stored = sequence;
                    self.store_error = None;
                    self.in_file = self.writing.take().unwrap_or_else(|| self.in_file.clone());
                }
                Stored::Written(Err(error)) => {
                    self.writing = None;
                    if self.store_error.is_none() {
                        self.note(format!("what replicas lack cannot be kept: {error}"));
                    }
                    let why = format!("what replicas lack cannot be kept: {error}");
                    self.store_error = Some((why, self.now() + PAUSE_MIN));
                }
            }
        }
        let may_try = |error: &(String, Duration)| error.1 <= self.now();
        if self.store_error.as_ref().is_none_or(may_try) {
            self.write_map();
        }
        if self.needed <= self.stored {
            let late = std::mem::take(&mut self.late);
            completions.extend(
                late.into_iter()
                    .map(|(token, result)| Completion { token, result }),
            );
        }
    }

    /// Whether a region is in flight in the file, and will be in what is written there now.
    fn is_marked(&self, region: usize) -> bool {
        let writing = self.writing.as_ref();
        self.in_file.has(region) && writing.is_none_or(|writing| writing.has(region))
    }

    /// A member gets nothing any more. What it was asked counts as failed.
    fn put_out(&mut self, at: usize, why: &str, completions: &mut Vec<Completion>) {
        let now = self.now();
        let member = &mut self.members[at];
        if matches!(member.state, State::Out) {
            return;
        }
        member.state = State::Out;
        member.again = now + member.pause;
        member.pause = (member.pause * 2).min(PAUSE_MAX);
        let name = member.name.clone();
        let of = member.abandon();
        if let Some(fill) = self.fill.take_if(|fill| fill.member == at)
            && let Some(held) = fill.held()
        {
            self.ranges.remove(&held);
        }
        if !self.map.is_out[at] {
            self.note(format!("{name} is out: {why}"));
        }
        self.map.is_out[at] = true;
        // What it has acknowledged and not flushed may be lost there, and what is under way.
        let in_flight = self.map.in_flight.clone();
        self.map.lack(at, &in_flight);
        self.changed(true);
        let error = IoError::Unavailable(format!("replica {name}: {why}"));
        for request in of {
            self.part_ended(request, Err(error.clone()), completions);
        }
    }

    /// A part of a request has ended.
    fn part_ended(
        &mut self,
        id: Token,
        result: Result<Outcome, IoError>,
        completions: &mut Vec<Completion>,
    ) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        match result {
            Ok(Outcome::Data(data)) => {
                request.data = Some(data);
                request.is_done = true;
            }
            Ok(_) => request.is_done = true,
            Err(error) => request.error = Some(error),
        }
        request.parts -= 1;
        if request.parts > 0 {
            return;
        }
        match request.kind {
            Kind::Fill => self.filled(id, completions),
            Kind::Read { .. } if !request.is_done => self.again.push(id),
            _ => self.end(id, completions),
        }
    }

    /// All parts of a request have ended.
    fn end(&mut self, id: Token, completions: &mut Vec<Completion>) {
        let Some(request) = self.requests.take(id) else {
            return;
        };
        match request.kind {
            Kind::Change { offset, .. } => drop(self.ranges.remove(&offset)),
            Kind::Flush if self.covering == Some(id) => {
                self.covering = None;
                if request.is_done {
                    self.flushed();
                }
            }
            _ => {}
        }
        let Some(token) = request.token else { return };
        let result = match (request.is_done, request.error) {
            (true, _) => Ok(request.data.map_or(Outcome::Done, Outcome::Data)),
            (false, error) => Err(error.unwrap_or_else(none_is_there)),
        };
        let is_read = matches!(request.kind, Kind::Read { .. });
        match is_read || result.is_err() || self.needed <= self.stored {
            true => completions.push(Completion { token, result }),
            false => self.late.push((token, result)),
        }
    }

    /// A flush has reached all members that are not out.
    fn flushed(&mut self) {
        let now = self.now();
        for region in 0..self.map.regions {
            if self.map.in_flight.has(region) && !self.touched.has(region) {
                self.covered.set(region);
            }
        }
        if self.forget_at.is_zero() {
            self.forget_at = now + FORGET_AFTER;
        }
    }

    /// Regions that were not written for some time are in flight no more.
    fn forget(&mut self, now: Duration) {
        if self.forget_at.is_zero() || now < self.forget_at || self.is_resting {
            return;
        }
        self.forget_at = Duration::ZERO;
        if self.covered.count() > 0 {
            for region in 0..self.map.regions {
                if self.covered.has(region) {
                    self.map.in_flight.clear(region);
                    self.covered.clear(region);
                }
            }
            self.changed(false);
        }
    }

    /// Whether a change may begin now: nothing is under way that it overlaps, every region
    /// of it is in flight in the file, and nobody has to catch up first.
    ///
    /// # Errors
    /// If it never may.
    fn may_change(&mut self, offset: u64, length: u64) -> Result<bool, IoError> {
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= self.disk_bytes);
        let Some(end) = end else {
            return Err(IoError::OutOfRange {
                offset,
                length,
                size: self.disk_bytes,
            });
        };
        let before = self.ranges.range(..end).next_back();
        let is_overlapped = before.is_some_and(|(_, other)| *other > offset);
        if is_overlapped || self.members.iter().any(|member| !member.queue.is_empty()) {
            return Ok(false);
        }
        let mut is_marked = true;
        for region in self.map.regions_of(offset, length) {
            self.map.in_flight.set(region);
            self.touched.set(region);
            self.covered.clear(region);
            is_marked &= self.is_marked(region);
        }
        if !is_marked {
            if let Some((why, _)) = &self.store_error {
                return Err(IoError::NoSpace(why.clone()));
            }
            self.changed(false);
        }
        Ok(is_marked)
    }

    /// Whether a member gets what is written to `regions`.
    fn takes(&self, at: usize, regions: std::ops::Range<usize>) -> bool {
        match self.members[at].state {
            State::InSync => true,
            State::Filling => {
                let being_filled = self.fill.as_ref().filter(|fill| fill.member == at);
                let lacks = |region| {
                    let is_filled = being_filled.is_some_and(|fill| fill.region == region);
                    self.map.lacking[at].has(region) && !is_filled
                };
                // One that lacks some of it would lack all of it.
                !regions.clone().any(lacks)
            }
            State::Connecting(_) | State::Out => false,
        }
    }

    /// Asks all members that are to have it.
    fn dispatch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        kind: Kind,
        ask: &Ask,
    ) -> Started {
        let now = self.now();
        let regions = match kind {
            Kind::Change { offset, length } => self.map.regions_of(offset, length),
            _ => 0..0,
        };
        // One part more than there are, until all have been asked.
        let id = self.requests.add(Request {
            token: Some(token),
            kind: kind.clone(),
            parts: 1,
            is_done: false,
            data: None,
            error: None,
        });
        if matches!(kind, Kind::Flush) && self.covering.is_none() {
            self.covering = Some(id);
        }
        let (mut parts, mut is_done, mut error, mut failed) = (0, false, None, Vec::new());
        for at in 0..self.members.len() {
            if !self.takes(at, regions.clone()) {
                for region in regions.clone() {
                    self.map.lacking[at].set(region);
                }
                continue;
            }
            match self.members[at].carry_out(below, (id, now), ask) {
                Started::Done => is_done = true,
                Started::Pending => parts += 1,
                Started::Busy if parts == 0 && !is_done && failed.is_empty() => {
                    self.withdraw(id);
                    return Started::Busy;
                }
                Started::Busy => {
                    self.members[at].queue.push_back((id, ask.clone()));
                    parts += 1;
                }
                Started::Failed(
                    mistake @ (IoError::OutOfRange { .. }
                    | IoError::ReadOnly
                    | IoError::NotSupported),
                ) if parts == 0 && !is_done && failed.is_empty() => {
                    self.withdraw(id);
                    return Started::Failed(mistake);
                }
                Started::Failed(why) => {
                    failed.push((at, why.to_string()));
                    error = Some(why);
                }
            }
        }
        let is_simple = failed.is_empty() && parts == 0 && is_done;
        if is_simple && self.needed <= self.stored && !matches!(kind, Kind::Flush) {
            self.withdraw(id);
            return Started::Done;
        }
        if let Kind::Change { offset, length } = kind
            && parts > 0
        {
            self.ranges.insert(offset, offset + length);
        }
        if let Some(request) = self.requests.get_mut(id) {
            request.parts += parts;
            request.is_done = is_done;
            request.error.clone_from(&error);
        }
        // Whatever ends meanwhile is told by the next poll.
        let mut completions = Vec::new();
        for (at, why) in failed {
            self.put_out(at, &why, &mut completions);
        }
        if parts == 0 && !is_done {
            self.withdraw(id);
            self.ended.append(&mut completions);
            return Started::Failed(error.unwrap_or_else(none_is_there));
        }
        let is_over = self.requests.get_mut(id).is_some_and(|request| {
            request.parts -= 1;
            request.parts == 0
        });
        if is_over {
            self.end(id, &mut completions);
        }
        self.ended.append(&mut completions);
        Started::Pending
    }

    /// A request does not begin after all.
    fn withdraw(&mut self, id: Token) {
        self.requests.take(id);
        self.covering.take_if(|covering| *covering == id);
    }

    /// The member that has the least to read, of those in sync that were not tried: another
    /// one each time, if they have the same.
    fn choose(&self, tried: u32) -> Option<usize> {
        let count = self.members.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let may = |at: &usize| self.members[*at].state == State::InSync && tried >> at & 1 == 0;
        in_turn.filter(may).min_by_key(|at| self.members[*at].bytes)
    }

    /// Reads from some member; `None` if it could not be asked anywhere now.
    fn read_somewhere(
        &mut self,
        below: &mut dyn BlockDevice,
        id: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Option<Started> {
        let (now, length) = (self.now(), out.len() as u64);
        self.turn = (self.turn + 1) % self.members.len();
        let mut tried = 0;
        while let Some(at) = self.choose(tried) {
            tried |= 1 << at;
            let started = self.members[at].begin(below, (id, length, now), |device, own| {
                device.read(own, offset, out)
            });
            match started {
                Started::Busy => {}
                Started::Failed(error) => {
                    self.lacks(at, offset, length);
                    let mut completions = Vec::new();
                    self.put_out(at, &error.to_string(), &mut completions);
                    self.ended.append(&mut completions);
                }
                started => return Some(started),
            }
        }
        None
    }

    /// What a member could not read it is given anew.
    fn lacks(&mut self, at: usize, offset: u64, length: u64) {
        for region in self.map.regions_of(offset, length) {
            self.map.lacking[at].set(region);
        }
    }

    /// Tries reads elsewhere that failed somewhere.
    fn read_again(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        for id in std::mem::take(&mut self.again) {
            let Some(Request { kind, .. }) = self.requests.get_mut(id) else {
                continue;
            };
            let Kind::Read { offset, length } = *kind else {
                continue;
            };
            let mut out = vec![0; length];
            let is_any = self.members.iter().any(|one| one.state == State::InSync);
            let started = self.read_somewhere(below, id, offset, &mut out);
            let Some(request) = self.requests.get_mut(id) else {
                continue;
            };
            match started {
                Some(Started::Done) => {
                    (request.data, request.is_done) = (Some(out), true);
                    self.end(id, completions);
                }
                Some(_) => request.parts += 1,
                None if is_any => self.again.push(id),
                None => self.end(id, completions),
            }
        }
    }

    /// What could not begin begins, in order.
    fn empty_queues(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let now = self.now();
        for at in 0..self.members.len() {
            while let Some((id, ask)) = self.members[at].queue.pop_front() {
                match self.members[at].carry_out(below, (id, now), &ask) {
                    Started::Done => self.part_ended(id, Ok(Outcome::Done), completions),
                    Started::Pending => {}
                    Started::Busy => {
                        self.members[at].queue.push_front((id, ask));
                        break;
                    }
                    Started::Failed(error) => {
                        self.part_ended(id, Err(error.clone()), completions);
                        self.put_out(at, &error.to_string(), completions);
                    }
                }
            }
        }
    }

    /// What members have answered.
    fn collect(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let mut answers = Vec::new();
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            match (&mut member.remote, &member.uri) {
                (Some(remote), _) => remote.poll(&mut answers),
                (None, None) => below.poll(&mut answers),
                (None, Some(_)) => {}
            }
            for Completion { token, result } in answers.drain(..) {
                let Some(part) = self.members[at].tokens.take(token) else {
                    debug_assert!(false, "nobody asked a member for {token}");
                    continue;
                };
                self.members[at].bytes -= part.bytes;
                let Some(request) = part.request else {
                    continue;
                };
                if let Err(error) = &result {
                    let asked = self
                        .requests
                        .get_mut(request)
                        .map(|request| request.kind.clone());
                    if let Some(Kind::Read { offset, length }) = asked {
                        self.lacks(at, offset, length as u64);
                    }
                    // This part is counted here, and not by what is abandoned.
                    let why = error.to_string();
                    self.part_ended(request, result, completions);
                    self.put_out(at, &why, completions);
                } else {
                    self.part_ended(request, result, completions);
                }
            }
        }
    }

    /// Whoever does not answer is out.
    fn look_at_members(&mut self, now: Duration, completions: &mut Vec<Completion>) {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            if member.is_stalled(now, self.stall) {
                let why = format!("it has answered nothing for {} ms", self.stall.as_millis());
                self.put_out(at, &why, completions);
                continue;
            }
            let link = member.remote.as_ref().map(|remote| remote.link());
            if let Some(Link::Broken(why)) = link {
                self.put_out(at, &why, completions);
            }
        }
    }
}

fn none_is_there() -> IoError {
    IoError::Unavailable("no replica is there that has all".to_owned())
}

impl MiddleBox for Replicate {
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
            (None, _) => Opening::UnderWay,
        }
    }

    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Started {
        let length = out.len();
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.disk_bytes) {
            return Started::Failed(IoError::OutOfRange {
                offset,
                length: length as u64,
                size: self.disk_bytes,
            });
        }
        let id = self.requests.add(Request {
            token: Some(token),
            kind: Kind::Read { offset, length },
            parts: 1,
            is_done: false,
            data: None,
            error: None,
        });
        let started = self.read_somewhere(below, id, offset, out);
        if started != Some(Started::Pending) {
            self.withdraw(id);
        }
        match started {
            Some(started) => started,
            None if self.members.iter().any(|one| one.state == State::InSync) => Started::Busy,
            None => Started::Failed(none_is_there()),
        }
    }

    fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Started {
        let length = data.len() as u64;
        match self.may_change(offset, length) {
            Ok(true) => {}
            Ok(false) => return Started::Busy,
            Err(error) => return Started::Failed(error),
        }
        let ask = Ask::Write {
            offset,
            data: data.to_vec(),
            durability,
        };
        self.dispatch(below, token, Kind::Change { offset, length }, &ask)
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if self.members.iter().any(|member| !member.queue.is_empty()) {
            return Started::Busy;
        }
        let under_way = self.ranges.iter().map(|(begin, end)| (*begin, end - begin));
        let under_way: Vec<(u64, u64)> = under_way.collect();
        // Of two at once only the first one counts.
        if self.covering.is_none() {
            self.touched.clear_all();
            for (offset, length) in under_way {
                for region in self.map.regions_of(offset, length) {
                    self.touched.set(region);
                }
            }
        }
        self.dispatch(below, token, Kind::Flush, &Ask::Flush)
    }

    fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Started {
        // What a trim leaves at its ends is each device's choice: all are to have the same.
        let mode = ZeroMode {
            durability,
            may_punch: true,
            fast_only: false,
        };
        self.write_zeroes(below, token, offset, length, mode)
    }

    fn write_zeroes(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        mode: ZeroMode,
    ) -> Started {
        match self.may_change(offset, length) {
            Ok(true) => {}
            Ok(false) => return Started::Busy,
            Err(error) => return Started::Failed(error),
        }
        // A replica that has no fast way has a slow one.
        let mode = ZeroMode {
            fast_only: false,
            ..mode
        };
        let ask = Ask::Zeroes {
            offset,
            length,
            mode,
        };
        self.dispatch(below, token, Kind::Change { offset, length }, &ask)
    }

    fn extents(
        &mut self,
        _: &mut dyn BlockDevice,
        _: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        let length = length.min(self.disk_bytes.saturating_sub(offset));
        if length == 0 {
            return Started::Failed(IoError::OutOfRange {
                offset,
                length,
                size: self.disk_bytes,
            });
        }
        // Which holes each has is its own affair.
        runs.push(Extent {
            length,
            kind: ExtentKind::Data,
        });
        Started::Done
    }

    fn prefetch(&mut self, _: &mut dyn BlockDevice, _: Token, _: u64, _: u64) -> Started {
        // It will be read from any of them.
        Started::Done
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
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
        completions.append(&mut self.ended);
        self.collect(below, completions);
        self.look_at_members(now, completions);
        self.look_at_store(completions);
        if matches!(self.begun, Begun::Yes) {
            self.empty_queues(below, completions);
            self.read_again(below, completions);
            self.bring_back(below, now);
            self.go_on_filling(below, completions);
            self.forget(now);
        }
        completions.append(&mut self.ended);
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
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
        let parts = self.members.iter().flat_map(|one| one.tokens.iter());
        let oldest = parts
            .filter(|part| part.request.is_some())
            .map(|part| part.begun)
            .min();
        let stalled = oldest.map(|oldest| (oldest + self.stall).saturating_sub(now));
        let out = self.members.iter().filter(|one| one.state == State::Out);
        let again = out.map(|one| one.again.saturating_sub(now)).min();
        let is_pressed = !self.again.is_empty()
            || self.members.iter().any(|one| !one.queue.is_empty())
            || (self.fill.as_ref().is_some_and(Fill::is_waiting) && !self.is_resting);
        let pressed = match self.ended.is_empty() {
            true => is_pressed.then_some(Duration::from_millis(1)),
            false => Some(Duration::ZERO),
        };
        let forget = (!self.forget_at.is_zero()).then(|| self.forget_at.saturating_sub(now));
        let store = self
            .store_error
            .as_ref()
            .map(|(_, at)| at.saturating_sub(now));
        let timers = [stalled, again, pressed, forget, store];
        remotes.chain(timers.into_iter().flatten()).min()
    }

    fn rest(&mut self) -> bool {
        self.is_resting = true;
        self.fill.as_ref().is_none_or(|fill| !fill.is_under_way()) && self.writing.is_none()
    }

    fn resume(&mut self) {
        self.is_resting = false;
        self.write_map();
    }
}
