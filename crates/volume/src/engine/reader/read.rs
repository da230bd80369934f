//! Reads that are completed at once, from memory, the journal or the page cache. Others are
//! parked (`parked`).

use std::ops::Range;

use base::{BlockIndex, IoError, Slot, Started, Token};
use cache::host::Tally;
use unit::{SlotRun, Tag};

use super::{Reader, Scratch};
use crate::engine::layers::Source;
use crate::engine::request::PendingRequest;
use crate::journal::{Journal, JournalSlot};
use crate::map::{Entry, PAGE_BYTES, Page, Position};
use crate::scatter::{Buffers, Piece, data_piece};
use crate::seal::Address;

/// Blocks read at once: bounds an owner's scratch memory.
const RUN_BLOCKS_MAX: usize = 64;

/// The number of slots, from the first one on, that are adjacent on units.
#[inline]
fn adjacent_slots(slots: &[(Entry, usize)]) -> usize {
    let first = slots[0].0.location;
    let is_next = |(count, (entry, _)): &(u64, &(Entry, usize))| {
        entry.location.bits() == first.bits() + count && entry.location.segment() == first.segment()
    };
    (0..)
        .zip(slots.iter().take(RUN_BLOCKS_MAX))
        .take_while(is_next)
        .count()
}

/// A block as it was read: its ciphertext, and what opens it.
struct SealedBlock<'a> {
    block: u64,
    sequence: base::Sequence,
    tag: Tag,
    sealed: &'a [u8],
}

impl Reader {
    /// Starts [`base::Op::Read`] of a range within the volume.
    /// `journal` is the one that the layers refer to.
    pub fn start_read(
        &mut self,
        journal: Option<&Journal>,
        token: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Started {
        if out.is_empty() {
            return Started::Done;
        }
        let blocks = self.blocks_of(offset, out.len() as u64);
        match self.start_read_unparked(journal, offset, out) {
            Ok(true) => {
                self.read_ahead_of(blocks, false);
                Started::Done
            }
            Ok(false) => {
                let waiting = PendingRequest::Read {
                    token,
                    offset,
                    length: out.len(),
                };
                self.park_behind(waiting, &blocks);
                self.read_ahead_of(blocks, true);
                Started::Pending
            }
            Err(error) => Started::Failed(error),
        }
    }

    /// Fills `out` if that needs no waiting; parks nothing.
    pub fn start_read_unparked(
        &mut self,
        journal: Option<&Journal>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<bool, IoError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.read_now(journal, offset, out, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn read_now(
        &mut self,
        journal: Option<&Journal>,
        offset: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<bool, IoError> {
        let blocks = self.blocks_of(offset, out.len() as u64);
        scratch.sources.clear();
        for block in blocks {
            let Some(source) = self.resolve_now(block) else {
                return Ok(false);
            };
            scratch.sources.push((block, source));
        }
        scratch.slots.clear();
        let mut index = 0;
        while index < scratch.sources.len() {
            match scratch.sources[index].1 {
                Source::Zero => {
                    let (range, _) = self.part_of(offset, out.len(), scratch.sources[index].0);
                    out[range].fill(0);
                    index += 1;
                }
                Source::Slot(entry) => {
                    scratch.slots.push((entry, index));
                    index += 1;
                }
                Source::Journal(placed) => {
                    let Some(journal) = journal else {
                        return Ok(false);
                    };
                    let run = self.journal_run(journal, &scratch.sources[index..], placed);
                    if !self.read_journal_now(journal, offset, out, index, run, scratch)? {
                        return Ok(false);
                    }
                    index += run;
                }
            }
        }
        self.read_slots_now(offset, out, scratch)
    }

    /// How many blocks, from the first of `sources` on, are adjacent in the journal's
    /// file.
    fn journal_run(
        &self,
        journal: &Journal,
        sources: &[(u64, Source)],
        first: JournalSlot,
    ) -> usize {
        if journal.in_batch(first.offset).is_some() {
            return 1;
        }
        let block_bytes = self.fetcher.block_size.bytes() as u64;
        let mut expected = first.offset;
        let continues = |(_, source): &&(u64, Source)| {
            let next = matches!(source, Source::Journal(placed)
                if placed.offset == expected && journal.in_batch(placed.offset).is_none());
            expected += block_bytes;
            next
        };
        sources
            .iter()
            .take(RUN_BLOCKS_MAX)
            .take_while(continues)
            .count()
    }

    fn read_journal_now(
        &mut self,
        journal: &Journal,
        offset: u64,
        out: &mut [u8],
        index: usize,
        run: usize,
        scratch: &mut Scratch,
    ) -> Result<bool, IoError> {
        let block_bytes = self.fetcher.block_size.bytes();
        let Source::Journal(first) = scratch.sources[index].1 else {
            return Ok(false);
        };
        scratch.sealed.resize(run * block_bytes, 0);
        match journal.in_batch(first.offset) {
            Some(sealed) => scratch.sealed.copy_from_slice(sealed),
            None => {
                let read = journal.file().read_now(&mut scratch.sealed, first.offset);
                if !read.unwrap_or(false) {
                    return Ok(false);
                }
            }
        }
        for turn in 0..run {
            let (block, Source::Journal(placed)) = scratch.sources[index + turn] else {
                return Ok(false);
            };
            let sealed = &scratch.sealed[turn * block_bytes..][..block_bytes];
            let sealed = SealedBlock {
                block,
                sequence: placed.sequence,
                tag: placed.tag,
                sealed,
            };
            if !self.open_into(offset, out, &sealed, &mut scratch.plain) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_slots_now(
        &mut self,
        offset: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<bool, IoError> {
        let block_bytes = self.fetcher.block_size.bytes();
        let slot_bytes = self.fetcher.slot_bytes();
        if scratch.slots.len() > 1 {
            scratch
                .slots
                .sort_unstable_by_key(|(entry, _)| entry.location);
        }
        scratch.tally = Tally::default();
        let mut start = 0;
        while start < scratch.slots.len() {
            let first = scratch.slots[start].0.location;
            let count = adjacent_slots(&scratch.slots[start..]);
            scratch.sealed.resize(count * block_bytes, 0);
            scratch.tags.resize(count, [0; 16]);
            let run = SlotRun {
                segment: first.segment(),
                first: Slot(first.slot().0),
                count: u16::try_from(count).expect("at most RUN_BLOCKS_MAX"),
            };
            let (tags, sealed) = (&mut scratch.tags, &mut scratch.sealed);
            if !self
                .fetcher
                .store
                .read_now(&self.table, run, slot_bytes, tags, sealed)
            {
                if !self.read_cached_now(offset, out, start..start + count, scratch) {
                    return Ok(false);
                }
                start += count;
                continue;
            }
            for turn in 0..count {
                let (entry, index) = scratch.slots[start + turn];
                let block = scratch.sources[index].0;
                let sealed = &scratch.sealed[turn * block_bytes..][..block_bytes];
                let sealed = SealedBlock {
                    block,
                    sequence: entry.sequence,
                    tag: scratch.tags[turn],
                    sealed,
                };
                if !self.open_into(offset, out, &sealed, &mut scratch.plain) {
                    // Another copy may open: the read that waits tries it.
                    return Ok(false);
                }
            }
            start += count;
        }
        if let Some(view) = &self.fetcher.view {
            view.count(&scratch.tally);
        }
        Ok(true)
    }

    /// Reads these slots into their parts of `out`, if the cache has all of them
    /// without waiting.
    fn read_cached_now(
        &self,
        offset: u64,
        out: &mut [u8],
        slots: Range<usize>,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(view) = &self.fetcher.view else {
            return false;
        };
        let Scratch {
            sources,
            slots: all,
            sealed,
            plain,
            tally,
            ..
        } = scratch;
        let piece = |(entry, index): (Entry, usize)| {
            let block = sources[index].0;
            (block, data_piece(BlockIndex(block), entry))
        };
        let slots = &all[slots];
        if slots.len() > 1 && !slots.iter().all(|slot| view.may_have(&piece(*slot).1)) {
            return false;
        }
        let (block_bytes, keyring) = (self.fetcher.block_size.bytes(), &self.fetcher.keyring);
        sealed.resize(block_bytes, 0);
        plain.resize(block_bytes, 0);
        slots.iter().all(|slot| {
            let (block, piece) = piece(*slot);
            let (range, within) = self.part_of(offset, out.len(), block);
            let out = &mut out[range];
            let is_whole = out.len() == block_bytes;
            let buffers = Buffers {
                sealed,
                plain: if is_whole { &mut *out } else { plain },
            };
            if !view.read_now(keyring, &piece, buffers, tally) {
                return false;
            }
            if is_whole {
                return true;
            }
            out.copy_from_slice(&plain[within..within + out.len()]);
            true
        })
    }

    /// Opens a block into its part of `out`.
    #[inline]
    fn open_into(
        &self,
        offset: u64,
        out: &mut [u8],
        of: &SealedBlock<'_>,
        plain: &mut Vec<u8>,
    ) -> bool {
        let SealedBlock {
            block,
            sequence,
            tag,
            sealed,
        } = of;
        let (range, within) = self.part_of(offset, out.len(), *block);
        let sealer = self.fetcher.keyring.of_epoch(sequence.epoch());
        let address = Address::data(BlockIndex(*block));
        if range.len() == sealed.len() {
            return sealer
                .open(address, *sequence, tag, sealed, &mut out[range])
                .is_ok();
        }
        plain.resize(sealed.len(), 0);
        if sealer.open(address, *sequence, tag, sealed, plain).is_err() {
            return false;
        }
        let length = range.len();
        out[range].copy_from_slice(&plain[within..within + length]);
        true
    }

    /// Where a block is; reads map pages as long as that needs no waiting.
    #[inline]
    pub fn resolve_now(&mut self, block: u64) -> Option<Source> {
        loop {
            match self.layers.resolve(block) {
                Ok(source) => return Some(source),
                Err((position, entry)) => {
                    if !self.load_page_now(position, entry) {
                        return None;
                    }
                }
            }
        }
    }

    /// Reads a map page into the cache of pages, if that needs no waiting.
    pub fn load_page_now(&mut self, position: Position, entry: Entry) -> bool {
        let mut plain = Box::new([0; PAGE_BYTES]);
        let is_read = self.read_page_now(position, entry, &mut *plain);
        if is_read {
            self.layers
                .cache
                .insert(entry, Page::from_bytes(plain).into());
        }
        is_read
    }

    /// Reads a page if a local unit or the cache has it without waiting.
    fn read_page_now(&self, position: Position, entry: Entry, plain: &mut [u8]) -> bool {
        let mut sealed = [0; PAGE_BYTES];
        let mut tags = [[0; 16]];
        let location = entry.location;
        let run = SlotRun {
            segment: location.segment(),
            first: location.slot(),
            count: 1,
        };
        let address = position.address();
        let (store, table, keyring) = (&self.fetcher.store, &self.table, &self.fetcher.keyring);
        if !store.read_now(table, run, PAGE_BYTES as u32, &mut tags, &mut sealed) {
            let piece = Piece { entry, address };
            let Some(view) = &self.fetcher.view else {
                return false;
            };
            let mut tally = Tally::default();
            let buffers = Buffers {
                sealed: &mut sealed,
                plain,
            };
            let is_read = view.read_now(keyring, &piece, buffers, &mut tally);
            view.count(&tally);
            return is_read;
        }
        let sealer = keyring.of_epoch(entry.sequence.epoch());
        let opened = sealer.open(address, entry.sequence, &tags[0], &sealed, plain);
        opened.is_ok()
    }
}
