//! Readings that take long: another copy is asked as well.
//!
//! A unit that hangs keeps what it was asked until the link to it gives up,
//! seconds later. So whoever waits longer than that unit takes for nineteen reads
//! in twenty asks the next copy, or with parity works the slot out of others of its
//! row, and takes what comes first ([`Reader`] forgets a
//! parked request with its first answer). What is asked twice is bounded: one
//! reading in twenty, and a few to begin with.
//!
//! The file of the host's cache may hang as well: a reading gives it up by itself, and asks
//! the units then ([`read_pieces_through`](crate::scatter::read_pieces_through)).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use base::{Location, UnitId};
use unit::TrackedUnit;

use super::fetch::WantedBlocks;
use super::layers::Source;
use super::reader::{Reader, Waiting};
use crate::map::{Entry, Position};

/// Of so many readings, one may be asked again.
const ONE_IN: u64 = 20;

/// And so many more: when a unit begins to hang, all that wait for it wait at once.
const AT_FIRST: u64 = 64;

/// What a parked request has asked for.
#[derive(Clone)]
pub enum Wanted {
    /// Blocks.
    Blocks(WantedBlocks),
    /// Blocks that nobody has asked for yet.
    Ahead(WantedBlocks),
    /// Pages of the map.
    Pages(Vec<(Position, Entry)>),
}

impl Wanted {
    fn is_of_journal(&self) -> bool {
        match self {
            Self::Blocks(blocks) | Self::Ahead(blocks) => {
                let mut sources = blocks.iter().map(|(_, source)| source);
                sources.any(|source| matches!(source, Source::Journal(_)))
            }
            Self::Pages(_) => false,
        }
    }

    fn locations(&self) -> Vec<Location> {
        match self {
            Self::Blocks(blocks) | Self::Ahead(blocks) => blocks
                .iter()
                .filter_map(|(_, source)| match source {
                    Source::Slot(entry) => Some(entry.location),
                    _ => None,
                })
                .collect(),
            Self::Pages(pages) => pages.iter().map(|(_, entry)| entry.location).collect(),
        }
    }
}

/// A reading of what may be in the batch of the journal and not yet in its file, where
/// whoever reads on another thread would find what was there before.
pub struct Unwritten {
    id: u64,
    wanted: Wanted,
    avoid: Vec<UnitId>,
}

/// When to look whether readings have ended.
#[derive(Default)]
pub struct Late {
    /// Parked requests, by when they are late.
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    readings: u64,
    again: u64,
}

/// What a reading asks first.
pub struct Asked {
    units: Vec<(UnitId, Arc<TrackedUnit>)>,
    /// The cache's file is asked before these: the delay is not theirs.
    is_of_file: bool,
    pub at: Duration,
}

impl Reader {
    /// Starts to read what request `id` wants, and notes when it is late.
    pub fn start_wanted(&mut self, id: u64, wanted: &Wanted, is_ahead: bool) -> Asked {
        let now = self.fetcher.clock.monotonic();
        let mut asked = Asked {
            units: Vec::new(),
            is_of_file: self.fetcher.is_in_cache_file(wanted),
            at: now,
        };
        let mut patience = None;
        for location in wanted.locations() {
            let members = self.table.members(location.segment().copyset());
            let Some(best) = self.table.asked_first(location) else {
                continue;
            };
            if asked.units.iter().all(|(unit, _)| *unit != best.id) {
                asked.units.push((best.id, Arc::clone(&best.unit)));
            }
            if members.len() > 1 || is_ahead {
                patience = patience.max(Some(best.unit.late_after()));
            }
        }
        self.late.readings += 1;
        if let Some(patience) = patience {
            self.late.due.push(Reverse((now + patience, id)));
        }
        self.start_avoiding(id, wanted.clone(), &[]);
        asked
    }

    fn start_avoiding(&mut self, id: u64, wanted: Wanted, avoid: &[UnitId]) {
        if wanted.is_of_journal() {
            let avoid = avoid.to_vec();
            self.unwritten.push(Unwritten { id, wanted, avoid });
        } else {
            self.start_now(id, wanted, avoid);
        }
    }

    /// Starts what has waited until all that the layers name is in the journal's file.
    pub fn start_unwritten(&mut self) {
        for Unwritten { id, wanted, avoid } in std::mem::take(&mut self.unwritten) {
            self.start_now(id, wanted, &avoid);
        }
    }

    fn start_now(&self, id: u64, wanted: Wanted, avoid: &[UnitId]) {
        match wanted {
            Wanted::Blocks(blocks) => self.fetcher.start(id, blocks, avoid),
            Wanted::Ahead(blocks) => self.fetcher.ahead().start(id, blocks, avoid),
            Wanted::Pages(pages) => self.fetcher.start_pages(id, pages, avoid),
        }
    }

    /// Asks other units for what is late.
    pub fn ask_again(&mut self) {
        let now = self.fetcher.clock.monotonic();
        while let Some(Reverse((due, id))) = self.late.due.peek().copied() {
            let Some(parked) = self.parked.get_mut(&id) else {
                self.late.due.pop();
                continue;
            };
            if due > now {
                return;
            }
            self.late.due.pop();
            if let Waiting::Ahead { piece, .. } = parked.waiting {
                // One unit of many that were asked: whoever waits for it asks for what it wants
                // itself, and of others if it has to.
                self.parked.remove(&id);
                self.end_ahead(piece);
                continue;
            }
            let asked = &parked.asked;
            if let [(_, unit)] = &*asked.units
                && !asked.is_of_file
            {
                unit.is_late(now.saturating_sub(asked.at));
            }
            let avoid: Vec<UnitId> = asked.units.iter().map(|(id, _)| *id).collect();
            let table = &self.table;
            let mut wanted = parked.wanted.locations().into_iter();
            let others = wanted.any(|location| table.is_elsewhere(location, &avoid));
            if others && self.late.again < AT_FIRST + self.late.readings / ONE_IN {
                self.late.again += 1;
                parked.under_way += 1;
                let wanted = parked.wanted.clone();
                self.start_avoiding(id, wanted, &avoid);
            }
        }
    }

    /// How soon [`Reader::ask_again`] is to be called although nothing happened.
    pub fn late_timer(&self) -> Option<Duration> {
        let now = self.fetcher.clock.monotonic();
        let first = self.late.due.peek();
        first.map(|Reverse((due, _))| due.saturating_sub(now))
    }
}
