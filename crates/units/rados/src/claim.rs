//! The owner of the unit: creating it, claiming it, and verifying it.
//!
//! As on a folder, the marker names the one copy of the cluster's database that may change the
//! unit ([`unit::Owner`]). A claim is one conditional change of the marker.

use std::sync::atomic::Ordering;
use std::time::Duration;

use unit::{MARKER_BYTES_MAX, MARKER_FILE, Marker, Owner, UnitError};

use crate::access::{METADATA_TIMEOUT, PoolAccess};
use crate::pool::{Change, Errno};
use crate::rados_unit::Core;

/// Time for which a verified marker allows puts, which destroy nothing. Other changes verify the
/// marker again.
const VERIFIED_FOR: Duration = Duration::from_secs(5);

/// Number of attempts of a claim when others claim the unit concurrently.
const CLAIMS_MAX: usize = 3;

/// The content of a probe. It is written twice, side by side, which needs a pool that supports
/// partial writes.
const PROBE: &[u8] = b"probe";

/// Reads the marker and its text.
pub(crate) fn read_marker(access: &PoolAccess) -> Result<(Marker, Vec<u8>), UnitError> {
    let url = access.url.clone();
    let text = match access.read(MARKER_FILE, 0, MARKER_BYTES_MAX, METADATA_TIMEOUT)? {
        Ok(text) => text,
        Err(Errno(libc::ENOENT)) => {
            return Err(UnitError::Missing {
                url,
                reason: format!("there is no {MARKER_FILE}; `scree unit add` makes it a unit"),
            });
        }
        Err(errno) => return Err(access.read_error("read its marker", errno)),
    };
    match Marker::parse(&text) {
        Ok(marker) => Ok((marker, text)),
        Err(error) => Err(error.of_unit(url)),
    }
}

impl Core {
    /// Checks that the namespace is the expected unit, with any owner, and returns its marker and
    /// the marker's text.
    pub(crate) fn check(&self) -> Result<(Marker, Vec<u8>), UnitError> {
        let (marker, text) = read_marker(&self.access)?;
        let reason = if marker.cluster != self.cluster {
            format!(
                "it is a unit of {}, and this is {}; a unit of another cluster cannot be taken over",
                marker.cluster, self.cluster
            )
        } else if marker.unit != self.unit {
            format!("it is {} and should be {}", marker.unit, self.unit)
        } else {
            return Ok((marker, text));
        };
        Err(self.foreign(reason))
    }

    /// As [`Core::check`], and checks that this owner may change the unit.
    pub(crate) fn verify(&self) -> Result<(), UnitError> {
        let (found, _) = self.check()?;
        if let Some(own) = &self.owner {
            match found.owner {
                Some(holder) if holder == *own => {}
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                // The reason is the error of the last claim.
                _ => {
                    let not_claimed = || UnitError::Missing {
                        url: self.access.url.clone(),
                        reason: "it is not claimed yet".to_owned(),
                    };
                    return Err(self.claim_error.lock().clone().unwrap_or_else(not_claimed));
                }
            }
        }
        *self.verified.lock() = Some(self.world.clock.monotonic());
        Ok(())
    }

    /// As [`Core::verify`], unless that was done a moment ago.
    pub(crate) fn verify_for_put(&self) -> Result<(), UnitError> {
        let verified = *self.verified.lock();
        let now = self.world.clock.monotonic();
        match verified {
            Some(at) if now.saturating_sub(at) < VERIFIED_FOR => Ok(()),
            _ => self.verify(),
        }
    }

    /// As [`Core::verify`]; claims the unit first if this owner may.
    pub(crate) fn claim(&self) -> Result<(), UnitError> {
        let claimed = self.try_claim();
        *self.claim_error.lock() = claimed.as_ref().err().cloned();
        claimed
    }

    fn try_claim(&self) -> Result<(), UnitError> {
        for _ in 0..CLAIMS_MAX {
            let (found, text) = self.check()?;
            let Some(own) = &self.owner else {
                return Ok(());
            };
            match found.owner {
                Some(holder) if holder == *own => break,
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                _ => {}
            }
            let marker = self.marker().encode();
            let changes = [Change::MustBe(&text), Change::Replace(marker.as_bytes())];
            match self
                .access
                .change(MARKER_FILE, &changes, METADATA_TIMEOUT)?
            {
                Ok(()) => break,
                // Another host has claimed it meanwhile.
                Err(errno) if errno.is_condition() => {}
                Err(errno) => return Err(self.access.write_error("claim the unit", errno)),
            }
        }
        self.verify()?;
        self.takes_over.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether `own` may claim the unit from `holder`. Never from a later generation: the operator
    /// has declared the earlier ones lost, however late the unit becomes available.
    fn may_claim(&self, own: &Owner, holder: &Owner) -> bool {
        let takes_over = self.takes_over.load(Ordering::Relaxed);
        holder.generation < own.generation || (holder.generation == own.generation && takes_over)
    }

    fn marker(&self) -> Marker {
        Marker {
            cluster: self.cluster,
            unit: self.unit,
            owner: self.owner.clone(),
        }
    }

    /// Creates the unit.
    ///
    /// 1. check that the namespace is empty
    /// 2. check that the pool accepts a unit's writes
    /// 3. create the marker
    ///
    /// A namespace that is this unit already is only claimed.
    pub(crate) fn create(&self) -> Result<(), UnitError> {
        match self.check() {
            Ok(_) => return self.claim(),
            Err(UnitError::Missing { .. }) => {}
            Err(why) => return Err(why),
        }
        let mut other = None;
        let probe = self.probe_name();
        let listed = self.access.pool()?.list(&mut |name| {
            if name != probe {
                other = Some(name.to_owned());
            }
        });
        listed.map_err(|errno| self.access.read_error("list its objects", errno))?;
        if let Some(name) = other {
            return Err(self.foreign(format!(
                "it is not empty: it contains {name:?}; choose an empty namespace for a new unit, as \
                 rados://POOL/NAMESPACE"
            )));
        }
        self.write_probe()?;
        let marker = self.marker().encode();
        let changes = [Change::Create, Change::Replace(marker.as_bytes())];
        match self
            .access
            .change(MARKER_FILE, &changes, METADATA_TIMEOUT)?
        {
            // Another host was first, or an earlier attempt whose answer was lost.
            Ok(()) | Err(Errno(libc::EEXIST)) => self.claim(),
            Err(errno) => Err(self.access.write_error("create the unit", errno)),
        }
    }

    fn probe_name(&self) -> String {
        format!("probe-{}", self.unit)
    }

    /// Checks that the pool accepts a unit's writes.
    fn write_probe(&self) -> Result<(), UnitError> {
        let name = self.probe_name();
        let failed = |errno| self.access.write_error("write a probe", errno);
        let write = [
            Change::Replace(PROBE),
            Change::Write(PROBE.len() as u64, PROBE),
            Change::Zero(1, 1),
        ];
        let written = self.access.change(&name, &write, METADATA_TIMEOUT)?;
        written.map_err(failed)?;
        match self
            .access
            .change(&name, &[Change::Remove], METADATA_TIMEOUT)?
        {
            // Another host's probe has removed it.
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Checks that the unit is available, is the expected one, and accepts writes.
    pub(crate) fn try_probe(&self) -> Result<(), UnitError> {
        self.claim()?;
        self.write_probe()
    }

    /// Clears cached state: another unit may be there when it is available again.
    pub(crate) fn forget(&self) {
        self.account.forget();
        *self.verified.lock() = None;
    }

    fn held(&self, holder: Owner) -> UnitError {
        UnitError::Held {
            url: self.access.url.clone(),
            holder: Box::new(holder),
        }
    }

    fn foreign(&self, reason: String) -> UnitError {
        UnitError::Foreign {
            url: self.access.url.clone(),
            reason,
        }
    }
}
