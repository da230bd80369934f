//! [`VolumeStatuses`]: how the open volumes are, for reports and metrics.
//!
//! A volume is asked on its own thread, which may hang. So no caller waits longer than
//! [`ANSWER_WITHIN`] for all of them: one that has not answered is shown as it was when it last
//! did, and is not asked again until it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{AttachmentId, VolumeId};
use parking_lot::Mutex;
use volume::VolumeStatus;
use world::host;

use super::{Attached, OpenVolumes};

/// A volume that works answers sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The last answers of the open volumes.
pub(crate) struct VolumeStatuses {
    open: Arc<OpenVolumes>,
    known: Arc<Mutex<HashMap<AttachmentId, Known>>>,
}

/// What is known of an open volume.
#[derive(Default)]
struct Known {
    status: Option<VolumeStatus>,
    /// It owes an answer.
    is_asked: bool,
}

/// An open volume, as it is shown.
pub(crate) struct OpenVolume {
    pub attachment: AttachmentId,
    pub volume: VolumeId,
    /// The number of connected clients.
    pub connections: u64,
    /// Its last answer; `None` if it never answered.
    pub status: Option<VolumeStatus>,
    /// It owes an answer.
    pub is_unresponsive: bool,
}

impl VolumeStatuses {
    pub fn new(open: Arc<OpenVolumes>) -> Self {
        Self {
            open,
            known: Arc::default(),
        }
    }

    /// The open volumes, and how they are.
    pub async fn all(&self) -> Vec<OpenVolume> {
        let open = self.open.all();
        let mut answers = Vec::new();
        {
            let mut known = self.known.lock();
            known.retain(|id, _| open.iter().any(|open| open.id() == *id));
            for attached in &open {
                let one = known.entry(attached.id()).or_default();
                if !std::mem::replace(&mut one.is_asked, true) {
                    let asked = ask(Arc::clone(&self.known), Arc::clone(attached));
                    answers.push(tokio::spawn(asked));
                }
            }
        }
        let answered = async {
            for answer in answers {
                // A panic was logged where it happened.
                let _ = answer.await;
            }
        };
        // A slow answer is shown the next time.
        host::timeout(ANSWER_WITHIN, answered).await;
        let known = self.known.lock();
        let shown = open.into_iter().map(|attached| {
            let known = known.get(&attached.id());
            OpenVolume {
                attachment: attached.id(),
                volume: attached.volume(),
                connections: attached.export().connections() as u64,
                status: known.and_then(|known| known.status.clone()),
                is_unresponsive: known.is_some_and(|known| known.is_asked),
            }
        });
        shown.collect()
    }
}

/// Asks one volume, and waits for its answer.
async fn ask(known: Arc<Mutex<HashMap<AttachmentId, Known>>>, attached: Arc<Attached>) {
    let status = attached.engine_status().await;
    let mut known = known.lock();
    if let Some(known) = known.get_mut(&attached.id()) {
        known.is_asked = false;
        known.status = status.ok().or(known.status.take());
    }
}
