//! How the open volumes are, for whoever tells of them.
//!
//! A volume is asked on its own thread, which may hang. So nobody waits longer
//! than [`WITHIN`] for all of them: one that has not answered is told of as it was
//! when it last did, and is not asked again until it has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{AttachmentId, VolumeId};
use volume::VolumeStatus;
use world::host;

use crate::agent::{Agent, lock};
use crate::attached::Attached;

/// Volumes that are well say how they are in less.
const WITHIN: Duration = Duration::from_secs(1);

/// What the open volumes have said.
#[derive(Default)]
pub(crate) struct VolumeStatuses(Mutex<HashMap<AttachmentId, Known>>);

/// What is known of an open volume.
#[derive(Default)]
struct Known {
    status: Option<VolumeStatus>,
    /// It owes an answer.
    is_asked: bool,
}

/// An open volume.
pub(crate) struct OpenVolume {
    pub attachment: AttachmentId,
    pub volume: VolumeId,
    /// Of its clients.
    pub connections: u64,
    /// As it last said; none if it never did.
    pub status: Option<VolumeStatus>,
    /// It owes an answer.
    pub is_unresponsive: bool,
}

impl Agent {
    /// The open volumes, and how they are.
    pub(crate) async fn open_volumes(&self) -> Vec<OpenVolume> {
        let open: Vec<(AttachmentId, VolumeId, Arc<Attached>)> = lock(&self.inner.workers)
            .iter()
            .filter_map(|(id, worker)| {
                let (volume, attached) = worker.open()?;
                Some((*id, volume, attached))
            })
            .collect();
        let mut answers = Vec::new();
        {
            let mut known = lock(&self.inner.volume_statuses.0);
            known.retain(|id, _| open.iter().any(|(open, ..)| open == id));
            for (id, _, attached) in &open {
                let known = known.entry(*id).or_default();
                if !std::mem::replace(&mut known.is_asked, true) {
                    answers.push(tokio::spawn(self.clone().ask(*id, Arc::clone(attached))));
                }
            }
        }
        let answered = async {
            for answer in answers {
                // One that panicked has said so.
                let _ = answer.await;
            }
        };
        // Those that are late are asked on, and heard the next time.
        host::timeout(WITHIN, answered).await;
        let known = lock(&self.inner.volume_statuses.0);
        let told = open.into_iter().map(|(attachment, volume, attached)| {
            let known = known.get(&attachment);
            OpenVolume {
                attachment,
                volume,
                connections: attached.export.connections() as u64,
                status: known.and_then(|known| known.status.clone()),
                is_unresponsive: known.is_some_and(|known| known.is_asked),
            }
        });
        told.collect()
    }

    /// Asks one volume how it is, and waits for that.
    async fn ask(self, id: AttachmentId, attached: Arc<Attached>) {
        let status = self.engine_status(&attached).await;
        let mut known = lock(&self.inner.volume_statuses.0);
        if let Some(known) = known.get_mut(&id) {
            known.is_asked = false;
            known.status = status.ok().or(known.status.take());
        }
    }
}
