//! Finding out what some units alone have of a volume (docs/models.md, "Audit").
//!
//! ```text
//!  1. open    the version, read-only, as for an attachment, but past the cache
//!  2. files   what its partitions have for files, if their file systems are understood
//!  3. judge   block after block, what the compromised units have of it, and whose that is
//!  4. tell    now and then how far it is; and what was found
//! ```
//!
//! A host does one at a time, and the others wait for their turn: first come, first served. One
//! that is not wanted any more ends with its next blocks, and tells nothing. What is told are
//! counts: no content. Names and lengths of files are told as they are of volumes that are not
//! sealed, and `sealed` of others.

mod disk;
mod files;
mod sealed;

pub use sealed::{SealedError, open_listing};

use std::collections::HashMap;
use std::sync::Arc;

use api::client::ClientError;
use api::host::calls::ReportAudit;
use api::host::{AuditEnd, AuditReport, WantedAudit};
use api::types::{AuditFound, AuditHeld};
use base::{AuditId, IoError, with_causes};
use volume::audit::{Audit, AuditError, Tally};
use volume::map::PAGE_BYTES;

use crate::agent::{Agent, blocking, lock};
use crate::jobs::{self, CalledOff, VersionError, Wanted};
use disk::Disk;
use files::FileSystems;

/// Why nothing was found out.
#[derive(Debug, thiserror::Error)]
enum FailedAudit {
    #[error(transparent)]
    Version(#[from] VersionError),
    #[error("it cannot be read: {0}")]
    Read(#[from] IoError),
    #[error("{}", with_causes(.0))]
    Audit(#[from] AuditError),
    #[error(transparent)]
    CalledOff(#[from] CalledOff),
}

/// Those that are under way.
pub(crate) type Audits = HashMap<AuditId, Arc<Wanted>>;

fn report(audit: &Wanted, end: Option<AuditEnd>) -> AuditReport {
    AuditReport {
        done_bytes: audit.done_bytes(),
        end,
    }
}

impl Agent {
    /// What is to be audited is what is in `wanted`, and nothing else.
    pub(crate) fn set_audits(&self, wanted: Vec<WantedAudit>) {
        let mut audits = lock(&self.inner.audits);
        audits.retain(|id, audit| {
            let is_wanted = wanted.iter().any(|wish| wish.id == *id);
            if !is_wanted {
                audit.cancel();
            }
            is_wanted
        });
        for wish in wanted {
            if self.is_ending() || audits.contains_key(&wish.id) {
                continue;
            }
            let audit = Arc::new(Wanted::new());
            audits.insert(wish.id, Arc::clone(&audit));
            tokio::spawn(self.clone().audit(wish, audit));
        }
    }

    /// Does one, and tells of that.
    async fn audit(self, wish: WantedAudit, audit: Arc<Wanted>) {
        let (id, controller) = (wish.id, &self.inner.controller);
        let (agent, progress) = (self.clone(), Arc::clone(&audit));
        let found = async {
            // Each takes memory, and reads all of a volume. It is told of while it waits, too.
            let turn = self.inner.audit_turn.lock().await;
            let found = blocking(move || agent.find_out(&wish, &progress)).await;
            drop(turn);
            found
        };
        let of = |end| ReportAudit {
            audit: id,
            report: report(&audit, end),
        };
        let tell = || async { controller.call_once(&of(None)).await };
        let end = match audit.follow(found, tell).await {
            Ok(Ok(found)) => Some(Ok(found)),
            Ok(Err(FailedAudit::CalledOff(_))) => None,
            Ok(Err(error)) => Some(Err(error.to_string())),
            Err(error) => Some(Err(error.to_string())),
        };
        if let Some(end) = end {
            if let Err(why) = &end {
                tracing::warn!(%id, why, "a volume was not audited");
            }
            let mut heard = controller.call_until_answered(&of(Some(end))).await;
            if let Err(ClientError::Refused(problem)) = &heard {
                // It would be wanted on, and begun anew.
                let why = format!("what was found was refused: {}", problem.detail);
                heard = controller.call_until_answered(&of(Some(Err(why)))).await;
            }
            if let Err(error) = heard {
                tracing::error!(%id, %error, "what an audit has found was not heard");
            }
        }
        jobs::forget(&self.inner.audits, &id, &audit);
    }

    /// Steps 1 to 3. Waits.
    fn find_out(&self, wish: &WantedAudit, audit: &Wanted) -> Result<AuditFound, FailedAudit> {
        // It may have waited for its turn.
        audit.check(self)?;
        let version = self.version(wish.version)?;
        let keyring = &version.keyring;
        let sealing = self.inner.keys.sealing_key(&version.keys);
        let sealing = sealing.map_err(VersionError::Key)?;
        let store = &self.inner.store;
        let opened = Audit::open(store, &version.version, keyring, &wish.units);
        let disk = Disk::new(
            self.read_only(&version, wish.size_bytes, wish.block_size, None)?,
            || audit.check(self).is_ok(),
        );
        let files = FileSystems::read(&disk, wish.size_bytes);
        audit.check(self)?;
        let mut files = files?;
        let mut opened = opened?;
        let (mut blocks, block_bytes) = (Tally::default(), opened.block_bytes());
        while let Some(batch) = opened.next_batch()? {
            audit.check(self)?;
            for one in &batch.blocks {
                blocks.add(one.held);
                let begin = one.block * block_bytes;
                files.add(begin..begin + block_bytes, one.held);
            }
            let done = batch.end.saturating_mul(block_bytes).min(wish.size_bytes);
            audit.is_at(done);
        }
        audit.is_at(wish.size_bytes);
        let found = AuditFound {
            blocks: in_bytes(blocks, block_bytes),
            map: in_bytes(opened.map(), PAGE_BYTES as u64),
            ..AuditFound::default()
        };
        let check = || audit.check(self);
        let found = files.into_found(found, wish.block_size, wish.files, check)?;
        audit.check(self)?;
        Ok(match sealing {
            None => found,
            Some((lineage, key)) => {
                let random = &*self.inner.world.random;
                sealed::sealed(found, wish.id, (lineage, &key), random)
            }
        })
    }
}

fn in_bytes(tally: Tally, each: u64) -> AuditHeld {
    AuditHeld {
        all: tally.all * each,
        readable: tally.content * each,
        sealed: tally.sealed * each,
        other: tally.other * each,
    }
}
