//! Placing sealed pieces: assign slots, write every copy, sync; assign again the
//! pieces that a failing unit did not take.

use std::cell::RefCell;
use std::sync::Arc;

use base::{LineageTag, Location, SegmentId, Slot, UnitId};
use unit::{Put, Tag, Unit, UnitError};
use world::{PageBuffer, Random, parallel};

use catalog::DegradedShare;

use super::erasure::put_rows;
use super::ledger::Ledger;
use super::placer::{AssignError, Placer, Share};
use super::progress::{Progress, StopReason};
use super::store::Store;
use super::table::{Member, Table};

/// Bytes written at once where a segment may be written in several parts. Bounds
/// the memory of a placement: this, for each segment written in parallel.
const PUT_BYTES_MAX: usize = 1 << 20;
/// Segments written in parallel.
const PARALLEL: usize = 16;
/// Memory for segments that are written whole, in bytes: all that are written in
/// parallel fit in it, or one of them if that is longer.
const WHOLE_BYTES_MAX: usize = 32 << 20;
/// How often pieces that were not taken are assigned again. Each round marks at
/// least one unit as failing, so more rounds than units bring nothing.
const ROUNDS_MAX: usize = 32;

/// Fills the slot of the piece with this index and returns its tag.
pub type Source = Arc<dyn Fn(usize, &mut [u8]) -> std::io::Result<Tag> + Send + Sync>;

/// Where the pieces of one placement are, in the order of their indexes.
pub type Placement = Vec<Location>;

/// Why pieces could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// No slots could be assigned.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// The pieces could not be read from their source.
    #[error("cannot read back the blocks to destage")]
    Source(#[source] std::io::Error),
    /// The placement had to stop.
    #[error(transparent)]
    Stopped(#[from] StopReason),
    /// Units kept failing.
    #[error("no set of storage units accepted the segments")]
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

/// The writing of one share: what a unit is sent, and what stops it.
#[derive(Clone)]
pub(super) struct SharePut {
    pub share: Share,
    pub slot_bytes: u32,
    pub source: Source,
    pub progress: Arc<Progress>,
}

/// What became of a share that was written.
struct Written {
    /// The units that have it.
    units: Vec<UnitId>,
    /// Nothing may be appended to its segment.
    is_closed: bool,
}

/// Places `count` pieces durably and returns their locations.
///
/// # Errors
/// [`PlaceError`]. Pieces that were placed before the failure are leftovers: see
/// [`discard_unconfirmed`].
pub fn place(
    store: &Arc<Store>,
    placer: &mut Placer,
    random: &dyn Random,
    count: usize,
    source: &Source,
) -> Result<Placement, PlaceError> {
    let mut pieces = Pieces {
        locations: vec![None; count],
        remaining: (0..count).collect(),
        last_failure: None,
    };
    for _ in 0..ROUNDS_MAX {
        placer.progress().check_awaited()?;
        if pieces.remaining.is_empty() {
            break;
        }
        placer.progress().check()?;
        pieces.place_round(store, placer, random, source)?;
    }
    pieces.finish()
}

/// The pieces of one placement.
struct Pieces {
    /// Where each is, if it has been placed.
    locations: Vec<Option<Location>>,
    /// The indexes of those that have not been placed.
    remaining: Vec<usize>,
    last_failure: Option<UnitError>,
}

impl Pieces {
    /// Assigns what remains and writes it. What failing units did not take remains.
    fn place_round(
        &mut self,
        store: &Arc<Store>,
        placer: &mut Placer,
        random: &dyn Random,
        source: &Source,
    ) -> Result<(), PlaceError> {
        let table = store.table();
        let mut shares = placer.assign(self.remaining.len(), &table, random)?;
        for item in shares.iter_mut().flat_map(|share| &mut share.items) {
            *item = self.remaining[*item];
        }
        let slot_bytes = placer.config().slot_bytes;
        let tasks = shares.iter().cloned().map(|share| {
            let put = SharePut {
                share,
                slot_bytes,
                source: Arc::clone(source),
                progress: Arc::clone(placer.progress()),
            };
            let store = Arc::clone(store);
            let task = move || write_share(&store, &put);
            Box::new(task) as Box<dyn FnOnce() -> Result<Written, ShareError> + Send>
        });
        let parallel_max = parallel_max(&table, &shares, slot_bytes);
        let results = parallel(&*store.pool, parallel_max, tasks.collect());
        self.remaining.clear();
        let mut stop = None;
        for (share, result) in shares.into_iter().zip(results) {
            match result {
                Ok(written) => self.accept(placer, &table, &share, &written),
                // The results of the other shares count nevertheless.
                Err(ShareError::Source(error)) => stop = Some(PlaceError::Source(error)),
                Err(ShareError::Stopped(reason)) => stop = Some(reason.into()),
                Err(ShareError::Unit(error)) => self.retry(store, placer, share, error),
            }
        }
        self.remaining.sort_unstable();
        stop.map_or(Ok(()), Err)
    }

    fn accept(&mut self, placer: &mut Placer, table: &Table, share: &Share, written: &Written) {
        if written.is_closed {
            placer.close(share.segment);
        }
        let members = table.write_target_ids(share.segment.copyset());
        let is_missing = |member: &&UnitId| !written.units.contains(member);
        let lacking: Vec<UnitId> = members.iter().filter(is_missing).copied().collect();
        if !lacking.is_empty() {
            placer.record_degraded(DegradedShare {
                segment: share.segment,
                slots: u32::try_from(share.items.len()).expect("few"),
                lacking,
            });
        }
        for (slot, item) in (share.first..).zip(&share.items) {
            let slot = Slot(u16::try_from(slot).expect("at most 2^16 slots"));
            self.locations[*item] = Some(Location::new(share.segment, slot));
        }
    }

    /// The put of a share has failed: its pieces are assigned again.
    fn retry(&mut self, store: &Store, placer: &mut Placer, share: Share, error: UnitError) {
        tracing::warn!(segment = %share.segment, %error, "volume could not put blocks; they go to another segment");
        let freed = store.free_leftovers(share.segment, share.first..share.end);
        if error.is_outcome_unknown() {
            // The put may be carried out after the free.
            placer.mark_unresolved(share.segment);
        }
        placer.abandon(&share, freed.is_ok());
        self.remaining.extend(share.items);
        self.last_failure = Some(error);
    }

    fn finish(self) -> Result<Placement, PlaceError> {
        match self.last_failure {
            Some(error) if !self.remaining.is_empty() => Err(PlaceError::Units(error)),
            _ => {
                let locations = self.locations.into_iter();
                Ok(locations
                    .map(|location| location.expect("no piece remains"))
                    .collect())
            }
        }
    }
}

/// Frees the slots that are unconfirmed and will not be committed. What cannot be
/// freed now is left to the next lease.
pub fn discard_unconfirmed(store: &Store, placer: &mut Placer) {
    for (segment, slots) in placer.take_unconfirmed() {
        match store.free_leftovers(segment, slots) {
            Ok(()) => placer.forget(segment),
            Err(error) => {
                tracing::warn!(%segment, %error, "volume could not free leftovers; the next lease frees them");
            }
        }
    }
}

/// As [`discard_unconfirmed`], for slots of all placers that are confirmed and will
/// not be committed. The placers close their segments ([`Placer::close_segments`]).
pub fn discard_confirmed(store: &Store, ledger: &Ledger) {
    for (segment, slots) in ledger.retract() {
        match store.free_leftovers(segment, slots) {
            Ok(()) => ledger.closed(segment),
            Err(error) => {
                tracing::warn!(%segment, %error, "volume could not free leftovers; the next lease frees them");
            }
        }
    }
}

/// How many of these shares are written in parallel.
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

/// Writes one share to every unit of its segment that takes writes, and syncs it
/// there. If one of them takes whole segments only, the share is one.
fn write_share(store: &Store, put: &SharePut) -> Result<Written, ShareError> {
    let table = store.table();
    let share = &put.share;
    let copyset = share.segment.copyset();
    let Some(erasure) = table.layout(copyset).erasure() else {
        return write_copies(&table, put);
    };
    let members = table.members(copyset).iter();
    let members = members.filter(|member| share.units.contains(&member.id));
    let members: Vec<Member> = members.cloned().collect();
    let rows = put_rows(&*store.pool, &members, erasure, put)?;
    Ok(Written {
        units: rows.units,
        is_closed: rows.is_whole,
    })
}

fn write_copies(table: &Table, put: &SharePut) -> Result<Written, ShareError> {
    let share = &put.share;
    let is_writer = |unit: &&Member| share.units.contains(&unit.id) && unit.unit.can_write();
    let writers: Vec<Member> = table.units().iter().filter(is_writer).cloned().collect();
    if writers.is_empty() {
        return Err(ShareError::Unit(no_writer(share.segment)));
    }
    let slot_bytes = put.slot_bytes as usize;
    let at_once = match table.can_append(share.segment.copyset()) {
        true => (PUT_BYTES_MAX / slot_bytes).max(1),
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
        data.resize(items.len() * slot_bytes);
        tags.clear();
        for (item, slot) in items.iter().zip(data.chunks_exact_mut(slot_bytes)) {
            tags.push((put.source)(*item, slot).map_err(ShareError::Source)?);
        }
        for writer in &writers {
            put.write_slots(writer, first, &tags, &data)?;
        }
        put.progress.add(items.len());
        first += u32::try_from(items.len()).expect("at most 2048 slots");
    }
    // The buffer of a whole segment is not kept.
    if data.len() <= PUT_BYTES_MAX {
        BUFFER.set(data);
    }
    for writer in &writers {
        writer
            .unit
            .sync(&[share.segment])
            .map_err(ShareError::Unit)?;
    }
    Ok(Written {
        units: writers.iter().map(|writer| writer.id).collect(),
        is_closed: false,
    })
}

impl SharePut {
    /// Writes consecutive slots from `first` on to one member: in parts, if it can
    /// append.
    pub(super) fn write_slots(
        &self,
        member: &Member,
        first: u32,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), ShareError> {
        let slot_bytes = self.slot_bytes as usize;
        let part = match member.unit.can_append() {
            true => (PUT_BYTES_MAX / slot_bytes).max(1),
            false => tags.len().max(1),
        };
        let parts = tags.chunks(part).zip(data.chunks(part * slot_bytes));
        for (slot, (tags, data)) in (first..).step_by(part).zip(parts) {
            let slot = Slot(u16::try_from(slot).expect("at most 2^16 slots"));
            self.progress.check().map_err(ShareError::Stopped)?;
            member
                .unit
                .put(Put {
                    lineage_tag: LineageTag::NONE,
                    segment: self.share.segment,
                    slot_bytes: self.slot_bytes,
                    first: slot,
                    tags,
                    data,
                })
                .map_err(ShareError::Unit)?;
        }
        Ok(())
    }
}

fn no_writer(segment: SegmentId) -> UnitError {
    UnitError::Missing {
        url: format!("copyset {}", segment.copyset().number()),
        reason: "none of its units accepts writes".to_owned(),
    }
}
