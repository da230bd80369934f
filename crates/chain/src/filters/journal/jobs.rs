//! [`FileJob`]: the operation on the journal file that runs on the pool, one at a time.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use world::{Pool, Wake};

use super::file::{JournalFile, Scan};
use super::record::StartPage;

/// A file that was quarantined, and the new one that was created.
pub(super) struct Quarantined {
    /// Where the quarantined file is.
    pub path: PathBuf,
    pub reason: &'static str,
    pub created: io::Result<JournalFile>,
}

/// The result of a job.
pub(super) enum JobResult {
    Opened(JournalFile),
    Quarantined(Quarantined),
    /// An empty replacement of the configured length was created beside the file.
    ReplacementCreated(io::Result<JournalFile>),
    /// The replacement has the journal's name.
    Replaced(io::Result<()>),
    Scanned(Scan),
    /// The start page is durable.
    Started(StartPage),
    /// The file is durable up to this position.
    Synced(u64),
}

/// The one job that may be running.
pub(super) struct FileJob {
    pool: Arc<dyn Pool>,
    wake: Wake,
    receiver: Option<Receiver<io::Result<JobResult>>>,
}

impl FileJob {
    /// `wake` has the chain polled when a job has ended.
    pub fn new(pool: Arc<dyn Pool>, wake: Wake) -> Self {
        Self {
            pool,
            wake,
            receiver: None,
        }
    }

    pub fn is_running(&self) -> bool {
        self.receiver.is_some()
    }

    /// Starts a job. None may be running.
    pub fn run(&mut self, job: impl FnOnce() -> io::Result<JobResult> + Send + 'static) {
        debug_assert!(!self.is_running(), "one job at a time");
        let (sender, receiver) = mpsc::channel();
        let wake = self.wake.clone();
        self.receiver = Some(receiver);
        self.pool.run(Box::new(move || {
            // A journal that was dropped needs no result.
            let _ = sender.send(job());
            wake.wake();
        }));
    }

    /// The result of the job, once it has ended.
    pub fn poll(&mut self) -> Option<io::Result<JobResult>> {
        let result = match self.receiver.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err(io::Error::other("the job on the file was dropped"))
            }
            Ok(result) => result,
        };
        self.receiver = None;
        Some(result)
    }
}
