//! When a connection has been slow or idle for too long: decided here, without sockets or
//! clocks.

use std::time::Duration;

/// How long a server waits for its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Time from connecting until the host has sent its certificate and its hello.
    pub hello: Duration,
    /// Time after which a connection without requests is closed.
    pub idle: Duration,
    /// Time in which a stalled host, which does not read an answer or has sent only a part of
    /// a request, must move 128 KiB.
    pub stalled: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            idle: Duration::from_secs(600),
            stalled: Duration::from_secs(30),
        }
    }
}

/// Bytes that a stalled connection must move within the timeout, or it is closed.
const MOVED_BYTES_MIN: u64 = 128 << 10;

/// The state of a connection, as its loop sees it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Activity {
    /// The host has sent its hello.
    pub is_greeted: bool,
    /// Requests are being carried out, or answers wait to be sent.
    pub is_busy: bool,
    /// The host does not read its answers, or has sent only a part of a request although
    /// the daemon would read the rest.
    pub is_stalled: bool,
    /// The number of requests received so far.
    pub requests: u64,
    /// Bytes received and sent so far.
    pub moved: u64,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TimedOut {
    #[error("the host sent no hello in time")]
    Hello,
    #[error("the host sent no request for too long")]
    Idle,
    #[error("the host reads its answers or sends its requests too slowly")]
    Stalled,
}

/// Tracks one connection against its [`Timeouts`].
#[derive(Debug)]
pub(crate) struct Watchdog {
    timeouts: Timeouts,
    /// When the connection was accepted.
    begun: Duration,
    /// When the connection was last busy.
    busy_at: Duration,
    /// The number of requests received by then.
    busy_requests: u64,
    /// While the connection is stalled.
    stalled: Option<Stall>,
}

/// When a stall was last judged.
#[derive(Debug, Clone, Copy)]
struct Stall {
    since: Duration,
    /// Bytes moved by then.
    moved: u64,
}

impl Watchdog {
    pub fn new(timeouts: Timeouts, begun: Duration) -> Self {
        Self {
            timeouts,
            begun,
            busy_at: begun,
            busy_requests: 0,
            stalled: None,
        }
    }

    /// Checks the connection at `now` and returns when to check it next.
    ///
    /// # Errors
    /// [`TimedOut`]: the connection must be closed.
    pub fn check(&mut self, now: Duration, activity: Activity) -> Result<Duration, TimedOut> {
        if !activity.is_greeted {
            let until = self.begun + self.timeouts.hello;
            return before(now, until).ok_or(TimedOut::Hello);
        }
        if activity.is_busy || activity.requests != self.busy_requests {
            self.busy_at = now;
            self.busy_requests = activity.requests;
        }
        let idle = before(now, self.busy_at + self.timeouts.idle).ok_or(TimedOut::Idle)?;
        if !activity.is_stalled {
            self.stalled = None;
            return Ok(idle);
        }
        let stall = *self.stalled.get_or_insert(Stall {
            since: now,
            moved: activity.moved,
        });
        let until = stall.since + self.timeouts.stalled;
        match before(now, until) {
            Some(until) => Ok(idle.min(until)),
            None if activity.moved - stall.moved >= MOVED_BYTES_MIN => {
                self.stalled = Some(Stall {
                    since: now,
                    moved: activity.moved,
                });
                Ok(idle.min(now + self.timeouts.stalled))
            }
            None => Err(TimedOut::Stalled),
        }
    }
}

fn before(now: Duration, until: Duration) -> Option<Duration> {
    (now < until).then_some(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const GREETED: Activity = Activity {
        is_greeted: true,
        is_busy: false,
        is_stalled: false,
        requests: 1,
        moved: 0,
    };

    #[test]
    fn a_connection_without_hello_or_requests_is_closed() {
        let mut watchdog = Watchdog::new(Timeouts::default(), at(100));
        assert_eq!(watchdog.check(at(109), Activity::default()), Ok(at(110)));
        let late = watchdog.check(at(110), Activity::default());
        assert_eq!(late, Err(TimedOut::Hello));

        assert_eq!(watchdog.check(at(105), GREETED), Ok(at(705)));
        assert_eq!(watchdog.check(at(704), GREETED), Ok(at(705)));
        let asks = Activity {
            requests: 2,
            ..GREETED
        };
        assert_eq!(watchdog.check(at(704), asks), Ok(at(1304)));
        let waits = Activity {
            is_busy: true,
            ..asks
        };
        assert_eq!(watchdog.check(at(9000), waits), Ok(at(9600)));
        assert_eq!(watchdog.check(at(9600), asks), Err(TimedOut::Idle));
    }

    #[test]
    fn a_host_that_reads_no_answers_is_closed_and_a_slow_one_is_not() {
        let mut watchdog = Watchdog::new(Timeouts::default(), at(0));
        let mut activity = Activity {
            is_busy: true,
            is_stalled: true,
            ..GREETED
        };
        assert_eq!(watchdog.check(at(5), activity), Ok(at(35)));
        activity.moved = MOVED_BYTES_MIN;
        assert_eq!(watchdog.check(at(35), activity), Ok(at(65)));
        activity.moved += MOVED_BYTES_MIN - 1;
        assert_eq!(watchdog.check(at(64), activity), Ok(at(65)));
        let flows = Activity {
            is_stalled: false,
            ..activity
        };
        assert_eq!(watchdog.check(at(65), flows), Ok(at(665)));
        assert_eq!(watchdog.check(at(66), activity), Ok(at(96)));
        assert_eq!(watchdog.check(at(96), activity), Err(TimedOut::Stalled));
    }
}
