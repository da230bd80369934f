//! Leases in time, on the host that has them.
//!
//! Every two seconds one call says that the host is there, and renews all of
//! them. It waits for that call and for nothing else, neither for volumes and
//! units, as the report does, nor for D's disk or another call: what hangs must not
//! cost the leases of the others.
//!
//! ```text
//!  asked ──────────────── 4/5 of the term │ the volume stalls (volume::LeaseTerm)
//!    └► heard ─────────────────────── the term │ others may have it, if told so
//! ```
//!
//! What was taken from this host meanwhile it hears in the answer, and which of
//! its journals nobody wants any more; `journals_aside` finds and keeps those, in a
//! loop of its own. Whether a lease may be
//! used at all is another matter: `database_age`.

use std::time::Duration;

use api::ClientError;
use api::host::{Assignment, HeldLease, Renewal, Want};
use base::AttachmentId;
use volume::LeaseTerm;
use world::host;

use crate::agent::{Agent, lock};
use crate::capability_cache::Kept;

/// How often leases are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// A lease of this host.
pub(crate) struct Held {
    epoch: u32,
    term: LeaseTerm,
    /// What it allows on unit daemons.
    _kept: Kept,
}

/// The part of a term in which its holder acknowledges.
pub(crate) fn own_part(lease: Duration) -> Duration {
    lease * 4 / 5
}

impl Agent {
    /// Keeps a lease that was just taken, which was asked for at `asked`.
    pub(crate) fn hold(&self, wish: &Assignment, epoch: u32, asked: Duration) -> LeaseTerm {
        let term = match self.inner.lease_term {
            None => LeaseTerm::unlimited(),
            Some(lease) => LeaseTerm::until(asked + own_part(lease)),
        };
        let wants = vec![
            Want::Lease {
                volume: wish.volume,
                epoch,
            },
            Want::Read {
                lineage: wish.lineage,
            },
        ];
        let held = Held {
            epoch,
            term: term.clone(),
            _kept: self.inner.controller.capability_cache().keep(wants),
        };
        lock(&self.inner.leases).insert(wish.id, held);
        term
    }

    /// Until when the lease of an attachment holds; none, if it has none.
    pub(crate) fn lease_term(&self, attachment: AttachmentId) -> Option<LeaseTerm> {
        let leases = lock(&self.inner.leases);
        leases.get(&attachment).map(|held| held.term.clone())
    }

    /// Renews a lease no more: its volume is closed, or dropped.
    pub(crate) fn release(&self, attachment: AttachmentId, epoch: Option<u32>) {
        let mut leases = lock(&self.inner.leases);
        // It may have been taken anew meanwhile.
        if leases.get(&attachment).map(|held| held.epoch) == epoch {
            leases.remove(&attachment);
        }
    }

    /// A lease is of no use any more: its volume stops.
    pub(crate) fn lose(&self, attachment: AttachmentId, epoch: Option<u32>) {
        let leases = lock(&self.inner.leases);
        let held = leases.get(&attachment);
        if let Some(held) = held.filter(|held| Some(held.epoch) == epoch) {
            held.term.lose();
        }
    }

    /// Renews leases again and again, if they end.
    pub(crate) async fn keep_leases(&self) {
        if self.inner.lease_term.is_none() {
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

    /// Renews all leases, and does what the answer says of those that are lost.
    pub(crate) async fn renew(&self) -> Result<(), ClientError> {
        let Some(lease) = self.inner.lease_term else {
            return Ok(());
        };
        let ours: Vec<HeldLease> = lock(&self.inner.leases)
            .iter()
            .map(|(attachment, held)| HeldLease {
                attachment: *attachment,
                epoch: held.epoch,
            })
            .collect();
        let renewal = Renewal {
            leases: ours.clone(),
            journals: lock(&self.inner.journals_aside.unwanted).clone(),
        };
        let asked = self.inner.world.clock.monotonic();
        let renewed = self.inner.controller.renew(renewal).await?;
        self.note_heard();
        self.inner.health.renewed(asked);
        {
            let leases = lock(&self.inner.leases);
            for one in &ours {
                // It may be another lease by now.
                let held = leases.get(&one.attachment);
                let Some(held) = held.filter(|held| held.epoch == one.epoch) else {
                    continue;
                };
                if renewed.lost.contains(one) {
                    tracing::error!(attachment = %one.attachment, "the lease was taken away");
                    held.term.lose();
                } else {
                    held.term.renew(asked + own_part(lease));
                }
            }
        }
        if !renewed.fenced.is_empty() || !renewed.gone.is_empty() {
            *lock(&self.inner.journals_aside.fenced) = renewed.fenced;
            *lock(&self.inner.journals_aside.gone) = renewed.gone;
            self.inner.journals_aside.told.notify_one();
        }
        Ok(())
    }
}
