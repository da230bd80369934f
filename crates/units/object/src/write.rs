//! Putting and replacing segments.

use std::io;
use std::sync::Arc;

use base::SegmentId;
use bytes::Bytes;
use object_store::{Error, PutMode, UpdateVersion};
use unit::{Put, Replacement, Tag, UnitError};

use crate::bitmap::Bitmap;
use crate::format::{Head, encode_record};
use crate::heads::CachedSegment;
use crate::object::{Inner, misplaced};
use crate::read::{Loaded, strong};

/// The next state of a segment that is replaced.
struct Successor {
    head: Head,
    /// The slots that stay freed.
    freed: Bitmap,
    mode: PutMode,
}

/// The object of a segment: its head, and the records of the slots that are present.
fn encode_object(head: &Head, tags: &[Tag], data: &[u8]) -> Bytes {
    let mut object = Vec::with_capacity(head.object_bytes() as usize);
    head.encode(&mut object);
    let contents = data.chunks_exact(head.slot_bytes as usize);
    for ((slot, tag), content) in (0..).zip(tags).zip(contents) {
        if head.present.contains(slot) {
            encode_record(slot, tag, content, &mut object);
        }
    }
    Bytes::from(object)
}

impl Inner {
    /// Creates a segment. Durable on return.
    pub(crate) async fn put_whole(&self, put: &Put<'_>) -> Result<(), UnitError> {
        let &Put {
            lineage_tag,
            segment,
            slot_bytes,
            tags,
            data,
            ..
        } = put;
        // Too many slots, an invalid slot size, or a name that is taken.
        let misplaced_new = || UnitError::Misplaced {
            segment,
            slots: 0,
            slot_bytes,
        };
        let room = (self.segment_data_bytes / u64::from(slot_bytes).max(1)).max(1);
        let head = Head::whole(segment, self.cluster, lineage_tag, slot_bytes, tags.len())
            .filter(|head| u64::from(head.slots()) <= room)
            .ok_or_else(misplaced_new)?;
        let conditional = self.verify_for_put().await?;
        let object = encode_object(&head, tags, data);
        let path = self.segment_path(segment);
        let put = self
            .bucket
            .put(&path, object.clone(), PutMode::Create, conditional);
        let version = match put.await {
            Ok(version) => version,
            Err(Error::AlreadyExists { .. }) => self.find_put(&head, &object).await?,
            Err(error) => {
                let doing = format!("write segment {segment}");
                return Err(self.bucket.write_error(&doing, error));
            }
        };
        let freed = Bitmap::none(head.slots());
        self.remember(head, freed, &version);
        Ok(())
    }

    /// Replaces a segment. Durable on return.
    pub(crate) async fn replace_whole(
        &self,
        segment: SegmentId,
        by: &Replacement<'_>,
    ) -> Result<(), UnitError> {
        let (verified, loaded) = tokio::join!(self.verify_for_put(), self.load(segment));
        let conditional = verified?;
        let old = match loaded {
            Err(UnitError::NoSegment { .. }) if by.expected.is_none() => None,
            other => Some(other?),
        };
        let Successor { head, freed, mode } = self.successor(segment, old, by)?;
        let object = encode_object(&head, by.tags, by.data);
        let path = self.segment_path(segment);
        self.heads.remove(segment);
        let put = self.bucket.put(&path, object.clone(), mode, conditional);
        let version = match put.await {
            Ok(version) => version,
            // Another host was first, or an attempt whose answer was lost.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                match self.find_put(&head, &object).await {
                    Err(UnitError::Misplaced { .. }) => {
                        return Err(self.replaced(&self.load_head(segment).await?.0));
                    }
                    other => other?,
                }
            }
            Err(error) => {
                let doing = format!("replace segment {segment}");
                return Err(self.bucket.write_error(&doing, error));
            }
        };
        self.remember(head, freed, &version);
        Ok(())
    }

    /// What a replacement writes in place of `old`, or as a new segment.
    fn successor(
        &self,
        segment: SegmentId,
        old: Option<Loaded>,
        by: &Replacement<'_>,
    ) -> Result<Successor, UnitError> {
        let lineage_tag = old
            .as_ref()
            .map_or(by.lineage_tag, |old| old.head.lineage_tag);
        let mut head = Head::whole(
            segment,
            self.cluster,
            lineage_tag,
            by.slot_bytes,
            by.tags.len(),
        )
        .ok_or(UnitError::Misplaced {
            segment,
            slots: 0,
            slot_bytes: by.slot_bytes,
        })?;
        head.generation = by.generation;
        let mut freed = Bitmap::none(head.slots());
        let mut mode = PutMode::Create;
        if let Some(old) = old {
            self.check_generation(&old.head, by)?;
            // Freed slots stay freed, whether they still have a bit or are only absent.
            let absent = Bitmap::all(old.head.slots()).without(&old.head.present);
            for slots in [absent, old.freed?.slots] {
                slots.iter().for_each(|slot| freed.insert(slot));
            }
            head.present = head.present.without(&freed);
            mode = PutMode::Update(old.version);
        }
        Ok(Successor { head, freed, mode })
    }

    /// Caches the head of a segment that was put, and accounts for the length of its object.
    fn remember(&self, head: Head, freed: Bitmap, version: &UpdateVersion) {
        let segment = head.segment;
        self.account.set(segment, Some(head.object_bytes()));
        let known = CachedSegment {
            freed,
            e_tag: strong(version),
            head,
        };
        self.heads.insert(segment, &Arc::new(known));
    }

    fn check_generation(&self, found: &Head, by: &Replacement<'_>) -> Result<(), UnitError> {
        if by.expected == Some(found.generation) && by.generation >= found.generation {
            Ok(())
        } else {
            Err(self.replaced(found))
        }
    }

    fn replaced(&self, found: &Head) -> UnitError {
        UnitError::Replaced {
            url: self.bucket.url.clone(),
            segment: found.segment,
            generation: found.generation,
        }
    }

    /// The version of the object that exists already, if it is equal to `object`: this or an
    /// earlier put was carried out and its answer was lost.
    async fn find_put(&self, head: &Head, object: &Bytes) -> Result<UpdateVersion, UnitError> {
        let segment = head.segment;
        let loaded = match self.load(segment).await {
            // S3 also reports this while it carries out another put of that name.
            Err(UnitError::NoSegment { url, .. }) => {
                return Err(UnitError::Io {
                    url,
                    doing: format!("write segment {segment}"),
                    source: Arc::new(io::Error::other("it existed and then did not")),
                });
            }
            other => other?,
        };
        let is_alike = loaded.head == *head
            && loaded
                .freed
                .as_ref()
                .is_ok_and(|freed| freed.slots.count() == 0);
        if is_alike {
            let e_tag = strong(&loaded.version);
            let found = self.get_whole(head, e_tag.as_deref()).await;
            let found = found.map_err(|error| {
                self.bucket
                    .read_error(&format!("read segment {segment}"), error)
            })?;
            if found.bytes == *object {
                return Ok(found.version);
            }
        }
        Err(misplaced(&loaded.stat()))
    }
}
