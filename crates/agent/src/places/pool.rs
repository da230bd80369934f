//! Namespaces of Ceph pools: `rados://[USER@]POOL[/NAMESPACE]`. Keys come from where
//! Ceph's own tools take them.

use std::sync::Arc;
use std::time::Duration;

use api::host::Refusal;
use base::{ClusterId, UnitId};
use unit::{Unit, UnitError};
use unit_rados::RadosUnit;

use super::{Host, Place, invalid};

/// A pool without an OSD that serves a part of it answers when there is one again: a
/// machine that lost its power is missed after 20 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);

/// A namespace of a pool, or a pool.
struct Pool(unit_rados::Place);

/// Reads which one.
pub(super) fn read(url: &str) -> Result<Box<dyn Place>, Refusal> {
    match unit_rados::Place::at(url) {
        Ok(place) => Ok(Box::new(Pool(place))),
        Err(error) => Err(invalid(error.to_string())),
    }
}

impl Pool {
    fn unit(&self, host: &Host<'_>, unit: UnitId) -> RadosUnit {
        let claim = host.claim;
        RadosUnit::open(host.world, &self.0, host.cluster, unit)
            .with_owner(claim.owner.clone(), claim.takes_over)
    }
}

impl Place for Pool {
    fn url(&self) -> String {
        self.0.url()
    }

    fn resolved(self: Box<Self>) -> Result<Box<dyn Place>, Refusal> {
        Ok(self)
    }

    /// Namespaces do not lie in each other. Which user asks is all the same.
    fn is_near(&self, url: &str) -> bool {
        unit_rados::Place::at(url).is_ok_and(|other| self.0.is_same_place(&other))
    }

    fn answers_within(&self) -> Duration {
        ANSWER_WITHIN
    }

    fn identify(&self, host: &Host<'_>) -> Option<(ClusterId, UnitId)> {
        let marker = RadosUnit::identify(host.world, &self.0).ok()?;
        Some((marker.cluster, marker.unit))
    }

    fn open(&self, host: &Host<'_>, unit: UnitId) -> Arc<dyn Unit> {
        Arc::new(self.unit(host, unit))
    }

    fn make(&self, host: &Host<'_>, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError> {
        Ok(Arc::new(self.unit(host, unit).made()?))
    }
}
