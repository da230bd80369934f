//! `Audits` finds out what some units alone reveal of a volume (docs/explanation/leakage.md).
//!
//! ```text
//!  1. open    the version, read-only, as for an attachment, but without the cache
//!  2. files   the files of its partitions, if their file systems can be read
//!  3. judge   for each block, what the compromised units hold of it, and to which file it belongs
//!  4. report  the progress each second; then the findings
//! ```
//!
//! A host runs one audit at a time, in the order of their requests. A canceled audit ends with its
//! next blocks, and reports nothing. Reports are counts, never content. Names and lengths of files
//! are reported in the clear for unencrypted volumes, and `sealed` for others.

mod disk;
mod files;
mod sealed;

pub use sealed::{SealedError, open_listing};

use std::collections::HashMap;
use std::sync::Arc;

use api::client::ClientError;
use api::host::calls::ReportAudit;
use api::host::{AuditOutcome, AuditReport, DesiredAudit};
use api::types::{AuditBytes, AuditResult};
use base::{AuditId, IoError, with_causes};
use parking_lot::Mutex;
use volume::audit::{Audit, AuditError, Tally};
use volume::map::PAGE_BYTES;
use world::Random;

use crate::background::{self, Canceled, JobProgress, VersionError, VersionReader};
use crate::context::{Shutdown, blocking};
use crate::controller::Controller;
use disk::Disk;
use files::FileSystems;

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
enum AuditFailure {
    #[error(transparent)]
    Version(#[from] VersionError),
    #[error("it cannot be read: {0}")]
    Read(#[from] IoError),
    #[error("{}", with_causes(.0))]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Canceled(#[from] Canceled),
}

/// The audits of this host.
#[derive(Clone)]
pub(crate) struct Audits {
    controller: Controller,
    reader: VersionReader,
    random: Arc<dyn Random>,
    shutdown: Shutdown,
    running: Arc<Mutex<HashMap<AuditId, Arc<JobProgress>>>>,
    /// Held by the running audit.
    turn: Arc<tokio::sync::Mutex<()>>,
}

fn report(audit: AuditId, progress: &JobProgress, end: Option<AuditOutcome>) -> ReportAudit {
    let done_bytes = progress.done_bytes();
    let report = AuditReport { done_bytes, end };
    ReportAudit { audit, report }
}

impl Audits {
    pub fn new(
        controller: Controller,
        reader: VersionReader,
        random: Arc<dyn Random>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            controller,
            reader,
            random,
            shutdown,
            running: Arc::default(),
            turn: Arc::default(),
        }
    }

    #[cfg(test)]
    pub fn turn(&self) -> &tokio::sync::Mutex<()> {
        &self.turn
    }

    /// Starts the desired audits, and cancels all others.
    pub fn set_desired(&self, desired: Vec<DesiredAudit>) {
        let mut running = self.running.lock();
        running.retain(|id, audit| {
            let is_desired = desired.iter().any(|one| one.id == *id);
            if !is_desired {
                audit.cancel();
            }
            is_desired
        });
        for request in desired {
            if self.shutdown.has_begun() || running.contains_key(&request.id) {
                continue;
            }
            let progress = Arc::new(JobProgress::new(self.shutdown.clone()));
            running.insert(request.id, Arc::clone(&progress));
            tokio::spawn(self.clone().run(request, progress));
        }
    }

    /// Runs one audit, and reports its outcome.
    async fn run(self, request: DesiredAudit, progress: Arc<JobProgress>) {
        let (id, controller) = (request.id, &self.controller);
        let (audits, of_audit) = (self.clone(), Arc::clone(&progress));
        let found = async {
            // An audit takes much memory, and reads a whole volume. Its progress is reported while
            // it waits for its turn.
            let turn = self.turn.lock().await;
            let found = blocking(move || audits.find(&request, &of_audit)).await;
            drop(turn);
            found
        };
        let report_progress = || async { controller.call_once(&report(id, &progress, None)).await };
        let end = match progress.follow(found, report_progress).await {
            Ok(Ok(found)) => Some(Ok(found)),
            Ok(Err(AuditFailure::Canceled(_))) => None,
            Ok(Err(error)) => Some(Err(error.to_string())),
            Err(error) => Some(Err(error.to_string())),
        };
        if let Some(end) = end {
            if let Err(why) = &end {
                tracing::warn!(%id, error = why, "audit failed");
            }
            self.report_end(id, &progress, end).await;
        }
        background::forget(&self.running, &id, &progress);
    }

    async fn report_end(&self, id: AuditId, progress: &JobProgress, end: AuditOutcome) {
        let controller = &self.controller;
        let ended = report(id, progress, Some(end));
        let mut answer = controller.call_until_answered(&ended).await;
        if let Err(ClientError::Refused(problem)) = &answer {
            // Without an outcome the audit would stay desired, and be started again.
            let why = format!("the controller refused the findings: {}", problem.detail);
            let failed = report(id, progress, Some(Err(why)));
            answer = controller.call_until_answered(&failed).await;
        }
        if let Err(error) = answer {
            tracing::error!(%id, %error, "controller did not accept audit outcome");
        }
    }

    /// Runs steps 1 to 3. Blocks.
    fn find(
        &self,
        request: &DesiredAudit,
        progress: &JobProgress,
    ) -> Result<AuditResult, AuditFailure> {
        // It may have been canceled while it waited for its turn.
        progress.check()?;
        let version = self.reader.find(request.version)?;
        let keyring = &version.keyring;
        let sealing = self.reader.keys.sealing_key(&version.keys);
        let sealing = sealing.map_err(VersionError::Key)?;
        let store = &self.reader.store;
        let opened = Audit::open(store, &version.version, keyring, &request.units);
        let disk = Disk::new(
            self.reader
                .open(&version, request.size_bytes, request.block_size, None)?,
            || progress.check().is_ok(),
        );
        let files = FileSystems::read(&disk, request.size_bytes);
        progress.check()?;
        let mut files = files?;
        let mut opened = opened?;
        let (mut blocks, block_bytes) = (Tally::default(), opened.block_bytes());
        while let Some(batch) = opened.next_batch()? {
            progress.check()?;
            for judged in &batch.blocks {
                blocks.add(judged.exposure);
                let begin = judged.block * block_bytes;
                files.add(begin..begin + block_bytes, judged.exposure);
            }
            let done = batch
                .end
                .saturating_mul(block_bytes)
                .min(request.size_bytes);
            progress.set_done(done);
        }
        progress.set_done(request.size_bytes);
        let found = AuditResult {
            blocks: in_bytes(blocks, block_bytes),
            map: in_bytes(opened.map(), PAGE_BYTES as u64),
            ..AuditResult::default()
        };
        let check = || progress.check();
        let found = files.into_found(found, request.block_size, request.files, check)?;
        progress.check()?;
        Ok(match sealing {
            None => found,
            Some((lineage, key)) => {
                let random = &*self.random;
                sealed::sealed(found, request.id, (lineage, &key), random)
            }
        })
    }
}

fn in_bytes(tally: Tally, each: u64) -> AuditBytes {
    AuditBytes {
        total: tally.all * each,
        readable: tally.content * each,
        sealed: tally.sealed * each,
        altered: tally.other * each,
    }
}
