//! Threads for work that waits: file I/O that misses the page cache, syncs,
//! whole destages.

/// A piece of work. It reports its end by itself, through a channel and a
/// [`crate::Wake`].
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs somewhere else, in any order, several at once.
///
/// In the simulator "somewhere else" is later on the same thread, in an order
/// the seed chooses: so a job must not wait for another job.
pub trait Pool: Send + Sync {
    /// Runs `job` soon. A pool that is shutting down drops it unrun.
    fn run(&self, job: Job);

    /// Whether it runs jobs while whoever handed them in waits: not in the
    /// simulator.
    fn has_threads(&self) -> bool {
        false
    }
}
