//! Placing sealed pieces: deal, put every copy, sync, and deal again what a
//! failing unit did not take.

use std::cell::RefCell;
use std::sync::Arc;

use base::{LineageTag, Location, SegmentId, Slot, UnitId};
use unit::{Tag, Unit, UnitError};
use world::{PageBuffer, Random, parallel};

use super::erasure::put_rows;
use super::ledger::Ledger;
use super::placer::{AssignError, Placer, Share};
use super::progress::{Progress, StopReason};
use super::store::{Member, Store, Table};
use crate::catalog::DegradedShare;

/// Bytes put at once, where a segment may be put in several parts. Bounds the
/// memory of a placement: this, for each segment written in parallel.
const PUT_BYTES_MAX: usize = 1 << 20;
/// Segments written at once.
const PARALLEL: usize = 16;
/// Of those that are put whole so much is in memory at once, in bytes; or one of
/// them, if it is longer.
const WHOLE_BYTES_MAX: usize = 32 << 20;
/// How often what was not taken is dealt again. Each round marks at least one
/// unit as failing, so more rounds than units bring nothing.
const ROUNDS_MAX: usize = 32;

/// Brings piece `index`: fills its slot and returns its tag.
pub type Source = Arc<dyn Fn(usize, &mut [u8]) -> std::io::Result<Tag> + Send + Sync>;

/// Where the pieces of one placement lie, in the order of their indexes.
pub type Placement = Vec<Location>;

/// Why pieces could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Nothing could be dealt.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// The pieces could not be read where they are.
    #[error("cannot read back what is to be destaged")]
    Source(#[source] std::io::Error),
    /// It may not go on.
    #[error(transparent)]
    Stopped(#[from] StopReason),
    /// Units kept failing.
    #[error("no set of storage units took the segments")]
    Units(#[source] UnitError),
}

impl PlaceError {
    /// Whether the lease was lost: trying again cannot help.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Assign(AssignError::Catalog(error)) if error.is_fenced())
    }
}

pub(super) enum ShareError {
    Source(std::io::Error),
    Stopped(StopReason),
    Unit(UnitError),
}

/// Places `count` pieces durably and says where they lie.
///
/// # Errors
/// [`PlaceError`]. Pieces that were placed before the failure are nobody's:
/// see [`discard_unconfirmed`].
pub fn place(
    store: &Arc<Store>,
    placer: &mut Placer,
    random: &dyn Random,
    count: usize,
    source: &Source,
) -> Result<Placement, PlaceError> {
    let mut placed: Vec<Option<Location>> = vec![None; count];
    let mut remaining: Vec<usize> = (0..count).collect();
    let mut last_failure = None;
    for _ in 0..ROUNDS_MAX {
        placer.progress().check_awaited()?;
        if remaining.is_empty() {
            break;
        }
        placer.progress().check()?;
        let table = store.table();
        let mut shares = placer.assign(remaining.len(), &table, random)?;
        for share in &mut shares {
            for item in &mut share.items {
                *item = remaining[*item];
            }
        }
        let slot_bytes = placer.config().slot_bytes;
        let tasks = shares.iter().cloned().map(|share| {
            let (store, source) = (Arc::clone(store), Arc::clone(source));
            let progress = Arc::clone(placer.progress());
            let task = move || write_share(&store, &share, slot_bytes, &source, &progress);
            Box::new(task) as Box<dyn FnOnce() -> Result<Put, ShareError> + Send>
        });
        let parallel_max = parallel_max(&table, &shares, slot_bytes);
        let results = parallel(&*store.pool, parallel_max, tasks.collect());
        remaining.clear();
        let mut stop = None;
        for (share, result) in shares.into_iter().zip(results) {
            match result {
                Ok(Put { has, is_closed }) => {
                    if is_closed {
                        placer.close(share.segment);
                    }
                    let members = table.write_target_ids(share.segment.copyset());
                    let lacking = members.iter().filter(|member| !has.contains(member));
                    let lacking: Vec<UnitId> = lacking.copied().collect();
                    if !lacking.is_empty() {
                        placer.record_degraded(DegradedShare {
                            segment: share.segment,
                            slots: u32::try_from(share.items.len()).expect("few"),
                            lacking,
                        });
                    }
                    for (slot, item) in (share.first..).zip(&share.items) {
                        let slot = Slot(u16::try_from(slot).expect("at most 2^16 slots"));
                        placed[*item] = Some(Location::new(share.segment, slot));
                    }
                }
                // What is said of the others counts nevertheless.
                Err(ShareError::Source(error)) => stop = Some(PlaceError::Source(error)),
                Err(ShareError::Stopped(ended)) => stop = Some(ended.into()),
                Err(ShareError::Unit(error)) => {
                    tracing::warn!(segment = %share.segment, %error, "a segment was given up");
                    let freed = store.free_orphans(share.segment, share.first..share.end);
                    if error.is_outcome_unknown() {
                        // Freed or not: it may come after that.
                        placer.mark_unresolved(share.segment);
                    }
                    placer.abandon(&share, freed.is_ok());
                    remaining.extend(share.items);
                    last_failure = Some(error);
                }
            }
        }
        if let Some(stop) = stop {
            return Err(stop);
        }
        remaining.sort_unstable();
    }
    match last_failure {
        Some(error) if !remaining.is_empty() => Err(PlaceError::Units(error)),
        _ => Ok(placed
            .into_iter()
            .map(|place| place.expect("none remains"))
            .collect()),
    }
}

/// Frees everything placed since the placer was settled: it will not be
/// committed. What cannot be freed now is left to the next lease.
pub fn discard_unconfirmed(store: &Store, placer: &mut Placer) {
    for (segment, slots) in placer.take_unconfirmed() {
        match store.free_orphans(segment, slots) {
            Ok(()) => placer.forget(segment),
            Err(error) => {
                tracing::warn!(%segment, %error, "orphans were left for the next lease");
            }
        }
    }
}

/// As [`discard_unconfirmed`], of what was settled and will not be committed, whichever placers
/// dealt it: they begin anew ([`Placer::close_segments`]).
pub fn discard_confirmed(store: &Store, ledger: &Ledger) {
    for (segment, slots) in ledger.retract() {
        match store.free_orphans(segment, slots) {
            Ok(()) => ledger.closed(segment),
            Err(error) => {
                tracing::warn!(%segment, %error, "orphans were left for the next lease");
            }
        }
    }
}

/// How many of these are put at once.
fn parallel_max(table: &Table, shares: &[Share], slot_bytes: u32) -> usize {
    let whole = shares
        .iter()
        .filter(|share| !table.can_append(share.segment.copyset()));
    let slots = |share: &Share| {
        let layout = table.layout(share.segment.copyset());
        let parity = layout.erasure().map_or(0, |erasure| erasure.parity());
        let rows = layout.rows(share.end - share.first);
        (rows * (layout.row_slots() + u32::from(parity))) as usize
    };
    let longest = whole.map(slots).max().unwrap_or(0);
    let bytes = (longest * slot_bytes as usize).max(1);
    (WHOLE_BYTES_MAX / bytes).clamp(1, PARALLEL)
}

/// What came of a share.
struct Put {
    /// The units that have it.
    has: Vec<UnitId>,
    /// Nothing may be appended to it.
    is_closed: bool,
}

/// Puts one share on every unit of its segment that takes writes, and syncs it there.
/// Where one of them takes whole segments only, the share is one.
fn write_share(
    store: &Store,
    share: &Share,
    slot_bytes: u32,
    source: &Source,
    progress: &Arc<Progress>,
) -> Result<Put, ShareError> {
    let table = store.table();
    let copyset = share.segment.copyset();
    if let Some(erasure) = table.layout(copyset).erasure() {
        let members = table.members(copyset).iter();
        let members = members.filter(|member| share.units.contains(&member.id));
        let members: Vec<Member> = members.cloned().collect();
        let pool = &*store.pool;
        let put = put_rows(pool, &members, erasure, share, slot_bytes, source, progress)?;
        return Ok(Put {
            has: put.has,
            is_closed: put.is_whole,
        });
    }
    let writers: Vec<Member> = table
        .units()
        .iter()
        .filter(|unit| share.units.contains(&unit.id) && unit.unit.can_write())
        .cloned()
        .collect();
    if writers.is_empty() {
        return Err(ShareError::Unit(nobody(share.segment)));
    }
    let in_part = (PUT_BYTES_MAX / slot_bytes as usize).max(1);
    let at_once = match table.can_append(copyset) {
        true => in_part,
        false => share.items.len().max(1),
    };
    let mut first = share.first;
    // Fresh memory of this size costs more than what is done with it.
    thread_local! {
        static BUFFER: RefCell<PageBuffer> = RefCell::default();
    }
    let mut data = BUFFER.take();
    let mut tags = Vec::new();
    for items in share.items.chunks(at_once) {
        data.resize(items.len() * slot_bytes as usize);
        tags.clear();
        for (item, slot) in items.iter().zip(data.chunks_exact_mut(slot_bytes as usize)) {
            tags.push(source(*item, slot).map_err(ShareError::Source)?);
        }
        for writer in &writers {
            let part = match writer.unit.can_append() {
                true => in_part,
                false => items.len(),
            };
            let parts = tags
                .chunks(part)
                .zip(data.chunks(part * slot_bytes as usize));
            let firsts = (first..).step_by(part);
            for (slot, (tags, data)) in firsts.zip(parts) {
                let slot = Slot(u16::try_from(slot).expect("at most 2048 slots"));
                progress.check().map_err(ShareError::Stopped)?;
                writer
                    .unit
                    .put(unit::Put {
                        lineage_tag: LineageTag::NONE,
                        segment: share.segment,
                        slot_bytes,
                        first: slot,
                        tags,
                        data,
                    })
                    .map_err(ShareError::Unit)?;
            }
        }
        progress.add(items.len());
        first += u32::try_from(items.len()).expect("at most 2048 slots");
    }
    // What a whole segment takes is not kept.
    if data.len() <= PUT_BYTES_MAX {
        BUFFER.set(data);
    }
    for writer in &writers {
        writer
            .unit
            .sync(&[share.segment])
            .map_err(ShareError::Unit)?;
    }
    Ok(Put {
        has: writers.iter().map(|writer| writer.id).collect(),
        is_closed: false,
    })
}

fn nobody(segment: SegmentId) -> UnitError {
    UnitError::Missing {
        url: format!("copyset {}", segment.copyset().number()),
        reason: "none of its units takes writes".to_owned(),
    }
}
