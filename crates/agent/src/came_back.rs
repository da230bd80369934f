//! Units that come back: whether they may lack something, and whether they are older than
//! they were (docs/units.md, "Coming back").

use std::collections::{HashMap, HashSet};

use api::host::Doubt;
use base::{UnitId, with_causes};

use crate::agent::{Agent, blocking, lock};
use crate::lease_count;
use crate::units::Mounted;

/// What is to be found out and said of units that came back.
#[derive(Debug, Default)]
pub(crate) struct CameBack {
    /// It is to be looked whether they are older.
    pub to_judge: HashSet<UnitId>,
    /// The controllers are to hear of these.
    doubts: HashMap<UnitId, Doubt>,
    /// And that so many leases were noted on those.
    noted: HashMap<UnitId, u64>,
}

impl CameBack {
    /// That is to be said of a unit, unless more is.
    pub fn doubt(&mut self, unit: UnitId, doubt: Doubt) {
        let known = self.doubts.entry(unit).or_insert(doubt);
        *known = doubt.max(*known);
    }

    /// So many leases were noted on a unit, durably.
    pub fn noted(&mut self, unit: UnitId, leases: u64) {
        let noted = self.noted.entry(unit).or_default();
        *noted = leases.max(*noted);
    }

    /// The controllers have heard it.
    fn is_said(&mut self, unit: UnitId, doubt: Doubt) {
        if self.doubts.get(&unit) == Some(&doubt) {
            self.doubts.remove(&unit);
        }
    }
}

impl Agent {
    /// Looks which units that came back are older, and tells the controllers what is to be
    /// said. What cannot be found out or told now is tried again.
    pub(crate) async fn tell_of_units(&self) {
        self.judge().await;
        self.tell_doubts().await;
        let noted = std::mem::take(&mut lock(&self.inner.came_back).noted);
        if noted.is_empty() {
            return;
        }
        let told = noted.iter().map(|(unit, leases)| (*unit, *leases));
        if self
            .inner
            .controller
            .note_leases(told.collect())
            .await
            .is_err()
        {
            let mut came_back = lock(&self.inner.came_back);
            for (unit, leases) in noted {
                came_back.noted(unit, leases);
            }
        }
    }

    async fn judge(&self) {
        let to_judge = lock(&self.inner.came_back).to_judge.clone();
        if to_judge.is_empty() {
            return;
        }
        // First: what is noted there from now on is no less.
        let Ok(noted) = self.inner.controller.noted_leases().await else {
            return;
        };
        for unit in to_judge {
            let mounted = self.mounted(unit);
            let Some(mounted) = mounted else {
                lock(&self.inner.came_back).to_judge.remove(&unit);
                continue;
            };
            let inner = self.inner.clone();
            let says = blocking(move || lease_count::read_own(&*mounted.place, &inner.vouch)).await;
            let Ok(Ok(says)) = says else {
                // It is looked at again when it answers.
                continue;
            };
            let mut came_back = lock(&self.inner.came_back);
            came_back.to_judge.remove(&unit);
            if says < noted.get(&unit).copied().unwrap_or(0) {
                came_back.doubt(unit, Doubt::Older);
            }
        }
    }

    /// Tells the controllers of units that may lack something.
    pub(crate) async fn tell_doubts(&self) {
        let doubts = lock(&self.inner.came_back).doubts.clone();
        for (unit, doubt) in doubts {
            match self.inner.controller.doubt_unit(unit, doubt).await {
                Ok(true) => lock(&self.inner.came_back).is_said(unit, doubt),
                // It is said again when what was said before is through.
                Ok(false) => {}
                Err(error) => {
                    let why = with_causes(&error);
                    tracing::warn!(%unit, why, "the controllers did not hear that it came back");
                }
            }
        }
    }

    fn mounted(&self, unit: UnitId) -> Option<Mounted> {
        let units = lock(&self.inner.units);
        units.iter().find(|mounted| mounted.id == unit).cloned()
    }
}
