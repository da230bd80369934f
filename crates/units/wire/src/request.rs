//! The requests of hosts.

mod codec;

use std::ops::Range;

use base::{ClusterId, SegmentId, Slot};
use unit::{NOTE_BYTES, Put, ReplacementPart, SlotRun, Tag};

use crate::BODY_BYTES_MAX;
use crate::verb::Verb;

pub(crate) use codec::segment;

/// A request. Decoding it checks its form: counts fit the body, and reserved fields are zero. The
/// daemon checks whether the host may send it, and the unit ([`unit::Unit`]) whether its slots,
/// sizes and generations match the segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first request of a connection; the answer is a [`Greeting`](crate::Greeting).
    Hello {
        /// The version that the host implements.
        version: u16,
        /// The host's cluster.
        cluster: ClusterId,
    },
    /// Presents a capability, with its signature.
    Present(&'a [u8]),
    /// [`Unit::put`](unit::Unit::put).
    Put(Put<'a>),
    /// [`Unit::sync`](unit::Unit::sync).
    Sync {
        /// The incarnation of the daemon that answered the puts.
        incarnation: u64,
        /// At least one segment.
        segments: Vec<SegmentId>,
    },
    /// [`Unit::read`](unit::Unit::read).
    Read {
        /// The slots.
        run: SlotRun,
        /// Size of a slot in bytes.
        slot_bytes: u32,
    },
    /// [`Unit::free`](unit::Unit::free).
    Free {
        /// The segment.
        segment: SegmentId,
        /// Whether no put will follow.
        closed: bool,
        /// The slots.
        slots: Vec<Slot>,
    },
    /// [`Unit::delete`](unit::Unit::delete).
    Delete(SegmentId),
    /// One page of [`Unit::list_serials`](unit::Unit::list_serials).
    List {
        /// The serials.
        serials: Range<u64>,
        /// Only segments with larger ids; 0 for the first page.
        after: u64,
        /// Maximum number of segments.
        limit: u32,
    },
    /// [`Unit::stat_segment`](unit::Unit::stat_segment).
    Stat(SegmentId),
    /// [`Unit::stat`](unit::Unit::stat).
    UnitStat,
    /// [`Unit::scrub`](unit::Unit::scrub).
    Scrub(SegmentId),
    /// [`Unit::probe`](unit::Unit::probe).
    Probe,
    /// [`Unit::read_note`](unit::Unit::read_note).
    ReadNote,
    /// [`Unit::write_note`](unit::Unit::write_note).
    WriteNote(&'a [u8; NOTE_BYTES]),
    /// One part of [`Unit::replace`](unit::Unit::replace).
    Replace {
        /// The part.
        part: ReplacementPart,
        /// One tag for each slot of this part.
        tags: &'a [Tag],
        /// The contents of the slots.
        data: &'a [u8],
    },
}

impl Request<'_> {
    /// The verb of the request.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Self::Hello { .. } => Verb::Hello,
            Self::Present(_) => Verb::Present,
            Self::Put(_) => Verb::Put,
            Self::Sync { .. } => Verb::Sync,
            Self::Read { .. } => Verb::Read,
            Self::Free { .. } => Verb::Free,
            Self::Delete(_) => Verb::Delete,
            Self::List { .. } => Verb::List,
            Self::Stat(_) => Verb::Stat,
            Self::UnitStat => Verb::UnitStat,
            Self::Scrub(_) => Verb::Scrub,
            Self::Probe => Verb::Probe,
            Self::ReadNote => Verb::ReadNote,
            Self::WriteNote(_) => Verb::WriteNote,
            Self::Replace { .. } => Verb::Replace,
        }
    }

    /// Maximum length of the body of a valid answer, in bytes.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        match self {
            Self::Read { run, slot_bytes } => run.answer_bytes(*slot_bytes),
            Self::List { limit, .. } => (*limit as usize).saturating_mul(8).min(BODY_BYTES_MAX),
            Self::Scrub(_) => 2 << 16,
            Self::Stat(_) => (1 << 13) + NOTE_BYTES,
            _ => NOTE_BYTES,
        }
    }
}
