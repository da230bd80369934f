//! [`Monitor`]: whether this host can do its work, and its metrics.
//!
//! A host is *ready* when a controller has answered within the part of a lease's term in which
//! volumes acknowledge, and some unit takes writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::VolumeId;
use metrics::Measures;
use world::Clock;

use super::metrics::{ROWS_MAX, VolumeRow, float, measure_calls, measure_units, measure_volumes};
use crate::cache::{Caching, counts, metrics as cache_metrics};
use crate::context::Shutdown;
use crate::controller::Contact;
use crate::declared_metrics::{
    CONTROLLER_ANSWER_AGE, LEASE_AGE, LEASE_STALL, LEASES, REPAIR_COPIED_BYTES,
    REPAIR_COPYSETS_WAITING, REPAIR_PASSES, REPAIR_ROTTEN_SLOTS, ROWS_LEFT_OUT,
};
use crate::export::VolumeStatuses;
use crate::lease::Leases;
use crate::repair::Repair;
use crate::units::Units;

/// Without leases that end, a controller answers at least this often: the desired state is waited
/// for 30 s at a time.
const HEARD_WITHIN: Duration = Duration::from_secs(40);

/// What a monitor is given.
pub(crate) struct MonitorParts {
    pub shutdown: Shutdown,
    pub clock: Arc<dyn Clock>,
    pub contact: Arc<Contact>,
    pub leases: Arc<Leases>,
    pub units: Arc<Units>,
    pub repair: Arc<Repair>,
    pub caching: Arc<Caching>,
    pub statuses: Arc<VolumeStatuses>,
}

/// The readiness and the metrics of a host.
pub(crate) struct Monitor {
    parts: MonitorParts,
}

impl Monitor {
    pub fn new(parts: MonitorParts) -> Self {
        Self { parts }
    }

    fn age(&self, moment: Duration) -> Duration {
        self.parts.clock.monotonic().saturating_sub(moment)
    }

    /// Why this host cannot do its work at this moment, one sentence each.
    pub fn unready_for(&self) -> Vec<String> {
        let MonitorParts {
            shutdown,
            contact,
            leases,
            units,
            ..
        } = &self.parts;
        let mut reasons = Vec::new();
        if shutdown.has_begun() {
            reasons.push("it is ending".to_owned());
        }
        let (age, within) = match leases.holders_part() {
            Some(part) => (self.age(contact.renewed()), part),
            None => (self.age(contact.answered()), HEARD_WITHIN),
        };
        if age >= within {
            let seconds = age.as_secs();
            reasons.push(format!("no controller has answered for {seconds} s"));
        }
        let units = units.mounted();
        if units.is_empty() {
            reasons.push("the cluster has no units; add some with `scree unit add`".to_owned());
        } else if !units.iter().any(|mounted| mounted.tracked.can_write()) {
            let count = units.len();
            reasons.push(format!("none of the {count} units takes writes"));
        }
        reasons
    }

    /// The metrics of this host.
    pub async fn measures(&self) -> Measures {
        let parts = &self.parts;
        let mut measures = Measures::default();
        self.measure_contact(&mut measures);
        self.measure_repair(&mut measures);
        let mut left_out = Vec::new();
        let units = parts.units.reports();
        let mounted = parts.units.mounted();
        left_out.push(("units", units.len().saturating_sub(ROWS_MAX)));
        measure_units(&mut measures, &mounted, &units[..units.len().min(ROWS_MAX)]);
        measure_calls(&mut measures, &mounted);
        let cache = counts::of_host(parts.caching.cache());
        cache_metrics::measure_host(&mut measures, &cache);
        let volumes = self.volumes().await;
        left_out.push(("volumes", volumes.len().saturating_sub(ROWS_MAX)));
        measure_volumes(&mut measures, &volumes);
        measures.gauge(
            &ROWS_LEFT_OUT,
            left_out
                .into_iter()
                .map(|(of, count)| (vec![("of", of.to_owned())], float(count as u64))),
        );
        measures
    }

    fn measure_contact(&self, measures: &mut Measures) {
        let MonitorParts {
            contact, leases, ..
        } = &self.parts;
        measures.one(
            &CONTROLLER_ANSWER_AGE,
            self.age(contact.answered()).as_secs_f64(),
        );
        if let Some(part) = leases.holders_part() {
            measures.one(&LEASE_AGE, self.age(contact.renewed()).as_secs_f64());
            measures.one(&LEASE_STALL, part.as_secs_f64());
        }
        measures.one(&LEASES, float(leases.count() as u64));
    }

    fn measure_repair(&self, measures: &mut Measures) {
        let repair = &self.parts.repair;
        measures.one(
            &REPAIR_COPYSETS_WAITING,
            float(repair.waiting_copysets() as u64),
        );
        let totals = repair.totals();
        measures.count(&REPAIR_PASSES, totals.passes());
        measures.count(&REPAIR_COPIED_BYTES, totals.copied_bytes());
        measures.count(&REPAIR_ROTTEN_SLOTS, totals.rotten_slots());
    }

    /// The rows of the open volumes.
    async fn volumes(&self) -> BTreeMap<VolumeId, VolumeRow> {
        let mut rows = BTreeMap::<VolumeId, VolumeRow>::new();
        for open in self.parts.statuses.all().await {
            rows.entry(open.volume).or_default().add(&open);
        }
        rows
    }
}
