//! A host's request, carried out on a thread that may wait.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{LineageTag, SegmentId};
use parking_lot::Mutex;
use unit::{NOTE_BYTES, Put, Read, ReplacementPart, SlotRun, Tag, Unit as _, UnitError};
use unit_wire::{Refusal, Request, Status, Verb, put_frame};

use super::{Keeper, room_for};
use crate::budget::Share;
use crate::rights::{Action, Right, Rights, UNREADABLE};

/// Maximum number of segments in one page of a list.
const LIST_MAX: usize = 1 << 17;

/// A request to carry out on a thread that may wait.
pub struct Job {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) rights: Arc<Mutex<Rights>>,
    /// SHA-256 of the host's public key.
    pub(crate) holder: [u8; 32],
    pub(crate) tag: u64,
    /// The verb of the request, which is well-formed.
    pub(crate) verb: Verb,
    pub(crate) body: Vec<u8>,
    /// The share of the budget for it and its answer.
    pub(crate) _share: Share,
}

impl Job {
    /// The tag of the request.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Carries out the request and returns the frame of its answer.
    #[must_use]
    pub fn run(self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut refused = None;
        put_frame(&mut out, Status::Done as u16, self.tag, |body| {
            let carried_out = self.keeper.timed(self.verb, || self.carry_out(body));
            refused = carried_out.err();
        });
        if let Some(refusal) = refused {
            self.keeper.counters.refused(refusal.status);
            out.clear();
            refusal.encode(self.tag, &mut out);
        }
        out
    }

    fn carry_out(&self, body: &mut Vec<u8>) -> Result<(), Refusal> {
        let (keeper, unit) = (&self.keeper, &self.keeper.unit);
        let allow = |action| keeper.allow(&self.rights, &action);
        match Request::decode(self.verb as u16, &self.body)? {
            // The session answers it before anything else begins.
            Request::Hello { .. } => {
                return Err(Refusal::new(Status::Malformed, "a hello is no job"));
            }
            Request::Present(signed) => keeper.present(signed, &self.holder, &self.rights)?,
            Request::Put(put) => self.put(put)?,
            Request::Sync {
                incarnation,
                segments,
            } => self.sync(incarnation, &segments)?,
            Request::Read { run, slot_bytes } => self.read(run, slot_bytes, body)?,
            Request::Free {
                segment,
                closed,
                slots,
            } => {
                let (_, _passage) = allow(Action::Free(segment, keeper.lineage_tag_of(segment)))?;
                unit.free(segment, &slots, closed)?;
            }
            Request::Replace { part, tags, data } => self.replace(part, tags, data, body)?,
            Request::Delete(segment) => {
                let (_, _passage) = allow(Action::Delete(segment, keeper.lineage_tag_of(segment)))?;
                unit.delete(segment)?;
            }
            Request::List {
                serials,
                after,
                limit,
            } => self.list(serials, after, limit, body)?,
            Request::Stat(segment) => {
                let _passage = keeper.allow_reading(&self.rights, segment)?;
                unit_wire::encode_segment_slots(&unit.segment_slots(segment)?, body);
            }
            Request::UnitStat => unit_wire::encode_unit_stat(&unit.stat()?, body),
            Request::Scrub(segment) => {
                let _passage = keeper.allow_reading(&self.rights, segment)?;
                unit_wire::encode_slots(&unit.scrub(segment)?, body);
            }
            Request::Probe => unit.probe()?,
            Request::ReadNote => body.extend(unit.read_note()?.iter().flatten()),
            Request::WriteNote(note) => self.write_note(note)?,
        }
        Ok(())
    }

    fn put(&self, put: Put<'_>) -> Result<(), Refusal> {
        let keeper = &self.keeper;
        let (right, _passage) = keeper.allow(&self.rights, &Action::Put(put.segment))?;
        let lineage_tag = self.lineage_tag_to_put(put.segment, put.lineage_tag, right)?;
        self.must_not_evict(right, put.data.len())?;
        keeper.unit.put(Put { lineage_tag, ..put })?;
        keeper.counters.written(put.data.len());
        Ok(())
    }

    fn sync(&self, incarnation: u64, segments: &[SegmentId]) -> Result<(), Refusal> {
        let keeper = &self.keeper;
        if incarnation != keeper.incarnation {
            return Err(Refusal::new(Status::Restarted, ""));
        }
        let mut passages = Vec::new();
        for segment in segments {
            passages.push(keeper.allow(&self.rights, &Action::Put(*segment))?.1);
        }
        keeper.unit.sync(segments)?;
        Ok(())
    }

    fn read(&self, run: SlotRun, slot_bytes: u32, body: &mut Vec<u8>) -> Result<(), Refusal> {
        let keeper = &self.keeper;
        let _passage = keeper.allow_reading(&self.rights, run.segment)?;
        let (tags, data) = room_for(body, run, slot_bytes);
        keeper.unit.read(Read {
            run,
            slot_bytes,
            tags,
            data,
        })?;
        keeper.counters.read(data.len());
        Ok(())
    }

    fn replace(
        &self,
        mut part: ReplacementPart,
        tags: &[Tag],
        data: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let keeper = &self.keeper;
        let allow = |action| keeper.allow(&self.rights, &action);
        let segment = part.segment;
        let (right, _passage) = match part.expected {
            Some(_) => allow(Action::Replace(segment, keeper.lineage_tag_of(segment)))?,
            None => {
                let (right, passage) = allow(Action::Put(segment))?;
                part.lineage_tag = self.lineage_tag_to_put(segment, part.lineage_tag, right)?;
                (right, passage)
            }
        };
        self.must_not_evict(right, data.len())?;
        if part.first == 0 {
            part.draft = keeper.drafts.fetch_add(1, Ordering::Relaxed);
        }
        keeper.unit.replace_part(&part, tags, data)?;
        keeper.counters.written(data.len());
        body.extend(part.draft.to_le_bytes());
        Ok(())
    }

    /// Lists up to `limit` of the segments with these serials and with ids above `after`, as far
    /// as the host has a right to them.
    fn list(
        &self,
        serials: Range<u64>,
        after: u64,
        limit: u32,
        body: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let keeper = &self.keeper;
        let (right, _passage) = keeper.allow(&self.rights, &Action::List(serials.clone()))?;
        let found = keeper.unit.list_serials(serials)?;
        let rest = &found[found.partition_point(|id| id.bits() <= after)..];
        let limit = (limit as usize).clamp(1, LIST_MAX);
        // Lazily, because the tag of a segment may have to be read from its file.
        let rest = rest.iter().copied();
        let listed: Vec<SegmentId> = match right {
            // A lease lists segments of its own lineage only.
            Right::Lease {
                lineage_tag: own, ..
            } => {
                let is_its = |id: &SegmentId| {
                    let lineage_tag = keeper.lineage_tag_of(*id);
                    [own, LineageTag::NONE, UNREADABLE].contains(&lineage_tag)
                };
                rest.filter(is_its).take(limit).collect()
            }
            // A repair lists segments of its own copysets only.
            Right::Repair(_) | Right::ReadOrFree => {
                let (rights, now) = (self.rights.lock(), keeper.now());
                let is_its = |id: &SegmentId| rights.repairs(id.copyset(), now);
                rest.filter(is_its).take(limit).collect()
            }
        };
        unit_wire::encode_segments(&listed, body);
        Ok(())
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), Refusal> {
        let (keeper, unit) = (&self.keeper, &self.keeper.unit);
        let (leases, counted) = {
            let (rights, now) = (self.rights.lock(), keeper.now());
            match rights.generation() >= keeper.generation() {
                true => (rights.leases(now), rights.counted(now)),
                false => (Vec::new(), 0),
            }
        };
        let mut leases = leases.into_iter();
        let newest = leases.find_map(|(fence, epoch)| keeper.fences.enter(fence, epoch));
        if newest.is_none() {
            let text = "notes are for hosts that have a lease";
            return Err(Refusal::new(Status::NotAllowed, text));
        }
        let _alone = keeper.noting.lock();
        let before = unit.read_note()?.as_ref().map_or(0, count_in);
        let count = count_in(note);
        if count > before.max(counted) {
            let text = "no controller has confirmed that count of leases";
            return Err(Refusal::new(Status::NotAllowed, text));
        }
        // Of two concurrent requests, the one with the smaller count may come last.
        if count > before || before == 0 {
            unit.write_note(note)?;
        }
        Ok(())
    }

    /// Refuses a put of a repair that would evict what is stored for undelete: the operator may
    /// want to restore that.
    fn must_not_evict(&self, right: Right, bytes: usize) -> Result<(), Refusal> {
        let unit = &self.keeper.unit;
        match right {
            Right::Repair(_) | Right::ReadOrFree if unit.would_evict(bytes as u64)? => {
                Err(UnitError::Full {
                    url: unit.url().to_owned(),
                }
                .into())
            }
            Right::Repair(_) | Right::ReadOrFree | Right::Lease { .. } => Ok(()),
        }
    }

    /// The lineage tag to put with, if the host may put into the segment under it.
    fn lineage_tag_to_put(
        &self,
        segment: SegmentId,
        requested: LineageTag,
        right: Right,
    ) -> Result<LineageTag, Refusal> {
        let not_allowed = |text: &str| Err(Refusal::new(Status::NotAllowed, text));
        let lineage_tag = match right {
            Right::Lease { lineage_tag, .. }
                if [LineageTag::NONE, lineage_tag].contains(&requested) =>
            {
                lineage_tag
            }
            Right::Lease { .. } => return not_allowed("the lease is for another lineage"),
            // A copied segment keeps its tag, which the repairing host has read.
            Right::Repair(_) | Right::ReadOrFree => requested,
        };
        match self.keeper.unit.lineage_tag_of(segment) {
            // A lease's own serials belong to it alone, but an earlier lease of
            // another lineage may have left them open.
            Ok(found) if found != lineage_tag => {
                not_allowed("the segment belongs to another lineage")
            }
            _ => Ok(lineage_tag),
        }
    }
}

/// The count of leases in a note of the form that hosts write; 0 in any other. Only hosts can
/// authenticate it.
fn count_in(note: &[u8; NOTE_BYTES]) -> u64 {
    let mut words = note.split(|byte| *byte == b' ');
    let count = words.next().filter(|title| *title == b"leases");
    let count = count.and_then(|_| std::str::from_utf8(words.next()?).ok()?.parse().ok());
    count.unwrap_or_default()
}
