//! What the journal has and the disk below has not: ranges, and the newest change of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::ReadBuffer;

/// A part of a change.
#[derive(Debug, Clone)]
struct Part {
    end: u64,
    sequence: u64,
    /// What the change begins with lies here on the disk.
    origin: u64,
    /// None: zeroes.
    data: Option<Arc<[u8]>>,
}

/// Bytes for a read: where in it, and which; zeroes if none.
#[derive(Debug, Clone)]
pub struct Patch {
    at: usize,
    length: usize,
    from: usize,
    data: Option<Arc<[u8]>>,
}

impl Patch {
    /// Puts the bytes into what was read.
    pub fn apply(&self, out: &mut ReadBuffer<'_>) {
        let mut out = out.part(self.at..self.at + self.length);
        match &self.data {
            Some(data) => out.copy_from(&data[self.from..self.from + self.length]),
            None => out.fill(0),
        }
    }
}

/// Ranges that do not overlap, by where they begin.
#[derive(Debug, Default)]
pub struct Overlay {
    parts: BTreeMap<u64, Part>,
}

impl Overlay {
    /// A newer change of a range.
    pub fn insert(&mut self, offset: u64, length: u64, sequence: u64, data: Option<Arc<[u8]>>) {
        let end = offset + length;
        self.cut(offset);
        self.cut(end);
        let under: Vec<u64> = self.parts.range(offset..end).map(|(at, _)| *at).collect();
        for at in under {
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

    /// Makes a part begin at `at`, if one goes across it.
    fn cut(&mut self, at: u64) {
        let Some((_, part)) = self.parts.range_mut(..at).next_back() else {
            return;
        };
        if part.end > at {
            let behind = part.clone();
            part.end = at;
            self.parts.insert(at, behind);
        }
    }

    /// The change `sequence` of that range is below now.
    pub fn remove(&mut self, offset: u64, length: u64, sequence: u64) {
        let within = self.parts.range(offset..offset + length);
        let is_its = |(at, part): (&u64, &Part)| (part.sequence == sequence).then_some(*at);
        let its: Vec<u64> = within.filter_map(is_its).collect();
        for at in its {
            self.parts.remove(&at);
        }
    }

    /// What a read of the range has to have from here.
    pub fn patches(&self, offset: u64, length: u64) -> Vec<Patch> {
        if self.parts.is_empty() || length == 0 {
            return Vec::new();
        }
        let end = offset.saturating_add(length);
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

    /// How far one kind of content goes from `offset` on, as far as `end`: data, zeroes, or
    /// what is below.
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

/// What a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Data of the journal.
    Data,
    /// Zeroes of the journal.
    Zeroes,
    /// What the disk below has.
    Below,
}

/// Whether the patches are all of a read.
pub fn are_whole(patches: &[Patch], length: usize) -> bool {
    patches.iter().map(|patch| patch.length).sum::<usize>() == length
}
