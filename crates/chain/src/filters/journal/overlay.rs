//! [`Overlay`]: the ranges that the journal has and the disk below may not, each with its newest
//! change.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{ByteRange, ReadBuffer};

/// A part of a change.
#[derive(Debug, Clone)]
struct Part {
    end: u64,
    sequence: u64,
    /// The offset on the disk of the change's first byte.
    origin: u64,
    /// `None` for zeroes.
    data: Option<Arc<[u8]>>,
}

/// Bytes that replace a part of what was read below.
#[derive(Debug, Clone)]
pub struct Patch {
    /// Offset in the read, in bytes.
    at: usize,
    length: usize,
    /// Offset in `data`, in bytes.
    from: usize,
    /// `None` for zeroes.
    data: Option<Arc<[u8]>>,
}

impl Patch {
    /// Copies the bytes into the buffer of the read.
    pub fn apply(&self, out: &mut ReadBuffer<'_>) {
        let mut out = out.part(self.at..self.at + self.length);
        match &self.data {
            Some(data) => out.copy_from(&data[self.from..self.from + self.length]),
            None => out.fill(0),
        }
    }
}

/// Parts of changes that do not overlap, by their offset on the disk.
#[derive(Debug, Default)]
pub struct Overlay {
    parts: BTreeMap<u64, Part>,
}

impl Overlay {
    /// Adds a change that is newer than all others.
    pub fn insert(&mut self, range: ByteRange, sequence: u64, data: Option<Arc<[u8]>>) {
        let (offset, end) = (range.offset, range.end());
        self.split(offset);
        self.split(end);
        let covered: Vec<u64> = self.parts.range(offset..end).map(|(at, _)| *at).collect();
        for at in covered {
            self.parts.remove(&at);
        }
        let part = Part {
            end,
            sequence,
            origin: offset,
            data,
        };
        self.parts.insert(offset, part);
    }

    /// Splits the part that contains `at` and begins before it.
    fn split(&mut self, at: u64) {
        let Some((_, part)) = self.parts.range_mut(..at).next_back() else {
            return;
        };
        if part.end > at {
            let behind = part.clone();
            part.end = at;
            self.parts.insert(at, behind);
        }
    }

    /// Removes the rest of the change `sequence`: the disk below has it.
    pub fn remove(&mut self, range: ByteRange, sequence: u64) {
        let within = self.parts.range(range.offset..range.end());
        let is_its = |(at, part): (&u64, &Part)| (part.sequence == sequence).then_some(*at);
        let its: Vec<u64> = within.filter_map(is_its).collect();
        for at in its {
            self.parts.remove(&at);
        }
    }

    /// The patches for a read of `range`.
    pub fn patches(&self, range: ByteRange) -> Vec<Patch> {
        if self.parts.is_empty() || range.length == 0 {
            return Vec::new();
        }
        let (offset, end) = (range.offset, range.end());
        let before = self.parts.range(..offset).next_back();
        let before = before.filter(|(_, part)| part.end > offset);
        let within = self.parts.range(offset..end);
        let patch = |(at, part): (&u64, &Part)| {
            let from = offset.max(*at);
            Patch {
                at: (from - offset) as usize,
                length: (part.end.min(end) - from) as usize,
                from: (from - part.origin) as usize,
                data: part.data.clone(),
            }
        };
        before.into_iter().chain(within).map(patch).collect()
    }

    /// The length and the kind of the longest run of equal content from `offset`, up to `end`.
    pub fn run(&self, offset: u64, end: u64) -> (u64, Run) {
        let before = self.parts.range(..=offset).next_back();
        if let Some((_, part)) = before.filter(|(_, part)| part.end > offset) {
            let run = match part.data {
                Some(_) => Run::Data,
                None => Run::Zeroes,
            };
            return (part.end.min(end) - offset, run);
        }
        let next = self.parts.range(offset..end).next();
        (next.map_or(end, |(at, _)| *at) - offset, Run::Below)
    }
}

/// The kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Data of the journal.
    Data,
    /// Zeroes of the journal.
    Zeroes,
    /// Content of the disk below.
    Below,
}

/// Whether the patches cover the whole read.
pub fn are_complete(patches: &[Patch], length: usize) -> bool {
    patches.iter().map(|patch| patch.length).sum::<usize>() == length
}
