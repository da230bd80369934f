//! [`OpenVolumes`]: the volumes that are open on this host, by attachment.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::{AttachmentId, VolumeId};
use parking_lot::Mutex;

use super::OpenVolume;

/// The open volumes. The worker of each attachment inserts and removes its own.
#[derive(Default)]
pub(crate) struct OpenVolumes {
    open: Mutex<HashMap<AttachmentId, Arc<OpenVolume>>>,
    /// Volumes with recent writes.
    busy: Mutex<HashSet<VolumeId>>,
}

impl OpenVolumes {
    pub fn insert(&self, open_volume: Arc<OpenVolume>) {
        self.open.lock().insert(open_volume.id(), open_volume);
    }

    /// Removes an open volume, unless another volume is open for its attachment.
    pub fn remove(&self, open_volume: &Arc<OpenVolume>) {
        let mut open = self.open.lock();
        let known = open.get(&open_volume.id());
        if known.is_some_and(|known| Arc::ptr_eq(known, open_volume)) {
            open.remove(&open_volume.id());
        }
    }

    /// Removes the open volume of an attachment that does not belong to this host any more.
    pub fn forget(&self, attachment: AttachmentId) {
        self.open.lock().remove(&attachment);
    }

    /// The open volume of an attachment.
    pub fn get(&self, attachment: AttachmentId) -> Option<Arc<OpenVolume>> {
        self.open.lock().get(&attachment).cloned()
    }

    /// All open volumes.
    pub fn all(&self) -> Vec<Arc<OpenVolume>> {
        self.open.lock().values().cloned().collect()
    }

    /// The open volume `volume`, if it is writable.
    pub fn writable(&self, volume: VolumeId) -> Option<Arc<OpenVolume>> {
        let open = self.open.lock();
        let mut open = open.values();
        let is_it = |open: &&Arc<OpenVolume>| open.volume() == volume && open.epoch().is_some();
        open.find(is_it).cloned()
    }

    /// Notes whether a volume had recent writes.
    pub fn set_busy(&self, volume: VolumeId, is_busy: bool) {
        let mut busy = self.busy.lock();
        match is_busy {
            true => busy.insert(volume),
            false => busy.remove(&volume),
        };
    }

    /// The volumes with recent writes.
    pub fn busy(&self) -> Vec<VolumeId> {
        self.busy.lock().iter().copied().collect()
    }
}
