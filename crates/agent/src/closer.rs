//! Closing a volume whose units may take nothing, or never answer.

use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use base::BlockDevice as _;
use volume::Volume;
use world::{Clock, Wake};

use crate::attached::AttachError;

/// A close that has got nowhere for so long, because no unit takes what it
/// has, is given up: the journal keeps it.
const CLOSE_STALL_MAX: Duration = Duration::from_secs(15);

/// One that has put nothing anywhere for so long is given up, too, though
/// nothing has failed: a unit keeps a call for ever.
const CLOSE_SILENCE_MAX: Duration = Duration::from_secs(60);

/// How often a close looks at the clock where nothing else happens.
const CLOSE_TICK: Duration = Duration::from_millis(200);

/// The thread in which a volume is closed. Until then, the loop that serves it
/// hears of jobs that end; afterwards this thread does.
#[derive(Clone, Default)]
pub(crate) struct Closer(Arc<OnceLock<Thread>>);

impl Closer {
    /// A wake for both.
    pub fn wake(&self, serving: Wake) -> Wake {
        let thread = Arc::clone(&self.0);
        Wake::new(move || {
            serving.wake();
            if let Some(thread) = thread.get() {
                thread.unpark();
            }
        })
    }

    /// Destages everything. Waits for the destage, as long as it gets on.
    pub fn close(&self, mut volume: Volume, clock: &dyn Clock) -> Result<(), AttachError> {
        // From here on no job's end is missed: those before are polled below.
        self.0.get_or_init(thread::current);
        let mut completions = Vec::new();
        let mut committed = Lately::new(clock.monotonic());
        let mut placed = Lately::new(clock.monotonic());
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
                // Each attempt may put something before it fails.
                Some(why) if since_commit > CLOSE_STALL_MAX => {
                    return Err(AttachError::Stalled(why));
                }
                _ if since_put.min(since_commit) > CLOSE_SILENCE_MAX => {
                    return Err(AttachError::Unresponsive(CLOSE_SILENCE_MAX.as_secs()));
                }
                _ => {}
            }
            let timer = volume.next_timer().unwrap_or(CLOSE_TICK);
            #[expect(clippy::disallowed_methods, reason = "a job that ends wakes it before")]
            thread::park_timeout(timer.min(CLOSE_TICK));
        }
    }
}

/// A number, and since when it is what it is.
struct Lately {
    number: Option<u64>,
    since: Duration,
}

impl Lately {
    fn new(now: Duration) -> Self {
        Self {
            number: None,
            since: now,
        }
    }

    /// For how long it has been `number`.
    fn since(&mut self, number: u64, now: Duration) -> Duration {
        if self.number != Some(number) {
            self.number = Some(number);
            self.since = now;
        }
        now.saturating_sub(self.since)
    }
}
