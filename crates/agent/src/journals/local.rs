//! [`LocalJournals`]: the journals in the data directory, and quarantined ones.
//!
//! When renewals of leases report that a volume was taken from this host (`lease::fencing`), its
//! journal is renamed to `vol-….fenced-EPOCH`. Nothing reads it any more, and the host reports it
//! until an operator removes it.
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

/// The part of a quarantined journal's name before the epoch.
const FENCED: &str = ".fenced-";

/// The journals in the data directory.
pub(crate) struct LocalJournals {
    context: Arc<HostContext>,
    /// Why they cannot be listed.
    problem: Mutex<Option<String>>,
}

impl LocalJournals {
    pub fn new(context: Arc<HostContext>) -> Self {
        Self {
            context,
            problem: Mutex::default(),
        }
    }

    /// The volumes that have a journal in the data directory.
    pub async fn volumes(&self) -> Vec<VolumeId> {
        let names = self.names().await.unwrap_or_default();
        names.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// The names in the folder of journals. A failure is a problem of this host: an empty list
    /// instead would hide quarantined journals, and quarantine none.
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
                 repaired, journals of volumes that were taken from this host are neither found nor \
                 shown",
                folder.display()
            )
        });
        set_problem(&self.problem, problem);
        let entries = listed.ok()?.into_iter();
        Some(entries.map(|entry| entry.name).collect())
    }

    /// One sentence for each quarantined journal, or why they cannot be listed.
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
                "volume {volume} was taken from this host; the last writes here are in the \
                 quarantined journal {at}{bytes}: remove it if no one needs them"
            ));
        }
        problems.extend(self.problem.lock().clone());
        problems
    }

    /// Removes the journal of a detached volume.
    pub async fn remove(&self, volume: VolumeId) {
        let journal = self.context.folder.journal(volume);
        let disk = Arc::clone(&self.context.world.disk);
        let path = journal.clone();
        let removed = blocking(move || disk.remove(&path)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %journal.display(), %error, "agent could not remove journal");
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
                    tracing::warn!(%volume, %error, "agent could not remove quarantined journal");
                }
            }
        }
    }
}

/// Stores a problem, and logs it if it is new.
pub(crate) fn set_problem(noted: &Mutex<Option<String>>, problem: Option<String>) {
    let mut noted = noted.lock();
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!("{problem}");
    }
    *noted = problem;
}

/// Quarantines a journal: renames it, so that nothing reads it any more. Blocks briefly for the
/// disk.
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
        "agent quarantined journal: the volume was taken from this host"
    );
    disk.sync_directory(host::parent_of(journal))
}
