//! [`RejoinedUnits`]: what has to be found out, and reported, about units that have rejoined
//! (docs/internals/rejoined-units.md). `reports` reports it.

use std::collections::{HashMap, HashSet};

use api::host::Suspicion;
use base::UnitId;
use parking_lot::Mutex;

/// The units that have rejoined, and the lease counts that were noted.
#[derive(Debug, Default)]
pub(crate) struct RejoinedUnits {
    state: Mutex<State>,
    /// Held while suspicions are reported: reported twice at once, one would be reported again
    /// later.
    pub reporting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Units that have to be checked for an earlier state.
    unchecked: HashSet<UnitId>,
    /// Suspicions that have to be reported.
    suspicions: HashMap<UnitId, Suspicion>,
    /// Lease counts that have to be reported.
    noted: HashMap<UnitId, u64>,
    /// Why the controllers have rejected a report, as it was logged.
    rejections: HashMap<UnitId, String>,
}

impl RejoinedUnits {
    /// A unit has to be checked for an earlier state.
    pub fn check(&self, unit: UnitId) {
        self.state.lock().unchecked.insert(unit);
    }

    /// Whether a unit has to be checked. Then the caller checks it: it is not asked again.
    pub fn take_check(&self, unit: UnitId) -> bool {
        self.state.lock().unchecked.remove(&unit)
    }

    /// The units that have to be checked, of those that `exists` holds for; others are forgotten.
    pub fn to_check(&self, exists: impl Fn(UnitId) -> bool) -> HashSet<UnitId> {
        let mut state = self.state.lock();
        state.unchecked.retain(|unit| exists(*unit));
        state.unchecked.clone()
    }

    /// A suspicion about a unit has to be reported, unless a graver one has.
    pub fn suspect(&self, unit: UnitId, suspicion: Suspicion) {
        let mut state = self.state.lock();
        if suspicion == Suspicion::Older {
            // What was noted there is not there any more.
            state.noted.remove(&unit);
        }
        let known = state.suspicions.entry(unit).or_insert(suspicion);
        *known = suspicion.max(*known);
    }

    /// The suspicions that have to be reported.
    pub fn suspicions(&self) -> HashMap<UnitId, Suspicion> {
        self.state.lock().suspicions.clone()
    }

    /// The controllers have accepted the report of a suspicion.
    pub fn note_reported(&self, unit: UnitId, suspicion: Suspicion) {
        let mut state = self.state.lock();
        if state.suspicions.get(&unit) == Some(&suspicion) {
            state.suspicions.remove(&unit);
            state.rejections.remove(&unit);
        }
    }

    /// The controllers reject the report of a suspicion; whether the reason is a new one.
    pub fn note_rejected(&self, unit: UnitId, why: &str) -> bool {
        let before = self.state.lock().rejections.insert(unit, why.to_owned());
        before.as_deref() != Some(why)
    }

    /// This many leases were noted on a unit, durably: that has to be reported.
    pub fn note_count(&self, unit: UnitId, leases: u64) {
        let mut state = self.state.lock();
        let noted = state.noted.entry(unit).or_default();
        *noted = leases.max(*noted);
    }

    /// The lease count that this host has noted on a unit and not reported yet.
    pub fn unreported_count(&self, unit: UnitId) -> u64 {
        self.state.lock().noted.get(&unit).copied().unwrap_or(0)
    }

    /// The lease counts that have to be reported. They count as unreported until they are heard.
    pub fn counts(&self) -> Vec<(UnitId, u64)> {
        let state = self.state.lock();
        let noted = state.noted.iter();
        noted.map(|(unit, leases)| (*unit, *leases)).collect()
    }

    /// The controllers have heard of these lease counts.
    pub fn note_counts_reported(&self, reported: &[(UnitId, u64)]) {
        let mut state = self.state.lock();
        for (unit, leases) in reported {
            if state.noted.get(unit) == Some(leases) {
                state.noted.remove(unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: UnitId = UnitId::from_u128(1);

    /// A lease that was noted while the count before it was reported was never reported; and
    /// while it was reported, it counted as reported.
    #[test]
    fn a_count_is_unreported_until_that_very_count_is_heard() {
        let rejoined = RejoinedUnits::default();
        rejoined.note_count(UNIT, 5);
        let reported = [(UNIT, 5)];
        assert_eq!(rejoined.unreported_count(UNIT), 5, "it is on its way");
        rejoined.note_count(UNIT, 6);
        rejoined.note_counts_reported(&reported);
        assert_eq!(rejoined.unreported_count(UNIT), 6);
        rejoined.note_counts_reported(&[(UNIT, 6)]);
        assert_eq!(rejoined.unreported_count(UNIT), 0);
    }

    #[test]
    fn the_reason_for_which_a_report_is_rejected_is_new_once() {
        let rejoined = RejoinedUnits::default();
        rejoined.suspect(UNIT, Suspicion::Restarted);
        assert!(rejoined.note_rejected(UNIT, "no such host"));
        assert!(!rejoined.note_rejected(UNIT, "no such host"));
        assert!(rejoined.note_rejected(UNIT, "the host is disabled"));
        rejoined.note_reported(UNIT, Suspicion::Restarted);
        rejoined.suspect(UNIT, Suspicion::Restarted);
        assert!(
            rejoined.note_rejected(UNIT, "the host is disabled"),
            "again"
        );
    }
}
