//! `rate`: limits requests and bytes per second.
//!
//! A request that comes too early is answered `Busy` and retried by its requester, so waiting
//! requests take no memory here and count against the limits of their connection.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Completion, OpKind, Request, Started};
use chain_policy::RateConfig;
use world::Clock;

use crate::Filter;

/// The unused share of this time may be used at once.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket. One request may be larger than the limit of a second: later requests then wait
/// longer.
#[derive(Debug)]
struct Bucket {
    per_second: u64,
    /// The time from which the next request may start, by the monotonic clock.
    paid: Duration,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        Self {
            per_second: per_second.max(1),
            paid: Duration::ZERO,
        }
    }

    /// The time until the next request may start.
    fn wait(&self, now: Duration) -> Duration {
        self.paid.saturating_sub(now)
    }

    fn take(&mut self, amount: u64, now: Duration) {
        let begin = self.paid.max(now.saturating_sub(BURST));
        self.paid = begin + Duration::from_secs_f64(amount as f64 / self.per_second as f64);
    }
}

/// The `rate` filter of a chain.
pub struct Rate {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    /// The earliest time at which a refused request may start.
    awaited: Option<Duration>,
    clock: Arc<dyn Clock>,
}

impl Rate {
    /// A filter with these limits.
    #[must_use]
    pub fn new(config: &RateConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            requests: config.iops.map(Bucket::new),
            bytes: config.bytes_per_second.map(Bucket::new),
            awaited: None,
            clock,
        }
    }

    /// Starts a request if the limits allow it now, and counts it once it is started. A request
    /// that moves no data (`bytes` is `None`) counts as a request only, and does not wait for the
    /// limit on bytes.
    fn pace(&mut self, bytes: Option<u64>, start: impl FnOnce() -> Started) -> Started {
        let now = self.clock.monotonic();
        let moved = self.bytes.as_ref().filter(|_| bytes.is_some());
        let waits = self
            .requests
            .iter()
            .chain(moved)
            .map(|limit| limit.wait(now));
        let wait = waits.max().unwrap_or_default();
        if !wait.is_zero() {
            let until = now + wait;
            self.awaited = Some(self.awaited.map_or(until, |other| other.min(until)));
            return Started::Busy;
        }
        let started = start();
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
            // Prefetched data is moved to this host, as data that is read.
            OpKind::Read | OpKind::Write | OpKind::Prefetch => Some(request.op.range().length),
            // These move no data.
            OpKind::Flush | OpKind::Trim | OpKind::WriteZeroes | OpKind::Extents => None,
        };
        self.pace(moved, || below.start(request))
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        self.awaited.map(|until| until.saturating_sub(now))
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        // The refused requests are retried after this.
        let now = self.clock.monotonic();
        self.awaited.take_if(|until| *until <= now);
        below.poll(completions);
    }
}

#[cfg(test)]
mod tests {
    use base::{Durability, Request};
    use testkit::memory_device::MemoryDevice;
    use world::Millis;
    use world::simulated::SimulatedClock;

    use super::*;

    fn limited(config: &RateConfig) -> (Rate, MemoryDevice, Arc<SimulatedClock>) {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        clock.advance(Duration::from_secs(1));
        let rate = Rate::new(config, Arc::clone(&clock) as Arc<dyn Clock>);
        (rate, MemoryDevice::new(1 << 20), clock)
    }

    /// The number of reads that complete in `time` at the highest rate.
    fn reads(config: &RateConfig, length: usize, time: Duration) -> u64 {
        let (mut rate, mut below, clock) = limited(config);
        let end = clock.monotonic() + time;
        let (mut done, mut out) = (0, vec![0; length]);
        while clock.monotonic() < end {
            match rate.start(&mut below, Request::read(1, 0, &mut out)) {
                Started::Done => done += 1,
                Started::Busy => {
                    let wait = rate.next_timer().expect("a request waits");
                    assert!(!wait.is_zero(), "it would be retried forever");
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
    fn requests_and_bytes_per_second_are_limited() {
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
        // A request that is larger than the limit of a second passes, and later ones wait longer.
        let one = RateConfig {
            iops: None,
            bytes_per_second: Some(1 << 19),
        };
        // The burst of a tenth of a second adds one.
        assert_eq!(reads(&one, 1 << 20, time), 6);
    }

    /// Requests that move no data passed without a limit.
    #[test]
    fn requests_that_move_no_data_count_as_requests() {
        let config = RateConfig {
            iops: Some(100),
            bytes_per_second: Some(1 << 20),
        };
        type Start = fn(&mut Rate, &mut MemoryDevice) -> Started;
        let starts: [(Start, u64); 3] = [
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
        for (start, per_second) in starts {
            let (mut rate, mut below, clock) = limited(&config);
            // The burst comes on top.
            let end = clock.monotonic() + Duration::from_secs(10);
            let mut done = 0;
            while clock.monotonic() < end {
                match start(&mut rate, &mut below) {
                    Started::Done | Started::Pending => done += 1,
                    Started::Busy => {
                        let wait = rate.next_timer().expect("a request waits");
                        assert!(!wait.is_zero(), "it would be retried forever");
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

    /// A hot swap begins with a flush, and fails after ten seconds.
    #[test]
    fn a_flush_does_not_wait_for_the_limit_on_bytes() {
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
    fn unlimited_and_failed_requests_do_not_wait() {
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
