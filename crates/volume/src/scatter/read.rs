//! Reading sealed pieces from whichever copy opens.

use std::sync::Arc;

use base::{Location, Slot, UnitId};
use unit::{SlotRun, Tag, Unit, UnitError};
use world::parallel;

use super::store::{Member, Store};
use crate::map::Entry;
use crate::seal::{Address, Keyring};

/// Runs read at once.
const PARALLEL: usize = 16;
/// Slots read at once: 1 MiB of 4 KiB slots.
const RUN_SLOTS_MAX: u16 = 256;

/// A sealed piece that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it lies, and its sequence.
    pub entry: Entry,
    /// What it was sealed as.
    pub address: Address,
}

/// Why a piece cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// Copies were read, and none opens.
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
        /// What the last unit said.
        reason: String,
    },
}

/// Reads and opens `pieces`, which all lie in slots of `slot_bytes`, in
/// parallel; from units to `avoid` only what no other unit has. Results come in
/// order.
pub fn read_pieces(
    store: &Arc<Store>,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: &[Piece],
    avoid: &[UnitId],
) -> Vec<Result<Vec<u8>, ReadError>> {
    let runs = runs_of(pieces);
    let tasks = runs.iter().map(|run| {
        let wanted: Vec<Piece> = run.iter().map(|index| pieces[*index]).collect();
        let (store, keyring) = (Arc::clone(store), Arc::clone(keyring));
        let avoid = avoid.to_vec();
        let task = move || read_run(&store, &keyring, slot_bytes, &wanted, &avoid);
        Box::new(task) as Box<dyn FnOnce() -> Vec<Result<Vec<u8>, ReadError>> + Send>
    });
    let results = parallel(&*store.pool, PARALLEL, tasks.collect());
    let mut ordered: Vec<Option<_>> = pieces.iter().map(|_| None).collect();
    for (run, results) in runs.iter().zip(results) {
        for (index, result) in run.iter().zip(results) {
            ordered[*index] = Some(result);
        }
    }
    ordered
        .into_iter()
        .map(|result| result.expect("every piece is in a run"))
        .collect()
}

/// The pieces as runs of slots, each in the order of its slots.
pub(super) fn runs_of(pieces: &[Piece]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|index| pieces[*index].entry.location);
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let location = pieces[index].entry.location;
        match runs.last_mut() {
            Some(run) if continues(run, pieces, location) => run.push(index),
            _ => runs.push(vec![index]),
        }
    }
    runs
}

fn continues(run: &[usize], pieces: &[Piece], next: Location) -> bool {
    let last = pieces[run[run.len() - 1]].entry.location;
    last.segment() == next.segment()
        && last.slot().0.checked_add(1) == Some(next.slot().0)
        && run.len() < usize::from(RUN_SLOTS_MAX)
}

/// Reads consecutive slots: from each copy in turn what the copies before it
/// did not give.
fn read_run(
    store: &Store,
    keyring: &Keyring,
    slot_bytes: u32,
    wanted: &[Piece],
    avoid: &[UnitId],
) -> Vec<Result<Vec<u8>, ReadError>> {
    let table = store.table();
    let segment = wanted[0].entry.location.segment();
    let members = table.best_first(segment, avoid);
    let mut found: Vec<Option<Vec<u8>>> = vec![None; wanted.len()];
    let mut damaged = vec![false; wanted.len()];
    let mut reason = "its copyset has no units".to_owned();
    for member in members {
        if found.iter().all(Option::is_some) {
            break;
        }
        let mut attempt = Attempt {
            member,
            keyring,
            slot_bytes,
            wanted,
            reason: None,
        };
        attempt.read(&mut found, &mut damaged);
        reason = attempt.reason.unwrap_or(reason);
    }
    let results = found.into_iter().zip(damaged).zip(wanted);
    results
        .map(|((found, damaged), piece)| match found {
            Some(plain) => Ok(plain),
            None if damaged => Err(ReadError::Damaged { piece: *piece }),
            None => Err(ReadError::Unavailable {
                piece: *piece,
                reason: reason.clone(),
            }),
        })
        .collect()
}

struct Attempt<'a> {
    member: &'a Member,
    keyring: &'a Keyring,
    slot_bytes: u32,
    wanted: &'a [Piece],
    reason: Option<String>,
}

impl Attempt<'_> {
    /// Reads the whole run; if the unit cannot give it as a whole, slot by
    /// slot.
    fn read(&mut self, found: &mut [Option<Vec<u8>>], damaged: &mut [bool]) {
        let length = self.slot_bytes as usize;
        let count = self.wanted.len();
        let mut data = vec![0; count * length];
        let mut tags: Vec<Tag> = vec![[0; 16]; count];
        let first = self.wanted[0].entry.location.slot();
        if self.read_slots(first, &mut tags, &mut data) {
            for index in 0..count {
                let sealed = &data[index * length..][..length];
                self.open(index, &tags[index], sealed, found, damaged);
            }
        } else if count > 1 {
            for index in (0..count)
                .filter(|index| found[*index].is_none())
                .collect::<Vec<_>>()
            {
                let slot = self.wanted[index].entry.location.slot();
                if self.read_slots(slot, &mut tags[..1], &mut data[..length]) {
                    self.open(index, &tags[0], &data[..length], found, damaged);
                }
            }
        }
    }

    fn read_slots(&mut self, first: Slot, tags: &mut [Tag], data: &mut [u8]) -> bool {
        let segment = self.wanted[0].entry.location.segment();
        let count = u16::try_from(tags.len()).expect("a run has at most 256 slots");
        let run = SlotRun {
            segment,
            first,
            count,
        };
        match self.member.unit.read(run, self.slot_bytes, tags, data) {
            Ok(()) => true,
            Err(error) => {
                self.reason = Some(describe(&error));
                false
            }
        }
    }

    fn open(
        &self,
        index: usize,
        tag: &Tag,
        sealed: &[u8],
        found: &mut [Option<Vec<u8>>],
        damaged: &mut [bool],
    ) {
        if found[index].is_some() {
            return;
        }
        let Piece { entry, address } = self.wanted[index];
        let mut plain = vec![0; sealed.len()];
        let sealer = self.keyring.of_epoch(entry.sequence.epoch());
        match sealer.open(address, entry.sequence, tag, sealed, &mut plain) {
            Ok(()) => found[index] = Some(plain),
            Err(mismatch) => {
                damaged[index] = true;
                tracing::warn!(
                    location = ?entry.location, unit = %self.member.id, %mismatch,
                    "a damaged copy was passed over"
                );
            }
        }
    }
}

fn describe(error: &UnitError) -> String {
    use std::error::Error as _;
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
