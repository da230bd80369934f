//! What the filters of a volume have when it is to be let go of.

use std::sync::Arc;

use api::host::{Assignment, AttachmentState};
use base::{VolumeId, with_causes};

use super::{LOOK_EVERY, Next, Work};
use crate::attached::{AttachError, Attached};

/// What is waited for where the volume lacks what its filters have, and what ends that.
pub(super) const FILTERS_HAVE_MORE: &str = "it is kept until it has all that was written through its filters; \
     `scree detach --force` detaches it as it is, without what was written last";

impl Work {
    /// Whether filters have what the volume lacks, of one that is not open: then it is opened
    /// with them, and closed when it has that. Otherwise what is to be done next.
    pub(super) async fn filters_have_something(
        &mut self,
        wish: &Assignment,
        is_writable: bool,
    ) -> Result<bool, Next> {
        if is_writable {
            match self.agent.filters_hold_nothing(wish.volume).await {
                Ok(()) => {}
                Err(AttachError::Lacks(_)) => return Ok(true),
                Err(error) => return Err(self.closed(wish, Err(error)).await),
            }
        }
        match self.agent.filters_have_more(wish).await {
            Ok(have) => Ok(have),
            Err(error) => {
                let why = format!(
                    "what its filters have is not known: {}; {FILTERS_HAVE_MORE}",
                    with_causes(&error)
                );
                self.tell(wish, AttachmentState::Busy, Some(why)).await;
                Err(self.later())
            }
        }
    }

    /// If the volume lacks what was written through its filters it is served as before until it
    /// has that: then this is what is to be done next. By force it is closed as it is; what
    /// to say of that.
    pub(super) async fn wait_for_filters(
        &mut self,
        wish: &Assignment,
        attached: &Arc<Attached>,
    ) -> Result<Option<String>, Next> {
        // Of one whose thread has ended nothing is known but what its filters have kept.
        let Ok(Some(why)) = self.agent.lacking(attached).await else {
            return Ok(None);
        };
        if wish.forced {
            tracing::warn!(volume = %wish.volume, why, "detached by force");
            return Ok(Some(format!(
                "detached by force as it was, without what was written last through its filters: \
                 {why}"
            )));
        }
        let stopped = self.look_at_engine(wish, attached).await;
        let stopped = stopped.map_or_else(String::new, |why| format!("; it has stopped: {why}"));
        let why = format!("{why}; {FILTERS_HAVE_MORE}{stopped}");
        self.tell(wish, AttachmentState::Busy, Some(why)).await;
        Err(Next::After(LOOK_EVERY))
    }

    /// Says what a journal of its filters has that is not carried out now: it is kept, and goes
    /// below if the same host has the volume again, and nobody else before.
    pub(super) async fn note_what_is_left(&mut self, volume: VolumeId) {
        let Err(why) = self.agent.filters_hold_nothing(volume).await else {
            return;
        };
        tracing::warn!(%volume, %why, "detached by force");
        let left = format!(
            "{why}: it is carried out when this host has the volume again through the same filters, \
             and nobody else before"
        );
        let note = self.note.take();
        self.note = Some(note.map_or_else(|| left.clone(), |note| format!("{note}; {left}")));
    }
}
