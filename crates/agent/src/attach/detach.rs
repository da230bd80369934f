//! The last actions on a volume: unplug, stop and destage it; or destage the journal of a closed
//! one.

use std::sync::Arc;

use api::host::{Assignment, AttachmentState};
use api::types::Message;
use api::words::MessageCode;
use base::{VolumeId, with_causes};

use super::AttachError;
use super::decide::{MissingWrites, may_have_journal};
use super::maintain::MAINTAIN_INTERVAL;
use super::messages::{FILTERS_UNFINISHED, JOURNAL_LOST};
use super::worker::{NextStep, WorkerState};
use crate::export::{OpenVolume, VolumeError};

impl WorkerState {
    /// Finds out whether an open volume is missing writes that its filters have acknowledged.
    pub(super) async fn find_missing_writes(&mut self, open_volume: &Arc<OpenVolume>) -> NextStep {
        // If the thread of the volume has ended, only what its filters noted is known, and it is
        // complete.
        let missing = match open_volume.missing_writes().await {
            Ok(Some(why)) => MissingWrites::Named(why),
            Ok(None) | Err(_) => MissingWrites::Nothing,
        };
        self.observed.findings.missing_writes = Some(missing);
        NextStep::Decide
    }

    /// Serves a volume as before until it has all writes that its filters have acknowledged.
    pub(super) async fn wait_for_filters(
        &mut self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> NextStep {
        let why = self.missing_writes().unwrap_or_default();
        let stopped = self.maintain_engine(assignment, open_volume).await;
        let stopped = stopped.map_or_else(String::new, |why| {
            format!("; the volume has stopped: {why}")
        });
        let why = format!("{why}; {FILTERS_UNFINISHED}{stopped}");
        let problem = Message::new(MessageCode::FilterWritesPending, why);
        self.report(assignment, AttachmentState::Busy, Some(problem))
            .await;
        NextStep::After(MAINTAIN_INTERVAL)
    }

    fn missing_writes(&self) -> Option<String> {
        match &self.observed.findings.missing_writes {
            Some(MissingWrites::Named(why)) => Some(why.clone()),
            Some(MissingWrites::Nothing) | None => None,
        }
    }

    /// Unplugs the disk from its VM.
    pub(super) async fn unplug(
        &mut self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> NextStep {
        let Some(vm) = &assignment.vm else {
            return NextStep::Decide;
        };
        let volume = assignment.volume;
        match self.parts.plugging.unplug(assignment, vm).await {
            Ok(()) => {
                tracing::info!(%volume, vm, "agent unplugged disk from VM");
                self.observed.is_unplugged = true;
                (self.seen_in_vm, self.device, self.notice) = (None, None, None);
                NextStep::Decide
            }
            Err(why) if assignment.forced => {
                tracing::warn!(%volume, error = why, "agent removes disk from VM by force");
                self.notice = Some(by_force(format!(
                    "removed by force; the VM gets I/O errors until its guest releases the disk: \
                     {why}"
                )));
                self.observed.findings.has_unplug_failed = true;
                NextStep::Decide
            }
            Err(why) => {
                // The volume is served as before.
                let stopped = self.maintain_engine(assignment, open_volume).await;
                let (code, why) = match stopped {
                    Some(stopped) => (MessageCode::VolumeStopped, stopped),
                    None => (MessageCode::DiskInUse, why),
                };
                tracing::warn!(%volume, error = why, "agent could not unplug disk from VM");
                let problem = Message::new(code, why);
                self.report(assignment, AttachmentState::Busy, Some(problem))
                    .await;
                self.retry_later()
            }
        }
    }

    /// Stops and destages an open volume.
    pub(super) async fn close(
        &mut self,
        assignment: &Assignment,
        open_volume: Arc<OpenVolume>,
    ) -> NextStep {
        if let Some(why) = self.missing_writes() {
            tracing::warn!(volume = %assignment.volume, error = why, "agent detaches volume by force");
            let lost =
                format!("detached by force, without the last writes through its filters: {why}");
            self.notice = Message::joined([by_force(lost)].into_iter().chain(self.notice.take()));
        }
        self.note_closed(&open_volume);
        let epoch = open_volume.epoch();
        let opener = &self.parts.opener;
        let closed = opener.stop_and_close(open_volume, assignment.forced).await;
        if closed.is_ok() && assignment.forced {
            self.note_filter_content(assignment.volume).await;
        }
        self.closed(assignment, closed.map(|()| epoch)).await
    }

    /// Asks the VM of a closed volume whether it still has the disk.
    pub(super) async fn find_plug(&mut self, assignment: &Assignment) -> NextStep {
        if let Some(vm) = &assignment.vm {
            let may_be_plugged = self.parts.plugging.may_be_plugged(assignment, vm).await;
            self.observed.findings.may_be_plugged = Some(may_be_plugged);
            self.observed.is_unplugged = !may_be_plugged;
        }
        NextStep::Decide
    }

    /// Finds out whether filters have content that the closed volume is missing: then it is opened
    /// with them, and closed when it has the content.
    pub(super) async fn find_filter_content(&mut self, assignment: &Assignment) -> NextStep {
        if may_have_journal(assignment) {
            match self
                .parts
                .opener
                .check_filters_empty(assignment.volume)
                .await
            {
                Ok(()) => {}
                Err(AttachError::Volume(VolumeError::Incomplete(_))) => {
                    self.observed.findings.have_filters_content = Some(true);
                    return NextStep::Decide;
                }
                Err(error) => return self.closed(assignment, Err(error)).await,
            }
        }
        match self.parts.filters.have_content(assignment).await {
            Ok(have_content) => {
                self.observed.findings.have_filters_content = Some(have_content);
                NextStep::Decide
            }
            Err(error) => {
                let why = format!(
                    "the content of its filters is unknown: {}; {FILTERS_UNFINISHED}",
                    with_causes(&error)
                );
                let problem = Message::new(MessageCode::FilterWritesPending, why);
                self.report(assignment, AttachmentState::Busy, Some(problem))
                    .await;
                self.retry_later()
            }
        }
    }

    /// Destages the journal of a closed volume.
    pub(super) async fn destage_journal(&mut self, assignment: &Assignment) -> NextStep {
        let destaged = self.parts.opener.destage_journal(assignment).await;
        if assignment.forced && destaged.is_ok() {
            self.note_filter_content(assignment.volume).await;
        }
        self.closed(assignment, destaged.map(Some)).await
    }

    /// Reports a volume that is closed. `closed` is the epoch of the lease up to which all writes
    /// are in versions, or the error.
    pub(super) async fn closed(
        &mut self,
        assignment: &Assignment,
        closed: Result<Option<u32>, AttachError>,
    ) -> NextStep {
        let volume = assignment.volume;
        match closed {
            Ok(epoch) => {
                tracing::info!(%volume, name = assignment.name, "agent detached volume");
                self.remove_files(volume, epoch).await;
                let is_accepted = self
                    .report(assignment, AttachmentState::Detached, None)
                    .await;
                // After this report no catalog names the volume's journals.
                if let (true, Some(epoch), Some(shared)) =
                    (is_accepted, epoch, &self.parts.shared_journals)
                {
                    shared.remove_before(volume, epoch + 1).await;
                }
                NextStep::Wait
            }
            Err(AttachError::ShuttingDown) => NextStep::Wait,
            Err(error)
                if self
                    .journal_lost_since(assignment, &error)
                    .is_some_and(|first| assignment.forced && first < assignment.generation) =>
            {
                let why = format!("detached by force, without the last flushed writes: {error}");
                tracing::warn!(%volume, error = why, "agent detaches volume by force");
                self.report(assignment, AttachmentState::Detached, Some(by_force(why)))
                    .await;
                NextStep::Wait
            }
            Err(error) => {
                let has_shared = self.parts.shared_journals.is_some();
                let hint = match error.is_journal_lost(has_shared) {
                    true => JOURNAL_LOST,
                    false => "acknowledged writes are in its journal",
                };
                let why = format!(
                    "volume {:?} was not closed cleanly: {error}; {hint}; closing will be retried",
                    assignment.name
                );
                tracing::error!(%volume, error = why, "agent did not close volume cleanly");
                let problem = Message::new(MessageCode::CloseFailed, why);
                self.report(assignment, AttachmentState::Busy, Some(problem))
                    .await;
                self.retry_later()
            }
        }
    }

    /// Removes the files of a detached volume that are not needed any more.
    async fn remove_files(&self, volume: VolumeId, epoch: Option<u32>) {
        let filters = &self.parts.filters;
        self.parts.local_journals.remove(volume).await;
        filters.notes().forget_served(volume).await;
        if epoch.is_some() {
            filters.files().remove_empty_journals(volume).await;
        }
    }

    /// Notes writes in the journal of a filter that are not applied now. They stay there, and are
    /// applied if this host has the volume again before any other host.
    async fn note_filter_content(&mut self, volume: VolumeId) {
        let Err(why) = self.parts.opener.check_filters_empty(volume).await else {
            return;
        };
        tracing::warn!(%volume, error = %why, "agent detaches volume by force");
        let left = format!(
            "{why}; the writes are applied if this host has the volume again through the same \
             filters before any other host"
        );
        self.notice = Message::joined(self.notice.take().into_iter().chain([by_force(left)]));
    }

    /// Closes a volume for a shutdown. Returns whether all writes are in versions.
    pub(super) async fn close_at_end(&mut self, open_volume: Arc<OpenVolume>) -> bool {
        self.note_closed(&open_volume);
        let (name, volume) = (open_volume.name().to_owned(), open_volume.volume());
        let is_writer = open_volume.epoch().is_some();
        if let Err(error) = self.parts.opener.stop_and_close(open_volume, true).await {
            tracing::error!(name, %error, "agent did not close volume cleanly; its journal holds the remaining writes");
            return false;
        }
        if !is_writer {
            return true;
        }
        match self.parts.opener.check_filters_empty(volume).await {
            Ok(()) => true,
            Err(why) => {
                tracing::error!(name, error = %why, "filters still hold writes; the next open applies them");
                false
            }
        }
    }
}

/// The message about a volume or a disk that was detached by force.
fn by_force(text: String) -> Message {
    Message::new(MessageCode::DetachedByForce, text)
}
