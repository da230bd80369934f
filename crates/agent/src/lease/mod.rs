//! Leases of this host.
//!
//! * [`Leases`]: leases in time: held, renewed, lost
//! * `database_age`: leases that may be used, as the database is not older than the data
//! * `fencing`: what renewals say about volumes that were taken from this host
//!
//! Every two seconds one call reports that the host is alive, and renews all leases. It waits for
//! that call alone: neither for volumes and units, as the report does, nor for D's disk or another
//! call. What hangs must not cost the leases of others.
//!
//! ```text
//!  asked ──────────────── 4/5 of the term │ the volume stalls (volume::LeaseTerm)
//!    └► heard ─────────────────────── the term │ others may have it, if it is taken by force
//! ```
//!
//! Must not know: volumes that are open, journals, VMs.

mod database_age;
mod fencing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::{Assignment, HeldLease, Renewal, Want};
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
    /// What the lease allows on unit daemons.
    _kept: KeptCapabilities,
}

/// The leases of this host.
pub(crate) struct Leases {
    clock: Arc<dyn Clock>,
    controller: Controller,
    contact: Arc<Contact>,
    fencing: Arc<Fencing>,
    /// The term of a lease; `None` if leases do not end, as there is only one host.
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

    /// The time after which the holder of an unrenewed lease stops to acknowledge: a part of its
    /// term. `None` if leases do not end.
    pub fn holders_part(&self) -> Option<Duration> {
        self.term.map(holders_part)
    }

    /// The number of leases that this host has.
    pub fn count(&self) -> usize {
        self.held.lock().len()
    }

    /// Holds a lease that was just acquired by a call that began at `asked`.
    pub fn hold(&self, assignment: &Assignment, epoch: u32, asked: Duration) -> LeaseTerm {
        let term = match self.term {
            None => LeaseTerm::unlimited(),
            Some(lease) => LeaseTerm::until(asked + holders_part(lease)),
        };
        let wants = vec![
            Want::Lease {
                volume: assignment.volume,
                epoch,
            },
            Want::Read {
                lineage: assignment.lineage,
            },
        ];
        let held = Held {
            epoch,
            term: term.clone(),
            _kept: self.controller.capability_cache().keep(wants),
        };
        self.held.lock().insert(assignment.id, held);
        term
    }

    /// The term of an attachment's lease, if it has one.
    pub fn term_of(&self, attachment: AttachmentId) -> Option<LeaseTerm> {
        let held = self.held.lock();
        held.get(&attachment).map(|held| held.term.clone())
    }

    /// Stops to renew a lease: its volume is closed.
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

    /// Renews leases as long as the agent runs, if they end.
    pub async fn run(&self) {
        if self.term.is_none() {
            return;
        }
        let mut ticks = host::ticks(RENEW_EVERY);
        loop {
            ticks.tick().await;
            if let Err(error) = self.renew().await {
                tracing::debug!(%error, "leases were not renewed");
            }
        }
    }

    /// Renews all leases, and ends those that the answer says are lost.
    pub async fn renew(&self) -> Result<(), ClientError> {
        let Some(lease) = self.term else {
            return Ok(());
        };
        let ours = self.held_leases();
        let renewal = Renewal {
            leases: ours.clone(),
            journals: self.fencing.unclaimed(),
        };
        let asked = self.clock.monotonic();
        let renewed = self.controller.renew(renewal).await?;
        self.contact.note_answer(self.clock.monotonic());
        self.contact.note_renewal(asked);
        {
            let held = self.held.lock();
            for one in &ours {
                // It may be another lease by now.
                let held = held.get(&one.attachment);
                let Some(held) = held.filter(|held| held.epoch == one.epoch) else {
                    continue;
                };
                if renewed.lost.contains(one) {
                    tracing::error!(attachment = %one.attachment, "lease was taken from this host");
                    held.term.lose();
                } else {
                    held.term.renew(asked + holders_part(lease));
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

/// The part of a term in which its holder acknowledges.
fn holders_part(term: Duration) -> Duration {
    term * 4 / 5
}
