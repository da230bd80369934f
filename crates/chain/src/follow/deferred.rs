//! [`DeferredChanges`]: the changes of a disk while it is read, which are followed afterwards.

use std::ops::Range;

/// The largest length of all deferred writes, in bytes. The filter's limit on memory counts if it
/// is lower.
const BYTES_MAX: usize = 256 << 20;

/// A change of the disk.
pub enum Change {
    Write { offset: u64, data: Vec<u8> },
    Trim(Range<u64>),
}

/// The changes of the disk while it is read, in order.
pub struct DeferredChanges {
    changes: Vec<Change>,
    bytes: usize,
    bytes_max: usize,
    /// The changes exceeded the limit and were dropped.
    has_overflowed: bool,
}

impl DeferredChanges {
    /// Keeps at most `bytes_max` bytes, and at most [`BYTES_MAX`].
    pub fn new(bytes_max: u64) -> Self {
        Self {
            changes: Vec::new(),
            bytes: 0,
            bytes_max: usize::try_from(bytes_max).map_or(BYTES_MAX, |most| most.min(BYTES_MAX)),
            has_overflowed: false,
        }
    }

    /// The changes in order; `None` if there were more than the limit.
    pub fn into_changes(self) -> Option<Vec<Change>> {
        (!self.has_overflowed).then_some(self.changes)
    }

    pub fn add_write(&mut self, offset: u64, data: &[u8]) {
        if self.has_room(data.len()) {
            self.changes.push(Change::Write {
                offset,
                data: data.to_vec(),
            });
        }
    }

    pub fn add_trim(&mut self, range: Range<u64>) {
        if self.has_room(size_of::<Change>()) {
            self.changes.push(Change::Trim(range));
        }
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.has_overflowed |= self.bytes > self.bytes_max;
        if self.has_overflowed {
            self.changes = Vec::new();
        }
        !self.has_overflowed
    }
}
