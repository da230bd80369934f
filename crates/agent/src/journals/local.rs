//! [`LocalJournals`]: the journals in D, and those of them that are quarantined.
//!
//! The journal of a volume that was taken from this host is kept under another name,
//! `vol-….fenced-EPOCH`, and reported until an operator removes it: nothing reads it any more.
//! Which ones these are, the controllers say when leases are renewed (`lease::fencing`).
//!
//! Invariant: a journal is quarantined only while no worker has its volume open.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use base::VolumeId;
use base::size::about_bytes;
use parking_lot::Mutex;
use world::{Disk, OpenMode, host};

use crate::context::{HostContext, blocking};

/// What the name of a quarantined journal has in it.
const FENCED: &str = ".fenced-";

/// The journals in D.
pub(crate) struct LocalJournals {
    context: Arc<HostContext>,
    /// Why they cannot be listed, if they cannot.
    problem: Mutex<Option<String>>,
}

impl LocalJournals {
    pub fn new(context: Arc<HostContext>) -> Self {
        Self {
            context,
            problem: Mutex::default(),
        }
    }

    /// The volumes that have a journal in D.
    pub async fn volumes(&self) -> Vec<VolumeId> {
        let names = self.names().await.unwrap_or_default();
        names.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// The names in the folder of journals. That they cannot be listed is a problem of this host:
    /// taken for "there are none", it would hide what is quarantined, and quarantine nothing.
    async fn names(&self) -> Option<Vec<String>> {
        let folder = self.context.folder.journals();
        let listed = blocking({
            let (disk, folder) = (Arc::clone(&self.context.world.disk), folder.clone());
            move || disk.list(&folder)
        })
        .await;
        let listed = listed.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        let problem = listed.as_ref().err().map(|error| {
            format!(
                "the journals in {} cannot be listed: {error}; until that folder or its disk is \
                 repaired, those of volumes that were taken from this host are neither found nor \
                 shown",
                folder.display()
            )
        });
        set_problem(&self.problem, problem);
        let entries = listed.ok()?.into_iter();
        Some(entries.map(|entry| entry.name).collect())
    }

    /// The quarantined journals, and that they cannot be listed: one sentence each.
    pub async fn problems(&self) -> Vec<String> {
        let folder = self.context.folder.journals();
        let mut problems = Vec::new();
        for name in self.names().await.unwrap_or_default() {
            let Some((volume, _)) = name.split_once(FENCED) else {
                continue;
            };
            let (disk, path) = (Arc::clone(&self.context.world.disk), folder.join(&name));
            let at = path.display().to_string();
            let length = blocking(move || disk.open(&path, OpenMode::Read)?.length()).await;
            let bytes = match length.unwrap_or_else(|ended| Err(io::Error::other(ended))) {
                Ok(length) => format!(" ({})", about_bytes(length)),
                Err(error) => format!(" (its length cannot be read: {error})"),
            };
            problems.push(format!(
                "volume {volume} was taken from this host, and what was written here last is kept \
                 in {at}{bytes}; remove it when nobody misses it"
            ));
        }
        problems.extend(self.problem.lock().clone());
        problems
    }

    /// Removes the journal of a volume, which is not needed any more.
    pub async fn remove(&self, volume: VolumeId) {
        let journal = self.context.folder.journal(volume);
        let disk = Arc::clone(&self.context.world.disk);
        let path = journal.clone();
        let removed = blocking(move || disk.remove(&path)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %journal.display(), %error, "journal was not removed");
        }
    }

    /// Removes the quarantined journals of a deleted volume.
    pub async fn remove_quarantined(&self, volume: VolumeId) {
        let prefix = format!("{volume}{FENCED}");
        for name in self.names().await.unwrap_or_default() {
            if name.starts_with(&prefix) {
                let path = self.context.folder.journals().join(name);
                let disk = Arc::clone(&self.context.world.disk);
                if let Ok(Err(error)) = blocking(move || disk.remove(&path)).await {
                    tracing::warn!(%volume, %error, "quarantined journal was not removed");
                }
            }
        }
    }
}

/// Stores a problem, and logs it if it is a new one.
pub(crate) fn set_problem(noted: &Mutex<Option<String>>, problem: Option<String>) {
    let mut noted = noted.lock();
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!("{problem}");
    }
    *noted = problem;
}

/// Quarantines a journal: renames it, so that nothing reads it any more. Waits for the disk, but
/// not for long.
pub(crate) fn quarantine(disk: &dyn Disk, journal: &Path, epoch: u32) -> io::Result<()> {
    let mut name = journal.file_name().unwrap_or_default().to_owned();
    name.push(format!("{FENCED}{epoch}"));
    match disk.rename(journal, &journal.with_file_name(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    tracing::warn!(
        journal = %journal.display(),
        epoch,
        "journal is quarantined: the volume was taken from this host"
    );
    disk.sync_directory(host::parent_of(journal))
}
