//! [`Journal`]: the ring and its writer.

use std::sync::Arc;

use base::{BlockIndex, BlockSize, Sequence, VolumeId, WriteBuffer};
use unit::Tag;
use world::File;

use super::files::JournalError;
use super::record::{ENTRIES_MAX, Entry, HEADER_BYTES, RecordPrefix, encode_header};
use crate::seal::{Address, Sealer};

const PAGE: u64 = HEADER_BYTES as u64;
/// A batch that has grown to this is written at once rather than at its
/// end, so that one turn of the loop needs no more memory than this.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Identifies a volume's journal, and where its log is to be followed from.
#[derive(Debug, Clone, Copy)]
pub struct JournalSpec {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// The volume's block size.
    pub block_size: BlockSize,
    /// The log position, in bytes, from which on the journal is newer than the
    /// committed version.
    pub position: u64,
}

impl JournalSpec {
    /// The journal of `volume`, followed from `position` on.
    #[must_use]
    pub fn new(volume: VolumeId, block_size: BlockSize, position: u64) -> Self {
        Self {
            volume,
            block_size,
            position,
        }
    }
}

/// Where a block's ciphertext is in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSlot {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The tag of its seal.
    pub tag: Tag,
    /// The write's sequence.
    pub sequence: Sequence,
}

/// A record that still accepts entries.
struct Growing {
    /// The offset of its header page in the batch.
    header_at: usize,
    position: u64,
    first: Sequence,
    entries: Vec<Entry>,
}

/// The journal of one attached volume, owned by the volume's thread.
pub struct Journal {
    file: Arc<dyn File>,
    path: String,
    id: u128,
    ring_bytes: u64,
    block_size: BlockSize,
    /// Log position of the oldest record that is still needed.
    tail: u64,
    /// Log position of the next byte.
    head: u64,
    /// Everything before this log position is durable. It is written in every
    /// record, so that recovery can distinguish the end of a log from rot.
    durable: u64,
    /// Sealed records that are not in the file yet; they end at `head`.
    batch: Vec<u8>,
    growing: Option<Growing>,
    /// An empty list, kept for its allocation.
    entries: Vec<Entry>,
}

impl Journal {
    /// The journal in a file whose first page has this id and ring.
    pub(super) fn over(
        file: Arc<dyn File>,
        path: String,
        id: u128,
        ring_bytes: u64,
        spec: JournalSpec,
    ) -> Self {
        let position = spec.position;
        Self {
            file,
            path,
            id,
            ring_bytes,
            block_size: spec.block_size,
            tail: position,
            head: position,
            durable: position,
            batch: Vec::new(),
            growing: None,
            entries: Vec::new(),
        }
    }

    /// The file's path, for messages.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The journal's id, in every record.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Size of the ring in bytes.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Log position after the last record.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Bytes of the ring in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.head - self.tail
    }

    /// The open file, for syncs and reads on other threads.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The block size of payloads.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Positions the head after the records that recovery found.
    pub(crate) fn resume_at(&mut self, head: u64) {
        debug_assert!(self.batch.is_empty() && head >= self.tail);
        self.head = head;
    }

    /// Records that everything before log position `position` has been synced.
    pub fn synced(&mut self, position: u64) {
        self.durable = self.durable.max(position);
    }

    /// Whether `blocks` more blocks fit, however they are divided into records.
    #[must_use]
    pub fn has_room(&self, blocks: u64) -> bool {
        let block_bytes = self.block_size.bytes() as u64;
        // A header for each full record, one for the record begun, one for a
        // gap in the sequences; and what is skipped at the ring's end, once.
        let headers = blocks / ENTRIES_MAX as u64 + 3;
        let needed = blocks * block_bytes + headers * PAGE + PAGE + block_bytes;
        self.used_bytes() + needed <= self.ring_bytes
    }

    /// Appends a block: seals a copy of `plain`. The caller has checked
    /// [`Journal::has_room`].
    ///
    /// # Errors
    /// [`JournalError::Io`] if a full batch could not be written.
    pub fn append(
        &mut self,
        sealer: &Sealer,
        block: BlockIndex,
        sequence: Sequence,
        plain: WriteBuffer<'_>,
    ) -> Result<JournalSlot, JournalError> {
        let block_bytes = self.block_size.bytes();
        debug_assert_eq!(plain.len(), block_bytes);
        self.make_ready(sequence, block_bytes as u64)?;
        let at = self.batch.len();
        match plain.as_single() {
            Some(plain) => self.batch.extend_from_slice(plain),
            None => plain.append_to(&mut self.batch),
        }
        let tag = sealer.seal(Address::data(block), sequence, &mut self.batch[at..]);
        let offset = self.offset_of(self.head);
        self.head += block_bytes as u64;
        self.push(Entry::Data { block, tag });
        Ok(JournalSlot {
            offset,
            tag,
            sequence,
        })
    }

    /// Appends an entry: `count` blocks read as zeroes.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_zero(
        &mut self,
        block: BlockIndex,
        count: u64,
        sequence: Sequence,
    ) -> Result<(), JournalError> {
        self.make_ready(sequence, 0)?;
        self.push(Entry::Zero { block, count });
        Ok(())
    }

    fn push(&mut self, entry: Entry) {
        self.growing
            .as_mut()
            .expect("make_ready began a record")
            .entries
            .push(entry);
    }

    /// Begins a record unless one is open that can take an entry with this sequence
    /// and `payload` bytes.
    fn make_ready(&mut self, sequence: Sequence, payload: u64) -> Result<(), JournalError> {
        if let Some(growing) = &self.growing {
            let expected = growing.first.bits() + growing.entries.len() as u64;
            if growing.entries.len() < ENTRIES_MAX
                && expected == sequence.bits()
                && self.head - growing.position + payload <= self.left_after(growing.position)
            {
                return Ok(());
            }
            self.close_record();
        }
        if self.batch.len() >= BATCH_BYTES_MAX {
            self.write_closed()?;
        }
        let left = self.left_after(self.head);
        if left < PAGE + self.block_size.bytes() as u64 {
            self.write_closed()?;
            self.head += left;
        } else if left == self.ring_bytes {
            // The record before ended exactly at the ring's end.
            self.write_closed()?;
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        self.growing = Some(Growing {
            header_at: self.batch.len(),
            position: self.head,
            first: sequence,
            entries,
        });
        self.batch.resize(self.batch.len() + HEADER_BYTES, 0);
        self.head += PAGE;
        Ok(())
    }

    /// Bytes from log position `position` to the ring's end.
    fn left_after(&self, position: u64) -> u64 {
        self.ring_bytes - position % self.ring_bytes
    }

    fn offset_of(&self, position: u64) -> u64 {
        PAGE + position % self.ring_bytes
    }

    fn close_record(&mut self) {
        if let Some(growing) = self.growing.take() {
            let page = &mut self.batch[growing.header_at..growing.header_at + HEADER_BYTES];
            let block_bytes = u32::try_from(self.block_size.bytes()).expect("at most 64 KiB");
            let Growing {
                position,
                first,
                entries,
                ..
            } = growing;
            let prefix = RecordPrefix {
                position,
                journal: self.id,
                first,
                durable: self.durable,
                block_bytes,
            };
            encode_header(page, &prefix, &entries);
            self.entries = entries;
        }
    }

    /// Ends the batch: writes everything appended to the file, in order.
    ///
    /// # Errors
    /// [`JournalError::Io`]: the caller must stop using the journal.
    pub fn write_batch(&mut self) -> Result<(), JournalError> {
        self.close_record();
        self.write_closed()
    }

    /// Writes the records of the batch, all of which are closed.
    fn write_closed(&mut self) -> Result<(), JournalError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        // A batch is contiguous and ends at `head`; it may end exactly at the
        // ring's end, whence the position of its start.
        let start = self.head - self.batch.len() as u64;
        self.file
            .write_at(&self.batch, self.offset_of(start))
            .map_err(|source| JournalError::Io {
                doing: "write",
                path: self.path.clone(),
                source,
            })?;
        self.batch.clear();
        Ok(())
    }

    /// The ciphertext of the block at file offset `offset`, if it is still in the
    /// batch.
    #[must_use]
    pub fn in_batch(&self, offset: u64) -> Option<&[u8]> {
        if self.batch.is_empty() {
            return None;
        }
        let start = self.offset_of(self.head - self.batch.len() as u64);
        let at = usize::try_from(offset.checked_sub(start)?).ok()?;
        self.batch.get(at..at + self.block_size.bytes())
    }

    /// Releases everything before `position`: it has been destaged.
    pub fn release(&mut self, position: u64) {
        debug_assert!(self.tail <= position && position <= self.head);
        self.tail = position;
    }
}
