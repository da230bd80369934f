//! Floor 0: the words every other crate speaks.
//!
//! Identifiers, quantities with dimensions, the geometry of volumes and
//! segments, checksums, a little-endian codec, how an error is told, and
//! [`BlockDevice`], the seam between frontends, filters and volumes. Nothing here does I/O, knows a key,
//! reads a clock or asks for randomness.

pub mod checksum;
pub mod codec;
pub mod device;
mod endpoint;
pub mod error;
pub mod geometry;
pub mod ids;
mod nbd_uri;
pub mod report;
pub mod size;
pub mod url;

pub use device::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, ExtentKind, IoError,
    Outcome, Started, TOKEN_MAX, Token, ZeroMode,
};
pub use endpoint::Endpoint;
pub use error::with_causes;
pub use geometry::{BlockIndex, BlockSize, CopysetId, Location, SegmentId, Sequence, Slot};
pub use ids::{
    AttachmentId, AuditId, ChainId, ClusterId, DatabaseId, GrantId, JournalFolderId, KeyId,
    Lineage, ParseIdError, PartyId, ProjectId, SnapshotId, UnitId, VolumeId,
};
pub use nbd_uri::{NbdUri, UriTls};
