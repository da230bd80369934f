//! The ring file and its writer.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use base::checksum::crc32c;
use base::codec::{Reader, Writer};
use base::{BlockIndex, BlockSize, Sequence, VolumeId, with_causes};
use unit::Tag;
use world::{File, OpenMode, World};

use super::record::{ENTRIES_MAX, Entry, HEADER_BYTES, Lead, encode_header};
use crate::seal::{Address, Sealer};

const MAGIC: &[u8; 8] = b"SCRJRNL1";
const PAGE: u64 = HEADER_BYTES as u64;
/// A batch that has grown to this is written at once rather than at commit,
/// so that one turn of the loop needs no more memory than this.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Why a journal could not be made, opened or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot {doing} the journal {path}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// It could not be made, and what was made of it could not be removed.
    #[error(
        "{}; its draft {draft} cannot be removed: {removing}",
        with_causes(error)
    )]
    DraftLeft {
        /// Why it could not be made.
        #[source]
        error: Box<JournalError>,
        /// The file that is left; the next attempt removes it.
        draft: String,
        /// Why it could not be removed.
        removing: std::io::Error,
    },
    /// A record that was durable is not there any more, or not whole, though
    /// later ones are.
    #[error(
        "{path} is damaged at byte {offset}: writes that were flushed cannot be read back. \
         Restore the file, or move it away to go on from the last version without them"
    )]
    Damaged {
        /// The file.
        path: String,
        /// Where the damaged record begins, in bytes.
        offset: u64,
    },
    /// The file is not a journal of this volume.
    #[error("{path} is not a journal of {volume}: {reason}; move it away to go on without it")]
    Foreign {
        /// The file.
        path: String,
        /// Whose journal was expected.
        volume: VolumeId,
        /// What was found.
        reason: String,
    },
}

/// Where a block's ciphertext lies in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The tag of its seal.
    pub tag: Tag,
    /// When it was written.
    pub sequence: Sequence,
}

/// A record that still takes entries.
struct Growing {
    /// Where its header page begins in the batch.
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
    /// Log position of the oldest record that is needed.
    tail: u64,
    /// Log position of the next byte.
    head: u64,
    /// Everything before this log position is durable; told in every record,
    /// so that recovery can tell a log that ends from one that has rotted.
    durable: u64,
    /// Sealed records that are not in the file yet; they end at `head`.
    batch: Vec<u8>,
    growing: Option<Growing>,
    /// Kept for its allocation.
    entries: Vec<Entry>,
}

impl Journal {
    /// Makes a new journal of `ring_bytes` (rounded up to whole pages), whose
    /// log begins at `position`.
    ///
    /// # Errors
    /// [`JournalError::Io`], also if there is no room for the ring; nothing is
    /// left of the journal then, or the error is [`JournalError::DraftLeft`].
    pub fn create(
        world: &World,
        path: &Path,
        volume: VolumeId,
        block_size: BlockSize,
        ring_bytes: u64,
        position: u64,
    ) -> Result<Self, JournalError> {
        let ring_bytes = ring_bytes.next_multiple_of(PAGE);
        let id = world.random.u128();
        let name = path.display().to_string();
        let failed = |doing| {
            let path = name.clone();
            move |source| JournalError::Io {
                doing,
                path,
                source,
            }
        };
        // Made under another name first: a journal that exists is whole.
        let draft = path.with_extension("new");
        match world.disk.remove(&draft) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("replace a draft of")(error)),
        }
        let file = world
            .disk
            .open(&draft, OpenMode::CreateNew)
            .map_err(failed("create"))?;
        let fill = || {
            file.allocate(PAGE + ring_bytes)
                .map_err(failed("reserve room for"))?;
            file.write_at(&encode_page(id, volume, ring_bytes), 0)
                .map_err(failed("write"))?;
            file.sync_data().map_err(failed("sync"))?;
            world.disk.rename(&draft, path).map_err(failed("name"))
        };
        if let Err(error) = fill() {
            // What it took of a full disk is given back.
            return Err(match world.disk.remove(&draft) {
                Ok(()) => error,
                // A rename that failed may have been carried out.
                Err(removing) if removing.kind() == ErrorKind::NotFound => error,
                Err(removing) => JournalError::DraftLeft {
                    error: Box::new(error),
                    draft: draft.display().to_string(),
                    removing,
                },
            });
        }
        if let Some(folder) = path.parent() {
            world
                .disk
                .sync_directory(folder)
                .map_err(failed("sync the folder of"))?;
        }
        Ok(Self::over(
            file, name, id, ring_bytes, block_size, position, position,
        ))
    }

    /// Opens the file at `path` and checks whose it is.
    ///
    /// # Errors
    /// [`JournalError`]; `None` if there is no file.
    pub fn open(
        world: &World,
        path: &Path,
        volume: VolumeId,
        block_size: BlockSize,
        position: u64,
    ) -> Result<Option<Self>, JournalError> {
        let name = path.display().to_string();
        let file = match world.disk.open(path, OpenMode::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(JournalError::Io {
                    doing: "open",
                    path: name,
                    source,
                });
            }
        };
        let mut page = [0; HEADER_BYTES];
        let failed = |source| JournalError::Io {
            doing: "read",
            path: name.clone(),
            source,
        };
        let length = file.length().map_err(failed)?;
        let foreign = |reason: &str| JournalError::Foreign {
            path: name.clone(),
            volume,
            reason: reason.to_owned(),
        };
        if length < PAGE {
            return Err(foreign("it is too short"));
        }
        file.read_at(&mut page, 0).map_err(failed)?;
        let (id, owner, ring_bytes) =
            decode_page(&page).ok_or_else(|| foreign("its first page is damaged"))?;
        if owner != volume {
            return Err(foreign(&format!("it belongs to {owner}")));
        }
        if length < PAGE + ring_bytes {
            return Err(foreign("it is shorter than its ring"));
        }
        Ok(Some(Self::over(
            file, name, id, ring_bytes, block_size, position, position,
        )))
    }

    fn over(
        file: Arc<dyn File>,
        path: String,
        id: u128,
        ring_bytes: u64,
        block_size: BlockSize,
        tail: u64,
        head: u64,
    ) -> Self {
        Self {
            file,
            path,
            id,
            ring_bytes,
            block_size,
            tail,
            head,
            durable: tail,
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

    /// Goes on after the records that recovery found.
    pub(crate) fn resume_at(&mut self, head: u64) {
        debug_assert!(self.batch.is_empty() && head >= self.tail);
        self.head = head;
    }

    /// Everything before log position `position` has been synced.
    pub fn synced(&mut self, position: u64) {
        self.durable = self.durable.max(position);
    }

    /// Whether `blocks` more blocks, in whatever records they end up, fit.
    #[must_use]
    pub fn has_room(&self, blocks: u64) -> bool {
        let block_bytes = self.block_size.bytes() as u64;
        // A header for each full record, one for the record begun, one for a
        // gap in the sequences; and what is skipped at the ring's end, once.
        let headers = blocks / ENTRIES_MAX as u64 + 3;
        let needed = blocks * block_bytes + headers * PAGE + PAGE + block_bytes;
        self.used_bytes() + needed <= self.ring_bytes
    }

    /// Appends a block: seals a copy of `plain`. The caller has asked
    /// [`Journal::has_room`].
    ///
    /// # Errors
    /// [`JournalError::Io`] if a full batch could not be written.
    pub fn append(
        &mut self,
        sealer: &Sealer,
        block: BlockIndex,
        sequence: Sequence,
        plain: &[u8],
    ) -> Result<Placed, JournalError> {
        let block_bytes = self.block_size.bytes();
        debug_assert_eq!(plain.len(), block_bytes);
        self.make_ready(sequence, block_bytes as u64)?;
        let at = self.batch.len();
        self.batch.extend_from_slice(plain);
        let tag = sealer.seal(Address::data(block), sequence, &mut self.batch[at..]);
        let offset = self.offset_of(self.head);
        self.head += block_bytes as u64;
        self.push(Entry::Data { block, tag });
        Ok(Placed {
            offset,
            tag,
            sequence,
        })
    }

    /// Appends the fact that `count` blocks read as zeroes.
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

    /// Sees to it that a record is open that can take an entry with this
    /// sequence and `payload` bytes.
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
            self.write_batch()?;
        }
        let left = self.left_after(self.head);
        if left < PAGE + self.block_size.bytes() as u64 {
            self.write_batch()?;
            self.head += left;
        } else if left == self.ring_bytes {
            // The record before ended exactly at the ring's end.
            self.write_batch()?;
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

    /// How many bytes there are from log position `position` to the ring's end.
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
            let lead = Lead {
                position,
                journal: self.id,
                first,
                durable: self.durable,
                block_bytes,
            };
            encode_header(page, &lead, &entries);
            self.entries = entries;
        }
    }

    /// Ends the batch: everything appended is in the file, in order.
    ///
    /// # Errors
    /// [`JournalError::Io`]: the caller must stop using the journal.
    pub fn commit(&mut self) -> Result<(), JournalError> {
        self.close_record();
        self.write_batch()
    }

    fn write_batch(&mut self) -> Result<(), JournalError> {
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

    /// Ciphertext that is still in the batch, if the block at file offset
    /// `offset` is.
    #[must_use]
    pub fn in_batch(&self, offset: u64) -> Option<&[u8]> {
        if self.batch.is_empty() {
            return None;
        }
        let start = self.offset_of(self.head - self.batch.len() as u64);
        let at = usize::try_from(offset.checked_sub(start)?).ok()?;
        self.batch.get(at..at + self.block_size.bytes())
    }

    /// Gives back everything before `position`: it has been destaged.
    pub fn release(&mut self, position: u64) {
        debug_assert!(self.tail <= position && position <= self.head);
        self.tail = position;
    }
}

fn encode_page(id: u128, volume: VolumeId, ring_bytes: u64) -> Vec<u8> {
    let mut page = Vec::with_capacity(HEADER_BYTES);
    page.put_bytes(MAGIC);
    page.put_u128(id);
    page.put_u128(volume.as_u128());
    page.put_u64(ring_bytes);
    let crc = crc32c(&page);
    page.put_u32(crc);
    page.resize(HEADER_BYTES, 0);
    page
}

fn decode_page(page: &[u8; HEADER_BYTES]) -> Option<(u128, VolumeId, u64)> {
    let mut reader = Reader::new(page);
    let magic = reader.bytes(8).ok()?;
    let id = reader.u128().ok()?;
    let volume = VolumeId::from_random(reader.u128().ok()?);
    let ring_bytes = reader.u64().ok()?;
    let sound = magic == MAGIC
        && reader.u32().ok()? == crc32c(&page[..48])
        && ring_bytes > 0
        && ring_bytes.is_multiple_of(PAGE)
        && ring_bytes < 1 << 50;
    sound.then_some((id, volume, ring_bytes))
}
