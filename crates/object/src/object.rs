//! The unit itself: [`ObjectUnit`].

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base::{ClusterId, SegmentId, Slot, UnitId};
use bytes::Bytes;
use object_store::{Error, PutMode};
use tokio::runtime::Handle;
use unit::folder::Owner;
use unit::{NOTE_BYTES, SegmentSlots, SegmentStat, SlotRun, Tag, Unit, UnitError, UnitStat};
use world::{Clock, World};

use crate::account::Account;
use crate::bucket::Bucket;
use crate::heads::Heads;
use crate::marker::{Conditional, Marker};
use crate::place::Place;
use crate::release::Settling;
use crate::{HEADS_BYTES_MAX, SEGMENT_DATA_BYTES, claim, lock};

/// Locks that keep those apart who change one segment.
const WRITER_LOCKS: usize = 64;

/// The note's name, as on a folder.
const NOTE: &str = "leases";

/// A prefix of a bucket as a storage unit. Shared by many threads, none of which
/// may be one of the runtime's.
pub struct ObjectUnit {
    pub(crate) bucket: Bucket,
    pub(crate) cluster: ClusterId,
    pub(crate) unit: UnitId,
    pub(crate) owner: Option<Owner>,
    /// Whether to claim it, once, from an owner of the same generation too.
    pub(crate) takes_over: AtomicBool,
    /// Why it could not be claimed when that was last tried.
    pub(crate) unclaimed: Mutex<Option<UnitError>>,
    /// When the marker was last found to be this unit's and its owner's, and
    /// what it says of the store.
    pub(crate) verified: Mutex<Option<(Duration, Conditional)>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heads: Heads,
    pub(crate) account: Account,
    pub(crate) settling: Settling,
    pub(crate) segment_data_bytes: u64,
    runtime: Handle,
    writers: [Mutex<()>; WRITER_LOCKS],
}

impl ObjectUnit {
    /// The unit at `place`, which should be unit `unit` of `cluster`. Asks the
    /// store nothing yet; ask [`Unit::probe`] whether it is there. What is asked
    /// later is waited for on `runtime`, which must have timers, I/O and threads
    /// of its own.
    #[must_use]
    pub fn open(
        world: &World,
        runtime: &Handle,
        place: &Place,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Self {
        Self {
            bucket: Bucket::new(place),
            cluster,
            unit,
            owner: None,
            takes_over: AtomicBool::new(false),
            unclaimed: Mutex::default(),
            verified: Mutex::default(),
            clock: Arc::clone(&world.clock),
            heads: Heads::new(HEADS_BYTES_MAX),
            account: Account::default(),
            settling: Settling::default(),
            segment_data_bytes: SEGMENT_DATA_BYTES,
            runtime: runtime.clone(),
            writers: [const { Mutex::new(()) }; WRITER_LOCKS],
        }
    }

    /// Makes the prefix at `place` into unit `unit` of `cluster`. Nothing may
    /// lie below it, and the bucket must exist. One that is that very unit
    /// already is opened.
    ///
    /// # Errors
    /// [`UnitError::Foreign`] if it is another unit or holds other objects.
    pub fn create(
        world: &World,
        runtime: &Handle,
        place: &Place,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Result<Self, UnitError> {
        Self::open(world, runtime, place, cluster, unit).made()
    }

    /// Makes the unit that was opened, as [`ObjectUnit::create`].
    ///
    /// # Errors
    /// As [`ObjectUnit::create`]; [`UnitError::Held`] if it has another owner.
    pub fn made(self) -> Result<Self, UnitError> {
        self.wait(self.make())?;
        Ok(self)
    }

    /// Whose unit the prefix at `place` is, and which.
    ///
    /// # Errors
    /// [`UnitError::Missing`] if it is none, [`UnitError::Newer`] if it cannot
    /// be read by this program.
    pub fn identify(runtime: &Handle, place: &Place) -> Result<Marker, UnitError> {
        runtime.block_on(claim::identify(&Bucket::new(place)))
    }

    /// Changes the unit as `owner` only. It is claimed when it is made or
    /// probed, and not used by anybody else from then on; with `takes_over`,
    /// the first time also from an owner of the same generation.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner, takes_over: bool) -> Self {
        self.owner = Some(owner);
        self.takes_over = AtomicBool::new(takes_over);
        self
    }

    /// Lets segments have `bytes` of data instead of [`SEGMENT_DATA_BYTES`].
    #[must_use]
    pub fn with_segment_data_bytes(mut self, bytes: u64) -> Self {
        self.segment_data_bytes = bytes;
        self
    }

    /// Which unit this is.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.unit
    }

    /// As [`Unit::put`]; the segment is one of `line`: a number that segments
    /// have in common which belong together, 0 if none do. A put that is
    /// repeated after an error, with the same content, is carried out once.
    ///
    /// # Errors
    /// As [`Unit::put`].
    pub fn put_for(
        &self,
        line: u64,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        assert_fit(tags.len(), slot_bytes, tags, data);
        let _alone = self.writer(segment);
        if first == Slot(0) {
            self.wait(self.put_whole(line, segment, slot_bytes, tags, data))
        } else {
            Err(misplaced(&self.stat_segment(segment)?))
        }
    }

    /// To which line a segment belongs.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    pub fn line_of(&self, segment: SegmentId) -> Result<u64, UnitError> {
        if let Some(line) = self.line_now(segment) {
            return Ok(line);
        }
        Ok(self.wait(self.load(segment))?.head.line)
    }

    /// As [`ObjectUnit::line_of`], if that is known without waiting.
    #[must_use]
    pub fn line_now(&self, segment: SegmentId) -> Option<u64> {
        Some(self.heads.get(segment)?.head.line)
    }

    /// Waits for the store.
    pub(crate) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    pub(crate) fn writer(&self, segment: SegmentId) -> MutexGuard<'_, ()> {
        lock(&self.writers[segment.serial() as usize % WRITER_LOCKS])
    }

    async fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        let path = self.bucket.path(NOTE);
        let note = self.bucket.get(&path, None, None, NOTE_BYTES as u64);
        let (looked, note) = tokio::join!(self.look(), note);
        looked?;
        match note {
            Ok(found) => Ok(<[u8; NOTE_BYTES]>::try_from(&found.bytes[..]).ok()),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.bucket.meaning("read its note", error)),
        }
    }

    async fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        // A prefix without the unit's marker is never written to.
        self.verify().await?;
        let path = self.bucket.path(NOTE);
        let note = Bytes::copy_from_slice(note);
        let put = self.bucket.put_at_once(&path, note, PutMode::Overwrite);
        let failed = |error| self.bucket.meaning_of_write("write its note", error);
        put.await.map(drop).map_err(failed)
    }
}

pub(crate) fn misplaced(found: &SegmentStat) -> UnitError {
    UnitError::Misplaced {
        segment: found.segment,
        slots: found.slots,
        slot_bytes: found.slot_bytes,
    }
}

/// A run and its buffers must fit each other: the caller has made both.
fn assert_fit(count: usize, slot_bytes: u32, tags: &[Tag], data: &[u8]) {
    assert!(count > 0, "a run of no slots");
    assert_eq!(tags.len(), count, "a tag a slot");
    assert_eq!(
        data.len(),
        count * slot_bytes as usize,
        "room for each slot"
    );
}

impl Unit for ObjectUnit {
    fn url(&self) -> &str {
        &self.bucket.url
    }

    fn can_append(&self) -> bool {
        false
    }

    fn put_for(
        &self,
        line: u64,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        Self::put_for(self, line, segment, slot_bytes, first, tags, data)
    }

    /// What was put is durable; this looks that it was.
    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        let unknown: BTreeSet<SegmentId> = segments
            .iter()
            .copied()
            .filter(|segment| self.heads.get(*segment).is_none())
            .collect();
        for segment in unknown {
            self.wait(self.load_head(segment))?;
        }
        Ok(())
    }

    fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        assert_fit(usize::from(run.count), slot_bytes, tags, data);
        self.wait(self.read_run(run, slot_bytes, tags, data))
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], _closed: bool) -> Result<(), UnitError> {
        let _alone = self.writer(segment);
        self.wait(self.free_slots(segment, slots))
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        let _alone = self.writer(segment);
        self.wait(async {
            self.verify().await?;
            self.remove(segment).await
        })
    }

    fn settle(&self) -> Result<bool, UnitError> {
        self.settle_some()
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_serials(0..SegmentId::SERIAL_MAX)
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let listed = self.wait(self.list_lengths(&serials))?;
        let mut segments: Vec<SegmentId> = listed.into_keys().collect();
        segments.sort_unstable();
        Ok(segments)
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        let loaded = self.wait(self.load(segment))?;
        let freed = loaded.freed?.slots;
        let live = loaded.head.present.without(&freed);
        Ok(SegmentStat {
            segment,
            slot_bytes: loaded.head.slot_bytes,
            slots: loaded.head.slots(),
            freed: loaded.head.slots() - live.count(),
        })
    }

    fn slots_of(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        let loaded = self.wait(self.load(segment))?;
        let live = loaded.head.present.without(&loaded.freed?.slots);
        let slots = loaded.head.slots();
        let freed = (0..slots).filter(|slot| !live.contains(*slot));
        let freed: Vec<Slot> = freed
            .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
            .collect();
        Ok(SegmentSlots {
            stat: SegmentStat {
                segment,
                slot_bytes: loaded.head.slot_bytes,
                slots,
                freed: freed.len() as u32,
            },
            line: loaded.head.line,
            freed,
        })
    }

    /// What other hosts have changed may be a minute old, or longer where there
    /// are so many segments that naming them takes long.
    fn stat(&self) -> Result<UnitStat, UnitError> {
        let list = || self.wait(self.list_lengths(&(0..SegmentId::SERIAL_MAX)));
        let (segments, bytes) = self.account.stat(&*self.clock, list)?;
        Ok(UnitStat {
            segments,
            bytes,
            free_bytes: None,
        })
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.wait(self.scrub_segment(segment))
    }

    fn note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.wait(self.read_note())
    }

    fn note_down(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.wait(self.write_note(note))
    }

    fn probe(&self) -> Result<(), UnitError> {
        let probed = self.wait(self.try_probe());
        if let Err(
            UnitError::Missing { .. }
            | UnitError::Away { .. }
            | UnitError::Foreign { .. }
            | UnitError::Held { .. },
        ) = probed
        {
            self.forget();
        }
        probed
    }
}
