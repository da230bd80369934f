//! Bringing the newest version's map into the host's cache, when a volume is attached (HVSTO
//! §III-C: its nodes are found and protected), and letting go of what is not of it any more.
//!
//! It goes on in the background, some pages at a time, until all of the map is there, or as
//! much as there is room for, or the volume is closed. What cannot be had is not missed here:
//! whoever needs it says so. When the map is another one before that, or there was no cache to
//! bring it to, it begins again: what is there already takes no time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::fetch::StoredPages;
use super::volume::{Env, Volume};
use crate::map::{Entry, FetchPages as _, Level, Page, Position, Root};
use crate::scatter::{CacheView, Piece, ReadError};

/// So many pages are looked for at once; in between, other jobs have their turn.
const PAGES_AT_ONCE: usize = 64;

/// Pages are not looked at twice: none has to be kept.
const PAGES_KEPT: usize = 3;

/// Pages that are still to be looked at. The next one is the last one: so there are never many.
type PageQueue = Vec<(Position, Entry)>;

/// How far the map has been brought.
#[derive(Default)]
pub struct MapPreload {
    /// Rises when one begins: those before it end.
    newest: AtomicU64,
    /// Which one has ended last since it had nothing more to do.
    done: AtomicU64,
}

impl MapPreload {
    fn is_newest(&self, number: u64) -> bool {
        self.newest.load(Ordering::Relaxed) == number
    }

    fn has_ended(&self, number: u64) {
        self.done.store(number, Ordering::Relaxed);
    }

    /// Whether the newest one has; none has begun at first.
    fn is_done(&self) -> bool {
        let done = self.done.load(Ordering::Relaxed);
        done > 0 && self.is_newest(done)
    }
}

impl Volume {
    /// Begins to bring the map, if there is a cache that keeps it.
    pub(super) fn start_map_preload(&self) {
        let is_kept = |env: &Env| env.view.as_ref().is_some_and(CacheView::has_file);
        if is_kept(&self.env) {
            let preload = &self.env.preload;
            let number = preload.newest.fetch_add(1, Ordering::Relaxed) + 1;
            continue_preload(&self.env, roots(&self.reader.layers.root), number);
        }
    }

    /// The map is another one, in which `gone` are not, nor what is below them.
    pub(super) fn map_has_changed(&self, gone: PageQueue) {
        if self.env.view.is_some() && !gone.is_empty() {
            let volume = Arc::downgrade(&self.env);
            let pool = &self.env.world.pool;
            pool.run(Box::new(move || release_removed(&volume, gone)));
        }
        if !self.env.preload.is_done() {
            self.start_map_preload();
        }
    }
}

fn roots(root: &Root) -> PageQueue {
    let pages = (0..).zip(root.entries());
    let position = |index| Position {
        level: Level::Root,
        index,
    };
    let mut left: PageQueue = pages
        .filter_map(|(index, entry)| Some((position(index), (*entry)?)))
        .collect();
    left.reverse();
    left
}

fn continue_preload(env: &Arc<Env>, left: PageQueue, number: u64) {
    let volume = Arc::downgrade(env);
    let pool = &env.world.pool;
    pool.run(Box::new(move || load_some(&volume, left, number)));
}

/// Looks at some pages, and leaves the others to another job.
fn load_some(volume: &Weak<Env>, mut left: PageQueue, number: u64) {
    // Nobody needs it any more, if there is no such volume.
    let Some(env) = volume.upgrade() else { return };
    if !env.preload.is_newest(number) {
        return;
    }
    let has_room = CacheView::has_room_for_maps;
    let Some(view) = env.view.as_ref().filter(|view| has_room(view)) else {
        return env.preload.has_ended(number);
    };
    let mut wanted = Vec::new();
    while wanted.len() < PAGES_AT_ONCE
        && let Some((position, entry)) = left.pop()
    {
        let address = position.address();
        let is_leaf = position.level == Level::Leaf;
        if !(is_leaf && view.touch(&Piece { entry, address })) {
            wanted.push((position, entry));
        }
    }
    let pages = match fetch(&env, view.filling(), &wanted) {
        Ok(pages) => pages,
        Err(error) => {
            tracing::debug!(volume = %env.volume, %error, "the map is not brought as a whole");
            return;
        }
    };
    for (page, (position, _)) in pages.iter().zip(&wanted).rev() {
        left.extend(
            page.as_deref()
                .into_iter()
                .flat_map(|page| children(page, *position)),
        );
    }
    match left.is_empty() {
        true => env.preload.has_ended(number),
        false => continue_preload(&env, left, number),
    }
}

/// None is protected of pages that are not of the map any more, and all below them.
fn release_removed(volume: &Weak<Env>, mut gone: PageQueue) {
    let Some(env) = volume.upgrade() else { return };
    let Some(view) = &env.view else { return };
    let mut above = Vec::new();
    while above.len() < PAGES_AT_ONCE
        && let Some((position, entry)) = gone.pop()
    {
        view.release(&[entry]);
        if position.level != Level::Leaf {
            above.push((position, entry));
        }
    }
    match fetch(&env, view.of_older(), &above) {
        Ok(pages) => {
            for (page, (position, _)) in pages.iter().zip(&above) {
                let page = page.as_deref().into_iter();
                gone.extend(page.flat_map(|page| children(page, *position)));
            }
        }
        // They are protected until the volume is closed.
        Err(error) => tracing::debug!(volume = %env.volume, %error, "pages stay protected"),
    }
    if !gone.is_empty() {
        let (volume, pool) = (volume.clone(), &env.world.pool);
        pool.run(Box::new(move || release_removed(&volume, gone)));
    }
}

/// Pages, of which those that are damaged are none: their part of the map is left out.
fn fetch(
    env: &Env,
    view: CacheView,
    wanted: &[(Position, Entry)],
) -> Result<Vec<Option<Arc<Page>>>, ReadError> {
    let (store, keyring) = (Arc::clone(&env.store), Arc::clone(&env.keyring));
    let mut pages = StoredPages::new(store, keyring, PAGES_KEPT).through(Some(view));
    match pages.fetch(wanted) {
        Ok(found) => Ok(found.into_iter().map(Some).collect()),
        Err(ReadError::Damaged { .. }) => {
            let one = |one: &(Position, Entry)| match pages.fetch(&[*one]) {
                Ok(found) => Ok(found.into_iter().next()),
                Err(ReadError::Damaged { .. }) => Ok(None),
                Err(error) => Err(error),
            };
            wanted.iter().map(one).collect()
        }
        Err(error) => Err(error),
    }
}

/// The pages below one; those that come first are last.
fn children(page: &Page, position: Position) -> PageQueue {
    let children = page.entries().filter_map(|(index, entry)| {
        let child = position.child(index)?;
        Some((child, entry))
    });
    let mut children: PageQueue = children.collect();
    children.reverse();
    children
}
