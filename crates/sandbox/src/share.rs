//! [`Throttle`]: holds a process to its share of a core: stops it when it has had that, and
//! lets it go on. It needs no privilege and no control group.
//!
//! What it does is decided by [`Share`], of two numbers, and done elsewhere.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use world::real::{Bell, Poller};
use world::{Clock, Interest};

/// How often it is looked at whether a process has had its share.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A process may use at once what it did not use of so long.
const BURST: Duration = Duration::from_millis(200);

/// How much of a core a process has had, and may have.
///
/// Invariant: what it uses in any time is at most its share of that, of [`BURST`], and of what
/// passes between two looks.
struct Share {
    percent: u32,
    /// What it had used at a moment: its share is counted from there.
    from: (Duration, Duration),
}

impl Share {
    fn new(percent: u32, now: Duration) -> Self {
        Self {
            percent,
            from: (now, Duration::ZERO),
        }
    }

    fn of(&self, time: Duration) -> Duration {
        time * self.percent / 100
    }

    /// Whether it has had too much, if it has used so much by now, and is to stop.
    fn is_used_up(&mut self, now: Duration, used: Duration) -> bool {
        let may = self.of(now.saturating_sub(self.from.0)) + self.of(BURST);
        let had = used.saturating_sub(self.from.1);
        if had + self.of(BURST) < may {
            // What it does not use it does not save.
            self.from = (now, used);
        }
        had > may
    }
}

/// See the module's head.
pub(crate) struct Throttle {
    pid: Pid,
    percent: u32,
    clock: Arc<dyn Clock>,
}

impl Throttle {
    /// Begins to hold a process, until what is returned is rung or it has ended.
    pub fn start(pid: Pid, percent: u32, clock: Arc<dyn Clock>) -> io::Result<Bell> {
        let (bell, poller) = (Bell::new()?, Poller::new()?);
        poller.add(&bell, 0, Interest::READABLE)?;
        let own = bell.clone();
        let throttle = Self {
            pid,
            percent,
            clock,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the process: no job for a pool"
        )]
        std::thread::Builder::new()
            .name("filter-share".to_owned())
            .spawn(move || throttle.hold(&poller, own))?;
        Ok(bell)
    }

    /// Until `bell` is rung, or the process has ended.
    fn hold(&self, poller: &Poller, bell: Bell) {
        let mut share = Share::new(self.percent, self.clock.monotonic());
        let mut is_stopped = false;
        let mut rung = Vec::new();
        while rung.is_empty() {
            let Some(used) = cpu_time(self.pid) else {
                return;
            };
            let has_too_much = share.is_used_up(self.clock.monotonic(), used);
            if has_too_much != is_stopped {
                let signal = if has_too_much {
                    Signal::STOP
                } else {
                    Signal::CONT
                };
                is_stopped = has_too_much;
                if kill_process(self.pid, signal).is_err() {
                    return;
                }
            }
            if poller.wait(Some(LOOK_EVERY), &mut rung).is_err() {
                return;
            }
        }
        drop(bell);
    }
}

/// What a process has used of all cores so far.
fn cpu_time(pid: Pid) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: it writes one number, into a local.
    let found = unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) };
    if found != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes one time, into a local.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (read == 0).then(|| {
        let seconds = Duration::from_secs(time.tv_sec.cast_unsigned());
        seconds + Duration::from_nanos(time.tv_nsec.cast_unsigned())
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use world::real::RealClock;

    use super::*;

    /// A process that uses so many cores while it is let, looked at for `time`: what it uses.
    fn use_of(share: &mut Share, cores: u32, from: Duration, time: Duration) -> Duration {
        let (mut now, mut used) = (from, share.from.1);
        while now < from + time {
            let is_stopped = share.is_used_up(now, used);
            now += LOOK_EVERY;
            used += if is_stopped {
                Duration::ZERO
            } else {
                LOOK_EVERY * cores
            };
        }
        used
    }

    #[test]
    fn a_busy_process_has_its_share_and_no_more() {
        let time = Duration::from_secs(100);
        for (percent, cores) in [(1, 1), (10, 1), (50, 2), (99, 1), (150, 4), (300, 8)] {
            let mut share = Share::new(percent, Duration::ZERO);
            let used = use_of(&mut share, cores, Duration::ZERO, time);
            let (least, most) = (
                time * percent / 100,
                share.of(time + BURST) + LOOK_EVERY * cores,
            );
            assert!(
                (least..=most).contains(&used),
                "{percent} %, {cores} cores: {used:?}"
            );
        }
        // What is within its share is not stopped at all.
        let mut share = Share::new(200, Duration::ZERO);
        assert_eq!(use_of(&mut share, 2, Duration::ZERO, time), time * 2);
    }

    #[test]
    fn what_was_not_used_for_long_is_not_saved() {
        let mut share = Share::new(10, Duration::ZERO);
        let idle = Duration::from_secs(3600);
        let mut now = Duration::ZERO;
        while now < idle {
            assert!(!share.is_used_up(now, Duration::ZERO));
            now += LOOK_EVERY;
        }
        let time = Duration::from_secs(10);
        let used = use_of(&mut share, 1, now, time);
        // A burst was there before, and another one is while it counts from then on.
        let most = share.of(time + 2 * BURST) + 2 * LOOK_EVERY;
        assert!(used <= most, "{used:?}");
    }

    struct Busy(Child);

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.kill().expect("it runs");
            self.0.wait().expect("it ends");
        }
    }

    /// The kernel's own count is what is held against the share. How fast the machine is, and
    /// what else it does, is of no account: the process can only have less.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "what the kernel says of a process is no file of a disk"
    )]
    fn a_process_that_never_rests_is_stopped_and_goes_on_again() {
        let spinning = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let busy = Busy(spinning.expect("there is a shell"));
        let pid = Pid::from_raw(busy.0.id().cast_signed()).expect("a process");
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let bell = Throttle::start(pid, 10, clock).expect("a thread");
        let is_stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", busy.0.id()));
            let stat = stat.expect("it runs");
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('T'))
        };
        for _ in 0..3 {
            while !is_stopped() {
                std::thread::yield_now();
            }
            let used = cpu_time(pid).expect("it runs");
            while cpu_time(pid).expect("it runs") == used {
                std::thread::yield_now();
            }
        }
        bell.ring();
    }
}
