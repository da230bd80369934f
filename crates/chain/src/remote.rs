//! Disks elsewhere, which filters write and read beside the one below them.

use base::BlockDevice;
use chain_policy::ReplicaLocation;

/// How the way to a disk elsewhere is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// It is being made.
    Connecting,
    /// Requests are answered.
    Ready,
    /// There is none, and will be none: another one is to be opened.
    Broken(String),
}

/// A disk elsewhere. Its size and verbs are known when it is [`LinkState::Ready`]; nothing is
/// asked of it before.
pub trait RemoteDisk: BlockDevice {
    /// How the way to it is.
    fn link_state(&self) -> LinkState;
}

/// Opens disks elsewhere.
///
/// A disk that was opened here before and is dropped may have been asked for changes that its
/// server has not carried out: it hangs, and goes on later. Whoever opens the same place anew
/// writes what is newer there. So the new one is [`LinkState::Connecting`] until nothing of that
/// can be carried out any more.
pub trait Targets: Send + Sync {
    /// Begins to connect. Called in the thread that owns the chain; does not wait.
    ///
    /// # Errors
    /// Why there can be no such disk, for people.
    fn open(&self, place: &ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String>;

    /// By what a place is known again: what another disk lies at is another one.
    fn identity(&self, place: &ReplicaLocation) -> String {
        place.to_string()
    }
}

/// There are none.
pub struct NoTargets;

impl Targets for NoTargets {
    fn open(&self, place: &ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String> {
        Err(format!("{place}: disks elsewhere are not for filters here"))
    }
}
