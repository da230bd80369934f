//! Requests on volumes.
//!
//! Each change is one transaction. Where a host has to act (open, close, grow), the request is a
//! row in the database, and the host's report is waited for.
//!
//! An ambiguous name is a conflict: several owners use it, or a bare name of another user's object
//! is used in a request that changes it. Every request may fail with
//! [`ControlError::Unavailable`](crate::ControlError::Unavailable) while the database does not
//! answer.
//!
//! * `view`: volumes as the API shows them, and all conversions
//! * `making`: creating a volume; `capacity`: the limit on the total size
//! * `changes`: tags, owner, size, deletion
//! * `versions`: kept versions, and restoring one
//! * `exports`: serving a volume without a VM

mod capacity;
mod changes;
mod exports;
mod making;
mod versions;
mod view;

use crate::authorized_request::AuthorizedRequest;

pub(crate) use capacity::Redundancy;
pub use versions::RestoreTo;
pub use view::{VolumeList, VolumeView};

/// Volumes, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Volumes<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Volumes.
    #[must_use]
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes { request: self }
    }
}
