//! Journals in D whose volumes were taken from this host.
//!
//! Such a journal is kept under another name, `vol-….fenced-EPOCH`, and shown
//! until somebody removes it: nothing reads it any more. Which ones these are,
//! the controllers say when leases are renewed (`leases`). The folder that
//! several hosts have, if they do, is another matter: `journals`.
//!
//! Invariant: a journal is put aside only where no worker has its volume.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::{Fenced, JOURNALS_MAX};
use base::VolumeId;
use base::size::about_bytes;
use tokio::sync::Notify;
use world::{Disk, OpenMode, host};

use crate::agent::{Agent, blocking, lock};
use crate::attached::AttachError;
use crate::filter_journals;

/// What the name of a journal that was put aside has in it.
const FENCED: &str = ".fenced-";

/// How often it is looked which journals have no worker.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is known of the journals in D.
#[derive(Default)]
pub(crate) struct JournalsAside {
    /// Of volumes without a worker, when it was last looked: controllers are asked
    /// whether anybody wants them.
    pub unwanted: Mutex<Vec<VolumeId>>,
    /// What the controllers said last of those.
    pub fenced: Mutex<Vec<Fenced>>,
    /// Which of those are no more.
    pub gone: Mutex<Vec<VolumeId>>,
    /// Where the next look at what filters have kept begins: not all is asked for at once.
    turn: Mutex<usize>,
    /// Rung when they have said something.
    pub told: Notify,
    /// Why the journals cannot be looked through, if they cannot.
    problem: Mutex<Option<String>>,
    /// Why those of filters cannot.
    filter_problem: Mutex<Option<String>>,
}

/// Keeps a problem, and says it in the log if it is news.
fn note_problem(noted: &Mutex<Option<String>>, problem: Option<String>) {
    let mut noted = lock(noted);
    if let (Some(problem), true) = (&problem, *noted != problem) {
        tracing::warn!("{problem}");
    }
    *noted = problem;
}

impl Agent {
    /// Looks after the journals in D, again and again.
    pub(crate) async fn keep_journals(&self) {
        let mut ticks = host::ticks(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.inner.journals_aside.told.notified() => {}
            }
            self.tend_journals().await;
        }
    }

    /// Puts aside what the controllers say was taken, and looks which others they
    /// are to be asked about. Waits for the disk and for a controller, however long.
    pub(crate) async fn tend_journals(&self) {
        let journals = &self.inner.journals_aside;
        for fenced in std::mem::take(&mut *lock(&journals.fenced)) {
            self.put_unwanted_aside(&fenced);
        }
        let gone = std::mem::take(&mut *lock(&journals.gone));
        for volume in gone {
            self.forget_gone(volume).await;
        }
        let found = self.unwanted_journals().await;
        *lock(&journals.unwanted) = found;
    }

    /// Volumes that have a journal here and no worker.
    async fn unwanted_journals(&self) -> Vec<VolumeId> {
        if !matches!(self.older_database().await, Ok(None)) {
            // What it says of volumes may be wrong.
            return Vec::new();
        }
        let mut journals: Vec<VolumeId> = self
            .journal_names()
            .await
            .unwrap_or_default()
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        journals.extend(self.kept_by_filters().await);
        let workers = lock(&self.inner.workers);
        let is_new = |volume: &VolumeId| !workers.values().any(|worker| worker.is_of(*volume));
        let mut seen = HashSet::new();
        journals.retain(|volume| is_new(volume) && seen.insert(*volume));
        // Those that nobody wants are put aside, and so make room for the others.
        journals.truncate(JOURNALS_MAX);
        journals
    }

    /// Volumes of which filters have kept something, of all a part each time.
    async fn kept_by_filters(&self) -> Vec<VolumeId> {
        let found = self.volumes_with_filter_files().await;
        let found = found.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        let problem = found.as_ref().err().map(|error| {
            format!(
                "what filters keep in {} cannot be looked through: {error}; of volumes that are no \
                 more it stays",
                self.inner.folder.chains().display()
            )
        });
        note_problem(&self.inner.journals_aside.filter_problem, problem);
        let mut found = found.unwrap_or_default();
        let mut turn = lock(&self.inner.journals_aside.turn);
        let count = found.len().max(1);
        found.rotate_left(*turn % count);
        *turn = (*turn + JOURNALS_MAX) % count;
        found
    }

    /// Forgets what filters have kept of a volume that is no more.
    async fn forget_gone(&self, volume: VolumeId) {
        let is_wanted = {
            let workers = lock(&self.inner.workers);
            workers.values().any(|worker| worker.is_of(volume))
        };
        // An older database does not know of newer volumes.
        if !is_wanted && matches!(self.older_database().await, Ok(None)) {
            self.forget_filters(volume).await;
        }
    }

    /// The names in D's folder of journals. That they cannot be read is a
    /// problem of this host: to take it for "there are none" would hide what was
    /// put aside, and put nothing aside.
    async fn journal_names(&self) -> Option<Vec<String>> {
        let folder = self.inner.folder.journals();
        let listed = blocking({
            let (disk, folder) = (Arc::clone(&self.inner.world.disk), folder.clone());
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
        note_problem(&self.inner.journals_aside.problem, problem);
        let entries = listed.ok()?.into_iter();
        Some(entries.map(|entry| entry.name).collect())
    }

    /// Puts aside what the controllers say was taken, unless it is wanted here
    /// again: its worker knows what to do.
    fn put_unwanted_aside(&self, fenced: &Fenced) {
        let workers = lock(&self.inner.workers);
        if workers.values().any(|worker| worker.is_of(fenced.volume)) {
            return;
        }
        // Under the lock: no worker may begin meanwhile.
        let (disk, folder) = (&*self.inner.world.disk, &self.inner.folder);
        // What filters have acknowledged stays: as long as no other host had the volume it is
        // carried out when this one has it again, and otherwise put aside before that.
        let put = put_aside(disk, &folder.journal(fenced.volume), fenced.epoch);
        drop(workers);
        if let Err(error) = put {
            tracing::error!(volume = %fenced.volume, %error, "its journal is not put aside");
        }
    }

    /// Gives a journal another name, under which nothing reads it.
    pub(crate) async fn put_aside(&self, volume: VolumeId, epoch: u32) -> Result<(), AttachError> {
        let disk = Arc::clone(&self.inner.world.disk);
        let journal = self.inner.folder.journal(volume);
        let filters = self.inner.folder.chain(volume);
        blocking(move || {
            put_aside(&*disk, &journal, epoch)?;
            filter_journals::put_aside(&*disk, &filters, &HashSet::new())
        })
        .await?
        .map_err(AttachError::PutAside)
    }

    /// What journals were put aside, and that they cannot be looked for: one
    /// sentence each.
    pub(crate) async fn journals_aside(&self) -> Vec<String> {
        let folder = self.inner.folder.journals();
        let mut problems = Vec::new();
        for name in self.journal_names().await.unwrap_or_default() {
            let Some((volume, _)) = name.split_once(FENCED) else {
                continue;
            };
            let (disk, path) = (Arc::clone(&self.inner.world.disk), folder.join(&name));
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
        problems.extend(lock(&self.inner.journals_aside.problem).clone());
        problems.extend(lock(&self.inner.journals_aside.filter_problem).clone());
        problems
    }

    /// Removes what was put aside of a volume that is no more.
    pub(crate) async fn forget_aside(&self, volume: VolumeId) {
        let prefix = format!("{volume}{FENCED}");
        for name in self.journal_names().await.unwrap_or_default() {
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
    name.push(format!("{FENCED}{epoch}"));
    match disk.rename(journal, &journal.with_file_name(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    tracing::warn!(journal = %journal.display(), epoch, "put aside: the volume was taken away");
    disk.sync_directory(host::parent_of(journal))
}
