//! [`ObjectUnit`]: the operations of a unit on a bucket.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::{ClusterId, LineageTag, SegmentId, Slot, UnitId};
use bytes::Bytes;
use object_store::{Error, PutMode};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use unit::{
    Fact, NOTE_BYTES, Owner, Put, Read, ReadDone, ReadSlots, Replacement, SegmentSlots,
    SegmentStat, SlotRun, Tag, Unit, UnitError, UnitStat,
};
use world::{Clock, World};

use crate::account::Account;
use crate::bucket::Bucket;
use crate::heads::Heads;
use crate::location::Location;
use crate::marker::{Conditional, ObjectMarker};
use crate::reclaim::ReclaimQueue;
use crate::{HEADS_BYTES_MAX, SEGMENT_DATA_BYTES, claim};

/// Number of locks that keep the writers of one segment apart.
const WRITER_LOCKS: usize = 64;

/// Name of the note, as on a folder.
const NOTE: &str = "leases";

/// Maximum number of asynchronous reads under way; each has a run of slots in memory.
const READS_ASYNC_MAX: usize = 64;

/// A prefix of a bucket as a storage unit. Shared by many threads, which must not be threads of
/// the runtime.
pub struct ObjectUnit(Arc<Inner>);

/// State that is shared with asynchronous reads.
pub(crate) struct Inner {
    pub(crate) bucket: Bucket,
    pub(crate) cluster: ClusterId,
    pub(crate) unit: UnitId,
    pub(crate) owner: Option<Owner>,
    /// Whether the next claim also succeeds against an owner of the same generation.
    pub(crate) takes_over: AtomicBool,
    /// The error of the last claim.
    pub(crate) claim_error: Mutex<Option<UnitError>>,
    /// When the marker was last verified, and the store's features in it.
    pub(crate) verified: Mutex<Option<(Duration, Conditional)>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heads: Heads,
    pub(crate) account: Account,
    pub(crate) reclaim_queue: ReclaimQueue,
    pub(crate) segment_data_bytes: u64,
    runtime: Handle,
    writers: [Mutex<()>; WRITER_LOCKS],
    reads_async: Arc<Semaphore>,
}

impl ObjectUnit {
    /// The unit at `location`, which should be unit `unit` of `cluster`. Sends no request yet;
    /// [`Unit::probe`] checks it. Requests run on `runtime`, which must have timers, I/O and
    /// threads of its own.
    #[must_use]
    pub fn open(
        world: &World,
        runtime: &Handle,
        location: &Location,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Self {
        Self(Arc::new(Inner {
            bucket: Bucket::new(location),
            cluster,
            unit,
            owner: None,
            takes_over: AtomicBool::new(false),
            claim_error: Mutex::default(),
            verified: Mutex::default(),
            clock: Arc::clone(&world.clock),
            heads: Heads::new(HEADS_BYTES_MAX),
            account: Account::default(),
            reclaim_queue: ReclaimQueue::default(),
            segment_data_bytes: SEGMENT_DATA_BYTES,
            runtime: runtime.clone(),
            writers: [const { Mutex::new(()) }; WRITER_LOCKS],
            reads_async: Arc::new(Semaphore::new(READS_ASYNC_MAX)),
        }))
    }

    /// Creates unit `unit` of `cluster` at `location`. The bucket must exist and the prefix must
    /// be empty. A prefix that is that very unit already is opened.
    ///
    /// # Errors
    /// [`UnitError::Foreign`] if it is another unit or holds other objects.
    pub fn create(
        world: &World,
        runtime: &Handle,
        location: &Location,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Result<Self, UnitError> {
        Self::open(world, runtime, location, cluster, unit).created()
    }

    /// Creates the unit that was opened, as [`ObjectUnit::create`] does.
    ///
    /// # Errors
    /// As [`ObjectUnit::create`]; [`UnitError::Held`] if it has another owner.
    pub fn created(self) -> Result<Self, UnitError> {
        self.0.wait(self.0.create())?;
        Ok(self)
    }

    /// Reads the marker of the unit at `location`.
    ///
    /// # Errors
    /// [`UnitError::Missing`] if it is no unit, [`UnitError::Newer`] if this program cannot read
    /// it.
    pub fn identify(runtime: &Handle, location: &Location) -> Result<ObjectMarker, UnitError> {
        runtime.block_on(claim::identify(&Bucket::new(location)))
    }

    /// Lets only `owner` change the unit, which is claimed when it is created or probed. With
    /// `takes_over`, the first claim also succeeds against an owner of the same generation.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner, takes_over: bool) -> Self {
        let inner = self.unshared();
        inner.owner = Some(owner);
        inner.takes_over = AtomicBool::new(takes_over);
        self
    }

    /// Limits segments to `bytes` of data instead of [`SEGMENT_DATA_BYTES`].
    #[must_use]
    pub fn with_segment_data_bytes(mut self, bytes: u64) -> Self {
        self.unshared().segment_data_bytes = bytes;
        self
    }

    fn unshared(&mut self) -> &mut Inner {
        Arc::get_mut(&mut self.0).expect("no read runs before the unit is set up")
    }

    /// The unit's id.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.0.unit
    }

    /// The lineage tag of a segment.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    pub fn lineage_tag_of(&self, segment: SegmentId) -> Result<LineageTag, UnitError> {
        if let Some(lineage_tag) = self.lineage_tag_now(segment) {
            return Ok(lineage_tag);
        }
        Ok(self.0.wait(self.0.load(segment))?.head.lineage_tag)
    }

    /// As [`ObjectUnit::lineage_tag_of`] if it is known without waiting.
    #[must_use]
    pub fn lineage_tag_now(&self, segment: SegmentId) -> Option<LineageTag> {
        Some(self.0.heads.get(segment)?.head.lineage_tag)
    }
}

impl Inner {
    /// Waits for the store.
    pub(crate) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    pub(crate) fn writer(&self, segment: SegmentId) -> MutexGuard<'_, ()> {
        self.writers[segment.serial() as usize % WRITER_LOCKS].lock()
    }

    async fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        let path = self.bucket.path(NOTE);
        let note = self.bucket.get(&path, None, None, NOTE_BYTES as u64);
        let (checked, note) = tokio::join!(self.check(), note);
        checked?;
        match note {
            Ok(found) => Ok(<[u8; NOTE_BYTES]>::try_from(&found.bytes[..]).ok()),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.bucket.read_error("read its note", error)),
        }
    }

    async fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        // A prefix without the unit's marker is never written to.
        self.verify().await?;
        let path = self.bucket.path(NOTE);
        let note = Bytes::copy_from_slice(note);
        let put = self.bucket.put_at_once(&path, note, PutMode::Overwrite);
        let failed = |error| self.bucket.write_error("write its note", error);
        put.await.map(drop).map_err(failed)
    }
}

/// Completes an asynchronous read, even if the runtime ends before it does.
struct ReadCompletion {
    inner: Arc<Inner>,
    done: Option<ReadDone>,
}

impl ReadCompletion {
    fn complete(mut self, read: Result<ReadSlots<'_>, UnitError>) {
        if let Some(done) = self.done.take() {
            done(read);
        }
    }
}

impl Drop for ReadCompletion {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(UnitError::Unavailable {
                url: self.inner.bucket.url.clone(),
                doing: "read a segment".to_owned(),
                source: Arc::new(io::Error::other("the request was dropped")),
            }));
        }
    }
}

pub(crate) fn misplaced(found: &SegmentStat) -> UnitError {
    UnitError::Misplaced {
        segment: found.segment,
        slots: found.slots,
        slot_bytes: found.slot_bytes,
    }
}

impl Unit for ObjectUnit {
    fn url(&self) -> &str {
        &self.0.bucket.url
    }

    fn can_append(&self) -> bool {
        false
    }

    /// Repeating a put after an error, with the same content, succeeds once it is stored.
    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        put.assert_fit();
        let _alone = self.0.writer(put.segment);
        match put.first {
            Slot(0) => self.0.wait(self.0.put_whole(&put)),
            _ => Err(misplaced(&self.stat_segment(put.segment)?)),
        }
    }

    /// Puts are durable on return; this checks that the segments exist.
    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        let unknown: BTreeSet<SegmentId> = segments
            .iter()
            .copied()
            .filter(|segment| self.0.heads.get(*segment).is_none())
            .collect();
        for segment in unknown {
            self.0.wait(self.0.load_head(segment))?;
        }
        Ok(())
    }

    fn read(&self, read: Read<'_>) -> Result<(), UnitError> {
        read.assert_fit();
        self.0.wait(self.0.read_run(read))
    }

    fn read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let Ok(permit) = Arc::clone(&self.0.reads_async).try_acquire_owned() else {
            return false;
        };
        let inner = Arc::clone(&self.0);
        let completion = ReadCompletion {
            inner: Arc::clone(&inner),
            done: Some(done),
        };
        self.0.runtime.spawn(async move {
            let _permit = permit;
            let mut tags = vec![[0; size_of::<Tag>()]; usize::from(run.count)];
            let mut data = vec![0; usize::from(run.count) * slot_bytes as usize];
            let read = Read {
                run,
                slot_bytes,
                tags: &mut tags,
                data: &mut data,
            };
            let read = inner.read_run(read).await;
            completion.complete(read.map(|()| ReadSlots::Apart {
                tags: &tags,
                data: &data,
            }));
        });
        true
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], _closed: bool) -> Result<(), UnitError> {
        let _alone = self.0.writer(segment);
        self.0.wait(self.0.free_slots(segment, slots))
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        let _alone = self.0.writer(segment);
        self.0.wait(async {
            self.0.verify().await?;
            self.0.remove(segment).await
        })
    }

    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        by.assert_fit();
        let _alone = self.0.writer(segment);
        self.0.wait(self.0.replace_whole(segment, &by))
    }

    fn reclaim(&self) -> Result<bool, UnitError> {
        self.0.reclaim()
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_serials(0..SegmentId::SERIAL_END)
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let listed = self.0.wait(self.0.list_lengths(&serials))?;
        let mut segments: Vec<SegmentId> = listed.into_keys().collect();
        segments.sort_unstable();
        Ok(segments)
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        let loaded = self.0.wait(self.0.load(segment))?;
        let freed = loaded.freed?.slots;
        let live = loaded.head.present.without(&freed);
        Ok(SegmentStat {
            segment,
            slot_bytes: loaded.head.slot_bytes,
            slots: loaded.head.slots(),
            freed: loaded.head.slots() - live.count(),
            generation: loaded.head.generation,
        })
    }

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        let loaded = self.0.wait(self.0.load(segment))?;
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
                generation: loaded.head.generation,
            },
            lineage_tag: loaded.head.lineage_tag,
            freed,
        })
    }

    /// Changes of other hosts may be missing for a minute, or longer if listing takes long.
    fn stat(&self) -> Result<UnitStat, UnitError> {
        let list = || {
            self.0
                .wait(self.0.list_lengths(&(0..SegmentId::SERIAL_END)))
        };
        let (segments, bytes) = self.0.account.stat(&*self.0.clock, list)?;
        Ok(UnitStat {
            incarnation: Some(0),
            segments,
            bytes,
            free_bytes: None,
        })
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.0.wait(self.0.scrub_segment(segment))
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.0.wait(self.0.read_note())
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.0.wait(self.0.write_note(note))
    }

    fn facts(&self) -> Result<Vec<Fact>, UnitError> {
        let Conditional { create, update } = self.0.wait(self.0.check())?.conditional;
        Ok(vec![
            Fact {
                what: "conditional create",
                holds: create,
                otherwise: "a put checks first, and overwrites a concurrent one",
            },
            Fact {
                what: "conditional update",
                holds: update,
                otherwise: "slots that two hosts free concurrently in one segment may take room \
                            until it is deleted",
            },
        ])
    }

    fn probe(&self) -> Result<(), UnitError> {
        let probed = self.0.wait(self.0.try_probe());
        if let Err(
            UnitError::Missing { .. }
            | UnitError::Unavailable { .. }
            | UnitError::Foreign { .. }
            | UnitError::Held { .. },
        ) = probed
        {
            self.0.forget();
        }
        probed
    }
}
