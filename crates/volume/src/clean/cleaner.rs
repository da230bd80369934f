//! [`Cleaner`]: removes versions, and carries out the frees that are due.

use std::cell::RefCell;
use std::sync::Arc;

use base::{SegmentId, Slot};
use catalog::{
    BadPlan, Catalog, CatalogError, FreePlan, LineageKey, PendingFree, StoredVersion, VersionKey,
};
use parking_lot::Mutex;
use unit::UnitError;
use world::Millis;

use super::dead::{Side, View, dead};
use crate::engine::{OpenError, StoredPages, open_version};
use crate::scatter::erasure::reclaim_if;
use crate::scatter::{ReadError, Store};
use crate::seal::{KeyError, Keyring};

/// Unwraps the keys of a lineage. The cleaner needs them: maps are sealed.
pub type OpenKeys = Arc<dyn Fn(&[LineageKey]) -> Result<Keyring, KeyError> + Send + Sync>;

/// Map pages that a removal keeps in memory for each version: 4 MiB.
const PAGES_KEPT: usize = 1024;

/// Removes versions and frees their slots. Every call may wait and belongs on a
/// pool thread.
#[derive(Clone)]
pub struct Cleaner {
    store: Arc<Store>,
    catalog: Arc<dyn Catalog>,
    open_keys: OpenKeys,
    /// The latest views: versions are mostly removed one after another, and each is
    /// the neighbor of the previous one.
    views: Arc<Mutex<KeptViews>>,
}

/// Views, oldest first.
type KeptViews = Vec<(VersionKey, Arc<View>)>;

/// Views kept in memory: a version, its usual two neighbors, and one more. A view
/// takes up to about 4 MiB.
const VIEWS_KEPT: usize = 4;

/// The result of removing a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The version was removed, and its slots will be freed.
    Removed {
        /// The number of slots that only it held.
        slots: usize,
    },
    /// A head or a snapshot needs it, or several versions branch off from it: it
    /// stays.
    Needed,
}

/// Why cleaning failed, in whole or in part. It may be retried.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The catalog refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The keys cannot be unwrapped.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A version cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A map page cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The catalog holds an invalid plan.
    #[error(transparent)]
    Plan(#[from] BadPlan),
    /// A unit could not free slots.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl Cleaner {
    /// A cleaner for the versions in `catalog` and the units of `store`.
    #[must_use]
    pub fn new(store: Arc<Store>, catalog: Arc<dyn Catalog>, open_keys: OpenKeys) -> Self {
        Self {
            store,
            catalog,
            open_keys,
            views: Arc::default(),
        }
    }

    /// Removes a version unless it is needed. Its slots are freed by a later
    /// [`Cleaner::carry_out`], not before `not_before`.
    ///
    /// # Errors
    /// [`CleanError`]: then it stays.
    pub fn remove_version(
        &self,
        key: VersionKey,
        not_before: Millis,
    ) -> Result<Removal, CleanError> {
        let neighbors = self.catalog.neighbors(key)?;
        // A version with several children stays until one child is left. Without
        // it two versions could hold a slot and be neither parent nor child of
        // each other, and [`dead`] would free it although one of them holds it.
        if neighbors.needed || neighbors.children.len() > 1 {
            return Ok(Removal::Needed);
        }
        let version = self.side(&self.catalog.version(key)?)?;
        let others = neighbors
            .parent
            .iter()
            .chain(&neighbors.children)
            .map(|neighbor| self.side(neighbor))
            .collect::<Result<_, _>>()?;
        let plan = dead(version, others)?;
        self.catalog
            .remove_version(key, &neighbors, not_before, &plan.encode())?;
        Ok(Removal::Removed {
            slots: plan.slots(),
        })
    }

    fn side(&self, version: &StoredVersion) -> Result<Side<StoredPages>, CleanError> {
        let keys = self.catalog.keys(version.lineage)?;
        let keyring = Arc::new((self.open_keys)(&keys)?);
        let view = self.view(version, &keyring)?;
        let pages = StoredPages::new(Arc::clone(&self.store), keyring, PAGES_KEPT);
        Ok(Side { view, pages })
    }

    fn view(
        &self,
        version: &StoredVersion,
        keyring: &Arc<Keyring>,
    ) -> Result<Arc<View>, CleanError> {
        let views = || self.views.lock();
        let kept = |views: &KeptViews| {
            let found = views.iter().find(|(key, _)| *key == version.key);
            found.map(|(_, view)| Arc::clone(view))
        };
        if let Some(view) = kept(&views()) {
            return Ok(view);
        }
        let (record, overlay) = open_version(version, None, &self.store, keyring)?;
        let view = Arc::new(View::new(record.root, record.tail, &overlay));
        let mut views = views();
        if views.len() == VIEWS_KEPT {
            views.remove(0);
        }
        views.push((version.key, Arc::clone(&view)));
        Ok(view)
    }

    /// Frees the slots of a plan, and forgets the plan. If some copies are
    /// unavailable, the others are freed all the same.
    ///
    /// # Errors
    /// The first [`CleanError`]: then all of the plan stays due. Freeing twice is no
    /// error.
    pub fn carry_out(&self, due: &PendingFree) -> Result<usize, CleanError> {
        let plan = FreePlan::decode(&due.plan)?;
        let mut freed = Ok(());
        let mut joined = u64::MAX;
        let mut with_parity = Vec::new();
        for (segment, slots) in plan.segments() {
            // This takes a while, and other units may join meanwhile.
            let table = self.store.table();
            joined = joined.min(table.joined());
            if table.layout(segment.copyset()).erasure().is_some() {
                with_parity.push(segment);
                continue;
            }
            let result = self.store.free(segment, &slots);
            freed = freed.and(result);
        }
        let given_back = self.reclaim(due.id, &with_parity);
        freed?;
        given_back?;
        self.catalog.finish_free(due.id, joined)?;
        Ok(plan.slots())
    }
}

impl Cleaner {
    /// Collects the slots of free `id` in segments with parity, and reclaims the
    /// segments that have enough dead slots. The others stay collected.
    fn reclaim(&self, id: i64, segments: &[SegmentId]) -> Result<(), CleanError> {
        if segments.is_empty() {
            return Ok(());
        }
        let dead = FreePlan::decode(&self.catalog.gather_dead_slots(id, segments)?)?;
        let mut gone = Vec::new();
        let mut failed = Ok(());
        for (segment, slots) in dead.segments() {
            match self.reclaim_segment(segment, &slots) {
                Ok(true) => gone.push(segment),
                Ok(false) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if !gone.is_empty() {
            self.catalog.forget_dead(id, &gone)?;
        }
        failed
    }

    fn reclaim_segment(&self, segment: SegmentId, dead: &[Slot]) -> Result<bool, CleanError> {
        let (table, copyset) = (self.store.table(), segment.copyset());
        let Some(erasure) = table.layout(copyset).erasure() else {
            return Ok(false);
        };
        // This host may not know the newest members yet.
        let newest_read = RefCell::new(Ok(()));
        let are_all_members = || {
            let newest = self.catalog.joined();
            let is_newest = matches!(newest, Ok(newest) if newest <= table.joined());
            *newest_read.borrow_mut() = newest.map(drop);
            is_newest
        };
        let members = table.members(copyset);
        let given_back = reclaim_if(members, erasure, segment, dead, are_all_members);
        newest_read.into_inner()?;
        Ok(given_back?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use base::{ClusterId, CopysetId, LineageTag, Location, SegmentId, Slot, UnitId};
    use catalog::{Copyset, MemoryCatalog};
    use unit::{Put, TrackedUnit, Unit as _};
    use unit_folder::FolderUnit;
    use world::simulated::{Fault, Simulation};

    use super::*;
    use crate::clean::sweep;

    const SLOT_BYTES: u32 = 4096;

    /// Two units, each a copyset of its own, and one of both.
    struct Rig {
        simulation: Simulation,
        units: Vec<Arc<TrackedUnit>>,
        store: Arc<Store>,
    }

    fn folder(number: usize) -> PathBuf {
        Path::new("/").join(format!("unit{number}"))
    }

    fn segment(copyset: u16, serial: u64) -> SegmentId {
        SegmentId::new(CopysetId::new(copyset).expect("12 bits"), serial).expect("36 bits")
    }

    impl Rig {
        fn new() -> Self {
            let simulation = Simulation::new(1);
            let world = simulation.world();
            let ids = [1, 2].map(UnitId::from_u128);
            let units: Vec<_> = ids
                .iter()
                .enumerate()
                .map(|(number, id)| {
                    let cluster = ClusterId::from_u128(1);
                    let unit = FolderUnit::create(&world, &folder(number), cluster, *id);
                    let unit = Arc::new(unit.expect("made"));
                    Arc::new(TrackedUnit::new(unit, Arc::clone(&world.clock)))
                })
                .collect();
            let copysets = [vec![ids[0], ids[1]], vec![ids[0]], vec![ids[1]]];
            let copysets: Vec<Copyset> = (0..)
                .zip(copysets)
                .map(|(number, members)| {
                    Copyset::of_copies(CopysetId::new(number).expect("12 bits"), members)
                })
                .collect();
            let store = Store::new(Arc::clone(&world.pool));
            store.set_table(ids.into_iter().zip(units.clone()).collect(), &copysets);
            Self {
                simulation,
                units,
                store,
            }
        }

        fn put(&self, segment: SegmentId) {
            for member in self.store.table().members(segment.copyset()) {
                let put = member.unit.put(Put {
                    lineage_tag: LineageTag::NONE,
                    segment,
                    slot_bytes: SLOT_BYTES,
                    first: Slot(0),
                    tags: &[[1; 16]],
                    data: &[1; 4096],
                });
                put.and_then(|()| member.unit.sync(&[segment]))
                    .expect("put");
            }
        }
    }

    /// A plan stopped at the first segment with a copy on a lost unit: slots on other
    /// units were never freed.
    #[test]
    fn a_lost_unit_does_not_stop_the_freeing_of_other_copies() {
        let rig = Rig::new();
        let catalog = Arc::new(MemoryCatalog::default());
        let segments = [segment(0, 1), segment(1, 2), segment(2, 3)];
        let mut plan = FreePlan::default();
        for segment in segments {
            rig.put(segment);
            plan.add(Location::new(segment, Slot(0)));
        }
        let due = PendingFree {
            id: 1,
            not_before: Millis(0),
            plan: plan.encode(),
        };
        let open_keys: OpenKeys = Arc::new(|_| Err(KeyError::Missing));
        let cleaner = Cleaner::new(Arc::clone(&rig.store), catalog, open_keys);

        rig.simulation.disk.inject(&folder(0), Fault::Missing);
        let missing = cleaner.carry_out(&due);
        assert!(matches!(missing, Err(CleanError::Unit(_))), "{missing:?}");
        assert_eq!(rig.units[1].list().expect("there"), [], "both its segments");

        rig.simulation.disk.heal(&folder(0));
        assert_eq!(rig.units[0].list().expect("there"), segments[..2]);
        assert_eq!(cleaner.carry_out(&due).expect("all of it"), 3);
        assert_eq!(rig.units[0].list().expect("there"), []);
    }

    /// A plan was carried out with the table of its beginning: slots on units that had
    /// joined meanwhile were never freed.
    #[test]
    fn a_free_is_repeated_if_a_member_has_joined() {
        let rig = Rig::new();
        let catalog = Arc::new(MemoryCatalog::default());
        let mut plan = FreePlan::default();
        rig.put(segment(0, 1));
        plan.add(Location::new(segment(0, 1), Slot(0)));
        let due = PendingFree {
            id: 1,
            not_before: Millis(0),
            plan: plan.encode(),
        };
        let open_keys: OpenKeys = Arc::new(|_| Err(KeyError::Missing));
        let cleaner = Cleaner::new(Arc::clone(&rig.store), Arc::clone(&catalog) as _, open_keys);
        catalog.set_joined(1);
        let changed = cleaner.carry_out(&due);
        assert!(
            matches!(
                changed,
                Err(CleanError::Catalog(CatalogError::MembersChanged { .. }))
            ),
            "{changed:?}"
        );
        // It knows the second one.
        let ids = [1, 2].map(UnitId::from_u128);
        let copyset = Copyset {
            joined: 1,
            ..Copyset::of_copies(CopysetId::new(0).expect("12 bits"), ids.to_vec())
        };
        let units = ids.into_iter().zip(rig.units.clone()).collect();
        rig.store.set_table(units, &[copyset]);
        assert_eq!(cleaner.carry_out(&due).expect("all of it"), 1);
    }

    /// The same holds for a sweep.
    #[test]
    fn a_lost_unit_does_not_stop_the_sweep_of_others() {
        let rig = Rig::new();
        let open = [segment(0, 1), segment(2, 2)];
        let whole = [segment(1, 7), segment(2, 8)];
        open.iter()
            .chain(&whole)
            .for_each(|segment| rig.put(*segment));
        let leftovers = catalog::Leftovers {
            open_segments: open
                .iter()
                .map(|segment| catalog::OpenSegment {
                    segment: *segment,
                    slots: 0,
                })
                .collect(),
            serials: vec![7..8, 8..9],
        };
        rig.simulation.disk.inject(&folder(0), Fault::Missing);
        sweep(&rig.store, &leftovers).expect_err("it is to be repeated");
        assert_eq!(rig.units[1].list().expect("there"), []);

        rig.simulation.disk.heal(&folder(0));
        sweep(&rig.store, &leftovers).expect("all of it");
        assert_eq!(rig.units[0].list().expect("there"), []);
    }
}
