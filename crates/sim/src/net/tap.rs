//! [`Tap`] and [`Witness`]: observe the connections of a daemon, and check that every
//! change was permitted by a capability. They know frames and capabilities, and nothing of
//! how a daemon decides.

use std::collections::BTreeMap;

use auth::{Capability, Fence, Scope, VerifyingKey};
use base::{CopysetId, SegmentId, UnitId};
use unit::{Put, SlotRun};
use unit_wire::{BODY_BYTES_MAX, Frames, Request, Status, put_frame};
use world::Millis;
use world::simulated::SimulatedRandom;

use super::record::Records;

/// Daemons accept a capability this long after its end, in milliseconds.
const SLACK_MS: i64 = 10_000;

/// The number of answers that are stored to falsify others with.
const SEEN_MAX: usize = 32;

/// A request, as far as it is checked.
enum ObservedRequest {
    Present(Vec<u8>),
    Change(Change),
    Read { run: SlotRun, slot_bytes: u32 },
    Other,
}

/// A request that changes segments.
struct Change {
    /// The name of the request, for messages.
    name: &'static str,
    segments: Vec<SegmentId>,
    /// Whether the right to free the segments is enough.
    is_free: bool,
}

impl Change {
    fn of_one(name: &'static str, segment: SegmentId, is_free: bool) -> Self {
        Self {
            name,
            segments: vec![segment],
            is_free,
        }
    }
}

/// When an answer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// In the order of the requests.
    InOrder,
    /// Before the answer to an earlier request.
    Reordered,
    /// After the host has abandoned the connection.
    Late,
}

/// One connection.
pub struct Tap {
    /// The connection's number.
    connection: u64,
    frames: Frames,
    /// Requests without an answer, by tag.
    requests: BTreeMap<u64, ObservedRequest>,
    /// The capabilities that were presented on this connection.
    presented: Vec<Capability>,
}

impl Tap {
    /// A tap on a connection. Numbers grow over all processes of a daemon.
    #[must_use]
    pub fn on(connection: u64) -> Self {
        Self {
            connection,
            frames: Frames::new(BODY_BYTES_MAX),
            requests: BTreeMap::new(),
            presented: Vec::new(),
        }
    }
}

/// The capabilities presented to one unit, on all connections to all processes of its
/// daemon.
pub struct Witness {
    unit: UnitId,
    key: VerifyingKey,
    records: Records,
    /// The newest epoch that was presented for each fence.
    newest: BTreeMap<Fence, u32>,
    /// The connection on which each lease was presented last.
    leases_on: BTreeMap<(Fence, u32), u64>,
    /// The newest *repair* of each copyset: when it was made, and the connection on which
    /// it was presented.
    repairs_on: BTreeMap<CopysetId, (Millis, u64)>,
    falsified_one_in: u64,
    /// Earlier answers to reads.
    seen: Vec<Vec<u8>>,
    /// The time on the unit's machine.
    pub now: Millis,
}

impl Witness {
    /// A witness of a unit to which nothing was presented yet.
    #[must_use]
    pub fn new(unit: UnitId, key: VerifyingKey, records: Records) -> Self {
        Self {
            unit,
            key,
            records,
            newest: BTreeMap::new(),
            leases_on: BTreeMap::new(),
            repairs_on: BTreeMap::new(),
            falsified_one_in: 0,
            seen: Vec::new(),
            now: Millis(0),
        }
    }

    /// Forgets the newest epochs.
    pub fn forget_fences(&mut self) {
        self.newest.clear();
    }

    /// See [`super::daemon::Daemon::falsify_reads`].
    pub fn falsify_reads(&mut self, one_in: u64) {
        self.falsified_one_in = one_in;
    }

    /// Records a broken promise of the daemon.
    fn report(&self, violation: String) {
        self.records.lock().violations.push(violation);
    }

    /// Another answer to give to a read; `None` to give the right one.
    fn falsify(&mut self, body: &[u8], random: &SimulatedRandom) -> Option<Vec<u8>> {
        let others = self.seen.iter().filter(|it| it.len() == body.len());
        let others: Vec<&Vec<u8>> = others.filter(|it| *it != body).collect();
        let is_falsified = !others.is_empty() && random.one_in(self.falsified_one_in);
        let other = is_falsified.then(|| others[random.index(others.len())].clone());
        if self.falsified_one_in > 0 {
            if self.seen.len() == SEEN_MAX {
                self.seen.swap_remove(random.index(SEEN_MAX));
            }
            self.seen.push(body.to_vec());
        }
        other
    }
}

impl Tap {
    /// Observes requests.
    pub fn requests(&mut self, bytes: &[u8]) {
        self.frames.extend(bytes);
        while let Ok(Some(frame)) = self.frames.pop() {
            let Ok(request) = Request::decode(frame.code, frame.body) else {
                return;
            };
            let change = match request {
                Request::Put(Put { segment, .. }) => Change::of_one("put", segment, false),
                Request::Sync { segments, .. } => Change {
                    name: "sync",
                    segments,
                    is_free: false,
                },
                Request::Delete(segment) => Change::of_one("delete", segment, false),
                Request::Free { segment, .. } => Change::of_one("free", segment, true),
                Request::Replace { part, .. } => Change::of_one("replace", part.segment, true),
                other => {
                    let request = match other {
                        Request::Present(signed) => ObservedRequest::Present(signed.to_vec()),
                        Request::Read { run, slot_bytes } => {
                            ObservedRequest::Read { run, slot_bytes }
                        }
                        _ => ObservedRequest::Other,
                    };
                    self.requests.insert(frame.tag, request);
                    continue;
                }
            };
            self.requests
                .insert(frame.tag, ObservedRequest::Change(change));
        }
    }

    /// Observes answers, checks them, and falsifies some.
    pub fn answers(
        &mut self,
        bytes: &mut Vec<u8>,
        arrival: Arrival,
        witness: &mut Witness,
        random: &SimulatedRandom,
    ) {
        let mut frames = Frames::new(BODY_BYTES_MAX);
        frames.extend(bytes);
        bytes.clear();
        while let Ok(Some(frame)) = frames.pop() {
            let request = self.requests.remove(&frame.tag);
            let is_done = frame.code == Status::Done as u16;
            let mut body = frame.body.to_vec();
            {
                let mut records = witness.records.lock();
                records.counts.late += u64::from(arrival == Arrival::Late);
                records.counts.reordered += u64::from(arrival == Arrival::Reordered);
            }
            match request {
                Some(ObservedRequest::Present(signed)) if is_done => {
                    self.record_presented(&signed, witness);
                }
                Some(ObservedRequest::Change(change)) => {
                    self.check(&change, is_done, arrival, witness);
                }
                Some(ObservedRequest::Read { run, slot_bytes }) if is_done => {
                    if body.len() != run.answer_bytes(slot_bytes) {
                        witness.report(format!("{run:?} was answered with {} bytes", body.len()));
                    } else if let Some(other) = witness.falsify(&body, random) {
                        witness.records.lock().counts.falsified += 1;
                        body = other;
                    }
                }
                _ => {}
            }
            put_frame(bytes, frame.code, frame.tag, |out| out.extend(body));
        }
    }

    /// Records a capability that the daemon has accepted.
    fn record_presented(&mut self, signed: &[u8], witness: &mut Witness) {
        let Ok(capability) = witness.key.verify(signed) else {
            witness.report("a capability without a valid signature was accepted".to_owned());
            return;
        };
        if let Scope::Lease { fence, epoch, .. } = capability.scope {
            let newest = witness.newest.get(&fence).copied().unwrap_or(0);
            if epoch < newest {
                witness.report(format!("lease {epoch} was accepted after {newest}"));
            }
            witness.newest.insert(fence, epoch.max(newest));
            let on = witness.leases_on.entry((fence, epoch)).or_default();
            *on = self.connection.max(*on);
        }
        if let Scope::Repair { copysets, units } = &capability.scope
            && units.contains(&witness.unit)
        {
            let this = (capability.made, self.connection);
            for copyset in copysets {
                let on = witness.repairs_on.entry(*copyset).or_insert(this);
                *on = this.max(*on);
            }
        }
        self.presented.push(capability);
    }

    /// Checks that a change which was done was permitted: by a capability of this
    /// connection, and not by one that is older than another one that was presented to the unit.
    fn check(&self, change: &Change, is_done: bool, arrival: Arrival, witness: &Witness) {
        let is_late = arrival == Arrival::Late;
        let (name, unit) = (change.name, witness.unit);
        for segment in &change.segments {
            let rights = self.rights_to(*segment, change.is_free, witness);
            if is_done && !rights.is_permitted {
                witness.report(format!("{name} of {segment} was done without a right"));
            }
            let mut records = witness.records.lock();
            if !is_done && !rights.is_permitted && rights.is_outdated {
                records.counts.refused_older += 1;
            }
            records.counts.late_changes += u64::from(is_done && is_late);
            if records.is_traced && is_late {
                eprintln!("    late {name} of {segment} on {unit}: {is_done}");
            }
        }
    }

    /// The rights to change a segment that were presented on this connection.
    fn rights_to(&self, segment: SegmentId, is_free: bool, witness: &Witness) -> Rights {
        let valid = self
            .presented
            .iter()
            .filter(|capability| capability.ends.0 + SLACK_MS >= witness.now.0);
        let mut rights = Rights::default();
        for capability in valid {
            let (applies, is_newest) = match &capability.scope {
                Scope::Lease {
                    fence,
                    epoch,
                    serials,
                    ..
                } => {
                    let serial = segment.serial();
                    let on = witness.leases_on.get(&(*fence, *epoch));
                    let is_newest = witness.newest.get(fence).is_none_or(|it| epoch >= it)
                        && on.is_none_or(|on| *on == self.connection);
                    let applies = serials.iter().any(|range| range.contains(&serial));
                    (applies, is_newest)
                }
                Scope::Repair { copysets, units } => {
                    let copyset = segment.copyset();
                    let on = witness.repairs_on.get(&copyset).map(|on| on.1);
                    let is_newest = on.is_none_or(|on| on == self.connection);
                    let applies = copysets.contains(&copyset) && units.contains(&witness.unit);
                    (applies, is_newest)
                }
                Scope::Free { segments } => (is_free && segments.contains(&segment), true),
                Scope::Read { .. } | Scope::Count { .. } => (false, true),
            };
            rights.is_permitted |= applies && is_newest;
            rights.is_outdated |= applies && !is_newest;
        }
        rights
    }
}

/// The rights to change a segment.
#[derive(Debug, Clone, Copy, Default)]
struct Rights {
    /// Some capability permits it.
    is_permitted: bool,
    /// Some capability would permit it if it were the newest.
    is_outdated: bool,
}
