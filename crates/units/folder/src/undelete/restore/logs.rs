//! Taking what was brought back out of the logs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::SegmentId;
use unit::UnitError;

use super::note::Note;
use crate::undelete::record::{FOLDER, RESTORE, Record, log_name};
use crate::undelete::state::read_log;
use crate::undelete::{FolderUnit, Keep};

impl FolderUnit {
    /// Writes the logs anew without the slots that were brought back, and ends the
    /// restore. A log that cannot be read may name them, too: it goes, as does one that
    /// cannot be written anew, for which there may be no room. Of what it named, what is
    /// still free is found by the walk after the next start, and held from then on.
    pub(super) fn forget_brought(
        &self,
        keep: &Keep,
        note: &Note,
        brought: &BTreeMap<SegmentId, BTreeSet<u32>>,
    ) -> Result<(), UnitError> {
        let disk = &*self.place.disk;
        self.with_kept(keep, |state| {
            for begun in state.logs().keys() {
                let Ok(records) = read_log(disk, *begun) else {
                    if !brought.is_empty() {
                        self.remove_if_there(&log_name(*begun))?;
                    }
                    continue;
                };
                let mut left = Vec::with_capacity(records.len());
                for record in &records {
                    let after = state.aside_after(record.segment, record.when.moment);
                    let is_meant = note.means(record.when, record.segment)
                        && note.is_of_restored(record, after);
                    let kept = brought.get(&record.segment).filter(|_| is_meant);
                    let slots = record.slots();
                    let slots = slots.filter(|slot| kept.is_none_or(|kept| !kept.contains(slot)));
                    let slots: Vec<u32> = slots.collect();
                    if !slots.is_empty() {
                        left.push(record.clone().with_slots(&slots));
                    }
                }
                if left != records {
                    let content = left.iter().map(Record::encode).collect::<Vec<_>>();
                    let name = log_name(*begun);
                    if self.write_whole(&name, &content.concat()).is_err() {
                        self.remove_if_there(&name)?;
                    }
                }
            }
            self.remove_if_there(RESTORE)?;
            disk.sync_directory(Path::new(FOLDER))
        })?;
        // What logs name is another sum now.
        self.forget_kept();
        Ok(())
    }
}
