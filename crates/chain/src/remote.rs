//! Disks elsewhere, which boxes write and read beside the one below them.

use base::BlockDevice;

/// How the way to a disk elsewhere is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// It is being made.
    Connecting,
    /// Requests are answered.
    Ready,
    /// There is none, and will be none: another one is to be opened.
    Broken(String),
}

/// A disk elsewhere. Its size and verbs are known when it is [`Link::Ready`]; nothing is
/// asked of it before.
pub trait Remote: BlockDevice {
    /// How the way to it is.
    fn link(&self) -> Link;
}

/// Opens disks elsewhere.
pub trait Targets: Send + Sync {
    /// Begins to connect. Called in the thread that owns the chain; does not wait.
    ///
    /// # Errors
    /// Why there can be no such disk, for people.
    fn open(&self, uri: &str) -> Result<Box<dyn Remote>, String>;
}

/// There are none.
pub struct NoTargets;

impl Targets for NoTargets {
    fn open(&self, uri: &str) -> Result<Box<dyn Remote>, String> {
        Err(format!("{uri}: disks elsewhere are not for boxes here"))
    }
}
