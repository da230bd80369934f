//! Reading sealed pieces without a thread that waits for them, from units that can
//! do that.

use std::sync::{Arc, Mutex, PoisonError};

use base::UnitId;
use unit::{ReadSlots, UnitError};

use super::read::{Piece, Run, runs_of};
use super::store::Store;
use crate::seal::Keyring;

/// Is told what was found, in the order of the pieces.
type Found = Box<dyn FnOnce(Vec<Option<Vec<u8>>>) + Send>;

/// Pieces that are being read.
struct Reading {
    pieces: Vec<Piece>,
    keyring: Arc<Keyring>,
    slot_bytes: u32,
    state: Mutex<State>,
}

struct State {
    /// Runs that have not ended.
    left: usize,
    found: Vec<Option<Vec<u8>>>,
    done: Option<Found>,
}

/// Begins to read and open `pieces`, which all lie in slots of `slot_bytes`, each
/// from the copy whose unit is said to be best. `done` is told, on any thread: of
/// those that it does not get, other copies may be asked by the reading that
/// waits. None is read from the units to `avoid`. `false` if nothing was begun, and
/// nobody is told.
pub fn read_pieces_later(
    store: &Store,
    keyring: &Arc<Keyring>,
    slot_bytes: u32,
    pieces: Vec<Piece>,
    avoid: &[UnitId],
    done: impl FnOnce(Vec<Option<Vec<u8>>>) + Send + 'static,
) -> bool {
    let table = store.table();
    let runs = runs_of(&table, &pieces);
    let reading = Arc::new(Reading {
        state: Mutex::new(State {
            left: runs.len(),
            found: vec![None; pieces.len()],
            done: Some(Box::new(done)),
        }),
        keyring: Arc::clone(keyring),
        slot_bytes,
        pieces,
    });
    let mut is_begun = false;
    for run in runs {
        let Run {
            place,
            slots,
            pieces,
        } = run;
        let told = Arc::clone(&reading);
        let read = move |read: Result<ReadSlots<'_>, UnitError>| told.end(&pieces, read.ok());
        if store.read_later(&table, (place, slots), slot_bytes, avoid, Box::new(read)) {
            is_begun = true;
        } else if is_begun {
            reading.end(&[], None);
        } else {
            return false;
        }
    }
    is_begun
}

impl Reading {
    /// A run has ended.
    fn end(&self, run: &[usize], read: Option<ReadSlots<'_>>) {
        let length = self.slot_bytes as usize;
        let opened = |(place, index): (usize, &usize)| {
            let slots = read?;
            let sealed = &slots.data[place * length..][..length];
            let Piece { entry, address } = self.pieces[*index];
            let mut plain = vec![0; length];
            let sealer = self.keyring.of_epoch(entry.sequence.epoch());
            let tag = &slots.tags[place];
            // Of a damaged copy the reading that waits says so.
            let is_open = sealer.open(address, entry.sequence, tag, sealed, &mut plain);
            is_open.is_ok().then_some(plain)
        };
        let opened: Vec<Option<Vec<u8>>> = run.iter().enumerate().map(opened).collect();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, plain) in run.iter().zip(opened) {
            state.found[*index] = plain;
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let found = std::mem::take(&mut state.found);
        let done = state.done.take();
        drop(state);
        if let Some(done) = done {
            done(found);
        }
    }
}
