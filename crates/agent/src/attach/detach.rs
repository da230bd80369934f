//! How a worker's volume ends: unplugged, stopped and destaged, or settled if it was not open.

use std::sync::Arc;

use api::host::{Assignment, AttachmentState};
use api::types::Message;
use api::words::MessageCode;
use base::{VolumeId, with_causes};

use super::AttachError;
use super::decide::{MissingWrites, is_settled};
use super::maintain::LOOK_EVERY;
use super::messages::{FILTERS_HAVE_MORE, JOURNAL_LOST};
use super::worker::{Next, Work};
use crate::export::{Attached, VolumeError};

impl Work {
    /// Asks an open volume whether it is missing writes of its filters.
    pub(super) async fn find_missing_writes(&mut self, attached: &Arc<Attached>) -> Next {
        // Of a volume whose thread has ended, only what its filters have noted is known.
        let missing = match attached.missing_writes().await {
            Ok(Some(why)) => MissingWrites::Some(why),
            Ok(None) | Err(_) => MissingWrites::None,
        };
        self.observed.findings.missing_writes = Some(missing);
        Next::Decide
    }

    /// Serves a volume as before until it has all writes of its filters.
    pub(super) async fn wait_for_filters(
        &mut self,
        assignment: &Assignment,
        attached: &Arc<Attached>,
    ) -> Next {
        let why = self.missing_writes().unwrap_or_default();
        let stopped = self.maintain_engine(assignment, attached).await;
        let stopped = stopped.map_or_else(String::new, |why| format!("; it has stopped: {why}"));
        let why = format!("{why}; {FILTERS_HAVE_MORE}{stopped}");
        let problem = Message::new(MessageCode::FilterWritesPending, why);
        self.report(assignment, AttachmentState::Busy, Some(problem))
            .await;
        Next::After(LOOK_EVERY)
    }

    fn missing_writes(&self) -> Option<String> {
        match &self.observed.findings.missing_writes {
            Some(MissingWrites::Some(why)) => Some(why.clone()),
            Some(MissingWrites::None) | None => None,
        }
    }

    /// Takes the disk out of its VM.
    pub(super) async fn unplug(
        &mut self,
        assignment: &Assignment,
        attached: &Arc<Attached>,
    ) -> Next {
        let Some(vm) = &assignment.vm else {
            return Next::Decide;
        };
        let volume = assignment.volume;
        match self.parts.plugging.unplug(assignment, vm).await {
            Ok(()) => {
                tracing::info!(%volume, vm, "disk unplugged from its VM");
                self.observed.is_unplugged = true;
                (self.seen_in_vm, self.device, self.notice) = (None, None, None);
                Next::Decide
            }
            Err(why) if assignment.forced => {
                tracing::warn!(%volume, why, "disk is taken from its VM by force");
                self.notice = Some(by_force(format!(
                    "taken by force, and the VM has I/O errors there until its guest lets go: {why}"
                )));
                self.observed.findings.has_unplug_failed = true;
                Next::Decide
            }
            Err(why) => {
                // It is served as before.
                let stopped = self.maintain_engine(assignment, attached).await;
                let (code, why) = match stopped {
                    Some(stopped) => (MessageCode::VolumeStopped, stopped),
                    None => (MessageCode::DiskInUse, why),
                };
                tracing::warn!(%volume, why, "disk was not unplugged from its VM");
                let problem = Message::new(code, why);
                self.report(assignment, AttachmentState::Busy, Some(problem))
                    .await;
                self.later()
            }
        }
    }

    /// Stops and destages an open volume.
    pub(super) async fn close(&mut self, assignment: &Assignment, attached: Arc<Attached>) -> Next {
        if let Some(why) = self.missing_writes() {
            tracing::warn!(volume = %assignment.volume, why, "volume is detached by force");
            let lost = format!(
                "detached by force as it was, without what was written last through its filters: \
                 {why}"
            );
            self.notice = Message::joined([by_force(lost)].into_iter().chain(self.notice.take()));
        }
        self.note_closed(&attached);
        let epoch = attached.epoch();
        let opener = &self.parts.opener;
        let closed = opener.stop_and_close(attached, assignment.forced).await;
        if closed.is_ok() && assignment.forced {
            self.note_filter_content(assignment.volume).await;
        }
        self.closed(assignment, closed.map(|()| epoch)).await
    }

    /// Asks the VM of a volume that is not open whether it still has the disk.
    pub(super) async fn find_plug(&mut self, assignment: &Assignment) -> Next {
        if let Some(vm) = &assignment.vm {
            let may_be_plugged = self.parts.plugging.may_be_plugged(assignment, vm).await;
            self.observed.findings.may_be_plugged = may_be_plugged;
            self.observed.is_unplugged = !may_be_plugged;
        }
        Next::Decide
    }

    /// Looks whether filters of a volume that is not open have content that it is missing: then it
    /// is opened with them, and closed when it has the content.
    pub(super) async fn find_filter_content(&mut self, assignment: &Assignment) -> Next {
        if !is_settled(assignment) {
            match self
                .parts
                .opener
                .check_filters_empty(assignment.volume)
                .await
            {
                Ok(()) => {}
                Err(AttachError::Volume(VolumeError::Incomplete(_))) => {
                    self.observed.findings.have_filters_content = Some(true);
                    return Next::Decide;
                }
                Err(error) => return self.closed(assignment, Err(error)).await,
            }
        }
        match self.parts.filters.have_more(assignment).await {
            Ok(have_content) => {
                self.observed.findings.have_filters_content = Some(have_content);
                Next::Decide
            }
            Err(error) => {
                let why = format!(
                    "what its filters have is not known: {}; {FILTERS_HAVE_MORE}",
                    with_causes(&error)
                );
                let problem = Message::new(MessageCode::FilterWritesPending, why);
                self.report(assignment, AttachmentState::Busy, Some(problem))
                    .await;
                self.later()
            }
        }
    }

    /// Destages the journal of a volume that is not open.
    pub(super) async fn settle(&mut self, assignment: &Assignment) -> Next {
        let settled = self.parts.opener.settle(assignment).await;
        if assignment.forced && settled.is_ok() {
            self.note_filter_content(assignment.volume).await;
        }
        self.closed(assignment, settled.map(Some)).await
    }

    /// The volume is not open; unless `closed` is an error, all that was written is in versions,
    /// up to those of a lease.
    pub(super) async fn closed(
        &mut self,
        assignment: &Assignment,
        closed: Result<Option<u32>, AttachError>,
    ) -> Next {
        let volume = assignment.volume;
        match closed {
            Ok(epoch) => {
                tracing::info!(%volume, name = assignment.name, "volume detached");
                self.remove_files(volume, epoch).await;
                let is_heard = self
                    .report(assignment, AttachmentState::Detached, None)
                    .await;
                // From here on no catalog names its journals.
                if let (true, Some(epoch), Some(shared)) =
                    (is_heard, epoch, &self.parts.shared_journals)
                {
                    shared.remove_before(volume, epoch + 1).await;
                }
                Next::Wait
            }
            Err(AttachError::Ending) => Next::Wait,
            Err(error)
                if self
                    .journal_lost_since(assignment, &error)
                    .is_some_and(|first| assignment.forced && first < assignment.generation) =>
            {
                let why = format!("given up by force, without what was flushed last, as {error}");
                tracing::warn!(%volume, why, "volume is detached by force");
                self.report(assignment, AttachmentState::Detached, Some(by_force(why)))
                    .await;
                Next::Wait
            }
            Err(error) => {
                let has_shared = self.parts.shared_journals.is_some();
                let hint = match error.is_journal_lost(has_shared) {
                    true => JOURNAL_LOST,
                    false => "what it acknowledged is in its journal",
                };
                let why = format!(
                    "volume {:?} was not closed cleanly: {error}; {hint}, and closing it is tried \
                     again",
                    assignment.name
                );
                tracing::error!(%volume, why, "volume was not closed cleanly");
                let problem = Message::new(MessageCode::CloseFailed, why);
                self.report(assignment, AttachmentState::Busy, Some(problem))
                    .await;
                self.later()
            }
        }
    }

    /// Removes the files of a detached volume that are not needed any more.
    async fn remove_files(&self, volume: VolumeId, epoch: Option<u32>) {
        let filters = &self.parts.filters;
        self.parts.local_journals.remove(volume).await;
        filters.notes().forget_served(volume).await;
        if epoch.is_some() {
            filters.files().remove_empty_rings(volume).await;
        }
    }

    /// Notes the content of a filter's journal that is not carried out now: it is kept, and
    /// carried out if this host has the volume again, and no other before.
    async fn note_filter_content(&mut self, volume: VolumeId) {
        let Err(why) = self.parts.opener.check_filters_empty(volume).await else {
            return;
        };
        tracing::warn!(%volume, %why, "volume is detached by force");
        let left = format!(
            "{why}: it is carried out when this host has the volume again through the same filters, \
             and nobody else before"
        );
        self.notice = Message::joined(self.notice.take().into_iter().chain([by_force(left)]));
    }

    /// Closes the volume of an ending agent; whether all that was written is in versions then.
    pub(super) async fn close_at_end(&mut self, attached: Arc<Attached>) -> bool {
        self.note_closed(&attached);
        let (name, volume) = (attached.name().to_owned(), attached.volume());
        let is_writer = attached.epoch().is_some();
        if let Err(error) = self.parts.opener.stop_and_close(attached, true).await {
            tracing::error!(name, %error, "volume was not closed cleanly; its journal has the rest");
            return false;
        }
        if !is_writer {
            return true;
        }
        match self.parts.opener.check_filters_empty(volume).await {
            Ok(()) => true,
            Err(why) => {
                tracing::error!(name, %why, "filters have content; the next open carries it out");
                false
            }
        }
    }
}

/// The message about a volume or a disk that was detached by force.
fn by_force(text: String) -> Message {
    Message::new(MessageCode::DetachedByForce, text)
}
