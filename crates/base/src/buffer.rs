//! The buffers of requests: memory that a read fills or a write reads, in one or several slices.
//!
//! ```text
//!  one slice    ├────────────── len ──────────────┤
//!  scattered    ├─ a ─┤      ├──── b ────┤   ├─ c ─┤     in this order, without gaps
//! ```
//!
//! The memory of a guest or the buffer of a socket is often not contiguous, so a request has a
//! list of slices. Most requests have one slice, which costs no allocation, no dynamic call and no
//! copy ([`ReadBuffer::as_single`], [`WriteBuffer::as_single`]).
//!
//! Invariants: a buffer's length never changes. Positions count from 0 across all slices.

use std::borrow::Cow;
use std::fmt;
use std::ops::{DerefMut, Range};

/// Memory in several slices, which a read fills one after another.
///
/// The owner of the slices implements this, so that no request needs a list of its own.
pub trait ScatterList {
    /// The length of all slices together, in bytes.
    fn total_bytes(&self) -> usize;

    /// The bytes from `position` to the end of its slice. The result is empty only at the end of
    /// the list.
    fn slice_from(&mut self, position: usize) -> &mut [u8];
}

impl<S: DerefMut<Target = [u8]>> ScatterList for Vec<S> {
    fn total_bytes(&self) -> usize {
        self.iter().map(|slice| slice.len()).sum()
    }

    fn slice_from(&mut self, position: usize) -> &mut [u8] {
        let mut within = position;
        for slice in self {
            match slice.len().checked_sub(within) {
                Some(left) if left > 0 => return &mut slice[within..],
                _ => within -= slice.len(),
            }
        }
        &mut []
    }
}

/// The memory that a read fills.
pub struct ReadBuffer<'a>(ReadMemory<'a>);

enum ReadMemory<'a> {
    Single(&'a mut [u8]),
    Scattered {
        list: &'a mut dyn ScatterList,
        /// The position in the list at which this buffer begins.
        start: usize,
        length: usize,
    },
}

impl<'a> ReadBuffer<'a> {
    /// The buffer of a whole list.
    pub fn scattered(list: &'a mut dyn ScatterList) -> Self {
        let length = list.total_bytes();
        Self(ReadMemory::Scattered {
            list,
            start: 0,
            length,
        })
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            ReadMemory::Single(slice) => slice.len(),
            ReadMemory::Scattered { length, .. } => *length,
        }
    }

    /// Whether the buffer has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same buffer, borrowed for a shorter time, so that the caller has its bytes afterwards.
    #[inline]
    pub fn reborrow(&mut self) -> ReadBuffer<'_> {
        match &mut self.0 {
            ReadMemory::Single(slice) => ReadBuffer(ReadMemory::Single(slice)),
            ReadMemory::Scattered {
                list,
                start,
                length,
            } => ReadBuffer(ReadMemory::Scattered {
                list: &mut **list,
                start: *start,
                length: *length,
            }),
        }
    }

    /// The part of the buffer with the bytes `range`.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    #[inline]
    pub fn part(&mut self, range: Range<usize>) -> ReadBuffer<'_> {
        match &mut self.0 {
            ReadMemory::Single(slice) => ReadBuffer(ReadMemory::Single(&mut slice[range])),
            ReadMemory::Scattered {
                list,
                start,
                length,
            } => {
                assert!(range.start <= range.end && range.end <= *length);
                ReadBuffer(ReadMemory::Scattered {
                    list: &mut **list,
                    start: *start + range.start,
                    length: range.len(),
                })
            }
        }
    }

    /// All bytes as one slice; `None` if there are several slices.
    #[inline]
    pub fn as_single(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            ReadMemory::Single(slice) => Some(slice),
            ReadMemory::Scattered {
                list,
                start,
                length,
            } => list.slice_from(*start).get_mut(..*length),
        }
    }

    /// Calls `visit` with the position and bytes of each slice, in order.
    pub fn for_each_slice(&mut self, mut visit: impl FnMut(usize, &mut [u8])) {
        match &mut self.0 {
            ReadMemory::Single(slice) => visit(0, slice),
            ReadMemory::Scattered {
                list,
                start,
                length,
            } => {
                let mut position = 0;
                while position < *length {
                    let slice = list.slice_from(*start + position);
                    let count = slice.len().min(*length - position);
                    assert!(count > 0, "a scatter list is shorter than `total_bytes`");
                    visit(position, &mut slice[..count]);
                    position += count;
                }
            }
        }
    }

    /// Copies `bytes` into the buffer.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from(&mut self, bytes: &[u8]) {
        if let ReadMemory::Single(slice) = &mut self.0 {
            return slice.copy_from_slice(bytes);
        }
        assert_eq!(self.len(), bytes.len());
        self.for_each_slice(|at, slice| slice.copy_from_slice(&bytes[at..at + slice.len()]));
    }

    /// Sets all bytes to `byte`.
    pub fn fill(&mut self, byte: u8) {
        self.for_each_slice(|_, slice| slice.fill(byte));
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&mut self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.for_each_slice(|_, slice| bytes.extend_from_slice(slice));
        bytes
    }

    /// Calls `fill` with one slice of the buffer's length. If the buffer has several slices, it is
    /// a temporary one, which is copied into the buffer if `is_filled` returns true for the
    /// result.
    #[inline]
    pub fn fill_as_single<R>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> R,
        is_filled: impl FnOnce(&R) -> bool,
    ) -> R {
        if let Some(slice) = self.as_single() {
            return fill(slice);
        }
        let mut scratch = vec![0; self.len()];
        let result = fill(&mut scratch);
        if is_filled(&result) {
            self.copy_from(&scratch);
        }
        result
    }
}

impl<'a> From<&'a mut [u8]> for ReadBuffer<'a> {
    #[inline]
    fn from(slice: &'a mut [u8]) -> Self {
        Self(ReadMemory::Single(slice))
    }
}

impl fmt::Debug for ReadBuffer<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ReadBuffer({} bytes)", self.len())
    }
}

/// The memory that a write reads. Cheap to copy.
#[derive(Clone, Copy)]
pub struct WriteBuffer<'a>(WriteMemory<'a>);

#[derive(Clone, Copy)]
enum WriteMemory<'a> {
    Single(&'a [u8]),
    Scattered {
        /// `start` is within the first slice. Slices after the end are ignored.
        slices: &'a [&'a [u8]],
        /// The position in the list at which this buffer begins.
        start: usize,
        length: usize,
    },
}

impl<'a> WriteBuffer<'a> {
    /// All bytes of a list of slices.
    #[must_use]
    pub fn scattered(slices: &'a [&'a [u8]]) -> Self {
        Self(WriteMemory::Scattered {
            slices,
            start: 0,
            length: slices.iter().map(|slice| slice.len()).sum(),
        })
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            WriteMemory::Single(slice) => slice.len(),
            WriteMemory::Scattered { length, .. } => *length,
        }
    }

    /// Whether the buffer has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of the buffer with the bytes `range`.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    #[inline]
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        match self.0 {
            WriteMemory::Single(slice) => Self(WriteMemory::Single(&slice[range])),
            WriteMemory::Scattered {
                mut slices,
                start,
                length,
            } => {
                assert!(range.start <= range.end && range.end <= length);
                let mut within = start + range.start;
                while let [first, rest @ ..] = slices
                    && within >= first.len()
                    && !rest.is_empty()
                {
                    within -= first.len();
                    slices = rest;
                }
                Self(WriteMemory::Scattered {
                    slices,
                    start: within,
                    length: range.len(),
                })
            }
        }
    }

    /// The bytes before `middle`, and the bytes from it on.
    ///
    /// # Panics
    /// If `middle` is after the end.
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        (self.part(0..middle), self.part(middle..self.len()))
    }

    /// All bytes as one slice; `None` if there are several slices.
    #[inline]
    #[must_use]
    pub fn as_single(&self) -> Option<&'a [u8]> {
        match self.0 {
            WriteMemory::Single(slice) => Some(slice),
            WriteMemory::Scattered {
                slices,
                start,
                length,
            } => match slices.first() {
                Some(first) => first.get(start..start + length),
                None => Some(&[]),
            },
        }
    }

    /// All bytes as one slice, which is a copy if the buffer has several.
    #[inline]
    #[must_use]
    pub fn contiguous(&self) -> Cow<'a, [u8]> {
        match self.as_single() {
            Some(slice) => Cow::Borrowed(slice),
            None => Cow::Owned(self.to_vec()),
        }
    }

    /// The slices in order; none of them is empty.
    pub fn slices(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (single, list, start, length) = match self.0 {
            WriteMemory::Single(slice) => (Some(slice), &[][..], 0, 0),
            WriteMemory::Scattered {
                slices,
                start,
                length,
            } => (None, slices, start, length),
        };
        let (mut skip, mut left) = (start, length);
        let scattered = list.iter().map(move |slice| {
            let begin = skip.min(slice.len());
            let end = (begin + left).min(slice.len());
            skip -= begin;
            left -= end - begin;
            &slice[begin..end]
        });
        let all = single.into_iter().chain(scattered);
        all.filter(|slice| !slice.is_empty())
    }

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        if let Some(slice) = self.as_single() {
            return out.copy_from_slice(slice);
        }
        assert_eq!(self.len(), out.len());
        let mut at = 0;
        for slice in self.slices() {
            out[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends the bytes to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.slices()
            .for_each(|slice| bytes.extend_from_slice(slice));
    }
}

impl<'a> From<&'a [u8]> for WriteBuffer<'a> {
    #[inline]
    fn from(slice: &'a [u8]) -> Self {
        Self(WriteMemory::Single(slice))
    }
}

impl fmt::Debug for WriteBuffer<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "WriteBuffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

    /// Every way to cut ten bytes into three slices, which may be empty, with an empty slice before
    /// the last one.
    fn cuts() -> impl Iterator<Item = Vec<usize>> {
        (0..=10)
            .flat_map(|first| (first..=10).map(move |second| vec![0, first, second, second, 10]))
    }

    fn slices(cut: &[usize]) -> Vec<&'static [u8]> {
        static ALL: [u8; 10] = BYTES;
        cut.windows(2).map(|ends| &ALL[ends[0]..ends[1]]).collect()
    }

    #[test]
    fn a_scattered_write_has_the_bytes_of_its_slices_in_order() {
        for cut in cuts() {
            let list = slices(&cut);
            let buffer = WriteBuffer::scattered(&list);
            assert_eq!(buffer.len(), 10);
            assert_eq!(buffer.to_vec(), BYTES);
            assert_eq!(*buffer.contiguous(), BYTES);
            for start in 0..=10 {
                for end in start..=10 {
                    let part = buffer.part(start..end);
                    assert_eq!(part.to_vec(), BYTES[start..end], "{cut:?} {start}..{end}");
                    let mut out = vec![0; end - start];
                    part.copy_to(&mut out);
                    assert_eq!(out, BYTES[start..end]);
                    let (left, right) = part.split_at((end - start) / 2);
                    assert_eq!([left.to_vec(), right.to_vec()].concat(), out);
                    if let Some(single) = part.as_single() {
                        assert_eq!(single, out);
                    }
                }
            }
        }
    }

    #[test]
    fn a_scattered_read_fills_its_slices_in_order() {
        for cut in cuts() {
            for (start, end) in [(0, 10), (0, 0), (3, 7), (9, 10), (10, 10)] {
                let mut memory: Vec<Vec<u8>> = slices(&cut)
                    .iter()
                    .map(|slice| vec![99; slice.len()])
                    .collect();
                let mut buffer = ReadBuffer::scattered(&mut memory);
                assert_eq!(buffer.len(), 10);
                let mut part = buffer.part(start..end);
                assert_eq!(part.len(), end - start);
                part.copy_from(&BYTES[start..end]);
                assert_eq!(part.to_vec(), BYTES[start..end]);
                if let Some(single) = part.as_single() {
                    assert_eq!(single, &BYTES[start..end]);
                }
                let mut expected = [99; 10];
                expected[start..end].copy_from_slice(&BYTES[start..end]);
                assert_eq!(memory.concat(), expected, "{cut:?}");
            }
        }
    }

    #[test]
    fn a_read_that_did_not_succeed_leaves_scattered_memory_alone() {
        for is_filled in [false, true] {
            let mut memory = vec![vec![7; 2], vec![7; 3]];
            let mut buffer = ReadBuffer::scattered(&mut memory);
            let length = buffer.fill_as_single(
                |slice| {
                    slice.fill(1);
                    slice.len()
                },
                |_| is_filled,
            );
            assert_eq!(length, 5);
            assert_eq!(memory.concat(), [if is_filled { 1 } else { 7 }; 5]);
        }
    }
}
