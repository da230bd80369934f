//! Dealing blocks over open segments.
//!
//! Which copysets are open and which block goes where is chosen at random from
//! the world's randomness. A dealer belongs to one job at a time; it decides
//! and never writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use base::{CopysetId, SegmentId, UnitId, VolumeId};
use world::Random;

use super::ledger::{Dealt, Ledger};
use super::progress::Progress;
use super::store::Table;
use crate::catalog::copysets::shuffle;
use crate::catalog::{Catalog, CatalogError, ThinShare};

/// How many segment serials are asked for at once: a destage uses some ten.
const SERIALS_AT_ONCE: u32 = 64;

/// The segment serials of a lease, shared by its dealers.
pub struct Serials {
    catalog: Arc<dyn Catalog>,
    volume: VolumeId,
    epoch: u32,
    reserved: Mutex<Range<u64>>,
}

impl Serials {
    /// No serials yet; they are reserved as they are needed.
    pub fn new(catalog: Arc<dyn Catalog>, volume: VolumeId, epoch: u32) -> Self {
        Self {
            catalog,
            volume,
            epoch,
            reserved: Mutex::new(0..0),
        }
    }

    /// A serial nobody ever had. May wait for the catalog.
    fn take(&self) -> Result<u64, CatalogError> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if reserved.is_empty() {
            *reserved = self
                .catalog
                .reserve_serials(self.volume, self.epoch, SERIALS_AT_ONCE)?;
        }
        reserved.next().ok_or_else(|| CatalogError::Refused {
            reason: "the catalog handed out no segment serials".to_owned(),
        })
    }

    /// Serials from here on have not been used by this lease.
    pub fn next(&self) -> u64 {
        self.reserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .start
    }
}

/// What a dealer deals.
#[derive(Debug, Clone, Copy)]
pub struct DealerConfig {
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Slots in a full segment.
    pub slots_max: u32,
    /// On how many copysets segments are kept open: what is written together
    /// lands on that many.
    pub width: usize,
    /// Copies of each segment.
    pub replicas: u8,
    /// Whether slots within a segment are dealt in random order, too. If not,
    /// what is adjacent in the volume and lands in one segment stays adjacent,
    /// and is read back in one piece; sealed blocks give nothing away by it.
    pub shuffle: bool,
}

/// The part of a deal that goes to one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The segment.
    pub segment: SegmentId,
    /// The first slot.
    pub first: u32,
    /// What goes into it and the slots after it: indexes into what was dealt.
    pub items: Vec<usize>,
    /// The units that it is put on: those of all of the segment.
    pub units: Vec<UnitId>,
}

#[derive(Debug)]
struct Growing {
    segment: SegmentId,
    next: u32,
    /// The members that took writes when it was begun. With others it is not gone
    /// on with: they would lack what came before.
    units: Vec<UnitId>,
}

/// Keeps segments open and deals blocks to them.
pub struct Dealer {
    config: DealerConfig,
    serials: Arc<Serials>,
    ledger: Arc<Ledger>,
    progress: Arc<Progress>,
    open: Vec<Growing>,
    /// Segments dealt to since the last settlement, and up to which slot.
    touched: BTreeMap<SegmentId, u32>,
    /// Segments given up since then although part of them will be committed.
    abandoned: BTreeMap<SegmentId, Abandoned>,
    /// How all that was dealt.
    dealt: Dealt,
}

/// A segment that failed after part of it had been put.
#[derive(Debug, Clone, Copy)]
struct Abandoned {
    /// How many slots will be committed.
    good: u32,
    /// How many may lie there: no more than `good` if the others were freed.
    put: u32,
}

/// Nothing can be dealt.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DealError {
    /// No copyset of the size has a unit that takes writes.
    #[error("no storage unit takes writes")]
    NoUnit,
    /// The catalog gave no serials.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Dealer {
    /// A dealer with no segment open.
    pub fn new(
        config: DealerConfig,
        serials: Arc<Serials>,
        ledger: Arc<Ledger>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            config,
            serials,
            ledger,
            progress,
            open: Vec::new(),
            touched: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            dealt: Dealt::default(),
        }
    }

    /// What it deals.
    #[must_use]
    pub fn config(&self) -> &DealerConfig {
        &self.config
    }

    /// How far the lease's placements have come.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Deals `count` items. Each lands on a random open segment; segments that
    /// fill up are followed by new ones.
    ///
    /// # Errors
    /// [`DealError`].
    pub fn deal(
        &mut self,
        count: usize,
        table: &Table,
        random: &dyn Random,
    ) -> Result<Vec<Share>, DealError> {
        let candidates = best_copysets(table, self.config.replicas);
        if candidates.is_empty() {
            return Err(DealError::NoUnit);
        }
        self.dealt.add(Dealt {
            thin: Vec::new(),
            joined: Some(table.joined()),
        });
        self.close_unless(|growing| {
            let copyset = growing.segment.copyset();
            candidates.contains(&copyset) && takers(table, copyset) == growing.units
        });
        let width = self
            .config
            .width
            .clamp(1, candidates.len())
            .min(count.max(1));
        while self.open.len() < width {
            self.open_another(&candidates, table, random)?;
        }

        let mut order: Vec<usize> = (0..count).collect();
        if self.config.shuffle {
            shuffle(&mut order, random);
        }
        let mut dice = vec![0; count * 4];
        random.fill(&mut dice);
        let mut shares: BTreeMap<SegmentId, Share> = BTreeMap::new();
        for (item, die) in order.into_iter().zip(dice.chunks_exact(4)) {
            let die = u32::from_le_bytes(die.try_into().expect("a chunk of four")) as usize;
            let chosen = die % self.open.len();
            let growing = &mut self.open[chosen];
            let share = shares.entry(growing.segment).or_insert_with(|| Share {
                segment: growing.segment,
                first: growing.next,
                items: Vec::new(),
                units: growing.units.clone(),
            });
            share.items.push(item);
            growing.next += 1;
            self.touched.insert(growing.segment, growing.next);
            if growing.next == self.config.slots_max {
                self.open.swap_remove(chosen);
                self.open_another(&candidates, table, random)?;
            }
        }
        Ok(shares.into_values().collect())
    }

    fn open_another(
        &mut self,
        candidates: &[CopysetId],
        table: &Table,
        random: &dyn Random,
    ) -> Result<(), DealError> {
        let unused: Vec<CopysetId> = candidates
            .iter()
            .copied()
            .filter(|id| {
                self.open
                    .iter()
                    .all(|growing| growing.segment.copyset() != *id)
            })
            .collect();
        let among = if unused.is_empty() {
            candidates
        } else {
            &unused
        };
        let copyset = among[(random.u64() % among.len() as u64) as usize];
        let segment = self.ledger.begin(|| {
            let serial = self.serials.take()?;
            SegmentId::new(copyset, serial).ok_or_else(|| CatalogError::Refused {
                reason: "all 2^36 segment serials have been used".to_owned(),
            })
        })?;
        self.open.push(Growing {
            segment,
            next: 0,
            units: takers(table, copyset),
        });
        Ok(())
    }

    /// Goes on with those open segments only for which `goes_on` holds.
    fn close_unless(&mut self, goes_on: impl Fn(&Growing) -> bool) {
        let (open, closed) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(goes_on);
        self.open = open;
        for Growing { segment, next, .. } in closed {
            // What was dealt to since is closed by its settlement.
            if !self.touched.contains_key(&segment) && next == self.ledger.committed_slots(segment)
            {
                self.ledger.closed(segment);
            }
        }
    }

    /// Part of what was dealt was put on fewer units than it should be: nothing
    /// more is dealt to that segment, so that what it has can be copied.
    pub fn note_thin(&mut self, thin: ThinShare) {
        self.open.retain(|growing| growing.segment != thin.segment);
        self.dealt.thin.push(thin);
    }

    /// Nothing more is dealt to the segment of `share`, for its put failed.
    /// What was put there before will be committed; what lies beyond is
    /// nobody's, and stays in the ledger for the next lease to free unless
    /// `is_freed` says that nothing does.
    pub fn abandon(&mut self, share: &Share, is_freed: bool) {
        let segment = share.segment;
        self.open.retain(|growing| growing.segment != segment);
        self.touched.remove(&segment);
        if share.first > self.ledger.committed_slots(segment) {
            let end = share.first + u32::try_from(share.items.len()).expect("few");
            let put = if is_freed { share.first } else { end };
            let good = share.first;
            self.abandoned.insert(segment, Abandoned { good, put });
        } else if is_freed {
            self.ledger.closed(segment);
        }
    }

    /// Nothing that was dealt since the last settlement will be committed.
    /// Returns where it lies, as far as it was put: segments, and from which
    /// slot to which.
    pub fn give_up(&mut self) -> Vec<(SegmentId, Range<u32>)> {
        let touched = std::mem::take(&mut self.touched);
        let abandoned = std::mem::take(&mut self.abandoned);
        self.dealt = Dealt::default();
        self.open
            .retain(|growing| !touched.contains_key(&growing.segment));
        let abandoned = abandoned
            .into_iter()
            .map(|(segment, abandoned)| (segment, abandoned.put));
        touched
            .into_iter()
            .chain(abandoned)
            .map(|(segment, end)| (segment, self.ledger.committed_slots(segment)..end))
            .collect()
    }

    /// What [`Dealer::give_up`] said of `segment` has been freed.
    pub fn forget(&self, segment: SegmentId) {
        self.ledger.closed(segment);
    }

    /// Everything dealt so far is in the version about to be committed.
    pub fn settle(&mut self) {
        for (segment, slots) in std::mem::take(&mut self.touched) {
            let goes_on = self.open.iter().any(|growing| growing.segment == segment);
            self.ledger.committed(segment, slots, !goes_on);
        }
        self.ledger.dealt(std::mem::take(&mut self.dealt));
        for (segment, Abandoned { good, put }) in std::mem::take(&mut self.abandoned) {
            self.ledger.committed(segment, good, put == good);
        }
    }
}

/// The copysets of `replicas` units that have the most members taking writes.
/// All of them healthy is best; but a volume whose units are nearly all down
/// goes on writing, with fewer copies, rather than stopping its VM.
fn best_copysets(table: &Table, replicas: u8) -> Vec<CopysetId> {
    let mut best = 1;
    let mut found = Vec::new();
    for (id, _) in table.copysets() {
        if table.put_on(id).count() != usize::from(replicas) {
            continue;
        }
        let writable = takers(table, id).len();
        if writable > best {
            best = writable;
            found.clear();
        }
        if writable == best {
            found.push(id);
        }
    }
    // The table is a hash map: an order that the seed alone decides.
    found.sort_unstable();
    found
}

/// The members of a copyset that take writes.
fn takers(table: &Table, copyset: CopysetId) -> Vec<UnitId> {
    let takers = table.put_on(copyset);
    let takers = takers.filter(|member| member.unit.can_write());
    takers.map(|member| member.id).collect()
}

#[cfg(test)]
mod tests {
    use base::{BlockSize, ClusterId, Lineage, UnitId};
    use unit::{FolderUnit, TrackedUnit};
    use world::simulated::Simulation;

    use super::*;
    use crate::catalog::{Copyset, LineageKey, MemoryCatalog, NewVolume};
    use crate::scatter::Store;
    use crate::seal::LeaseSalt;
    use crate::term::LeaseTerm;

    const VOLUME: VolumeId = VolumeId::from_random(1);

    fn serials() -> Arc<Serials> {
        let catalog = Arc::new(MemoryCatalog::default());
        let new = NewVolume {
            volume: VOLUME,
            size_bytes: 1 << 30,
            block_size: BlockSize::DEFAULT,
            replicas: 1,
            key: LineageKey {
                lineage: Lineage::from_random(1),
                epoch_first: 0,
                wrapped: None,
                wrapped_by: None,
                salts: Vec::new(),
            },
            from: None,
        };
        catalog.create_volume(new).expect("a new volume");
        let epoch = catalog
            .acquire(VOLUME, LeaseSalt([0; 16]), None)
            .expect("a lease")
            .epoch;
        Arc::new(Serials::new(catalog, VOLUME, epoch))
    }

    /// When a whole placement was given up, of a share that had failed and
    /// could not be freed only what lay before it was named: its own slots
    /// stayed for ever.
    #[test]
    fn what_a_failed_share_left_is_given_up_with_the_rest() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let (cluster, id) = (ClusterId::from_random(1), UnitId::from_random(1));
        let unit = FolderUnit::create(&world, "/unit".as_ref(), cluster, id).expect("a new unit");
        let unit = TrackedUnit::new(Arc::new(unit), Arc::clone(&world.clock));
        let copyset = Copyset::new(CopysetId::new(0).expect("the first"), vec![id]);
        let store = Store::new(Arc::clone(&world.pool));
        store.set_table(vec![(id, Arc::new(unit))], &[copyset]);
        let config = DealerConfig {
            slot_bytes: 4096,
            slots_max: 64,
            width: 1,
            replicas: 1,
            shuffle: false,
        };
        let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
        for (is_freed, end) in [(false, 7), (true, 4)] {
            let progress = Progress::new(LeaseTerm::unlimited(), Arc::clone(&world.clock));
            let ledger = Arc::clone(&ledger);
            let mut dealer = Dealer::new(config, serials(), ledger, Arc::new(progress));
            let deal = |dealer: &mut Dealer, count| {
                let shares = dealer.deal(count, &store.table(), &*world.random);
                shares.expect("a unit takes writes").remove(0)
            };
            let good = deal(&mut dealer, 4);
            let failed = deal(&mut dealer, 3);
            assert_eq!((failed.segment, failed.first), (good.segment, 4));
            dealer.abandon(&failed, is_freed);
            assert_eq!(dealer.give_up(), [(good.segment, 0..end)]);
        }
    }
}
