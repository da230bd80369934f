//! Namespaces of Ceph pools: `rados://[USER@]POOL[/NAMESPACE]`. Keys come from where
//! Ceph's own tools take them.

use std::sync::Arc;
use std::time::Duration;

use api::host::Refusal;
use base::{ClusterId, UnitId};
use unit::{Unit, UnitError};
use unit_rados::RadosUnit;

use super::{Backend, invalid};
use crate::context::HostContext;

/// A pool with a placement group that no OSD serves answers when one does again: Ceph notices a
/// machine that lost its power after 20 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);

/// A namespace of a pool, or a pool.
struct Pool(unit_rados::Location);

/// Parses the URL of a pool.
pub(super) fn parse(url: &str) -> Result<Box<dyn Backend>, Refusal> {
    match unit_rados::Location::at(url) {
        Ok(location) => Ok(Box::new(Pool(location))),
        Err(error) => Err(invalid(error.to_string())),
    }
}

impl Pool {
    fn unit(&self, context: &HostContext, unit: UnitId) -> RadosUnit {
        let owner = &context.owner;
        RadosUnit::open(&context.world, &self.0, context.cluster, unit)
            .with_owner(owner.owner.clone(), owner.takes_over)
    }
}

impl Backend for Pool {
    fn url(&self) -> String {
        self.0.url()
    }

    fn resolved(self: Box<Self>) -> Result<Box<dyn Backend>, Refusal> {
        Ok(self)
    }

    /// Namespaces do not nest. The user does not matter.
    fn overlaps(&self, url: &str) -> bool {
        unit_rados::Location::at(url).is_ok_and(|other| self.0.is_same_pool(&other))
    }

    fn answers_within(&self) -> Duration {
        ANSWER_WITHIN
    }

    fn identify(&self, context: &HostContext) -> Option<(ClusterId, UnitId)> {
        let marker = RadosUnit::identify(&context.world, &self.0).ok()?;
        Some((marker.cluster, marker.unit))
    }

    fn open(&self, context: &HostContext, unit: UnitId) -> Arc<dyn Unit> {
        Arc::new(self.unit(context, unit))
    }

    fn make(&self, context: &HostContext, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError> {
        Ok(Arc::new(self.unit(context, unit).created()?))
    }
}
