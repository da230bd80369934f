//! How a worker's volume ends: unplugged, stopped and destaged, or settled if it was not open.

use std::sync::Arc;

use api::host::{Access, Assignment, AttachmentState};

use super::{JOURNAL_LOST, Next, Work};
use crate::agent::lock;
use crate::attached::{AttachError, Attached};

impl Work {
    pub(super) async fn close(&mut self, wish: &Assignment, attached: Arc<Attached>) -> Next {
        let lost = match self.wait_for_filters(wish, &attached).await {
            Ok(lost) => lost,
            Err(next) => return next,
        };
        if let Err(why) = self.keep_unplugged(wish).await {
            if !wish.forced {
                // It is served as before.
                let stopped = self.look_at_engine(wish, &attached).await;
                let why = stopped.unwrap_or(why);
                tracing::warn!(volume = %wish.volume, why, "not unplugged");
                self.tell(wish, AttachmentState::Busy, Some(why)).await;
                return self.later();
            }
            tracing::warn!(volume = %wish.volume, why, "taken from its VM by force");
            self.note = Some(format!(
                "taken by force, and the VM has I/O errors there until its guest lets go: {why}"
            ));
        }
        if let Some(lost) = lost {
            let note = self.note.take();
            self.note = Some(note.map_or_else(|| lost.clone(), |note| format!("{lost}; {note}")));
        }
        *lock(&self.shared.open) = None;
        let epoch = attached.epoch;
        let closed = self.agent.stop_and_close(attached, wish.forced).await;
        if closed.is_ok() && wish.forced {
            self.note_what_is_left(wish.volume).await;
        }
        self.closed(wish, closed.map(|()| epoch)).await
    }

    /// Takes it out of its VM; why it is still there, if it is.
    async fn keep_unplugged(&mut self, wish: &Assignment) -> Result<(), String> {
        if let Some(vm) = &wish.vm
            && !self.is_unplugged
        {
            self.agent.unplug(wish, vm).await?;
            tracing::info!(volume = %wish.volume, vm, "unplugged");
            (self.is_unplugged, self.looked_at_vm) = (true, None);
            (self.device, self.note) = (None, None);
        }
        Ok(())
    }

    pub(super) async fn settle(&mut self, wish: &Assignment) -> Next {
        if self.told.as_ref().is_some_and(|told| {
            told.generation == wish.generation && told.state == AttachmentState::Detached
        }) {
            return Next::Never;
        }
        if let Some(vm) = &wish.vm
            && !wish.forced
            && !self.is_unplugged
        {
            if self.agent.may_be_plugged(wish, vm).await {
                return self.open(wish).await;
            }
            self.is_unplugged = true;
        }
        let is_writable = wish.leased && wish.access == Access::ReadWrite;
        if !wish.forced {
            match self.filters_have_something(wish, is_writable).await {
                Ok(true) => return self.open(wish).await,
                Ok(false) => {}
                Err(next) => return next,
            }
        }
        let settled = match is_writable {
            true => self.agent.settle(wish).await.map(Some),
            false => Ok(None),
        };
        if is_writable && wish.forced && settled.is_ok() {
            self.note_what_is_left(wish.volume).await;
        }
        self.closed(wish, settled).await
    }

    /// It is not open, and if that went well all is in versions, up to those of
    /// a lease.
    pub(super) async fn closed(
        &mut self,
        wish: &Assignment,
        closed: Result<Option<u32>, AttachError>,
    ) -> Next {
        match closed {
            Ok(epoch) => {
                tracing::info!(volume = %wish.volume, name = wish.name, "detached");
                self.agent.forget_journal(wish.volume).await;
                self.agent.forget_served(wish.volume).await;
                if epoch.is_some() {
                    self.agent.remove_empty_rings(wish.volume).await;
                }
                let is_heard = self.tell(wish, AttachmentState::Detached, None).await;
                // From here on no catalog names it.
                if let (true, Some(epoch)) = (is_heard, epoch) {
                    self.agent.forget_shared(wish.volume, epoch + 1).await;
                }
                Next::Never
            }
            Err(AttachError::Ending) => Next::Never,
            Err(error)
                if self
                    .journal_lost_since(wish, &error)
                    .is_some_and(|first| wish.forced && first < wish.generation) =>
            {
                let why = format!("given up by force, without what was flushed last, as {error}");
                tracing::warn!(volume = %wish.volume, why);
                self.tell(wish, AttachmentState::Detached, Some(why)).await;
                Next::Never
            }
            Err(error) => {
                let hint = match error.is_journal_lost(&self.agent.inner) {
                    true => JOURNAL_LOST,
                    false => "what it acknowledged is in its journal",
                };
                let why = format!(
                    "volume {:?} was not closed cleanly: {error}; {hint}, and closing it is tried \
                     again",
                    wish.name
                );
                tracing::error!(volume = %wish.volume, why);
                self.tell(wish, AttachmentState::Busy, Some(why)).await;
                self.later()
            }
        }
    }

    /// The first wish that could not be met because what was flushed last
    /// cannot be had, if that is the error: only a force that was asked for
    /// later gives it up.
    pub(super) fn journal_lost_since(
        &mut self,
        wish: &Assignment,
        error: &AttachError,
    ) -> Option<u64> {
        let is_lost = error.is_journal_lost(&self.agent.inner);
        is_lost.then(|| *self.journal_lost_for.get_or_insert(wish.generation))
    }
}
