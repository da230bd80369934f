//! Hedged reads: a slow read is sent to another copy as well.
//!
//! A unit that does not respond keeps a read until the link to it times out,
//! seconds later. So a read that takes longer than 95 % of that unit's reads is
//! hedged: the next copy is read, or with parity the slot is recovered from the
//! other slots of its row. The first answer counts ([`Reader`] forgets a parked
//! request with it). Hedges are bounded: one read in twenty, and a few more.
//!
//! The file of the host's cache may not respond either: a read abandons it by
//! itself, and reads from units ([`read_pieces_through`](crate::scatter::read_pieces_through)).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use base::UnitId;

use super::Reader;
use crate::engine::request::{FetchTarget, PendingRequest, ReadTargets};

/// One read in this many may be hedged.
const HEDGE_ONE_IN: u64 = 20;

/// Hedges allowed beyond that: when a unit stops responding, all reads of it become
/// slow at once.
const HEDGES_FREE: u64 = 64;

/// A read of blocks that may be in the journal's batch and not yet in its file, where
/// another thread would read older content.
pub struct UnwrittenRead {
    id: u64,
    wanted: FetchTarget,
    exclude: Vec<UnitId>,
}

/// Reads in the order in which they become slow, and how many were hedged.
#[derive(Default)]
pub struct HedgeQueue {
    /// Parked requests, by when they count as slow.
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    /// All reads so far.
    reads: u64,
    /// Those that were hedged.
    started: u64,
}

impl Reader {
    /// Starts to read what request `id` needs, and notes when that counts as slow.
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
        self.hedges.reads += 1;
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

    /// Starts the reads that have waited for the journal's batch to be written.
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

    /// Hedges slow reads: sends them to other units as well.
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
                // A request that needs a block of it reads that block itself, and is
                // hedged if that is slow.
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
            let has_alternative = parked
                .wanted
                .locations()
                .any(|location| table.has_alternative(location, &exclude));
            if has_alternative
                && self.hedges.started < HEDGES_FREE + self.hedges.reads / HEDGE_ONE_IN
            {
                self.hedges.started += 1;
                parked.under_way += 1;
                let wanted = parked.wanted.clone();
                self.start_excluding(id, wanted, &exclude);
            }
        }
    }

    /// The delay until [`Reader::hedge_slow_reads`] must be called.
    pub fn hedge_timer(&self) -> Option<Duration> {
        let now = self.fetcher.clock.monotonic();
        let first = self.hedges.due.peek();
        first.map(|Reverse((due, _))| due.saturating_sub(now))
    }
}
