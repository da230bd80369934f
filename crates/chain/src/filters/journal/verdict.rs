//! [`Verdict`]: whether the records of a journal may be written to the disk below.

use super::JournalConfig;
use super::record::StartPage;

/// What may be done with the records of a journal.
pub(super) enum Verdict {
    WriteBack,
    /// The volume may have changed without them, for this reason.
    Quarantine(&'static str),
    /// The journal cannot be opened here, for this reason.
    Refuse(String),
}

impl JournalConfig {
    /// Decides what may be done with the records of a journal with this start page, if the disk
    /// below has `disk_bytes`.
    pub(super) fn judge(&self, start: &StartPage, disk_bytes: u64) -> Verdict {
        if let Some(reason) = self.disk_mismatch(start, disk_bytes) {
            return Verdict::Refuse(reason);
        }
        let Some(history) = self.history else {
            return Verdict::WriteBack;
        };
        let path = self.shown_path();
        if start.origin.lease > history.epoch && history.epoch.is_some() {
            return Verdict::Refuse(format!(
                "the journal {path} is of a later lease than this one: the database is an older \
                 copy, or the file belongs to another volume"
            ));
        }
        if history.predecessor != 0
            && history.epoch.is_some()
            && start.origin.lease == history.epoch
        {
            // The chain that is in use may continue with it.
            return Verdict::Refuse(format!(
                "the journal {path} has acknowledged writes that are not written back yet"
            ));
        }
        let reason = match history.predecessor {
            0 => start.origin.conflict_with(&self.origin()),
            // The chain before this one let clients in.
            _ => Some("the volume was written without this journal since"),
        };
        reason.map_or(Verdict::WriteBack, Verdict::Quarantine)
    }

    /// Why the records are not for the disk below, which has `disk_bytes`; `None` if they are.
    fn disk_mismatch(&self, start: &StartPage, disk_bytes: u64) -> Option<String> {
        let path = self.shown_path();
        if start.origin.is_other_disk(&self.origin()) && !self.has_moved {
            let hint = match self.history {
                Some(_) => "",
                None => "; if it is the same disk at another address, add --server-moved",
            };
            return Some(format!(
                "the journal {path} has writes that were acknowledged for another disk: move the \
                 file back to that disk, and restore the file of this one{hint}"
            ));
        }
        // A disk may have grown, if it is known to be the same one.
        let is_known = self.history.is_some() || start.origin.disk.is_some();
        let recorded = start.disk_bytes;
        let has_changed = recorded > disk_bytes || recorded != disk_bytes && !is_known;
        has_changed.then(|| {
            format!(
                "the journal {path} is of a disk of {recorded} bytes, and this one has {disk_bytes}"
            )
        })
    }
}
