//! [`JobProgress`]: the progress of a running job, and whether it was canceled.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::client::ClientError;
use parking_lot::Mutex;
use world::host;

use crate::context::Shutdown;

/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Timeout of a progress report: controllers may be slow, and consider a host idle that does not
/// report for long.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// How often a waiting job checks whether it was canceled.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// The job was canceled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it was canceled")]
pub(crate) struct Canceled;

/// The progress of a running job.
#[derive(Debug)]
pub(crate) struct JobProgress {
    shutdown: Shutdown,
    is_canceled: AtomicBool,
    done_bytes: AtomicU64,
}

impl JobProgress {
    pub fn new(shutdown: Shutdown) -> Self {
        Self {
            shutdown,
            is_canceled: AtomicBool::new(false),
            done_bytes: AtomicU64::new(0),
        }
    }

    /// Cancels the job: it ends soon.
    pub fn cancel(&self) {
        self.is_canceled.store(true, Ordering::Relaxed);
    }

    /// Checks that the job was not canceled, and the agent is not shutting down.
    ///
    /// # Errors
    /// [`Canceled`] otherwise.
    pub fn check(&self) -> Result<(), Canceled> {
        match self.is_canceled.load(Ordering::Relaxed) || self.shutdown.has_begun() {
            true => Err(Canceled),
            false => Ok(()),
        }
    }

    /// Number of bytes that the job has processed.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    pub fn set_done(&self, bytes: u64) {
        self.done_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn add_done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits for `work`, and calls `report` each second with the progress; the answer `false`
    /// cancels the job.
    pub async fn follow<T, F>(&self, work: impl Future<Output = T>, report: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<bool, ClientError>>,
    {
        let mut work = pin!(work);
        loop {
            if let Some(done) = host::timeout(REPORT_EVERY, &mut work).await {
                return done;
            }
            // A failed report does not matter: the next one supersedes it.
            tokio::select! {
                done = &mut work => return done,
                heard = host::timeout(HEARD_WITHIN, report()) => {
                    if matches!(heard, Some(Ok(false))) {
                        self.cancel();
                    }
                }
            }
        }
    }
}

/// Removes an ended job from `all`, unless another job has its key by now.
pub(crate) fn forget<K: Eq + Hash, T>(all: &Mutex<HashMap<K, Arc<T>>>, key: &K, job: &Arc<T>) {
    let mut all = all.lock();
    if all.get(key).is_some_and(|now| Arc::ptr_eq(now, job)) {
        all.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;

    use super::*;

    /// Regression: a report that a slow controller had not answered within a second was dropped
    /// each time.
    #[tokio::test]
    async fn a_slow_controller_receives_progress_reports() {
        let (progress, is_heard, begun) = (
            JobProgress::new(Shutdown::default()),
            Notify::new(),
            Cell::new(0),
        );
        let work = is_heard.notified();
        let tell = || async {
            begun.set(begun.get() + 1);
            // Longer than the pause between reports.
            host::sleep(2 * REPORT_EVERY).await;
            is_heard.notify_one();
            Ok(true)
        };
        let followed = host::timeout(HEARD_WITHIN, progress.follow(work, tell)).await;
        assert_eq!((followed, begun.get()), (Some(()), 1));
    }

    #[tokio::test]
    async fn a_job_that_ends_during_a_report_has_ended() {
        let (progress, is_told) = (JobProgress::new(Shutdown::default()), Notify::new());
        let tell = || async {
            is_told.notify_one();
            std::future::pending().await
        };
        let followed = progress.follow(is_told.notified(), tell);
        let followed = host::timeout(HEARD_WITHIN, followed).await;
        assert_eq!(followed, Some(()), "it waited for the report");
    }
}
