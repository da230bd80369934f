//! The metrics of units and volumes. The number of rows is at most [`ROWS_MAX`].

use std::collections::BTreeMap;

use api::host::UnitReport;
use api::types::VolumeCache;
use base::VolumeId;
use metrics::{Histogram, Labels, Measures, Metric};
use unit::{OpClass, UnitState};
use volume::VolumeStatus;

use crate::cache::{counts, metrics as cache_metrics};
use crate::declared_metrics::{
    UNIT_BYTES, UNIT_CALL_DURATION, UNIT_ERRORS, UNIT_FREE_BYTES, UNIT_INFO, UNIT_READ_BYTES,
    UNIT_SEGMENTS, UNIT_STATE, UNIT_WRITTEN_BYTES, VOLUME_BLOCKS_DESTAGED, VOLUME_BLOCKS_WRITTEN,
    VOLUME_CONNECTIONS, VOLUME_DESTAGE_FAILING, VOLUME_JOURNAL_BYTES, VOLUME_JOURNAL_USED_BYTES,
    VOLUME_READS_WAITING, VOLUME_STALLED, VOLUME_STOPPED, VOLUME_UNRESPONSIVE, VOLUMES_OPEN,
    VOLUMES_STALLED,
};
use crate::export::OpenVolumeStatus;
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
    pub fn add(&mut self, open: &OpenVolumeStatus) {
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
    measures.gauge(&UNIT_INFO, urls);
    let states = units.iter().flat_map(|unit| {
        UnitState::ALL.into_iter().map(move |state| {
            let mut labels = named(unit);
            labels.push(("state", state.name().to_owned()));
            (labels, f64::from(unit.state == state.name()))
        })
    });
    measures.gauge(&UNIT_STATE, states);
    let known = |of: fn(&UnitReport) -> Option<u64>| {
        let row = move |unit| Some((named(unit), float(of(unit)?)));
        units.iter().filter_map(row)
    };
    measures.gauge(&UNIT_BYTES, known(|unit| unit.bytes));
    measures.gauge(&UNIT_FREE_BYTES, known(|unit| unit.free_bytes));
    measures.gauge(&UNIT_SEGMENTS, known(|unit| unit.segments));
    let traffic =
        |of: fn(&UnitReport) -> u64| units.iter().map(move |unit| (named(unit), of(unit)));
    measures.counter(&UNIT_READ_BYTES, traffic(|unit| unit.read_bytes));
    measures.counter(&UNIT_WRITTEN_BYTES, traffic(|unit| unit.written_bytes));
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
    measures.histogram(&UNIT_CALL_DURATION, took);
    let errors = mounted.iter().flat_map(|mounted| {
        let named = |(kind, count): (&str, u64)| {
            let kind = ("kind", kind.to_owned());
            (vec![("unit", mounted.id.to_string()), kind], count)
        };
        mounted.tracked.calls().errors().into_iter().map(named)
    });
    measures.counter(&UNIT_ERRORS, errors);
}

/// The metrics of the open volumes.
pub(super) fn measure_volumes(measures: &mut Measures, volumes: &BTreeMap<VolumeId, VolumeRow>) {
    let rows = |of: fn(&VolumeRow) -> u64| {
        let row = move |(volume, shown)| (named(volume), of(shown));
        volumes.iter().take(ROWS_MAX).map(row)
    };
    let mut gauge = |metric: &Metric, of: fn(&VolumeRow) -> u64| {
        measures.gauge(
            metric,
            rows(of).map(|(labels, value)| (labels, float(value))),
        );
    };
    gauge(&VOLUME_JOURNAL_BYTES, |shown| shown.journal_bytes);
    gauge(&VOLUME_JOURNAL_USED_BYTES, |shown| shown.journal_used_bytes);
    gauge(&VOLUME_CONNECTIONS, |shown| shown.connections);
    gauge(&VOLUME_STALLED, |shown| shown.is_stalled.into());
    gauge(&VOLUME_STOPPED, |shown| shown.is_stopped.into());
    gauge(&VOLUME_DESTAGE_FAILING, |shown| shown.is_stuck.into());
    gauge(&VOLUME_READS_WAITING, |shown| shown.reads_waiting);
    gauge(&VOLUME_UNRESPONSIVE, |shown| shown.is_unresponsive.into());
    measures.counter(&VOLUME_BLOCKS_WRITTEN, rows(|shown| shown.blocks_written));
    measures.counter(&VOLUME_BLOCKS_DESTAGED, rows(|shown| shown.blocks_destaged));
    let caches = volumes.iter().take(ROWS_MAX);
    cache_metrics::measure_volumes(
        measures,
        caches.map(|(volume, shown)| (volume, &shown.cache)),
    );
    measures.one(&VOLUMES_OPEN, float(volumes.len() as u64));
    let stalled = volumes.values().filter(|shown| shown.is_stalled).count();
    measures.one(&VOLUMES_STALLED, float(stalled as u64));
}

fn named(volume: &VolumeId) -> Labels {
    vec![("volume", volume.to_string())]
}

#[expect(clippy::cast_precision_loss, reason = "a number for a graph")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}
