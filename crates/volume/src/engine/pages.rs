//! Sealing the engine's own pages and placing them like data.

use std::sync::Arc;

use super::env::Env;
use crate::map::Entry;
use crate::scatter::{Piece, PlaceError, Placer, Source, place};
use crate::seal::{Address, SequenceExhausted};

/// Seals each page with a sequence of its own, places all of them, and returns
/// their entries in order. Every page is as long as a slot of `placer`.
///
/// # Errors
/// If the lease's sequences are used up, or the pages cannot be placed. Pages that
/// were placed before the failure are leftovers.
pub fn place_pages<E: From<PlaceError> + From<SequenceExhausted>>(
    env: &Env,
    placer: &mut Placer,
    pages: impl Iterator<Item = (Address, Vec<u8>)>,
) -> Result<Vec<Entry>, E> {
    let mut sealed = Vec::new();
    for (address, mut page) in pages {
        let sequence = env.sequences.take()?;
        let tag = env.keyring.own().seal(address, sequence, &mut page);
        sealed.push((address, sequence, tag, page));
    }
    let sealed = Arc::new(sealed);
    let source: Source = {
        let sealed = Arc::clone(&sealed);
        Arc::new(move |index, slot| {
            let (.., tag, page) = &sealed[index];
            slot.copy_from_slice(page);
            Ok(*tag)
        })
    };
    let locations = place(
        &env.store,
        placer,
        &*env.world.random,
        sealed.len(),
        &source,
    )?;
    let mut entries = Vec::with_capacity(sealed.len());
    for ((address, sequence, tag, page), location) in sealed.iter().zip(locations) {
        let (address, sequence) = (*address, *sequence);
        let entry = Entry { location, sequence };
        if let Some(view) = &env.view {
            // It is read again soon: by the next lookups, and by the next open.
            view.keep(&Piece { entry, address }, tag, page);
        }
        entries.push(entry);
    }
    Ok(entries)
}
