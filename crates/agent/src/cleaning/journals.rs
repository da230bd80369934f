//! [`JournalCleaning`]: removes or quarantines local journals and files of filters of volumes that
//! have no attachment here.
//!
//! 1. *request*: find volumes without a worker that have a journal here; the next renewal of leases
//!    asks the controllers about them (`lease::fencing`);
//! 2. *apply* the answer: quarantine the journal of a volume that was taken from this host, and
//!    remove the files of filters of a deleted volume.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::host::{Fenced, JOURNALS_MAX};
use base::VolumeId;
use parking_lot::Mutex;
use world::host;

use crate::attach::Attachments;
use crate::context::HostContext;
use crate::filters::FilterFiles;
use crate::journals::{LocalJournals, quarantine, set_problem};
use crate::lease::{DatabaseAge, Fencing};

/// The period of the search for journals without a worker.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(2);

/// Cleans up journals, and files of filters.
pub(crate) struct JournalCleaning {
    context: Arc<HostContext>,
    journals: Arc<LocalJournals>,
    filter_files: FilterFiles,
    fencing: Arc<Fencing>,
    age: Arc<DatabaseAge>,
    attachments: Arc<Attachments>,
    /// Where the next search of files of filters begins: one renewal does not ask about all of
    /// them.
    offset: Mutex<usize>,
    /// Why the files of filters cannot be listed.
    filter_problem: Mutex<Option<String>>,
}

impl JournalCleaning {
    pub fn new(
        context: Arc<HostContext>,
        journals: Arc<LocalJournals>,
        fencing: Arc<Fencing>,
        age: Arc<DatabaseAge>,
        attachments: Arc<Attachments>,
    ) -> Self {
        Self {
            filter_files: FilterFiles::new(&context),
            context,
            journals,
            fencing,
            age,
            attachments,
            offset: Mutex::default(),
            filter_problem: Mutex::default(),
        }
    }

    /// Why the files of filters cannot be listed; `None` if they can.
    pub fn problem(&self) -> Option<String> {
        self.filter_problem.lock().clone()
    }

    /// Cleans up as long as the agent runs.
    pub async fn run(&self) {
        let mut ticks = host::ticks(RECONCILE_INTERVAL);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.fencing.changed() => {}
            }
            self.reconcile().await;
        }
    }

    /// Applies the last answer of the controllers, and finds the volumes for the next request. May
    /// wait long for the disk or a controller.
    pub async fn reconcile(&self) {
        let answer = self.fencing.take_answer();
        for fenced in answer.fenced {
            self.quarantine_unclaimed(&fenced);
        }
        for volume in answer.deleted {
            // An older database does not know newer volumes.
            if !self.attachments.has_worker(volume) && self.age.is_current().await {
                self.filter_files.remove_all(volume).await;
            }
        }
        self.fencing.set_unclaimed(self.unclaimed().await);
    }

    /// Volumes that have a journal or files of filters here, and no worker.
    async fn unclaimed(&self) -> Vec<VolumeId> {
        if !self.age.is_current().await {
            // What an older database says about volumes may be wrong.
            return Vec::new();
        }
        let mut volumes = self.journals.volumes().await;
        volumes.extend(self.with_filter_files().await);
        let mut seen = HashSet::new();
        volumes.retain(|volume| !self.attachments.has_worker(*volume) && seen.insert(*volume));
        // Unneeded journals get quarantined, which makes room for the others.
        volumes.truncate(JOURNALS_MAX);
        volumes
    }

    /// Volumes whose filters have files, in rotation.
    async fn with_filter_files(&self) -> Vec<VolumeId> {
        let found = self.filter_files.volumes().await;
        let found = found.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        let problem = found.as_ref().err().map(|error| {
            format!(
                "the folder of filter files {} cannot be read: {error}; files of deleted volumes \
                 are not removed",
                self.context.folder.chains().display()
            )
        });
        set_problem(&self.filter_problem, problem);
        let mut found = found.unwrap_or_default();
        let mut offset = self.offset.lock();
        let count = found.len().max(1);
        found.rotate_left(*offset % count);
        *offset = (*offset + JOURNALS_MAX) % count;
        found
    }

    /// Quarantines the journal of a volume that was taken from this host, unless the volume is
    /// desired here again: then its worker decides.
    fn quarantine_unclaimed(&self, fenced: &Fenced) {
        let volume = fenced.volume;
        let (disk, folder) = (&*self.context.world.disk, &self.context.folder);
        // Filter journals stay: they are applied if this host attaches the volume again before any
        // other host; otherwise they are quarantined then.
        let quarantine = || quarantine(disk, &folder.journal(volume), fenced.epoch);
        if let Some(Err(error)) = self.attachments.unless_worker(volume, quarantine) {
            tracing::error!(%volume, %error, "agent could not quarantine journal");
        }
    }
}
