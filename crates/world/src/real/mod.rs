//! The real world: the machine on which this program runs.

mod disk;
mod folder;
mod limits;
mod net;
mod open_below;
mod poller;
mod pool;

pub use disk::RealDisk;
pub use limits::raise_open_files;
pub use net::{Listener, Stream};
pub(crate) use open_below::find_unfollowed;
pub use poller::{Poller, Waker};
pub use pool::ThreadPool;

use std::time::{Duration, Instant, SystemTime};

use crate::{Clock, Millis, Random};

/// The machine's clocks.
#[derive(Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock whose monotonic time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> Millis {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
            Err(before) => {
                Millis(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX))
            }
        }
    }
}

/// The kernel's random numbers.
#[derive(Debug)]
pub struct RealRandom;

impl Random for RealRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(
                &mut bytes[filled..],
                rustix::rand::GetRandomFlags::empty(),
            ) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random numbers: {error}"),
            }
        }
    }
}
