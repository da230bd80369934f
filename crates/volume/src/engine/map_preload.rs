//! Loading the newest version's map into the host's cache when a volume is attached
//! (HVSTO §III-C: its nodes are found and protected), and releasing pages that a
//! checkpoint removed.
//!
//! The preload runs in the background, some pages at a time, until all of the map is
//! in the cache, the cache has no more room for it, or the volume is closed. Errors
//! are left to the reads that need the page. If a checkpoint changes the map before
//! that, the preload starts again: pages that are there already take no time.

use std::sync::{Arc, Weak};

use super::env::Env;
use super::stored_pages::StoredPages;
use super::volume::Volume;
use crate::map::{Entry, FetchPages as _, Level, Page, Position, Root};
use crate::scatter::{CacheView, Piece, ReadError};

/// Pages per job; in between, other jobs have their turn.
const PAGES_AT_ONCE: usize = 64;

/// No page is visited twice: hardly any has to be kept.
const PAGES_KEPT: usize = 3;

/// Pages still to be visited, the next one last: depth first, so there are never many.
type PageQueue = Vec<(Position, Entry)>;

impl Volume {
    /// Starts to load the map, if the cache has a file to keep it.
    pub(super) fn start_map_preload(&self) {
        let is_kept = |env: &Env| env.view.as_ref().is_some_and(CacheView::has_file);
        if is_kept(&self.env) {
            let number = self.env.preload.begin();
            continue_preload(&self.env, roots(&self.reader.layers.root), number);
        }
    }

    /// The map has changed: `removed` and all pages below them are no longer in it.
    pub(super) fn map_has_changed(&self, removed: PageQueue) {
        if self.env.view.is_some() && !removed.is_empty() {
            let volume = Arc::downgrade(&self.env);
            let pool = &self.env.world.pool;
            pool.run(Box::new(move || release_removed(&volume, removed)));
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

/// Loads some pages, and leaves the rest to another job.
fn load_some(volume: &Weak<Env>, mut left: PageQueue, number: u64) {
    // The volume may have been closed.
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
            tracing::debug!(volume = %env.volume, %error, "volume stopped preload of its map");
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

/// Releases the protection of removed pages and of all pages below them.
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
        // The pages stay protected until the volume is closed.
        Err(error) => {
            tracing::debug!(volume = %env.volume, %error, "volume could not release removed map pages, which stay in the cache")
        }
    }
    if !gone.is_empty() {
        let (volume, pool) = (volume.clone(), &env.world.pool);
        pool.run(Box::new(move || release_removed(&volume, gone)));
    }
}

/// Reads pages; `None` for damaged ones, whose part of the map is skipped.
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

/// The pages below one, in reverse order.
fn children(page: &Page, position: Position) -> PageQueue {
    let children = page.entries().filter_map(|(index, entry)| {
        let child = position.child(index)?;
        Some((child, entry))
    });
    let mut children: PageQueue = children.collect();
    children.reverse();
    children
}
