//! [`OwnedOp`]: an operation that owns its bytes.

use crate::buffer::WriteBuffer;
use crate::device::{BlockDevice, Durability, Extent, Outcome, Started, Token, ZeroMode};
use crate::request::{Op, Request};

/// An operation that can wait in a queue. It owns the bytes of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedOp {
    /// As [`Op::Read`].
    Read {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: usize,
    },
    /// As [`Op::Write`].
    Write {
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
        /// When the request may be acknowledged.
        durability: Durability,
    },
    /// As [`Op::Flush`].
    Flush,
    /// As [`Op::Trim`].
    Trim {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// When the request may be acknowledged.
        durability: Durability,
    },
    /// As [`Op::WriteZeroes`].
    WriteZeroes {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// How the range is written, and when the request may be acknowledged.
        mode: ZeroMode,
    },
    /// As [`Op::Extents`].
    Extents {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
    /// As [`Op::Prefetch`].
    Prefetch {
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
}

impl OwnedOp {
    /// The bytes of a write; `None` for other operations.
    #[must_use]
    pub fn data(&self) -> Option<WriteBuffer<'_>> {
        match self {
            Self::Write { data, .. } => Some(data.as_slice().into()),
            _ => None,
        }
    }

    /// The operation for a device, with memory for its result.
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

    /// Starts the operation on `device`. The outcome is valid if the answer is [`Started::Done`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::OpKind;

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
    fn an_operation_survives_a_round_trip_through_its_owned_form() {
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
}
