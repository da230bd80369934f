//! Whether a daemon can do its work, and how it is doing, for those who watch.

use std::sync::Arc;
use std::time::Duration;

use base::with_causes;
use metrics::{Answer, Measures, Part};
use parking_lot::Mutex;
use unit::{Health, Moment, OpClass, Unit as _, UnitError, UnitStat, UnitState};
use unit_folder::{FolderUnit, KeptFreed};
use world::Clock;

use super::Service;
use crate::declared_metrics::{
    BYTES, CLOCK_OFFSET, CONFIG_AGE, CONNECTIONS, CONNECTIONS_MAX, DAEMON_INFO, FREE_BYTES,
    HELD_BYTES, SEGMENTS, UNDELETE_BYTES, UNDELETE_DROPPED_BYTES, UNDELETE_SEGMENTS, UNIT_STATE,
};

/// A controller is away that was not heard of for as long as it should have been
/// so often.
const MISSED_MAX: u32 = 3;

/// A folder answers within this, or says nothing.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// A look gives back room for so long while more is held than may be: nearly until
/// the next look.
const SETTLES_FOR: Duration = Duration::from_secs(4);

/// What looking at the folder has found.
pub(super) struct Looks {
    found: Arc<Mutex<Found>>,
}

struct Found {
    health: Health,
    stat: Option<(UnitStat, KeptFreed)>,
    /// Since when somebody looks.
    looking: Option<Duration>,
}

impl Looks {
    pub fn new(clock: &dyn Clock) -> Self {
        Self {
            found: Arc::new(Mutex::new(Found {
                health: Health::new(moment(clock)),
                stat: None,
                looking: None,
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
    /// Looks how the folder is, and gives back some room, on a thread that may
    /// wait; unless one does already.
    pub(super) fn look(&self) {
        let found = Arc::clone(&self.inner.looks.found);
        let clock = Arc::clone(&self.inner.world.clock);
        if found.lock().looking.is_some() {
            return;
        }
        found.lock().looking = Some(clock.monotonic());
        let keeper = Arc::clone(&self.inner.keeper);
        tokio::task::spawn_blocking(move || {
            let outcome = look_at(keeper.unit(), &*clock);
            let mut found = found.lock();
            found.looking = None;
            found.note(outcome, &*clock);
        });
    }

    /// Why it cannot do its work at this moment, one sentence each.
    fn unready_for(&self) -> Vec<String> {
        let inner = &self.inner;
        let now = inner.world.clock.monotonic();
        let mut reasons = Vec::new();
        if inner.server.lock().is_none() {
            reasons.push("it is ending".to_owned());
        }
        let found = inner.looks.found.lock();
        let state = found.health.state();
        if let Some(since) = found.looking
            && now.saturating_sub(since) >= ANSWERS_WITHIN
        {
            reasons.push("the unit's folder does not answer".to_owned());
        } else if state != UnitState::Healthy {
            reasons.push(format!("the unit is {}", state.name()));
        }
        let age = now.saturating_sub(*inner.heard.lock());
        if age >= inner.begin_every * MISSED_MAX {
            let age = age.as_secs();
            reasons.push(format!("no controller was heeded for {age} s"));
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
        let age = age.saturating_sub(*inner.heard.lock());
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
        inner.looks.found.lock().measure(&mut measures);
        inner.keeper.counters().measure(&mut measures);
        measures
    }
}

fn look_at(unit: &FolderUnit, clock: &dyn Clock) -> Result<(UnitStat, KeptFreed), UnitError> {
    unit.probe()?;
    let stat = unit.stat()?;
    let end = clock.monotonic() + SETTLES_FOR;
    loop {
        // A little each time, since hosts come first; unless they free so fast that
        // their room is not given back in time.
        let is_more = unit.reclaim()?;
        let kept = unit.kept_freed()?;
        if !(is_more && kept.is_too_much) || clock.monotonic() >= end {
            return Ok((stat, kept));
        }
    }
}

impl Found {
    fn note(&mut self, outcome: Result<(UnitStat, KeptFreed), UnitError>, clock: &dyn Clock) {
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
            tracing::warn!(before, after, reason, "the unit changed");
        }
    }

    fn measure(&self, measures: &mut Measures) {
        let state = self.health.state();
        let states = UnitState::ALL.into_iter().map(|one| {
            let labels = vec![("state", one.name().to_owned())];
            (labels, f64::from(one == state))
        });
        measures.gauge(&UNIT_STATE, states);
        let Some((stat, kept)) = &self.stat else {
            return;
        };
        measures.one(&SEGMENTS, stat.segments as f64);
        measures.one(&BYTES, stat.bytes as f64);
        measures.one(&UNDELETE_BYTES, kept.bytes as f64);
        measures.one(&UNDELETE_SEGMENTS, kept.segments as f64);
        measures.count(&UNDELETE_DROPPED_BYTES, kept.given_up_bytes);
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
        Box::pin(async { self.unready_for() })
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
    use unit_folder::Keeping;
    use world::simulated::Simulation;
    use world::{Millis, World};

    use super::*;

    /// Each look at it takes 10 ms.
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

    /// A look gave back for 200 ms of 5 s, and what was held grew beyond its bound.
    #[test]
    fn a_look_gives_back_until_no_more_is_held_than_may_be() {
        let simulation = Simulation::new(1);
        let mut world: World = simulation.world();
        let path = Path::new("/unit");
        simulation.disk.set_capacity(path, 32 << 20);
        world.clock = Arc::new(SlowClock(simulation));
        let (cluster, id) = (ClusterId::from_u128(1), UnitId::from_u128(1));
        let unit = FolderUnit::create(&world, path, cluster, id).expect("made");
        let unit = unit.keeping(Keeping {
            room_percent: 5,
            ..Keeping::default()
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
        assert!(unit.kept_freed().expect("known").is_too_much);
        let (_, kept) = look_at(&unit, &*world.clock).expect("well");
        assert!(!kept.is_too_much, "{kept:?}");
        assert!(kept.segments > 50, "{kept:?}");
    }
}
