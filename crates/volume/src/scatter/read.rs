//! Reading sealed pieces from whichever copy opens.

use std::sync::Arc;

use base::{SegmentId, Slot, UnitId};
use cache::store::HANG_TIMEOUT;
use unit::{Read, SlotRun, Tag, Unit, UnitError};
use world::{parallel, parallel_with_timeout};

use super::erasure::{Recovered, RowReader};
use super::layout::MemberSlot;
use super::piece::{Piece, open};
use super::store::Store;
use super::table::{Member, MemberRun, Table};
use super::view::CacheView;
use crate::seal::Keyring;

/// Runs read in parallel.
const PARALLEL: usize = 16;
/// Slots in one read: 1 MiB of 4 KiB slots.
const RUN_SLOTS_MAX: u16 = 256;

/// Pieces that one task reads from the cache one after another.
const CACHED_AT_ONCE: usize = 8;

/// Why a piece cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// Copies were read, none opens, and no other copy will become readable.
    #[error("every copy of {location:?} that could be read is damaged (expected sequence {expected:?})", expected = piece.entry.sequence, location = piece.entry.location)]
    Damaged {
        /// The piece.
        piece: Piece,
    },
    /// No copy could be read.
    #[error("no copy of {location:?} can be read: {reason}", location = piece.entry.location)]
    Unavailable {
        /// The piece.
        piece: Piece,
        /// The last unit's error.
        reason: String,
        /// Whether a unit that may have a copy is unavailable or fails for now.
        is_transient: bool,
    },
}

/// Reads and opens `pieces`, which are all in slots of `slot_bytes`, in parallel;
/// from units to `exclude` only what no other unit has. Results are in order.
pub fn read_pieces(
    store: &Arc<Store>,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: &[Piece],
    exclude: &[UnitId],
) -> Vec<Result<Vec<u8>, ReadError>> {
    read_pieces_through(None, store, keyring, slot_bytes, pieces, exclude)
}

/// As [`read_pieces`], through a cache: pieces are looked up there first, and offered to it
/// when read.
pub fn read_pieces_through(
    view: Option<&CacheView>,
    store: &Arc<Store>,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: &[Piece],
    exclude: &[UnitId],
) -> Vec<Result<Vec<u8>, ReadError>> {
    let mut ordered = cached(view, keyring, slot_bytes, pieces);
    let left: Vec<usize> = (0..pieces.len())
        .filter(|index| ordered[*index].is_none())
        .collect();
    let missing: Vec<Piece> = left.iter().map(|index| pieces[*index]).collect();
    let runs = runs_of(&store.table(), &missing);
    let tasks = runs.iter().map(|run| {
        let wanted: Vec<Piece> = run.pieces.iter().map(|index| missing[*index]).collect();
        let read = RunRead {
            store: Arc::clone(store),
            keyring: Arc::clone(keyring),
            view: view.cloned(),
            slot_bytes,
            run: run.at,
            wanted,
            exclude: exclude.to_vec(),
        };
        Box::new(move || read.run()) as Box<dyn FnOnce() -> Vec<Result<Vec<u8>, ReadError>> + Send>
    });
    let results = parallel(&*store.pool, PARALLEL, tasks.collect());
    for (run, results) in runs.iter().zip(results) {
        for (index, result) in run.pieces.iter().zip(results) {
            ordered[left[*index]] = Some(result);
        }
    }
    ordered
        .into_iter()
        .map(|result| result.expect("every piece is in a run"))
        .collect()
}

/// The pieces that the cache has, in order.
fn cached(
    view: Option<&CacheView>,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: &[Piece],
) -> Vec<Option<Result<Vec<u8>, ReadError>>> {
    let is_hit = |view: &&CacheView| pieces.iter().any(|piece| view.may_have(piece));
    let Some(view) = view.filter(is_hit) else {
        return pieces.iter().map(|_| None).collect();
    };
    let Some(pool) = view.pool() else {
        let read = |piece| view.read(keyring, slot_bytes, piece).map(Ok);
        return pieces.iter().map(read).collect();
    };
    let tasks = pieces.chunks(CACHED_AT_ONCE).map(|pieces| {
        let (view, keyring, pieces) = (view.clone(), Arc::clone(keyring), pieces.to_vec());
        let read = move || {
            let pieces = pieces.iter();
            let read = pieces.map(|piece| view.read(&keyring, slot_bytes, piece));
            read.map(|found| found.map(Ok)).collect::<Vec<_>>()
        };
        Box::new(read) as Box<dyn FnOnce() -> Vec<_> + Send>
    });
    // If the cache's file does not respond, the units have the pieces as well.
    let read = parallel_with_timeout(&**pool, PARALLEL, tasks.collect(), HANG_TIMEOUT);
    let chunks = read.into_iter().zip(pieces.chunks(CACHED_AT_ONCE));
    chunks
        .flat_map(|(read, pieces)| match read {
            Some(read) => read,
            None => pieces.iter().map(|_| None).collect(),
        })
        .collect()
}

/// Pieces in consecutive slots.
pub(super) struct Run {
    /// The slots.
    pub at: MemberRun,
    /// The pieces' indexes, in the order of their slots.
    pub pieces: Vec<usize>,
}

/// Groups pieces into runs of slots.
pub(super) fn runs_of(table: &Table, pieces: &[Piece]) -> Vec<Run> {
    let home = |index: usize| {
        let location = pieces[index].entry.location;
        let layout = table.layout(location.segment().copyset());
        let MemberSlot {
            member_index: place,
            slot,
        } = layout.home(location.slot());
        (location.segment(), place, slot)
    };
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|index| home(*index));
    let mut runs: Vec<Run> = Vec::new();
    for index in order {
        let (segment, place, slot) = home(index);
        match runs.last_mut() {
            Some(run) if run.continues(segment, place, slot) => {
                run.at.slots.count += 1;
                run.pieces.push(index);
            }
            _ => runs.push(Run {
                at: MemberRun {
                    place,
                    slots: SlotRun {
                        segment,
                        first: slot,
                        count: 1,
                    },
                },
                pieces: vec![index],
            }),
        }
    }
    runs
}

impl Run {
    fn continues(&self, segment: SegmentId, place: Option<u8>, next: Slot) -> bool {
        let SlotRun {
            segment: own,
            first,
            count,
        } = self.at.slots;
        (own, self.at.place) == (segment, place)
            && first.0.checked_add(count) == Some(next.0)
            && count < RUN_SLOTS_MAX
    }
}

/// The read of one run, by a thread that may wait.
struct RunRead {
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    /// The cache that is offered what was read.
    view: Option<CacheView>,
    slot_bytes: u32,
    run: MemberRun,
    /// The pieces in these slots, in order.
    wanted: Vec<Piece>,
    exclude: Vec<UnitId>,
}

impl RunRead {
    /// Reads the slots: from each copy in turn those that the copies before it did not
    /// return. With parity, the rest is recovered from the other slots of its row, and
    /// excluded members are read last.
    fn run(&self) -> Vec<Result<Vec<u8>, ReadError>> {
        let table = self.store.table();
        let MemberRun { place, slots } = self.run;
        let (segment, copyset) = (slots.segment, slots.segment.copyset());
        let mut reading = Reading {
            keyring: &self.keyring,
            view: self.view.as_ref(),
            slot_bytes: self.slot_bytes,
            slots,
            wanted: &self.wanted,
            found: vec![None; self.wanted.len()],
            damaged: vec![false; self.wanted.len()],
            reason: "its copyset has no units".to_owned(),
            is_transient: !table.has_all(copyset),
        };
        let members = match place {
            None => table.best_first(segment, &self.exclude),
            Some(place) => table.members_at(copyset, place),
        };
        let Some(erasure) = table.layout(copyset).erasure() else {
            reading.read_members(&members);
            return reading.results();
        };
        let (last, first): (Vec<&Member>, Vec<&Member>) = members
            .into_iter()
            .partition(|member| self.exclude.contains(&member.id));
        reading.read_members(&first);
        if !reading.is_done() {
            let (members, pool) = (table.members(copyset), &*self.store.pool);
            let rows = RowReader::new(pool, members, erasure, segment, self.slot_bytes);
            reading.recover(rows.excluding(&self.exclude));
        }
        reading.read_members(&last);
        reading.results()
    }
}

/// Consecutive slots, and what has been read of them.
struct Reading<'a> {
    keyring: &'a Keyring,
    /// The cache that is offered what was read.
    view: Option<&'a CacheView>,
    slot_bytes: u32,
    /// The slots, as members number them.
    slots: SlotRun,
    wanted: &'a [Piece],
    found: Vec<Option<Vec<u8>>>,
    damaged: Vec<bool>,
    /// The error of the unit that was queried last.
    reason: String,
    /// Whether any unit failed for a reason that may pass.
    is_transient: bool,
}

impl Reading<'_> {
    fn is_done(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }

    /// Reads from each of these members in turn what those before it did not give.
    fn read_members(&mut self, members: &[&Member]) {
        for member in members {
            if self.is_done() {
                break;
            }
            self.read_member(member);
        }
    }

    /// Recovers what is missing from other slots of its row.
    fn recover(&mut self, mut rows: RowReader<'_>) {
        for index in 0..self.wanted.len() {
            if self.found[index].is_some() {
                continue;
            }
            let (keyring, view, piece) = (self.keyring, self.view, &self.wanted[index]);
            let open = |tag: &Tag, sealed: &[u8]| {
                let plain = open(keyring, piece, tag, sealed).ok()?;
                if let Some(view) = view {
                    view.offer(piece, tag, sealed);
                }
                Some(plain)
            };
            match rows.recover(piece.entry.location.slot(), open) {
                Recovered::Open(plain) => self.found[index] = Some(plain),
                Recovered::Damaged { is_transient } => {
                    self.damaged[index] = true;
                    self.is_transient |= is_transient;
                }
                Recovered::Unavailable {
                    reason,
                    is_transient,
                } => {
                    self.reason = reason;
                    self.is_transient |= is_transient;
                }
            }
        }
    }

    /// Reads the whole run; if that fails, slot by slot, unless the unit itself is
    /// failing: one that does not respond would time out for each slot.
    fn read_member(&mut self, member: &Member) {
        let length = self.slot_bytes as usize;
        let count = self.wanted.len();
        let mut data = vec![0; count * length];
        let mut tags: Vec<Tag> = vec![[0; 16]; count];
        match self.read_slots(member, 0, &mut tags, &mut data) {
            Ok(()) => {
                for index in 0..count {
                    let sealed = &data[index * length..][..length];
                    self.open(member, index, &tags[index], sealed);
                }
            }
            Err(error) if count == 1 || error.affects_whole_unit() => {}
            Err(_) => self.read_slot_by_slot(member, &mut tags[..1], &mut data[..length]),
        }
    }

    /// Reads slot by slot what is missing; `tags` and `data` are buffers.
    fn read_slot_by_slot(&mut self, member: &Member, tags: &mut [Tag], data: &mut [u8]) {
        for index in 0..self.wanted.len() {
            if self.found[index].is_some() {
                continue;
            }
            match self.read_slots(member, index, tags, data) {
                Ok(()) => self.open(member, index, &tags[0], data),
                Err(error) if error.affects_whole_unit() => return,
                Err(_) => {}
            }
        }
    }

    /// Reads slots of the run, from its slot `index` on.
    fn read_slots(
        &mut self,
        member: &Member,
        index: usize,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        let count = u16::try_from(tags.len()).expect("a run has at most 256 slots");
        let run = SlotRun {
            first: Slot(self.slots.first.0 + index as u16),
            count,
            ..self.slots
        };
        let read = member.unit.read(Read {
            run,
            slot_bytes: self.slot_bytes,
            tags,
            data,
        });
        if let Err(error) = &read {
            self.reason = describe(error);
            self.is_transient |= error.is_transient();
        }
        read
    }

    fn open(&mut self, member: &Member, index: usize, tag: &Tag, sealed: &[u8]) {
        if self.found[index].is_some() {
            return;
        }
        let piece = &self.wanted[index];
        match open(self.keyring, piece, tag, sealed) {
            Ok(plain) => {
                if let Some(view) = self.view {
                    view.offer(piece, tag, sealed);
                }
                self.found[index] = Some(plain);
            }
            Err(mismatch) => {
                self.damaged[index] = true;
                tracing::warn!(
                    location = ?piece.entry.location, unit = %member.id, %mismatch,
                    "volume skipped damaged copy"
                );
            }
        }
    }

    fn results(self) -> Vec<Result<Vec<u8>, ReadError>> {
        let results = self.found.into_iter().zip(self.damaged).zip(self.wanted);
        results
            .map(|((found, damaged), piece)| match found {
                Some(plain) => Ok(plain),
                None if damaged && !self.is_transient => Err(ReadError::Damaged { piece: *piece }),
                None => Err(ReadError::Unavailable {
                    piece: *piece,
                    reason: self.reason.clone(),
                    is_transient: self.is_transient,
                }),
            })
            .collect()
    }
}

fn describe(error: &UnitError) -> String {
    use std::error::Error as _;
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
