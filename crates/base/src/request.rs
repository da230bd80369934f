//! [`Request`]: what is asked of a disk, as one value (docs/internals/requests.md).
//!
//! ```text
//!  Request { token, op }
//!                   │  Op        borrows its buffers: what is handed from device to device
//!                   │  OwnedOp   owns its bytes: what waits in a queue
//!                   │  OpKind    carries nothing: what is counted, logged, traced, compared
//! ```
//!
//! Must not know what a device does with a request, or who asks.

use std::fmt;

use crate::buffer::{ReadBuffer, WriteBuffer};
use crate::device::{BlockDevice, Durability, Extent, IoError, Outcome, Started, Token, ZeroMode};

/// A range of a disk's bytes, which need not lie within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ByteRange {
    /// The first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl ByteRange {
    /// A range from `offset` on.
    #[must_use]
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset, length }
    }

    /// The first byte behind it; `u64::MAX` if there is no such number.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Checks that it lies within a disk of `size_bytes`.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] if it does not.
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

/// Which operation a request is, without its range and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// Everything acknowledged before it becomes durable.
    Flush,
    /// A range is given up.
    Trim,
    /// A range becomes zeroes.
    WriteZeroes,
    /// It is asked which parts of a range hold data.
    Extents,
    /// A hint that a range will be read soon.
    Prefetch,
}

impl OpKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteZeroes,
        Self::Extents,
        Self::Prefetch,
    ];

    /// As it is printed.
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

    /// Whether it may change what later reads return.
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
    /// Fills `out` from `offset` on. `out` counts only if the answer is [`Started::Done`]; a
    /// pending read brings its bytes in [`Outcome::Data`].
    Read {
        /// The first byte.
        offset: u64,
        /// Where the bytes go.
        out: ReadBuffer<'a>,
    },
    /// Writes `data` from `offset` on. The device has taken or copied the bytes when `start`
    /// returns anything but [`Started::Busy`].
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes.
        data: WriteBuffer<'a>,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// Makes every write durable that was acknowledged before, on whatever connection.
    Flush,
    /// Gives up a range. Whole blocks in it then read as zeroes; parts of blocks at its ends
    /// may keep their content.
    Trim {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// Makes exactly this range read as zeroes.
    WriteZeroes {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// How, and when it may be acknowledged.
        mode: ZeroMode,
    },
    /// Asks which parts of a range hold data. [`Started::Done`] means that the runs were
    /// appended to `runs`, a pending request brings them in [`Outcome::Extents`]. They begin at
    /// `offset`, are not empty, and may cover less than `length`.
    Extents {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Where the runs go; empty before.
        runs: &'a mut Vec<Extent>,
    },
    /// A hint that the range will be read soon (NBD's CACHE). A device may ignore it.
    Prefetch {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl Op<'_> {
    /// Which operation it is.
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

    /// The bytes of the disk that it concerns; none of a flush.
    #[inline]
    #[must_use]
    pub fn range(&self) -> ByteRange {
        match self {
            Self::Read { offset, out } => ByteRange::new(*offset, out.len() as u64),
            Self::Write { offset, data, .. } => ByteRange::new(*offset, data.len() as u64),
            Self::Flush => ByteRange::default(),
            Self::Trim { offset, length, .. }
            | Self::WriteZeroes { offset, length, .. }
            | Self::Extents { offset, length, .. }
            | Self::Prefetch { offset, length } => ByteRange::new(*offset, *length),
        }
    }

    /// Whether it may change what later reads return.
    #[inline]
    #[must_use]
    pub const fn is_change(&self) -> bool {
        self.kind().is_change()
    }

    /// When it may be acknowledged; volatile of what changes nothing.
    #[inline]
    #[must_use]
    pub const fn durability(&self) -> Durability {
        match self {
            Self::Write { durability, .. } | Self::Trim { durability, .. } => *durability,
            Self::WriteZeroes { mode, .. } => mode.durability,
            _ => Durability::Volatile,
        }
    }

    /// The bytes of a write; `None` of any other operation.
    #[inline]
    #[must_use]
    pub const fn data(&self) -> Option<WriteBuffer<'_>> {
        match self {
            Self::Write { data, .. } => Some(*data),
            _ => None,
        }
    }

    /// The same operation, lent for a shorter time: to ask below and look at it afterwards.
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

    /// What it brought, once it was answered [`Started::Done`], in memory of its own: for who
    /// answers later all the same.
    #[must_use]
    pub fn outcome(&mut self) -> Outcome {
        match self {
            Self::Read { out, .. } => Outcome::Data(out.to_vec()),
            Self::Extents { runs, .. } => Outcome::Extents(std::mem::take(*runs)),
            _ => Outcome::Done,
        }
    }

    /// The operation with memory of its own, for a queue. Copies the bytes of a write.
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

/// An operation that waits in a queue: it owns the bytes of a write, and names the length of
/// what a read will bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedOp {
    /// As [`Op::Read`].
    Read {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: usize,
    },
    /// As [`Op::Write`].
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// As [`Op::Flush`].
    Flush,
    /// As [`Op::Trim`].
    Trim {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// As [`Op::WriteZeroes`].
    WriteZeroes {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// How, and when it may be acknowledged.
        mode: ZeroMode,
    },
    /// As [`Op::Extents`].
    Extents {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// As [`Op::Prefetch`].
    Prefetch {
        /// The first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl OwnedOp {
    /// Which operation it is.
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

    /// The bytes of the disk that it concerns; none of a flush.
    #[must_use]
    pub const fn range(&self) -> ByteRange {
        match self {
            Self::Read { offset, length } => ByteRange::new(*offset, *length as u64),
            Self::Write { offset, data, .. } => ByteRange::new(*offset, data.len() as u64),
            Self::Flush => ByteRange::new(0, 0),
            Self::Trim { offset, length, .. }
            | Self::WriteZeroes { offset, length, .. }
            | Self::Extents { offset, length }
            | Self::Prefetch { offset, length } => ByteRange::new(*offset, *length),
        }
    }

    /// Whether it may change what later reads return.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        self.kind().is_change()
    }

    /// When it may be acknowledged; volatile of what changes nothing.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        match self {
            Self::Write { durability, .. } | Self::Trim { durability, .. } => *durability,
            Self::WriteZeroes { mode, .. } => mode.durability,
            _ => Durability::Volatile,
        }
    }

    /// The bytes of a write; `None` of any other operation.
    #[must_use]
    pub fn data(&self) -> Option<WriteBuffer<'_>> {
        match self {
            Self::Write { data, .. } => Some(data.as_slice().into()),
            _ => None,
        }
    }

    /// The operation as a device takes it, with memory for what it brings.
    #[must_use]
    pub fn borrow<'a>(&'a self, out: &'a mut Vec<u8>, runs: &'a mut Vec<Extent>) -> Op<'a> {
        match self {
            Self::Read { offset, length } => {
                out.clear();
                out.resize(*length, 0);
                Op::Read {
                    offset: *offset,
                    out: out.as_mut_slice().into(),
                }
            }
            Self::Write {
                offset,
                data,
                durability,
            } => Op::Write {
                offset: *offset,
                data: data.as_slice().into(),
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
            Self::Extents { offset, length } => Op::Extents {
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

    /// Starts it on `device`. The outcome counts if the answer is [`Started::Done`].
    pub fn start_on(
        &self,
        device: &mut (impl BlockDevice + ?Sized),
        token: Token,
    ) -> (Started, Outcome) {
        let (mut out, mut runs) = (Vec::new(), Vec::new());
        let op = self.borrow(&mut out, &mut runs);
        let started = device.start(Request { token, op });
        let outcome = match self {
            Self::Read { .. } => Outcome::Data(out),
            Self::Extents { .. } => Outcome::Extents(runs),
            _ => Outcome::Done,
        };
        (started, outcome)
    }
}

/// One request to a [`BlockDevice`].
#[derive(Debug)]
pub struct Request<'a> {
    /// Names it until its [`crate::Completion`].
    pub token: Token,
    /// What is asked.
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

    /// The same request under another token.
    #[inline]
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token, op: self.op }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<OwnedOp> {
        let durability = Durability::Durable;
        let mode = ZeroMode {
            durability,
            may_punch: true,
            fast_only: false,
        };
        let (offset, length) = (5, 7);
        vec![
            OwnedOp::Read { offset, length: 7 },
            OwnedOp::Write {
                offset,
                data: vec![1; 7],
                durability,
            },
            OwnedOp::Flush,
            OwnedOp::Trim {
                offset,
                length,
                durability,
            },
            OwnedOp::WriteZeroes {
                offset,
                length,
                mode,
            },
            OwnedOp::Extents { offset, length },
            OwnedOp::Prefetch { offset, length },
        ]
    }

    #[test]
    fn an_operation_that_waited_in_a_queue_is_the_same_as_before() {
        let kinds: Vec<OpKind> = all().iter().map(OwnedOp::kind).collect();
        assert_eq!(kinds, OpKind::ALL);
        for owned in all() {
            let (mut out, mut runs) = (Vec::new(), Vec::new());
            let mut op = owned.borrow(&mut out, &mut runs);
            assert_eq!(op.kind(), owned.kind());
            assert_eq!(op.range(), owned.range());
            assert_eq!(op.is_change(), owned.is_change());
            assert_eq!(op.to_owned(), owned);
            assert_eq!(op.reborrow().to_owned(), owned);
            let is_durable = op.durability() == Durability::Durable;
            assert_eq!(is_durable, op.is_change());
        }
    }

    #[test]
    fn a_range_that_ends_behind_the_disk_or_all_numbers_is_out_of_range() {
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
