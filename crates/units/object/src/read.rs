//! Reading heads, runs of slots, and whole segments; listing.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use base::{SegmentId, Slot};
use object_store::path::Path;
use object_store::{Error, GetRange, UpdateVersion};
use unit::format::{name_before, name_of, segment_of};
use unit::{Read, SegmentStat, UnitError};

use crate::bitmap::Bitmap;
use crate::bucket::Found;
use crate::format::{FREED_BYTES_MAX, Freed, HEAD_BYTES_MAX, Head, is_valid_record, split_record};
use crate::heads::CachedSegment;
use crate::object::{Inner, misplaced};

/// Number of attempts of one read if other hosts replace the segment in between, which happens
/// at most a dozen times in its life.
const ATTEMPTS_MAX: usize = 3;

/// A segment as it is in the store now.
pub(crate) struct Loaded {
    pub(crate) head: Head,
    pub(crate) version: UpdateVersion,
    /// The freed slots; an error if their object is damaged.
    pub(crate) freed: Result<FreedSlots, UnitError>,
}

/// The freed slots of a segment in the store.
#[derive(Debug)]
pub(crate) struct FreedSlots {
    pub(crate) slots: Bitmap,
    /// The version of their object, if there is one.
    pub(crate) version: Option<UpdateVersion>,
}

/// Why a read by a cached head failed.
enum ReadError {
    /// The object has changed or was removed.
    Changed,
    /// The cached head does not have the slots.
    Absent(UnitError),
    /// The store returned an error.
    Failed(UnitError),
}

/// The entity tag, if it is a strong one: no request can be conditional on a weak one.
pub(crate) fn strong(version: &UpdateVersion) -> Option<String> {
    version.e_tag.clone().filter(|tag| !tag.starts_with("W/"))
}

impl Inner {
    pub(crate) fn segment_path(&self, segment: SegmentId) -> Path {
        self.bucket.path("segments").join(name_of(segment))
    }

    pub(crate) fn freed_path(&self, segment: SegmentId) -> Path {
        self.bucket.path("freed").join(name_of(segment))
    }

    pub(crate) fn damaged(&self, segment: SegmentId, reason: impl ToString) -> UnitError {
        UnitError::Damaged {
            url: self.bucket.url.clone(),
            segment,
            reason: reason.to_string(),
        }
    }

    /// The error of a missing segment; that of the unit if the unit itself is missing.
    async fn no_segment(&self, segment: SegmentId) -> UnitError {
        match self.check().await {
            Ok(_) => UnitError::NoSegment {
                url: self.bucket.url.clone(),
                segment,
            },
            Err(why) => why,
        }
    }

    /// Reads the head of a segment.
    pub(crate) async fn load_head(
        &self,
        segment: SegmentId,
    ) -> Result<(Head, UpdateVersion), UnitError> {
        let path = self.segment_path(segment);
        let bytes = HEAD_BYTES_MAX as u64;
        let range = Some(GetRange::Bounded(0..bytes));
        match self.bucket.get(&path, range, None, bytes).await {
            Ok(found) => Ok((self.check_head(segment, &found)?, found.version)),
            Err(Error::NotFound { .. }) => Err(self.no_segment(segment).await),
            Err(error) => match self.bucket.head(&path).await {
                // A range of an empty object is an error.
                Ok(found) if found.size == 0 => Err(self.damaged(segment, "it is empty")),
                _ => Err(self
                    .bucket
                    .read_error(&format!("read segment {segment}"), error)),
            },
        }
    }

    /// Parses the head of an object and checks that it belongs to this segment and states the
    /// object's length.
    fn check_head(&self, segment: SegmentId, found: &Found) -> Result<Head, UnitError> {
        let head = Head::parse(&found.bytes).map_err(|error| self.damaged(segment, error))?;
        let (is, should) = (found.size, head.object_bytes());
        let reason = if head.segment != segment {
            format!("it is segment {}", head.segment)
        } else if head.cluster != self.cluster {
            format!("it belongs to {}", head.cluster)
        } else if is != should {
            format!("it has {is} bytes and should have {should}")
        } else {
            return Ok(head);
        };
        Err(self.damaged(segment, reason))
    }

    /// Reads the head of a segment and its freed slots.
    pub(crate) async fn load(&self, segment: SegmentId) -> Result<Loaded, UnitError> {
        let path = self.freed_path(segment);
        let freed = self.bucket.get(&path, None, None, FREED_BYTES_MAX as u64);
        let (loaded, freed) = tokio::join!(self.load_head(segment), freed);
        let (head, version) = loaded?;
        let freed = match freed {
            Ok(found) => self.check_freed(&head, &found).map(|slots| FreedSlots {
                slots,
                version: Some(found.version),
            }),
            Err(Error::NotFound { .. }) => Ok(FreedSlots {
                slots: Bitmap::none(head.slots()),
                version: None,
            }),
            Err(error) => {
                let doing = format!("read the freed slots of segment {segment}");
                return Err(self.bucket.read_error(&doing, error));
            }
        };
        Ok(Loaded {
            head,
            version,
            freed,
        })
    }

    fn check_freed(&self, head: &Head, found: &Found) -> Result<Bitmap, UnitError> {
        let damaged = |reason: &dyn std::fmt::Display| {
            self.damaged(
                head.segment,
                format!("the object of its freed slots: {reason}"),
            )
        };
        let freed = Freed::parse(&found.bytes).map_err(|error| damaged(&error))?;
        let is_its = freed.segment == head.segment
            && freed.cluster == head.cluster
            && (freed.slots.slots() == head.slots() || head.generation > 0);
        if is_its {
            // It may have been written before the segment was replaced.
            Ok(freed.slots.of_length(head.slots()))
        } else {
            Err(damaged(&format!("it belongs to segment {}", freed.segment)))
        }
    }

    /// Reads a run by the cached head, or by a loaded one.
    pub(crate) async fn read_run(&self, mut read: Read<'_>) -> Result<(), UnitError> {
        let segment = read.run.segment;
        if let Some(known) = self.heads.get(segment) {
            match self.read_cached(&known, read.reborrow()).await {
                Ok(()) => return Ok(()),
                Err(ReadError::Failed(why)) => return Err(why),
                // Load the current head.
                Err(ReadError::Changed | ReadError::Absent(_)) => self.heads.remove(segment),
            }
        }
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(segment).await?;
            let none = || Bitmap::none(loaded.head.slots());
            let known = Arc::new(CachedSegment {
                // Callers read slots that were not freed. These can be read even if the object of
                // freed slots is damaged.
                freed: loaded.freed.map_or_else(|_| none(), |freed| freed.slots),
                e_tag: strong(&loaded.version),
                head: loaded.head,
            });
            self.heads.insert(segment, &known);
            match self.read_cached(&known, read.reborrow()).await {
                Ok(()) => return Ok(()),
                Err(ReadError::Absent(why) | ReadError::Failed(why)) => return Err(why),
                Err(ReadError::Changed) => self.heads.remove(segment),
            }
        }
        Err(UnitError::Io {
            url: self.bucket.url.clone(),
            doing: format!("read segment {segment}"),
            source: Arc::new(io::Error::other("other hosts replace it continuously")),
        })
    }

    /// Reads a run with one request, if the segment is still the cached one.
    async fn read_cached(&self, known: &CachedSegment, read: Read<'_>) -> Result<(), ReadError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        let head = &known.head;
        if head.slot_bytes != slot_bytes {
            let found = SegmentStat {
                segment: run.segment,
                slot_bytes: head.slot_bytes,
                slots: head.slots(),
                freed: 0,
                generation: head.generation,
            };
            return Err(ReadError::Absent(misplaced(&found)));
        }
        let (first, count) = (u32::from(run.first.0), u32::from(run.count));
        let mut slots = first..first + count;
        if let Some(absent) = slots.find(|slot| !known.is_live(*slot)) {
            return Err(ReadError::Absent(UnitError::NoSlot {
                url: self.bucket.url.clone(),
                segment: run.segment,
                // A run may extend beyond the last slot number.
                slot: Slot(u16::try_from(absent).unwrap_or(u16::MAX)),
            }));
        }
        let range = head.range(first, count);
        let bytes = range.end - range.start;
        let path = self.segment_path(run.segment);
        let e_tag = known.e_tag.as_deref();
        let found = match self
            .bucket
            .get(&path, Some(GetRange::Bounded(range)), e_tag, bytes)
            .await
        {
            Ok(found) => found,
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => {
                return Err(ReadError::Changed);
            }
            Err(error) => {
                let doing = format!("read segment {}", run.segment);
                return Err(ReadError::Failed(self.bucket.read_error(&doing, error)));
            }
        };
        if found.bytes.len() as u64 != bytes || found.size != head.object_bytes() {
            return Err(ReadError::Changed);
        }
        let records = found.bytes.chunks_exact(head.record_bytes());
        let contents = data.chunks_exact_mut(slot_bytes as usize);
        for ((record, tag), content) in records.zip(tags).zip(contents) {
            let (found_tag, found_content) =
                split_record(record).expect("a record is longer than its head");
            *tag = *found_tag;
            content.copy_from_slice(found_content);
        }
        Ok(())
    }

    /// Reads the whole object of a segment, if it still has this entity tag.
    pub(crate) async fn get_whole(&self, head: &Head, e_tag: Option<&str>) -> Result<Found, Error> {
        let path = self.segment_path(head.segment);
        self.bucket
            .get(&path, None, e_tag, head.object_bytes())
            .await
    }

    /// Reads a whole segment and compares each slot with its checksum.
    pub(crate) async fn scrub_segment(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(segment).await?;
            let e_tag = strong(&loaded.version);
            let found = match self.get_whole(&loaded.head, e_tag.as_deref()).await {
                Err(Error::Precondition { .. } | Error::NotFound { .. }) => continue,
                other => other.map_err(|error| {
                    self.bucket
                        .read_error(&format!("read segment {segment}"), error)
                })?,
            };
            let head = self.check_head(segment, &found)?;
            let freed = loaded.freed?.slots;
            let records = found.bytes[head.head_bytes()..].chunks_exact(head.record_bytes());
            let bad: Vec<u32> = head
                .present
                .iter()
                .zip(records)
                .filter(|(slot, record)| !freed.contains(*slot) && !is_valid_record(*slot, record))
                .map(|(slot, _)| slot)
                .collect();
            return self.still_bad(segment, &bad).await;
        }
        Err(self.no_segment(segment).await)
    }

    /// Those of `bad` that were not freed meanwhile.
    async fn still_bad(&self, segment: SegmentId, bad: &[u32]) -> Result<Vec<Slot>, UnitError> {
        if bad.is_empty() {
            return Ok(Vec::new());
        }
        let now = match self.load(segment).await {
            Ok(loaded) => loaded.freed?.slots,
            Err(UnitError::NoSegment { .. }) => return Ok(Vec::new()),
            Err(why) => return Err(why),
        };
        let still = bad.iter().filter(|slot| !now.contains(**slot));
        Ok(still.map(|slot| Slot(*slot as u16)).collect())
    }

    /// Lists the segments with these serials and the lengths of their objects.
    pub(crate) async fn list_lengths(
        &self,
        serials: &Range<u64>,
    ) -> Result<HashMap<SegmentId, u64>, UnitError> {
        // An empty list may be that of another bucket: check the marker.
        let (checked, listed) = tokio::join!(self.check(), self.list_objects(serials));
        checked?;
        listed.map_err(|error| self.bucket.read_error("list its segments", error))
    }

    async fn list_objects(&self, serials: &Range<u64>) -> Result<HashMap<SegmentId, u64>, Error> {
        let mut lengths = HashMap::new();
        if serials.is_empty() {
            return Ok(lengths);
        }
        let folder = self.bucket.path("segments");
        let after = folder.clone().join(name_before(serials.start));
        let after = (serials.start > 0).then_some(&after);
        let mut objects = self.bucket.list(&folder, after);
        // To completion, because a store need not list in order.
        while let Some(object) = objects.next().await? {
            let segment = object.location.filename().and_then(segment_of);
            if let Some(segment) = segment.filter(|found| serials.contains(&found.serial())) {
                lengths.insert(segment, object.size);
            }
        }
        Ok(lengths)
    }
}
