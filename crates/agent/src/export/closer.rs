//! [`Closer`]: closes a volume whose units may take nothing, or never answer.

use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use base::BlockDevice as _;
use volume::Volume;
use world::{Clock, Wake};

use super::VolumeError;

/// A close without progress for this long, because no unit takes the data, is given up: the journal
/// keeps the data.
const CLOSE_STALL_MAX: Duration = Duration::from_secs(15);

/// A close that has put nothing on any unit for this long is given up as well, though nothing has
/// failed: a unit does not answer.
const CLOSE_UNRESPONSIVE_MAX: Duration = Duration::from_secs(60);

/// How often a close reads the clock where nothing else happens.
const CLOSE_TICK: Duration = Duration::from_millis(200);

/// The thread that closes a volume. Before, jobs that end wake the loop that serves the volume; from
/// then on they wake this thread.
#[derive(Clone, Default)]
pub(crate) struct Closer(Arc<OnceLock<Thread>>);

impl Closer {
    /// The wake for both.
    pub fn wake(&self, serving: Wake) -> Wake {
        let thread = Arc::clone(&self.0);
        Wake::new(move || {
            serving.wake();
            if let Some(thread) = thread.get() {
                thread.unpark();
            }
        })
    }

    /// Destages everything. Waits for the destage, as long as it makes progress.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn close(&self, mut volume: Volume, clock: &dyn Clock) -> Result<(), VolumeError> {
        // From here on no end of a job is missed: earlier ones are polled below.
        self.0.get_or_init(thread::current);
        let mut completions = Vec::new();
        let mut committed = Steady::new(clock.monotonic());
        let mut placed = Steady::new(clock.monotonic());
        volume.begin_close();
        loop {
            volume.poll(&mut completions);
            completions.clear();
            volume.commit()?;
            if let Some(closed) = volume.close_state() {
                return Ok(closed?);
            }
            let status = volume.status();
            let now = clock.monotonic();
            let since_commit = committed.since(status.journal_used_bytes, now);
            let since_put = placed.since(status.pieces_placed, now);
            match status.destage_error {
                // An attempt may put something before it fails.
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

/// A number, and the moment of its last change.
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

    /// How long the number has been `number`.
    fn since(&mut self, number: u64, now: Duration) -> Duration {
        if self.number != Some(number) {
            self.number = Some(number);
            self.since = now;
        }
        now.saturating_sub(self.since)
    }
}
