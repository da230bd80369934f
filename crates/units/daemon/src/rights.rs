//! What a host may do on a unit, by the capabilities that it has presented on one connection.
//!
//! Capabilities are verified before they come here. A lookup takes the same time however many
//! there are.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use auth::{Capability, Fence, Scope};
use base::{CopysetId, LineageTag, SegmentId, UnitId};
use world::Millis;

/// Difference between clocks that is tolerated, in milliseconds.
const SLACK_MS: i64 = 10_000;

/// Most items that the capabilities of one connection may name together.
const ITEMS_MAX: usize = 1 << 18;

/// The lineage tag of a segment that cannot be read. Only the lease that reserved its serial
/// and repairs of its copyset have rights on it.
pub(crate) const UNREADABLE: LineageTag = LineageTag(u64::MAX);

/// A request of a host, for checking rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Put into a segment, or sync it.
    Put(SegmentId),
    /// Read slots of a segment, or its numbers.
    Read(SegmentId, LineageTag),
    /// Free slots of a segment.
    Free(SegmentId, LineageTag),
    /// Replace a segment.
    Replace(SegmentId, LineageTag),
    /// Delete a segment.
    Delete(SegmentId, LineageTag),
    /// List segments with these serials.
    List(Range<u64>),
}

/// The right under which a request is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// A lease, if it is still the newest of its volume.
    Lease {
        /// The hash that identifies the volume.
        fence: Fence,
        /// The epoch of the lease; the highest one of a volume is the newest.
        epoch: u32,
        /// The lineage that puts belong to.
        lineage_tag: LineageTag,
    },
    /// A repair of this copyset, if it is active on this connection.
    Repair(CopysetId),
    /// A right that is valid on several connections at once: to read or list, or to free slots
    /// and to replace the parity that is made of them.
    ReadOrFree,
}

/// Why a request is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAllowed {
    /// No capability allows it.
    #[error("no capability that the host has presented allows it")]
    Never,
    /// The capability that allowed it has expired.
    #[error("the capability for it has expired")]
    Ended,
}

/// A presented lease.
#[derive(Debug, Clone, Copy)]
struct Lease {
    fence: Fence,
    epoch: u32,
    lineage_tag: LineageTag,
    ends: Millis,
}

/// The rights that a host has presented on one connection.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// The number of the connection.
    connection: u64,
    /// The generation of the database that signed the capabilities.
    generation: u32,
    /// Ranges of serials by start: their end and their lease. They do not overlap.
    serials: BTreeMap<u64, (u64, Lease)>,
    /// Expiry of each lease, including those that have reserved nothing yet.
    leases: HashMap<(Fence, u32), Millis>,
    /// Expiry of the right to read segments, by lineage tag.
    lineage_tags: HashMap<LineageTag, Millis>,
    /// Expiry of the right to free slots, by segment.
    freeable: HashMap<SegmentId, Millis>,
    /// Expiry of the right to compare copysets.
    repaired: HashMap<CopysetId, Millis>,
    /// Expiry of the right to change segments on this unit, by copyset.
    filled: HashMap<CopysetId, Millis>,
    /// The count of leases that a controller confirmed last, and until when a note may say so.
    counted: Option<(u64, Millis)>,
}

impl Rights {
    /// No rights yet, on connection `connection`.
    pub fn on(connection: u64) -> Self {
        Self {
            connection,
            ..Self::default()
        }
    }

    /// The number of the connection.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Adds a capability on `unit`. It replaces an earlier one for the same.
    ///
    /// # Errors
    /// If the connection names too many items. Expired ones are dropped first.
    pub fn take(
        &mut self,
        capability: Capability,
        unit: UnitId,
        now: Millis,
    ) -> Result<(), &'static str> {
        let ends = capability.ends;
        if capability.generation > self.generation {
            // Capabilities of an earlier database are no longer valid.
            *self = Self {
                generation: capability.generation,
                ..Self::on(self.connection)
            };
        }
        if self.items() > ITEMS_MAX {
            self.forget_ended(now);
            if self.items() > ITEMS_MAX {
                return Err("too many capabilities were presented on this connection");
            }
        }
        match capability.scope {
            Scope::Lease {
                lineage_tag,
                fence,
                epoch,
                serials,
            } => {
                let lease = Lease {
                    fence,
                    epoch,
                    lineage_tag,
                    ends,
                };
                for range in serials {
                    self.insert(range, lease);
                }
                prolong(&mut self.leases, vec![(fence, epoch)], ends);
            }
            Scope::Read { lineage_tags } => prolong(&mut self.lineage_tags, lineage_tags, ends),
            Scope::Free { segments } => prolong(&mut self.freeable, segments, ends),
            Scope::Repair { copysets, units } => {
                if units.contains(&unit) {
                    prolong(&mut self.filled, copysets.clone(), ends);
                }
                prolong(&mut self.repaired, copysets, ends);
            }
            Scope::Count { leases } => {
                let more = (leases, ends);
                self.counted = self.counted.max(Some(more));
            }
        }
        Ok(())
    }

    fn items(&self) -> usize {
        let repaired = self.repaired.len() + self.filled.len();
        let others = self.lineage_tags.len() + self.freeable.len() + repaired;
        self.serials.len() + self.leases.len() + others
    }

    fn forget_ended(&mut self, now: Millis) {
        let is_valid = |ends: &Millis| !has_ended(*ends, now);
        self.serials.retain(|_, (_, lease)| is_valid(&lease.ends));
        self.leases.retain(|_, ends| is_valid(ends));
        self.lineage_tags.retain(|_, ends| is_valid(ends));
        self.freeable.retain(|_, ends| is_valid(ends));
        self.repaired.retain(|_, ends| is_valid(ends));
        self.filled.retain(|_, ends| is_valid(ends));
    }

    /// Assigns a range to `lease`; it is removed from the ranges of others.
    fn insert(&mut self, range: Range<u64>, lease: Lease) {
        let mut covered: Vec<u64> = self
            .serials
            .range(range.clone())
            .map(|(start, _)| *start)
            .collect();
        let before = self.serials.range(..range.start).next_back();
        covered.extend(before.map(|(start, _)| *start));
        for start in covered {
            let Some((end, other)) = self.serials.remove(&start) else {
                continue;
            };
            if start < range.start {
                self.serials.insert(start, (end.min(range.start), other));
            }
            if end > range.end {
                self.serials.insert(range.end, (end, other));
            }
        }
        self.serials.insert(range.start, (range.end, lease));
    }

    /// The lease that a serial belongs to.
    fn lease(&self, serial: u64) -> Option<(Range<u64>, &Lease)> {
        let (start, (end, lease)) = self.serials.range(..=serial).next_back()?;
        (serial < *end).then_some((*start..*end, lease))
    }

    /// The generation of the database that signed the capabilities.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The largest count of leases that a note may have at `now`.
    pub fn counted(&self, now: Millis) -> u64 {
        let lasting = self.counted.filter(|(_, ends)| !has_ended(*ends, now));
        lasting.map_or(0, |(leases, _)| leases)
    }

    /// The leases that have not expired at `now`; others may have presented newer ones.
    pub fn leases(&self, now: Millis) -> Vec<(Fence, u32)> {
        let lasting = self
            .leases
            .iter()
            .filter(|(_, ends)| !has_ended(**ends, now));
        lasting.map(|(lease, _)| *lease).collect()
    }

    /// Whether a copyset may be compared at `now`.
    pub fn repairs(&self, copyset: CopysetId, now: Millis) -> bool {
        let ends = self.repaired.get(&copyset);
        ends.is_some_and(|ends| !has_ended(*ends, now))
    }

    /// The right under which `action` is allowed at `now`. A put uses a lease if there is one.
    /// Other actions prefer another right, because a lease may have been superseded, even by a
    /// newer one of the same host.
    ///
    /// # Errors
    /// [`NotAllowed`].
    pub fn right(&self, action: &Action, now: Millis) -> Result<Right, NotAllowed> {
        let (lease, other) = (self.by_lease(action, now), self.by_other(action, now));
        let (first, second) = match action {
            // The holder of a lease sweeps what is listed, so a list must be the lease's own.
            Action::Put(_) | Action::List(_) => (lease, other),
            _ => (other, lease),
        };
        match (first, second) {
            (Ok(right), _) | (Err(_), Ok(right)) => Ok(right),
            (Err(NotAllowed::Never), Err(NotAllowed::Never)) => Err(NotAllowed::Never),
            (Err(_), Err(_)) => Err(NotAllowed::Ended),
        }
    }

    /// The copyset whose repair allows `action`, a put, without a lease: a superseded lease does
    /// not keep its holder from repairing.
    pub fn puts_as_repairer(&self, action: &Action, now: Millis) -> Option<CopysetId> {
        if !matches!(action, Action::Put(_)) {
            return None;
        }
        match self.by_other(action, now) {
            Ok(Right::Repair(copyset)) => Some(copyset),
            _ => None,
        }
    }

    fn by_lease(&self, action: &Action, now: Millis) -> Result<Right, NotAllowed> {
        let leased = match action {
            // The caller checks the lineage tag of a put.
            Action::Put(segment) => self.lease(segment.serial()),
            Action::Read(segment, lineage_tag)
            | Action::Free(segment, lineage_tag)
            | Action::Replace(segment, lineage_tag)
            | Action::Delete(segment, lineage_tag) => {
                let lease = self.lease(segment.serial());
                let is_own = |lease: &Lease| {
                    [lease.lineage_tag, LineageTag::NONE, UNREADABLE].contains(lineage_tag)
                };
                lease.filter(|(_, lease)| is_own(lease))
            }
            Action::List(range) => {
                let lease = self.lease(range.start);
                lease.filter(|(own, _)| range.end <= own.end)
            }
        };
        match leased {
            None => Err(NotAllowed::Never),
            Some((_, lease)) if has_ended(lease.ends, now) => Err(NotAllowed::Ended),
            Some((_, lease)) => Ok(Right::Lease {
                fence: lease.fence,
                epoch: lease.epoch,
                lineage_tag: lease.lineage_tag,
            }),
        }
    }

    fn by_other(&self, action: &Action, now: Millis) -> Result<Right, NotAllowed> {
        let repaired = |segment: &SegmentId| self.repaired.get(&segment.copyset());
        let filled = |segment: &SegmentId| self.filled.get(&segment.copyset());
        let (ends, by_repair) = match action {
            Action::Put(segment) => (None, Some(segment)),
            Action::Read(segment, lineage_tag) => {
                let read = match *lineage_tag {
                    // A segment without a tag: any right to read is enough.
                    LineageTag::NONE => self.lineage_tags.values().max(),
                    UNREADABLE => None,
                    _ => self.lineage_tags.get(lineage_tag),
                };
                (read.max(repaired(segment)), None)
            }
            // Freeing, or replacing parity, needs the right to free and to read.
            Action::Free(segment, lineage_tag) | Action::Replace(segment, lineage_tag) => {
                (self.freed_until(segment, lineage_tag), Some(segment))
            }
            Action::Delete(segment, _) => (None, Some(segment)),
            // The list has the repaired copysets only.
            Action::List(_) => (self.repaired.values().max(), None),
        };
        let is_valid = |ends: &Millis| !has_ended(*ends, now);
        let filled = by_repair.and_then(|segment| Some((segment.copyset(), filled(segment)?)));
        match (ends, filled) {
            (Some(ends), _) if is_valid(ends) => Ok(Right::ReadOrFree),
            (_, Some((copyset, ends))) if is_valid(ends) => Ok(Right::Repair(copyset)),
            (None, None) => Err(NotAllowed::Never),
            _ => Err(NotAllowed::Ended),
        }
    }
}

impl Rights {
    /// Expiry of the right to free slots of a segment, which needs the right to read it.
    fn freed_until(&self, segment: &SegmentId, lineage_tag: &LineageTag) -> Option<&Millis> {
        let free = self.freeable.get(segment);
        match *lineage_tag {
            LineageTag::NONE => free,
            UNREADABLE => None,
            _ => free.and_then(|free| Some(free.min(self.lineage_tags.get(lineage_tag)?))),
        }
    }
}

fn has_ended(ends: Millis, now: Millis) -> bool {
    now.0 > ends.0.saturating_add(SLACK_MS)
}

fn prolong<T: Eq + std::hash::Hash>(all: &mut HashMap<T, Millis>, these: Vec<T>, ends: Millis) {
    for item in these {
        let known = all.entry(item).or_insert(ends);
        *known = ends.max(*known);
    }
}

#[cfg(test)]
mod tests;
