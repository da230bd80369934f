//! [`Pool`]: threads for work that waits, such as file I/O that misses the page cache, syncs and
//! whole destages.

/// A piece of work. It reports its end itself, through a channel and a [`crate::Wake`].
pub type Job = Box<dyn FnOnce() + Send>;

/// A pool that runs jobs on other threads, in any order, several at once.
///
/// The simulated pool runs them later on the same thread, in an order that the seed chooses. So a
/// job must not wait for another job.
pub trait Pool: Send + Sync {
    /// Runs `job` soon. A pool that is shutting down drops the job.
    fn run(&self, job: Job);

    /// Whether jobs run while the calling thread waits. This is false in the simulator.
    fn has_threads(&self) -> bool {
        false
    }
}
