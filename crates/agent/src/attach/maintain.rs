//! Maintenance of an open volume: its size, snapshots, filters and VM.

use std::sync::Arc;
use std::time::Duration;

use api::host::calls::ReportSnapshot;
use api::host::{Access, Assignment, AttachmentState};
use api::types::Message;
use api::words::MessageCode;
use base::{SnapshotId, VolumeId, with_causes};
use volume::Volume;

use super::worker::{NextStep, WorkerState};
use crate::export::OpenVolume;
use crate::filters::{ChainState, desired_chain};
use crate::vm::{DOES_NOT_WAIT, serial};

/// How often an open volume is checked while its desired state does not change.
pub(super) const MAINTAIN_INTERVAL: Duration = Duration::from_secs(1);

/// How often a VM is asked whether it still has its disk.
const LOOK_AT_VM_EVERY: Duration = Duration::from_secs(10);

impl WorkerState {
    /// Keeps an open volume in its desired state, and reports its state.
    pub(super) async fn maintain(
        &mut self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> NextStep {
        let volume = assignment.volume;
        open_volume.follow_image(assignment.image);
        let caching = &self.parts.caching;
        caching.bound_share(volume, assignment.cache_max_bytes);
        if let Some(why) = self.maintain_engine(assignment, open_volume).await {
            let problem = Message::new(MessageCode::VolumeStopped, why);
            self.report(assignment, AttachmentState::Error, Some(problem))
                .await;
            return NextStep::After(MAINTAIN_INTERVAL);
        }
        self.maintain_chain(assignment, open_volume).await;
        match self.maintain_plug(assignment).await {
            Ok(()) => {
                self.reset_retry();
                self.report(assignment, AttachmentState::Attached, None)
                    .await;
                NextStep::After(MAINTAIN_INTERVAL)
            }
            Err(why) => {
                tracing::warn!(%volume, error = why, "agent could not plug disk into VM");
                let problem = Message::new(MessageCode::VmUnavailable, why);
                self.report(assignment, AttachmentState::Error, Some(problem))
                    .await;
                self.retry_later()
            }
        }
    }

    /// Reconfigures the chain if the filters are not the desired ones or do not show the volume's
    /// size; repeats that with pauses while a filter cannot be started.
    async fn maintain_chain(&mut self, assignment: &Assignment, open_volume: &Arc<OpenVolume>) {
        let volume = assignment.volume;
        let clock = Arc::clone(&self.parts.context.world.clock);
        if assignment.chain.is_some() {
            // If the volume's thread has ended, the next check of the engine reports that.
            let hides_growth = open_volume.hides_growth().await;
            self.chain.hides_growth = hides_growth.unwrap_or(false);
        }
        if !self.chain.is_change_due(assignment, clock.monotonic()) {
            return;
        }
        match self.parts.filters.replace(assignment, open_volume).await {
            Ok(()) => {
                let chain = desired_chain(assignment);
                let revision = chain.map(|chain| chain.revision);
                tracing::info!(%volume, revision, "agent replaced filters");
                self.chain = ChainState::served(chain);
            }
            Err(error) => {
                let why = with_causes(&error);
                tracing::warn!(%volume, error = why, "agent could not replace filters");
                self.chain.note_failure(assignment, why, clock.monotonic());
            }
        }
    }

    /// Plugs the disk into its VM, and checks from time to time that the VM still has it.
    async fn maintain_plug(&mut self, assignment: &Assignment) -> Result<(), String> {
        let Some(vm) = &assignment.vm else {
            return Ok(());
        };
        self.observed.is_unplugged = false;
        let context = &self.parts.context;
        let now = context.world.clock.monotonic();
        let is_fresh = |seen: Duration| now.saturating_sub(seen) < LOOK_AT_VM_EVERY;
        if self.seen_in_vm.is_some_and(is_fresh) {
            return Ok(());
        }
        let socket = context.folder.vm_socket(assignment.id);
        match self.parts.plugging.plug(assignment, vm, &socket).await {
            Ok(plugged) => {
                if !plugged.was_there {
                    tracing::info!(volume = %assignment.volume, vm, "agent plugged disk into VM");
                }
                self.seen_in_vm = Some(now);
                self.device = serial(assignment).ok().map(|serial| serial.to_string());
                self.notice = (!plugged.waits_for_server)
                    .then(|| Message::new(MessageCode::VmDoesNotReconnect, DOES_NOT_WAIT));
                Ok(())
            }
            // The monitor may be in use for now; the VM still has the disk.
            Err(error) if self.seen_in_vm.is_some() && !error.is_absent() => {
                tracing::debug!(vm, %error, "agent could not ask VM about its disk");
                Ok(())
            }
            Err(error) => {
                self.seen_in_vm = None;
                self.device = None;
                Err(error.to_string())
            }
        }
    }

    /// Grows the volume, takes the consistency points of snapshots, and reads its status. Returns
    /// why the engine has stopped, if it has.
    pub(super) async fn maintain_engine(
        &mut self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> Option<String> {
        let due = assignment.snapshots.iter().copied();
        let due: Vec<SnapshotId> = due.filter(|one| !self.snapshots.contains(one)).collect();
        let size_bytes = assignment.size_bytes;
        let is_grown = assignment.access == Access::ReadWrite && size_bytes > self.size_bytes;
        let taken = due.clone();
        let acted = match is_grown || !due.is_empty() {
            true => {
                let act = move |volume: &mut Volume| {
                    if is_grown {
                        volume.grow(size_bytes);
                    }
                    for snapshot in taken {
                        volume.snapshot(snapshot);
                    }
                };
                open_volume.on_volume(act).await
            }
            false => Ok(()),
        };
        let status = match acted {
            Ok(()) => open_volume.engine_status().await,
            Err(error) => Err(error),
        };
        let why = match status {
            Ok(status) => {
                self.size_bytes = status.size_bytes;
                self.note_writes(assignment.volume, status.counters.blocks_written);
                status.stopped
            }
            Err(error) => Some(error.to_string()),
        };
        match &why {
            None => self.report_snapshots(due).await,
            Some(why) if self.stopped.is_none() => {
                tracing::error!(volume = %assignment.volume, error = why, "volume stopped");
            }
            Some(_) => {}
        }
        if let Some(open) = &mut self.observed.open {
            open.has_stopped = why.is_some();
        }
        self.stopped.clone_from(&why);
        why
    }

    fn note_writes(&mut self, volume: VolumeId, blocks_written: u64) {
        let before = std::mem::replace(&mut self.blocks_written, blocks_written);
        self.parts.open.set_busy(volume, before != blocks_written);
    }

    async fn report_snapshots(&mut self, taken: Vec<SnapshotId>) {
        for snapshot in taken {
            self.snapshots.insert(snapshot);
            let report = ReportSnapshot { snapshot };
            let controller = &self.parts.controller;
            if let Err(error) = controller.call_until_answered(&report).await {
                tracing::error!(%snapshot, %error, "controller did not accept snapshot report");
            }
        }
    }
}
