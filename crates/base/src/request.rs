//! [`Request`]: one operation on a block device (docs/internals/requests.md).
//!
//! ```text
//!  Request { token, op }
//!                   │  Op        borrows its buffers; devices pass it on
//!                   │  OwnedOp   owns its bytes; it can wait in a queue
//!                   │  OpKind    has no data; for counters, logs and traces
//! ```
//!
//! Must not know: how a device carries out a request, or who the caller is.

use std::fmt;

use crate::buffer::{ReadBuffer, WriteBuffer};
use crate::device::{Durability, Extent, IoError, Outcome, Token, ZeroMode};
use crate::owned_op::OwnedOp;

/// A range of bytes, which may exceed the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ByteRange {
    /// The offset of the first byte.
    pub offset: u64,
    /// The length in bytes.
    pub length: u64,
}

impl ByteRange {
    /// The range of `length` bytes at `offset`.
    #[must_use]
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset, length }
    }

    /// The offset of the end, or `u64::MAX` if that is too large.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Checks that the range is within a disk of `size_bytes`.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`].
    #[inline]
    pub fn check(&self, size_bytes: u64) -> Result<(), IoError> {
        match self.offset.checked_add(self.length) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(IoError::OutOfRange {
                offset: self.offset,
                length: self.length,
                size: size_bytes,
            }),
        }
    }
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes acknowledged changes durable.
    Flush,
    /// Discards a range.
    Trim,
    /// Makes a range read as zeroes.
    WriteZeroes,
    /// Lists the extents of a range.
    Extents,
    /// Announces that a range will be read soon.
    Prefetch,
}

impl OpKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteZeroes,
        Self::Extents,
        Self::Prefetch,
    ];

    /// The name in texts, such as `write-zeroes`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteZeroes => "write-zeroes",
            Self::Extents => "extents",
            Self::Prefetch => "prefetch",
        }
    }

    /// Whether the operation may change what later reads return.
    #[inline]
    #[must_use]
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// An operation on a disk, with the memory that it reads into or writes from.
#[derive(Debug)]
pub enum Op<'a> {
    /// Reads bytes into `out`. They are valid only if the answer is `Started::Done`; a pending read
    /// has its bytes in [`Outcome::Data`].
    Read {
        /// The offset of the first byte.
        offset: u64,
        /// The memory for the bytes.
        out: ReadBuffer<'a>,
    },
    /// Writes `data`. The device has used or copied the bytes when `start` returns, unless the
    /// answer is `Started::Busy`.
    Write {
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        data: WriteBuffer<'a>,
        /// When the request may be acknowledged.
        durability: Durability,
    },
    /// Makes every change durable that was acknowledged before, on any connection.
    Flush,
    /// Discards a range. Its whole blocks read as zeroes afterwards; parts of blocks at its ends
    /// may keep their content.
    Trim {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// When the request may be acknowledged.
        durability: Durability,
    },
    /// Makes exactly this range read as zeroes.
    WriteZeroes {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// How the range is written, and when the request may be acknowledged.
        mode: ZeroMode,
    },
    /// Lists the extents of a range. If the answer is `Started::Done`, they were appended to
    /// `runs`; a pending request has them in [`Outcome::Extents`]. They begin at `offset`, have at
    /// least one byte, and may cover less than `length`.
    Extents {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// The list for the extents, which is empty.
        runs: &'a mut Vec<Extent>,
    },
    /// Announces that the range will be read soon (NBD's CACHE). A device may ignore it.
    Prefetch {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
}

/// Implements the questions that [`Op`] and [`OwnedOp`] answer alike. `$memory => $length` is the
/// field of a read from which its length comes.
macro_rules! describe_operation {
    ($op:ty, $memory:ident => $length:expr) => {
        impl $op {
            /// The kind of the operation.
            #[inline]
            #[must_use]
            pub const fn kind(&self) -> OpKind {
                match self {
                    Self::Read { .. } => OpKind::Read,
                    Self::Write { .. } => OpKind::Write,
                    Self::Flush => OpKind::Flush,
                    Self::Trim { .. } => OpKind::Trim,
                    Self::WriteZeroes { .. } => OpKind::WriteZeroes,
                    Self::Extents { .. } => OpKind::Extents,
                    Self::Prefetch { .. } => OpKind::Prefetch,
                }
            }

            /// The range of the operation; empty for a flush.
            #[inline]
            #[must_use]
            pub fn range(&self) -> ByteRange {
                match self {
                    Self::Read { offset, $memory } => ByteRange::new(*offset, $length as u64),
                    Self::Write { offset, data, .. } => ByteRange::new(*offset, data.len() as u64),
                    Self::Flush => ByteRange::default(),
                    Self::Trim { offset, length, .. }
                    | Self::WriteZeroes { offset, length, .. }
                    | Self::Extents { offset, length, .. }
                    | Self::Prefetch { offset, length } => ByteRange::new(*offset, *length),
                }
            }

            /// Whether the operation may change what later reads return.
            #[inline]
            #[must_use]
            pub const fn is_change(&self) -> bool {
                self.kind().is_change()
            }

            /// When the operation may be acknowledged; volatile if it changes nothing.
            #[inline]
            #[must_use]
            pub const fn durability(&self) -> Durability {
                match self {
                    Self::Write { durability, .. } | Self::Trim { durability, .. } => *durability,
                    Self::WriteZeroes { mode, .. } => mode.durability,
                    _ => Durability::Volatile,
                }
            }
        }
    };
}

describe_operation!(Op<'_>, out => out.len());
describe_operation!(OwnedOp, length => *length);

impl Op<'_> {
    /// The bytes of a write; `None` for other operations.
    #[inline]
    #[must_use]
    pub const fn data(&self) -> Option<WriteBuffer<'_>> {
        match self {
            Self::Write { data, .. } => Some(*data),
            _ => None,
        }
    }

    /// The same operation, borrowed for a shorter time, so that the caller has it afterwards.
    #[inline]
    pub fn reborrow(&mut self) -> Op<'_> {
        match self {
            Self::Read { offset, out } => Op::Read {
                offset: *offset,
                out: out.reborrow(),
            },
            Self::Write {
                offset,
                data,
                durability,
            } => Op::Write {
                offset: *offset,
                data: *data,
                durability: *durability,
            },
            Self::Flush => Op::Flush,
            Self::Trim {
                offset,
                length,
                durability,
            } => Op::Trim {
                offset: *offset,
                length: *length,
                durability: *durability,
            },
            Self::WriteZeroes {
                offset,
                length,
                mode,
            } => Op::WriteZeroes {
                offset: *offset,
                length: *length,
                mode: *mode,
            },
            Self::Extents {
                offset,
                length,
                runs,
            } => Op::Extents {
                offset: *offset,
                length: *length,
                runs,
            },
            Self::Prefetch { offset, length } => Op::Prefetch {
                offset: *offset,
                length: *length,
            },
        }
    }

    /// The result of an operation that was `Started::Done`, in its own memory, for a caller that
    /// completes it later.
    #[must_use]
    pub fn outcome(&mut self) -> Outcome {
        match self {
            Self::Read { out, .. } => Outcome::Data(out.to_vec()),
            Self::Extents { runs, .. } => Outcome::Extents(std::mem::take(*runs)),
            _ => Outcome::Done,
        }
    }

    /// The operation with its own memory, for a queue. The bytes of a write are copied.
    #[must_use]
    pub fn to_owned(&self) -> OwnedOp {
        match *self {
            Self::Read { offset, ref out } => OwnedOp::Read {
                offset,
                length: out.len(),
            },
            Self::Write {
                offset,
                data,
                durability,
            } => OwnedOp::Write {
                offset,
                data: data.to_vec(),
                durability,
            },
            Self::Flush => OwnedOp::Flush,
            Self::Trim {
                offset,
                length,
                durability,
            } => OwnedOp::Trim {
                offset,
                length,
                durability,
            },
            Self::WriteZeroes {
                offset,
                length,
                mode,
            } => OwnedOp::WriteZeroes {
                offset,
                length,
                mode,
            },
            Self::Extents { offset, length, .. } => OwnedOp::Extents { offset, length },
            Self::Prefetch { offset, length } => OwnedOp::Prefetch { offset, length },
        }
    }
}

/// One request to a [`BlockDevice`](crate::BlockDevice).
#[derive(Debug)]
pub struct Request<'a> {
    /// The token, which its [`crate::Completion`] repeats.
    pub token: Token,
    /// The operation.
    pub op: Op<'a>,
}

impl<'a> Request<'a> {
    /// [`Op::Read`] into one slice.
    #[inline]
    #[must_use]
    pub fn read(token: Token, offset: u64, out: &'a mut [u8]) -> Self {
        let out = out.into();
        let op = Op::Read { offset, out };
        Self { token, op }
    }

    /// [`Op::Write`] of one slice.
    #[inline]
    #[must_use]
    pub fn write(token: Token, offset: u64, data: &'a [u8], durability: Durability) -> Self {
        let op = Op::Write {
            offset,
            data: data.into(),
            durability,
        };
        Self { token, op }
    }

    /// [`Op::Flush`].
    #[inline]
    #[must_use]
    pub const fn flush(token: Token) -> Self {
        let op = Op::Flush;
        Self { token, op }
    }

    /// [`Op::Trim`].
    #[inline]
    #[must_use]
    pub const fn trim(token: Token, offset: u64, length: u64, durability: Durability) -> Self {
        let op = Op::Trim {
            offset,
            length,
            durability,
        };
        Self { token, op }
    }

    /// [`Op::WriteZeroes`].
    #[inline]
    #[must_use]
    pub const fn write_zeroes(token: Token, offset: u64, length: u64, mode: ZeroMode) -> Self {
        let op = Op::WriteZeroes {
            offset,
            length,
            mode,
        };
        Self { token, op }
    }

    /// [`Op::Extents`].
    #[inline]
    #[must_use]
    pub const fn extents(
        token: Token,
        offset: u64,
        length: u64,
        runs: &'a mut Vec<Extent>,
    ) -> Self {
        let op = Op::Extents {
            offset,
            length,
            runs,
        };
        Self { token, op }
    }

    /// [`Op::Prefetch`].
    #[inline]
    #[must_use]
    pub const fn prefetch(token: Token, offset: u64, length: u64) -> Self {
        let op = Op::Prefetch { offset, length };
        Self { token, op }
    }

    /// The same request with another token.
    #[inline]
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token, op: self.op }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_ends_after_the_disk_or_overflows_is_out_of_range() {
        for (offset, length, is_within) in [
            (0, 10, true),
            (10, 0, true),
            (9, 2, false),
            (11, 0, false),
            (u64::MAX, 1, false),
        ] {
            let checked = ByteRange::new(offset, length).check(10);
            let size = 10;
            let expected = match is_within {
                true => Ok(()),
                false => Err(IoError::OutOfRange {
                    offset,
                    length,
                    size,
                }),
            };
            assert_eq!(checked, expected);
        }
    }
}
