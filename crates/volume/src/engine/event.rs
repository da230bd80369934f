//! What jobs report to the owner.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use base::IoError;
use world::Wake;

use super::checkpoint::job::CheckpointEnd;
use super::destage::job::DestageEnd;
use crate::map::{Entry, Page};
use crate::scatter::ReadError;

/// The end of a job.
pub enum Event {
    /// The blocks that a parked request needs have been read.
    Fetched {
        /// The parked request.
        request: u64,
        /// The blocks, or why they could not be read.
        fetched: Fetched,
    },
    /// Map pages have been read for a parked request.
    Pages {
        /// The parked request.
        request: u64,
        /// The pages, or why they could not be read.
        pages: Result<Vec<(Entry, Arc<Page>)>, ReadFailure>,
    },
    /// The journal was synced up to a log position.
    Synced {
        /// Everything before it is durable if `result` is `Ok`.
        position: u64,
        /// The result of the sync.
        result: std::io::Result<()>,
    },
    /// A destage has ended.
    Destaged(Box<DestageEnd>),
    /// A checkpoint has ended.
    Checkpointed(Box<CheckpointEnd>),
    /// Orphans of earlier leases have been freed, or could not be.
    Swept(Result<(), String>),
}

/// The blocks that were read for a request.
pub enum Fetched {
    /// The content of all blocks, concatenated.
    All(Vec<u8>),
    /// The content of each block, or why it could not be read.
    Each(Vec<Result<Vec<u8>, ReadFailure>>),
}

/// Why something was not read.
#[derive(Debug, Clone)]
pub struct ReadFailure {
    /// The error that the client gets.
    pub error: IoError,
    /// Whether a retry may succeed without any repair.
    pub is_transient: bool,
}

impl ReadFailure {
    /// A failure that no retry can change.
    pub fn permanent(error: IoError) -> Self {
        Self {
            error,
            is_transient: false,
        }
    }
}

impl From<ReadError> for ReadFailure {
    fn from(error: ReadError) -> Self {
        let text = error.to_string();
        match error {
            ReadError::Damaged { .. } => Self::permanent(IoError::Damaged(text)),
            ReadError::Unavailable { is_transient, .. } => Self {
                error: IoError::Unavailable(text),
                is_transient,
            },
        }
    }
}

/// Sends events to the owner and wakes it.
#[derive(Clone)]
pub struct Reporter {
    sender: Sender<Event>,
    wake: Wake,
}

impl Reporter {
    /// A reporter to the owner, which holds the receiver.
    pub fn new(sender: Sender<Event>, wake: Wake) -> Self {
        Self { sender, wake }
    }

    /// Sends an event. It is dropped if the owner no longer exists.
    pub fn report(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            self.wake.wake();
        }
    }
}
