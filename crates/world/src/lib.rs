//! The world outside the program, as a parameter.
//!
//! All code reaches files, time, randomness, threads and sockets through this crate, so that the
//! simulator can run the same engine in a simulated world: one thread, one seed, and a disk that
//! tears and reorders what was not synced. `clippy.toml` refuses the calls that bypass this crate
//! and names the replacement; ARCHITECTURE.md lists the exceptions.
//!
//! * [`Disk`] and [`File`]: about a dozen file operations, of [`real::RealDisk`] or
//!   [`simulated::SimulatedDisk`].
//! * [`Clock`], [`Random`]: the time, and random bytes.
//! * [`Pool`]: threads for work that waits. [`Wake`] wakes an event loop when such work has ended.
//! * [`real`]: also sockets and the poller, which have no simulated counterpart: the simulator
//!   drives protocols as state machines.
//! * [`host`]: calls that are never simulated.
//!
//! Only this crate, `rados` (which calls a library in C) and `sandbox` have `unsafe` code.

mod buffer;
mod clock;
mod disk;
pub mod host;
mod net;
mod parallel;
mod pool;
mod random;
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub mod real;
mod rolling;
pub mod simulated;
mod subfolder;
mod wake;

pub use buffer::PageBuffer;
pub use clock::{Clock, Millis};
pub use disk::{
    DirectoryEntry, Disk, File, OpenMode, Space, WrongKind, is_out_of_files, is_out_of_space,
};
pub use net::{Endpoint, Interest, Ready};
pub use parallel::{parallel, parallel_with_timeout};
pub use pool::{Job, Pool};
pub use random::Random;
pub use rolling::RollingFile;
use subfolder::SubfolderDisk;
pub use wake::Wake;

use std::sync::Arc;

/// The world that code runs in, cheap to clone.
#[derive(Clone)]
pub struct World {
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The source of random bytes.
    pub random: Arc<dyn Random>,
    /// The threads for work that waits.
    pub pool: Arc<dyn Pool>,
}

impl World {
    /// The machine on which this program runs, with at most `threads` threads in the pool.
    #[must_use]
    pub fn real(threads: usize) -> Self {
        Self {
            disk: Arc::new(real::RealDisk),
            clock: Arc::new(real::RealClock::new()),
            random: Arc::new(real::RealRandom),
            pool: Arc::new(real::ThreadPool::new(threads)),
        }
    }
}
