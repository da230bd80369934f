//! Calls as requests.
//!
//! A reading whose connection broke is asked for once more: it changes nothing, whenever
//! the first one arrives. If there is no other connection now, that is told at once.

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

/// Segments that are asked for at once.
const LIST_AT_ONCE: u32 = 1 << 16;

/// Slots that are freed by one request, at most.
const FREE_AT_ONCE: usize = 1 << 16;

/// Segments that are synced by one request, at most.
const SYNC_AT_ONCE: usize = 1 << 10;

/// How much of a segment that takes another's place is sent at once, in bytes of
/// content.
const REPLACE_BYTES_AT_ONCE: usize = 1 << 20;

/// A unit that a daemon keeps.
pub struct RemoteUnit {
    url: Arc<str>,
    link: Arc<dyn Link>,
    /// Of segments that are not synced: what was put.
    puts: Mutex<HashMap<SegmentId, Puts>>,
    put_next: AtomicU64,
}

/// Puts into a segment that no sync has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Puts {
    /// In which lives of the daemon.
    life: Life,
    /// The number of the last one: what is put while a sync is under way, that does not
    /// cover.
    last: u64,
}

/// In which life of a daemon something was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// In this one.
    One(u64),
    /// In several: what was put in those that have ended may be lost.
    Several,
}

impl RemoteUnit {
    /// The unit at `url`, to whose daemon `link` leads.
    #[must_use]
    pub fn new(url: String, link: Arc<dyn Link>) -> Self {
        Self {
            url: url.into(),
            link,
            puts: Mutex::default(),
            put_next: AtomicU64::default(),
        }
    }

    /// Asks, waits, and reads the answer.
    fn ask<T: Send + 'static>(
        &self,
        request: &Request<'_>,
        segment: Option<SegmentId>,
        read: impl FnOnce(Reply<'_>) -> Result<T, Malformed> + Send + 'static,
    ) -> Result<T, UnitError> {
        let (tell, told) = mpsc::sync_channel(1);
        let done = Box::new(move |reply: Result<Reply<'_>, Arc<io::Error>>| {
            let answer = reply.map(|reply| match reply.status {
                Status::Done => read(reply).map(Ok),
                status => Refusal::decode(status, reply.body).map(Err),
            });
            // Whoever asked waits for it, unless its thread has panicked.
            let _ = tell.send(answer);
        });
        self.link.ask(request, done);
        let lost = || Err(Arc::new(io::Error::other("the request was dropped")));
        let answer = told.recv().unwrap_or_else(|_| lost());
        answer_of(&self.url, answer, segment)
    }

    /// Which life of the daemon there is.
    fn life(&self) -> Result<u64, UnitError> {
        self.ask(&Request::Room, None, |reply| Ok(reply.incarnation))
    }

    fn do_it(&self, request: &Request<'_>, segment: Option<SegmentId>) -> Result<(), UnitError> {
        self.ask(request, segment, |_| Ok(()))
    }

    /// Reads a run of which one answer has all.
    fn read_part(&self, read: Read<'_>) -> Result<(), UnitError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        let request = Request::Read { run, slot_bytes };
        let ask = || {
            self.ask(&request, Some(run.segment), move |reply| {
                slots_in(reply.body, run, slot_bytes).map(|_| reply.body.to_vec())
            })
        };
        let body = match ask() {
            Err(UnitError::Unavailable { source, .. }) if has_broken(&source) => ask()?,
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

    /// Asks the daemon to heed a capability.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn show(&self, capability: &[u8]) -> Result<(), UnitError> {
        self.do_it(&Request::Show(capability), None)
    }
}

/// What the unit at `url` has answered.
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
            doing: "read its daemon's answer".to_owned(),
            source: Arc::new(io::Error::new(io::ErrorKind::InvalidData, malformed)),
        }),
        Err(source) => Err(UnitError::Unavailable {
            url: url.to_owned(),
            doing: "ask its daemon".to_owned(),
            source,
        }),
    }
}

/// How many slots one answer can have.
fn slots_at_once(slot_bytes: u32) -> u16 {
    let slots = BODY_BYTES_MAX / (size_of::<Tag>() + slot_bytes as usize);
    u16::try_from(slots).unwrap_or(u16::MAX).max(1)
}

/// Tags and content, in the body of an answer to a reading.
fn slots_in(body: &[u8], run: SlotRun, slot_bytes: u32) -> Result<ReadSlots<'_>, Malformed> {
    if body.len() != run.answer_bytes(slot_bytes) {
        return Err(Malformed("it is not as long as what was read"));
    }
    let (tags, data) = body.split_at(usize::from(run.count) * size_of::<Tag>());
    let (tags, _) = tags.as_chunks();
    Ok(ReadSlots::Apart { tags, data })
}

/// A reading that nobody waits for.
struct Reading {
    url: Arc<str>,
    run: SlotRun,
    slot_bytes: u32,
    done: ReadDone,
}

impl Reading {
    /// It has ended so.
    fn end(self, reply: Result<Reply<'_>, Arc<io::Error>>) {
        let answer = reply.map(|reply| match reply.status {
            Status::Done => slots_in(reply.body, self.run, self.slot_bytes).map(Ok),
            status => Refusal::decode(status, reply.body).map(Err),
        });
        (self.done)(answer_of(&self.url, answer, Some(self.run.segment)));
    }

    /// Its connection broke: it is asked for once more, if that can be done now.
    fn ask_again(self, link: &dyn Link, why: Arc<io::Error>) {
        let Self {
            run, slot_bytes, ..
        } = self;
        let shared = Arc::new(Mutex::new(Some(self)));
        let take = |shared: &Mutex<Option<Self>>| {
            let mut shared = shared.lock();
            shared.take()
        };
        let told = Arc::clone(&shared);
        let answered = move |reply: Result<Reply<'_>, Arc<io::Error>>| {
            if let Some(reading) = take(&told) {
                reading.end(reply);
            }
        };
        let request = Request::Read { run, slot_bytes };
        let is_asked = link.try_ask(&request, Box::new(answered));
        if !is_asked && let Some(reading) = take(&shared) {
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
        let life = self.ask(&request, Some(segment), |reply| Ok(reply.incarnation))?;
        let last = self.put_next.fetch_add(1, Ordering::Relaxed);
        self.puts()
            .entry(segment)
            .and_modify(|puts| {
                puts.last = last;
                if puts.life != Life::One(life) {
                    puts.life = Life::Several;
                }
            })
            .or_insert(Puts {
                life: Life::One(life),
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
            let mut life = None;
            for puts in &covered {
                match (puts.map(|puts| puts.life), life) {
                    (Some(Life::One(this)), None) => life = Some(this),
                    (Some(Life::One(this)), Some(other)) if this == other => {}
                    (None, _) => {}
                    (Some(_), _) => return Err(restarted()),
                }
            }
            // What was put by others, or is synced already: in any life.
            let incarnation = match life {
                Some(life) => life,
                None => self.life()?,
            };
            let request = Request::Sync {
                incarnation,
                segments: segments.to_vec(),
            };
            self.do_it(&request, segments.first().copied())?;
            let mut puts = self.puts();
            for (segment, covered) in segments.iter().zip(covered) {
                if puts.get(segment).copied() == covered {
                    puts.remove(segment);
                }
            }
        }
        Ok(())
    }

    /// In the daemon's life that there is. What was put in an earlier one goes on to be
    /// missed by whoever put it.
    fn sync_found(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        for segments in segments.chunks(SYNC_AT_ONCE) {
            let request = Request::Sync {
                incarnation: self.life()?,
                segments: segments.to_vec(),
            };
            self.do_it(&request, segments.first().copied())?;
        }
        Ok(())
    }

    /// In parts, where one answer cannot have all of it.
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
        let reading = Reading {
            url: Arc::clone(&self.url),
            run,
            slot_bytes,
            done,
        };
        // Not held by who waits in it: it may end before.
        let link = Arc::downgrade(&self.link);
        let answered = move |reply: Result<Reply<'_>, Arc<io::Error>>| match reply {
            Err(why) if has_broken(&why) => match link.upgrade() {
                Some(link) => reading.ask_again(&*link, why),
                None => reading.end(Err(why)),
            },
            other => reading.end(other),
        };
        let request = Request::Read { run, slot_bytes };
        self.link.try_ask(&request, Box::new(answered))
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
            self.do_it(&request, Some(segment))?;
            if more.is_empty() {
                return Ok(());
            }
            rest = more;
        }
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.do_it(&Request::Delete(segment), Some(segment))?;
        self.puts().remove(&segment);
        Ok(())
    }

    /// In parts: the daemon keeps them in a draft, and the last one puts that in
    /// place.
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
            part.draft = self.ask(&request, Some(segment), |reply| {
                let draft = reply.body.try_into().map(u64::from_le_bytes);
                draft.map_err(|_| Malformed("a draft's number has 8 bytes"))
            })?;
            part.first += tags.len() as u32;
        }
        self.puts().remove(&segment);
        Ok(())
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_serials(0..SegmentId::SERIAL_MAX)
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let mut found: Vec<SegmentId> = Vec::new();
        loop {
            let after = found.last().map_or(0, |last| last.bits());
            let request = Request::List {
                serials: serials.clone(),
                after,
                most: LIST_AT_ONCE,
            };
            let page = self.ask(&request, None, |reply| {
                unit_wire::decode_segments(reply.body)
            })?;
            let is_last = page.len() < LIST_AT_ONCE as usize;
            let is_sound = page.is_sorted_by(|one, next| one < next)
                && page
                    .first()
                    .is_none_or(|first| first.bits() > after || after == 0)
                && page.iter().all(|id| serials.contains(&id.serial()));
            if !is_sound {
                return Err(UnitError::Io {
                    url: self.url.to_string(),
                    doing: "list its segments".to_owned(),
                    source: Arc::new(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "it lists what was not asked for",
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
        self.ask(&Request::Stat(segment), Some(segment), move |reply| {
            Ok(unit_wire::decode_stat(segment, reply.body)?.0)
        })
    }

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        self.ask(&Request::Stat(segment), Some(segment), move |reply| {
            unit_wire::decode_segment_slots(segment, reply.body)
        })
    }

    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.ask(&Request::Room, None, |reply| {
            Ok(UnitStat {
                incarnation: Some(reply.incarnation),
                ..unit_wire::decode_room(reply.body)?
            })
        })
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.ask(&Request::Scrub(segment), Some(segment), |reply| {
            unit_wire::decode_slots(reply.body)
        })
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.ask(&Request::Note, None, |reply| match reply.body {
            [] => Ok(None),
            body => match body.try_into() {
                Ok(note) => Ok(Some(note)),
                Err(_) => Err(Malformed("a note has 512 bytes")),
            },
        })
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.do_it(&Request::NoteDown(note), None)
    }

    fn probe(&self) -> Result<(), UnitError> {
        self.do_it(&Request::Probe, None)
    }
}
