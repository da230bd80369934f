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

/// All stored segments, by the run time at which each was freed.
#[derive(Default)]
pub(in crate::undelete) struct FreedSegments {
    stored: BTreeMap<u64, FreedSegment>,
    /// Names without content. Older logs need them to tell that the segment was replaced.
    emptied: BTreeMap<u64, FreedSegmentName>,
    /// Segment and run time of both.
    by_segment: BTreeSet<(SegmentId, u64)>,
    /// Room and run time of each stored segment.
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl FreedSegments {
    pub fn add(&mut self, name: FreedSegmentName, bytes: u64) {
        let run_time_us = name.freed_at.run_time_us;
        self.stored
            .insert(run_time_us, FreedSegment { name, bytes });
        self.by_segment.insert((name.segment, run_time_us));
        self.by_size.insert((bytes, run_time_us));
        self.bytes += bytes;
    }

    pub fn remove(&mut self, name: &FreedSegmentName) {
        let run_time_us = name.freed_at.run_time_us;
        if let Some(segment) = self.stored.remove(&run_time_us) {
            self.by_segment.remove(&(name.segment, run_time_us));
            self.by_size.remove(&(segment.bytes, run_time_us));
            self.bytes -= segment.bytes;
        }
    }

    /// The stored segments by run time.
    pub fn all(&self) -> &BTreeMap<u64, FreedSegment> {
        &self.stored
    }

    /// The smallest one; the oldest of several.
    pub fn smallest(&self) -> Option<FreedSegment> {
        let (_, run_time_us) = self.by_size.first()?;
        self.stored.get(run_time_us).copied()
    }

    /// Records that a segment's file has no content any more and only its name stays.
    pub fn set_emptied(&mut self, name: FreedSegmentName) {
        self.remove(&name);
        let run_time_us = name.freed_at.run_time_us;
        self.emptied.insert(run_time_us, name);
        self.by_segment.insert((name.segment, run_time_us));
    }

    pub fn first_emptied(&self) -> Option<FreedSegmentName> {
        self.emptied.first_key_value().map(|(_, name)| *name)
    }

    pub fn remove_emptied(&mut self, name: &FreedSegmentName) {
        let run_time_us = name.freed_at.run_time_us;
        if self.emptied.remove(&run_time_us).is_some() {
            self.by_segment.remove(&(name.segment, run_time_us));
        }
    }

    /// Number of names without content.
    pub fn emptied(&self) -> usize {
        self.emptied.len()
    }

    /// The run time at which the segment was deleted or replaced next after `run_time_us`.
    pub fn next_after(&self, segment: SegmentId, run_time_us: u64) -> Option<u64> {
        let after = (segment, run_time_us)..=(segment, u64::MAX);
        let (_, run_time_us) = self.by_segment.range(after).next()?;
        Some(*run_time_us)
    }

    /// Room of all stored segments, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
