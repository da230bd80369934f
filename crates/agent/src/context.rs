//! What every part of an agent needs: the host that it runs on ([`HostContext`]), the signal to
//! shut down ([`Shutdown`]), and threads for calls that block ([`blocking`]).
//!
//! Must not know: any part of the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::ClusterId;
use tokio::runtime::Handle;
use world::World;

use crate::folder::Folder;
use crate::unit_owner::UnitOwner;

/// The host, and the cluster that it belongs to. It does not change while the agent runs.
pub(crate) struct HostContext {
    pub world: World,
    /// Runtime for units whose calls are asynchronous.
    pub runtime: Handle,
    /// The locked data directory.
    pub folder: Folder,
    pub cluster: ClusterId,
    /// The owner in whose name this host uses units.
    pub owner: UnitOwner,
}

/// Whether the agent is shutting down: then no volume is opened and no call is retried. Clones
/// share the state.
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

/// A background task panicked or was canceled.
#[derive(Debug, thiserror::Error)]
#[error("a background task failed: {0}; see the log")]
pub struct TaskFailed(#[from] tokio::task::JoinError);

/// Runs `work` on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TaskFailed> {
    Ok(tokio::task::spawn_blocking(work).await?)
}
