//! [`RemoteDisk`]: a disk other than the one below the chain, which a filter reads and writes, and
//! [`Targets`], which opens such disks.

use base::BlockDevice;
use chain_policy::ReplicaLocation;

/// The state of the connection to a remote disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// The connection is being made.
    Connecting,
    /// The disk answers requests.
    Ready,
    /// The connection has failed for this reason and stays so: open another one.
    Broken(String),
}

/// A disk other than the one below the chain. Its size and capabilities are known once it is
/// [`LinkState::Ready`]; no request is started before.
pub trait RemoteDisk: BlockDevice {
    /// The state of the connection.
    fn link_state(&self) -> LinkState;
}

/// Opens remote disks.
///
/// A disk that was opened here before and dropped may have left writes in its server, which hangs
/// and carries them out later, over newer data of the next connection to the same location. So a
/// new disk is [`LinkState::Connecting`] until no earlier write can still be carried out.
pub trait Targets: Send + Sync {
    /// Begins to connect. Called by the thread that owns the chain; does not block.
    ///
    /// # Errors
    /// The reason why this location cannot be opened, for people.
    fn open(&self, location: &ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String>;

    /// The identity of the disk at a location. If it changes, another disk is there.
    fn identity(&self, location: &ReplicaLocation) -> String {
        location.to_string()
    }
}

/// Refuses to open any disk.
pub struct NoTargets;

impl Targets for NoTargets {
    fn open(&self, location: &ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String> {
        Err(format!("{location}: filters cannot open other disks here"))
    }
}
