//! The owner of the unit: creating it, claiming it, and verifying it.
//!
//! As on a folder, the marker names the one copy of the cluster's database that
//! may change the unit ([`unit::Owner`]). Where the store replaces an
//! object only if it is the one that was read, a claim is one such change; elsewhere a claim
//! verifies the marker again afterwards.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, PutMode, UpdateVersion};
use unit::{MARKER_BYTES_MAX, MARKER_FILE, Marker, Owner, UnitError};

use crate::bucket::Bucket;
use crate::marker::{Conditional, ObjectMarker};
use crate::object::Inner;

/// Time for which a verified marker allows puts, which destroy nothing. Other changes verify the
/// marker again.
const VERIFIED_FOR: Duration = Duration::from_secs(5);

/// Number of attempts of a claim when others claim the unit concurrently.
const CLAIMS_MAX: usize = 3;

/// The contents of probes: the second and the third are for finding out which conditional
/// requests the store supports.
const PROBES: [&[u8]; 3] = [b"probe", b"probe, again", b"probe, and again"];

/// The marker and its version.
struct Found {
    marker: ObjectMarker,
    version: UpdateVersion,
}

/// Reads the marker below `bucket`'s prefix.
pub(crate) async fn identify(bucket: &Bucket) -> Result<ObjectMarker, UnitError> {
    Ok(read_marker(bucket).await?.marker)
}

async fn read_marker(bucket: &Bucket) -> Result<Found, UnitError> {
    let url = bucket.url.clone();
    let path = bucket.path(MARKER_FILE);
    let found = match bucket.get(&path, None, None, MARKER_BYTES_MAX as u64).await {
        Err(Error::NotFound { source, .. }) => {
            return Err(UnitError::Missing {
                url,
                reason: format!("there is no {MARKER_FILE}: {source}"),
            });
        }
        other => other.map_err(|error| bucket.read_error("read its marker", error))?,
    };
    match ObjectMarker::parse(&found.bytes) {
        Ok(marker) => Ok(Found {
            marker,
            version: found.version,
        }),
        Err(error) => Err(error.of_unit(url)),
    }
}

impl Inner {
    /// Checks that the prefix is the expected unit, with any owner, and returns its marker.
    pub(crate) async fn check(&self) -> Result<ObjectMarker, UnitError> {
        Ok(self.find().await?.marker)
    }

    async fn find(&self) -> Result<Found, UnitError> {
        let found = read_marker(&self.bucket).await?;
        let reason = if found.marker.common.cluster != self.cluster {
            format!(
                "it is a unit of {}, and this is {}; a unit of another cluster cannot be taken over",
                found.marker.common.cluster, self.cluster
            )
        } else if found.marker.common.unit != self.unit {
            format!(
                "it is {} and should be {}",
                found.marker.common.unit, self.unit
            )
        } else {
            return Ok(found);
        };
        Err(self.foreign(reason))
    }

    /// As [`Inner::check`], and checks that this owner may change the unit. Returns the store's
    /// features.
    pub(crate) async fn verify(&self) -> Result<Conditional, UnitError> {
        let found = self.check().await?;
        if let Some(own) = &self.owner {
            match found.common.owner {
                Some(holder) if holder == *own => {}
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                // The reason is the error of the last claim.
                _ => {
                    return Err(self.claim_error.lock().clone().unwrap_or_else(|| {
                        UnitError::Missing {
                            url: self.bucket.url.clone(),
                            reason: "it is not claimed yet".to_owned(),
                        }
                    }));
                }
            }
        }
        let now = self.clock.monotonic();
        *self.verified.lock() = Some((now, found.conditional));
        Ok(found.conditional)
    }

    /// As [`Inner::verify`], unless that was done a moment ago.
    pub(crate) async fn verify_for_put(&self) -> Result<Conditional, UnitError> {
        let verified = *self.verified.lock();
        match verified {
            // Without conditional creation a put may overwrite something, so verify each time.
            Some((at, conditional))
                if conditional.create
                    && self.clock.monotonic().saturating_sub(at) < VERIFIED_FOR =>
            {
                Ok(conditional)
            }
            _ => self.verify().await,
        }
    }

    /// As [`Inner::verify`]; claims the unit first if this owner may.
    pub(crate) async fn claim(&self) -> Result<(), UnitError> {
        let claimed = self.try_claim().await;
        *self.claim_error.lock() = claimed.as_ref().err().cloned();
        claimed
    }

    async fn try_claim(&self) -> Result<(), UnitError> {
        for _ in 0..CLAIMS_MAX {
            let found = self.find().await?;
            let Some(own) = &self.owner else {
                return Ok(());
            };
            match found.marker.common.owner {
                Some(holder) if holder == *own => break,
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                _ => {}
            }
            let conditional = found.marker.conditional;
            let mode = PutMode::Update(found.version);
            match self.put_marker(conditional, mode).await {
                // Another host has claimed it meanwhile.
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {}
                other => {
                    let failed = |error| self.bucket.write_error("claim the unit", error);
                    other.map_err(failed)?;
                    break;
                }
            }
        }
        // Of two concurrent claims, the first one fails here or later.
        self.verify().await?;
        self.takes_over.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether `own` may claim the unit from `holder`. Never from a later generation: the operator
    /// has declared the earlier ones lost, however late the unit becomes available.
    fn may_claim(&self, own: &Owner, holder: &Owner) -> bool {
        let takes_over = self.takes_over.load(Ordering::Relaxed);
        holder.generation < own.generation || (holder.generation == own.generation && takes_over)
    }

    async fn put_marker(&self, conditional: Conditional, mode: PutMode) -> Result<(), Error> {
        let marker = ObjectMarker {
            common: Marker {
                cluster: self.cluster,
                unit: self.unit,
                owner: self.owner.clone(),
            },
            conditional,
        };
        let path = self.bucket.path(MARKER_FILE);
        let text = Bytes::from(marker.encode());
        self.bucket.put(&path, text, mode, conditional).await?;
        Ok(())
    }

    /// Creates the unit.
    ///
    /// 1. check that the prefix is not within another unit
    /// 2. check that it is empty
    /// 3. find out which conditional requests the store supports
    /// 4. create the marker
    ///
    /// A prefix that is this unit already is only claimed.
    pub(crate) async fn create(&self) -> Result<(), UnitError> {
        for above in self.bucket.above() {
            self.check_above(&above).await?;
        }
        match self.find().await {
            Ok(_) => return self.claim().await,
            Err(UnitError::Missing { .. }) => {}
            Err(why) => return Err(why),
        }
        // Report errors of writes in the store's own words, as the settings may be wrong.
        let failed = |error| self.bucket.read_error("create the unit", error);
        let mut objects = self.bucket.list_all();
        while let Some(object) = objects.next().await.map_err(failed)? {
            if object.location != self.probe_path() {
                let name = object.location;
                return Err(self.foreign(format!(
                    "it is not empty: it contains {name}; choose an empty prefix for a new unit"
                )));
            }
        }
        let conditional = self.examine_store().await.map_err(failed)?;
        match self.put_marker(conditional, PutMode::Create).await {
            // Another host was first, or an earlier attempt whose answer was lost.
            Err(Error::AlreadyExists { .. }) => {}
            other => other.map_err(failed)?,
        }
        self.claim().await
    }

    /// Checks that there is no unit at `above`, which would contain this one. A prefix that cannot
    /// be read counts as no unit: this host may have no right to it.
    async fn check_above(&self, above: &Path) -> Result<(), UnitError> {
        let path = above.clone().join(MARKER_FILE);
        let found = self
            .bucket
            .get(&path, None, None, MARKER_BYTES_MAX as u64)
            .await;
        match found.map(|found| ObjectMarker::parse(&found.bytes)) {
            Ok(Ok(marker)) => Err(self.foreign(format!(
                "it is within {above:?}, which is {} of {}; choose a prefix outside it",
                marker.common.unit, marker.common.cluster
            ))),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    fn probe_path(&self) -> Path {
        self.bucket.path(&format!("probe-{}", self.unit))
    }

    /// Finds out by trying which conditional requests the store supports.
    async fn examine_store(&self) -> Result<Conditional, Error> {
        let path = self.probe_path();
        let put = |probe: &'static [u8], mode| {
            let probe = Bytes::from_static(probe);
            self.bucket.put_at_once(&path, probe, mode)
        };
        let old = put(PROBES[0], PutMode::Overwrite).await?;
        let create = match put(PROBES[1], PutMode::Create).await {
            Err(Error::AlreadyExists { .. }) => true,
            other => is_ignored(other)?,
        };
        let new = put(PROBES[2], PutMode::Overwrite).await?;
        let update = match put(PROBES[0], PutMode::Update(old)).await {
            Err(Error::Precondition { .. }) => match put(PROBES[1], PutMode::Update(new)).await {
                Ok(_) => true,
                other => is_ignored(other)?,
            },
            other => is_ignored(other)?,
        };
        self.bucket.delete(&path).await?;
        Ok(Conditional { create, update })
    }

    /// Checks that the unit is available, is the expected one, and accepts writes.
    pub(crate) async fn try_probe(&self) -> Result<(), UnitError> {
        self.claim().await?;
        let failed = |error| self.bucket.write_error("write a probe", error);
        let path = self.probe_path();
        let probe = Bytes::from_static(PROBES[0]);
        let put = self.bucket.put_at_once(&path, probe, PutMode::Overwrite);
        put.await.map_err(failed)?;
        self.bucket.delete(&path).await.map_err(failed)
    }

    /// Clears cached state: another unit may be there when it is available again.
    pub(crate) fn forget(&self) {
        self.account.forget();
        self.heads.clear();
        *self.verified.lock() = None;
    }

    fn held(&self, holder: Owner) -> UnitError {
        UnitError::Held {
            url: self.bucket.url.clone(),
            holder: Box::new(holder),
        }
    }

    fn foreign(&self, reason: String) -> UnitError {
        UnitError::Foreign {
            url: self.bucket.url.clone(),
            reason,
        }
    }
}

/// Returns `Ok(false)` if the answer to a conditional put shows that the store ignores or does
/// not support the condition.
fn is_ignored(answer: Result<UpdateVersion, Error>) -> Result<bool, Error> {
    match answer {
        Ok(_)
        | Err(
            Error::NotImplemented { .. }
            | Error::NotSupported { .. }
            | Error::Precondition { .. }
            | Error::AlreadyExists { .. },
        ) => Ok(false),
        Err(error) if error.to_string().contains("501 Not Implemented") => Ok(false),
        Err(error) => Err(error),
    }
}
