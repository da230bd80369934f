//! [`BlockDevice`]: the interface between servers, filters and volumes.
//!
//! One thread owns a device and starts requests on it. Most requests are done within the call, the
//! others complete in [`BlockDevice::poll`]:
//!
//! ```text
//!  1. start    start(Request { token, op }) -> Started
//!  2. end      end_batch(), once for all requests that were started in this turn of the loop
//!  3. reply    send the replies to requests that were Done
//!  4. poll     collect the completions of requests that were Pending, after a wake-up
//! ```
//!
//! docs/internals/requests.md has the definitions, the invariants and a drawing.
//!
//! Invariant: a request that was [`Started::Done`] is reported to its client only after a later
//! [`BlockDevice::end_batch`] has returned `Ok`. One call for a whole batch makes small writes
//! cheap.

use std::time::Duration;

use crate::request::Request;

/// The number of a request between its start and its [`Completion`]. The caller chooses it, below
/// [`TOKEN_MAX`].
pub type Token = u64;

/// The upper bound of tokens. A filter uses the bits above it for the tokens that it forwards.
pub const TOKEN_MAX: Token = (1 << 56) - 1;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The range is not within the device.
    #[error("{length} bytes at offset {offset} exceed the device of {size} bytes")]
    OutOfRange {
        /// The offset of the range, in bytes.
        offset: u64,
        /// The length of the range, in bytes.
        length: u64,
        /// The device's size, in bytes.
        size: u64,
    },
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device does not support the operation, or not with the speed of a write.
    #[error("not supported")]
    NotSupported,
    /// The units or the journal have no space left.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// Every copy of the data is damaged. The data were not returned.
    #[error("damaged: {0}")]
    Damaged(String),
    /// No copy can be reached now. A later attempt may succeed.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The device has stopped for good, since it lost a write or its lease.
    #[error("stopped: {0}")]
    Stopped(String),
}

/// The immediate answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// The request is done, and valid after [`BlockDevice::end_batch`] has returned `Ok`.
    Done,
    /// A [`Completion`] with the same token follows.
    Pending,
    /// The device cannot accept the request now. Start it again after the next
    /// [`BlockDevice::poll`].
    Busy,
    /// The request failed.
    Failed(IoError),
}

/// When a write may be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When later reads return it. A flush makes it durable.
    Volatile,
    /// When it is on stable storage (FUA).
    Durable,
}

/// How a range may be written with zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroMode {
    /// When the request may be acknowledged.
    pub durability: Durability,
    /// Whether the range may become a hole. Otherwise its space stays reserved; a device that never
    /// overwrites in place has no reserved space and ignores this.
    pub may_punch: bool,
    /// Whether the request fails with [`IoError::NotSupported`] if it would be slower than a write.
    pub fast_only: bool,
}

/// The kind of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data that was written.
    Data,
    /// Bytes that were never written or were trimmed. They read as zeroes.
    Hole,
}

/// A run of bytes of the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The length in bytes; never 0.
    pub length: u64,
    /// The kind of its bytes.
    pub kind: ExtentKind,
}

/// The result of a successful request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The request was done and has no data.
    Done,
    /// The bytes of a read, as many as requested.
    Data(Vec<u8>),
    /// The extents of a range, in order, from its offset on.
    Extents(Vec<Extent>),
}

/// The completion of a request that was [`Started::Pending`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The token of the request.
    pub token: Token,
    /// The result, or why the request failed.
    pub result: Result<Outcome, IoError>,
}

/// The size and the block size of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// The block size in bytes. Requests for whole blocks are the fastest; any other alignment
    /// works.
    pub block_bytes: u32,
}

/// The operations that a device supports besides reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether writes fail with [`IoError::ReadOnly`].
    pub read_only: bool,
    /// Whether flushes and [`Durability::Durable`] are supported.
    pub can_flush: bool,
    /// Whether trims are supported.
    pub can_trim: bool,
    /// Whether writing zeroes is supported. It is never slower than a write.
    pub can_write_zeroes: bool,
    /// Whether extents can be listed.
    pub can_extents: bool,
    /// Whether a flush on one connection covers acknowledged writes of all connections.
    pub can_multi_conn: bool,
}

impl Capabilities {
    /// The capabilities of a writable device that supports everything.
    pub const ALL: Self = Self {
        read_only: false,
        can_flush: true,
        can_trim: true,
        can_write_zeroes: true,
        can_extents: true,
        can_multi_conn: true,
    };
}

/// A disk, which one thread owns. The head of this module has the order of calls.
pub trait BlockDevice {
    /// The size and block size. The size may grow between calls.
    fn geometry(&self) -> DeviceGeometry;

    /// The operations that the device supports.
    fn capabilities(&self) -> Capabilities;

    /// Starts a request. [`Op`](crate::Op) describes each operation and its result.
    fn start(&mut self, request: Request<'_>) -> Started;

    /// Ends a batch: fixes the order of the requests that were `Done` since the batch before.
    ///
    /// # Errors
    /// The device has stopped. No reply to a request of the batch may be sent, and every later
    /// request fails.
    fn end_batch(&mut self) -> Result<(), IoError>;

    /// Adds completions and runs timers, without waiting. The owner calls this after a wake-up of
    /// the device, after [`BlockDevice::next_timer`], and at any other time.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Fails requests that wait for something unavailable, now and later. The owner calls this
    /// before it closes the device. The errors arrive with the next polls.
    fn stop_waiting(&mut self) {}

    /// The time until the owner has to call `poll`, unless the device wakes it before; `None` if
    /// there is no timer.
    fn next_timer(&self) -> Option<Duration> {
        None
    }
}
