//! What all connections of one export share: the device, the requests that it
//! has not answered yet, and the buffers not in use.

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, Extent, IoError};

use super::Limits;
use super::buffers::BufferPool;
use super::connection::Settings;
use super::request::Rules;
use super::slab::{Key, Slab};
use super::wire::Fault;

/// A request, or a piece of one, that the device will answer. Its key in
/// [`Desk::operations`] is the token.
#[derive(Debug)]
pub struct Operation {
    /// The link it belongs to; it may have gone.
    pub link: Key,
    /// The request, in that link's connection.
    pub request: Key,
    /// First byte it concerns.
    pub offset: u64,
    /// How many bytes it holds in memory until it ends.
    pub bytes: usize,
}

/// What a device could not do although it was asked properly: a guest may make little of
/// its error, so whoever runs the host is told as well.
#[derive(Debug, Default)]
pub struct Failures {
    /// How many requests, and pieces of them.
    pub count: u64,
    /// Why the last of them failed.
    pub last: Option<IoError>,
}

/// See the module's head.
pub struct Desk<D> {
    /// Keys are tokens. An entry stays until its completion comes, whether or
    /// not its connection is still there, so no token is used twice.
    pub operations: Slab<Operation>,
    /// Buffers not in use.
    pub pool: BufferPool,
    /// Scratch for the answers of `extents`.
    pub runs: Vec<Extent>,
    /// Scratch for `poll`.
    pub completions: Vec<Completion>,
    /// The device's size, as of the beginning of this turn.
    pub geometry: DeviceGeometry,
    /// The device's abilities, as of the beginning of this turn.
    pub capabilities: Capabilities,
    /// What a connection may use.
    pub limits: Limits,
    /// No new requests are taken.
    pub stopping: bool,
    /// The device was given something since the last commit.
    pub uncommitted: bool,
    /// Requests answered so far, whatever the answer.
    pub answered: u64,
    /// What the device could not do.
    pub failures: Failures,
    /// The device.
    pub device: D,
}

impl<D: BlockDevice> Desk<D> {
    /// A desk with nothing on it.
    pub fn new(device: D, limits: Limits) -> Self {
        Self {
            operations: Slab::default(),
            pool: BufferPool::default(),
            runs: Vec::new(),
            completions: Vec::new(),
            geometry: device.geometry(),
            capabilities: device.capabilities(),
            limits,
            stopping: false,
            uncommitted: false,
            answered: 0,
            failures: Failures::default(),
            device,
        }
    }
}

impl<D> Desk<D> {
    /// The device's error as a client is told of it.
    pub fn fault(&mut self, error: IoError) -> Fault {
        if let IoError::Damaged(_) | IoError::Unavailable(_) | IoError::NoSpace(_) = error {
            self.failures.count += 1;
            self.failures.last = Some(error.clone());
        }
        error.into()
    }

    /// What a client's requests are held against.
    pub fn rules(&self, settings: Settings) -> Rules {
        Rules {
            size_bytes: self.geometry.size_bytes,
            capabilities: self.capabilities,
            read_only: settings.read_only || self.capabilities.read_only,
            structured: settings.structured,
            allocation: settings.allocation,
            stopping: self.stopping,
        }
    }
}
