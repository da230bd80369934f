//! [`FilterBackend`]: the process, or remote service, that does an out-of-process filter's work.

use chain_policy::FilterPolicy;

use crate::{FilterContext, PendingQueue, RemoteDisk};

/// A filter's backend across its restarts. As a disk it is what the backend makes of the disk
/// below, which the backend reaches through the [`PendingQueue`] that it was made with.
///
/// [`RemoteDisk::link_state`] is `Connecting` from a launch until the backend is ready, and `Broken`
/// before the first launch and after the backend has ended or violated the protocol. Requests
/// without an answer, and changes that no flush has covered, are replayed in order once it is
/// `Ready` again.
pub trait FilterBackend: RemoteDisk {
    /// Stops the running backend, if any, and launches it again. Does not wait.
    fn launch(&mut self);

    /// Stops the running backend. From now on requests go to the queue unchanged.
    fn bypass(&mut self);

    /// Stops the running backend and fails the requests that it did not answer. Acknowledged
    /// changes that no flush has covered are kept for the next launch.
    fn give_up(&mut self, why: &str);
}

/// Makes the backends of out-of-process filters.
pub trait BackendFactory: Send + Sync {
    /// Makes a filter's backend, not launched yet. Its requests to the disk below go to `queue`.
    ///
    /// # Errors
    /// The reason why it cannot be made, for people.
    fn make(
        &self,
        of: &FilterPolicy,
        context: &FilterContext,
        queue: PendingQueue,
    ) -> Result<Box<dyn FilterBackend>, String>;
}

/// Refuses every backend.
pub struct NoBackends;

impl BackendFactory for NoBackends {
    fn make(
        &self,
        of: &FilterPolicy,
        _: &FilterContext,
        _: PendingQueue,
    ) -> Result<Box<dyn FilterBackend>, String> {
        Err(format!("the filter {} can only run inline here", of.name))
    }
}
