//! `rate`: so many requests, and so many bytes, a second.
//!
//! What comes too early is answered `Busy`, and offered again when it may begin: so it
//! waits where it is counted, and takes no memory here.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, Started, Token, ZeroMode};
use policy::RateConfig;
use world::Clock;

use crate::MiddleBox;

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
    /// Something waits.
    is_awaited: bool,
    clock: Arc<dyn Clock>,
}

impl Rate {
    /// With these limits, from now on.
    #[must_use]
    pub fn new(config: &RateConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            requests: config.iops.map(Bucket::new),
            bytes: config.bytes_per_second.map(Bucket::new),
            is_awaited: false,
            clock,
        }
    }

    fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.requests.iter().chain(&self.bytes)
    }

    /// Asks below, if that may be now; what is begun there counts.
    fn pace(&mut self, bytes: u64, ask: impl FnOnce() -> Started) -> Started {
        let now = self.clock.monotonic();
        if self.buckets().any(|bucket| !bucket.wait(now).is_zero()) {
            self.is_awaited = true;
            return Started::Busy;
        }
        let started = ask();
        if matches!(started, Started::Done | Started::Pending) {
            if let Some(requests) = &mut self.requests {
                requests.take(1, now);
            }
            if let Some(moved) = &mut self.bytes {
                moved.take(bytes, now);
            }
        }
        started
    }
}

impl MiddleBox for Rate {
    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Started {
        self.pace(out.len() as u64, || below.read(token, offset, out))
    }

    fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Started {
        self.pace(data.len() as u64, || {
            below.write(token, offset, data, durability)
        })
    }

    // Of what moves no data the request alone counts.

    fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Started {
        self.pace(0, || below.trim(token, offset, length, durability))
    }

    fn write_zeroes(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        mode: ZeroMode,
    ) -> Started {
        self.pace(0, || below.write_zeroes(token, offset, length, mode))
    }

    fn next_timer(&self) -> Option<Duration> {
        if !self.is_awaited {
            return None;
        }
        let now = self.clock.monotonic();
        self.buckets().map(|bucket| bucket.wait(now)).max()
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        // Whoever was refused offers it again after this.
        let now = self.clock.monotonic();
        if self.buckets().all(|bucket| bucket.wait(now).is_zero()) {
            self.is_awaited = false;
        }
        below.poll(completions);
    }
}

#[cfg(test)]
mod tests {
    use base::BlockDevice as _;
    use frontend::memory::MemoryDevice;
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
            match rate.read(&mut below, 1, 0, &mut out) {
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

    #[test]
    fn what_is_not_limited_does_not_wait() {
        let (mut rate, mut below, _) = limited(&RateConfig::default());
        for _ in 0..1000 {
            let written = rate.write(&mut below, 1, 0, &[1; 512], Durability::Volatile);
            assert_eq!(written, Started::Done);
        }
        assert_eq!(rate.next_timer(), None);
        // A request that failed below costs nothing.
        let (mut rate, mut below, _) = limited(&RateConfig {
            iops: Some(1),
            bytes_per_second: None,
        });
        for _ in 0..3 {
            let failed = rate.read(&mut below, 1, 1 << 20, &mut [0; 512]);
            assert!(matches!(failed, Started::Failed(_)), "{failed:?}");
        }
        assert_eq!(below.geometry().size_bytes, 1 << 20);
    }
}
