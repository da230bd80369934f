//! Scrubbing: comparing the content of a segment with the checksums of its table.

use base::{SegmentId, Slot};
use unit::UnitError;
use world::{File, OpenMode};

use super::CHUNK_BYTES;
use super::format::{Entry, Header, SlotState};
use super::segments::{OpenTable, Segments};

impl Segments {
    /// Reads a whole segment and returns its damaged slots. They include slots that a crash
    /// tore before they were synced; no version names those.
    pub(super) fn scrub(&self, id: SegmentId) -> Result<Vec<Slot>, UnitError> {
        let before = self.read_table(id, OpenMode::Read)?;
        // Reads the disk and not the page cache, which may hold what an earlier process failed
        // to make durable.
        before.file.forget_cached();
        let OpenTable { file, table } = self.read_table(id, OpenMode::Read)?;
        let header = &table.header;
        let chunk_slots = (CHUNK_BYTES / header.slot_bytes as usize).max(1);
        let mut buffer = vec![0; chunk_slots * header.slot_bytes as usize];
        let mut bad = Vec::new();
        for (first, entries) in (0..)
            .step_by(chunk_slots)
            .zip(table.entries.chunks(chunk_slots))
        {
            scrub_chunk(&*file, header, first, entries, &mut buffer, &mut bad);
        }
        let slots = (0..).zip(before.table.entries.iter().zip(&table.entries));
        let is_lost =
            |was: &Entry, is: &Entry| was.state != SlotState::Never && is.state == SlotState::Never;
        bad.extend(slots.filter_map(|(slot, (was, is))| is_lost(was, is).then_some(slot)));
        bad.sort_unstable();
        if bad.is_empty() {
            return Ok(Vec::new());
        }
        // A slot that was freed meanwhile is not damaged.
        let now = match self.read_table(id, OpenMode::Read) {
            Ok(open) => open.table,
            Err(UnitError::NoSegment { .. }) => return Ok(Vec::new()),
            Err(why) => return Err(why),
        };
        Ok(still_bad(&bad, &now.entries))
    }
}

/// Those of `bad` that are not free in the table now. A slot beyond the end of that table
/// stays bad.
fn still_bad(bad: &[u32], now: &[Entry]) -> Vec<Slot> {
    let is_free = |slot: &u32| {
        let entry = now.get(*slot as usize);
        entry.is_some_and(|entry| entry.state.is_free())
    };
    let still = bad.iter().filter(|slot| !is_free(slot));
    still.map(|slot| Slot(*slot as u16)).collect()
}

/// Adds to `bad` the damaged ones of the slots from `first` on.
fn scrub_chunk(
    file: &dyn File,
    header: &Header,
    first: u32,
    entries: &[Entry],
    buffer: &mut [u8],
    bad: &mut Vec<u32>,
) {
    let is_kept = |entry: &Entry| entry.state == SlotState::Kept;
    let slot_bytes = header.slot_bytes as usize;
    let count = entries.iter().rposition(is_kept).map_or(0, |last| last + 1);
    let data = &mut buffer[..count * slot_bytes];
    // One bad sector fails the whole read: then each slot is read by itself.
    let is_read = count == 0 || file.read_at(data, header.slot_offset(first)).is_ok();
    for (index, entry) in entries.iter().enumerate() {
        let slot = first + index as u32;
        let is_good = match entry.state {
            SlotState::Kept => {
                let content = &mut data[index * slot_bytes..][..slot_bytes];
                (is_read || file.read_at(content, header.slot_offset(slot)).is_ok())
                    && entry.matches(content)
            }
            SlotState::Unknown => false,
            SlotState::Never | SlotState::Freed | SlotState::Hole => true,
        };
        if !is_good {
            bad.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file was swapped for a smaller one between the two reads of the table, and the
    /// scrub ended the process.
    #[test]
    fn a_slot_beyond_the_end_of_the_new_table_is_damaged() {
        let now = [
            Entry::of(&[1; 16], &[0; 512]),
            Entry::free(SlotState::Freed),
            Entry::free(SlotState::Hole),
        ];
        assert_eq!(still_bad(&[0, 1, 2, 3, 900], &now), [0, 3, 900].map(Slot));
        assert_eq!(still_bad(&[7], &[]), [Slot(7)]);
    }
}
