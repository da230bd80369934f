//! Whose the unit is: making it, claiming it, and looking whether it still is.
//!
//! As on a folder, the marker names the one copy of the cluster's database that
//! may change the unit ([`unit::Owner`]). Where the store replaces an
//! object only if it is the one that was read, a claim is one such change;
//! elsewhere whoever claims it looks again afterwards.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, PutMode, UpdateVersion};
use unit::Owner;
use unit::UnitError;

use crate::bucket::Bucket;
use crate::marker::{self, Conditional, Marker, MarkerError};
use crate::object::Inner;

/// How old the last look at the marker may be when a segment is put: a put takes
/// nothing from anybody. What does is preceded by a look of its own.
const LOOKED_BEFORE_PUT: Duration = Duration::from_secs(5);

/// How often a claim is tried again that somebody else's came before.
const CLAIMS_MAX: usize = 3;

/// What a probe consists of, and what is put in its place when it is learnt what
/// the store can do.
const PROBES: [&[u8]; 3] = [b"probe", b"probe, again", b"probe, and again"];

/// The marker, and by what it is told from a later one.
struct Found {
    marker: Marker,
    version: UpdateVersion,
}

/// Reads the marker below `bucket`'s prefix.
pub(crate) async fn identify(bucket: &Bucket) -> Result<Marker, UnitError> {
    Ok(read_marker(bucket).await?.marker)
}

async fn read_marker(bucket: &Bucket) -> Result<Found, UnitError> {
    let url = bucket.url.clone();
    let path = bucket.path(marker::NAME);
    let found = match bucket.get(&path, None, None, marker::BYTES_MAX).await {
        Err(Error::NotFound { source, .. }) => {
            return Err(UnitError::Missing {
                url,
                reason: format!("there is no {}: {source}", marker::NAME),
            });
        }
        other => other.map_err(|error| bucket.meaning("read its marker", error))?,
    };
    match Marker::parse(&found.bytes) {
        Ok(marker) => Ok(Found {
            marker,
            version: found.version,
        }),
        Err(MarkerError::Newer { found, known }) => Err(UnitError::Newer { url, found, known }),
        Err(MarkerError::Unreadable { reason }) => Err(UnitError::Missing {
            url,
            reason: format!("its {} cannot be read: {reason}", marker::NAME),
        }),
    }
}

impl Inner {
    /// Looks whether the prefix is the unit it should be, whoever may change it.
    pub(crate) async fn look(&self) -> Result<Marker, UnitError> {
        Ok(self.find().await?.marker)
    }

    async fn find(&self) -> Result<Found, UnitError> {
        let found = read_marker(&self.bucket).await?;
        let reason = if found.marker.cluster != self.cluster {
            format!(
                "it is a unit of {}, and this is {}; a unit of another cluster is never taken over",
                found.marker.cluster, self.cluster
            )
        } else if found.marker.unit != self.unit {
            format!("it is {}, and should be {}", found.marker.unit, self.unit)
        } else {
            return Ok(found);
        };
        Err(self.foreign(reason))
    }

    /// As [`Inner::look`], and whether it may be changed. Says what the
    /// store can do.
    pub(crate) async fn verify(&self) -> Result<Conditional, UnitError> {
        let found = self.look().await?;
        if let Some(own) = &self.owner {
            match found.owner {
                Some(holder) if holder == *own => {}
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                // What keeps it from being claimed is what is wrong with it.
                _ => {
                    return Err(self.unclaimed.lock().clone().unwrap_or_else(|| {
                        UnitError::Missing {
                            url: self.bucket.url.clone(),
                            reason: "it was not claimed yet".to_owned(),
                        }
                    }));
                }
            }
        }
        let now = self.clock.monotonic();
        *self.verified.lock() = Some((now, found.conditional));
        Ok(found.conditional)
    }

    /// As [`Inner::verify`], or as that was a moment ago.
    pub(crate) async fn verify_for_put(&self) -> Result<Conditional, UnitError> {
        let verified = *self.verified.lock();
        match verified {
            // Where the store does not keep a put from replacing something,
            // nothing else may either.
            Some((at, conditional))
                if conditional.create
                    && self.clock.monotonic().saturating_sub(at) < LOOKED_BEFORE_PUT =>
            {
                Ok(conditional)
            }
            _ => self.verify().await,
        }
    }

    /// As [`Inner::verify`]; a unit that may be claimed is.
    pub(crate) async fn claim(&self) -> Result<(), UnitError> {
        let claimed = self.try_claim().await;
        *self.unclaimed.lock() = claimed.as_ref().err().cloned();
        claimed
    }

    async fn try_claim(&self) -> Result<(), UnitError> {
        for _ in 0..CLAIMS_MAX {
            let found = self.find().await?;
            let Some(own) = &self.owner else {
                return Ok(());
            };
            match found.marker.owner {
                Some(holder) if holder == *own => break,
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                _ => {}
            }
            let conditional = found.marker.conditional;
            let mode = PutMode::Update(found.version);
            match self.put_marker(conditional, mode).await {
                // Somebody else has claimed it meanwhile.
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {}
                other => {
                    let failed = |error| self.bucket.meaning_of_write("claim the unit", error);
                    other.map_err(failed)?;
                    break;
                }
            }
        }
        // Of two that claim it at once, the first one finds out here or later.
        self.verify().await?;
        self.takes_over.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Never from a later generation: of that one the operator said later that
    /// the others are gone, however late the unit is seen.
    fn may_claim(&self, own: &Owner, holder: &Owner) -> bool {
        let takes_over = self.takes_over.load(Ordering::Relaxed);
        holder.generation < own.generation || (holder.generation == own.generation && takes_over)
    }

    async fn put_marker(&self, conditional: Conditional, mode: PutMode) -> Result<(), Error> {
        let marker = Marker {
            cluster: self.cluster,
            unit: self.unit,
            owner: self.owner.clone(),
            conditional,
        };
        let path = self.bucket.path(marker::NAME);
        let text = Bytes::from(marker.encode());
        self.bucket.put(&path, text, mode, conditional).await?;
        Ok(())
    }

    /// Makes the prefix into the unit it should be.
    ///
    /// 1. look that it does not lie in another unit
    /// 2. look that nothing is below it
    /// 3. learn what the store can do
    /// 4. make the marker
    ///
    /// A prefix that is that unit already is claimed.
    pub(crate) async fn make(&self) -> Result<(), UnitError> {
        for above in self.bucket.above() {
            self.look_above(&above).await?;
        }
        match self.find().await {
            Ok(_) => return self.claim().await,
            Err(UnitError::Missing { .. }) => {}
            Err(why) => return Err(why),
        }
        // In the store's own words, also where it takes no writes: that may be a
        // mistake of whoever adds it.
        let failed = |error| self.bucket.meaning("make the unit", error);
        let mut objects = self.bucket.list_all();
        while let Some(object) = objects.next().await.map_err(failed)? {
            if object.location != self.probe_path() {
                let name = object.location;
                return Err(self.foreign(format!(
                    "it holds {name}, and a new unit needs a prefix with nothing below it"
                )));
            }
        }
        let conditional = self.learn().await.map_err(failed)?;
        match self.put_marker(conditional, PutMode::Create).await {
            // By somebody else, or by this one, whose answer was lost.
            Err(Error::AlreadyExists { .. }) => {}
            other => other.map_err(failed)?,
        }
        self.claim().await
    }

    /// Looks that there is no unit at `above`, in which this one would lie. What
    /// cannot be looked at is taken for no unit: it may be nobody's business.
    async fn look_above(&self, above: &Path) -> Result<(), UnitError> {
        let path = above.clone().join(marker::NAME);
        let found = self.bucket.get(&path, None, None, marker::BYTES_MAX).await;
        match found.map(|found| Marker::parse(&found.bytes)) {
            Ok(Ok(marker)) => Err(self.foreign(format!(
                "it lies in {above:?}, which is {} of {}; a unit needs a prefix of its own",
                marker.unit, marker.cluster
            ))),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    fn probe_path(&self) -> Path {
        self.bucket.path(&format!("probe-{}", self.unit))
    }

    /// Learns by trying what the store does only on condition.
    async fn learn(&self) -> Result<Conditional, Error> {
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

    /// Looks whether the unit is there, is this one, and takes writes.
    pub(crate) async fn try_probe(&self) -> Result<(), UnitError> {
        self.claim().await?;
        let failed = |error| self.bucket.meaning_of_write("write a probe", error);
        let path = self.probe_path();
        let probe = Bytes::from_static(PROBES[0]);
        let put = self.bucket.put_at_once(&path, probe, PutMode::Overwrite);
        put.await.map_err(failed)?;
        self.bucket.delete(&path).await.map_err(failed)
    }

    /// Forgets what is known of a unit that may be another one when it comes
    /// back.
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

/// `Ok(false)`, if the answer to a put on condition shows that the store does
/// not heed the condition, or does not know what one is.
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
