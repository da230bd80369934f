//! What jobs report to the owner.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use world::Wake;

use super::checkpoint::CheckpointEnd;
use super::destage::DestageEnd;
use super::fetch::Fetched;
use super::unavailable::ReadFailure;
use crate::map::{Entry, Page};

/// The end of a job.
pub enum Event {
    /// What a parked request asked for has been read.
    Fetched {
        /// The parked request.
        request: u64,
        /// What came, or why it did not.
        fetched: Fetched,
    },
    /// Map pages have been read for a parked request.
    Pages {
        /// The parked request.
        request: u64,
        /// The pages, or why there are none.
        pages: Result<Vec<(Entry, Arc<Page>)>, ReadFailure>,
    },
    /// The journal was synced up to a log position.
    Synced {
        /// Everything before it is durable, if `result` says so.
        position: u64,
        /// What the sync returned.
        result: std::io::Result<()>,
    },
    /// A destage has ended.
    Destaged(Box<DestageEnd>),
    /// A checkpoint has ended.
    Checkpointed(Box<CheckpointEnd>),
    /// What earlier leases left on units has been freed, or not yet.
    Swept(Result<(), String>),
}

/// Brings events to the owner and wakes it.
#[derive(Clone)]
pub struct Reporter {
    sender: Sender<Event>,
    wake: Wake,
}

impl Reporter {
    /// A reporter to the owner that holds the other end.
    pub fn new(sender: Sender<Event>, wake: Wake) -> Self {
        Self { sender, wake }
    }

    /// Reports. An owner that is gone no longer cares.
    pub fn report(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            self.wake.wake();
        }
    }
}
