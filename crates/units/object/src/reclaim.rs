//! Freeing slots, reclaiming their room, and deleting segments.
//!
//! ```text
//!  1. record   bits into `freed/…`, durably                   free
//!  2. rewrite  the segment without them, when they are half   reclaim
//!              of its slots
//!  3. delete   the segment, then `freed/…`, when no slot is   free, reclaim
//!              left
//! ```
//!
//! Bits are only added until 3, so concurrent frees lose nothing. A crash in 3 leaves a `freed/…`
//! without a segment. As ids are never used again, it is harmless, and the walk after the next
//! start removes it. The same walk finds segments that should be rewritten.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::{SegmentId, Slot};
use bytes::Bytes;
use object_store::{Error, PutMode};
use parking_lot::Mutex;
use unit::format::segment_of;
use unit::{SegmentStat, UnitError};

use crate::bitmap::Bitmap;
use crate::bucket::Listing;
use crate::format::{Freed, Head};
use crate::heads::CachedSegment;
use crate::marker::Conditional;
use crate::object::Inner;
use crate::read::{Loaded, strong};

/// A segment is rewritten when one in this many of its slots was freed.
const REWRITE_ONE_IN: u32 = 2;

/// Time after which one call of `reclaim` begins nothing more.
const RECLAIM_FOR: Duration = Duration::from_millis(200);

/// Number of attempts of a free when others free slots of the segment concurrently.
const FREES_MAX: usize = 16;

/// Work that is left for `reclaim`.
#[derive(Default)]
pub(crate) struct ReclaimQueue {
    /// Segments that may have to be rewritten or removed.
    pending: Mutex<BTreeSet<SegmentId>>,
    walk: Mutex<Walk>,
}

/// The walk over what earlier processes have left.
#[derive(Default)]
enum Walk {
    #[default]
    Due,
    Running(Listing),
    Done,
}

impl Loaded {
    pub(crate) fn stat(&self) -> SegmentStat {
        let none = Bitmap::none(self.head.slots());
        let freed = self.freed.as_ref().map_or(&none, |freed| &freed.slots);
        SegmentStat {
            segment: self.head.segment,
            slot_bytes: self.head.slot_bytes,
            slots: self.head.slots(),
            generation: self.head.generation,
            freed: self.head.slots() - self.head.present.without(freed).count(),
        }
    }
}

impl Inner {
    /// Frees slots. A segment without other slots is deleted, as nothing is ever appended.
    pub(crate) async fn free_slots(
        &self,
        segment: SegmentId,
        slots: &[Slot],
    ) -> Result<(), UnitError> {
        let (verified, mut loaded) = tokio::join!(self.verify(), self.load(segment));
        let conditional = verified?;
        for _ in 0..FREES_MAX {
            let now = match loaded {
                // Another host may be putting it right now, so nothing is removed here. `reclaim`
                // removes what an interrupted delete has left.
                Err(UnitError::NoSegment { .. }) => {
                    self.reclaim_queue.pending.lock().insert(segment);
                    return Ok(());
                }
                other => other?,
            };
            match self.free_in(now, slots, conditional).await? {
                Progress::Done => return Ok(()),
                Progress::Again => loaded = self.load(segment).await,
            }
        }
        Err(UnitError::Io {
            url: self.bucket.url.clone(),
            doing: format!("free slots of segment {segment}"),
            source: Arc::new(io::Error::other(
                "other hosts free slots of it continuously",
            )),
        })
    }

    async fn free_in(
        &self,
        now: Loaded,
        slots: &[Slot],
        conditional: Conditional,
    ) -> Result<Progress, UnitError> {
        let segment = now.head.segment;
        let before = now.freed?;
        let mut freed = before.slots.clone();
        slots
            .iter()
            .for_each(|slot| freed.insert(u32::from(slot.0)));
        if now.head.present.without(&freed).count() == 0 {
            self.remove(segment).await?;
            return Ok(Progress::Done);
        }
        if freed != before.slots {
            let object = Freed {
                segment,
                cluster: self.cluster,
                slots: freed.clone(),
            };
            let mode = before.version.map_or(PutMode::Create, PutMode::Update);
            let path = self.freed_path(segment);
            let object = Bytes::from(object.encode());
            match self.bucket.put(&path, object, mode, conditional).await {
                Ok(_) => {}
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    return Ok(Progress::Again);
                }
                Err(error) => {
                    let doing = format!("free slots of segment {segment}");
                    return Err(self.bucket.write_error(&doing, error));
                }
            }
        }
        if is_rewriting_due(&now.head, &freed) {
            self.reclaim_queue.pending.lock().insert(segment);
        }
        let known = CachedSegment {
            freed,
            e_tag: strong(&now.version),
            head: now.head,
        };
        self.heads.insert(segment, &Arc::new(known));
        Ok(Progress::Done)
    }

    /// Removes the objects of a segment, if they exist.
    pub(crate) async fn remove(&self, segment: SegmentId) -> Result<(), UnitError> {
        let doing = format!("delete segment {segment}");
        let failed = |error| self.bucket.write_error(&doing, error);
        self.heads.remove(segment);
        let path = self.segment_path(segment);
        self.bucket.delete(&path).await.map_err(failed)?;
        self.account.set(segment, None);
        self.remove_freed(segment).await
    }

    /// Removes the `freed` object of a segment.
    async fn remove_freed(&self, segment: SegmentId) -> Result<(), UnitError> {
        let deleted = self.bucket.delete(&self.freed_path(segment)).await;
        let doing = format!("delete segment {segment}");
        deleted.map_err(|error| self.bucket.write_error(&doing, error))
    }

    /// Reclaims room for a while. Returns whether there is more to do.
    pub(crate) fn reclaim(&self) -> Result<bool, UnitError> {
        let end = self.clock.monotonic() + RECLAIM_FOR;
        let Some(mut next) = self.next_to_reclaim()? else {
            return Ok(false);
        };
        let conditional = self.wait(self.verify()).inspect_err(|_| {
            self.reclaim_queue.pending.lock().insert(next);
        })?;
        loop {
            let reclaimed = {
                let _alone = self.writer(next);
                self.wait(self.reclaim_segment(next, conditional))
            };
            match reclaimed {
                // A scrub reports it; retrying would block the others forever.
                Ok(()) | Err(UnitError::Damaged { .. }) => {}
                Err(why) => {
                    self.reclaim_queue.pending.lock().insert(next);
                    return Err(why);
                }
            }
            if self.clock.monotonic() >= end {
                let is_walked = matches!(*self.reclaim_queue.walk.lock(), Walk::Done);
                return Ok(!is_walked || !self.reclaim_queue.pending.lock().is_empty());
            }
            match self.next_to_reclaim()? {
                Some(segment) => next = segment,
                None => return Ok(false),
            }
        }
    }

    /// The next segment that may have room to reclaim.
    fn next_to_reclaim(&self) -> Result<Option<SegmentId>, UnitError> {
        let pending = self.reclaim_queue.pending.lock().pop_first();
        if pending.is_some() {
            return Ok(pending);
        }
        // Frees do not wait for this lock.
        let mut walk = self.reclaim_queue.walk.lock();
        loop {
            let listing = match &mut *walk {
                Walk::Done => return Ok(None),
                Walk::Running(listing) => listing,
                due @ Walk::Due => {
                    let objects = self.bucket.list(&self.bucket.path("freed"), None);
                    *due = Walk::Running(objects);
                    continue;
                }
            };
            match self.wait(listing.next()) {
                Ok(Some(object)) => {
                    let segment = object.location.filename().and_then(segment_of);
                    if segment.is_some() {
                        return Ok(segment);
                    }
                }
                Ok(None) => *walk = Walk::Done,
                Err(error) => {
                    *walk = Walk::Due;
                    return Err(self.bucket.read_error("list its freed slots", error));
                }
            }
        }
    }

    /// Rewrites a segment if that is due, or removes what is left of it.
    async fn reclaim_segment(
        &self,
        segment: SegmentId,
        conditional: Conditional,
    ) -> Result<(), UnitError> {
        let loaded = match self.load(segment).await {
            Err(UnitError::NoSegment { .. }) => return self.remove_freed(segment).await,
            other => other?,
        };
        let freed = loaded.freed?.slots;
        if loaded.head.present.without(&freed).count() == 0 {
            return self.remove(segment).await;
        }
        if !is_rewriting_due(&loaded.head, &freed) {
            return Ok(());
        }
        let e_tag = strong(&loaded.version);
        let found = match self.get_whole(&loaded.head, e_tag.as_deref()).await {
            // Another host rewrites or has rewritten it.
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => return Ok(()),
            other => other.map_err(|error| {
                self.bucket
                    .read_error(&format!("read segment {segment}"), error)
            })?,
        };
        let head = Head {
            present: loaded.head.present.without(&freed),
            ..loaded.head.clone()
        };
        let Some(object) = rewritten(&loaded.head, &head, &found.bytes) else {
            return Err(self.damaged(segment, "its head has changed without a new version"));
        };
        let path = self.segment_path(segment);
        let mode = PutMode::Update(found.version);
        match self.bucket.put(&path, object, mode, conditional).await {
            Ok(version) => {
                self.account.set(segment, Some(head.object_bytes()));
                let known = CachedSegment {
                    freed,
                    e_tag: strong(&version),
                    head,
                };
                self.heads.insert(segment, &Arc::new(known));
                Ok(())
            }
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => {
                let doing = format!("rewrite segment {segment}");
                Err(self.bucket.write_error(&doing, error))
            }
        }
    }
}

/// The outcome of one attempt of a free.
enum Progress {
    Done,
    /// Another host has changed the freed slots in between.
    Again,
}

fn is_rewriting_due(head: &Head, freed: &Bitmap) -> bool {
    let present = head.present.count();
    let dead = present - head.present.without(freed).count();
    dead > 0 && dead * REWRITE_ONE_IN >= present
}

/// Copies the slots of `new` from `object`, whose head is `old`. Damaged slots are copied too, so
/// that a scrub finds them. `None` if `object` has another head.
fn rewritten(old: &Head, new: &Head, object: &[u8]) -> Option<Bytes> {
    let is_old =
        Head::parse(object).as_ref() == Ok(old) && object.len() as u64 == old.object_bytes();
    is_old.then(|| {
        let mut bytes = Vec::with_capacity(new.object_bytes() as usize);
        new.encode(&mut bytes);
        let records = object[old.head_bytes()..].chunks_exact(old.record_bytes());
        for (slot, record) in old.present.iter().zip(records) {
            if new.present.contains(slot) {
                bytes.extend_from_slice(record);
            }
        }
        Bytes::from(bytes)
    })
}
