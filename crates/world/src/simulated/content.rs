//! The content of simulated files: pages that copies share until one of them is written.
//!
//! ```text
//!  live     what a process reads        ┐ both are `Content`; a page that is
//!  durable  what a crash leaves         ┘ the same in both exists once
//!  pending  the changes of `live` since the last sync, oldest first
//! ```
//!
//! A sync costs time for what was changed since the last one, a copy of a file costs one pointer
//! per page, and a hole costs nothing.
//!
//! Must not know: names, faults and processes.

use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::SimulatedRandom;

/// The unit of allocation, in bytes. A hole consists of whole pages.
pub(super) const PAGE_BYTES: usize = 4096;

/// The unit that survives a crash or is lost as a whole, in bytes.
pub(super) const SECTOR_BYTES: usize = 512;

type Page = [u8; PAGE_BYTES];

/// The page of a range that was reserved and never written.
fn zero_page() -> Arc<Page> {
    static ZERO: OnceLock<Arc<Page>> = OnceLock::new();
    Arc::clone(ZERO.get_or_init(|| Arc::new([0; PAGE_BYTES])))
}

/// A sparse array of bytes. Holes, and bytes past the last page, are zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pages: Vec<Option<Arc<Page>>>,
    length: u64,
}

/// A file as one process sees it and as a crash would leave it.
#[derive(Debug, Clone, Default)]
pub(super) struct FileContent {
    pub(super) live: Content,
    pub(super) durable: Content,
    pending: Vec<Change>,
}

/// A change of a file.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    SetLength(u64),
    Allocate(u64),
    Punch { offset: u64, length: u64 },
}

/// The probability, in eighths, that a change that was not synced survives a crash. It is chosen
/// once for each crash, so that "nothing survived" and "everything survived" happen often.
#[derive(Debug, Clone, Copy)]
pub(super) struct Survival(u64);

impl Survival {
    pub(super) fn choose(random: &SimulatedRandom) -> Self {
        Self(random.below(5) * 2)
    }

    pub(super) fn survives(self, random: &SimulatedRandom) -> bool {
        random.below(8) < self.0
    }
}

fn page_of(offset: u64) -> usize {
    usize::try_from(offset / PAGE_BYTES as u64).expect("a simulated file fits in memory")
}

fn within_page(offset: u64) -> usize {
    (offset % PAGE_BYTES as u64) as usize
}

fn pages_covering(offset: u64, length: u64) -> Range<usize> {
    page_of(offset)..page_of((offset + length).next_multiple_of(PAGE_BYTES as u64))
}

/// The pieces of `offset..offset + length` that lie within one aligned `size`.
fn pieces(offset: u64, length: u64, size: usize) -> impl Iterator<Item = Range<u64>> {
    let size = size as u64;
    let end = offset + length;
    let mut position = offset;
    std::iter::from_fn(move || {
        (position < end).then(|| {
            let piece = position..end.min((position / size + 1) * size);
            position = piece.end;
            piece
        })
    })
}

impl Content {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        (self.pages.iter().flatten().count() * PAGE_BYTES) as u64
    }

    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        if offset + into.len() as u64 > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut filled = 0;
        for piece in pieces(offset, into.len() as u64, PAGE_BYTES) {
            let count = (piece.end - piece.start) as usize;
            let start = within_page(piece.start);
            let target = &mut into[filled..filled + count];
            match self.pages.get(page_of(piece.start)) {
                Some(Some(page)) => target.copy_from_slice(&page[start..start + count]),
                _ => target.fill(0),
            }
            filled += count;
        }
        Ok(())
    }

    /// The space that `change` needs in addition to what is allocated, in bytes.
    pub(super) fn space_for(&self, change: &Change) -> u64 {
        let range = match change {
            Change::Write { offset, bytes } => pages_covering(*offset, bytes.len() as u64),
            Change::Allocate(length) => pages_covering(0, *length),
            Change::SetLength(_) | Change::Punch { .. } => return 0,
        };
        let present = self.pages.iter().take(range.end).skip(range.start);
        ((range.len() - present.flatten().count()) * PAGE_BYTES) as u64
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => self.write(*offset, bytes),
            Change::SetLength(length) => self.set_length(*length),
            Change::Allocate(length) => {
                let pages = pages_covering(0, *length).end;
                self.grow_to(pages);
                for page in &mut self.pages[..pages] {
                    page.get_or_insert_with(zero_page);
                }
                self.set_length(*length);
            }
            Change::Punch { offset, length } => self.punch(*offset, *length),
        }
    }

    /// Flips one bit of the stored bytes.
    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) {
        if offset < self.length {
            let mut byte = [0];
            self.read(&mut byte, offset).expect("it is in the file");
            self.write(offset, &[byte[0] ^ (1 << (bit % 8))]);
        }
    }

    fn grow_to(&mut self, pages: usize) {
        if self.pages.len() < pages {
            self.pages.resize(pages, None);
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.grow_to(pages_covering(offset, bytes.len() as u64).end);
        let mut taken = 0;
        for piece in pieces(offset, bytes.len() as u64, PAGE_BYTES) {
            let count = (piece.end - piece.start) as usize;
            let start = within_page(piece.start);
            let source = &bytes[taken..taken + count];
            let page = &mut self.pages[page_of(piece.start)];
            match source.try_into() {
                Ok(whole) => *page = Some(Arc::new(whole)),
                Err(_) => {
                    let page = Arc::make_mut(page.get_or_insert_with(zero_page));
                    page[start..start + count].copy_from_slice(source);
                }
            }
            taken += count;
        }
        self.length = self.length.max(offset + bytes.len() as u64);
    }

    fn set_length(&mut self, length: u64) {
        if length < self.length {
            let pages = pages_covering(0, length).end;
            self.pages.truncate(pages);
            if let Some(Some(last)) = self.pages.get_mut(page_of(length)) {
                Arc::make_mut(last)[within_page(length)..].fill(0);
            }
        }
        self.length = length;
    }

    fn punch(&mut self, offset: u64, length: u64) {
        let length = length.min(self.length.saturating_sub(offset));
        for piece in pieces(offset, length, PAGE_BYTES) {
            let Some(page) = self.pages.get_mut(page_of(piece.start)) else {
                return;
            };
            if piece.end - piece.start == PAGE_BYTES as u64 {
                *page = None;
            } else if let Some(page) = page {
                let start = within_page(piece.start);
                let count = (piece.end - piece.start) as usize;
                Arc::make_mut(page)[start..start + count].fill(0);
            }
        }
    }

    /// Copies the pages that `change` touched from `other`, as they are there now.
    fn take_touched(&mut self, other: &Self, change: &Change) {
        let range = match change {
            Change::Write { offset, bytes } => pages_covering(*offset, bytes.len() as u64),
            Change::Punch { offset, length } => pages_covering(*offset, *length),
            Change::Allocate(_) => 0..other.pages.len(),
            Change::SetLength(length) => {
                self.pages.truncate(other.pages.len());
                page_of(*length)..other.pages.len()
            }
        };
        self.grow_to(other.pages.len());
        for index in range.start..range.end.min(other.pages.len()) {
            self.pages[index].clone_from(&other.pages[index]);
        }
    }
}

impl FileContent {
    pub(super) fn change(&mut self, change: Change) {
        self.live.apply(&change);
        self.pending.push(change);
    }

    /// Makes all changes durable.
    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            self.durable.take_touched(&self.live, &change);
        }
        self.durable.length = self.live.length;
        self.durable.pages.truncate(self.live.pages.len());
    }

    /// Lets a sync fail: some changes become durable and the others never will, although the
    /// process still reads them and the next sync returns `Ok`. Linux behaves so, since it marks
    /// the pages as clean.
    pub(super) fn fail_sync(&mut self, random: &SimulatedRandom) {
        self.lose_pending(Survival::choose(random), random);
    }

    /// Drops the live bytes that do not wait for a sync, so that the durable ones are read. The
    /// length of the file stays.
    pub(super) fn forget_clean(&mut self) {
        let length = self.live.length;
        self.live = self.durable.clone();
        for change in &self.pending {
            self.live.apply(change);
        }
        self.live.set_length(length);
    }

    /// Leaves the durable bytes and a random part of the pending changes.
    pub(super) fn crash(&mut self, survival: Survival, random: &SimulatedRandom) {
        self.lose_pending(survival, random);
        self.live = self.durable.clone();
    }

    fn lose_pending(&mut self, survival: Survival, random: &SimulatedRandom) {
        let mut pending = std::mem::take(&mut self.pending);
        random.shuffle(&mut pending);
        for change in pending {
            match survival.survives(random) {
                true if random.below(2) == 0 => self.durable.apply(&change),
                true => self.tear(&change, random),
                false => {
                    // The new length was written and the bytes were not.
                    if let Change::Write { offset, bytes } = &change
                        && random.below(8) == 0
                        && survival.survives(random)
                    {
                        let end = offset + bytes.len() as u64;
                        self.durable.length = self.durable.length.max(end);
                    }
                }
            }
        }
    }

    /// Applies a random part of the change's sectors.
    fn tear(&mut self, change: &Change, random: &SimulatedRandom) {
        match change {
            Change::Write { offset, bytes } => {
                for piece in pieces(*offset, bytes.len() as u64, SECTOR_BYTES) {
                    if random.below(2) == 0 {
                        let start = (piece.start - offset) as usize;
                        let end = (piece.end - offset) as usize;
                        self.durable.write(piece.start, &bytes[start..end]);
                    }
                }
            }
            Change::Punch { offset, length } => {
                for piece in pieces(*offset, *length, PAGE_BYTES) {
                    if random.below(2) == 0 {
                        self.durable.punch(piece.start, piece.end - piece.start);
                    }
                }
            }
            whole => self.durable.apply(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, bytes: &[u8]) -> Change {
        Change::Write {
            offset,
            bytes: bytes.into(),
        }
    }

    fn bytes_of(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.length() as usize];
        content.read(&mut bytes, 0).expect("its own length");
        bytes
    }

    /// Compares with a plain vector to which the same changes are made.
    #[test]
    fn sparse_content_equals_a_plain_array() {
        let random = SimulatedRandom::new(1);
        for _ in 0..200 {
            let mut file = FileContent::default();
            let mut plain: Vec<u8> = Vec::new();
            for _ in 0..30 {
                let offset = random.below(20_000);
                let length = random.below(9_000) + 1;
                let end = (offset + length) as usize;
                match random.below(6) {
                    0 => {
                        file.change(Change::SetLength(offset));
                        plain.resize(offset as usize, 0);
                    }
                    1 => {
                        file.change(Change::Allocate(offset));
                        plain.resize(offset as usize, 0);
                    }
                    2 => {
                        file.change(Change::Punch { offset, length });
                        let end = end.min(plain.len());
                        if (offset as usize) < end {
                            plain[offset as usize..end].fill(0);
                        }
                    }
                    3 => file.sync(),
                    _ => {
                        let byte = random.below(256) as u8;
                        file.change(write(offset, &vec![byte; length as usize]));
                        plain.resize(plain.len().max(end), 0);
                        plain[offset as usize..end].fill(byte);
                    }
                }
                assert_eq!(bytes_of(&file.live), plain);
            }
            file.sync();
            assert_eq!(bytes_of(&file.durable), plain);
            file.crash(Survival(0), &random);
            assert_eq!(bytes_of(&file.live), plain);
        }
    }

    #[test]
    fn holes_take_no_space_and_reserved_pages_do() {
        let mut file = FileContent::default();
        file.change(Change::SetLength(1 << 30));
        assert_eq!(file.live.allocated_bytes(), 0);
        assert_eq!(file.live.space_for(&write(4095, &[1, 2])), 8192);
        file.change(Change::Allocate(8192));
        assert_eq!(file.live.allocated_bytes(), 8192);
        assert_eq!(file.live.space_for(&write(4095, &[1, 2])), 0);
        file.change(Change::Punch {
            offset: 0,
            length: 4096,
        });
        assert_eq!(file.live.allocated_bytes(), 4096);
    }

    #[test]
    fn a_sync_after_a_failed_one_does_not_save_what_was_lost() {
        let random = SimulatedRandom::new(3);
        let lost = (0..100).filter(|_| {
            let mut file = FileContent::default();
            file.change(write(0, &[1; 512]));
            file.sync();
            file.change(write(0, &[2; 512]));
            file.fail_sync(&random);
            file.sync();
            assert_eq!(bytes_of(&file.live), [2; 512]);
            file.crash(Survival(0), &random);
            bytes_of(&file.live) == [1; 512]
        });
        assert!(lost.count() > 10);
    }
}
