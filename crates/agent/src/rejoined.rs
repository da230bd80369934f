//! Units that come back: whether they may lack something, and whether they are older than
//! they were (docs/units.md, "Coming back").

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::host::catalog_calls::{NoteLeases, NotedLeases, SuspectUnit};
use api::host::{NOTED_MAX, Suspicion};
use base::{UnitId, with_causes};
use catalog::CatalogError;
use unit::UnitState;
use world::host;

use crate::agent::{Agent, Inner, lock};
use crate::lease_count;
use crate::units::{Mounted, wait_for};
use crate::watch::ANSWER_WITHIN;

/// How often it is looked whether there is something to say.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is to be found out and said of units that came back.
#[derive(Debug, Default)]
pub(crate) struct CameBack {
    /// It is to be looked whether they are older.
    pub to_judge: HashSet<UnitId>,
    /// The controllers are to hear of these.
    suspicions: HashMap<UnitId, Suspicion>,
    /// And that so many leases were noted on those.
    noted: HashMap<UnitId, u64>,
    /// Why a suspicion was not taken, as it was logged.
    refused: HashMap<UnitId, String>,
}

impl CameBack {
    /// That is to be said of a unit, unless more is.
    pub fn suspicion(&mut self, unit: UnitId, suspicion: Suspicion) {
        if suspicion == Suspicion::Older {
            // It is not there any more.
            self.noted.remove(&unit);
        }
        let known = self.suspicions.entry(unit).or_insert(suspicion);
        *known = suspicion.max(*known);
    }

    /// So many leases were noted on a unit, durably.
    pub fn noted(&mut self, unit: UnitId, leases: u64) {
        let noted = self.noted.entry(unit).or_default();
        *noted = leases.max(*noted);
    }

    /// How many leases this host has noted on a unit and not said so yet.
    pub fn unsaid(&self, unit: UnitId) -> u64 {
        self.noted.get(&unit).copied().unwrap_or(0)
    }

    /// The controllers have heard of these leases.
    fn are_noted(&mut self, told: &[(UnitId, u64)]) {
        for (unit, leases) in told {
            if self.noted.get(unit) == Some(leases) {
                self.noted.remove(unit);
            }
        }
    }

    /// The controllers have heard it.
    fn is_said(&mut self, unit: UnitId, suspicion: Suspicion) {
        if self.suspicions.get(&unit) == Some(&suspicion) {
            self.suspicions.remove(&unit);
            self.refused.remove(&unit);
        }
    }

    /// The controllers do not take it; whether that is new.
    fn is_refused(&mut self, unit: UnitId, why: &str) -> bool {
        let before = self.refused.insert(unit, why.to_owned());
        before.as_deref() != Some(why)
    }
}

impl Agent {
    /// Looks which units that came back are older, and tells the controllers what is to be
    /// said. What cannot be found out or told now is tried again.
    pub(crate) async fn tell_of_units(&self) {
        self.look_who_is_older().await;
        self.tell_suspicions().await;
        self.tell_noted().await;
    }

    /// Does so as long as this host runs, however long repair takes.
    pub(crate) async fn keep_telling_of_units(&self) {
        let mut ticks = host::ticks(LOOK_EVERY);
        loop {
            ticks.tick().await;
            self.tell_of_units().await;
        }
    }

    async fn tell_noted(&self) {
        // Until it is heard it counts as unsaid.
        let noted = lock(&self.inner.rejoined).noted.clone();
        let noted: Vec<(UnitId, u64)> = noted.into_iter().collect();
        for told in noted.chunks(NOTED_MAX) {
            let note = NoteLeases {
                units: told.to_vec(),
            };
            if let Err(error) = self.inner.controller.catalog(note).await {
                let why = with_causes(&error);
                tracing::debug!(why, "how many leases units know of was not heard");
                return;
            }
            lock(&self.inner.rejoined).are_noted(told);
        }
    }

    /// Looks which of the units that came back are older. One that hangs is not waited
    /// for: what it says is told later.
    async fn look_who_is_older(&self) {
        let units: Vec<Mounted> = {
            let (units, mut rejoined) = (lock(&self.inner.units), lock(&self.inner.rejoined));
            let is_mounted = |id: &UnitId| units.iter().any(|mounted| mounted.id == *id);
            rejoined.to_judge.retain(is_mounted);
            let is_due = |mounted: &&Mounted| {
                let is_there = mounted.unit.state() != UnitState::Missing;
                is_there && rejoined.to_judge.contains(&mounted.id)
            };
            units.iter().filter(is_due).cloned().collect()
        };
        if units.is_empty() {
            return;
        }
        // First: what is noted there from now on is no less.
        let Ok(noted) = self.inner.controller.catalog(NotedLeases {}).await else {
            return;
        };
        let noted: HashMap<UnitId, u64> = noted.into_iter().collect();
        let judged = units.into_iter().filter_map(|mounted| {
            let noted = noted.get(&mounted.id).copied().unwrap_or(0);
            // One at a time: it is put back if it does not answer.
            let is_due = lock(&self.inner.rejoined).to_judge.remove(&mounted.id);
            let inner = Arc::clone(&self.inner);
            is_due.then(|| {
                tokio::task::spawn_blocking(move || look_whether_older(&inner, &mounted, noted))
            })
        });
        let judged: Vec<_> = judged.collect();
        let clock = &self.inner.world.clock;
        let enough = clock.monotonic() + ANSWER_WITHIN;
        wait_for(judged, || clock.monotonic() >= enough).await;
    }

    /// Tells the controllers of units that may lack something.
    pub(crate) async fn tell_suspicions(&self) {
        // Said twice at once, it would be said once more later.
        let _alone = self.inner.telling.lock().await;
        let suspicions = lock(&self.inner.rejoined).suspicions.clone();
        for (unit, suspicion) in suspicions {
            let report = SuspectUnit { unit, suspicion };
            match self.inner.controller.catalog(report).await {
                Ok(true) => lock(&self.inner.rejoined).is_said(unit, suspicion),
                // It is said again when what was said before is through.
                Ok(false) => {}
                // That no controller answers is said elsewhere.
                Err(CatalogError::Unavailable { .. }) => return,
                Err(error) => {
                    let why = with_causes(&error);
                    if lock(&self.inner.rejoined).is_refused(unit, &why) {
                        tracing::warn!(%unit, why, "that it came back was not taken");
                    }
                }
            }
        }
    }
}

/// Whether a unit, on which at least `noted` leases were noted, is older than it was. Waits.
fn look_whether_older(inner: &Inner, mounted: &Mounted, noted: u64) {
    match lease_count::read_own(&*mounted.watched, &inner.vouch) {
        Ok(knows) if knows < noted => lock(&inner.rejoined).suspicion(mounted.id, Suspicion::Older),
        Ok(_) => {}
        Err(error) => {
            lock(&inner.rejoined).to_judge.insert(mounted.id);
            let (unit, why) = (&mounted.url, with_causes(&error));
            tracing::debug!(
                unit,
                why,
                "it is not known yet whether it is older than it was"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: UnitId = UnitId::from_u128(1);

    /// A lease that was noted while the count before it was told was never told of; and
    /// while it was told, it counted as said.
    #[test]
    fn what_is_noted_is_unsaid_until_that_very_count_is_heard() {
        let mut rejoined = CameBack::default();
        rejoined.noted(UNIT, 5);
        let told = [(UNIT, 5)];
        assert_eq!(rejoined.unsaid(UNIT), 5, "it is on its way");
        rejoined.noted(UNIT, 6);
        rejoined.are_noted(&told);
        assert_eq!(rejoined.unsaid(UNIT), 6);
        rejoined.are_noted(&[(UNIT, 6)]);
        assert_eq!(rejoined.unsaid(UNIT), 0);
    }

    #[test]
    fn why_a_suspect_is_not_taken_is_news_once() {
        let mut rejoined = CameBack::default();
        rejoined.suspicion(UNIT, Suspicion::Restarted);
        assert!(rejoined.is_refused(UNIT, "no such host"));
        assert!(!rejoined.is_refused(UNIT, "no such host"));
        assert!(rejoined.is_refused(UNIT, "the host is disabled"));
        rejoined.is_said(UNIT, Suspicion::Restarted);
        rejoined.suspicion(UNIT, Suspicion::Restarted);
        assert!(rejoined.is_refused(UNIT, "the host is disabled"), "anew");
    }
}
