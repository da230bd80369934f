//! [`Program`]: the process, or remote service, that does an out-of-process filter's work.

use chain_policy::FilterPolicy;

use crate::{FilterContext, PendingQueue, RemoteDisk};

/// A filter's program across its restarts. As a disk it is what the program makes of the disk
/// below, which the program reaches through the [`PendingQueue`] that it was made with.
///
/// [`RemoteDisk::link_state`] is `Connecting` from a launch until the program is ready, and
/// `Broken` before the first launch and after the program has ended or violated the protocol.
/// Requests without an answer, and changes that no flush has covered, are replayed in order once it
/// is `Ready` again.
pub trait Program: RemoteDisk {
    /// Stops the running program, if any, and launches it again. Does not wait.
    fn launch(&mut self);

    /// Stops the running program. From now on requests go to the queue unchanged.
    fn bypass(&mut self);

    /// Stops the running program and fails the requests that it did not answer. Acknowledged
    /// changes that no flush has covered are kept for the next launch.
    fn give_up(&mut self, why: &str);
}

/// Makes the programs of out-of-process filters.
pub trait Programs: Send + Sync {
    /// Makes a filter's program, not launched yet. Its requests to the disk below go to `queue`.
    ///
    /// # Errors
    /// The reason why it cannot be made, for people.
    fn program(
        &self,
        of: &FilterPolicy,
        context: &FilterContext,
        queue: PendingQueue,
    ) -> Result<Box<dyn Program>, String>;
}

/// Refuses every program.
pub struct NoPrograms;

impl Programs for NoPrograms {
    fn program(
        &self,
        of: &FilterPolicy,
        _: &FilterContext,
        _: PendingQueue,
    ) -> Result<Box<dyn Program>, String> {
        Err(format!("the filter {} can only run inline here", of.name))
    }
}
