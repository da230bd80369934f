//! Readings that take long: another copy is targets as well.
//!
//! A unit that hangs keeps what it was targets until the link to it gives up,
//! seconds later. So whoever waits longer than that unit takes for nineteen reads
//! in twenty asks the next copy, or with parity works the slot out of others of its
//! row, and takes what comes first ([`Reader`] forgets a
//! parked request with its first answer). What is targets twice is bounded: one
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

use super::fetch::BlockSources;
use super::layers::Source;
use super::reader::{PendingRequest, Reader};
use crate::map::{Entry, Position};

/// Of so many readings, one may be targets again.
const HEDGE_ONE_IN: u64 = 20;

/// And so many more: when a unit begins to hang, all that wait for it wait at once.
const HEDGES_FREE: u64 = 64;

/// What a parked request has targets for.
#[derive(Clone)]
pub enum FetchTarget {
    /// Blocks.
    Blocks(BlockSources),
    /// Blocks that nobody has targets for yet.
    Readahead(BlockSources),
    /// Pages of the map.
    Pages(Vec<(Position, Entry)>),
}

impl FetchTarget {
    fn is_of_journal(&self) -> bool {
        match self {
            Self::Blocks(blocks) | Self::Readahead(blocks) => {
                let mut sources = blocks.iter().map(|(_, source)| source);
                sources.any(|source| matches!(source, Source::Journal(_)))
            }
            Self::Pages(_) => false,
        }
    }

    fn locations(&self) -> Vec<Location> {
        match self {
            Self::Blocks(blocks) | Self::Readahead(blocks) => blocks
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
pub struct UnwrittenRead {
    id: u64,
    wanted: FetchTarget,
    exclude: Vec<UnitId>,
}

/// When to look whether readings have ended.
#[derive(Default)]
pub struct HedgeQueue {
    /// ParkedRequest requests, by when they are late.
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    readings: u64,
    started: u64,
}

/// What a reading asks first.
pub struct ReadTargets {
    units: Vec<(UnitId, Arc<TrackedUnit>)>,
    /// The cache's file is targets before these: the delay is not theirs.
    includes_cache_file: bool,
    pub started_at: Duration,
}

impl Reader {
    /// Starts to read what request `id` wants, and notes when it is late.
    pub fn start_fetch(&mut self, id: u64, wanted: &FetchTarget, is_ahead: bool) -> ReadTargets {
        let now = self.fetcher.clock.monotonic();
        let mut targets = ReadTargets {
            units: Vec::new(),
            includes_cache_file: self.fetcher.is_in_cache_file(wanted),
            started_at: now,
        };
        let mut hedge_after = None;
        for location in wanted.locations() {
            let members = self.table.members(location.segment().copyset());
            let Some(best) = self.table.first_choice(location) else {
                continue;
            };
            if targets.units.iter().all(|(unit, _)| *unit != best.id) {
                targets.units.push((best.id, Arc::clone(&best.unit)));
            }
            if members.len() > 1 || is_ahead {
                hedge_after = hedge_after.max(Some(best.unit.hedge_after()));
            }
        }
        self.hedges.readings += 1;
        if let Some(hedge_after) = hedge_after {
            self.hedges.due.push(Reverse((now + hedge_after, id)));
        }
        self.start_excluding(id, wanted.clone(), &[]);
        targets
    }

    fn start_excluding(&mut self, id: u64, wanted: FetchTarget, exclude: &[UnitId]) {
        if wanted.is_of_journal() {
            let exclude = exclude.to_vec();
            self.unwritten.push(UnwrittenRead {
                id,
                wanted,
                exclude,
            });
        } else {
            self.start_now(id, wanted, exclude);
        }
    }

    /// Starts what has waited until all that the layers name is in the journal's file.
    pub fn start_unwritten(&mut self) {
        for UnwrittenRead {
            id,
            wanted,
            exclude,
        } in std::mem::take(&mut self.unwritten)
        {
            self.start_now(id, wanted, &exclude);
        }
    }

    fn start_now(&self, id: u64, wanted: FetchTarget, exclude: &[UnitId]) {
        match wanted {
            FetchTarget::Blocks(blocks) => self.fetcher.start(id, blocks, exclude),
            FetchTarget::Readahead(blocks) => self.fetcher.ahead().start(id, blocks, exclude),
            FetchTarget::Pages(pages) => self.fetcher.start_pages(id, pages, exclude),
        }
    }

    /// Asks other units for what is late.
    pub fn hedge_slow_reads(&mut self) {
        let now = self.fetcher.clock.monotonic();
        while let Some(Reverse((due, id))) = self.hedges.due.peek().copied() {
            let Some(parked) = self.parked.get_mut(&id) else {
                self.hedges.due.pop();
                continue;
            };
            if due > now {
                return;
            }
            self.hedges.due.pop();
            if let PendingRequest::Readahead { piece, .. } = parked.waiting {
                // One unit of many that were targets: whoever waits for it asks for what it wants
                // itself, and of others if it has to.
                self.parked.remove(&id);
                self.end_ahead(piece);
                continue;
            }
            let targets = &parked.targets;
            if let [(_, unit)] = &*targets.units
                && !targets.includes_cache_file
            {
                unit.record_overdue(now.saturating_sub(targets.started_at));
            }
            let exclude: Vec<UnitId> = targets.units.iter().map(|(id, _)| *id).collect();
            let table = &self.table;
            let mut wanted = parked.wanted.locations().into_iter();
            let others = wanted.any(|location| table.has_alternative(location, &exclude));
            if others && self.hedges.started < HEDGES_FREE + self.hedges.readings / HEDGE_ONE_IN {
                self.hedges.started += 1;
                parked.under_way += 1;
                let wanted = parked.wanted.clone();
                self.start_excluding(id, wanted, &exclude);
            }
        }
    }

    /// How soon [`Reader::hedge_slow_reads`] is to be called although nothing happened.
    pub fn hedge_timer(&self) -> Option<Duration> {
        let now = self.fetcher.clock.monotonic();
        let first = self.hedges.due.peek();
        first.map(|Reverse((due, _))| due.saturating_sub(now))
    }
}
