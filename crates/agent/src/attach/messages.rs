//! The messages of workers: why a volume is not served, or not closed, and the remedy.

use catalog::CatalogError;
use volume::OpenError;

use super::AttachError;
use crate::filters::FilterNoteError;
use crate::lease::AcquireError;

/// The remedy where flushed writes cannot be had.
pub(super) const JOURNAL_LOST: &str = "bring that back, or give up what was flushed last with \
     `scree detach --force`, now that this is known";

/// What is waited for where the volume is missing writes of its filters, and what ends that.
pub(super) const FILTERS_HAVE_MORE: &str = "it is kept until it has all that was written through \
     its filters; `scree detach --force` detaches it as it is, without what was written last";

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
            "restore the file, or move it away: without its journal it opens at its newest version"
        }
        AttachError::Open(OpenError::Journal(_)) => {
            "its journal may have what was flushed last, and is to stay as it is"
        }
        AttachError::Journals(_) => "nothing of it is lost",
        AttachError::Chain(_) | AttachError::FilterNote(FilterNoteError::Journals(_)) => {
            "`scree chain show` says which filters there are"
        }
        AttachError::Key(_) | AttachError::HostKey(_) => {
            "an administrator sees the wrapping keys there are with `scree key list`"
        }
        AttachError::Acquire(AcquireError::Lease(CatalogError::Refused { .. })) => {
            "see what its controller says"
        }
        _ => "an administrator sees what is missing with `scree unit list` and `scree status`",
    };
    format!("volume {name:?} cannot be opened: {error}; {hint}; it is tried again")
}
