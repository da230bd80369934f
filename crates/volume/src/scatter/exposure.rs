//! What some units alone have of pieces: for whoever wants to know what a break-in leaks
//! (docs/models.md, "Audit").
//!
//! ```text
//!  copies   each compromised member of the piece's copyset is read
//!  k+m      the member with the piece itself, if it is compromised; or else the piece is worked
//!           out of what the compromised members have of its row, as far as that goes
//! ```
//!
//! Every byte that is judged was read from a compromised unit just now, and from no other and no
//! cache. A unit that does not answer is an error: nobody knows what lies there.

use std::sync::Arc;

use base::{SegmentId, Slot, UnitId};
use unit::{Read, SlotRun, Tag, Unit as _, UnitError};
use world::parallel;

use super::erasure::{Recovered, RowReader};
use super::read::{Piece, open, runs_of};
use super::store::{Member, Store, Table};
use crate::seal::Keyring;

/// Runs read at once.
const PARALLEL: usize = 16;

/// What units have of a piece; of several, the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// None has it, nor is it to be worked out of what they have.
    Nothing,
    /// What lies in its place is something else: it was damaged, or the unit lies.
    Other,
    /// It is there, and its bytes are not its content.
    Sealed,
    /// Its bytes are its content.
    Content,
}

/// A piece, and what it says; none of one that is damaged wherever it lies.
pub type Truth = (Piece, Option<Vec<u8>>);

/// What is compromised cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompromisedError {
    /// Nobody knows where it is.
    #[error("unit {0} is not known to this host")]
    Unknown(UnitId),
    /// It does not answer.
    #[error("what lies on unit {unit} is not to be known: {reason}")]
    Unanswered {
        /// Which.
        unit: UnitId,
        /// What it said.
        reason: String,
    },
}

/// What `compromised` units alone have of these pieces, which all lie in slots of `slot_bytes`;
/// in their order.
///
/// # Errors
/// [`CompromisedError`].
pub fn held_by(
    compromised: &[UnitId],
    store: &Arc<Store>,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: Vec<Truth>,
) -> Result<Vec<Held>, CompromisedError> {
    let table = store.table();
    let unknown = compromised
        .iter()
        .find(|unit| !table.units().iter().any(|known| known.id == **unit));
    if let Some(unit) = unknown {
        return Err(CompromisedError::Unknown(*unit));
    }
    let places: Vec<Piece> = pieces.iter().map(|(piece, _)| *piece).collect();
    let runs = runs_of(&table, &places);
    let pieces = Arc::new(pieces);
    let tasks = runs.iter().map(|run| {
        let (compromised, store) = (compromised.to_vec(), Arc::clone(store));
        let (keyring, pieces) = (Arc::clone(keyring), Arc::clone(&pieces));
        let (place, slots, own) = (run.place, run.slots, run.pieces.clone());
        let task = move || {
            let wanted: Vec<&Truth> = own.iter().map(|index| &pieces[*index]).collect();
            let table = store.table();
            Judging::new(&keyring, slot_bytes, slots, wanted).of_run(
                &store,
                &table,
                &compromised,
                place,
            )
        };
        Box::new(task) as Box<dyn FnOnce() -> Result<Vec<Held>, CompromisedError> + Send>
    });
    let judged = parallel(&*store.pool, PARALLEL, tasks.collect());
    let mut all = vec![Held::Nothing; pieces.len()];
    for (run, judged) in runs.iter().zip(judged) {
        for (index, held) in run.pieces.iter().zip(judged?) {
            all[*index] = held;
        }
    }
    Ok(all)
}

/// The members of a segment's copyset that are compromised.
fn compromised_of<'a>(
    table: &'a Table,
    segment: SegmentId,
    compromised: &[UnitId],
) -> Vec<&'a Member> {
    let members = table.members(segment.copyset()).iter();
    members
        .filter(|member| compromised.contains(&member.id))
        .collect()
}

/// Consecutive slots, and what was found of them.
struct Judging<'a> {
    keyring: &'a Keyring,
    slot_bytes: u32,
    /// Where they lie, as members number slots.
    slots: SlotRun,
    wanted: Vec<&'a Truth>,
    held: Vec<Held>,
}

impl<'a> Judging<'a> {
    fn new(keyring: &'a Keyring, slot_bytes: u32, slots: SlotRun, wanted: Vec<&'a Truth>) -> Self {
        Self {
            keyring,
            slot_bytes,
            slots,
            held: vec![Held::Nothing; wanted.len()],
            wanted,
        }
    }

    fn of_run(
        mut self,
        store: &Store,
        table: &Table,
        compromised: &[UnitId],
        place: Option<u8>,
    ) -> Result<Vec<Held>, CompromisedError> {
        let segment = self.slots.segment;
        let members = compromised_of(table, segment, compromised);
        let at_home = |member: &&&Member| place.is_none_or(|place| member.place == place);
        for member in members.iter().filter(at_home) {
            self.read(member)?;
        }
        let Some(erasure) = table.layout(segment.copyset()).erasure() else {
            return Ok(self.held);
        };
        // Slots alone say nothing of others of their row.
        let has_parity = members.iter().any(|one| one.place >= erasure.data());
        if !has_parity || self.held.iter().all(|held| *held >= Held::Sealed) {
            return Ok(self.held);
        }
        let pool = &*store.pool;
        let rows = RowReader::new(pool, members, erasure, segment, self.slot_bytes);
        let mut rows = rows.supposing_padding();
        for index in 0..self.wanted.len() {
            if self.held[index] >= Held::Sealed {
                continue;
            }
            let (piece, _) = self.wanted[index];
            let worked_out = rows.recover(piece.entry.location.slot(), |tag, found| {
                let held = self.judge(index, tag, found);
                (held >= Held::Sealed).then_some(held)
            });
            if let Some((unit, reason)) = rows.unanswered() {
                let reason = reason.to_owned();
                return Err(CompromisedError::Unanswered { unit, reason });
            }
            if let Recovered::Open(held) = worked_out {
                self.held[index] = held;
            }
        }
        Ok(self.held)
    }

    /// Reads the whole run; if the unit does not give it as a whole, slot by slot.
    fn read(&mut self, member: &Member) -> Result<(), CompromisedError> {
        let count = self.wanted.len();
        if self.read_some(member, 0..count)? {
            return Ok(());
        }
        for index in 0..count {
            self.read_some(member, index..index + 1)?;
        }
        Ok(())
    }

    /// Reads some slots of the run; `false` if they are to be read one by one.
    fn read_some(
        &mut self,
        member: &Member,
        which: std::ops::Range<usize>,
    ) -> Result<bool, CompromisedError> {
        let length = self.slot_bytes as usize;
        let count = u16::try_from(which.len()).expect("a run has at most 256 slots");
        let run = SlotRun {
            first: Slot(self.slots.first.0 + which.start as u16),
            count,
            ..self.slots
        };
        let mut data = vec![0; which.len() * length];
        let mut tags: Vec<Tag> = vec![[0; 16]; which.len()];
        let found = match member.unit.read(Read {
            run,
            slot_bytes: self.slot_bytes,
            tags: &mut tags,
            data: &mut data,
        }) {
            Ok(()) => {
                let found = tags.iter().zip(data.chunks_exact(length));
                for (index, (tag, found)) in which.zip(found) {
                    self.held[index] = self.held[index].max(self.judge(index, tag, found));
                }
                return Ok(true);
            }
            Err(error) if error.is_transient() || error.affects_whole_unit() => {
                return Err(CompromisedError::Unanswered {
                    unit: member.id,
                    reason: base::with_causes(&error),
                });
            }
            Err(UnitError::NoSegment { .. } | UnitError::NoSlot { .. }) => Held::Nothing,
            Err(_) => Held::Other,
        };
        if which.len() > 1 {
            return Ok(false);
        }
        self.held[which.start] = self.held[which.start].max(found);
        Ok(true)
    }

    /// What the bytes of a slot are. That they are the content is seen by comparing them, and
    /// not by what is known of how it was sealed.
    fn judge(&self, index: usize, tag: &Tag, found: &[u8]) -> Held {
        let (piece, content) = self.wanted[index];
        match content {
            Some(content) if content == found => Held::Content,
            Some(_) if open(self.keyring, piece, tag, found).is_ok() => Held::Sealed,
            _ => Held::Other,
        }
    }
}
