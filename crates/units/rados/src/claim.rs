//! Whose the unit is: making it, claiming it, and looking whether it still is.
//!
//! As on a folder, the marker names the one copy of the cluster's database that may
//! change the unit ([`unit::Owner`]). A claim is one change: if the marker is
//! still the one that was read, it is another one now.

use std::sync::atomic::Ordering;
use std::time::Duration;

use unit::{MARKER_FILE, Marker, MarkerError, Owner, UnitError};

use crate::pool::{Change, Errno};
use crate::site::{LOOK_WITHIN, Site};
use crate::unit_of_pool::Core;

/// How old the last look at the marker may be when a segment is put: a put takes
/// nothing from anybody. What does is preceded by a look of its own.
const LOOKED_BEFORE_PUT: Duration = Duration::from_secs(5);

/// How often a claim is tried again that somebody else's came before.
const CLAIMS_MAX: usize = 3;

/// The longest marker that is read, in bytes.
const MARKER_BYTES_MAX: usize = 64 << 10;

/// What a probe consists of: written beside a first byte, as only a pool that takes
/// parts of objects can.
const PROBE: &[u8] = b"probe";

/// Reads the marker at `site`, and its text.
pub(crate) fn read_marker(site: &Site) -> Result<(Marker, Vec<u8>), UnitError> {
    let url = site.url.clone();
    let text = match site.read(MARKER_FILE, 0, MARKER_BYTES_MAX, LOOK_WITHIN)? {
        Ok(text) => text,
        Err(Errno(libc::ENOENT)) => {
            return Err(UnitError::Missing {
                url,
                reason: format!("there is no {MARKER_FILE}; `scree unit add` makes it a unit"),
            });
        }
        Err(errno) => return Err(site.meaning("read its marker", errno)),
    };
    match Marker::parse(&text) {
        Ok(marker) => Ok((marker, text)),
        Err(MarkerError::Newer { found, known }) => Err(UnitError::Newer { url, found, known }),
        Err(MarkerError::Unreadable { reason }) => Err(UnitError::Missing {
            url,
            reason: format!("its {MARKER_FILE} cannot be read: {reason}"),
        }),
    }
}

impl Core {
    /// Looks whether the namespace is the unit it should be, whoever may change it.
    pub(crate) fn look(&self) -> Result<(Marker, Vec<u8>), UnitError> {
        let (marker, text) = read_marker(&self.site)?;
        let reason = if marker.cluster != self.cluster {
            format!(
                "it is a unit of {}, and this is {}; a unit of another cluster is never taken over",
                marker.cluster, self.cluster
            )
        } else if marker.unit != self.unit {
            format!("it is {}, and should be {}", marker.unit, self.unit)
        } else {
            return Ok((marker, text));
        };
        Err(self.foreign(reason))
    }

    /// As [`Core::look`], and whether it may be changed.
    pub(crate) fn verify(&self) -> Result<(), UnitError> {
        let (found, _) = self.look()?;
        if let Some(own) = &self.owner {
            match found.owner {
                Some(holder) if holder == *own => {}
                Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
                // What keeps it from being claimed is what is wrong with it.
                _ => {
                    let not_claimed = || UnitError::Missing {
                        url: self.site.url.clone(),
                        reason: "it was not claimed yet".to_owned(),
                    };
                    return Err(self.unclaimed.lock().clone().unwrap_or_else(not_claimed));
                }
            }
        }
        *self.verified.lock() = Some(self.world.clock.monotonic());
        Ok(())
    }

    /// As [`Core::verify`], or as that was a moment ago.
    pub(crate) fn verify_for_put(&self) -> Result<(), UnitError> {
        let verified = *self.verified.lock();
        let now = self.world.clock.monotonic();
        match verified {
            Some(at) if now.saturating_sub(at) < LOOKED_BEFORE_PUT => Ok(()),
            _ => self.verify(),
        }
    }

    /// As [`Core::verify`]; a unit that may be claimed is.
    pub(crate) fn claim(&self) -> Result<(), UnitError> {
        let claimed = self.try_claim();
        *self.unclaimed.lock() = claimed.as_ref().err().cloned();
        claimed
    }

    fn try_claim(&self) -> Result<(), UnitError> {
        for _ in 0..CLAIMS_MAX {
            let (found, text) = self.look()?;
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
            match self.site.change(MARKER_FILE, &changes, LOOK_WITHIN)? {
                Ok(()) => break,
                // Somebody else has claimed it meanwhile.
                Err(errno) if errno.is_condition() => {}
                Err(errno) => return Err(self.site.meaning_of_write("claim the unit", errno)),
            }
        }
        self.verify()?;
        self.takes_over.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Never from a later generation: of that one the operator said later that the
    /// others are gone, however late the unit is seen.
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

    /// Makes the namespace into the unit it should be.
    ///
    /// 1. look that nothing is in it
    /// 2. look that the pool takes what a unit puts
    /// 3. make the marker
    ///
    /// A namespace that is that unit already is claimed.
    pub(crate) fn make(&self) -> Result<(), UnitError> {
        match self.look() {
            Ok(_) => return self.claim(),
            Err(UnitError::Missing { .. }) => {}
            Err(why) => return Err(why),
        }
        let mut other = None;
        let probe = self.probe_name();
        let listed = self.site.pool()?.list(&mut |name| {
            if name != probe {
                other = Some(name.to_owned());
            }
        });
        listed.map_err(|errno| self.site.meaning("look what is in the pool", errno))?;
        if let Some(name) = other {
            return Err(self.foreign(format!(
                "it holds {name:?}, and a new unit needs a namespace with nothing in it, as \
                 rados://POOL/NAMESPACE"
            )));
        }
        self.write_probe()?;
        let marker = self.marker().encode();
        let changes = [Change::Create, Change::Replace(marker.as_bytes())];
        match self.site.change(MARKER_FILE, &changes, LOOK_WITHIN)? {
            // By somebody else, or by this one, whose answer was lost.
            Ok(()) | Err(Errno(libc::EEXIST)) => self.claim(),
            Err(errno) => Err(self.site.meaning_of_write("make the unit", errno)),
        }
    }

    fn probe_name(&self) -> String {
        format!("probe-{}", self.unit)
    }

    /// Looks that the pool takes what a unit puts.
    fn write_probe(&self) -> Result<(), UnitError> {
        let name = self.probe_name();
        let failed = |errno| self.site.meaning_of_write("write a probe", errno);
        let write = [
            Change::Replace(PROBE),
            Change::Write(PROBE.len() as u64, PROBE),
            Change::Zero(1, 1),
        ];
        let written = self.site.change(&name, &write, LOOK_WITHIN)?;
        written.map_err(failed)?;
        match self.site.change(&name, &[Change::Remove], LOOK_WITHIN)? {
            // By another host's probe.
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Looks whether the unit is there, is this one, and takes writes.
    pub(crate) fn try_probe(&self) -> Result<(), UnitError> {
        self.claim()?;
        self.write_probe()
    }

    /// Forgets what is known of a unit that may be another one when it comes back.
    pub(crate) fn forget(&self) {
        self.account.forget();
        *self.verified.lock() = None;
    }

    fn held(&self, holder: Owner) -> UnitError {
        UnitError::Held {
            url: self.site.url.clone(),
            holder: Box::new(holder),
        }
    }

    fn foreign(&self, reason: String) -> UnitError {
        UnitError::Foreign {
            url: self.site.url.clone(),
            reason,
        }
    }
}
