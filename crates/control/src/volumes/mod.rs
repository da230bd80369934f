//! What owners do with volumes.
//!
//! Each change is one transaction. Where a host has to do its part (open,
//! close, grow), that is written down with it, and its word is waited for.
//!
//! Wherever something is named, a name that is not clear is a conflict: several
//! owners have one, or a bare name that is another's is to be changed or used.
//! Whatever asks the database may fail with
//! [`ControlError::Unavailable`](crate::ControlError::Unavailable) while that does
//! not answer.
//!
//! * `view`: how a volume is shown, and to whom
//! * `making`; `capacity`: how much may be promised
//! * `changes`: tags, owner, size, deletion
//! * `versions`: what is kept of a volume, and going back to it
//! * `exports`: serving it without a VM

mod capacity;
mod changes;
mod exports;
mod making;
mod versions;
mod view;

use crate::authorized_request::AuthorizedRequest;
use world::Millis;

pub(crate) use capacity::Redundancy;
pub use versions::RestoreTo;
pub use view::{VolumeList, VolumeView};

/// Volumes, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Volumes<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

/// A moment as RFC 3339 writes it.
#[must_use]
pub fn spell_time(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map_or_else(|_| format!("{} ms", time.0), |time| time.to_string())
}
