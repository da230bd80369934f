//! The requests of a client, in the order in which they came, from their start to the flush
//! that covers them. A request's cookie is its number in the log.
//!
//! ```text
//!      base                                                    base + entries
//!       ▼                                                            ▼
//!       │ kept │ gone │ sent │ kept │ sent │ sent │ waiting │ waiting │
//!                                             outgoing: ─────▶ ──────▶
//! ```
//!
//! A change that was acknowledged is *kept* until a flush that was sent later is answered:
//! if the connection is lost before, nobody knows whether the server has it.
//!
//! Invariant: the first entry and the last one are not gone; entries never move. So with
//! nothing under way the log ends with what is kept, however much went by behind that, and a
//! cookie is used again only when its reply was whole.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use base::{Extent, IoError, Token};

use super::super::request::Header;
use super::super::slab::Key;
use super::super::wire::{command, command_flags};
use super::nonsense::Nonsense;

/// How many slices one send covers: headers and payloads.
pub const SLICES_MAX: usize = 64;

/// So many entries there are at most, kept ones and gaps between them: 16 MiB.
pub const ENTRIES_MAX: usize = 64 << 10;

/// So many kept changes are made once more at a time.
const AGAIN_MAX: usize = 64;

/// A read's data come in so many separate pieces at most.
const PIECES_MAX: usize = 1024;

/// Who is told of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Whoever asked the device.
    Caller(Token),
    /// One who asked for more than one request can have; this begins so far into it.
    Part(Key, u64),
    /// The client itself.
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// To be sent.
    Waiting,
    /// Sent; a flush has a number.
    Sent,
    /// The whole reply is there.
    Answered,
    /// Acknowledged, when that many flushes had been sent.
    Kept(u64),
    Gone,
}

/// A request.
#[derive(Debug)]
pub struct Entry {
    /// As it is sent.
    pub header: Header,
    encoded: [u8; Header::BYTES],
    /// Of a write, what is written; of a read, what has been read, once something has.
    pub data: Vec<u8>,
    place: Place,
    /// None: it was answered before, and is made once more.
    pub owner: Option<Owner>,
    /// A flush follows before the owner is told: the server has no FUA.
    pub flush_after: bool,
    /// When something went on with it last.
    pub since: Duration,
    /// Of a flush, its number.
    flush: u64,
    /// Of a read: which bytes have come, in order and apart.
    pieces: Vec<(u64, u64)>,
    /// Of a block status.
    pub extents: Vec<Extent>,
    /// The reply says that it failed.
    pub error: Option<IoError>,
}

impl Entry {
    /// A request that begins at `now`.
    pub fn new(header: Header, data: Vec<u8>, owner: Owner, now: Duration) -> Self {
        Self {
            header,
            encoded: [0; Header::BYTES],
            data,
            place: Place::Waiting,
            owner: Some(owner),
            flush_after: false,
            since: now,
            flush: 0,
            pieces: Vec::new(),
            extents: Vec::new(),
            error: None,
        }
    }

    fn is_change(&self) -> bool {
        let changes = [command::WRITE, command::TRIM, command::WRITE_ZEROES];
        changes.contains(&self.header.command)
    }

    /// What it counts against the bound on bytes.
    fn bytes(&self) -> usize {
        match self.header.command {
            command::READ | command::WRITE => self.header.length as usize,
            _ => 0,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let end = |header: &Header| header.offset + u64::from(header.length);
        self.header.offset < end(&other.header) && other.header.offset < end(&self.header)
    }

    /// How many bytes of a read have not come.
    pub fn missing(&self) -> u64 {
        let come: u64 = self.pieces.iter().map(|(from, to)| to - from).sum();
        u64::from(self.header.length) - come
    }

    /// Bytes of a read come, `length` at `offset` of the disk; returns where in its data.
    ///
    /// # Errors
    /// [`Nonsense::Range`], [`Nonsense::Scattered`].
    pub fn take_range(&mut self, offset: u64, length: u64) -> Result<usize, Nonsense> {
        let cookie = self.header.cookie;
        let odd = Nonsense::Range {
            cookie,
            offset,
            length,
        };
        let from = offset.checked_sub(self.header.offset).ok_or(odd.clone())?;
        let to = from.checked_add(length).ok_or(odd.clone())?;
        if length == 0 || to > u64::from(self.header.length) {
            return Err(odd);
        }
        let at = self.pieces.partition_point(|piece| piece.0 < from);
        let before = at.checked_sub(1).map(|before| self.pieces[before].1);
        let after = self.pieces.get(at).map(|piece| piece.0);
        if before.is_some_and(|end| end > from) || after.is_some_and(|start| start < to) {
            return Err(odd);
        }
        match (before == Some(from), after == Some(to)) {
            (true, true) => {
                self.pieces[at - 1].1 = self.pieces[at].1;
                self.pieces.remove(at);
            }
            (true, false) => self.pieces[at - 1].1 = to,
            (false, true) => self.pieces[at].0 = from,
            (false, false) => self.pieces.insert(at, (from, to)),
        }
        if self.pieces.len() > PIECES_MAX {
            return Err(Nonsense::Scattered(cookie));
        }
        if self.data.is_empty() {
            self.data = vec![0; self.header.length as usize];
        }
        Ok(from as usize)
    }

    /// The same, if it was sent and is not answered, for who hears the answer only.
    fn unheard(&mut self) -> Self {
        let is_read = self.header.command == command::READ;
        let mut unheard = Self {
            header: self.header,
            encoded: self.encoded,
            data: Vec::new(),
            place: Place::Gone,
            owner: None,
            flush_after: false,
            since: self.since,
            flush: 0,
            pieces: Vec::new(),
            extents: Vec::new(),
            error: None,
        };
        if self.place == Place::Sent {
            unheard.place = Place::Sent;
            unheard.pieces = std::mem::take(&mut self.pieces);
            unheard.extents = std::mem::take(&mut self.extents);
            unheard.error = self.error.take();
            if is_read {
                unheard.data = std::mem::take(&mut self.data);
            }
        }
        unheard
    }

    /// What a connection that is lost has brought does not count.
    fn forget_answer(&mut self) {
        if self.header.command == command::READ {
            self.data = Vec::new();
        }
        self.pieces = Vec::new();
        self.extents = Vec::new();
        self.error = None;
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    base: u64,
    /// Nothing before it is under way.
    oldest: Cell<u64>,
    /// Since when that is the oldest one.
    oldest_since: Cell<Duration>,
    /// What leaves next, in this order.
    outgoing: VecDeque<u64>,
    /// Of the first of these, so many bytes have left.
    partly: usize,
    /// Kept changes that are to be made once more.
    again: VecDeque<u64>,
    /// Those that are being made.
    making: Vec<u64>,
    /// When one of them was, or some were begun, last.
    made: Duration,
    /// New requests may leave.
    is_open: bool,
    /// Changes are kept.
    pub keeps: bool,
    flushes: u64,
    unanswered: usize,
    unanswered_bytes: usize,
    kept: usize,
    kept_bytes: usize,
}

impl Log {
    /// How many requests somebody waits for.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Bytes to be read or written by these.
    pub fn unanswered_bytes(&self) -> usize {
        self.unanswered_bytes
    }

    /// Bytes of changes that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// How many changes are kept.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether something is to be sent.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes a request.
    pub fn push(&mut self, mut entry: Entry) {
        let cookie = self.base + self.entries.len() as u64;
        entry.header.cookie = cookie;
        entry.encoded = entry.header.encode();
        self.unanswered += 1;
        self.unanswered_bytes += entry.bytes();
        self.entries.push_back(entry);
        if self.is_open {
            self.outgoing.push_back(cookie);
        }
    }

    fn at(&self, cookie: u64) -> Option<usize> {
        let index = usize::try_from(cookie.checked_sub(self.base)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// The request that a reply is about.
    ///
    /// # Errors
    /// [`Nonsense::Cookie`] if there is none that was sent and not answered.
    pub fn sent_one(&mut self, cookie: u64) -> Result<&mut Entry, Nonsense> {
        let entry = self.at(cookie).map(|at| &mut self.entries[at]);
        entry
            .filter(|entry| entry.place == Place::Sent)
            .ok_or(Nonsense::Cookie(cookie))
    }

    /// The beginning of what is to be sent, in the first so many slices.
    pub fn slices(&self) -> ([IoSlice<'_>; SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut skip = self.partly;
        for cookie in self.outgoing.iter().take(SLICES_MAX / 2) {
            let entry = &self.entries[(cookie - self.base) as usize];
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

    /// So many bytes of that have left.
    pub fn sent(&mut self, bytes: usize, now: Duration) {
        self.partly += bytes;
        while let Some(&cookie) = self.outgoing.front() {
            let entry = &mut self.entries[(cookie - self.base) as usize];
            entry.since = now;
            let whole = Header::BYTES + entry.header.payload() as usize;
            if self.partly < whole {
                break;
            }
            self.partly -= whole;
            entry.place = Place::Sent;
            if entry.header.command == command::FLUSH {
                self.flushes += 1;
                entry.flush = self.flushes;
            }
            self.outgoing.pop_front();
        }
    }

    /// The whole reply to a request is there: no other one may come.
    pub fn end(&mut self, cookie: u64) {
        if let Ok(entry) = self.sent_one(cookie) {
            entry.place = Place::Answered;
        }
    }

    /// Returns the reply to a request, for its owner to be told.
    pub fn answered(&mut self, cookie: u64, now: Duration) -> Option<Answered> {
        let (keeps, flushes) = (self.keeps, self.flushes);
        let at = self.at(cookie)?;
        let entry = &mut self.entries[at];
        if entry.place != Place::Answered {
            return None;
        }
        let owner = entry.owner.take();
        let error = entry.error.take();
        let is_flush = entry.header.command == command::FLUSH;
        let flush = entry.flush;
        let answered = Answered {
            owner,
            is_durable: entry.header.flags & command_flags::FUA != 0,
            flush_after: entry.flush_after,
            command: entry.header.command,
            data: match entry.header.command {
                command::READ => std::mem::take(&mut entry.data),
                _ => Vec::new(),
            },
            extents: std::mem::take(&mut entry.extents),
            error,
        };
        entry.pieces = Vec::new();
        let bytes = entry.bytes();
        // A durable change counts too: an older one that overlaps may be made once more.
        // One that was acknowledged before is kept, whatever comes of making it once more.
        let keeps = keeps && entry.is_change() && (answered.error.is_none() || owner.is_none());
        entry.place = if keeps {
            Place::Kept(flushes)
        } else {
            entry.data = Vec::new();
            Place::Gone
        };
        if owner.is_some() {
            self.unanswered -= 1;
            self.unanswered_bytes -= bytes;
            self.kept += usize::from(keeps);
            self.kept_bytes += if keeps { bytes } else { 0 };
        } else {
            self.making.retain(|one| *one != cookie);
            if !keeps {
                self.kept -= 1;
                self.kept_bytes -= bytes;
            }
            if answered.error.is_none() {
                // Otherwise it begins anew, over another connection.
                self.go_on_making(now);
            }
        }
        if is_flush && answered.error.is_none() {
            self.flushed(flush);
        }
        self.trim();
        Some(answered)
    }

    /// What was acknowledged before flush `number` was sent is on stable storage.
    fn flushed(&mut self, number: u64) {
        for entry in &mut self.entries {
            if matches!(entry.place, Place::Kept(flushes) if flushes < number) {
                entry.place = Place::Gone;
                self.kept -= 1;
                self.kept_bytes -= entry.bytes();
                entry.data = Vec::new();
            }
        }
    }

    fn trim(&mut self) {
        while let Some(entry) = self.entries.front()
            && entry.place == Place::Gone
        {
            self.entries.pop_front();
            self.base += 1;
        }
        while self
            .entries
            .back()
            .is_some_and(|entry| entry.place == Place::Gone)
        {
            self.entries.pop_back();
        }
        let end = self.base + self.entries.len() as u64;
        self.oldest.set(self.oldest.get().min(end));
    }

    /// The connection is lost: nothing is under way.
    pub fn interrupt(&mut self) {
        self.outgoing.clear();
        self.making.clear();
        self.again.clear();
        self.partly = 0;
        self.is_open = false;
        self.oldest.set(self.base);
        for (cookie, entry) in (self.base..).zip(&mut self.entries) {
            match (entry.place, entry.owner) {
                // An answer that nobody was told of is none.
                (Place::Sent | Place::Waiting | Place::Answered, Some(_)) => {
                    entry.place = Place::Waiting;
                    entry.forget_answer();
                }
                (Place::Gone, _) => {}
                _ => {
                    entry.forget_answer();
                    entry.place = Place::Kept(self.flushes);
                    self.again.push_back(cookie);
                }
            }
        }
    }

    /// What was sent and is not answered, for who hears the answers out, and whether a change
    /// was sent in part; none, if no change is among it. The connection is lost after this.
    pub fn unheard(&mut self) -> Option<(Self, bool)> {
        let front = self.outgoing.front();
        let front = front.map(|cookie| &self.entries[(cookie - self.base) as usize]);
        let is_cut = self.partly > 0 && front.is_some_and(Entry::is_change);
        if !is_cut && !self.has_sent_changes() {
            return None;
        }
        let entries = self.entries.iter_mut().map(Entry::unheard);
        let mut unheard = Self {
            entries: entries.collect(),
            base: self.base,
            ..Self::default()
        };
        unheard.trim();
        Some((unheard, is_cut))
    }

    /// Whether a change was sent whole and is not answered.
    pub fn has_sent_changes(&self) -> bool {
        let is_sent = |entry: &Entry| entry.place == Place::Sent && entry.is_change();
        self.entries.iter().any(is_sent)
    }

    /// The reply to a request is there, and nobody is told.
    pub fn heard(&mut self, cookie: u64) {
        if let Some(at) = self.at(cookie) {
            let entry = &mut self.entries[at];
            (entry.place, entry.data) = (Place::Gone, Vec::new());
        }
        self.trim();
    }

    /// Whether all that was kept has been made once more over this connection.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// There is a connection: what is kept is made once more, and then the rest goes on.
    pub fn resume(&mut self, now: Duration) {
        self.go_on_making(now);
    }

    fn go_on_making(&mut self, now: Duration) {
        self.made = now;
        while self.making.len() < AGAIN_MAX
            && let Some(&cookie) = self.again.front()
        {
            let entry = &self.entries[(cookie - self.base) as usize];
            let waits = |other: &u64| {
                let other = &self.entries[(other - self.base) as usize];
                entry.overlaps(other)
            };
            if self.making.iter().any(waits) {
                return;
            }
            self.again.pop_front();
            self.making.push(cookie);
            self.outgoing.push_back(cookie);
            self.entries[(cookie - self.base) as usize].place = Place::Waiting;
        }
        if !self.is_open && self.making.is_empty() && self.again.is_empty() {
            self.is_open = true;
            let waiting = (self.base..).zip(&mut self.entries);
            for (cookie, entry) in waiting.filter(|(_, entry)| entry.place == Place::Waiting) {
                entry.since = now;
                self.outgoing.push_back(cookie);
            }
        }
    }

    /// When something went on last with the oldest request that is under way, or it became
    /// the oldest; while changes are made once more, with any of them.
    pub fn oldest_since(&self, now: Duration) -> Option<Duration> {
        if !self.is_open {
            let making = self.making.iter();
            let since = |cookie: &u64| self.entries[(cookie - self.base) as usize].since;
            return making.map(since).max().map(|since| since.max(self.made));
        }
        let before = self.oldest.get();
        let mut at = before.max(self.base) - self.base;
        let under_way = |entry: &Entry| matches!(entry.place, Place::Waiting | Place::Sent);
        while let Some(entry) = self.entries.get(at as usize) {
            if under_way(entry) {
                break;
            }
            at += 1;
        }
        if self.base + at != before {
            self.oldest.set(self.base + at);
            self.oldest_since.set(now);
        }
        let since = self.entries.get(at as usize).map(|entry| entry.since);
        since.map(|since| since.max(self.oldest_since.get()))
    }

    /// Gives up what nobody was told of; what is kept waits for the next connection. Who
    /// waits is told.
    pub fn give_up_unanswered(&mut self) -> Vec<Answered> {
        self.interrupt();
        let mut given_up = Vec::new();
        for entry in &mut self.entries {
            // What is kept was answered, and has no owner any more.
            if let Some(owner) = entry.owner.take() {
                entry.place = Place::Gone;
                entry.data = Vec::new();
                given_up.push(Answered::none(Some(owner), entry.header.command));
            }
        }
        (self.unanswered, self.unanswered_bytes) = (0, 0);
        self.trim();
        given_up
    }

    /// Gives everything up; who waits is told.
    pub fn give_up(&mut self) -> Vec<Answered> {
        self.interrupt();
        let entries = std::mem::take(&mut self.entries);
        self.base += entries.len() as u64;
        self.again.clear();
        (self.unanswered, self.unanswered_bytes) = (0, 0);
        (self.kept, self.kept_bytes) = (0, 0);
        let waiting = entries.into_iter().filter(|entry| entry.owner.is_some());
        waiting
            .map(|entry| Answered::none(entry.owner, entry.header.command))
            .collect()
    }
}

/// What came of a request.
#[derive(Debug)]
pub struct Answered {
    /// Who is told; nobody, if it was made once more.
    pub owner: Option<Owner>,
    /// It was to be on stable storage.
    pub is_durable: bool,
    /// Only when a flush has followed.
    pub flush_after: bool,
    /// What it was.
    pub command: u16,
    /// Of a read.
    pub data: Vec<u8>,
    /// Of a block status.
    pub extents: Vec<Extent>,
    /// It failed.
    pub error: Option<IoError>,
}

impl Answered {
    /// Whether it says that what was acknowledged before may not reach stable storage any
    /// more: the server has tried, and failed. One that caches as an operating system does
    /// tries that once only, and says nothing of it when it is asked again.
    pub fn is_failed_sync(&self) -> bool {
        match (self.command, &self.error) {
            (command::FLUSH, error) => error.is_some(),
            (_, Some(IoError::Damaged(_) | IoError::NoSpace(_))) => self.is_durable,
            _ => false,
        }
    }

    /// Of a request that there is no answer to.
    fn none(owner: Option<Owner>, command: u16) -> Self {
        Self {
            owner,
            is_durable: false,
            flush_after: false,
            command,
            data: Vec::new(),
            extents: Vec::new(),
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
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
        Entry::new(header, data, Owner::Client, Duration::ZERO)
    }

    fn open() -> Log {
        let mut log = Log {
            keeps: true,
            ..Log::default()
        };
        log.resume(Duration::ZERO);
        log
    }

    /// Sends what there is; returns the cookies.
    fn send(log: &mut Log, now: Duration) -> Vec<u64> {
        let sent: Vec<u64> = log.outgoing.iter().copied().collect();
        while log.has_outgoing() {
            log.sent(1, now);
        }
        sent
    }

    fn answer(log: &mut Log, cookie: u64, now: Duration) {
        log.end(cookie);
        log.answered(cookie, now).expect("it was answered");
    }

    #[test]
    fn what_went_by_behind_a_kept_change_takes_no_room() {
        let mut log = open();
        log.push(entry(command::WRITE, 0));
        let kept = send(&mut log, SECOND)[0];
        answer(&mut log, kept, SECOND);
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
        assert_eq!(log.oldest_since(SECOND), Some(SECOND));
    }

    /// A link that takes 9 s for each request is slow, and goes on.
    #[test]
    fn a_request_that_becomes_the_oldest_has_its_time_from_then_on() {
        let mut log = open();
        for _ in 0..5 {
            log.push(entry(command::READ, 0));
        }
        let mut now = SECOND;
        for cookie in send(&mut log, now) {
            assert_eq!(log.oldest_since(now), Some(now));
            now += 9 * SECOND;
            assert_eq!(log.oldest_since(now), Some(now - 9 * SECOND));
            answer(&mut log, cookie, now);
        }
        assert_eq!(log.oldest_since(now), None);
    }

    #[test]
    fn changes_that_are_made_once_more_have_their_time_from_then_on() {
        let mut log = open();
        // Each after the other, since they overlap; and some together.
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
        let mut made = 0;
        loop {
            let sent = send(&mut log, now);
            let is_last = log.making.is_empty();
            for cookie in sent {
                assert_eq!(log.oldest_since(now), Some(now));
                now += 9 * SECOND;
                assert_eq!(log.oldest_since(now), Some(now - 9 * SECOND));
                answer(&mut log, cookie, now);
                made += 1;
            }
            if is_last {
                break;
            }
        }
        assert_eq!(made, 11);
    }
}
