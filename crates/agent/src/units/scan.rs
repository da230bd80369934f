//! Scans of units: a unit's statistics and, when it is due, a probe. One thread at a time scans a
//! unit, and no caller has to wait for it.

use std::sync::Arc;
use std::time::Duration;

use api::host::{Suspicion, UnitReport};
use base::with_causes;
use tokio::task::JoinHandle;
use unit::{Unit as _, UnitError, UnitStat, UnitState};
use world::host;

use super::watch::{Found, Scan};
use super::{MountedUnit, Units, lease_count};

/// How often a waiting caller checks for answers.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The longest time for which a caller of [`Units::fresh_reports`] waits.
const REPORT_WITHIN: Duration = Duration::from_millis(500);

impl Units {
    /// Probes all units, and waits until each has answered or counts as missing.
    pub async fn wait_until_found(self: &Arc<Self>) {
        let is_enough = || {
            self.note_unresponsive();
            let units = self.mounted();
            !units.iter().any(|mounted| mounted.watched.is_awaited())
        };
        wait_for(self.probe(true), is_enough).await;
    }

    /// The states of all units, probed again; a unit that does not answer soon is reported in its
    /// last state.
    pub async fn fresh_reports(self: &Arc<Self>) -> Vec<UnitReport> {
        let scans: Vec<_> = self
            .mounted()
            .into_iter()
            .filter_map(|mounted| {
                let is_probed = mounted.is_new();
                self.start_scan(mounted, is_probed)
            })
            .collect();
        let clock = &self.context().world.clock;
        let until = clock.monotonic() + REPORT_WITHIN;
        wait_for(scans, || clock.monotonic() >= until).await;
        self.reports()
    }

    /// Starts to probe the units whose probe is due, or all, and notes which units have become
    /// unresponsive.
    pub fn probe(self: &Arc<Self>, all: bool) -> Vec<JoinHandle<()>> {
        self.note_unresponsive();
        self.mounted()
            .into_iter()
            .filter(|mounted| all || mounted.tracked.is_probe_due())
            .filter_map(|mounted| self.start_scan(mounted, true))
            .collect()
    }

    fn note_unresponsive(&self) {
        for mounted in self.mounted() {
            if mounted.watched.falls_unresponsive() {
                // Its calls are refused from now on, by which the unit's health notices it.
                let error = mounted.tracked.reclaim().err();
                let error = error.map(|error| with_causes(&error));
                tracing::warn!(unit = mounted.url, error, "unit does not answer");
            }
        }
    }

    /// Starts to scan a unit in its own thread, unless a scan is in progress.
    fn start_scan(
        self: &Arc<Self>,
        mounted: MountedUnit,
        is_probed: bool,
    ) -> Option<JoinHandle<()>> {
        let scan = mounted.watched.begin_scan()?;
        let units = Arc::clone(self);
        Some(tokio::task::spawn_blocking(move || {
            scan_unit(&units, &mounted, &scan, is_probed);
        }))
    }
}

/// The answer of a unit.
struct Answer {
    stat: Option<UnitStat>,
    error: Option<UnitError>,
}

impl Answer {
    fn of(mounted: &MountedUnit, is_probed: bool) -> Self {
        let error = match is_probed {
            true => mounted.tracked.probe().err(),
            false => None,
        };
        match mounted.tracked.stat() {
            Ok(stat) => Self {
                stat: Some(stat),
                error,
            },
            Err(why) => Self {
                stat: None,
                error: error.or(Some(why)),
            },
        }
    }

    fn incarnation(&self) -> Option<u64> {
        self.stat.and_then(|stat| stat.incarnation)
    }

    /// Whether the unit is available, but its process is not the one that answered before.
    fn has_restarted(&self, known: &Found) -> bool {
        self.stat.is_some() && self.incarnation() != known.incarnation
    }

    /// What a rejoined unit may have lost.
    fn suspicion(&self, known: &Found) -> Suspicion {
        let incarnation = self.incarnation();
        match incarnation.is_none() || incarnation != known.incarnation {
            true => Suspicion::Restarted,
            false => Suspicion::NothingLost,
        }
    }
}

/// Scans a unit. Blocks.
fn scan_unit(units: &Units, mounted: &MountedUnit, scan: &Scan, is_probed: bool) {
    let before = mounted.tracked.state();
    let answer = Answer::of(mounted, is_probed);
    let device = mounted.folder.as_deref();
    let device = device.and_then(|folder| host::device(folder).ok());
    let known = mounted.watched.last_found();
    let has_restarted = answer.has_restarted(&known);
    // True only once, whichever call found it missing or available again.
    let was_missing = mounted.tracked.take_return();
    // A unit that was unavailable may have changed meanwhile.
    let may_have_changed =
        !known.was_ever_found || before != UnitState::Healthy || was_missing || has_restarted;
    if answer.stat.is_some() && may_have_changed {
        read_lease_count(units, mounted);
        units.rejoined().check(mounted.id);
        read_facts(mounted);
    }
    scan.found(answer.stat, device);
    if (was_missing || has_restarted) && known.was_ever_found {
        let suspicion = answer.suspicion(&known);
        units.rejoined().suspect(mounted.id, suspicion);
    }
    let after = mounted.tracked.state();
    if before != after {
        let (before, after) = (before.name(), after.name());
        let owner = &units.context().owner;
        let problem = answer.error.map(|error| owner.describe(&error));
        tracing::warn!(
            unit = mounted.url,
            before,
            after,
            error = problem,
            "unit changed state"
        );
    }
}

/// Reads the lease count of a unit that was found or has rejoined.
fn read_lease_count(units: &Units, mounted: &MountedUnit) {
    let mut noted = mounted.noted_leases.lock();
    match lease_count::read(&*mounted.unit, units.count_signer()) {
        Ok(leases) => {
            mounted.watched.note_leases(leases);
            // If its count is lower than what this process has stored, the next lease stores it
            // again.
            *noted = leases.min(*noted);
        }
        Err(error) => {
            tracing::warn!(unit = mounted.url, %error, "agent could not read lease count of unit");
        }
    }
}

fn read_facts(mounted: &MountedUnit) {
    match mounted.unit.facts() {
        Ok(facts) => *mounted.facts.lock() = facts,
        Err(error) => {
            let error = with_causes(&error);
            tracing::warn!(
                unit = mounted.url,
                error,
                "agent could not read facts about unit"
            );
        }
    }
}

/// Waits until all scans have ended, or `is_enough` returns true.
pub(super) async fn wait_for(scans: Vec<JoinHandle<()>>, is_enough: impl Fn() -> bool) {
    let answers = async {
        for scan in scans {
            // A panic was logged where it happened.
            let _ = scan.await;
        }
    };
    tokio::pin!(answers);
    let mut tick = host::ticks(POLL_INTERVAL);
    loop {
        tokio::select! {
            () = &mut answers => return,
            _ = tick.tick() => if is_enough() { return },
        }
    }
}
