//! Finding out what some units alone have of a volume (docs/models.md, "Audit").
//!
//! ```text
//!  1. open    the version, read-only, as for an attachment, but past the cache
//!  2. files   what its partitions have for files, if their file systems are understood
//!  3. judge   block after block, what the captured units have of it, and whose that is
//!  4. tell    now and then how far it is; and what was found
//! ```
//!
//! A host does one at a time, and the others wait for their turn: first come, first served. One
//! that is not wanted any more ends with its next blocks, and tells nothing. What is told are
//! counts: no content. Names and lengths of files are told of volumes that are not sealed, and of
//! sealed ones the lengths of those files that are to be listed (docs/threat-model.md).

mod disk;
mod files;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::client::ClientError;
use api::host::{AuditEnd, AuditReport, Want, WantedAudit};
use api::types::{AuditFound, AuditHeld};
use base::{AuditId, IoError, with_causes};
use catalog::CatalogError;
use volume::audit::{Audit, AuditError, Tally};
use volume::map::PAGE_BYTES;
use volume::seal::KeyError;
use volume::{OpenError, ReadOnlyParams, ReadOnlyVolume};
use world::{Wake, host};

use crate::agent::{Agent, blocking, lock};
use disk::Disk;
use files::{FileSystems, Telling};

/// How far it is, is told so often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Why nothing was found out.
#[derive(Debug, thiserror::Error)]
enum FailedAudit {
    #[error("it cannot be found: {0}")]
    Catalog(#[from] CatalogError),
    #[error("its keys do not open: {}", with_causes(.0))]
    Key(#[from] KeyError),
    #[error("it cannot be opened: {}", with_causes(.0))]
    Open(#[from] OpenError),
    #[error("it cannot be read: {0}")]
    Read(#[from] IoError),
    #[error("{}", with_causes(.0))]
    Audit(#[from] AuditError),
    /// Nobody wants it any more.
    #[error("it was called off")]
    CalledOff,
}

/// One that is under way.
pub struct UnderWay {
    is_wanted: AtomicBool,
    done_bytes: AtomicU64,
}

impl UnderWay {
    fn report(&self, end: Option<AuditEnd>) -> AuditReport {
        AuditReport {
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            end,
        }
    }

    fn check(&self, agent: &Agent) -> Result<(), FailedAudit> {
        match self.is_wanted.load(Ordering::Relaxed) && !agent.is_ending() {
            true => Ok(()),
            false => Err(FailedAudit::CalledOff),
        }
    }
}

/// Those that are under way.
pub type Audits = HashMap<AuditId, Arc<UnderWay>>;

impl Agent {
    /// What is to be audited is what is in `wanted`, and nothing else.
    pub(crate) fn set_audits(&self, wanted: Vec<WantedAudit>) {
        let mut audits = lock(&self.inner.audits);
        audits.retain(|id, audit| {
            let is_wanted = wanted.iter().any(|wish| wish.id == *id);
            audit.is_wanted.fetch_and(is_wanted, Ordering::Relaxed);
            is_wanted
        });
        for wish in wanted {
            if self.is_ending() || audits.contains_key(&wish.id) {
                continue;
            }
            let audit = Arc::new(UnderWay {
                is_wanted: AtomicBool::new(true),
                done_bytes: AtomicU64::new(0),
            });
            audits.insert(wish.id, Arc::clone(&audit));
            tokio::spawn(self.clone().audit(wish, audit));
        }
    }

    /// Does one, and tells of that.
    async fn audit(self, wish: WantedAudit, audit: Arc<UnderWay>) {
        let (id, controller) = (wish.id, &self.inner.controller);
        let (agent, progress) = (self.clone(), Arc::clone(&audit));
        let mut found = pin!(async {
            // Each takes memory, and reads all of a volume. It is told of while it waits, too.
            let turn = self.inner.audit_turn.lock().await;
            let found = blocking(move || agent.find_out(&wish, &progress)).await;
            drop(turn);
            found
        });
        let end = loop {
            let Some(found) = host::within(TELL_EVERY, &mut found).await else {
                // Whether this one is heard is of no account: the next one says more.
                let report = audit.report(None);
                let told = controller.report_audit(id, &report);
                if matches!(host::within(TELL_EVERY, told).await, Some(Ok(false))) {
                    audit.is_wanted.store(false, Ordering::Relaxed);
                }
                continue;
            };
            break match found {
                Ok(Ok(found)) => Some(Ok(found)),
                Ok(Err(FailedAudit::CalledOff)) => None,
                Ok(Err(error)) => Some(Err(error.to_string())),
                Err(error) => Some(Err(error.to_string())),
            };
        };
        if let Some(end) = end {
            if let Err(why) = &end {
                tracing::warn!(%id, why, "a volume was not audited");
            }
            let report = audit.report(Some(end));
            let mut heard = controller.audit_ended(id, &report).await;
            if let Err(ClientError::Refused(problem)) = &heard {
                // It would be wanted on, and begun anew.
                let why = format!("what was found was refused: {}", problem.detail);
                heard = controller
                    .audit_ended(id, &audit.report(Some(Err(why))))
                    .await;
            }
            if let Err(error) = heard {
                tracing::error!(%id, %error, "what an audit has found was not heard");
            }
        }
        let mut audits = lock(&self.inner.audits);
        let is_it = |now: &Arc<UnderWay>| Arc::ptr_eq(now, &audit);
        if audits.get(&id).is_some_and(is_it) {
            audits.remove(&id);
        }
    }

    /// Steps 1 to 3. Waits.
    fn find_out(&self, wish: &WantedAudit, audit: &UnderWay) -> Result<AuditFound, FailedAudit> {
        let inner = &self.inner;
        let version = inner.catalog.version(wish.version)?;
        let lineage = version.lineage;
        let capabilities = inner.controller.capability_cache();
        let _kept = capabilities.keep(vec![Want::Read { lineage }]);
        let keys = inner.catalog.keys(lineage)?;
        let keyring = Arc::new(inner.keys.keyring(&keys)?);
        let is_sealed = !keyring.own().is_plaintext();
        let opened = Audit::open(&inner.store, &version, &keyring, &wish.units);
        let reading = std::thread::current();
        let disk = Disk::new(
            ReadOnlyVolume::open(ReadOnlyParams {
                wake: Wake::new(move || reading.unpark()),
                clock: Arc::clone(&inner.world.clock),
                store: Arc::clone(&inner.store),
                version: Some((version, keyring)),
                size_bytes: wish.size_bytes,
                block_size: wish.block_size,
                pages: Arc::clone(&inner.pages),
                cache: None,
            })?,
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
            audit.done_bytes.store(done, Ordering::Relaxed);
        }
        audit.done_bytes.store(wish.size_bytes, Ordering::Relaxed);
        let found = AuditFound {
            blocks: in_bytes(blocks, block_bytes),
            map: in_bytes(opened.map(), PAGE_BYTES as u64),
            ..AuditFound::default()
        };
        let telling = Telling {
            is_listed: wish.files,
            is_sealed,
        };
        Ok(files.into_found(found, wish.block_size, telling))
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
