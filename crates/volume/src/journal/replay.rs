//! Recovery: following the log from where the committed version ends.

use std::io;

use base::Sequence;

use super::record::{Entry, HEADER_BYTES, Header};
use super::ring::{Journal, Placed};
use crate::seal::{Address, Keyring};

/// One write that recovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// A block, and where its ciphertext lies.
    Data {
        /// The block.
        block: base::BlockIndex,
        /// Where it lies.
        placed: Placed,
    },
    /// A run of blocks that read as zeroes.
    Zero {
        /// The first block.
        block: base::BlockIndex,
        /// How many.
        count: u64,
        /// When.
        sequence: Sequence,
    },
}

/// Follows the log from the journal's tail, hands each write to `found` in
/// order, and makes the journal go on after the last one. Writes up to and
/// including `after` are in the committed version.
///
/// Where the log ends is not an error: a record that was never written, is
/// torn, is damaged, or was left by an earlier lap simply does not follow.
///
/// Every record that follows is written again where it lies, unchanged. It may
/// be in the page cache only, and after a sync that failed Linux takes it for
/// clean: without this, a later sync would return `Ok` and save nothing.
///
/// # Errors
/// If the file cannot be read or written at all.
pub fn replay(
    journal: &mut Journal,
    keyring: &Keyring,
    after: Sequence,
    mut found: impl FnMut(Replayed),
) -> io::Result<u64> {
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
        journal
            .file()
            .read_at(&mut page, HEADER_BYTES as u64 + position % ring_bytes)?;
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
        journal.file().read_at(&mut payload, payload_at)?;
        let Some(writes) = open_record(&header, &payload, payload_at, keyring, &mut plain) else {
            break;
        };
        journal
            .file()
            .write_at(&page, HEADER_BYTES as u64 + position % ring_bytes)?;
        journal.file().write_at(&payload, payload_at)?;
        last = Sequence::from_bits(header.first.bits() + header.entries.len() as u64 - 1);
        writes.into_iter().for_each(&mut found);
        position = record_end;
        records += 1;
    }
    // What was skipped at the ring's end belongs to nobody: the log goes on
    // after the last record, and the writer skips again by the same rule.
    journal.resume_at(position);
    Ok(records)
}

/// The writes of a record, if every payload block opens.
fn open_record(
    header: &Header,
    payload: &[u8],
    payload_at: u64,
    keyring: &Keyring,
    plain: &mut [u8],
) -> Option<Vec<Replayed>> {
    let mut blocks = payload.chunks_exact(plain.len());
    let mut offset = payload_at;
    let mut writes = Vec::with_capacity(header.entries.len());
    for (index, entry) in header.entries.iter().enumerate() {
        let sequence = Sequence::from_bits(header.first.bits().checked_add(index as u64)?);
        writes.push(match *entry {
            Entry::Zero { block, count } => Replayed::Zero {
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
                let placed = Placed {
                    offset,
                    tag,
                    sequence,
                };
                offset += plain.len() as u64;
                Replayed::Data { block, placed }
            }
        });
    }
    Some(writes)
}
