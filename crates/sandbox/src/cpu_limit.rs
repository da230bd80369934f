//! [`CpuThrottle`]: limits the CPU time of a process. It stops the process when that has used its
//! share, and continues it later. It needs neither privileges nor a control group.
//!
//! [`CpuShare`] decides from two numbers whether the process has to stop; [`CpuThrottle`] acts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use world::real::{Poller, Waker};
use world::{Clock, Interest};

/// How often the CPU time of a process is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The time whose unused share a process may use later.
const BURST: Duration = Duration::from_millis(200);

/// The CPU time that a process has used and may use.
///
/// Invariant: within any time t, the process uses at most its share of t + [`BURST`] +
/// [`CHECK_INTERVAL`].
struct CpuShare {
    /// The share, in percent of one core.
    percent: u32,
    /// The moment from which the share is counted.
    since: Duration,
    /// The CPU time that the process had used at that moment.
    used_before: Duration,
}

impl CpuShare {
    fn new(percent: u32, now: Duration) -> Self {
        Self {
            percent,
            since: now,
            used_before: Duration::ZERO,
        }
    }

    /// The process's share of some time.
    fn of(&self, time: Duration) -> Duration {
        time * self.percent / 100
    }

    /// Whether a process that has used this CPU time by now has to stop.
    fn is_used_up(&mut self, now: Duration, used: Duration) -> bool {
        let allowed = self.of(now.saturating_sub(self.since)) + self.of(BURST);
        let used_since = used.saturating_sub(self.used_before);
        if used_since + self.of(BURST) < allowed {
            // An unused share is lost after the burst time.
            (self.since, self.used_before) = (now, used);
        }
        used_since > allowed
    }
}

/// A limit on the CPU time of one process.
pub(crate) struct CpuThrottle {
    pid: Pid,
    percent: u32,
    clock: Arc<dyn Clock>,
}

impl CpuThrottle {
    /// Limits a process to `percent` of one core, until the returned waker is used or the process
    /// has ended.
    pub fn start(pid: Pid, percent: u32, clock: Arc<dyn Clock>) -> io::Result<Waker> {
        let (waker, poller) = (Waker::new()?, Poller::new()?);
        poller.add(&waker, 0, Interest::READABLE)?;
        let own = waker.clone();
        let throttle = Self {
            pid,
            percent,
            clock,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread lives as long as the process, which is too long for a pool"
        )]
        std::thread::Builder::new()
            .name("filter-cpu".to_owned())
            .spawn(move || throttle.run(&poller, own))?;
        Ok(waker)
    }

    /// Limits the process until `waker` is used or the process has ended.
    fn run(&self, poller: &Poller, waker: Waker) {
        let mut share = CpuShare::new(self.percent, self.clock.monotonic());
        let mut is_stopped = false;
        let mut ready = Vec::new();
        while ready.is_empty() {
            let Some(used) = cpu_time(self.pid) else {
                return;
            };
            let has_to_stop = share.is_used_up(self.clock.monotonic(), used);
            if has_to_stop != is_stopped {
                let signal = if has_to_stop {
                    Signal::STOP
                } else {
                    Signal::CONT
                };
                is_stopped = has_to_stop;
                if kill_process(self.pid, signal).is_err() {
                    return;
                }
            }
            if poller.wait(Some(CHECK_INTERVAL), &mut ready).is_err() {
                return;
            }
        }
        drop(waker);
    }
}

/// The CPU time that a process has used on all cores; `None` if it has ended.
fn cpu_time(pid: Pid) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: the call writes one number, to a local variable.
    let found = unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) };
    if found != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one time, to a local variable.
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

    /// The CPU time that a process uses within `time` if it uses `cores` cores whenever it is not
    /// stopped.
    fn use_of(share: &mut CpuShare, cores: u32, from: Duration, time: Duration) -> Duration {
        let (mut now, mut used) = (from, share.used_before);
        while now < from + time {
            let is_stopped = share.is_used_up(now, used);
            now += CHECK_INTERVAL;
            used += if is_stopped {
                Duration::ZERO
            } else {
                CHECK_INTERVAL * cores
            };
        }
        used
    }

    #[test]
    fn a_busy_process_gets_its_share_and_no_more() {
        let time = Duration::from_secs(100);
        for (percent, cores) in [(1, 1), (10, 1), (50, 2), (99, 1), (150, 4), (300, 8)] {
            let mut share = CpuShare::new(percent, Duration::ZERO);
            let used = use_of(&mut share, cores, Duration::ZERO, time);
            let (least, most) = (
                time * percent / 100,
                share.of(time + BURST) + CHECK_INTERVAL * cores,
            );
            assert!(
                (least..=most).contains(&used),
                "{percent} %, {cores} cores: {used:?}"
            );
        }
        // A process within its share is never stopped.
        let mut share = CpuShare::new(200, Duration::ZERO);
        assert_eq!(use_of(&mut share, 2, Duration::ZERO, time), time * 2);
    }

    #[test]
    fn a_share_that_was_not_used_for_long_is_not_saved() {
        let mut share = CpuShare::new(10, Duration::ZERO);
        let idle = Duration::from_secs(3600);
        let mut now = Duration::ZERO;
        while now < idle {
            assert!(!share.is_used_up(now, Duration::ZERO));
            now += CHECK_INTERVAL;
        }
        let time = Duration::from_secs(10);
        let used = use_of(&mut share, 1, now, time);
        // One burst is left from before, and a second one counts from now on.
        let most = share.of(time + 2 * BURST) + 2 * CHECK_INTERVAL;
        assert!(used <= most, "{used:?}");
    }

    struct Busy(Child);

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.kill().expect("it runs");
            self.0.wait().expect("it ends");
        }
    }

    /// The throttle uses the kernel's count of CPU time. A slow or busy machine can only give the
    /// process less.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the files of /proc are not on a simulated disk"
    )]
    fn a_busy_process_is_stopped_and_continued() {
        let spinning = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let busy = Busy(spinning.expect("there is a shell"));
        let pid = Pid::from_raw(busy.0.id().cast_signed()).expect("a process");
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let waker = CpuThrottle::start(pid, 10, clock).expect("a thread");
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
        waker.wake();
    }
}
