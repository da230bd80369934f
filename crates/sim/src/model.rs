//! The plain model: what a volume should hold, and what it may hold after a
//! crash.
//!
//! A volume's past is a list of operations in the order in which they were
//! admitted. A *boundary* `k` is the state after the first `k` of them. All
//! that a crash, a lost journal or a snapshot may show is some boundary; only
//! a crash of the power may cut through the operation at the boundary, for a
//! write of several blocks is not promised to be atomic.
//!
//! It must not know how the engine stores anything.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use base::BlockSize;

/// A block's content; `None` if it reads as zeroes.
pub type Content = Option<Rc<[u8]>>;

/// Blocks and what they hold. Blocks that are not named read as zeroes.
pub type Blocks = BTreeMap<u64, Content>;

/// The content that `bytes` are.
#[must_use]
pub fn content(bytes: &[u8]) -> Content {
    bytes.iter().any(|byte| *byte != 0).then(|| bytes.into())
}

/// What one operation made of each block that it changed.
#[derive(Debug, Default)]
pub struct Operation {
    changes: Vec<(u64, Content)>,
}

/// A change as a client asks for it.
#[derive(Debug, Clone)]
pub enum Edit {
    /// These bytes from that offset on.
    Write(u64, Rc<[u8]>),
    /// Zeroes from an offset on, so many bytes.
    Zero(u64, u64),
    /// As [`Edit::Zero`], but blocks that are covered in part keep their
    /// content.
    Trim(u64, u64),
}

impl Edit {
    /// First byte and length.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match self {
            Self::Write(offset, data) => (*offset, data.len() as u64),
            Self::Zero(offset, length) | Self::Trim(offset, length) => (*offset, *length),
        }
    }

    /// What it comes to for a volume of `size_bytes`: a trim is a zeroing of
    /// whole blocks, and of the last one if the volume ends within it.
    #[must_use]
    pub fn settled(self, size: BlockSize, size_bytes: u64) -> Self {
        let Self::Trim(offset, length) = self else {
            return self;
        };
        let block_bytes = size.bytes() as u64;
        let start = offset.next_multiple_of(block_bytes);
        let end = match offset + length {
            end if end == size_bytes => end,
            end => end - end % block_bytes,
        };
        Self::Zero(start.min(end), end.saturating_sub(start))
    }

    /// Whether it changes a block in part, so that the engine must read it.
    #[must_use]
    pub fn has_edges(&self, size: BlockSize) -> bool {
        let (offset, length) = self.range();
        length > 0 && (size.within(offset) != 0 || size.within(offset + length) != 0)
    }
}

/// The past of a volume.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    operations: Vec<Rc<Operation>>,
    now: Blocks,
}

impl Timeline {
    /// How many operations there were: the newest boundary.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether nothing ever happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// What `block` holds now.
    #[must_use]
    pub fn now(&self, block: u64) -> &Content {
        self.now.get(&block).unwrap_or(&None)
    }

    /// The operation that `edit`, settled, is if it is done now.
    #[must_use]
    pub fn operation(&self, edit: &Edit, size: BlockSize) -> Operation {
        let block_bytes = size.bytes() as u64;
        let (offset, length) = edit.range();
        let end = offset + length;
        if length == 0 {
            return Operation::default();
        }
        let first = offset / block_bytes;
        let last = (end - 1) / block_bytes;
        let touched: Vec<u64> = match edit {
            Edit::Write(..) => (first..=last).collect(),
            // What was never written is zero already.
            _ => self
                .now
                .range(first..=last)
                .map(|(block, _)| *block)
                .collect(),
        };
        let changes = touched.into_iter().map(|block| {
            let mut bytes = match self.now(block) {
                Some(bytes) => bytes.to_vec(),
                None => vec![0; block_bytes as usize],
            };
            let start = offset.max(block * block_bytes);
            let stop = end.min((block + 1) * block_bytes);
            let target = &mut bytes
                [(start - block * block_bytes) as usize..(stop - block * block_bytes) as usize];
            match edit {
                Edit::Write(at, data) => {
                    target.copy_from_slice(&data[(start - at) as usize..(stop - at) as usize]);
                }
                _ => target.fill(0),
            }
            (block, content(&bytes))
        });
        Operation {
            changes: changes.collect(),
        }
    }

    /// Takes an operation over.
    pub fn push(&mut self, operation: Operation) {
        for (block, content) in &operation.changes {
            self.now.insert(*block, content.clone());
        }
        self.operations.push(Rc::new(operation));
    }

    /// Whether `seen` is what `block` held at some boundary in `range`.
    #[must_use]
    pub fn held(&self, block: u64, seen: &Content, range: RangeInclusive<usize>) -> bool {
        self.states_of(block, range).any(|state| state == seen)
    }

    /// As [`Timeline::held`], of the bytes of the block from `within` on.
    #[must_use]
    pub fn held_part(
        &self,
        block: u64,
        within: usize,
        seen: &[u8],
        range: RangeInclusive<usize>,
    ) -> bool {
        self.states_of(block, range).any(|state| match state {
            Some(bytes) => bytes[within..within + seen.len()] == *seen,
            None => seen.iter().all(|byte| *byte == 0),
        })
    }

    /// What `block` held at the boundaries in `range`.
    fn states_of(
        &self,
        block: u64,
        range: RangeInclusive<usize>,
    ) -> impl Iterator<Item = &Content> {
        let (start, end) = range.into_inner();
        let before = self.operations[..start]
            .iter()
            .rev()
            .find_map(|operation| operation.of(block));
        let after = self.operations[start..end]
            .iter()
            .filter_map(move |operation| operation.of(block));
        std::iter::once(before.unwrap_or(&None)).chain(after)
    }

    /// The blocks in `range` that were ever changed.
    pub fn touched_in(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.now.range(range).map(|(block, _)| *block)
    }

    /// The boundaries in `range` at which the volume held exactly `seen`. If
    /// `torn`, the operation after the boundary may have changed some of its
    /// blocks.
    #[must_use]
    pub fn boundaries(
        &self,
        range: RangeInclusive<usize>,
        torn: bool,
        seen: &Blocks,
    ) -> Vec<usize> {
        let mut allowed = vec![true; self.len() + 1];
        for (block, seen) in seen {
            // The boundaries from `since` on hold what was compared last.
            let (mut since, mut matches) = (0, seen.is_none());
            for (index, operation) in self.operations.iter().enumerate() {
                let Some(content) = operation.of(*block) else {
                    continue;
                };
                let matches_after = content == seen;
                if !matches {
                    let end = if torn && matches_after {
                        index
                    } else {
                        index + 1
                    };
                    allowed[since..end].fill(false);
                }
                (since, matches) = (index + 1, matches_after);
            }
            if !matches {
                allowed[since..].fill(false);
            }
        }
        range.filter(|boundary| allowed[*boundary]).collect()
    }

    /// Where the newest state and `seen` differ, for people.
    #[must_use]
    pub fn explain(&self, seen: &Blocks) -> String {
        let mut text = String::new();
        for (block, seen) in seen
            .iter()
            .filter(|(block, seen)| self.now(**block) != *seen)
        {
            let since =
                (0..=self.len()).filter(|boundary| self.held(*block, seen, *boundary..=*boundary));
            text += &format!(
                "\n    block {block} is as it was at {:?}",
                since.collect::<Vec<_>>()
            );
        }
        text
    }

    /// Forgets everything after `boundary`, where the volume is now found with
    /// `seen`.
    pub fn cut(&mut self, boundary: usize, seen: &Blocks) {
        self.operations.truncate(boundary);
        let operations = std::mem::take(&mut self.operations);
        // What it forgets is still looked at, and must not be found.
        self.now.values_mut().for_each(|content| *content = None);
        for operation in &operations {
            for (block, content) in &operation.changes {
                self.now.insert(*block, content.clone());
            }
        }
        self.operations = operations;
        let torn = seen
            .iter()
            .filter(|(block, seen)| self.now(**block) != *seen);
        let changes: Vec<_> = torn.map(|(block, seen)| (*block, seen.clone())).collect();
        if !changes.is_empty() {
            self.push(Operation { changes });
        }
    }
}

impl Operation {
    fn of(&self, block: u64) -> Option<&Content> {
        self.changes
            .iter()
            .find(|(at, _)| *at == block)
            .map(|(_, content)| content)
    }
}

/// A version of which it is known between which boundaries it was cut.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// The volume's past when the version was committed.
    pub timeline: Timeline,
    /// It is one of these boundaries.
    pub boundaries: RangeInclusive<usize>,
    /// The volume's size at the end of it, in bytes.
    pub size_bytes: u64,
}
