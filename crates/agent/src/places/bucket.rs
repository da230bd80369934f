//! Buckets of object stores, and prefixes of them: `s3://bucket/prefix`, `gs://…`,
//! `az://…`. Credentials come from this process's environment.

use std::sync::Arc;
use std::time::Duration;

use api::host::Refusal;
use base::{ClusterId, UnitId, with_causes};
use unit::{Unit, UnitError};
use unit_object::ObjectUnit;

use super::{Host, Place, invalid};

/// A bucket, or a prefix of one.
struct Bucket(unit_object::Place);

/// Reads which one.
pub(super) fn read(url: &str) -> Result<Box<dyn Place>, Refusal> {
    match unit_object::Place::at(url) {
        Ok(place) => Ok(Box::new(Bucket(place))),
        Err(error) => Err(invalid(with_causes(&error))),
    }
}

impl Bucket {
    fn unit(&self, host: &Host<'_>, unit: UnitId) -> ObjectUnit {
        let claim = host.claim;
        ObjectUnit::open(host.world, host.runtime, &self.0, host.cluster, unit)
            .with_owner(claim.owner.clone(), claim.takes_over)
    }
}

impl Place for Bucket {
    fn url(&self) -> String {
        self.0.url().to_owned()
    }

    fn resolved(self: Box<Self>) -> Result<Box<dyn Place>, Refusal> {
        Ok(self)
    }

    fn is_near(&self, url: &str) -> bool {
        let own = self.0.url();
        let lies_in = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        lies_in(own, url) || lies_in(url, own)
    }

    /// A look is some requests, and each ends by itself: a store that is slow is not
    /// passed over for that.
    fn answers_within(&self) -> Duration {
        2 * unit_object::ANSWER_WITHIN
    }

    fn identify(&self, host: &Host<'_>) -> Option<(ClusterId, UnitId)> {
        let marker = ObjectUnit::identify(host.runtime, &self.0).ok()?;
        Some((marker.cluster, marker.unit))
    }

    fn open(&self, host: &Host<'_>, unit: UnitId) -> Arc<dyn Unit> {
        Arc::new(self.unit(host, unit))
    }

    fn make(&self, host: &Host<'_>, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError> {
        Ok(Arc::new(self.unit(host, unit).made()?))
    }
}
