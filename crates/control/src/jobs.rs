//! Ending long jobs (preloads and audits) of hosts that have stopped working on them.

use std::time::Duration;

use parking_lot::Mutex;
use world::Millis;

use crate::control::Control;
use crate::database::{DatabaseError, Job};
use crate::error::ControlError;

/// A job that its host has not reported on for this time has ended.
const UNRESPONSIVE_FOR: Duration = Duration::from_secs(300);

/// If two clocks differ by more than this, one has been set.
const JUMP_MS: u64 = 30_000;

/// Since when reports of hosts are received without a gap. Before that, it is not known which hosts
/// were unresponsive: reports that were sent while the controller or its database was unavailable
/// were lost.
#[derive(Debug)]
pub(crate) struct Listening(Mutex<Since>);

#[derive(Debug, Clone, Copy)]
struct Since {
    /// By the monotonic clock.
    begun: Duration,
    /// How far the clock by which silence is measured was ahead of that one, in milliseconds.
    ahead_ms: Option<i64>,
}

impl Listening {
    /// Starts now, by the monotonic clock.
    pub fn new(monotonic: Duration) -> Self {
        Self(Mutex::new(Since {
            begun: monotonic,
            ahead_ms: None,
        }))
    }

    /// Starts again: a report was or may have been lost.
    pub fn was_lost(&self, monotonic: Duration) {
        let mut since = self.0.lock();
        since.begun = monotonic;
    }

    /// How long it has lasted. `now` is the time by the clock that reports are recorded with; if
    /// that was set, it starts again, since ages of reports are wrong then.
    fn lasts(&self, monotonic: Duration, now: Millis) -> Duration {
        let mut since = self.0.lock();
        let monotonic_ms = i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = now.0.saturating_sub(monotonic_ms);
        let before = since.ahead_ms.replace(ahead_ms).unwrap_or(ahead_ms);
        if before.abs_diff(ahead_ms) > JUMP_MS {
            since.begun = monotonic;
        }
        monotonic.saturating_sub(since.begun)
    }
}

impl Control {
    /// Ends the jobs that hosts have stopped working on, and deletes old results of audits. Both
    /// are skipped while the database is read-only, as on a full disk.
    ///
    /// # Errors
    /// [`ControlError`].
    pub(crate) async fn tend_jobs(&self) -> Result<(), ControlError> {
        let now = self.now().await?;
        match self.end_unresponsive(now).await {
            Ok(()) | Err(DatabaseError::Full(_) | DatabaseError::ReadOnly(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn end_unresponsive(&self, now: Millis) -> Result<(), DatabaseError> {
        let database = &self.inner.database;
        let lasts = {
            let monotonic = self.inner.world.clock.monotonic();
            self.inner.listening.lasts(monotonic, now)
        };
        if lasts >= UNRESPONSIVE_FOR {
            self.end_all_unresponsive(now).await?;
        }
        database.audits().forget_old(now).await?;
        Ok(())
    }

    /// Passes on the result of recording a report. If recording failed, other reports may have been
    /// lost as well.
    pub(crate) fn heard<T>(&self, kept: Result<T, ControlError>) -> Result<T, ControlError> {
        if matches!(kept, Err(ControlError::Unavailable { .. })) {
            let monotonic = self.inner.world.clock.monotonic();
            self.inner.listening.was_lost(monotonic);
        }
        kept
    }

    async fn end_all_unresponsive(&self, now: Millis) -> Result<(), DatabaseError> {
        let database = &self.inner.database;
        let unresponsive_ms = i64::try_from(UNRESPONSIVE_FOR.as_millis()).unwrap_or(i64::MAX);
        let since = Millis(now.0.saturating_sub(unresponsive_ms));
        let minutes = UNRESPONSIVE_FOR.as_secs() / 60;
        for (job, reason) in [
            (
                Job::Preload,
                format!("the host has not reported for {minutes} minutes"),
            ),
            (
                Job::Audit,
                format!(
                    "the host said nothing of it for {minutes} minutes: it is away, or its agent \
                     knows no audits"
                ),
            ),
        ] {
            match database
                .hosts()
                .end_unresponsive(job, since, &reason, now)
                .await?
            {
                0 => {}
                ended => tracing::warn!(ended, ?job, reason, "hosts do not what was asked"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first report after an outage once ended the jobs of all other hosts.
    #[test]
    fn nobody_was_unresponsive_before_there_was_somebody_to_hear() {
        let seconds = Duration::from_secs;
        let now = |seconds: i64| Millis(1_000_000_000 + seconds * 1000);
        let listening = Listening::new(seconds(10));
        assert_eq!(listening.lasts(seconds(10), now(0)), seconds(0));
        assert_eq!(listening.lasts(seconds(310), now(300)), UNRESPONSIVE_FOR);
        // A clock that runs ahead slowly is right.
        assert_eq!(listening.lasts(seconds(410), now(420)), seconds(400));
        // The machine slept for a day, or its clock was set.
        assert_eq!(listening.lasts(seconds(420), now(86_400)), seconds(0));
        assert_eq!(listening.lasts(seconds(720), now(86_700)), UNRESPONSIVE_FOR);
        assert_eq!(listening.lasts(seconds(730), now(730)), seconds(0));
        listening.was_lost(seconds(900));
        assert_eq!(listening.lasts(seconds(910), now(910)), seconds(10));
    }
}
