//! Buckets of object stores, and prefixes of them: `s3://bucket/prefix`, `gs://…`, `az://…`.
//! Credentials are read from the environment of this process.

use std::sync::Arc;
use std::time::Duration;

use api::host::Refusal;
use base::{ClusterId, UnitId, with_causes};
use unit::{Unit, UnitError};
use unit_object::ObjectUnit;

use super::{Backend, invalid};
use crate::context::HostContext;

/// A bucket, or a prefix of one.
struct Bucket(unit_object::Location);

/// Parses the URL of a bucket.
pub(super) fn parse(url: &str) -> Result<Box<dyn Backend>, Refusal> {
    match unit_object::Location::at(url) {
        Ok(location) => Ok(Box::new(Bucket(location))),
        Err(error) => Err(invalid(with_causes(&error))),
    }
}

impl Bucket {
    fn unit(&self, context: &HostContext, unit: UnitId) -> ObjectUnit {
        let owner = &context.owner;
        ObjectUnit::open(
            &context.world,
            &context.runtime,
            &self.0,
            context.cluster,
            unit,
        )
        .with_owner(owner.owner.clone(), owner.takes_over)
    }
}

impl Backend for Bucket {
    fn url(&self) -> String {
        self.0.url().to_owned()
    }

    fn resolved(self: Box<Self>) -> Result<Box<dyn Backend>, Refusal> {
        Ok(self)
    }

    fn overlaps(&self, url: &str) -> bool {
        let own = self.0.url();
        let lies_in = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        lies_in(own, url) || lies_in(url, own)
    }

    /// A look makes several requests, each with its own timeout: a slow store is not unresponsive.
    fn answers_within(&self) -> Duration {
        2 * unit_object::ANSWER_TIMEOUT
    }

    fn identify(&self, context: &HostContext) -> Option<(ClusterId, UnitId)> {
        let marker = ObjectUnit::identify(&context.runtime, &self.0).ok()?;
        Some((marker.common.cluster, marker.common.unit))
    }

    fn open(&self, context: &HostContext, unit: UnitId) -> Arc<dyn Unit> {
        Arc::new(self.unit(context, unit))
    }

    fn make(&self, context: &HostContext, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError> {
        Ok(Arc::new(self.unit(context, unit).created()?))
    }
}
