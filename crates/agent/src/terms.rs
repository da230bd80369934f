//! Leases in time, on the host that has them.
//!
//! Every two seconds one call says that the host is there, and renews all of
//! them. It is apart from the report, which waits for volumes and units: a disk
//! that hangs must not cost the leases of the others.
//!
//! ```text
//!  asked ──────────────── 4/5 of the term │ the volume stalls (volume::LeaseTerm)
//!    └► heard ─────────────────────── the term │ others may have it, if told so
//! ```
//!
//! What was taken from this host meanwhile it hears in the answer. The journal
//! of such a volume is kept under another name, `vol-….fenced-EPOCH`, and shown
//! until somebody removes it: nothing reads it any more.
//!
//! Invariant: a journal is put aside only where no worker has its volume.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::{Assignment, HeldLease, JOURNALS_MAX, Renewal};
use api::size::about_bytes;
use base::{AttachmentId, VolumeId};
use volume::LeaseTerm;
use world::{Disk, OpenMode, host};

use crate::agent::{Agent, blocking, lock};
use crate::attached::AttachError;

/// How often leases are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// What the name of a journal that was put aside has in it.
const ASIDE: &str = ".fenced-";

/// A lease of this host.
pub(crate) struct Held {
    epoch: u32,
    term: LeaseTerm,
}

/// The part of a term in which its holder acknowledges.
pub(crate) fn own_part(lease: Duration) -> Duration {
    lease * 4 / 5
}

impl Agent {
    /// Keeps a lease that was just taken, which was asked for at `asked`.
    pub(crate) fn hold(&self, wish: &Assignment, epoch: u32, asked: Duration) -> LeaseTerm {
        let term = match self.inner.lease {
            None => LeaseTerm::unlimited(),
            Some(lease) => LeaseTerm::until(asked + own_part(lease)),
        };
        let held = Held {
            epoch,
            term: term.clone(),
        };
        lock(&self.inner.terms).insert(wish.id, held);
        term
    }

    /// Renews a lease no more: its volume is closed, or dropped.
    pub(crate) fn release(&self, attachment: AttachmentId, epoch: Option<u32>) {
        let mut terms = lock(&self.inner.terms);
        // It may have been taken anew meanwhile.
        if terms.get(&attachment).map(|held| held.epoch) == epoch {
            terms.remove(&attachment);
        }
    }

    /// A lease is of no use any more: its volume stops.
    pub(crate) fn lose(&self, attachment: AttachmentId, epoch: Option<u32>) {
        let terms = lock(&self.inner.terms);
        let held = terms.get(&attachment);
        if let Some(held) = held.filter(|held| Some(held.epoch) == epoch) {
            held.term.lose();
        }
    }

    /// Renews leases again and again, if they end.
    pub(crate) async fn keep_leases(&self) {
        if self.inner.lease.is_none() {
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
        let Some(lease) = self.inner.lease else {
            return Ok(());
        };
        let leases: Vec<HeldLease> = lock(&self.inner.terms)
            .iter()
            .map(|(attachment, held)| HeldLease {
                attachment: *attachment,
                epoch: held.epoch,
            })
            .collect();
        let renewal = Renewal {
            leases: leases.clone(),
            journals: self.unwanted_journals().await,
        };
        let asked = self.inner.world.clock.monotonic();
        let renewed = self.inner.controller.renew(&renewal).await?;
        self.note_heard();
        self.inner.health.renewed(asked);
        {
            let terms = lock(&self.inner.terms);
            for one in &leases {
                // It may be another lease by now.
                let held = terms.get(&one.attachment);
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
        for fenced in renewed.fenced {
            let workers = lock(&self.inner.workers);
            if workers.values().any(|worker| worker.is_of(fenced.volume)) {
                // It is wanted here again, and its worker knows what to do.
                continue;
            }
            // Under the lock: no worker may begin meanwhile.
            let journal = self.inner.folder.journal(fenced.volume);
            let put = put_aside(&*self.inner.world.disk, &journal, fenced.epoch);
            drop(workers);
            if let Err(error) = put {
                tracing::error!(volume = %fenced.volume, %error, "its journal is not put aside");
            }
        }
        Ok(())
    }

    /// Volumes that have a journal here and no worker.
    async fn unwanted_journals(&self) -> Vec<VolumeId> {
        if !matches!(self.older_database().await, Ok(None)) {
            // What it says of volumes may be wrong.
            return Vec::new();
        }
        let mut journals: HashSet<VolumeId> = self
            .journal_names()
            .await
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        let workers = lock(&self.inner.workers);
        journals.retain(|volume| !workers.values().any(|worker| worker.is_of(*volume)));
        // Those that nobody wants are put aside, and so make room for the others.
        journals.into_iter().take(JOURNALS_MAX).collect()
    }

    async fn journal_names(&self) -> Vec<String> {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.journals();
        let listed = blocking(move || disk.list(&folder)).await;
        let names = listed.ok().and_then(Result::ok).unwrap_or_default();
        names.into_iter().map(|entry| entry.name).collect()
    }

    /// Gives a journal another name, under which nothing reads it.
    pub(crate) async fn put_aside(&self, volume: VolumeId, epoch: u32) -> Result<(), AttachError> {
        let disk = Arc::clone(&self.inner.world.disk);
        let journal = self.inner.folder.journal(volume);
        blocking(move || put_aside(&*disk, &journal, epoch))
            .await?
            .map_err(AttachError::PutAside)
    }

    /// What journals were put aside, one sentence each.
    pub(crate) async fn journals_aside(&self) -> Vec<String> {
        let folder = self.inner.folder.journals();
        let mut problems = Vec::new();
        for name in self.journal_names().await {
            let Some((volume, _)) = name.split_once(ASIDE) else {
                continue;
            };
            let (disk, path) = (Arc::clone(&self.inner.world.disk), folder.join(&name));
            let at = path.display().to_string();
            let length = blocking(move || disk.open(&path, OpenMode::Read)?.length()).await;
            let bytes = length.ok().and_then(Result::ok).map(about_bytes);
            let bytes = bytes.map_or_else(String::new, |bytes| format!(" ({bytes})"));
            problems.push(format!(
                "volume {volume} was taken from this host, and what was written here last is kept \
                 in {at}{bytes}; remove it when nobody misses it"
            ));
        }
        problems
    }

    /// Removes what was put aside of a volume that is no more.
    pub(crate) async fn forget_aside(&self, volume: VolumeId) {
        let prefix = format!("{volume}{ASIDE}");
        for name in self.journal_names().await {
            if name.starts_with(&prefix) {
                let path = self.inner.folder.journals().join(name);
                let disk = Arc::clone(&self.inner.world.disk);
                if let Ok(Err(error)) = blocking(move || disk.remove(&path)).await {
                    tracing::warn!(%volume, %error, "what was put aside is not removed");
                }
            }
        }
    }
}

/// Waits for the disk, but not for long: a name changes.
fn put_aside(disk: &dyn Disk, journal: &Path, epoch: u32) -> io::Result<()> {
    let mut name = journal.file_name().unwrap_or_default().to_owned();
    name.push(format!("{ASIDE}{epoch}"));
    match disk.rename(journal, &journal.with_file_name(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    tracing::warn!(journal = %journal.display(), epoch, "put aside: the volume was taken away");
    disk.sync_directory(host::parent_of(journal))
}
