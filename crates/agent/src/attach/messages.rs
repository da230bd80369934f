//! The messages of workers: why a volume is not served or not closed, and the remedy.

use catalog::CatalogError;
use volume::OpenError;

use super::AttachError;
use crate::filters::FilterNoteError;
use crate::lease::AcquireError;

/// The remedy if flushed writes are unavailable.
pub(super) const JOURNAL_LOST: &str = "restore it, or abandon the last flushed writes with \
    `scree detach VOLUME --force`";

/// Why a volume that is missing writes of its filters is not detached, and the remedy.
pub(super) const FILTERS_UNFINISHED: &str = "the volume stays attached until all writes of its \
    filters are applied; `scree detach VOLUME --force` detaches it now, without the last writes";

/// Why a volume is not served, and the remedy.
pub(super) fn open_failure(name: &str, error: &AttachError, has_shared_journals: bool) -> String {
    let hint = match error {
        AttachError::Acquire(AcquireError::Older(_))
        | AttachError::SaltLost
        | AttachError::Unencrypted
        | AttachError::FilterNote(FilterNoteError::JournalLost(_)) => {
            return format!("volume {name:?} cannot be opened: {error}");
        }
        error if error.is_journal_lost(has_shared_journals) => JOURNAL_LOST,
        AttachError::Open(OpenError::Journal(error)) if error.is_loss() => {
            "restore the file, or move it away to open the volume at its newest version"
        }
        AttachError::Open(OpenError::Journal(_)) => {
            "its journal may hold the last flushed writes: make it readable, and do not remove it"
        }
        AttachError::Journals(_) => "no data is lost",
        AttachError::Chain(_) | AttachError::FilterNote(FilterNoteError::Journals(_)) => {
            "see its filters with `scree chain show`"
        }
        AttachError::Key(_) | AttachError::HostKey(_) => {
            "an administrator can list the wrapping keys with `scree key list`"
        }
        AttachError::Acquire(AcquireError::Lease(CatalogError::Refused { .. })) => {
            "see the log of the controller"
        }
        _ => "an administrator can find the cause with `scree unit list` and `scree status`",
    };
    format!("volume {name:?} cannot be opened: {error}; {hint}; opening will be retried")
}
