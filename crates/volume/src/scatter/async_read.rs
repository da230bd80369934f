//! Reading sealed pieces without a thread that waits, from units that support it.

use std::sync::Arc;

use base::UnitId;
use cache::host::Tally;
use parking_lot::Mutex;
use unit::{ReadSlots, UnitError};

use super::piece::Piece;
use super::read::{Run, runs_of};
use super::store::Store;
use super::view::{Buffers, CacheView};
use crate::seal::Keyring;

/// Called with the content of all pieces, concatenated; `None` if any was not read.
type OnRead = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// Pieces that are being read.
struct Reading {
    /// The pieces that are read from units.
    pieces: Vec<Piece>,
    /// The index of each of them among all pieces.
    places: Vec<usize>,
    keyring: Arc<Keyring>,
    /// The cache that is offered what was read.
    view: Option<CacheView>,
    slot_bytes: u32,
    state: Mutex<State>,
}

struct State {
    /// Runs that have not been read yet.
    left: usize,
    /// The content of all pieces so far; empty before the first run.
    found: Vec<u8>,
    /// The cache's hits among them.
    tally: Tally,
    is_missing: bool,
    done: Option<OnRead>,
}

/// Starts to read and open `pieces`, which are all in slots of `slot_bytes`: each
/// from the cache, if that needs no waiting, or from its best copy that is not on a
/// unit to `exclude`. `done` is called on any thread; if a piece could not be read,
/// a read that waits may try the other copies.
///
/// Returns `false` if nothing was started, also because some pieces are in the cache's
/// file; then `done` is not called.
pub fn start_read_pieces(
    view: Option<&CacheView>,
    store: &Store,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: Vec<Piece>,
    exclude: &[UnitId],
    done: impl FnOnce(Option<Vec<u8>>) + Send + 'static,
) -> bool {
    let Some(at_hand) = AtHand::of(view, keyring, slot_bytes, &pieces) else {
        return false;
    };
    let AtHand {
        found,
        missing,
        tally,
    } = at_hand;
    if missing.is_empty() {
        count(view, &tally);
        done(Some(found));
        return true;
    }
    let pieces: Vec<Piece> = missing.iter().map(|index| pieces[*index]).collect();
    let table = store.table();
    let runs = runs_of(&table, &pieces);
    let reading = Arc::new(Reading {
        view: view.cloned(),
        state: Mutex::new(State {
            left: runs.len(),
            found,
            tally,
            is_missing: false,
            done: Some(Box::new(done)),
        }),
        keyring: Arc::clone(keyring),
        slot_bytes,
        pieces,
        places: missing,
    });
    let mut is_started = false;
    for run in runs {
        let Run { at, pieces } = run;
        let waiting = Arc::clone(&reading);
        let done = move |read: Result<ReadSlots<'_>, UnitError>| waiting.end(&pieces, read.ok());
        if store.start_read(&table, at, slot_bytes, exclude, Box::new(done)) {
            is_started = true;
        } else if is_started {
            reading.end(&[], None);
        } else {
            return false;
        }
    }
    is_started
}

impl Reading {
    /// A run has been read, or has failed.
    fn end(&self, run: &[usize], read: Option<ReadSlots<'_>>) {
        let opened = read.and_then(|slots| self.open(run, slots));
        let mut state = self.state.lock();
        match opened {
            Some(plain) => self.put(&mut state.found, run, plain),
            None => state.is_missing = true,
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let found = std::mem::take(&mut state.found);
        let found = (!state.is_missing).then_some(found);
        let (done, tally) = (state.done.take(), state.tally);
        drop(state);
        // If the read is repeated, its hits are counted then.
        if found.is_some() {
            count(self.view.as_ref(), &tally);
        }
        if let Some(done) = done {
            done(found);
        }
    }

    /// The content of a run. `None` if any of it is damaged: the read that waits
    /// reports it.
    fn open(&self, run: &[usize], slots: ReadSlots<'_>) -> Option<Vec<u8>> {
        let length = self.slot_bytes as usize;
        let mut plain = vec![0; run.len() * length];
        let mut slots = slots.iter(self.slot_bytes);
        for (index, plain) in run.iter().zip(plain.chunks_exact_mut(length)) {
            let (tag, sealed) = slots.next()?;
            let piece = self.pieces[*index];
            let Piece { entry, address } = piece;
            let sealer = self.keyring.of_epoch(entry.sequence.epoch());
            let opened = sealer.open(address, entry.sequence, tag, sealed, plain);
            opened.ok()?;
            if let Some(view) = &self.view {
                view.offer(&piece, tag, sealed);
            }
        }
        Some(plain)
    }

    /// Copies a run's content to its place.
    fn put(&self, found: &mut Vec<u8>, run: &[usize], plain: Vec<u8>) {
        let length = self.slot_bytes as usize;
        if found.is_empty() && run.len() == self.pieces.len() && run.is_sorted() {
            *found = plain;
            return;
        }
        // If it is empty, the cache had none of the pieces.
        found.resize(found.len().max(self.pieces.len() * length), 0);
        for (index, plain) in run.iter().zip(plain.chunks_exact(length)) {
            found[self.places[*index] * length..][..length].copy_from_slice(plain);
        }
    }
}

fn count(view: Option<&CacheView>, tally: &Tally) {
    if let Some(view) = view {
        view.count(tally);
    }
}

/// The pieces that the cache has without waiting.
struct AtHand {
    /// Their content, each at its place; empty if there are none.
    found: Vec<u8>,
    /// The indexes of the pieces that the cache does not have.
    missing: Vec<usize>,
    tally: Tally,
}

impl AtHand {
    /// `None` if the cache has to wait for some of them.
    fn of(
        view: Option<&CacheView>,
        keyring: &Keyring,
        slot_bytes: u32,
        pieces: &[Piece],
    ) -> Option<Self> {
        let all = || Self {
            found: Vec::new(),
            missing: (0..pieces.len()).collect(),
            tally: Tally::default(),
        };
        let Some(view) = view else {
            return Some(all());
        };
        if !pieces.iter().any(|piece| view.may_have(piece)) {
            return Some(all());
        }
        let length = slot_bytes as usize;
        let (mut found, mut sealed) = (vec![0; pieces.len() * length], vec![0; length]);
        let (mut missing, mut tally) = (Vec::new(), Tally::default());
        for (index, piece) in pieces.iter().enumerate() {
            let plain = &mut found[index * length..][..length];
            let buffers = Buffers {
                sealed: &mut sealed,
                plain,
            };
            if !view.read_now(keyring, piece, buffers, &mut tally) {
                if view.is_in_file(piece) {
                    return None;
                }
                missing.push(index);
            }
        }
        Some(Self {
            found,
            missing,
            tally,
        })
    }
}
