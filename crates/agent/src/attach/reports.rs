//! What a worker reports of its attachment.

use api::host::calls::ReportAttachment;
use api::host::{Assignment, AttachmentReport, AttachmentState};
use api::types::Message;

use super::worker::Work;
use crate::export::NbdServer;

impl Work {
    /// Reports the attachment's state to the controllers, if it has changed; whether they have
    /// heard it for this generation.
    pub(super) async fn report(
        &mut self,
        assignment: &Assignment,
        state: AttachmentState,
        problem: Option<Message>,
    ) -> bool {
        let report = self.current_report(assignment, state, problem);
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
        problem: Option<Message>,
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
            problem,
            notice: self.notice.clone(),
            device: self.device.clone(),
            chain: self.chain.served.filter(|_| is_served),
            chain_problem: self.chain.problem.clone().filter(|_| is_served),
            size_bytes: is_served.then_some(self.size_bytes),
            uri: is_served.then(uri),
            tcp_uri: is_served.then(tcp_uri).flatten(),
        }
    }
}
