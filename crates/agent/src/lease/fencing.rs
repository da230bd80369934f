//! [`Fencing`]: the journals of this host without an attachment, and what the controllers answer
//! about their volumes when leases are renewed.

use api::host::Fenced;
use base::VolumeId;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The questions about volumes, and their answers.
#[derive(Default)]
pub(crate) struct Fencing {
    unclaimed: Mutex<Vec<VolumeId>>,
    answer: Mutex<FencingAnswer>,
    changed: Notify,
}

/// The last answer of the controllers.
#[derive(Default)]
pub(crate) struct FencingAnswer {
    /// Volumes that were taken from this host.
    pub fenced: Vec<Fenced>,
    /// Volumes that are deleted.
    pub deleted: Vec<VolumeId>,
}

impl Fencing {
    /// Volumes without a worker whose journal this host has, as of the last search.
    pub fn unclaimed(&self) -> Vec<VolumeId> {
        self.unclaimed.lock().clone()
    }

    /// Sets the volumes that the next renewal asks about.
    pub fn set_unclaimed(&self, volumes: Vec<VolumeId>) {
        *self.unclaimed.lock() = volumes;
    }

    pub fn set_answer(&self, fenced: Vec<Fenced>, deleted: Vec<VolumeId>) {
        *self.answer.lock() = FencingAnswer { fenced, deleted };
        self.changed.notify_one();
    }

    /// Takes the last answer, so that it is applied once.
    pub fn take_answer(&self) -> FencingAnswer {
        std::mem::take(&mut *self.answer.lock())
    }

    /// Ends when there is a new answer.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
