//! [`Attachments`]: the workers of this host, one for each attachment.

use std::collections::{HashMap, HashSet};

use api::host::Assignment;
use base::{AttachmentId, VolumeId};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::worker::{Worker, WorkerParts};
use crate::context::Shutdown;

/// The workers of this host.
pub(crate) struct Attachments {
    parts: WorkerParts,
    shutdown: Shutdown,
    workers: Mutex<HashMap<AttachmentId, Worker>>,
}

impl Attachments {
    pub fn new(parts: WorkerParts, shutdown: Shutdown) -> Self {
        Self {
            parts,
            shutdown,
            workers: Mutex::default(),
        }
    }

    /// Applies the desired attachments: notifies their workers, ends workers without one, and
    /// starts missing workers.
    pub fn set_desired(&self, desired: Vec<Assignment>) {
        let mut workers = self.workers.lock();
        if self.shutdown.has_begun() {
            return;
        }
        let ids: HashSet<_> = desired.iter().map(|assignment| assignment.id).collect();
        workers.retain(|id, worker| {
            if !ids.contains(id) {
                worker.remove();
                self.parts.open.forget(*id);
            }
            ids.contains(id)
        });
        for assignment in desired {
            match workers.get(&assignment.id) {
                Some(worker) => worker.assign(assignment),
                None => {
                    let id = assignment.id;
                    workers.insert(id, Worker::start(&self.parts, assignment));
                }
            }
        }
    }

    /// Whether `volume` has a worker.
    pub fn has_worker(&self, volume: VolumeId) -> bool {
        let workers = self.workers.lock();
        workers.values().any(|worker| worker.volume() == volume)
    }

    /// Runs `action` unless `volume` has a worker. No worker starts while it runs.
    pub fn unless_worker<T>(&self, volume: VolumeId, action: impl FnOnce() -> T) -> Option<T> {
        let workers = self.workers.lock();
        let has_worker = workers.values().any(|worker| worker.volume() == volume);
        (!has_worker).then(action)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.workers.lock().is_empty()
    }

    /// Waits until every worker has tried once to reach its desired state.
    pub async fn tried(&self) {
        let mut tried = JoinSet::new();
        for worker in self.workers.lock().values() {
            tried.spawn(worker.tried());
        }
        tried.join_all().await;
    }

    /// Begins to close every volume, also one that is being opened.
    pub fn shut_down(&self) -> ShuttingDown {
        let workers: Vec<Worker> = self.workers.lock().drain().map(|(_, one)| one).collect();
        let unclean = workers.len();
        let mut ends = JoinSet::new();
        for worker in workers {
            ends.spawn(worker.end());
        }
        ShuttingDown { ends, unclean }
    }
}

/// Workers that are ending.
pub(crate) struct ShuttingDown {
    ends: JoinSet<bool>,
    unclean: usize,
}

impl ShuttingDown {
    /// Waits until all have ended.
    pub async fn wait(&mut self) {
        while let Some(ended) = self.ends.join_next().await {
            self.unclean -= usize::from(matches!(ended, Ok(true)));
        }
    }

    /// The number of volumes that are not closed, or were not closed cleanly.
    pub fn unclean(&self) -> usize {
        self.unclean
    }
}
