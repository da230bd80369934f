//! What every part of an agent is given: the host that it runs on ([`HostContext`]), the word that
//! it is to end ([`Shutdown`]), and threads for what waits ([`blocking`]).
//!
//! Must not know: any part of the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::ClusterId;
use tokio::runtime::Handle;
use world::World;

use crate::folder::Folder;
use crate::unit_owner::UnitOwner;

/// The host, and the cluster that it belongs to. None of it changes while the agent runs.
pub(crate) struct HostContext {
    pub world: World,
    /// Waits for the answers of units that have no thread of their own.
    pub runtime: Handle,
    /// D, locked.
    pub folder: Folder,
    pub cluster: ClusterId,
    /// The owner in whose name this host uses units.
    pub owner: UnitOwner,
}

/// Whether the agent is ending: no more volumes are opened, and no call is repeated. Clones share
/// the answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown(Arc<AtomicBool>);

impl Shutdown {
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A task ended before its time.
#[derive(Debug, thiserror::Error)]
#[error("a task ended before its time: {0}; see the log")]
pub struct TaskEnded(#[from] tokio::task::JoinError);

/// Runs `work` on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TaskEnded> {
    Ok(tokio::task::spawn_blocking(work).await?)
}
