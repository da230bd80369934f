//! [`RejoinedUnits`]: what must be checked and reported about units that have rejoined
//! (docs/internals/rejoined-units.md). `reports` sends the reports.

use std::collections::{HashMap, HashSet};

use api::host::Suspicion;
use base::UnitId;
use parking_lot::Mutex;

/// The units that have rejoined, and the lease counts that were stored.
#[derive(Debug, Default)]
pub(crate) struct RejoinedUnits {
    state: Mutex<State>,
    /// Held while suspicions are reported: if a suspicion were reported twice at once, it would be
    /// reported again later.
    pub reporting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Units that must be checked for an earlier state.
    unchecked: HashSet<UnitId>,
    /// Suspicions that must be reported.
    suspicions: HashMap<UnitId, Suspicion>,
    /// Lease counts that must be reported.
    noted: HashMap<UnitId, u64>,
    /// The logged reasons for which the controllers have rejected reports.
    rejections: HashMap<UnitId, String>,
}

impl RejoinedUnits {
    /// Notes that a unit must be checked for an earlier state.
    pub fn check(&self, unit: UnitId) {
        self.state.lock().unchecked.insert(unit);
    }

    /// Whether a unit must be checked. If so, the caller has to check it.
    pub fn take_check(&self, unit: UnitId) -> bool {
        self.state.lock().unchecked.remove(&unit)
    }

    /// The units that must be checked, if `exists` returns true for them; others are dropped.
    pub fn to_check(&self, exists: impl Fn(UnitId) -> bool) -> HashSet<UnitId> {
        let mut state = self.state.lock();
        state.unchecked.retain(|unit| exists(*unit));
        state.unchecked.clone()
    }

    /// Notes a suspicion that must be reported, unless a graver one is pending.
    pub fn suspect(&self, unit: UnitId, suspicion: Suspicion) {
        let mut state = self.state.lock();
        if suspicion == Suspicion::Older {
            // The lease count stored there is lost.
            state.noted.remove(&unit);
        }
        let known = state.suspicions.entry(unit).or_insert(suspicion);
        *known = suspicion.max(*known);
    }

    /// The suspicions that must be reported.
    pub fn suspicions(&self) -> HashMap<UnitId, Suspicion> {
        self.state.lock().suspicions.clone()
    }

    /// Notes that the controllers accepted the report of a suspicion.
    pub fn note_reported(&self, unit: UnitId, suspicion: Suspicion) {
        let mut state = self.state.lock();
        if state.suspicions.get(&unit) == Some(&suspicion) {
            state.suspicions.remove(&unit);
            state.rejections.remove(&unit);
        }
    }

    /// Notes that the controllers rejected the report of a suspicion. Returns whether the reason is
    /// new.
    pub fn note_rejected(&self, unit: UnitId, why: &str) -> bool {
        let before = self.state.lock().rejections.insert(unit, why.to_owned());
        before.as_deref() != Some(why)
    }

    /// Notes that this lease count was stored on a unit, durably, and must be reported.
    pub fn note_count(&self, unit: UnitId, leases: u64) {
        let mut state = self.state.lock();
        let noted = state.noted.entry(unit).or_default();
        *noted = leases.max(*noted);
    }

    /// The lease count that this host has stored on a unit and not reported yet.
    pub fn unreported_count(&self, unit: UnitId) -> u64 {
        self.state.lock().noted.get(&unit).copied().unwrap_or(0)
    }

    /// The lease counts that must be reported. They count as unreported until they are accepted.
    pub fn counts(&self) -> Vec<(UnitId, u64)> {
        let state = self.state.lock();
        let noted = state.noted.iter();
        noted.map(|(unit, leases)| (*unit, *leases)).collect()
    }

    /// Notes that the controllers accepted these lease counts.
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

    /// Regression: a lease that was stored while the count before it was reported was never
    /// reported; and a count that was being reported counted as reported.
    #[test]
    fn a_count_is_unreported_until_that_very_count_is_accepted() {
        let rejoined = RejoinedUnits::default();
        rejoined.note_count(UNIT, 5);
        let reported = [(UNIT, 5)];
        assert_eq!(
            rejoined.unreported_count(UNIT),
            5,
            "the report is in progress"
        );
        rejoined.note_count(UNIT, 6);
        rejoined.note_counts_reported(&reported);
        assert_eq!(rejoined.unreported_count(UNIT), 6);
        rejoined.note_counts_reported(&[(UNIT, 6)]);
        assert_eq!(rejoined.unreported_count(UNIT), 0);
    }

    #[test]
    fn a_reason_for_a_rejected_report_is_new_once() {
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
