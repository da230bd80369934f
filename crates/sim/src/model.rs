//! The plain model: the content that a volume should have, and the contents that it may
//! have after a crash.
//!
//! A [`Timeline`] is the list of a volume's operations in the order of their admission.
//! *Boundary* `k` is the state after the first `k` of them. After a crash, a lost journal
//! or a snapshot the volume must be at some boundary. A power failure may also tear the
//! operation after the boundary: a write of several blocks is not atomic.
//!
//! The model must not know how the engine stores anything.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use base::{BlockSize, ByteRange};

/// A block's content; `None` if it reads as zeroes.
pub type Content = Option<Rc<[u8]>>;

/// Blocks and their contents. Blocks that are not listed read as zeroes.
pub type Blocks = BTreeMap<u64, Content>;

/// The content of a block with these bytes.
#[must_use]
pub fn content(bytes: &[u8]) -> Content {
    bytes.iter().any(|byte| *byte != 0).then(|| bytes.into())
}

/// The blocks that one operation changed, with their new contents.
#[derive(Debug, Default)]
pub struct Operation {
    changes: Vec<(u64, Content)>,
}

/// A change as a client requests it.
#[derive(Debug, Clone)]
pub enum Edit {
    /// Writes bytes.
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes.
        data: Rc<[u8]>,
    },
    /// Zeroes a range.
    Zero(ByteRange),
    /// Zeroes a range, except blocks that it covers in part.
    Trim(ByteRange),
}

impl Edit {
    /// The range that is changed.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        match self {
            Self::Write { offset, data } => ByteRange::new(*offset, data.len() as u64),
            Self::Zero(range) | Self::Trim(range) => *range,
        }
    }

    /// The edit with a trim resolved for a volume of `size_bytes`: it zeroes whole blocks,
    /// and the last block also if the volume ends within it.
    #[must_use]
    pub fn resolved(self, size: BlockSize, size_bytes: u64) -> Self {
        let Self::Trim(ByteRange { offset, length }) = self else {
            return self;
        };
        let block_bytes = size.bytes() as u64;
        let start = offset.next_multiple_of(block_bytes);
        let end = match offset + length {
            end if end == size_bytes => end,
            end => end - end % block_bytes,
        };
        Self::Zero(ByteRange::new(start.min(end), end.saturating_sub(start)))
    }

    /// Whether a block is changed in part, so that the engine must read it first.
    #[must_use]
    pub fn has_edges(&self, size: BlockSize) -> bool {
        let ByteRange { offset, length } = self.range();
        length > 0 && (size.within(offset) != 0 || size.within(offset + length) != 0)
    }
}

/// All operations of a volume, and its newest state.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    operations: Vec<Rc<Operation>>,
    now: Blocks,
}

impl Timeline {
    /// The number of operations: the newest boundary.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there was no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The newest content of `block`.
    #[must_use]
    pub fn now(&self, block: u64) -> &Content {
        self.now.get(&block).unwrap_or(&None)
    }

    /// The operation that a resolved `edit` of the newest state is.
    #[must_use]
    pub fn operation(&self, edit: &Edit, size: BlockSize) -> Operation {
        let block_bytes = size.bytes() as u64;
        let ByteRange { offset, length } = edit.range();
        let end = offset + length;
        if length == 0 {
            return Operation::default();
        }
        let first = offset / block_bytes;
        let last = (end - 1) / block_bytes;
        let touched: Vec<u64> = match edit {
            Edit::Write { .. } => (first..=last).collect(),
            // Blocks that were never written are zero already.
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
                Edit::Write { offset, data } => {
                    let (from, to) = (start - offset, stop - offset);
                    target.copy_from_slice(&data[from as usize..to as usize]);
                }
                _ => target.fill(0),
            }
            (block, content(&bytes))
        });
        Operation {
            changes: changes.collect(),
        }
    }

    /// Appends an operation.
    pub fn push(&mut self, operation: Operation) {
        for (block, content) in &operation.changes {
            self.now.insert(*block, content.clone());
        }
        self.operations.push(Rc::new(operation));
    }

    /// Whether `block` had the content `seen` at some boundary in `range`.
    #[must_use]
    pub fn matches(&self, block: u64, seen: &Content, range: RangeInclusive<usize>) -> bool {
        self.states_of(block, range).any(|state| state == seen)
    }

    /// As [`Timeline::matches`], for the bytes of the block from `within` on.
    #[must_use]
    pub fn matches_part(
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

    /// The contents of `block` at the boundaries in `range`.
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

    /// The boundaries in `range` at which the volume had exactly the contents `seen`. If
    /// `torn`, the operation after the boundary may have changed some of its blocks.
    #[must_use]
    pub fn boundaries(
        &self,
        range: RangeInclusive<usize>,
        torn: bool,
        seen: &Blocks,
    ) -> Vec<usize> {
        let mut allowed = vec![true; self.len() + 1];
        for (block, seen) in seen {
            // The content that was compared last is that of the boundaries from `since` on.
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

    /// The differences between the newest state and `seen`, for messages.
    #[must_use]
    pub fn explain(&self, seen: &Blocks) -> String {
        let mut text = String::new();
        for (block, seen) in seen
            .iter()
            .filter(|(block, seen)| self.now(**block) != *seen)
        {
            let since = (0..=self.len())
                .filter(|boundary| self.matches(*block, seen, *boundary..=*boundary));
            text += &format!(
                "\n    block {block} has its content of boundaries {:?}",
                since.collect::<Vec<_>>()
            );
        }
        text
    }

    /// Forgets the operations after `boundary`. Contents of `seen` that differ from the
    /// boundary's, since an operation was torn, become one more operation.
    pub fn truncate(&mut self, boundary: usize, seen: &Blocks) {
        self.operations.truncate(boundary);
        let operations = std::mem::take(&mut self.operations);
        // Forgotten blocks stay listed, so that their content is checked: zeroes.
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

/// A version, and the boundaries that may be its consistency point.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// The volume's timeline when the version was committed.
    pub timeline: Timeline,
    /// The version is the state of one of these boundaries.
    pub boundaries: RangeInclusive<usize>,
    /// The volume's size in bytes at that time.
    pub size_bytes: u64,
}
