//! [`Record`]: one request that has ended.

use base::codec::{OutOfBytes, Reader, Writer as _};
use base::{ByteRange, OpKind};

/// The length of a record, in bytes.
pub const RECORD_BYTES: usize = 40;

/// The flag of a request that is durable when it completes.
const FUA: u8 = 1;

/// The flag of a request whose zeroes may become a hole.
const MAY_PUNCH: u8 = 2;

/// The kinds of operations in the order of their numbers in a record. Requests for extents are not
/// recorded.
const KINDS: [OpKind; 6] = [
    OpKind::Read,
    OpKind::Write,
    OpKind::Flush,
    OpKind::Trim,
    OpKind::WriteZeroes,
    OpKind::Prefetch,
];

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request succeeded.
    Done,
    /// The request failed.
    Failed,
}

impl Outcome {
    /// The result's name, for display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// One request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The time at which the request began, in nanoseconds since the start of the trace.
    pub time_ns: u64,
    /// The duration of the request, in nanoseconds; 0 if it is unknown.
    pub latency_ns: u64,
    /// The first byte of the request's range; 0 for a flush.
    pub offset: u64,
    /// The length of the request's range, in bytes; 0 for a flush.
    pub length: u64,
    /// The operation; never [`OpKind::Extents`].
    pub kind: OpKind,
    /// Whether the request was durable when it was answered.
    pub is_fua: bool,
    /// Whether written zeroes may become a hole.
    pub may_punch: bool,
    /// The result.
    pub outcome: Outcome,
}

impl Record {
    /// A successful request of which only the operation, the time and the range are known.
    #[must_use]
    pub const fn plain(kind: OpKind, time_ns: u64, range: ByteRange) -> Self {
        Self {
            time_ns,
            latency_ns: 0,
            offset: range.offset,
            length: range.length,
            kind,
            is_fua: false,
            may_punch: false,
            outcome: Outcome::Done,
        }
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        for word in [self.time_ns, self.latency_ns, self.offset, self.length] {
            into.put_u64(word);
        }
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        into.put_u8(kind.expect("requests for extents are not recorded") as u8);
        let fua = u8::from(self.is_fua) * FUA;
        into.put_u8(fua | (u8::from(self.may_punch) * MAY_PUNCH));
        into.put_u8(match self.outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
        });
        into.put_bytes(&[0; 5]);
    }

    /// Reads a record; `None` if it is invalid.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>, OutOfBytes> {
        let (time_ns, latency_ns) = (reader.u64()?, reader.u64()?);
        let (offset, length) = (reader.u64()?, reader.u64()?);
        let (kind, flags, outcome) = (reader.u8()?, reader.u8()?, reader.u8()?);
        let rest: [u8; 5] = reader.array()?;
        let outcome = match outcome {
            0 => Outcome::Done,
            1 => Outcome::Failed,
            _ => return Ok(None),
        };
        let Some(kind) = KINDS.get(usize::from(kind)) else {
            return Ok(None);
        };
        let is_known = flags & !(FUA | MAY_PUNCH) == 0 && rest == [0; 5];
        let has_end = offset.checked_add(length).is_some();
        Ok((is_known && has_end).then_some(Self {
            time_ns,
            latency_ns,
            offset,
            length,
            kind: *kind,
            is_fua: flags & FUA != 0,
            may_punch: flags & MAY_PUNCH != 0,
            outcome,
        }))
    }
}
