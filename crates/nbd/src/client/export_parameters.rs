//! [`ExportParameters`]: what a client and a server have negotiated about an export.

use super::ConnectionError;
use crate::wire::transmission_flags;

/// The parameters of an export, as the server and the client have negotiated them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportParameters {
    /// The export's size, in bytes.
    pub size_bytes: u64,
    /// See [`transmission_flags`].
    pub flags: u16,
    /// The minimal block size, in bytes: offsets and lengths are multiples of it.
    pub block_min: u32,
    /// The preferred block size, in bytes.
    pub block_preferred: u32,
    /// The maximal payload of a request, in bytes.
    pub payload_max: u32,
    /// Whether replies are structured.
    pub structured: bool,
    /// The number of the context `base:allocation`, if the server supports it.
    pub allocation: Option<u32>,
}

impl ExportParameters {
    /// Whether the server set a transmission flag.
    #[must_use]
    pub fn can(&self, flag: u16) -> bool {
        self.flags & transmission_flags::HAS_FLAGS != 0 && self.flags & flag != 0
    }

    /// Checks that the export of a later connection is this one. The user of the device keeps its
    /// first parameters, so a later connection may offer more, and not less.
    pub fn check_unchanged(&self, now: Self) -> Result<Self, ConnectionError> {
        let first = self;
        let read_only =
            |parameters: &Self| u64::from(parameters.flags & transmission_flags::READ_ONLY);
        // The client uses one connection, so the flag for several does not matter.
        let needed = first.flags & !transmission_flags::CAN_MULTI_CONN;
        let size = (first.size_bytes, now.size_bytes);
        let offered = (needed.into(), (needed & now.flags).into());
        let block = (first.block_min.into(), now.block_min.into());
        let payload = (first.payload_max.into(), now.payload_max.into());
        let extents = (first.allocation.is_some(), now.allocation.is_some());
        let properties = [
            ("its size", size, size.0 == size.1),
            (
                "its read-only flag",
                (read_only(first), read_only(&now)),
                read_only(first) == read_only(&now),
            ),
            ("its transmission flags", offered, offered.0 == offered.1),
            (
                "its minimal block size",
                block,
                block.0.is_multiple_of(block.1),
            ),
            ("its maximal payload", payload, payload.0 <= payload.1),
            (
                "its support of base:allocation",
                (extents.0.into(), extents.1.into()),
                extents.0 <= extents.1,
            ),
        ];
        match properties
            .into_iter()
            .find(|(.., is_unchanged)| !is_unchanged)
        {
            Some((what, (was, is), _)) => Err(ConnectionError::ExportChanged { what, was, is }),
            None => Ok(Self {
                structured: now.structured,
                allocation: now.allocation.filter(|_| extents.0),
                ..*first
            }),
        }
    }
}
