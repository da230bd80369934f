//! [`BlockDevice`]: the seam between servers, filters and volumes.
//!
//! One thread owns a device and starts requests on it. Most are answered inside the call, the
//! rest through [`BlockDevice::poll`]:
//!
//! ```text
//!  1. start    start(Request { token, op }) -> Started
//!  2. commit   once for all that was started in this turn of the loop
//!  3. answer   send the replies of what was Done
//!  4. poll     collect what was Pending, when the owner was woken
//! ```
//!
//! docs/internals/requests.md has the definitions, the invariants and a drawing.
//!
//! Invariant: nothing that answered [`Started::Done`] may be reported to a
//! client before a [`BlockDevice::commit`] that followed it returned `Ok`.
//! One commit for a whole batch is what makes small writes cheap.

use std::time::Duration;

use crate::request::Request;

/// Names a request between its start and its [`Completion`]. The caller
/// chooses it, below [`TOKEN_MAX`]; the device only hands it back.
pub type Token = u64;

/// Tokens are below this: what stands between two devices marks those that it passes on.
pub const TOKEN_MAX: Token = (1 << 56) - 1;

/// Why a request failed, and with it what the client may do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The range does not lie within the device: the client's mistake.
    #[error("bytes {offset}+{length} do not lie within a device of {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// The device's size in bytes.
        size: u64,
    },
    /// A write to a read-only device.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device has no such verb, or none that is fast enough.
    #[error("not supported")]
    NotSupported,
    /// No unit, or no journal, has room.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// Data is there but damaged in every copy; it was not returned.
    #[error("damaged: {0}")]
    Damaged(String),
    /// No copy can be reached now; trying again later may succeed.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The device is stopped: it lost a write, or its lease, and stays so.
    #[error("stopped: {0}")]
    Stopped(String),
}

/// What a verb answered at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// Done, and valid once [`BlockDevice::commit`] has returned `Ok`.
    Done,
    /// A [`Completion`] with the same token will follow.
    Pending,
    /// No room to take the request now. Nothing was started: offer the same
    /// request again after the next [`BlockDevice::poll`].
    Busy,
    /// Failed.
    Failed(IoError),
}

/// When a write may be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When later reads see it; a flush makes it durable.
    Volatile,
    /// When it is on stable storage (FUA).
    Durable,
}

/// How `write_zeroes` may be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroMode {
    /// When it may be acknowledged.
    pub durability: Durability,
    /// The range may become a hole. If false, space must stay reserved; a
    /// device that overwrites nothing in place has no reserved space and
    /// treats both alike.
    pub may_punch: bool,
    /// Fail with [`IoError::NotSupported`] rather than be slower than a write.
    pub fast_only: bool,
}

/// What a range of a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data that was written.
    Data,
    /// Nothing was ever written, or it was trimmed: reads as zeroes.
    Hole,
}

/// A run of bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes; never 0.
    pub length: u64,
    /// What lies there.
    pub kind: ExtentKind,
}

/// What a pending request brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A write, flush, trim, write_zeroes or prefetch is done.
    Done,
    /// The bytes of a read, exactly as many as were asked for.
    Data(Vec<u8>),
    /// The runs of an `extents` request, in order, from its offset on.
    Extents(Vec<Extent>),
}

/// The end of a request that was [`Started::Pending`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The token the request was started with.
    pub token: Token,
    /// What it brought, or why it failed.
    pub result: Result<Outcome, IoError>,
}

/// A device's size and the sizes of request it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// The block size: requests that are whole blocks cost least. Any other
    /// alignment works.
    pub block_bytes: u32,
}

/// Which verbs a device has beyond read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Writes are refused with [`IoError::ReadOnly`].
    pub read_only: bool,
    /// `flush` and [`Durability::Durable`] work.
    pub can_flush: bool,
    /// `trim` frees space.
    pub can_trim: bool,
    /// `write_zeroes` works, and never costs more than a write.
    pub can_write_zeroes: bool,
    /// `extents` works.
    pub can_extents: bool,
    /// A flush on one connection covers writes acknowledged on every other.
    pub can_multi_conn: bool,
}

impl Capabilities {
    /// A device that can be written and lacks nothing.
    pub const ALL: Self = Self {
        read_only: false,
        can_flush: true,
        can_trim: true,
        can_write_zeroes: true,
        can_extents: true,
        can_multi_conn: true,
    };
}

/// A disk, as seen by the one thread that owns it. See the module's head for
/// the order of calls.
pub trait BlockDevice {
    /// Size and block size. The size may grow between calls.
    fn geometry(&self) -> DeviceGeometry;

    /// Which verbs work.
    fn capabilities(&self) -> Capabilities;

    /// Starts one request. See [`Op`](crate::Op) for what each operation does and answers.
    fn start(&mut self, request: Request<'_>) -> Started;

    /// Ends a batch: what answered `Done` since the last commit is now in the
    /// order in which the device will keep it.
    ///
    /// # Errors
    /// The device is stopped. None of the answers given since the last commit
    /// may be sent, and every later verb fails.
    fn commit(&mut self) -> Result<(), IoError>;

    /// Collects finished requests and lets timers run. Called when the
    /// device's wake fired, when [`BlockDevice::next_timer`] has passed, and
    /// whenever it is convenient; it never waits.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Its end begins: what waits because something is away is answered by the
    /// next polls, with an error, and nothing waits so any more.
    fn stop_waiting(&mut self) {}

    /// How long the owner may sleep without calling `poll`, if nothing wakes
    /// it; `None` for as long as it likes.
    fn next_timer(&self) -> Option<Duration> {
        None
    }
}
