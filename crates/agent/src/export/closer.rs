//! [`Closer`]: closes a volume whose units may accept no data, or never answer.

use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use base::BlockDevice as _;
use volume::Volume;
use world::{Clock, Wake};

use super::VolumeError;

/// A close that makes no progress for this long because no unit accepts the data is aborted: the
/// journal holds the data.
const CLOSE_STALL_MAX: Duration = Duration::from_secs(15);

/// A close that has written nothing to any unit for this long is aborted as well, even if nothing
/// failed: a unit does not answer.
const CLOSE_UNRESPONSIVE_MAX: Duration = Duration::from_secs(60);

/// The longest sleep of a close.
const CLOSE_TICK: Duration = Duration::from_millis(200);

/// The thread that closes a volume. Jobs that end wake the loop that serves the volume, and during
/// the close they wake this thread.
#[derive(Clone, Default)]
pub(crate) struct Closer(Arc<OnceLock<Thread>>);

impl Closer {
    /// A wake for the serving loop and for the closing thread.
    pub fn wake(&self, serving: Wake) -> Wake {
        let thread = Arc::clone(&self.0);
        Wake::new(move || {
            serving.wake();
            if let Some(thread) = thread.get() {
                thread.unpark();
            }
        })
    }

    /// Destages everything. Blocks as long as the destage makes progress.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn close(&self, mut volume: Volume, clock: &dyn Clock) -> Result<(), VolumeError> {
        // From here on no end of a job is missed: jobs that ended earlier are polled below.
        self.0.get_or_init(thread::current);
        let mut completions = Vec::new();
        let mut committed = Steady::new(clock.monotonic());
        let mut placed = Steady::new(clock.monotonic());
        volume.begin_close();
        loop {
            volume.poll(&mut completions);
            completions.clear();
            volume.end_batch()?;
            if let Some(closed) = volume.close_state() {
                return Ok(closed?);
            }
            let status = volume.status();
            let now = clock.monotonic();
            let since_commit = committed.since(status.journal_used_bytes, now);
            let since_put = placed.since(status.pieces_placed, now);
            match status.destage_error {
                // An attempt may write something before it fails.
                Some(why) if since_commit > CLOSE_STALL_MAX => {
                    return Err(VolumeError::Stalled(why));
                }
                _ if since_put.min(since_commit) > CLOSE_UNRESPONSIVE_MAX => {
                    return Err(VolumeError::Unresponsive(CLOSE_UNRESPONSIVE_MAX.as_secs()));
                }
                _ => {}
            }
            let timer = volume.next_timer().unwrap_or(CLOSE_TICK);
            #[expect(clippy::disallowed_methods, reason = "a job that ends wakes it before")]
            thread::park_timeout(timer.min(CLOSE_TICK));
        }
    }
}

/// A number, and the time of its last change.
struct Steady {
    number: Option<u64>,
    since: Duration,
}

impl Steady {
    fn new(now: Duration) -> Self {
        Self {
            number: None,
            since: now,
        }
    }

    /// Time for which the number has been `number`.
    fn since(&mut self, number: u64, now: Duration) -> Duration {
        if self.number != Some(number) {
            self.number = Some(number);
            self.since = now;
        }
        now.saturating_sub(self.since)
    }
}
