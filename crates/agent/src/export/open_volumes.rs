//! [`OpenVolumes`]: the volumes that are open on this host, by attachment.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::{AttachmentId, VolumeId};
use parking_lot::Mutex;

use super::Attached;

/// The open volumes. The worker of each attachment puts its own here, and takes it out.
#[derive(Default)]
pub(crate) struct OpenVolumes {
    open: Mutex<HashMap<AttachmentId, Arc<Attached>>>,
    /// Volumes that were written to just now.
    busy: Mutex<HashSet<VolumeId>>,
}

impl OpenVolumes {
    pub fn insert(&self, attached: Arc<Attached>) {
        self.open.lock().insert(attached.id(), attached);
    }

    /// Takes out an open volume, unless another one is open for its attachment.
    pub fn remove(&self, attached: &Arc<Attached>) {
        let mut open = self.open.lock();
        let known = open.get(&attached.id());
        if known.is_some_and(|known| Arc::ptr_eq(known, attached)) {
            open.remove(&attached.id());
        }
    }

    /// Takes out the open volume of an attachment that is not this host's any more.
    pub fn forget(&self, attachment: AttachmentId) {
        self.open.lock().remove(&attachment);
    }

    /// The open volume of an attachment.
    pub fn get(&self, attachment: AttachmentId) -> Option<Arc<Attached>> {
        self.open.lock().get(&attachment).cloned()
    }

    /// All open volumes.
    pub fn all(&self) -> Vec<Arc<Attached>> {
        self.open.lock().values().cloned().collect()
    }

    /// The open volume that is written under a lease, if `volume` is.
    pub fn writable(&self, volume: VolumeId) -> Option<Arc<Attached>> {
        let open = self.open.lock();
        let mut open = open.values();
        let is_it = |one: &&Arc<Attached>| one.volume() == volume && one.epoch().is_some();
        open.find(is_it).cloned()
    }

    /// Notes whether a volume was written to just now.
    pub fn set_busy(&self, volume: VolumeId, is_busy: bool) {
        let mut busy = self.busy.lock();
        match is_busy {
            true => busy.insert(volume),
            false => busy.remove(&volume),
        };
    }

    /// The volumes that were written to just now.
    pub fn busy(&self) -> Vec<VolumeId> {
        self.busy.lock().iter().copied().collect()
    }
}
