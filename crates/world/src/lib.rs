//! Floor 1: the world outside the program, as a parameter.
//!
//! Files, time, randomness, threads and sockets come through here, so that the
//! simulator can run the same engine on a world of its own: one thread, one
//! seed, a disk that tears and reorders what was not synced. `clippy.toml`
//! names the seam at the calls that are written past it most easily;
//! ARCHITECTURE.md says who else asks the operating system, and what for.
//!
//! * [`Disk`] and [`File`]: about a dozen file operations. [`real::RealDisk`]
//!   or [`simulated::SimulatedDisk`].
//! * [`Clock`], [`Random`]: what time it is, and bytes nobody can guess.
//! * [`Pool`]: threads for work that waits. [`Wake`] tells an owner's loop
//!   that such work has ended.
//! * [`host`]: what no simulator is ever asked.
//!
//! With `rados`, which calls a library in C, the only crate with `unsafe` code.

mod below;
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
mod wake;

use below::Below;
pub use buffer::PageBuffer;
pub use clock::{Clock, Millis};
pub use disk::{DirectoryEntry, Disk, File, OpenMode, Space, WrongKind, is_out_of_files};
pub use net::{Endpoint, Interest, Ready};
pub use parallel::{parallel, parallel_within};
pub use pool::{Job, Pool};
pub use random::Random;
pub use rolling::RollingFile;
pub use wake::Wake;

use std::sync::Arc;

/// One world, cheap to clone.
#[derive(Clone)]
pub struct World {
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Threads.
    pub pool: Arc<dyn Pool>,
}

impl World {
    /// The machine this program runs on, with `threads` threads for waiting
    /// work.
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
