//! Recovery: following the log from where the committed version ends.

use std::collections::HashSet;
use std::io;

use base::Sequence;

use super::record::{Entry, HEADER_BYTES, Header};
use super::ring::{Journal, JournalError, Placed};
use crate::map;
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
    /// A block that lies in a slot.
    Slot {
        /// The block.
        block: base::BlockIndex,
        /// Where, and what it was sealed with.
        entry: map::Entry,
        /// When it was journaled.
        sequence: Sequence,
    },
}

impl Replayed {
    fn slot(&self) -> Option<(base::BlockIndex, map::Entry)> {
        match self {
            Self::Slot { block, entry, .. } => Some((*block, *entry)),
            Self::Data { .. } | Self::Zero { .. } => None,
        }
    }
}

/// Says which of these slots hold their blocks; an error if that cannot be
/// learnt now.
pub type CheckSlots<'a> =
    &'a dyn Fn(&[(base::BlockIndex, map::Entry)]) -> Result<Vec<bool>, String>;

/// Follows the log from the journal's tail, asks `check` whether the slots that
/// a record names hold what it says, hands each write to `found` in order, and makes the journal go on after the last one. Writes up to and
/// including `after` are in the committed version.
///
/// Where the log ends is not an error: a record that was never written, is
/// torn, or was left by an earlier lap simply does not follow. But if a later
/// record says that this one was durable, it has rotted, and what follows it
/// must not vanish silently.
///
/// Every record that follows is written again where it lies, unchanged. It may
/// be in the page cache only, and after a sync that failed Linux takes it for
/// clean: without this, a later sync would return `Ok` and save nothing.
///
/// # Errors
/// [`JournalError::Io`] if the file cannot be read or written at all,
/// [`JournalError::Damaged`] if a durable record is not whole,
/// [`JournalError::Slots`] if `check` cannot tell.
pub fn replay(
    journal: &mut Journal,
    keyring: &Keyring,
    after: Sequence,
    check: CheckSlots<'_>,
    mut found: impl FnMut(Replayed),
) -> Result<u64, JournalError> {
    let path = journal.path().to_owned();
    let failed = |source| JournalError::Io {
        doing: "replay",
        path: path.clone(),
        source,
    };
    let (position, records) =
        follow(journal, keyring, after, check, &mut found).map_err(|error| match error {
            FollowError::Io(source) => failed(source),
            FollowError::Slots(reason) => JournalError::Slots {
                path: path.clone(),
                reason,
            },
        })?;
    if is_known_durable(journal, position).map_err(failed)? {
        let offset = HEADER_BYTES as u64 + position % journal.ring_bytes();
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
    // What was skipped at the ring's end belongs to nobody: the log goes on
    // after the last record, and the writer skips again by the same rule.
    journal.resume_at(position);
    Ok(records)
}

/// Whether some record beyond `position`, where the log seems to end, was
/// written when what lies at `position` was durable.
fn is_known_durable(journal: &Journal, position: u64) -> io::Result<bool> {
    /// Read at once.
    const CHUNK_BYTES: usize = 1 << 20;

    let ring_bytes = journal.ring_bytes();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < ring_bytes {
        let length = (ring_bytes - at).min(CHUNK_BYTES as u64) as usize;
        journal
            .file()
            .read_at(&mut chunk[..length], HEADER_BYTES as u64 + at)?;
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

enum FollowError {
    Io(io::Error),
    Slots(String),
}

impl From<io::Error> for FollowError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A record that follows.
struct Record {
    start: u64,
    end: u64,
    writes: Vec<Replayed>,
    /// Blocks whose slots do not hold them: indexes into `writes`.
    absent: Vec<usize>,
}

/// Follows the log as far as it goes: where it ends, and how many records it
/// had.
fn follow(
    journal: &Journal,
    keyring: &Keyring,
    after: Sequence,
    check: CheckSlots<'_>,
    found: &mut impl FnMut(Replayed),
) -> Result<(u64, u64), FollowError> {
    let start = journal.head();
    let (records, durable) = whole_records(journal, keyring, after, check)?;
    let count = where_nothing_is_wanting(&records, durable);
    let position = match count.checked_sub(1) {
        Some(last) => records[last].end,
        None => start,
    };
    for record in records.into_iter().take(count) {
        record.writes.into_iter().for_each(&mut *found);
    }
    Ok((position, count as u64))
}

/// How many of `records` there are up to the last one after which no block is
/// wanting. Slots named before log position `durable` were durable.
fn where_nothing_is_wanting(records: &[Record], durable: u64) -> usize {
    let mut wanting: HashSet<u64> = HashSet::new();
    let mut count = 0;
    for (index, record) in records.iter().enumerate() {
        let mut absent = record.absent.iter().copied().peekable();
        for (number, write) in record.writes.iter().enumerate() {
            let is_absent = absent.next_if_eq(&number).is_some();
            match write {
                Replayed::Slot { block, .. } if is_absent && record.start >= durable => {
                    wanting.insert(block.0);
                }
                Replayed::Slot { block, .. } | Replayed::Data { block, .. } => {
                    wanting.remove(&block.0);
                }
                Replayed::Zero { block, count, .. } => {
                    wanting.retain(|wanted| !(block.0..block.0 + count).contains(wanted));
                }
            }
        }
        if wanting.is_empty() {
            count = index + 1;
        }
    }
    count
}

/// The records that follow, each written again where it lies, and the largest
/// log position that one of them says was durable.
fn whole_records(
    journal: &Journal,
    keyring: &Keyring,
    after: Sequence,
    check: CheckSlots<'_>,
) -> Result<(Vec<Record>, u64), FollowError> {
    let block_size = journal.block_size();
    let block_bytes = block_size.bytes();
    let ring_bytes = journal.ring_bytes();
    let mut position = journal.head();
    let start = position;
    let mut last = after;
    let mut records = Vec::new();
    let mut durable = 0;
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
        durable = durable.max(header.durable);
        records.push(Record {
            start: position,
            end: record_end,
            absent: absent_slots(&writes, check)?,
            writes,
        });
        position = record_end;
    }
    Ok((records, durable))
}

/// Which of `writes` name a slot that does not hold the block.
fn absent_slots(writes: &[Replayed], check: CheckSlots<'_>) -> Result<Vec<usize>, FollowError> {
    let (numbers, slots): (Vec<usize>, Vec<_>) = writes
        .iter()
        .enumerate()
        .filter_map(|(number, write)| Some((number, write.slot()?)))
        .unzip();
    if slots.is_empty() {
        return Ok(numbers);
    }
    let whole = check(&slots).map_err(FollowError::Slots)?;
    let absent = numbers
        .into_iter()
        .zip(whole)
        .filter(|(_, is_whole)| !is_whole);
    Ok(absent.map(|(number, _)| number).collect())
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
            Entry::Slot { block, entry } => Replayed::Slot {
                block,
                entry,
                sequence,
            },
        });
    }
    Some(writes)
}
