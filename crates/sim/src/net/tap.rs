//! What passes between a host and a daemon, looked at from outside: which requests
//! were answered, and whether whoever asked had a right to that. It knows the frames
//! and what capabilities say, and nothing of how a daemon decides.

use std::collections::BTreeMap;

use auth::{Capability, Fence, Scope, VerifyingKey};
use base::{CopysetId, SegmentId, UnitId};
use unit::{Put, SlotRun};
use unit_wire::{BODY_BYTES_MAX, Frames, Request, Status, put_frame};
use world::Millis;
use world::simulated::SimulatedRandom;

use super::Records;

/// Daemons let capabilities count for so much longer, in milliseconds.
const SLACK_MS: i64 = 10_000;

/// How many answers are kept to be given to other questions.
const SEEN_MAX: usize = 32;

/// A request, as far as it is judged.
enum Asked {
    Show(Vec<u8>),
    /// A change of segments; of the last kind, by what frees.
    Change(&'static str, Vec<SegmentId>, bool),
    Read(SlotRun, u32),
    Other,
}

/// One connection.
pub struct Tap {
    /// The number of it.
    connection: u64,
    frames: Frames,
    asked: BTreeMap<u64, Asked>,
    shown: Vec<Capability>,
}

impl Tap {
    /// Connection `connection`: a number that grows, over all lives of a daemon.
    #[must_use]
    pub fn on(connection: u64) -> Self {
        Self {
            connection,
            frames: Frames::new(BODY_BYTES_MAX),
            asked: BTreeMap::new(),
            shown: Vec::new(),
        }
    }
}

/// What one unit was shown, on all connections and in all lives of its daemon.
pub struct Witness {
    unit: UnitId,
    key: VerifyingKey,
    records: Records,
    newest: BTreeMap<Fence, u32>,
    /// On which connection each lease was shown last, and each *repair*, which was made
    /// then.
    leases_on: BTreeMap<(Fence, u32), u64>,
    repairs_on: BTreeMap<CopysetId, (Millis, u64)>,
    lies_one_in: u64,
    /// Answers to reads, by their length.
    seen: Vec<Vec<u8>>,
    /// The time on the unit's machine.
    pub now: Millis,
}

impl Witness {
    /// Nothing was shown.
    #[must_use]
    pub fn new(unit: UnitId, key: VerifyingKey, records: Records) -> Self {
        Self {
            unit,
            key,
            records,
            newest: BTreeMap::new(),
            leases_on: BTreeMap::new(),
            repairs_on: BTreeMap::new(),
            lies_one_in: 0,
            seen: Vec::new(),
            now: Millis(0),
        }
    }

    /// What was shown so far does not count.
    pub fn forget(&mut self) {
        self.newest.clear();
    }

    /// See [`super::daemon::Daemon::lie`].
    pub fn lie(&mut self, one_in: u64) {
        self.lies_one_in = one_in;
    }

    /// What else to answer to a reading.
    fn falsify(&mut self, body: &[u8], random: &SimulatedRandom) -> Option<Vec<u8>> {
        let others = self.seen.iter().filter(|it| it.len() == body.len());
        let others: Vec<&Vec<u8>> = others.filter(|it| *it != body).collect();
        let is_struck = !others.is_empty() && random.one_in(self.lies_one_in);
        let other = is_struck.then(|| others[random.index(others.len())].clone());
        if self.lies_one_in > 0 {
            if self.seen.len() == SEEN_MAX {
                self.seen.swap_remove(random.index(SEEN_MAX));
            }
            self.seen.push(body.to_vec());
        }
        other
    }
}

impl Tap {
    /// Requests have come.
    pub fn asked(&mut self, bytes: &[u8]) {
        self.frames.extend(bytes);
        while let Ok(Some(frame)) = self.frames.pop() {
            let Ok(request) = Request::decode(frame.code, frame.body) else {
                return;
            };
            let one = |segment| vec![segment];
            let asked = match request {
                Request::Present(signed) => Asked::Show(signed.to_vec()),
                Request::Put(Put { segment, .. }) => Asked::Change("put", one(segment), false),
                Request::Sync { segments, .. } => Asked::Change("sync", segments, false),
                Request::Delete(segment) => Asked::Change("delete", one(segment), false),
                Request::Free { segment, .. } => Asked::Change("free", one(segment), true),
                Request::Replace { part, .. } => Asked::Change("replace", one(part.segment), true),
                Request::Read { run, slot_bytes } => Asked::Read(run, slot_bytes),
                _ => Asked::Other,
            };
            self.asked.insert(frame.tag, asked);
        }
    }

    /// Answers are given, which may be changed: not at all, if the host has gone. They
    /// may come before those to earlier requests (`is_ahead`).
    pub fn answers(
        &mut self,
        bytes: &mut Vec<u8>,
        is_late: bool,
        is_ahead: bool,
        witness: &mut Witness,
        random: &SimulatedRandom,
    ) {
        let mut frames = Frames::new(BODY_BYTES_MAX);
        frames.extend(bytes);
        bytes.clear();
        while let Ok(Some(frame)) = frames.pop() {
            let asked = self.asked.remove(&frame.tag).unwrap_or(Asked::Other);
            let is_done = frame.code == Status::Done as u16;
            let mut body = frame.body.to_vec();
            {
                let mut records = witness.records.lock();
                records.counts.late += u64::from(is_late);
                records.counts.reordered += u64::from(is_ahead && !is_late);
            }
            match asked {
                Asked::Show(signed) if is_done => self.note_shown(&signed, witness),
                Asked::Change(what, segments, is_free) => {
                    self.judge(what, &segments, is_free, is_done, is_late, witness);
                }
                Asked::Read(run, slot_bytes) if is_done => {
                    if body.len() != run.answer_bytes(slot_bytes) {
                        let wrong = format!("{run:?} was answered with {} bytes", body.len());
                        witness.records.lock().wrong.push(wrong);
                    } else if let Some(other) = witness.falsify(&body, random) {
                        witness.records.lock().counts.lies += 1;
                        body = other;
                    }
                }
                _ => {}
            }
            put_frame(bytes, frame.code, frame.tag, |out| out.extend(body));
        }
    }

    fn note_shown(&mut self, signed: &[u8], witness: &mut Witness) {
        let Ok(capability) = witness.key.verify(signed) else {
            let wrong = "what nobody signed was taken for a capability".to_owned();
            witness.records.lock().wrong.push(wrong);
            return;
        };
        if let Scope::Lease { fence, epoch, .. } = capability.scope {
            let newest = witness.newest.entry(fence).or_default();
            if epoch < *newest {
                let wrong = format!("lease {epoch} counts, after {newest} was shown");
                witness.records.lock().wrong.push(wrong);
            }
            *newest = epoch.max(*newest);
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
        self.shown.push(capability);
    }

    /// Whether what was answered may have been done.
    fn judge(
        &self,
        what: &'static str,
        segments: &[SegmentId],
        is_free: bool,
        is_done: bool,
        is_late: bool,
        witness: &Witness,
    ) {
        let lasting = self
            .shown
            .iter()
            .filter(|shown| shown.ends.0 + SLACK_MS >= witness.now.0);
        let lasting: Vec<&Capability> = lasting.collect();
        let mut records = witness.records.lock();
        for segment in segments {
            let serial = segment.serial();
            let mut is_older = false;
            let may = lasting.iter().any(|shown| match &shown.scope {
                Scope::Lease {
                    fence,
                    epoch,
                    serials,
                    ..
                } => {
                    let is_its = serials.iter().any(|range| range.contains(&serial));
                    let on = witness.leases_on.get(&(*fence, *epoch));
                    let is_newest = witness.newest.get(fence).is_none_or(|it| epoch >= it)
                        && on.is_none_or(|on| *on == self.connection);
                    is_older |= is_its && !is_newest;
                    is_its && is_newest
                }
                Scope::Repair { copysets, units } => {
                    let copyset = segment.copyset();
                    let is_its = copysets.contains(&copyset) && units.contains(&witness.unit);
                    let on = witness.repairs_on.get(&copyset).map(|on| on.1);
                    let is_newest = on.is_none_or(|on| on == self.connection);
                    is_older |= is_its && !is_newest;
                    is_its && is_newest
                }
                Scope::Free { segments } => is_free && segments.contains(segment),
                Scope::Read { .. } | Scope::Count { .. } => false,
            });
            if is_done && !may {
                let text = format!("{what} of {segment} was done without a right");
                records.wrong.push(text);
            }
            if !is_done && !may && is_older {
                records.counts.refused_older += 1;
            }
            records.counts.late_changes += u64::from(is_done && is_late);
            if records.is_traced && is_late {
                eprintln!(
                    "    late {what} of {segment} on {}: {is_done}",
                    witness.unit
                );
            }
        }
    }
}
