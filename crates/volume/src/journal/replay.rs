//! Recovery: following the log from where the committed version ends.

use std::io;
use std::sync::Arc;

use base::Sequence;
use world::File;

use super::files::JournalError;
use super::record::{Entry, HEADER_BYTES, Header};
use super::ring::{Journal, JournalSlot};
use crate::seal::{Address, Keyring};

/// A write that recovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayedWrite {
    /// A block, and where its ciphertext is.
    Data {
        /// The block.
        block: base::BlockIndex,
        /// Where it is.
        placed: JournalSlot,
    },
    /// A run of blocks that read as zeroes.
    Zero {
        /// The first block.
        block: base::BlockIndex,
        /// The number of blocks.
        count: u64,
        /// The write's sequence.
        sequence: Sequence,
    },
}

/// Follows the log from the journal's tail, passes each write to `found` in order,
/// and positions the journal after the last one. Writes up to and including `after`
/// are in the committed version. Returns the number of records.
///
/// The end of the log is not an error: a record that was never written, is torn, or
/// was left by an earlier lap simply does not follow. But if a later record says
/// that this one was durable, it has rotted, and what follows it must not vanish
/// silently.
///
/// Every record that follows is written again at the same offset, unchanged. It may
/// be in the page cache only, and after a failed sync Linux considers it clean:
/// without this, a later sync would return `Ok` and save nothing.
///
/// # Errors
/// [`JournalError::Io`] if the file cannot be read or written at all,
/// [`JournalError::Damaged`] if a durable record is not whole.
pub fn replay(
    journal: &mut Journal,
    keyring: &Keyring,
    after: Sequence,
    found: impl FnMut(ReplayedWrite),
) -> Result<u64, JournalError> {
    let (file, path) = (Arc::clone(journal.file()), journal.path().to_owned());
    replay_from(&*file, &path, journal, keyring, after, found)
}

/// As [`replay`], of the log in `former`, which is at `path` and is only
/// read: the records are written into the journal, each where it is there.
/// Both have the same first page.
///
/// # Errors
/// As [`replay`].
pub fn replay_from(
    former: &dyn File,
    path: &str,
    journal: &mut Journal,
    keyring: &Keyring,
    after: Sequence,
    mut found: impl FnMut(ReplayedWrite),
) -> Result<u64, JournalError> {
    let failed = |source| JournalError::Io {
        doing: "replay",
        path: path.to_owned(),
        source,
    };
    let (position, records) =
        follow(former, journal, keyring, after, &mut found).map_err(failed)?;
    if is_known_durable(former, journal, position).map_err(failed)? {
        let offset = HEADER_BYTES as u64 + position % journal.ring_bytes();
        let path = path.to_owned();
        return Err(JournalError::Damaged { path, offset });
    }
    // Half a header that a crash left here could be made whole by half of the
    // next one that a crash tears: both are mostly zeroes. Nothing is written
    // here before that is ruled out.
    if position + HEADER_BYTES as u64 - journal.head() <= journal.ring_bytes() {
        let offset = HEADER_BYTES as u64 + position % journal.ring_bytes();
        let file = journal.file();
        file.write_at(&[0; HEADER_BYTES], offset).map_err(failed)?;
        file.sync_data().map_err(failed)?;
    }
    // The gap at the ring's end is unused: the log continues
    // after the last record, and the writer skips again by the same rule.
    journal.resume_at(position);
    Ok(records)
}

/// Whether some record says that what is at `position`, where the log seems to
/// end, was durable when the record was written.
fn is_known_durable(former: &dyn File, journal: &Journal, position: u64) -> io::Result<bool> {
    /// Bytes read at once.
    const CHUNK_BYTES: usize = 1 << 20;

    let ring_bytes = journal.ring_bytes();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < ring_bytes {
        let length = (ring_bytes - at).min(CHUNK_BYTES as u64) as usize;
        former.read_at(&mut chunk[..length], HEADER_BYTES as u64 + at)?;
        let pages = chunk[..length].as_chunks::<HEADER_BYTES>().0;
        let known = pages.iter().zip(0..).any(|(page, index)| {
            let place = at + index * HEADER_BYTES as u64;
            Header::decode(page).is_ok_and(|header| {
                header.journal == journal.id()
                    && header.position % ring_bytes == place
                    && header.durable > position
            })
        });
        if known {
            return Ok(true);
        }
        at += length as u64;
    }
    Ok(false)
}

/// Follows the log to its end; returns its position and the number of records.
fn follow(
    former: &dyn File,
    journal: &Journal,
    keyring: &Keyring,
    after: Sequence,
    found: &mut impl FnMut(ReplayedWrite),
) -> io::Result<(u64, u64)> {
    let block_size = journal.block_size();
    let block_bytes = block_size.bytes();
    let ring_bytes = journal.ring_bytes();
    let mut position = journal.head();
    let start = position;
    let mut last = after;
    let mut records = 0;
    let mut page = [0; HEADER_BYTES];
    let mut payload = Vec::new();
    let mut plain = vec![0; block_bytes];
    loop {
        let left = ring_bytes - position % ring_bytes;
        if left < (HEADER_BYTES + block_bytes) as u64 {
            position += left;
        }
        former.read_at(&mut page, HEADER_BYTES as u64 + position % ring_bytes)?;
        let Ok(header) = Header::decode(&page) else {
            break;
        };
        let record_end = position + header.record_bytes();
        let follows = header.position == position
            && header.journal == journal.id()
            && header.block_bytes as usize == block_bytes
            && header.first > last
            && header.record_bytes() <= ring_bytes - position % ring_bytes
            && record_end - start <= ring_bytes
            && !header.entries.is_empty();
        if !follows {
            break;
        }
        let payload_at = HEADER_BYTES as u64 + position % ring_bytes + HEADER_BYTES as u64;
        payload.resize(header.payload_blocks() * block_bytes, 0);
        former.read_at(&mut payload, payload_at)?;
        let Some(writes) = open_record(&header, &payload, payload_at, keyring, &mut plain) else {
            break;
        };
        journal
            .file()
            .write_at(&page, HEADER_BYTES as u64 + position % ring_bytes)?;
        journal.file().write_at(&payload, payload_at)?;
        last = Sequence::from_bits(header.first.bits() + header.entries.len() as u64 - 1);
        writes.into_iter().for_each(&mut *found);
        position = record_end;
        records += 1;
    }
    Ok((position, records))
}

/// The writes of a record, if every payload block opens.
fn open_record(
    header: &Header,
    payload: &[u8],
    payload_at: u64,
    keyring: &Keyring,
    plain: &mut [u8],
) -> Option<Vec<ReplayedWrite>> {
    let mut blocks = payload.chunks_exact(plain.len());
    let mut offset = payload_at;
    let mut writes = Vec::with_capacity(header.entries.len());
    for (index, entry) in header.entries.iter().enumerate() {
        let sequence = Sequence::from_bits(header.first.bits().checked_add(index as u64)?);
        writes.push(match *entry {
            Entry::Zero { block, count } => ReplayedWrite::Zero {
                block,
                count,
                sequence,
            },
            Entry::Data { block, tag } => {
                let sealed = blocks.next()?;
                let sealer = keyring.of_epoch(sequence.epoch());
                sealer
                    .open(Address::data(block), sequence, &tag, sealed, plain)
                    .ok()?;
                let placed = JournalSlot {
                    offset,
                    tag,
                    sequence,
                };
                offset += plain.len() as u64;
                ReplayedWrite::Data { block, placed }
            }
        });
    }
    Some(writes)
}
