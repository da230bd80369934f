//! Freeing slots, giving their room back, and deleting segments.
//!
//! ```text
//!  1. name     bits into `freed/…`, durably                   free
//!  2. rewrite  the segment without them, when they are half   settle
//!              of what is in it
//!  3. delete   the segment, then `freed/…`, when none is      free, settle
//!              left
//! ```
//!
//! What was named stays named until 3, so whoever names more at the same time
//! takes nothing back. A crash in 3 leaves a `freed/…` of no segment: numbers
//! are never used again, so it means nothing, and the walk that `settle` makes
//! once after a start removes it. The same walk finds what is to be rewritten.

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
use crate::heads::Known;
use crate::marker::Conditional;
use crate::object::Inner;
use crate::read::{Loaded, strong};

/// A segment is rewritten when one in so many of the slots in it is dead.
const REWRITE_ONE_IN: u32 = 2;

/// How long one call of `settle` goes on: what it has begun, it ends.
const SETTLE_FOR: Duration = Duration::from_millis(200);

/// How often freeing is tried anew after others have freed in between.
const FREES_MAX: usize = 16;

/// What is left to give back.
#[derive(Default)]
pub(crate) struct Settling {
    /// Segments that may have to be rewritten or cleared away.
    pending: Mutex<BTreeSet<SegmentId>>,
    walk: Mutex<Walk>,
}

/// The look at what processes before this one have left.
#[derive(Default)]
enum Walk {
    #[default]
    Due,
    Going(Listing),
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
    /// Frees slots. A segment with none left is deleted: nothing is ever
    /// appended to it.
    pub(crate) async fn free_slots(
        &self,
        segment: SegmentId,
        slots: &[Slot],
    ) -> Result<(), UnitError> {
        let (verified, mut loaded) = tokio::join!(self.verify(), self.load(segment));
        let conditional = verified?;
        for _ in 0..FREES_MAX {
            let now = match loaded {
                // Nothing is removed: somebody may be putting it there in this moment. What a
                // delete that was cut short has left goes in time.
                Err(UnitError::NoSegment { .. }) => {
                    self.settling.pending.lock().insert(segment);
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
            source: Arc::new(io::Error::other("others free there all the time")),
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
                    return Err(self.bucket.meaning_of_write(&doing, error));
                }
            }
        }
        if is_rewriting_due(&now.head, &freed) {
            self.settling.pending.lock().insert(segment);
        }
        let known = Known {
            freed,
            e_tag: strong(&now.version),
            head: now.head,
        };
        self.heads.insert(segment, &Arc::new(known));
        Ok(Progress::Done)
    }

    /// Removes a segment and what is beside it, whatever of that is there.
    pub(crate) async fn remove(&self, segment: SegmentId) -> Result<(), UnitError> {
        let doing = format!("delete segment {segment}");
        let failed = |error| self.bucket.meaning_of_write(&doing, error);
        self.heads.remove(segment);
        let path = self.segment_path(segment);
        self.bucket.delete(&path).await.map_err(failed)?;
        self.account.set(segment, None);
        self.remove_freed(segment).await
    }

    /// Removes what is beside a segment.
    async fn remove_freed(&self, segment: SegmentId) -> Result<(), UnitError> {
        let deleted = self.bucket.delete(&self.freed_path(segment)).await;
        let doing = format!("delete segment {segment}");
        deleted.map_err(|error| self.bucket.meaning_of_write(&doing, error))
    }

    /// Gives room back for a while. Returns whether there is more to do.
    pub(crate) fn reclaim_some(&self) -> Result<bool, UnitError> {
        let end = self.clock.monotonic() + SETTLE_FOR;
        let Some(mut next) = self.next_to_settle()? else {
            return Ok(false);
        };
        let conditional = self.wait(self.verify()).inspect_err(|_| {
            self.settling.pending.lock().insert(next);
        })?;
        loop {
            let settled = {
                let _alone = self.writer(next);
                self.wait(self.settle_segment(next, conditional))
            };
            match settled {
                // A scrub tells of it; here it would be in the way for ever.
                Ok(()) | Err(UnitError::Damaged { .. }) => {}
                Err(why) => {
                    self.settling.pending.lock().insert(next);
                    return Err(why);
                }
            }
            if self.clock.monotonic() >= end {
                let is_walked = matches!(*self.settling.walk.lock(), Walk::Done);
                return Ok(!is_walked || !self.settling.pending.lock().is_empty());
            }
            match self.next_to_settle()? {
                Some(segment) => next = segment,
                None => return Ok(false),
            }
        }
    }

    /// A segment that may have room to give back.
    fn next_to_settle(&self) -> Result<Option<SegmentId>, UnitError> {
        let pending = self.settling.pending.lock().pop_first();
        if pending.is_some() {
            return Ok(pending);
        }
        // Whoever frees does not wait for this lock.
        let mut walk = self.settling.walk.lock();
        loop {
            let listing = match &mut *walk {
                Walk::Done => return Ok(None),
                Walk::Going(listing) => listing,
                due @ Walk::Due => {
                    let objects = self.bucket.list(&self.bucket.path("freed"), None);
                    *due = Walk::Going(objects);
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
                    return Err(self.bucket.meaning("list what is free", error));
                }
            }
        }
    }

    /// Rewrites a segment if that is due, or clears away what is left of it.
    async fn settle_segment(
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
            // Another host is at it, or was.
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => return Ok(()),
            other => other.map_err(|error| {
                self.bucket
                    .meaning(&format!("read segment {segment}"), error)
            })?,
        };
        let head = Head {
            present: loaded.head.present.without(&freed),
            ..loaded.head.clone()
        };
        let Some(object) = rewritten(&loaded.head, &head, &found.bytes) else {
            return Err(self.damaged(segment, "it is not as it was a moment ago"));
        };
        let path = self.segment_path(segment);
        let mode = PutMode::Update(found.version);
        match self.bucket.put(&path, object, mode, conditional).await {
            Ok(version) => {
                self.account.set(segment, Some(head.object_bytes()));
                let known = Known {
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
                Err(self.bucket.meaning_of_write(&doing, error))
            }
        }
    }
}

/// How far freeing has come.
enum Progress {
    Done,
    /// Somebody else has freed there in between.
    Again,
}

fn is_rewriting_due(head: &Head, freed: &Bitmap) -> bool {
    let present = head.present.count();
    let dead = present - head.present.without(freed).count();
    dead > 0 && dead * REWRITE_ONE_IN >= present
}

/// The object that begins with `new` and has its slots as they are in `object`,
/// which begins with `old`; also what has rotted, so that a scrub finds it.
/// `None` if `object` does not begin so.
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
