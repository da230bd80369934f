//! Removing restored slots from the logs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::SegmentId;
use unit::UnitError;

use super::plan::Plan;
use crate::undelete::Undelete;
use crate::undelete::index::{Index, read_log};
use crate::undelete::name::{FOLDER, RESTORE, log_name};
use crate::undelete::record::{LogHeader, Record};

impl Undelete<'_> {
    /// Rewrites the logs without the restored slots, and ends the restore.
    ///
    /// A log that cannot be read may name them too, so it is removed, as is one that cannot be
    /// rewritten, for which there may be no room. The walk after the next start finds the slots
    /// that it named and that are still free, and they are stored from then on.
    pub(super) fn forget_restored(
        &self,
        plan: &Plan,
        restored: &BTreeMap<SegmentId, BTreeSet<u32>>,
    ) -> Result<(), UnitError> {
        let disk = &*self.segments.root.disk;
        self.with_index(|index| {
            for begun in index.logs.all().keys() {
                let name = log_name(*begun);
                let Ok(records) = read_log(disk, *begun) else {
                    if !restored.is_empty() {
                        self.remove_if_present(&name)?;
                    }
                    continue;
                };
                let remaining = remaining(index, plan, restored, &records);
                if remaining != records {
                    let mut content = LogHeader.encode();
                    content.extend(remaining.iter().flat_map(Record::encode));
                    if self.write_file(&name, &content).is_err() {
                        self.remove_if_present(&name)?;
                    }
                }
            }
            self.remove_if_present(RESTORE)?;
            disk.sync_directory(Path::new(FOLDER))
        })?;
        // The logs name fewer slots than the index says.
        self.store.forget();
        Ok(())
    }
}

/// The records without the slots that were restored.
fn remaining(
    index: &Index,
    plan: &Plan,
    restored: &BTreeMap<SegmentId, BTreeSet<u32>>,
    records: &[Record],
) -> Vec<Record> {
    let mut remaining = Vec::with_capacity(records.len());
    for record in records {
        let freed = index
            .segments
            .next_after(record.segment, record.freed_at.run_time_us);
        let is_selected =
            plan.selects(record.freed_at, record.segment) && plan.is_of_restored(record, freed);
        let restored = restored.get(&record.segment).filter(|_| is_selected);
        let is_restored = |slot: &u32| restored.is_some_and(|slots| slots.contains(slot));
        let slots: Vec<u32> = record.slots().filter(|slot| !is_restored(slot)).collect();
        if !slots.is_empty() {
            remaining.push(record.clone().with_slots(&slots));
        }
    }
    remaining
}
