//! The segments whose files are in `freed/`.

use std::collections::{BTreeMap, BTreeSet};

use base::SegmentId;

use crate::undelete::name::FreedSegmentName;

/// A segment that was deleted or replaced and is stored.
#[derive(Debug, Clone, Copy)]
pub(in crate::undelete) struct FreedSegment {
    pub name: FreedSegmentName,
    /// Room that its file takes.
    pub bytes: u64,
}

/// All stored segments, by the moment at which each was freed.
#[derive(Default)]
pub(in crate::undelete) struct FreedSegments {
    stored: BTreeMap<u64, FreedSegment>,
    /// Names without content. Older logs need them to tell that the segment was replaced.
    emptied: BTreeMap<u64, FreedSegmentName>,
    /// Segment and moment of both.
    by_segment: BTreeSet<(SegmentId, u64)>,
    /// Room and moment of each stored segment.
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl FreedSegments {
    pub fn add(&mut self, name: FreedSegmentName, bytes: u64) {
        let moment = name.freed_at.moment;
        self.stored.insert(moment, FreedSegment { name, bytes });
        self.by_segment.insert((name.segment, moment));
        self.by_size.insert((bytes, moment));
        self.bytes += bytes;
    }

    pub fn remove(&mut self, name: &FreedSegmentName) {
        let moment = name.freed_at.moment;
        if let Some(segment) = self.stored.remove(&moment) {
            self.by_segment.remove(&(name.segment, moment));
            self.by_size.remove(&(segment.bytes, moment));
            self.bytes -= segment.bytes;
        }
    }

    /// The stored segments by moment.
    pub fn all(&self) -> &BTreeMap<u64, FreedSegment> {
        &self.stored
    }

    /// The smallest one; the oldest of several.
    pub fn smallest(&self) -> Option<FreedSegment> {
        let (_, moment) = self.by_size.first()?;
        self.stored.get(moment).copied()
    }

    /// Records that a segment's file has no content any more and only its name stays.
    pub fn set_emptied(&mut self, name: FreedSegmentName) {
        self.remove(&name);
        let moment = name.freed_at.moment;
        self.emptied.insert(moment, name);
        self.by_segment.insert((name.segment, moment));
    }

    pub fn first_emptied(&self) -> Option<FreedSegmentName> {
        self.emptied.first_key_value().map(|(_, name)| *name)
    }

    pub fn remove_emptied(&mut self, name: &FreedSegmentName) {
        let moment = name.freed_at.moment;
        if self.emptied.remove(&moment).is_some() {
            self.by_segment.remove(&(name.segment, moment));
        }
    }

    /// Number of names without content.
    pub fn emptied(&self) -> usize {
        self.emptied.len()
    }

    /// The moment at which the segment was deleted or replaced next after `moment`.
    pub fn next_after(&self, segment: SegmentId, moment: u64) -> Option<u64> {
        let after = (segment, moment)..=(segment, u64::MAX);
        let (_, moment) = self.by_segment.range(after).next()?;
        Some(*moment)
    }

    /// Room of all stored segments, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
