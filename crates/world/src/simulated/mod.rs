//! The simulated world, which one seed determines: a disk that loses what was not synced, a clock
//! that the driver advances, random numbers that repeat, and jobs that run when the driver says
//! so.
//!
//! ```text
//!  Simulation ── disk ───── processes start and end, the machine crashes
//!             ├─ clock ──── stands still until it is advanced
//!             ├─ random ─── the driver's; every world has a stream of its own
//!             └─ pool ───── jobs wait for `run_one`; some may run immediately
//! ```
//!
//! The life of a test:
//!
//! 1. seed      `Simulation::new(seed)`
//! 2. run       the code under test on `world()`
//! 3. fail      `crash()` (the machine) or `kill()` (the process)
//! 4. restart   on a new `world()`, which sees what survived
//! 5. check     against what was promised before
//!
//! Must not know: what runs in the world. It uses nothing of the operating system except memory,
//! and all its choices follow from the seed, so a failing seed fails again.

mod clock;
mod content;
mod disk;
mod fault;
mod pool;
mod random;
#[cfg(test)]
mod tests;
mod tree;

pub use clock::SimulatedClock;
pub use disk::SimulatedDisk;
pub use fault::Fault;
pub use pool::SimulatedPool;
pub use random::SimulatedRandom;

use std::sync::Arc;

use crate::World;

/// A simulated machine and the process that runs on it.
pub struct Simulation {
    /// The disk, as the current process sees it.
    pub disk: Arc<SimulatedDisk>,
    /// The clocks.
    pub clock: Arc<SimulatedClock>,
    /// The driver's randomness.
    pub random: Arc<SimulatedRandom>,
    /// The current process's jobs.
    pub pool: Arc<SimulatedPool>,
}

impl Simulation {
    /// A machine with an empty disk. Everything follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = SimulatedRandom::new(seed);
        Self {
            disk: Arc::new(SimulatedDisk::new(random.next())),
            clock: Arc::default(),
            random: Arc::new(random),
            pool: Arc::default(),
        }
    }

    /// Another machine on the same disk. Its clock shows the same time now and advances on its
    /// own. A crash of one machine is a crash of both, since they share the disk.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self {
            disk: Arc::new(self.disk.spawn()),
            clock: Arc::new(self.clock.copy()),
            random: Arc::new(self.random.split()),
            pool: Arc::default(),
        }
    }

    /// The world of the current process.
    #[must_use]
    pub fn world(&self) -> World {
        let disk: Arc<SimulatedDisk> = Arc::clone(&self.disk);
        World {
            disk,
            clock: Arc::clone(&self.clock) as _,
            random: Arc::new(self.random.split()),
            pool: Arc::clone(&self.pool) as _,
        }
    }

    /// Lets the machine lose power and boot. Earlier worlds are dead, and a new
    /// [`Simulation::world`] sees what survived.
    pub fn crash(&mut self) {
        self.disk.crash(&self.random);
        self.restart();
    }

    /// Kills the process and starts another. All its writes are still there.
    pub fn kill(&mut self) {
        self.disk.kill();
        self.restart();
    }

    /// Restarts this machine after `other`, on the same disk, has crashed and booted.
    pub fn restart_beside(&mut self, other: &Self) {
        self.pool.close();
        self.pool = Arc::new(self.pool.next());
        self.disk = Arc::new(other.disk.spawn());
    }

    fn restart(&mut self) {
        self.pool.close();
        self.pool = Arc::new(self.pool.next());
        self.disk = Arc::new(self.disk.spawn());
    }
}
