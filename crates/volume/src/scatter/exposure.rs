//! [`exposure_of`]: what compromised units alone reveal of pieces (docs/explanation, "Audit").
//!
//! ```text
//!  copies   each compromised member of the piece's copyset is read
//!  k+m      the member with the piece itself, if it is compromised; otherwise the piece is
//!           recovered from the compromised members of its row, if they are enough
//! ```
//!
//! Every byte that is judged was just read from a compromised unit, never from another unit or
//! a cache. A unit that does not answer is an error: what is there is unknown.

use std::sync::Arc;

use base::{SegmentId, Slot, UnitId};
use unit::{Read, SlotRun, Tag, Unit as _, UnitError};
use world::parallel;

use super::erasure::{Recovered, RowReader};
use super::piece::{Piece, open};
use super::read::runs_of;
use super::store::Store;
use super::table::{Member, Table};
use crate::seal::Keyring;

/// Runs read in parallel.
const PARALLEL: usize = 16;

/// What units reveal of a piece; of several units, the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exposure {
    /// They neither have it, nor can it be recovered from what they have.
    Nothing,
    /// They have something else at its location: it is damaged or falsified.
    Other,
    /// They have it sealed: its bytes are not its content.
    Sealed,
    /// They have its content in the clear.
    Content,
}

/// A piece and its content, by which compromised units are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPiece {
    /// The piece.
    pub piece: Piece,
    /// Its content; `None` if it is damaged on all units.
    pub content: Option<Vec<u8>>,
}

/// Why compromised units cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompromisedError {
    /// This host does not know the unit.
    #[error("unit {0} is not known to this host")]
    Unknown(UnitId),
    /// The unit does not answer.
    #[error("unit {unit} cannot be audited: {reason}")]
    Unanswered {
        /// The unit.
        unit: UnitId,
        /// Its error.
        reason: String,
    },
}

/// What `compromised` units alone reveal of these pieces, which are all in slots of
/// `slot_bytes`; in their order.
///
/// # Errors
/// [`CompromisedError`].
pub fn exposure_of(
    compromised: &[UnitId],
    store: &Arc<Store>,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: Vec<KnownPiece>,
) -> Result<Vec<Exposure>, CompromisedError> {
    let table = store.table();
    let unknown = compromised
        .iter()
        .find(|unit| !table.units().iter().any(|known| known.id == **unit));
    if let Some(unit) = unknown {
        return Err(CompromisedError::Unknown(*unit));
    }
    let locations: Vec<Piece> = pieces.iter().map(|known| known.piece).collect();
    let runs = runs_of(&table, &locations);
    let pieces = Arc::new(pieces);
    let tasks = runs.iter().map(|run| {
        let (compromised, store) = (compromised.to_vec(), Arc::clone(store));
        let (keyring, pieces) = (Arc::clone(keyring), Arc::clone(&pieces));
        let (at, own) = (run.at, run.pieces.clone());
        let task = move || {
            let wanted: Vec<&KnownPiece> = own.iter().map(|index| &pieces[*index]).collect();
            let table = store.table();
            let judge = RunJudge::new(&keyring, slot_bytes, at.slots, wanted);
            judge.of_run(&store, &table, &compromised, at.place)
        };
        Box::new(task) as Box<dyn FnOnce() -> Result<Vec<Exposure>, CompromisedError> + Send>
    });
    let judged = parallel(&*store.pool, PARALLEL, tasks.collect());
    let mut all = vec![Exposure::Nothing; pieces.len()];
    for (run, judged) in runs.iter().zip(judged) {
        for (index, held) in run.pieces.iter().zip(judged?) {
            all[*index] = held;
        }
    }
    Ok(all)
}

/// The compromised members of a segment's copyset.
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

/// Consecutive slots, and what has been found of them.
struct RunJudge<'a> {
    keyring: &'a Keyring,
    slot_bytes: u32,
    /// The slots, as members number them.
    slots: SlotRun,
    wanted: Vec<&'a KnownPiece>,
    held: Vec<Exposure>,
}

impl<'a> RunJudge<'a> {
    fn new(
        keyring: &'a Keyring,
        slot_bytes: u32,
        slots: SlotRun,
        wanted: Vec<&'a KnownPiece>,
    ) -> Self {
        Self {
            keyring,
            slot_bytes,
            slots,
            held: vec![Exposure::Nothing; wanted.len()],
            wanted,
        }
    }

    fn of_run(
        mut self,
        store: &Store,
        table: &Table,
        compromised: &[UnitId],
        place: Option<u8>,
    ) -> Result<Vec<Exposure>, CompromisedError> {
        let segment = self.slots.segment;
        let members = compromised_of(table, segment, compromised);
        let at_home = |member: &&&Member| place.is_none_or(|place| member.place == place);
        for member in members.iter().filter(at_home) {
            self.read(member)?;
        }
        let Some(erasure) = table.layout(segment.copyset()).erasure() else {
            return Ok(self.held);
        };
        // Without parity, slots reveal nothing of the others of their row.
        let has_parity = members.iter().any(|member| member.place >= erasure.data());
        if !has_parity || self.held.iter().all(|held| *held >= Exposure::Sealed) {
            return Ok(self.held);
        }
        let pool = &*store.pool;
        let rows = RowReader::new(pool, members, erasure, segment, self.slot_bytes);
        let mut rows = rows.supposing_padding();
        for index in 0..self.wanted.len() {
            if self.held[index] >= Exposure::Sealed {
                continue;
            }
            let piece = self.wanted[index].piece;
            let recovered = rows.recover(piece.entry.location.slot(), |tag, found| {
                let held = self.judge(index, tag, found);
                (held >= Exposure::Sealed).then_some(held)
            });
            if let Some((unit, reason)) = rows.unanswered() {
                let reason = reason.to_owned();
                return Err(CompromisedError::Unanswered { unit, reason });
            }
            if let Recovered::Open(held) = recovered {
                self.held[index] = held;
            }
        }
        Ok(self.held)
    }

    /// Reads the whole run; if that fails, slot by slot.
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

    /// Reads some slots of the run; `false` if they must be read one by one.
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
            Err(UnitError::NoSegment { .. } | UnitError::NoSlot { .. }) => Exposure::Nothing,
            Err(_) => Exposure::Other,
        };
        if which.len() > 1 {
            return Ok(false);
        }
        self.held[which.start] = self.held[which.start].max(found);
        Ok(true)
    }

    /// Judges the bytes of a slot. Whether they are the content is found by comparing them,
    /// not from how the piece was sealed.
    fn judge(&self, index: usize, tag: &Tag, found: &[u8]) -> Exposure {
        let KnownPiece { piece, content } = self.wanted[index];
        match content {
            Some(content) if content == found => Exposure::Content,
            Some(_) if open(self.keyring, piece, tag, found).is_ok() => Exposure::Sealed,
            _ => Exposure::Other,
        }
    }
}
