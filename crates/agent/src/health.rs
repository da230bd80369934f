//! Whether this host can do its work, and how it is doing, for those who watch.
//!
//! It is *ready* when a controller has heard of it within the part of a lease's
//! term in which volumes go on, and some unit takes writes.
//!
//! Nothing here waits for what it tells of ([`crate::volume_statuses`]). Rows are
//! bounded by [`ROWS_MAX`].

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::host::UnitReport;
use api::types::VolumeCache;
use base::VolumeId;
use metrics::{Answer, Histogram, Labels, Measures, Part};
use unit::{OpClass, UnitState};
use volume::VolumeStatus;

use crate::agent::{Agent, lock};
use crate::leases::own_part;
use crate::{cache_counts, cache_measures};

/// Without leases that end, a controller is asked at least so often: what is
/// wanted is waited for 30 s at a time.
const HEARD_WITHIN: Duration = Duration::from_secs(40);

/// So many volumes, and units, have rows of their own.
const ROWS_MAX: usize = 1000;

/// What an agent keeps for those who watch it.
pub(crate) struct Health {
    /// When a controller last answered, by the monotonic clock.
    heard: Mutex<Duration>,
    /// When the last renewal of leases was asked for that was heard.
    renewed: Mutex<Duration>,
}

/// A volume as it is shown: one that is open several times to be read has one
/// row.
#[derive(Default)]
struct Shown {
    journal_bytes: u64,
    journal_used_bytes: u64,
    blocks_written: u64,
    blocks_destaged: u64,
    connections: u64,
    is_stalled: bool,
    is_stopped: bool,
    is_stuck: bool,
    reads_waiting: u64,
    is_unresponsive: bool,
    cache: VolumeCache,
}

impl Health {
    /// A controller has answered at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            heard: Mutex::new(now),
            renewed: Mutex::new(now),
        }
    }

    /// A controller has just answered.
    pub fn heard(&self, now: Duration) {
        let mut heard = lock(&self.heard);
        *heard = (*heard).max(now);
    }

    /// Leases were renewed, as was asked at `asked`: they are counted from that.
    pub fn renewed(&self, asked: Duration) {
        let mut renewed = lock(&self.renewed);
        *renewed = (*renewed).max(asked);
    }
}

impl Agent {
    /// A controller has just answered.
    pub(crate) fn note_heard(&self) {
        self.inner.health.heard(self.inner.world.clock.monotonic());
    }

    fn since(&self, moment: &Mutex<Duration>) -> Duration {
        let moment = *lock(moment);
        self.inner.world.clock.monotonic().saturating_sub(moment)
    }

    /// Why this host cannot do its work at this moment, one sentence each.
    pub(crate) fn unready_for(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.is_ending() {
            reasons.push("it is ending".to_owned());
        }
        let health = &self.inner.health;
        let (age, within) = match self.inner.lease_term {
            Some(lease) => (self.since(&health.renewed), own_part(lease)),
            None => (self.since(&health.heard), HEARD_WITHIN),
        };
        if age >= within {
            reasons.push(format!(
                "no controller has answered for {} s",
                age.as_secs()
            ));
        }
        let units = lock(&self.inner.units);
        if units.is_empty() {
            reasons.push("the cluster has no units; add some with `scree unit add`".to_owned());
        } else if !units.iter().any(|mounted| mounted.unit.can_write()) {
            let count = units.len();
            reasons.push(format!("none of the {count} units takes writes"));
        }
        reasons
    }

    /// What those who watch it are told.
    pub(crate) async fn measures(&self) -> Measures {
        let mut measures = Measures::default();
        let health = &self.inner.health;
        measures.one(
            "scree_controller_answer_age_seconds",
            "How long ago a controller has answered last",
            self.since(&health.heard).as_secs_f64(),
        );
        if let Some(lease) = self.inner.lease_term {
            measures.one(
                "scree_lease_age_seconds",
                "How long ago the leases of this host were renewed",
                self.since(&health.renewed).as_secs_f64(),
            );
            measures.one(
                "scree_lease_stall_seconds",
                "The age of a lease at which its volume stalls",
                own_part(lease).as_secs_f64(),
            );
        }
        measures.one(
            "scree_leases",
            "Leases that this host has",
            float(lock(&self.inner.leases).len() as u64),
        );
        self.measure_repair(&mut measures);
        let mut left_out = Vec::new();
        let units = self.units_as_known();
        left_out.push(("units", units.len().saturating_sub(ROWS_MAX)));
        self.measure_units(&mut measures, &units[..units.len().min(ROWS_MAX)]);
        let cache = cache_counts::of_host(&self.inner.caching.cache);
        cache_measures::measure_host(&mut measures, &cache);
        let volumes = self.shown_volumes().await;
        left_out.push(("volumes", volumes.len().saturating_sub(ROWS_MAX)));
        measure_volumes(&mut measures, &volumes);
        measures.gauge(
            "scree_rows_left_out",
            "Units and volumes that have no rows here, because there are so many",
            left_out
                .into_iter()
                .map(|(of, count)| (vec![("of", of.to_owned())], float(count as u64))),
        );
        measures
    }

    fn measure_repair(&self, measures: &mut Measures) {
        measures.one(
            "scree_repair_copysets_waiting",
            "Copysets with a member that is not whole",
            float(self.waiting_copysets() as u64),
        );
        let repaired = &self.inner.repaired;
        let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
        measures.count(
            "scree_repair_passes",
            "Passes over a copyset that this host has gone through",
            total(&repaired.passes),
        );
        measures.count(
            "scree_repair_copied_bytes",
            "Bytes that it has put on members which lacked them",
            total(&repaired.copied_bytes),
        );
        measures.count(
            "scree_repair_rotten_slots",
            "Slots of which it found no copy as it was put, each time that it looked",
            total(&repaired.rotten_slots),
        );
    }

    fn measure_units(&self, measures: &mut Measures, units: &[UnitReport]) {
        let named = |unit: &UnitReport| vec![("unit", unit.id.to_string())];
        let urls: Vec<_> = lock(&self.inner.units)
            .iter()
            .take(ROWS_MAX)
            .map(|mounted| {
                let url = ("url", mounted.url.clone());
                (vec![("unit", mounted.id.to_string()), url], 1.0)
            })
            .collect();
        measures.gauge("scree_unit_info", "Where a unit is", urls);
        let states = units.iter().flat_map(|unit| {
            UnitState::ALL.into_iter().map(move |state| {
                let mut labels = named(unit);
                labels.push(("state", state.name().to_owned()));
                (labels, f64::from(unit.state == state.name()))
            })
        });
        let help = "Whether a unit is in this state, as this host finds it";
        measures.gauge("scree_unit_state", help, states);
        let known = |of: fn(&UnitReport) -> Option<u64>| {
            let row = move |unit| Some((named(unit), float(of(unit)?)));
            units.iter().filter_map(row)
        };
        let help = "The room that segments take on a unit";
        measures.gauge("scree_unit_bytes", help, known(|unit| unit.bytes));
        let help = "Free room of a unit's file system, which others may share";
        measures.gauge("scree_unit_free_bytes", help, known(|unit| unit.free_bytes));
        let help = "Segments on a unit";
        measures.gauge("scree_unit_segments", help, known(|unit| unit.segments));
        let traffic =
            |of: fn(&UnitReport) -> u64| units.iter().map(move |unit| (named(unit), of(unit)));
        measures.counter(
            "scree_unit_read_bytes",
            "Bytes of blocks that this host has read from a unit",
            traffic(|unit| unit.read_bytes),
        );
        measures.counter(
            "scree_unit_written_bytes",
            "Bytes of blocks that this host has written to a unit",
            traffic(|unit| unit.written_bytes),
        );
        let mounted = lock(&self.inner.units);
        let mounted: Vec<_> = mounted.iter().take(ROWS_MAX).collect();
        let took = mounted.iter().flat_map(|mounted| {
            OpClass::ALL.into_iter().map(|verb| {
                let labels = vec![
                    ("unit", mounted.id.to_string()),
                    ("verb", verb.name().to_owned()),
                ];
                let took = mounted.unit.calls().took(verb);
                let histogram = Histogram {
                    buckets: took.counts(),
                    sum: took.sum_seconds(),
                };
                (labels, histogram)
            })
        });
        measures.histogram(
            "scree_unit_call_duration_seconds",
            "How long this host waited for a unit, also if what it asked failed",
            took,
        );
        let errors = mounted.iter().flat_map(|mounted| {
            let named = |(kind, count): (&str, u64)| {
                let kind = ("kind", kind.to_owned());
                (vec![("unit", mounted.id.to_string()), kind], count)
            };
            mounted.unit.calls().errors().into_iter().map(named)
        });
        measures.counter(
            "scree_unit_errors",
            "What this host has asked of a unit and that failed, by why",
            errors,
        );
    }

    /// The open volumes.
    async fn shown_volumes(&self) -> BTreeMap<VolumeId, Shown> {
        let mut shown = BTreeMap::<VolumeId, Shown>::new();
        for open in self.open_volumes().await {
            let shown = shown.entry(open.volume).or_default();
            shown.connections += open.connections;
            shown.is_unresponsive |= open.is_unresponsive;
            if let Some(status) = &open.status {
                shown.add(status);
            }
        }
        shown
    }
}

impl Shown {
    fn add(&mut self, status: &VolumeStatus) {
        self.journal_bytes += status.journal_bytes;
        self.journal_used_bytes += status.journal_used_bytes;
        self.blocks_written += status.counters.blocks_written;
        self.blocks_destaged += status.counters.blocks_destaged;
        self.is_stalled |= status.stalled;
        self.is_stopped |= status.stopped.is_some();
        self.is_stuck |= status.destage_error.is_some();
        self.reads_waiting += status.reads_waiting as u64;
        if let Some(cache) = &status.cache {
            cache_measures::add(&mut self.cache, &cache_counts::of_volume(cache));
        }
    }
}

impl Part for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { self.unready_for() })
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(self.measures())
    }
}

fn measure_volumes(measures: &mut Measures, volumes: &BTreeMap<VolumeId, Shown>) {
    let rows = |of: fn(&Shown) -> u64| {
        let row = move |(volume, shown)| (named(volume), of(shown));
        volumes.iter().take(ROWS_MAX).map(row)
    };
    let mut gauge = |name: &str, help: &str, of: fn(&Shown) -> u64| {
        measures.gauge(
            name,
            help,
            rows(of).map(|(labels, value)| (labels, float(value))),
        );
    };
    gauge(
        "scree_volume_journal_bytes",
        "The size of an open volume's journal",
        |shown| shown.journal_bytes,
    );
    gauge(
        "scree_volume_journal_used_bytes",
        "How much of it waits to be destaged",
        |shown| shown.journal_used_bytes,
    );
    gauge(
        "scree_volume_connections",
        "Connections of NBD clients to an open volume",
        |shown| shown.connections,
    );
    gauge(
        "scree_volume_stalled",
        "Whether it waits for its lease: it reads, and acknowledges nothing else",
        |shown| shown.is_stalled.into(),
    );
    gauge(
        "scree_volume_stopped",
        "Whether it has stopped: all requests fail",
        |shown| shown.is_stopped.into(),
    );
    gauge(
        "scree_volume_destage_failing",
        "Whether its destaging does not get on",
        |shown| shown.is_stuck.into(),
    );
    gauge(
        "scree_volume_reads_waiting",
        "How many of its requests wait to read what only units have that are away",
        |shown| shown.reads_waiting,
    );
    gauge(
        "scree_volume_unresponsive",
        "Whether it does not say how it is: its other rows are of when it last did",
        |shown| shown.is_unresponsive.into(),
    );
    measures.counter(
        "scree_volume_blocks_written",
        "Blocks written to a volume since it was opened here",
        rows(|shown| shown.blocks_written),
    );
    measures.counter(
        "scree_volume_blocks_destaged",
        "Blocks of it that were put on units since then",
        rows(|shown| shown.blocks_destaged),
    );
    let caches = volumes.iter().take(ROWS_MAX);
    cache_measures::measure_volumes(
        measures,
        caches.map(|(volume, shown)| (volume, &shown.cache)),
    );
    measures.one(
        "scree_volumes_open",
        "Volumes that are open here",
        float(volumes.len() as u64),
    );
    let stalled = volumes.values().filter(|shown| shown.is_stalled).count();
    measures.one(
        "scree_volumes_stalled",
        "How many of them wait for their leases",
        float(stalled as u64),
    );
}

fn named(volume: &VolumeId) -> Labels {
    vec![("volume", volume.to_string())]
}

#[expect(clippy::cast_precision_loss, reason = "a number for a graph")]
fn float(number: u64) -> f64 {
    number as f64
}
