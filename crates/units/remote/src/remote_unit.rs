//! [`RemoteUnit`]: calls as requests.
//!
//! A read whose connection broke is retried once: it changes nothing, whenever the first one
//! arrives. If there is no other connection at once, it fails.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use base::{SegmentId, Slot};
use parking_lot::{Mutex, MutexGuard};
use unit::{
    NOTE_BYTES, Put, Read, ReadDone, ReadSlots, Replacement, ReplacementPart, SegmentSlots,
    SegmentStat, SlotRun, Tag, Unit, UnitError, UnitStat,
};
use unit_wire::{BODY_BYTES_MAX, Malformed, Refusal, Request, Status};

use super::{Link, Reply, has_broken};

/// Number of segments in one page of a list.
const LIST_AT_ONCE: u32 = 1 << 16;

/// Maximum number of slots freed by one request.
const FREE_AT_ONCE: usize = 1 << 16;

/// Maximum number of segments synced by one request.
const SYNC_AT_ONCE: usize = 1 << 10;

/// Content in one part of a replacement, in bytes.
const REPLACE_BYTES_AT_ONCE: usize = 1 << 20;

/// A unit behind a daemon.
pub struct RemoteUnit {
    url: Arc<str>,
    link: Arc<dyn Link>,
    /// Puts that are not synced, by segment.
    puts: Mutex<HashMap<SegmentId, Puts>>,
    put_next: AtomicU64,
}

/// Puts into a segment that no sync has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Puts {
    /// The incarnations of the daemon that answered them.
    incarnation: Incarnation,
    /// Number of the last one: a sync does not cover puts that end while it runs.
    last: u64,
}

/// The incarnations of a daemon that answered the puts into a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Incarnation {
    /// One.
    One(u64),
    /// Several: puts to the earlier ones may be lost.
    Several,
}

impl RemoteUnit {
    /// The unit at `url`, whose daemon `link` reaches.
    #[must_use]
    pub fn new(url: String, link: Arc<dyn Link>) -> Self {
        Self {
            url: url.into(),
            link,
            puts: Mutex::default(),
            put_next: AtomicU64::default(),
        }
    }

    /// Sends a request, waits, and parses the answer.
    fn request<T: Send + 'static>(
        &self,
        request: &Request<'_>,
        segment: Option<SegmentId>,
        read: impl FnOnce(Reply<'_>) -> Result<T, Malformed> + Send + 'static,
    ) -> Result<T, UnitError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |reply: Result<Reply<'_>, Arc<io::Error>>| {
            let answer = reply.map(|reply| match reply.status {
                Status::Done => read(reply).map(Ok),
                status => Refusal::decode(status, reply.body).map(Err),
            });
            // The caller waits for it, unless its thread has panicked.
            let _ = sender.send(answer);
        });
        self.link.send(request, done);
        let lost = || Err(Arc::new(io::Error::other("the request was dropped")));
        let answer = receiver.recv().unwrap_or_else(|_| lost());
        answer_of(&self.url, answer, segment)
    }

    /// The current incarnation of the daemon.
    fn incarnation(&self) -> Result<u64, UnitError> {
        self.request(&Request::UnitStat, None, |reply| Ok(reply.incarnation))
    }

    fn command(&self, request: &Request<'_>, segment: Option<SegmentId>) -> Result<(), UnitError> {
        self.request(request, segment, |_| Ok(()))
    }

    /// Reads a run that fits in one answer.
    fn read_part(&self, read: Read<'_>) -> Result<(), UnitError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        let request = Request::Read { run, slot_bytes };
        let read = || {
            self.request(&request, Some(run.segment), move |reply| {
                slots_in(reply.body, run, slot_bytes).map(|_| reply.body.to_vec())
            })
        };
        let body = match read() {
            Err(UnitError::Unavailable { source, .. }) if has_broken(&source) => read()?,
            other => other?,
        };
        let (from_tags, from_data) = body.split_at(size_of_val(tags));
        tags.as_flattened_mut().copy_from_slice(from_tags);
        data.copy_from_slice(from_data);
        Ok(())
    }

    fn puts(&self) -> MutexGuard<'_, HashMap<SegmentId, Puts>> {
        self.puts.lock()
    }

    /// Presents a capability.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn present(&self, capability: &[u8]) -> Result<(), UnitError> {
        self.command(&Request::Present(capability), None)
    }
}

/// Converts an answer of the unit at `url`.
fn answer_of<T>(
    url: &str,
    answer: Result<Result<Result<T, Refusal>, Malformed>, Arc<io::Error>>,
    segment: Option<SegmentId>,
) -> Result<T, UnitError> {
    match answer {
        Ok(Ok(Ok(answer))) => Ok(answer),
        Ok(Ok(Err(refusal))) => Err(refusal.into_error(url, segment)),
        Ok(Err(malformed)) => Err(UnitError::Io {
            url: url.to_owned(),
            doing: "parse its daemon's answer".to_owned(),
            source: Arc::new(io::Error::new(io::ErrorKind::InvalidData, malformed)),
        }),
        Err(source) => Err(UnitError::Unavailable {
            url: url.to_owned(),
            doing: "reach its daemon".to_owned(),
            source,
        }),
    }
}

/// Maximum number of slots in one answer.
fn slots_at_once(slot_bytes: u32) -> u16 {
    let slots = BODY_BYTES_MAX / (size_of::<Tag>() + slot_bytes as usize);
    u16::try_from(slots).unwrap_or(u16::MAX).max(1)
}

/// The tags and contents in the body of an answer to a read.
fn slots_in(body: &[u8], run: SlotRun, slot_bytes: u32) -> Result<ReadSlots<'_>, Malformed> {
    if body.len() != run.answer_bytes(slot_bytes) {
        return Err(Malformed("the answer has another length than the read"));
    }
    let (tags, data) = body.split_at(usize::from(run.count) * size_of::<Tag>());
    let (tags, _) = tags.as_chunks();
    Ok(ReadSlots::Apart { tags, data })
}

/// An asynchronous read.
struct AsyncRead {
    url: Arc<str>,
    run: SlotRun,
    slot_bytes: u32,
    done: ReadDone,
}

impl AsyncRead {
    /// Calls `done`.
    fn end(self, reply: Result<Reply<'_>, Arc<io::Error>>) {
        let answer = reply.map(|reply| match reply.status {
            Status::Done => slots_in(reply.body, self.run, self.slot_bytes).map(Ok),
            status => Refusal::decode(status, reply.body).map(Err),
        });
        (self.done)(answer_of(&self.url, answer, Some(self.run.segment)));
    }

    /// Retries after the connection broke, if that is possible without waiting.
    fn retry(self, link: &dyn Link, why: Arc<io::Error>) {
        let Self {
            run, slot_bytes, ..
        } = self;
        let shared = Arc::new(Mutex::new(Some(self)));
        let take = |shared: &Mutex<Option<Self>>| {
            let mut shared = shared.lock();
            shared.take()
        };
        let answered_by = Arc::clone(&shared);
        let answered = move |reply: Result<Reply<'_>, Arc<io::Error>>| {
            if let Some(reading) = take(&answered_by) {
                reading.end(reply);
            }
        };
        let request = Request::Read { run, slot_bytes };
        let is_sent = link.try_send(&request, Box::new(answered));
        if !is_sent && let Some(reading) = take(&shared) {
            reading.end(Err(why));
        }
    }
}

impl Unit for RemoteUnit {
    fn url(&self) -> &str {
        &self.url
    }

    fn can_append(&self) -> bool {
        true
    }

    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        let segment = put.segment;
        let request = Request::Put(put);
        let answered = self.request(&request, Some(segment), |reply| Ok(reply.incarnation))?;
        let last = self.put_next.fetch_add(1, Ordering::Relaxed);
        self.puts()
            .entry(segment)
            .and_modify(|puts| {
                puts.last = last;
                if puts.incarnation != Incarnation::One(answered) {
                    puts.incarnation = Incarnation::Several;
                }
            })
            .or_insert(Puts {
                incarnation: Incarnation::One(answered),
                last,
            });
        Ok(())
    }

    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        for segments in segments.chunks(SYNC_AT_ONCE) {
            let restarted = || UnitError::Restarted {
                url: self.url.to_string(),
            };
            let covered: Vec<Option<Puts>> = {
                let puts = self.puts();
                segments
                    .iter()
                    .map(|segment| puts.get(segment).copied())
                    .collect()
            };
            let mut found = None;
            for puts in &covered {
                match (puts.map(|puts| puts.incarnation), found) {
                    (Some(Incarnation::One(this)), None) => found = Some(this),
                    (Some(Incarnation::One(this)), Some(other)) if this == other => {}
                    (None, _) => {}
                    (Some(_), _) => return Err(restarted()),
                }
            }
            // Segments of other hosts, or that are synced already, accept any incarnation.
            let incarnation = match found {
                Some(incarnation) => incarnation,
                None => self.incarnation()?,
            };
            let request = Request::Sync {
                incarnation,
                segments: segments.to_vec(),
            };
            self.command(&request, segments.first().copied())?;
            let mut puts = self.puts();
            for (segment, covered) in segments.iter().zip(covered) {
                if puts.get(segment).copied() == covered {
                    puts.remove(segment);
                }
            }
        }
        Ok(())
    }

    /// Syncs in the current incarnation. Puts to earlier ones still count as lost for their
    /// caller.
    fn sync_found(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        for segments in segments.chunks(SYNC_AT_ONCE) {
            let request = Request::Sync {
                incarnation: self.incarnation()?,
                segments: segments.to_vec(),
            };
            self.command(&request, segments.first().copied())?;
        }
        Ok(())
    }

    /// In parts, if one answer cannot hold all slots.
    fn read(&self, read: Read<'_>) -> Result<(), UnitError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        let at_once = slots_at_once(slot_bytes);
        let parts = tags.chunks_mut(at_once.into());
        let parts = parts.zip(data.chunks_mut(usize::from(at_once) * slot_bytes as usize));
        let mut part = run;
        for (tags, data) in parts {
            part.count = tags.len() as u16;
            self.read_part(Read {
                run: part,
                slot_bytes,
                tags,
                data,
            })?;
            part.first.0 = part.first.0.saturating_add(part.count);
        }
        Ok(())
    }

    fn read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        if run.count > slots_at_once(slot_bytes) {
            return false;
        }
        let reading = AsyncRead {
            url: Arc::clone(&self.url),
            run,
            slot_bytes,
            done,
        };
        // A weak reference, because the link holds the callback.
        let link = Arc::downgrade(&self.link);
        let answered = move |reply: Result<Reply<'_>, Arc<io::Error>>| match reply {
            Err(why) if has_broken(&why) => match link.upgrade() {
                Some(link) => reading.retry(&*link, why),
                None => reading.end(Err(why)),
            },
            other => reading.end(other),
        };
        let request = Request::Read { run, slot_bytes };
        self.link.try_send(&request, Box::new(answered))
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError> {
        let mut rest = slots;
        loop {
            let (these, more) = rest.split_at(rest.len().min(FREE_AT_ONCE));
            let request = Request::Free {
                segment,
                closed,
                slots: these.to_vec(),
            };
            self.command(&request, Some(segment))?;
            if more.is_empty() {
                return Ok(());
            }
            rest = more;
        }
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.command(&Request::Delete(segment), Some(segment))?;
        self.puts().remove(&segment);
        Ok(())
    }

    /// In parts: the daemon collects them in a draft, which the last one puts in place.
    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        let at_once = (REPLACE_BYTES_AT_ONCE / by.slot_bytes as usize).max(1);
        let contents = by.data.chunks(at_once * by.slot_bytes as usize);
        let mut part = ReplacementPart {
            segment,
            lineage_tag: by.lineage_tag,
            draft: 0,
            expected: by.expected,
            generation: by.generation,
            slot_bytes: by.slot_bytes,
            slots: by.tags.len() as u32,
            first: 0,
        };
        for (tags, data) in by.tags.chunks(at_once).zip(contents) {
            let request = Request::Replace { part, tags, data };
            part.draft = self.request(&request, Some(segment), |reply| {
                let draft = reply.body.try_into().map(u64::from_le_bytes);
                draft.map_err(|_| Malformed("a draft's number has 8 bytes"))
            })?;
            part.first += tags.len() as u32;
        }
        self.puts().remove(&segment);
        Ok(())
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_serials(0..SegmentId::SERIAL_END)
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let mut found: Vec<SegmentId> = Vec::new();
        loop {
            let after = found.last().map_or(0, |last| last.bits());
            let request = Request::List {
                serials: serials.clone(),
                after,
                limit: LIST_AT_ONCE,
            };
            let page = self.request(&request, None, |reply| {
                unit_wire::decode_segments(reply.body)
            })?;
            let is_last = page.len() < LIST_AT_ONCE as usize;
            let is_valid = page.is_sorted_by(|one, next| one < next)
                && page
                    .first()
                    .is_none_or(|first| first.bits() > after || after == 0)
                && page.iter().all(|id| serials.contains(&id.serial()));
            if !is_valid {
                return Err(UnitError::Io {
                    url: self.url.to_string(),
                    doing: "list its segments".to_owned(),
                    source: Arc::new(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the list has segments that were not requested",
                    )),
                });
            }
            found.extend(page);
            if is_last {
                return Ok(found);
            }
        }
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        self.request(&Request::Stat(segment), Some(segment), move |reply| {
            Ok(unit_wire::decode_stat(segment, reply.body)?.0)
        })
    }

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        self.request(&Request::Stat(segment), Some(segment), move |reply| {
            unit_wire::decode_segment_slots(segment, reply.body)
        })
    }

    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.request(&Request::UnitStat, None, |reply| {
            Ok(UnitStat {
                incarnation: Some(reply.incarnation),
                ..unit_wire::decode_unit_stat(reply.body)?
            })
        })
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.request(&Request::Scrub(segment), Some(segment), |reply| {
            unit_wire::decode_slots(reply.body)
        })
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.request(&Request::ReadNote, None, |reply| match reply.body {
            [] => Ok(None),
            body => match body.try_into() {
                Ok(note) => Ok(Some(note)),
                Err(_) => Err(Malformed("a note has 512 bytes")),
            },
        })
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.command(&Request::WriteNote(note), None)
    }

    fn probe(&self) -> Result<(), UnitError> {
        self.command(&Request::Probe, None)
    }
}
