//! The types that all other crates share.
//!
//! * [`ids`], [`geometry`], [`size`]: identifiers, positions and quantities with dimensions.
//! * [`BlockDevice`] and its [`Request`]: the interface between NBD, filters and volumes.
//! * [`codec`], [`checksum`]: bytes on disks and wires.
//! * [`error`], [`url`], [`Endpoint`], [`NbdUri`]: how errors and addresses are spelled.
//!
//! This crate does no I/O, and knows no keys, no clock and no randomness.

mod buffer;
pub mod checksum;
pub mod codec;
pub mod device;
mod endpoint;
pub mod error;
pub mod geometry;
pub mod ids;
mod nbd_uri;
mod owned_op;
pub mod report;
mod request;
pub mod size;
pub mod url;

pub use buffer::{ReadBuffer, ScatterList, WriteBuffer};
pub use device::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, ExtentKind, IoError,
    Outcome, Started, TOKEN_MAX, Token, ZeroMode,
};
pub use endpoint::Endpoint;
pub use error::{counted, with_causes};
pub use geometry::{BlockIndex, BlockSize, CopysetId, Location, SegmentId, Sequence, Slot};
pub use ids::{
    AttachmentId, AuditId, ChainId, ClusterId, DatabaseId, GrantId, JournalFolderId, KeyId,
    Lineage, LineageTag, ParseIdError, PartyId, ProjectId, SnapshotId, UnitId, VolumeId,
};
pub use nbd_uri::{NbdUri, UriTls};
pub use owned_op::OwnedOp;
pub use request::{ByteRange, Op, OpKind, Request};
