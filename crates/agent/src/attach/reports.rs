//! What a worker reports of its attachment, and the texts for people.

use api::host::calls::ReportAttachment;
use api::host::{Assignment, AttachmentReport, AttachmentState};
use catalog::CatalogError;
use volume::OpenError;

use super::AttachError;
use super::worker::Work;
use crate::export::NbdServer;
use crate::filters::FilterNoteError;
use crate::lease::AcquireError;

/// The remedy where flushed writes cannot be had.
pub(super) const JOURNAL_LOST: &str = "bring that back, or give up what was flushed last with \
     `scree detach --force`, now that this is known";

/// What is waited for where the volume is missing writes of its filters, and what ends that.
pub(super) const FILTERS_HAVE_MORE: &str = "it is kept until it has all that was written through \
     its filters; `scree detach --force` detaches it as it is, without what was written last";

impl Work {
    /// Reports the attachment's state to the controllers, if it has changed; whether they have
    /// heard it for this generation.
    pub(super) async fn report(
        &mut self,
        assignment: &Assignment,
        state: AttachmentState,
        reason: Option<String>,
    ) -> bool {
        let report = self.current_report(assignment, state, reason);
        if self.reported.as_ref() == Some(&report) {
            return true;
        }
        let call = ReportAttachment {
            attachment: assignment.id,
            report,
        };
        match self.parts.controller.call_until_answered(&call).await {
            // A report for an older generation is ignored; the next assignment is on its way.
            Ok(is_kept) => {
                if call.report.state == AttachmentState::Detached {
                    self.observed.detached_generation = Some(call.report.generation);
                } else {
                    self.observed.detached_generation = None;
                }
                self.reported = Some(call.report);
                is_kept
            }
            Err(error) => {
                tracing::error!(%error, "controller did not hear the report of an attachment");
                false
            }
        }
    }

    fn current_report(
        &self,
        assignment: &Assignment,
        state: AttachmentState,
        reason: Option<String>,
    ) -> AttachmentReport {
        let server = &self.parts.server;
        let is_served = state == AttachmentState::Attached;
        let uri = || match assignment.vm {
            None => server.uri(&assignment.name),
            Some(_) => {
                let socket = self.parts.context.folder.vm_socket(assignment.id);
                NbdServer::own_uri(&assignment.id.to_string(), &socket)
            }
        };
        let tcp_uri = || {
            let uri = server.tcp_uri(&assignment.name);
            uri.filter(|_| assignment.vm.is_none())
        };
        AttachmentReport {
            generation: assignment.generation,
            state,
            reason,
            note: self.note.clone(),
            device: self.device.clone(),
            chain: self.chain.served.filter(|_| is_served),
            chain_problem: self.chain.problem.clone().filter(|_| is_served),
            size_bytes: is_served.then_some(self.size_bytes),
            uri: is_served.then(uri),
            tcp_uri: is_served.then(tcp_uri).flatten(),
        }
    }
}

/// Why a volume is not served, and the remedy.
pub(super) fn open_failure(name: &str, error: &AttachError, has_shared_journals: bool) -> String {
    let hint = match error {
        AttachError::Acquire(AcquireError::Older(_))
        | AttachError::SaltLost
        | AttachError::Unencrypted
        | AttachError::FilterNote(FilterNoteError::JournalLost(_)) => {
            return format!("volume {name:?} cannot be opened: {error}");
        }
        error if error.is_journal_lost(has_shared_journals) => JOURNAL_LOST,
        AttachError::Open(OpenError::Journal(error)) if error.is_loss() => {
            "restore the file, or move it away: without its journal it opens at its newest version"
        }
        AttachError::Open(OpenError::Journal(_)) => {
            "its journal may have what was flushed last, and is to stay as it is"
        }
        AttachError::Journals(_) => "nothing of it is lost",
        AttachError::Chain(_) | AttachError::FilterNote(FilterNoteError::Journals(_)) => {
            "`scree chain show` says which filters there are"
        }
        AttachError::Key(_) | AttachError::HostKey(_) => {
            "an administrator sees the wrapping keys there are with `scree key list`"
        }
        AttachError::Acquire(AcquireError::Lease(CatalogError::Refused { .. })) => {
            "see what its controller says"
        }
        _ => "an administrator sees what is missing with `scree unit list` and `scree status`",
    };
    format!("volume {name:?} cannot be opened: {error}; {hint}; it is tried again")
}
