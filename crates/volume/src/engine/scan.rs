//! Bringing the newest version's map into the host's cache, when a volume is attached (HVSTO
//! §III-C: its nodes are found and protected).
//!
//! It goes on in the background, some pages at a time, until all of the map is there, or as
//! much as there is room for, or the volume is closed. What is not found is not missed here:
//! whoever needs it says so.

use std::sync::{Arc, Weak};

use super::fetch::StoredPages;
use super::volume::{Env, Volume};
use crate::map::{Entry, FetchPages as _, Level, Position, Root};
use crate::scatter::Piece;

/// So many pages are looked for at once; in between, other jobs have their turn.
const PAGES_AT_ONCE: usize = 64;

/// Pages are not looked at twice: none has to be kept.
const PAGES_KEPT: usize = 3;

/// Pages that are still to be looked at. The next one is the last one: so there are never many.
type Left = Vec<(Position, Entry)>;

impl Volume {
    /// Begins to bring the map, if there is a cache that keeps it.
    pub(super) fn start_scan(&self) {
        let is_kept = |env: &Env| env.view.as_ref().is_some_and(|view| view.has_file());
        if is_kept(&self.env) {
            let left = roots(&self.reader.layers.root);
            go_on(&self.env, left);
        }
    }
}

fn roots(root: &Root) -> Left {
    let pages = (0..).zip(root.entries());
    let position = |index| Position {
        level: Level::Root,
        index,
    };
    let mut left: Left = pages
        .filter_map(|(index, entry)| Some((position(index), (*entry)?)))
        .collect();
    left.reverse();
    left
}

fn go_on(env: &Arc<Env>, left: Left) {
    let volume = Arc::downgrade(env);
    env.world.pool.run(Box::new(move || look(&volume, left)));
}

/// Looks at some pages, and leaves the others to another job.
fn look(volume: &Weak<Env>, mut left: Left) {
    // Nobody needs it any more.
    let Some(env) = volume.upgrade() else { return };
    let Some(view) = env.view.as_ref().filter(|view| view.has_room_for_maps()) else {
        return;
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
    let (store, keyring) = (Arc::clone(&env.store), Arc::clone(&env.keyring));
    let mut pages = StoredPages::new(store, keyring, PAGES_KEPT).through(env.view.clone());
    let pages = match pages.fetch(&wanted) {
        Ok(pages) => pages,
        Err(error) => {
            tracing::debug!(volume = %env.volume, %error, "the map is not brought as a whole");
            return;
        }
    };
    for ((position, _), page) in wanted.iter().zip(&pages).rev() {
        let children = page.entries().filter_map(|(index, entry)| {
            let child = position.child(index)?;
            Some((child, entry))
        });
        let children: Left = children.collect();
        left.extend(children.into_iter().rev());
    }
    if !left.is_empty() {
        go_on(&env, left);
    }
}
