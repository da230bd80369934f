//! Readiness and metrics of a daemon.

use std::sync::Arc;
use std::time::Duration;

use base::with_causes;
use metrics::{Answer, Measures, Part};
use parking_lot::Mutex;
use unit::{Health, Moment, OpClass, Unit as _, UnitError, UnitStat, UnitState};
use unit_folder::{FolderUnit, UndeleteUsage};
use world::Clock;

use super::Service;
use crate::declared_metrics::{
    BYTES, CLOCK_OFFSET, CONFIG_AGE, CONNECTIONS, CONNECTIONS_MAX, DAEMON_INFO, FREE_BYTES,
    HELD_BYTES, SEGMENTS, UNDELETE_BYTES, UNDELETE_EVICTED_BYTES, UNDELETE_SEGMENTS, UNIT_STATE,
};

/// Number of missed reports after which the controllers count as unavailable.
const MISSED_REPORTS_MAX: u32 = 3;

/// Time within which a check of the folder must end.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Time for which a check reclaims room while more is stored than the policy allows: nearly
/// until the next check.
const RECLAIM_FOR: Duration = Duration::from_secs(4);

/// The checks of the folder.
pub(super) struct Checks {
    last: Arc<Mutex<LastCheck>>,
}

struct LastCheck {
    health: Health,
    stat: Option<(UnitStat, UndeleteUsage)>,
    /// When the check that is running began.
    running_since: Option<Duration>,
}

impl Checks {
    pub fn new(clock: &dyn Clock) -> Self {
        Self {
            last: Arc::new(Mutex::new(LastCheck {
                health: Health::new(moment(clock)),
                stat: None,
                running_since: None,
            })),
        }
    }
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment {
        monotonic: clock.monotonic(),
        wall: clock.wall(),
    }
}

impl Service {
    /// Checks the folder and reclaims some room, on a thread that may wait, unless a check is
    /// running.
    pub(super) fn check_folder(&self) {
        let last = Arc::clone(&self.inner.checks.last);
        let clock = Arc::clone(&self.inner.world.clock);
        if last.lock().running_since.is_some() {
            return;
        }
        last.lock().running_since = Some(clock.monotonic());
        let keeper = Arc::clone(&self.inner.keeper);
        tokio::task::spawn_blocking(move || {
            let outcome = check(keeper.unit(), &*clock);
            let mut last = last.lock();
            last.running_since = None;
            last.record(outcome, &*clock);
        });
    }

    /// Why the daemon cannot do its work now, one sentence each.
    fn unready_reasons(&self) -> Vec<String> {
        let inner = &self.inner;
        let now = inner.world.clock.monotonic();
        let mut reasons = Vec::new();
        if inner.server.lock().is_none() {
            reasons.push("it is shutting down".to_owned());
        }
        let last = inner.checks.last.lock();
        let state = last.health.state();
        if let Some(since) = last.running_since
            && now.saturating_sub(since) >= ANSWERS_WITHIN
        {
            reasons.push("the unit's folder does not respond".to_owned());
        } else if state != UnitState::Healthy {
            reasons.push(format!("the unit is {}", state.name()));
        }
        let age = now.saturating_sub(*inner.configured_at.lock());
        if age >= inner.report_every * MISSED_REPORTS_MAX {
            let age = age.as_secs();
            reasons.push(format!(
                "no controller has sent a valid configuration for {age} s"
            ));
        }
        reasons
    }

    fn measures(&self) -> Measures {
        let inner = &self.inner;
        let mut measures = Measures::default();
        let labels = vec![
            ("unit", self.unit().to_string()),
            ("url", self.url().to_owned()),
        ];
        measures.gauge(&DAEMON_INFO, [(labels, 1.0)]);
        let age = inner.world.clock.monotonic();
        let age = age.saturating_sub(*inner.configured_at.lock());
        measures.one(&CONFIG_AGE, age.as_secs_f64());
        let offset_ms = inner.keeper.clock_offset_ms();
        measures.one(&CLOCK_OFFSET, offset_ms as f64 / 1000.0);
        let (connections, held_bytes) = inner
            .server
            .lock()
            .as_ref()
            .map_or((0, 0), |server| (server.connections(), server.held_bytes()));
        measures.one(&CONNECTIONS, connections as f64);
        measures.one(&CONNECTIONS_MAX, inner.connections_max as f64);
        measures.one(&HELD_BYTES, held_bytes as f64);
        inner.checks.last.lock().measure(&mut measures);
        inner.keeper.counters().measure(&mut measures);
        measures
    }
}

fn check(unit: &FolderUnit, clock: &dyn Clock) -> Result<(UnitStat, UndeleteUsage), UnitError> {
    unit.probe()?;
    let stat = unit.stat()?;
    let end = clock.monotonic() + RECLAIM_FOR;
    loop {
        // A little with each check, because hosts come first, unless they free faster than their
        // room is reclaimed.
        let is_more = unit.reclaim()?;
        let usage = unit.undelete_usage()?;
        if !(is_more && usage.is_over_limit) || clock.monotonic() >= end {
            return Ok((stat, usage));
        }
    }
}

impl LastCheck {
    fn record(&mut self, outcome: Result<(UnitStat, UndeleteUsage), UnitError>, clock: &dyn Clock) {
        let before = self.health.state();
        let error = match outcome {
            Ok(stat) => {
                self.stat = Some(stat);
                None
            }
            Err(error) => Some(error),
        };
        let result = error.as_ref().map_or(Ok(()), Err);
        self.health.record(OpClass::Probe, result, moment(clock));
        let after = self.health.state();
        if before != after {
            let (before, after) = (before.name(), after.name());
            let reason = error.map(|error| with_causes(&error));
            tracing::warn!(before, after, error = reason, "unit changed its state");
        }
    }

    fn measure(&self, measures: &mut Measures) {
        let state = self.health.state();
        let states = UnitState::ALL.into_iter().map(|one| {
            let labels = vec![("state", one.name().to_owned())];
            (labels, f64::from(one == state))
        });
        measures.gauge(&UNIT_STATE, states);
        let Some((stat, usage)) = &self.stat else {
            return;
        };
        measures.one(&SEGMENTS, stat.segments as f64);
        measures.one(&BYTES, stat.bytes as f64);
        measures.one(&UNDELETE_BYTES, usage.bytes as f64);
        measures.one(&UNDELETE_SEGMENTS, usage.segments as f64);
        measures.count(&UNDELETE_EVICTED_BYTES, usage.evicted_bytes);
        if let Some(free_bytes) = stat.free_bytes {
            measures.one(&FREE_BYTES, free_bytes as f64);
        }
    }
}

impl Part for Service {
    fn name(&self) -> &'static str {
        "unit"
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { self.unready_reasons() })
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(async { self.measures() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{ClusterId, CopysetId, LineageTag, SegmentId, Slot, UnitId};
    use unit::Put;
    use unit_folder::UndeletePolicy;
    use world::simulated::Simulation;
    use world::{Millis, World};

    use super::*;

    /// A clock of which each reading takes 10 ms.
    struct SlowClock(Simulation);

    impl Clock for SlowClock {
        fn monotonic(&self) -> Duration {
            self.0.clock.advance(Duration::from_millis(10));
            self.0.clock.monotonic()
        }

        fn wall(&self) -> Millis {
            self.0.clock.wall()
        }
    }

    /// A check reclaimed for 200 ms of 5 s, and the stored bytes grew beyond the limit.
    #[test]
    fn a_check_reclaims_until_the_undelete_limit_holds() {
        let simulation = Simulation::new(1);
        let mut world: World = simulation.world();
        let path = Path::new("/unit");
        simulation.disk.set_capacity(path, 32 << 20);
        world.clock = Arc::new(SlowClock(simulation));
        let (cluster, id) = (ClusterId::from_u128(1), UnitId::from_u128(1));
        let unit = FolderUnit::create(&world, path, cluster, id).expect("made");
        let unit = unit.with_undelete(UndeletePolicy {
            room_percent: 5,
            ..UndeletePolicy::default()
        });
        for serial in 0..150 {
            let copyset = CopysetId::new(1).expect("under 4096");
            let segment = SegmentId::new(copyset, serial).expect("under 2^36");
            let put = unit.put(Put {
                lineage_tag: LineageTag::NONE,
                segment,
                slot_bytes: 4096,
                first: Slot(0),
                tags: &[[1; 16]],
                data: &[1; 4096],
            });
            put.expect("put");
            unit.delete(segment).expect("deleted");
        }
        assert!(unit.undelete_usage().expect("known").is_over_limit);
        let (_, usage) = check(&unit, &*world.clock).expect("well");
        assert!(!usage.is_over_limit, "{usage:?}");
        assert!(usage.segments > 50, "{usage:?}");
    }
}
