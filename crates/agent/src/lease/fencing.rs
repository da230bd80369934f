//! [`Fencing`]: which journals of this host no attachment claims, and what the controllers answer
//! about their volumes when leases are renewed.

use api::host::Fenced;
use base::VolumeId;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Questions about volumes, and the answers.
#[derive(Default)]
pub(crate) struct Fencing {
    unclaimed: Mutex<Vec<VolumeId>>,
    answer: Mutex<FencingAnswer>,
    changed: Notify,
}

/// What the controllers have answered last.
#[derive(Default)]
pub(crate) struct FencingAnswer {
    /// Volumes that were taken from this host.
    pub fenced: Vec<Fenced>,
    /// Volumes that are deleted.
    pub deleted: Vec<VolumeId>,
}

impl Fencing {
    /// Volumes without a worker of which this host has a journal, when it was last looked.
    pub fn unclaimed(&self) -> Vec<VolumeId> {
        self.unclaimed.lock().clone()
    }

    /// The next renewal asks about these volumes.
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

    /// Ends when there is an answer.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
