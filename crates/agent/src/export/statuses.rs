//! [`VolumeStatuses`]: the states of the open volumes, for reports and metrics.
//!
//! A volume answers from its own thread, which may hang. So a caller waits at most
//! [`ANSWER_WITHIN`] for all volumes: one that has not answered keeps its last status, and gets no
//! further request until it answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{AttachmentId, VolumeId};
use parking_lot::Mutex;
use volume::VolumeStatus;
use world::host;

use super::{OpenVolume, OpenVolumes};

/// Timeout of a caller; a healthy volume answers sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The last answers of the open volumes.
pub(crate) struct VolumeStatuses {
    open: Arc<OpenVolumes>,
    known: Arc<Mutex<HashMap<AttachmentId, LastStatus>>>,
}

/// The last known status of an open volume.
#[derive(Default)]
struct LastStatus {
    status: Option<VolumeStatus>,
    /// Its answer is pending.
    is_pending: bool,
}

/// The state of an open volume.
pub(crate) struct OpenVolumeStatus {
    pub attachment: AttachmentId,
    pub volume: VolumeId,
    /// The number of connected clients.
    pub connections: u64,
    /// Its last status; `None` if it never answered.
    pub status: Option<VolumeStatus>,
    /// Its answer is overdue.
    pub is_unresponsive: bool,
}

impl VolumeStatuses {
    pub fn new(open: Arc<OpenVolumes>) -> Self {
        Self {
            open,
            known: Arc::default(),
        }
    }

    /// The states of all open volumes.
    pub async fn all(&self) -> Vec<OpenVolumeStatus> {
        let open = self.open.all();
        let mut answers = Vec::new();
        {
            let mut known = self.known.lock();
            known.retain(|id, _| open.iter().any(|open| open.id() == *id));
            for open_volume in &open {
                let one = known.entry(open_volume.id()).or_default();
                if !std::mem::replace(&mut one.is_pending, true) {
                    let status = request_status(Arc::clone(&self.known), Arc::clone(open_volume));
                    answers.push(tokio::spawn(status));
                }
            }
        }
        let answered = async {
            for answer in answers {
                // A panic was logged where it happened.
                let _ = answer.await;
            }
        };
        // The next caller gets a slow answer.
        host::timeout(ANSWER_WITHIN, answered).await;
        let known = self.known.lock();
        let shown = open.into_iter().map(|open_volume| {
            let known = known.get(&open_volume.id());
            OpenVolumeStatus {
                attachment: open_volume.id(),
                volume: open_volume.volume(),
                connections: open_volume.export().connections() as u64,
                status: known.and_then(|known| known.status.clone()),
                is_unresponsive: known.is_some_and(|known| known.is_pending),
            }
        });
        shown.collect()
    }
}

/// Requests the status of one volume, and waits for it.
async fn request_status(
    known: Arc<Mutex<HashMap<AttachmentId, LastStatus>>>,
    open_volume: Arc<OpenVolume>,
) {
    let status = open_volume.engine_status().await;
    let mut known = known.lock();
    if let Some(known) = known.get_mut(&open_volume.id()) {
        known.is_pending = false;
        known.status = status.ok().or(known.status.take());
    }
}
