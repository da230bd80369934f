//! [`Requests`]: the requests to the filter that are not answered, and what they wait for.

use std::collections::BTreeMap;

use base::{ByteRange, Completion, IoError, Outcome, OwnedOp, Token};

use super::held::HeldChanges;
use super::member::Members;
use super::region_map::RegionMap;
use crate::tokens::Tokens;

/// The kind of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum RequestKind {
    Read(ByteRange),
    Change(ByteRange),
    Flush,
    /// A read, write or flush that rebuilds a member.
    Rebuild,
}

impl RequestKind {
    /// The kind of a change or a flush from above.
    pub fn of(op: &OwnedOp) -> Self {
        match op {
            OwnedOp::Flush => Self::Flush,
            op => Self::Change(op.range()),
        }
    }
}

/// Who made a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Requester {
    /// The requester above, with this token.
    Above(Token),
    /// A rebuild.
    Rebuild,
    /// The tracker, with this token once the read is pending.
    Tracker(Option<Token>),
}

/// A request that is not answered.
#[derive(Debug)]
pub(super) struct Request {
    pub requester: Requester,
    pub kind: RequestKind,
    /// The number of parts that are pending, or about to be started.
    pub parts: usize,
    /// Whether a member has read it, or carried out a step of a rebuild.
    pub is_done: bool,
    /// The complete members that have carried out a change or flush, as a bit for each.
    pub done_by: u32,
    pub data: Option<Vec<u8>>,
    pub error: Option<IoError>,
}

impl Request {
    /// A request of which one part is about to be started.
    pub fn new(requester: Requester, kind: RequestKind) -> Self {
        Self {
            requester,
            kind,
            parts: 1,
            is_done: false,
            done_by: 0,
            data: None,
            error: None,
        }
    }

    /// Whether it was carried out by members whose content counts.
    pub fn is_carried_out(&self, members: &Members, map: &RegionMap) -> bool {
        match self.kind {
            RequestKind::Change(_) | RequestKind::Flush => {
                members.may_acknowledge(self.done_by, map)
            }
            RequestKind::Read(_) | RequestKind::Rebuild => self.is_done,
        }
    }
}

/// Ranges of the disk in which a change or a copy is pending. They never overlap.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    /// The end of each range, by its beginning.
    ranges: BTreeMap<u64, u64>,
}

impl RangeLocks {
    /// Whether a locked range overlaps `range`.
    pub fn overlaps(&self, range: ByteRange) -> bool {
        let before = self.ranges.range(..range.end()).next_back();
        before.is_some_and(|(_, end)| *end > range.offset)
    }

    pub fn lock(&mut self, range: ByteRange) {
        self.ranges.insert(range.offset, range.end());
    }

    /// Unlocks the range that begins at `offset`.
    pub fn unlock(&mut self, offset: u64) {
        self.ranges.remove(&offset);
    }

    pub fn iter(&self) -> impl Iterator<Item = ByteRange> {
        let ranges = self.ranges.iter();
        ranges.map(|(begin, end)| ByteRange::new(*begin, end - begin))
    }
}

/// All requests that are not answered.
#[derive(Default)]
pub(super) struct Requests {
    pub pending: Tokens<Request>,
    pub locks: RangeLocks,
    /// Requests that have ended, for the next poll.
    pub ended: Vec<Completion>,
    /// Answers that wait until the map is in the file.
    pub unstored: Vec<Completion>,
    /// Reads that have to be tried at another member.
    pub retries: Vec<Token>,
    /// Changes that were followed, and are not dispatched.
    pub held: HeldChanges,
    /// Reads of the tracker's follower that have ended.
    pub follower_reads: Vec<(Token, Result<Outcome, IoError>)>,
    /// The flush that will cover the regions written before it. Of several only the first counts.
    pub covering: Option<Token>,
}

impl Requests {
    /// Adds a step of a rebuild.
    pub fn add_rebuild_step(&mut self) -> Token {
        self.pending
            .add(Request::new(Requester::Rebuild, RequestKind::Rebuild))
    }

    /// Removes a request that was not started.
    pub fn withdraw(&mut self, id: Token) {
        self.pending.take(id);
        self.covering.take_if(|covering| *covering == id);
    }
}
