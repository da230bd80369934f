//! [`RequestLog`]: the requests of a client, in the order in which they began, until the flush
//! that covers them. A request's cookie is its number in the log.
//!
//! ```text
//!      base                                                           base + entries
//!       ▼                                                                   ▼
//!       │ unflushed │ removed │ sent │ unflushed │ sent │ waiting │ waiting │
//!                                                outgoing: ─────▶  ──────▶
//! ```
//!
//! An acknowledged change is *unflushed* until the reply to a flush that was sent later. If the
//! connection is lost before that, the server may not have the change, and the log replays it.
//!
//! Invariant: the first and the last entry are not removed ones, and entries never move. So when
//! no request is outstanding the log ends with an unflushed change, however many requests ended
//! after that, and a cookie is used again only after its whole reply has arrived.

mod loss;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use super::super::request::Header;
use super::super::wire::command;
use super::entry::{Entry, EntryState, RequestResult};
use super::protocol_violation::ProtocolViolation;
use loss::Replay;

pub use loss::OrphanedRequests;

/// The maximal number of slices, headers and payloads, in one send.
pub const SLICES_MAX: usize = 64;

/// The maximal number of entries, removed ones included: 16 MiB.
pub const ENTRIES_MAX: usize = 64 << 10;

/// The requests of a client; see the head of this module.
#[derive(Debug, Default)]
pub struct RequestLog {
    entries: VecDeque<Entry>,
    /// The cookie of the first entry.
    base: u64,
    /// No request with a lower cookie is outstanding.
    oldest: Cell<u64>,
    /// When that request became the oldest.
    oldest_since: Cell<Duration>,
    /// The requests to send, in this order.
    outgoing: VecDeque<u64>,
    /// The number of bytes of the first of these that have been sent.
    sent_bytes: usize,
    replay: Replay,
    /// Whether acknowledged changes are kept until a flush.
    pub retains_unflushed: bool,
    /// The number of flushes that have been sent.
    flushes: u64,
    unanswered: usize,
    unanswered_bytes: usize,
    unflushed: usize,
    unflushed_bytes: usize,
}

impl RequestLog {
    /// The number of requests whose requester waits.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// The bytes that these requests read or write.
    pub fn unanswered_bytes(&self) -> usize {
        self.unanswered_bytes
    }

    /// The bytes in unflushed changes.
    pub fn unflushed_bytes(&self) -> usize {
        self.unflushed_bytes
    }

    /// The number of unflushed changes.
    pub fn unflushed(&self) -> usize {
        self.unflushed
    }

    /// The number of entries, removed ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are requests to send.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether all unflushed changes have been replayed over this connection.
    pub fn is_replayed(&self) -> bool {
        self.replay.is_done
    }

    /// Adds a request.
    pub fn push(&mut self, mut entry: Entry) {
        let cookie = self.base + self.entries.len() as u64;
        entry.header.cookie = cookie;
        entry.encoded = entry.header.encode();
        self.unanswered += 1;
        self.unanswered_bytes += entry.bytes();
        self.entries.push_back(entry);
        if self.replay.is_done {
            self.outgoing.push_back(cookie);
        }
    }

    fn index_of(&self, cookie: u64) -> Option<usize> {
        let index = usize::try_from(cookie.checked_sub(self.base)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    fn entry(&self, cookie: u64) -> &Entry {
        &self.entries[(cookie - self.base) as usize]
    }

    fn entry_mut(&mut self, cookie: u64) -> &mut Entry {
        &mut self.entries[(cookie - self.base) as usize]
    }

    /// The request to which a reply belongs.
    ///
    /// # Errors
    /// [`ProtocolViolation::Cookie`] if no such request was sent, or its reply has arrived.
    pub fn sent_entry(&mut self, cookie: u64) -> Result<&mut Entry, ProtocolViolation> {
        let index = self.index_of(cookie);
        let entry = index.map(|index| &mut self.entries[index]);
        entry
            .filter(|entry| entry.state == EntryState::Sent)
            .ok_or(ProtocolViolation::Cookie(cookie))
    }

    /// The next bytes to send, and the number of slices in use.
    pub fn slices(&self) -> ([IoSlice<'_>; SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut skip = self.sent_bytes;
        for cookie in self.outgoing.iter().take(SLICES_MAX / 2) {
            let entry = self.entry(*cookie);
            let payload: &[u8] = match entry.header.command {
                command::WRITE => &entry.data,
                _ => &[],
            };
            for part in [&entry.encoded[..], payload] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    slices[count] = IoSlice::new(&part[skipped..]);
                    count += 1;
                }
            }
        }
        (slices, count)
    }

    /// Records that the first `bytes` of the slices have been sent.
    pub fn sent(&mut self, bytes: usize, now: Duration) {
        self.sent_bytes += bytes;
        while let Some(&cookie) = self.outgoing.front() {
            let entry = &mut self.entries[(cookie - self.base) as usize];
            entry.progress_at = now;
            let length = Header::BYTES + entry.header.payload() as usize;
            if self.sent_bytes < length {
                break;
            }
            self.sent_bytes -= length;
            entry.state = EntryState::Sent;
            if entry.header.command == command::FLUSH {
                self.flushes += 1;
                entry.flush = self.flushes;
            }
            self.outgoing.pop_front();
        }
    }

    /// Records that the whole reply to a request has arrived.
    pub fn end(&mut self, cookie: u64) {
        if let Ok(entry) = self.sent_entry(cookie) {
            entry.state = EntryState::Answered;
        }
    }

    /// The result of a request whose whole reply has arrived. The request becomes unflushed, or
    /// is removed.
    pub fn take_result(&mut self, cookie: u64, now: Duration) -> Option<RequestResult> {
        let (retains_unflushed, flushes) = (self.retains_unflushed, self.flushes);
        let index = self.index_of(cookie)?;
        let entry = &mut self.entries[index];
        if entry.state != EntryState::Answered {
            return None;
        }
        let flush = entry.flush;
        let bytes = entry.bytes();
        let result = entry.take_result();
        let is_replay = result.requester.is_none();
        // A durable change stays as well, since the replay of an older one that overlaps it would
        // overwrite it. A change that was acknowledged stays even if its replay fails.
        let stays = retains_unflushed && entry.is_change() && (result.error.is_none() || is_replay);
        entry.state = if stays {
            EntryState::Unflushed(flushes)
        } else {
            entry.data = Vec::new();
            EntryState::Removed
        };
        if is_replay {
            self.replay.outstanding.retain(|other| *other != cookie);
            if !stays {
                self.unflushed -= 1;
                self.unflushed_bytes -= bytes;
            }
            // After a failure the replay starts again, over another connection.
            if result.error.is_none() {
                self.continue_replay(now);
            }
        } else {
            self.unanswered -= 1;
            self.unanswered_bytes -= bytes;
            self.unflushed += usize::from(stays);
            self.unflushed_bytes += if stays { bytes } else { 0 };
        }
        if result.command == command::FLUSH && result.error.is_none() {
            self.remove_flushed(flush);
        }
        self.trim();
        Some(result)
    }

    /// Removes the changes that were acknowledged before the flush `number` was sent.
    fn remove_flushed(&mut self, number: u64) {
        for entry in &mut self.entries {
            if matches!(entry.state, EntryState::Unflushed(flushes) if flushes < number) {
                entry.state = EntryState::Removed;
                self.unflushed -= 1;
                self.unflushed_bytes -= entry.bytes();
                entry.data = Vec::new();
            }
        }
    }

    fn trim(&mut self) {
        let is_removed = |entry: &Entry| entry.state == EntryState::Removed;
        while self.entries.front().is_some_and(is_removed) {
            self.entries.pop_front();
            self.base += 1;
        }
        while self.entries.back().is_some_and(is_removed) {
            self.entries.pop_back();
        }
        let end = self.base + self.entries.len() as u64;
        self.oldest.set(self.oldest.get().min(end));
    }

    /// When the oldest outstanding request last made progress, or became the oldest. During a
    /// replay, when any change of it made progress. `None` if no request is outstanding.
    pub fn oldest_progress_at(&self, now: Duration) -> Option<Duration> {
        if !self.replay.is_done {
            let outstanding = self.replay.outstanding.iter();
            let last = outstanding
                .map(|cookie| self.entry(*cookie).progress_at)
                .max();
            return last.map(|last| last.max(self.replay.progress_at));
        }
        let before = self.oldest.get();
        let mut index = before.max(self.base) - self.base;
        let is_outstanding =
            |entry: &Entry| matches!(entry.state, EntryState::Waiting | EntryState::Sent);
        while let Some(entry) = self.entries.get(index as usize) {
            if is_outstanding(entry) {
                break;
            }
            index += 1;
        }
        if self.base + index != before {
            self.oldest.set(self.base + index);
            self.oldest_since.set(now);
        }
        let oldest = self.entries.get(index as usize);
        oldest.map(|entry| entry.progress_at.max(self.oldest_since.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Requester;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn entry(command: u16, offset: u64) -> Entry {
        let header = Header {
            flags: 0,
            command,
            cookie: 0,
            offset,
            length: 512,
        };
        let data = vec![1; if command == command::WRITE { 512 } else { 0 }];
        Entry::new(header, data, Requester::Client, Duration::ZERO)
    }

    fn open() -> RequestLog {
        let mut log = RequestLog {
            retains_unflushed: true,
            ..RequestLog::default()
        };
        log.resume(Duration::ZERO);
        log
    }

    /// Sends all requests and returns their cookies.
    fn send(log: &mut RequestLog, now: Duration) -> Vec<u64> {
        let sent: Vec<u64> = log.outgoing.iter().copied().collect();
        while log.has_outgoing() {
            log.sent(1, now);
        }
        sent
    }

    fn answer(log: &mut RequestLog, cookie: u64, now: Duration) {
        log.end(cookie);
        log.take_result(cookie, now).expect("it was answered");
    }

    #[test]
    fn requests_that_ended_after_an_unflushed_change_take_no_space() {
        let mut log = open();
        log.push(entry(command::WRITE, 0));
        let unflushed = send(&mut log, SECOND)[0];
        answer(&mut log, unflushed, SECOND);
        for _ in 0..100 {
            for _ in 0..3 {
                log.push(entry(command::READ, 0));
            }
            for cookie in send(&mut log, SECOND) {
                answer(&mut log, cookie, SECOND);
            }
            assert_eq!(log.len(), 1);
        }
        log.push(entry(command::READ, 0));
        assert_eq!(log.oldest_progress_at(SECOND), Some(SECOND));
    }

    /// A link that takes 9 s for each request is slow and works.
    #[test]
    fn the_timeout_of_a_request_starts_when_it_becomes_the_oldest() {
        let mut log = open();
        for _ in 0..5 {
            log.push(entry(command::READ, 0));
        }
        let mut now = SECOND;
        for cookie in send(&mut log, now) {
            assert_eq!(log.oldest_progress_at(now), Some(now));
            now += 9 * SECOND;
            assert_eq!(log.oldest_progress_at(now), Some(now - 9 * SECOND));
            answer(&mut log, cookie, now);
        }
        assert_eq!(log.oldest_progress_at(now), None);
    }

    #[test]
    fn the_timeout_of_a_replay_restarts_with_each_change_that_is_replayed() {
        let mut log = open();
        // Some overlap and are replayed one after another, others together.
        for number in 0..10 {
            log.push(entry(command::WRITE, number / 5 * number * 512));
        }
        for cookie in send(&mut log, SECOND) {
            answer(&mut log, cookie, SECOND);
        }
        log.push(entry(command::READ, 0));
        log.interrupt();
        let mut now = 100 * SECOND;
        log.resume(now);
        let mut replayed = 0;
        loop {
            let sent = send(&mut log, now);
            let is_last = log.replay.outstanding.is_empty();
            for cookie in sent {
                assert_eq!(log.oldest_progress_at(now), Some(now));
                now += 9 * SECOND;
                assert_eq!(log.oldest_progress_at(now), Some(now - 9 * SECOND));
                answer(&mut log, cookie, now);
                replayed += 1;
            }
            if is_last {
                break;
            }
        }
        assert_eq!(replayed, 11);
    }
}
