//! Leases of this host.
//!
//! * [`Leases`]: holding, renewing and losing leases
//! * `database_age`: acquiring leases, unless the database is older than the data
//! * `fencing`: answers about volumes that were taken from this host
//!
//! Every two seconds one call reports that the host is alive, and renews all leases. It waits only
//! for that call: not for volumes and units, as the report does, nor for the disk or another call.
//! One part that hangs must not cost the leases of others.
//!
//! ```text
//!  request ──────────────── 4/5 of the term │ the volume stalls (volume::LeaseTerm)
//!    └► answer ─────────────────────── the term │ another host may take it by force
//! ```
//!
//! Must not know: open volumes, journals, VMs.

mod database_age;
mod fencing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::{Assignment, CapabilityRequest, HeldLease, Renewal};
use base::AttachmentId;
use parking_lot::Mutex;
use volume::LeaseTerm;
use world::{Clock, host};

use crate::controller::{Contact, Controller, KeptCapabilities};

pub(crate) use database_age::DatabaseAge;
pub use database_age::{AcquireError, CheckError};
pub(crate) use fencing::Fencing;

/// How often leases are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// A lease of this host.
struct Held {
    epoch: u32,
    term: LeaseTerm,
    /// The capabilities of the lease on unit daemons.
    _kept: KeptCapabilities,
}

/// The leases of this host.
pub(crate) struct Leases {
    clock: Arc<dyn Clock>,
    controller: Controller,
    contact: Arc<Contact>,
    fencing: Arc<Fencing>,
    /// The term of a lease; `None` if leases do not expire because there is only one host.
    term: Option<Duration>,
    held: Mutex<HashMap<AttachmentId, Held>>,
}

impl Leases {
    pub fn new(
        clock: Arc<dyn Clock>,
        controller: Controller,
        contact: Arc<Contact>,
        fencing: Arc<Fencing>,
        term: Option<Duration>,
    ) -> Self {
        Self {
            clock,
            controller,
            contact,
            fencing,
            term,
            held: Mutex::default(),
        }
    }

    /// The time after which the holder of an unrenewed lease stops acknowledging, a part of its
    /// term; `None` if leases do not expire.
    pub fn holders_part(&self) -> Option<Duration> {
        self.term.map(holders_part)
    }

    /// The number of leases of this host.
    pub fn count(&self) -> usize {
        self.held.lock().len()
    }

    /// Holds a lease that was acquired by a call that began at `requested`.
    pub fn hold(&self, assignment: &Assignment, epoch: u32, requested: Duration) -> LeaseTerm {
        let term = match self.term {
            None => LeaseTerm::unlimited(),
            Some(lease) => LeaseTerm::until(requested + holders_part(lease)),
        };
        let requests = vec![
            CapabilityRequest::Lease {
                volume: assignment.volume,
                epoch,
            },
            CapabilityRequest::Read {
                lineage: assignment.lineage,
            },
        ];
        let held = Held {
            epoch,
            term: term.clone(),
            _kept: self.controller.capability_cache().keep(requests),
        };
        self.held.lock().insert(assignment.id, held);
        term
    }

    /// The term of an attachment's lease, if it has one.
    pub fn term_of(&self, attachment: AttachmentId) -> Option<LeaseTerm> {
        let held = self.held.lock();
        held.get(&attachment).map(|held| held.term.clone())
    }

    /// Stops renewing a lease: its volume is closed.
    pub fn release(&self, attachment: AttachmentId, epoch: Option<u32>) {
        let mut held = self.held.lock();
        // A later lease may have been acquired meanwhile.
        if held.get(&attachment).map(|held| held.epoch) == epoch {
            held.remove(&attachment);
        }
    }

    /// Ends a lease at once: its volume stops.
    pub fn lose(&self, attachment: AttachmentId, epoch: Option<u32>) {
        let held = self.held.lock();
        let held = held.get(&attachment);
        if let Some(held) = held.filter(|held| Some(held.epoch) == epoch) {
            held.term.lose();
        }
    }

    /// Renews leases as long as the agent runs, if leases expire.
    pub async fn run(&self) {
        if self.term.is_none() {
            return;
        }
        let mut ticks = host::ticks(RENEW_EVERY);
        loop {
            ticks.tick().await;
            if let Err(error) = self.renew().await {
                tracing::debug!(%error, "agent could not renew leases");
            }
        }
    }

    /// Renews all leases, and ends those that the answer reports as lost.
    pub async fn renew(&self) -> Result<(), ClientError> {
        let Some(lease) = self.term else {
            return Ok(());
        };
        let own_leases = self.held_leases();
        let renewal = Renewal {
            leases: own_leases.clone(),
            journals: self.fencing.unclaimed(),
        };
        let requested = self.clock.monotonic();
        let renewed = self.controller.renew(renewal).await?;
        self.contact.note_answer(self.clock.monotonic());
        self.contact.note_renewal(requested);
        {
            let held = self.held.lock();
            for own_lease in &own_leases {
                // The attachment may have another lease by now.
                let held = held.get(&own_lease.attachment);
                let Some(held) = held.filter(|held| held.epoch == own_lease.epoch) else {
                    continue;
                };
                if renewed.lost.contains(own_lease) {
                    tracing::error!(attachment = %own_lease.attachment, "agent lost lease, which was taken from this host");
                    held.term.lose();
                } else {
                    held.term.renew(requested + holders_part(lease));
                }
            }
        }
        if !renewed.fenced.is_empty() || !renewed.deleted.is_empty() {
            self.fencing.set_answer(renewed.fenced, renewed.deleted);
        }
        Ok(())
    }

    fn held_leases(&self) -> Vec<HeldLease> {
        let held = self.held.lock();
        let leases = held.iter().map(|(attachment, held)| HeldLease {
            attachment: *attachment,
            epoch: held.epoch,
        });
        leases.collect()
    }
}

/// The part of a term in which the holder acknowledges.
fn holders_part(term: Duration) -> Duration {
    term * 4 / 5
}
