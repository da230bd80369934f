//! The metrics of units and volumes. The number of rows is at most [`ROWS_MAX`].

use std::collections::BTreeMap;

use api::host::UnitReport;
use api::types::VolumeCache;
use base::VolumeId;
use metrics::{Histogram, Labels, Measures};
use unit::{OpClass, UnitState};
use volume::VolumeStatus;

use crate::cache::{counts, metrics as cache_metrics};
use crate::export::OpenVolume;
use crate::units::MountedUnit;

/// The most volumes, and the most units, that have rows.
pub(super) const ROWS_MAX: usize = 1000;

/// The row of a volume; a volume that is open read-only more than once has one row.
#[derive(Default)]
pub(super) struct VolumeRow {
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

impl VolumeRow {
    /// Adds an open volume to the row.
    pub fn add(&mut self, open: &OpenVolume) {
        self.connections += open.connections;
        self.is_unresponsive |= open.is_unresponsive;
        if let Some(status) = &open.status {
            self.add_status(status);
        }
    }

    fn add_status(&mut self, status: &VolumeStatus) {
        self.journal_bytes += status.journal_bytes;
        self.journal_used_bytes += status.journal_used_bytes;
        self.blocks_written += status.counters.blocks_written;
        self.blocks_destaged += status.counters.blocks_destaged;
        self.is_stalled |= status.stalled;
        self.is_stopped |= status.stopped.is_some();
        self.is_stuck |= status.destage_error.is_some();
        self.reads_waiting += status.reads_waiting as u64;
        if let Some(cache) = &status.cache {
            cache_metrics::add(&mut self.cache, &counts::of_volume(cache));
        }
    }
}

/// The metrics of the units.
pub(super) fn measure_units(
    measures: &mut Measures,
    mounted: &[MountedUnit],
    units: &[UnitReport],
) {
    let named = |unit: &UnitReport| vec![("unit", unit.id.to_string())];
    let urls: Vec<_> = mounted
        .iter()
        .take(ROWS_MAX)
        .map(|mounted| {
            let url = ("url", mounted.url.clone());
            (vec![("unit", mounted.id.to_string()), url], 1.0)
        })
        .collect();
    measures.gauge("scree_unit_info", "The URL of a unit", urls);
    let states = units.iter().flat_map(|unit| {
        UnitState::ALL.into_iter().map(move |state| {
            let mut labels = named(unit);
            labels.push(("state", state.name().to_owned()));
            (labels, f64::from(unit.state == state.name()))
        })
    });
    let help = "Whether a unit is in this state, as seen by this host";
    measures.gauge("scree_unit_state", help, states);
    let known = |of: fn(&UnitReport) -> Option<u64>| {
        let row = move |unit| Some((named(unit), float(of(unit)?)));
        units.iter().filter_map(row)
    };
    let help = "Bytes of segments on a unit";
    measures.gauge("scree_unit_bytes", help, known(|unit| unit.bytes));
    let help = "Free bytes of a unit's file system, which other units may share";
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
}

/// The metrics of calls to units.
pub(super) fn measure_calls(measures: &mut Measures, mounted: &[MountedUnit]) {
    let mounted: Vec<_> = mounted.iter().take(ROWS_MAX).collect();
    let took = mounted.iter().flat_map(|mounted| {
        OpClass::ALL.into_iter().map(|verb| {
            let labels = vec![
                ("unit", mounted.id.to_string()),
                ("verb", verb.name().to_owned()),
            ];
            let took = mounted.tracked.calls().took(verb);
            let histogram = Histogram {
                buckets: took.counts(),
                sum: took.sum_seconds(),
            };
            (labels, histogram)
        })
    });
    measures.histogram(
        "scree_unit_call_duration_seconds",
        "Duration of this host's calls to a unit, including failed ones",
        took,
    );
    let errors = mounted.iter().flat_map(|mounted| {
        let named = |(kind, count): (&str, u64)| {
            let kind = ("kind", kind.to_owned());
            (vec![("unit", mounted.id.to_string()), kind], count)
        };
        mounted.tracked.calls().errors().into_iter().map(named)
    });
    measures.counter(
        "scree_unit_errors",
        "Failed calls of this host to a unit, by kind of error",
        errors,
    );
}

/// A metric with one row for each open volume.
struct VolumeMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&VolumeRow) -> u64,
}

/// The gauges of an open volume.
const VOLUME_GAUGES: [VolumeMetric; 8] = [
    VolumeMetric {
        name: "scree_volume_journal_bytes",
        help: "The size of an open volume's journal",
        value: |row| row.journal_bytes,
    },
    VolumeMetric {
        name: "scree_volume_journal_used_bytes",
        help: "Bytes in an open volume's journal that wait to be destaged",
        value: |row| row.journal_used_bytes,
    },
    VolumeMetric {
        name: "scree_volume_connections",
        help: "Connections of NBD clients to an open volume",
        value: |row| row.connections,
    },
    VolumeMetric {
        name: "scree_volume_stalled",
        help: "Whether an open volume waits for its lease: it acknowledges reads only",
        value: |row| row.is_stalled.into(),
    },
    VolumeMetric {
        name: "scree_volume_stopped",
        help: "Whether an open volume has stopped: all requests fail",
        value: |row| row.is_stopped.into(),
    },
    VolumeMetric {
        name: "scree_volume_destage_failing",
        help: "Whether destaging of an open volume fails",
        value: |row| row.is_stuck.into(),
    },
    VolumeMetric {
        name: "scree_volume_reads_waiting",
        help: "Requests of an open volume that wait to read from unavailable units",
        value: |row| row.reads_waiting,
    },
    VolumeMetric {
        name: "scree_volume_unresponsive",
        help: "Whether an open volume does not answer: its other rows are from its last answer",
        value: |row| row.is_unresponsive.into(),
    },
];

/// The counters of an open volume.
const VOLUME_COUNTERS: [VolumeMetric; 2] = [
    VolumeMetric {
        name: "scree_volume_blocks_written",
        help: "Blocks written to a volume since it was opened here",
        value: |row| row.blocks_written,
    },
    VolumeMetric {
        name: "scree_volume_blocks_destaged",
        help: "Blocks of a volume that were put on units since it was opened here",
        value: |row| row.blocks_destaged,
    },
];

/// The metrics of the open volumes.
pub(super) fn measure_volumes(measures: &mut Measures, volumes: &BTreeMap<VolumeId, VolumeRow>) {
    let rows = |value: fn(&VolumeRow) -> u64| {
        let row = move |(volume, row)| (named(volume), value(row));
        volumes.iter().take(ROWS_MAX).map(row)
    };
    for gauge in &VOLUME_GAUGES {
        let rows = rows(gauge.value).map(|(labels, value)| (labels, float(value)));
        measures.gauge(gauge.name, gauge.help, rows);
    }
    for counter in &VOLUME_COUNTERS {
        measures.counter(counter.name, counter.help, rows(counter.value));
    }
    let caches = volumes.iter().take(ROWS_MAX);
    cache_metrics::measure_volumes(
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
        "Open volumes that wait for their leases",
        float(stalled as u64),
    );
}

fn named(volume: &VolumeId) -> Labels {
    vec![("volume", volume.to_string())]
}

#[expect(clippy::cast_precision_loss, reason = "a number for a graph")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}
