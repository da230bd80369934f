//! `rate`: so many requests, and so many bytes, a second.
//!
//! What comes too early is answered `Busy`, and offered again when it may begin: so it
//! waits where it is counted, and takes no memory here.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Completion, OpKind, Request, Started};
use chain_policy::RateConfig;
use world::Clock;

use crate::Filter;

/// What was not used of so long may be used at once.
const BURST: Duration = Duration::from_millis(100);

/// Lets so much through a second. One request may be larger than that: what comes after
/// it pays.
#[derive(Debug)]
struct Bucket {
    per_second: u64,
    /// All that was let through is paid for then, by the monotonic clock.
    paid: Duration,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        Self {
            per_second: per_second.max(1),
            paid: Duration::ZERO,
        }
    }

    /// How long until more may come.
    fn wait(&self, now: Duration) -> Duration {
        self.paid.saturating_sub(now)
    }

    fn take(&mut self, amount: u64, now: Duration) {
        let begin = self.paid.max(now.saturating_sub(BURST));
        self.paid = begin + Duration::from_secs_f64(amount as f64 / self.per_second as f64);
    }
}

/// See the module's head.
pub struct Rate {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    /// Something waits until then.
    awaited: Option<Duration>,
    clock: Arc<dyn Clock>,
}

impl Rate {
    /// With these limits, from now on.
    #[must_use]
    pub fn new(config: &RateConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            requests: config.iops.map(Bucket::new),
            bytes: config.bytes_per_second.map(Bucket::new),
            awaited: None,
            clock,
        }
    }

    /// Asks below, if that may be now; what is begun there counts. Of one that moves nothing
    /// the request alone counts, and it does not pay for what others have moved.
    fn pace(&mut self, bytes: Option<u64>, ask: impl FnOnce() -> Started) -> Started {
        let now = self.clock.monotonic();
        let moved = self.bytes.as_ref().filter(|_| bytes.is_some());
        let waits = self.requests.iter().chain(moved).map(|one| one.wait(now));
        let wait = waits.max().unwrap_or_default();
        if !wait.is_zero() {
            let until = now + wait;
            self.awaited = Some(self.awaited.map_or(until, |other| other.min(until)));
            return Started::Busy;
        }
        let started = ask();
        if matches!(started, Started::Done | Started::Pending) {
            if let Some(requests) = &mut self.requests {
                requests.take(1, now);
            }
            if let (Some(moved), Some(bytes)) = (&mut self.bytes, bytes) {
                moved.take(bytes, now);
            }
        }
        started
    }
}

impl Filter for Rate {
    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let moved = match request.op.kind() {
            // What is prefetched is moved to this host, as what is read.
            OpKind::Read | OpKind::Write | OpKind::Prefetch => Some(request.op.range().length),
            // Of what moves no data the request alone counts.
            OpKind::Flush | OpKind::Trim | OpKind::WriteZeroes | OpKind::Extents => None,
        };
        self.pace(moved, || below.start(request))
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        self.awaited.map(|until| until.saturating_sub(now))
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        // Whoever was refused offers it again after this.
        let now = self.clock.monotonic();
        self.awaited.take_if(|until| *until <= now);
        below.poll(completions);
    }
}

#[cfg(test)]
mod tests {
    use base::{Durability, Request};
    use nbd::memory::MemoryDevice;
    use world::Millis;
    use world::simulated::SimulatedClock;

    use super::*;

    fn limited(config: &RateConfig) -> (Rate, MemoryDevice, Arc<SimulatedClock>) {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        clock.advance(Duration::from_secs(1));
        let rate = Rate::new(config, Arc::clone(&clock) as Arc<dyn Clock>);
        (rate, MemoryDevice::new(1 << 20), clock)
    }

    /// Asks as fast as may be for `time`; how often it was done.
    fn reads(config: &RateConfig, length: usize, time: Duration) -> u64 {
        let (mut rate, mut below, clock) = limited(config);
        let end = clock.monotonic() + time;
        let (mut done, mut out) = (0, vec![0; length]);
        while clock.monotonic() < end {
            match rate.start(&mut below, Request::read(1, 0, &mut out)) {
                Started::Done => done += 1,
                Started::Busy => {
                    let wait = rate.next_timer().expect("something waits");
                    assert!(!wait.is_zero(), "it would be asked for ever");
                    clock.advance(wait);
                    rate.poll(&mut below, &mut Vec::new());
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(below.calls.read_bytes, done * length as u64);
        done
    }

    #[test]
    fn so_many_requests_and_so_many_bytes_a_second_pass() {
        let time = Duration::from_secs(10);
        let iops = RateConfig {
            iops: Some(500),
            ..RateConfig::default()
        };
        let done = reads(&iops, 4096, time);
        assert!((5000..=5052).contains(&done), "{done}");
        let bytes = RateConfig {
            bytes_per_second: Some(1 << 20),
            ..iops.clone()
        };
        // 64 KiB each: 16 a second.
        let done = reads(&bytes, 65_536, time);
        assert!((160..=164).contains(&done), "{done}");
        // One that is larger than a second's worth is let through, and paid for.
        let one = RateConfig {
            iops: None,
            bytes_per_second: Some(1 << 19),
        };
        // A tenth of a second's worth comes on top.
        assert_eq!(reads(&one, 1 << 20, time), 6);
    }

    /// They passed at once, and as many as anybody asked for.
    #[test]
    fn what_moves_nothing_is_a_request_too() {
        let config = RateConfig {
            iops: Some(100),
            bytes_per_second: Some(1 << 20),
        };
        type Ask = fn(&mut Rate, &mut MemoryDevice) -> Started;
        let asks: [(Ask, u64); 3] = [
            (|rate, below| rate.start(below, Request::flush(1)), 100),
            (
                |rate, below| rate.start(below, Request::extents(1, 0, 4096, &mut Vec::new())),
                100,
            ),
            (
                |rate, below| rate.start(below, Request::prefetch(1, 0, 65_536)),
                16,
            ),
        ];
        for (ask, per_second) in asks {
            let (mut rate, mut below, clock) = limited(&config);
            // A burst is paid for first.
            let end = clock.monotonic() + Duration::from_secs(10);
            let mut done = 0;
            while clock.monotonic() < end {
                match ask(&mut rate, &mut below) {
                    Started::Done | Started::Pending => done += 1,
                    Started::Busy => {
                        let wait = rate.next_timer().expect("something waits");
                        assert!(!wait.is_zero(), "it would be asked for ever");
                        clock.advance(wait);
                        rate.poll(&mut below, &mut Vec::new());
                    }
                    other => panic!("{other:?}"),
                }
            }
            let most = per_second * 10 + per_second / 10 + 2;
            assert!((per_second * 10..=most).contains(&done), "{done}");
        }
    }

    /// A hot swap of filters begins with one, and takes no longer than ten seconds.
    #[test]
    fn a_flush_does_not_wait_for_what_others_have_moved() {
        let (mut rate, mut below, _) = limited(&RateConfig {
            iops: None,
            bytes_per_second: Some(1),
        });
        let read = rate.start(&mut below, Request::read(1, 0, &mut [0; 4096]));
        assert_eq!(read, Started::Done);
        assert_eq!(
            rate.start(&mut below, Request::read(1, 0, &mut [0; 1])),
            Started::Busy
        );
        assert_eq!(rate.start(&mut below, Request::flush(1)), Started::Done);
    }

    #[test]
    fn what_is_not_limited_does_not_wait() {
        let (mut rate, mut below, _) = limited(&RateConfig::default());
        for _ in 0..1000 {
            let written = rate.start(
                &mut below,
                Request::write(1, 0, &[1; 512], Durability::Volatile),
            );
            assert_eq!(written, Started::Done);
        }
        assert_eq!(rate.next_timer(), None);
        // A request that failed below costs nothing.
        let (mut rate, mut below, _) = limited(&RateConfig {
            iops: Some(1),
            bytes_per_second: None,
        });
        for _ in 0..3 {
            let failed = rate.start(&mut below, Request::read(1, 1 << 20, &mut [0; 512]));
            assert!(matches!(failed, Started::Failed(_)), "{failed:?}");
        }
        assert_eq!(below.geometry().size_bytes, 1 << 20);
    }
}
