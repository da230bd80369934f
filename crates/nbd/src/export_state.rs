//! [`ExportState`]: the export state, which all connections of one export share: the device, its
//! outstanding operations, and unused buffers.

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, Extent, IoError};

use super::Limits;
use super::buffers::BufferPool;
use super::connection::Settings;
use super::request::Rules;
use super::slab::{Key, Slab};
use super::wire::Fault;

/// A request, or a piece of one, that is pending in the device. Its key in
/// [`ExportState::operations`] is its token.
#[derive(Debug)]
pub struct Operation {
    /// The link whose client sent the request. The link may be closed already.
    pub link: Key,
    /// The request's key in the connection of that link.
    pub request: Key,
    /// The offset of its first byte on the device.
    pub offset: u64,
    /// The memory that it holds until it completes, in bytes.
    pub bytes: usize,
}

/// The valid requests that the device failed. They are logged for the host's operator, since a
/// guest may not show them.
#[derive(Debug, Default)]
pub struct Failures {
    /// The number of failed requests and pieces.
    pub count: u64,
    /// The last error.
    pub last: Option<IoError>,
}

/// What all connections of one export share.
pub struct ExportState<D> {
    /// The pending operations. Keys are tokens. An operation stays until its completion, even if
    /// its connection is closed, so no two operations have the same token.
    pub operations: Slab<Operation>,
    /// Unused buffers.
    pub pool: BufferPool,
    /// A buffer for the results of extents requests.
    pub runs: Vec<Extent>,
    /// A buffer for `poll`.
    pub completions: Vec<Completion>,
    /// The device's geometry at the beginning of this turn.
    pub geometry: DeviceGeometry,
    /// The device's capabilities at the beginning of this turn.
    pub capabilities: Capabilities,
    /// The limits of connections.
    pub limits: Limits,
    /// Whether new requests are refused.
    pub stopping: bool,
    /// Whether requests were started on the device since its last batch ended.
    pub has_batch: bool,
    /// The number of requests that were answered or failed.
    pub answered: u64,
    /// The requests that the device failed.
    pub failures: Failures,
    /// The device.
    pub device: D,
}

impl<D: BlockDevice> ExportState<D> {
    /// The state of an export without connections.
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
            has_batch: false,
            answered: 0,
            failures: Failures::default(),
            device,
        }
    }
}

impl<D> ExportState<D> {
    /// Counts a device's error and converts it for the client.
    pub fn count_failure(&mut self, error: IoError) -> Fault {
        if let IoError::Damaged(_) | IoError::Unavailable(_) | IoError::NoSpace(_) = error {
            self.failures.count += 1;
            self.failures.last = Some(error.clone());
        }
        error.into()
    }

    /// The rules by which a client's requests are checked.
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
