//! Carrying it out: removing versions, and freeing what is due.

use std::sync::{Arc, Mutex, PoisonError};

use unit::UnitError;
use world::Millis;

use super::dead::{Side, View, dead};
use super::plan::{BadPlan, FreePlan};
use crate::catalog::{Catalog, CatalogError, LineageKey, PendingFree, StoredVersion, VersionKey};
use crate::engine::{OpenError, StoredPages, open_version};
use crate::scatter::{ReadError, Store};
use crate::seal::{KeyError, Keyring};

/// Opens the keys of a lineage. The cleaner needs them: maps are sealed.
pub type OpenKeys = Arc<dyn Fn(&[LineageKey]) -> Result<Keyring, KeyError> + Send + Sync>;

/// Map pages a removal keeps in memory for each version: 4 MiB.
const PAGES_KEPT: usize = 1024;

/// Removes versions and frees their slots. All of it waits; it belongs on a
/// pool thread.
#[derive(Clone)]
pub struct Cleaner {
    store: Arc<Store>,
    catalog: Arc<dyn Catalog>,
    open_keys: OpenKeys,
    /// Views made last: versions are mostly removed one after another, and
    /// each is the neighbour of the one before.
    views: Arc<Mutex<KeptViews>>,
}

/// Views, oldest first.
type KeptViews = Vec<(VersionKey, Arc<View>)>;

/// How many views are kept: a version and its usual two neighbours, and one to
/// spare. A view takes up to some 4 MiB.
const VIEWS_KEPT: usize = 4;

/// What became of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is gone, and this many slots will be freed.
    Removed {
        /// How many slots only it held.
        slots: usize,
    },
    /// A head or a snapshot needs it, or versions branch off from it; it
    /// stays.
    Needed,
}

/// Why nothing, or not everything, was cleaned. It may be tried again.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The catalog refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The keys do not open.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A version cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A map page cannot be had.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The catalog holds a plan that makes no sense.
    #[error(transparent)]
    Plan(#[from] BadPlan),
    /// A unit could not free.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl Cleaner {
    /// A cleaner for what `catalog` knows on the units of `store`.
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
        let neighbours = self.catalog.neighbours(key)?;
        // Where versions branch, the one below them stays until one branch is
        // left. Without it two versions could hold a slot and not be
        // neighbours, and [`dead`] would free it under one of them.
        if neighbours.needed || neighbours.children.len() > 1 {
            return Ok(Removal::Needed);
        }
        let version = self.side(&self.catalog.version(key)?)?;
        let others = neighbours
            .parent
            .iter()
            .chain(&neighbours.children)
            .map(|neighbour| self.side(neighbour))
            .collect::<Result<_, _>>()?;
        let plan = dead(version, others)?;
        self.catalog
            .remove_version(key, &neighbours, not_before, &plan.encode())?;
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
        let views = || self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = |views: &KeptViews| {
            let found = views.iter().find(|(key, _)| *key == version.key);
            found.map(|(_, view)| Arc::clone(view))
        };
        if let Some(view) = kept(&views()) {
            return Ok(view);
        }
        let (record, overlay) = open_version(version, &self.store, keyring)?;
        let view = Arc::new(View::new(record.root, record.tail, &overlay));
        let mut views = views();
        if views.len() == VIEWS_KEPT {
            views.remove(0);
        }
        views.push((version.key, Arc::clone(&view)));
        Ok(view)
    }

    /// Frees what a removed version held, and forgets the plan.
    ///
    /// # Errors
    /// [`CleanError`]: then it is still due.
    pub fn carry_out(&self, due: &PendingFree) -> Result<usize, CleanError> {
        let plan = FreePlan::decode(&due.plan)?;
        for (segment, slots) in plan.segments() {
            self.store.free(segment, &slots)?;
        }
        self.catalog.freed(due.id)?;
        Ok(plan.slots())
    }
}
