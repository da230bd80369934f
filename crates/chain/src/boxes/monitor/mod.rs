//! `monitor`: says what happens to the files of a disk, as it is seen from the blocks that
//! pass (docs/chains.md, "Monitor"; StorM's storage access monitor).
//!
//! ```text
//!            ┌────────────────── monitor ──────────────────┐
//!  request ─▶│ passes ──────────────────────────────────── │─▶ below
//!            │   └▶ disk: whose blocks are they? ─▶ rules ─│─▶ events
//!            │ reader: partitions, file systems ◀── asks ──│── below
//!            └─────────────────────────────────────────────┘
//! ```
//!
//! * `reader` reads the disk first, and anew when another file system may be there. What is
//!   written meanwhile is kept, and told of afterwards.
//! * `disk` follows; `rules` judge; `event` is what is told.
//!
//! Invariants: it never waits, and what it cannot tell of it leaves out rather than hold a
//! request up; what it keeps is bounded; a request that a rule denies is not passed on. It
//! asks below with tokens of its own.

mod disk;
mod event;
mod reader;
mod rules;
mod telling;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, Extent, IoError, Outcome, Started, Token, ZeroMode,
};
use policy::MonitorConfig;
use sha2::{Digest as _, Sha256};
use world::Clock;

use disk::{Disk, Seen};
pub use event::{Detail, Event, FileEvent, What};
use reader::{Ask, Reader};
use telling::Telling;

use crate::extfs::ScanError;
use crate::tokens::Tokens;
use crate::{MiddleBox, Opening, Surroundings};

/// A disk that takes longer to read is used meanwhile; what is written then is kept.
const READ_FIRST_FOR: Duration = Duration::from_secs(5);

/// So much of what is written while the disk is read is kept, in bytes, or what the box may
/// take of memory, if that is less.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// Whoever makes a file system writes for a while.
const READ_ANEW_AFTER: Duration = Duration::from_secs(1);

/// What could not be read is tried again after so long, at first and at last.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What could be read but for some of its file systems is read anew after so long.
const PAUSE_PARTLY: Duration = Duration::from_secs(600);

/// So many blocks that file systems need are read at once, and followed together.
const WANTED_AT_ONCE: usize = 64;

/// If more are wanted the disk is read anew: that costs less.
const WANTED_MAX: usize = 1 << 16;

/// So many writes wait at most that were followed before they could be passed on.
const FOLLOWED_MAX: usize = 1024;

/// Zeroes are followed in pieces of so many bytes.
const ZEROES: &[u8] = &[0; 64 << 10];

/// What a request below is for.
enum Waiting {
    /// Somebody above asked for it, with this token.
    Above(Token),
    /// The reader asked for it.
    Reader(Ask),
    /// A block of a file system that is needed to follow it; whether it was written since.
    Wanted {
        area: usize,
        block: u64,
        place: Range<u64>,
        is_stale: bool,
    },
}

/// A write that was followed, by what does not change when it is offered again: its token
/// may. What it writes counts, since another one to the same place was not judged.
struct Followed {
    place: Range<u64>,
    /// SHA-256 of the data; none of zeroes.
    data: Option<[u8; 32]>,
}

impl Followed {
    fn new(place: Range<u64>, data: Option<&[u8]>) -> Self {
        let data = data.map(|data| Sha256::digest(data).into());
        Self { place, data }
    }

    fn is(&self, place: &Range<u64>, data: Option<&[u8]>) -> bool {
        self.place == *place && self.data == data.map(|data| <[u8; 32]>::from(Sha256::digest(data)))
    }
}

/// The disk is being read; what was written meanwhile.
struct Reading {
    reader: Reader,
    kept: Kept,
}

/// What is written while the disk is read, in order.
struct Kept {
    writes: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
    is_too_much: bool,
}

impl Kept {
    fn add(&mut self, offset: u64, data: &[u8]) {
        self.bytes += data.len();
        self.is_too_much |= self.bytes > self.bytes_max;
        match self.is_too_much {
            true => self.writes = Vec::new(),
            false => self.writes.push((offset, data.to_vec())),
        }
    }
}

/// See the module's head.
pub struct Monitor {
    /// Of all file systems of the disk together, in bytes.
    memory_max: u64,
    clock: Arc<dyn Clock>,
    wake: world::Wake,
    telling: Telling,
    tokens: Tokens<Waiting>,
    /// What is known of the disk: also while it is read anew.
    disk: Option<Disk>,
    reading: Option<Reading>,
    /// When it began to read the disk first.
    opened: Option<Duration>,
    /// The disk is to be read then.
    anew: Option<Duration>,
    /// And then, if it was not before: some of it could not be read.
    again: Option<Duration>,
    pause: Duration,
    /// What the reader has asked and could not be asked below yet.
    asked: Option<Ask>,
    wanted: Vec<(usize, u64, Range<u64>)>,
    /// By area: what was wanted, and is to be followed.
    found: BTreeMap<usize, BTreeMap<u64, Vec<u8>>>,
    /// Writes that were followed, and could not be passed on yet.
    followed: Vec<Followed>,
    is_resting: bool,
    own_under_way: usize,
}

impl Monitor {
    /// As `config` says.
    #[must_use]
    pub fn new(name: &str, config: MonitorConfig, surroundings: Surroundings) -> Self {
        Self {
            memory_max: config.memory_max.min(surroundings.memory_max),
            clock: Arc::clone(&surroundings.clock),
            wake: surroundings.wake.clone(),
            telling: Telling::new(name, config, surroundings),
            tokens: Tokens::default(),
            disk: None,
            reading: None,
            opened: None,
            anew: Some(Duration::ZERO),
            again: None,
            pause: PAUSE_MIN,
            asked: None,
            wanted: Vec::new(),
            found: BTreeMap::new(),
            followed: Vec::new(),
            is_resting: false,
            own_under_way: 0,
        }
    }

    /// Passes a request on with a token of its own.
    fn pass(&mut self, token: Token, ask: impl FnOnce(Token) -> Started) -> Started {
        let own = self.tokens.next();
        let started = ask(own);
        if started == Started::Pending {
            self.tokens.insert(Waiting::Above(token));
        }
        started
    }

    fn begin_reading(&mut self, disk_bytes: u64) {
        (self.anew, self.again) = (None, None);
        self.asked = None;
        match Reader::start(disk_bytes, self.memory_max, &self.wake) {
            Ok(reader) => {
                let kept = Kept {
                    writes: Vec::new(),
                    bytes: 0,
                    bytes_max: usize::try_from(self.memory_max)
                        .map_or(KEPT_BYTES_MAX, |most| most.min(KEPT_BYTES_MAX)),
                    is_too_much: false,
                };
                self.reading = Some(Reading { reader, kept });
            }
            Err(error) => self.give_up(&format!("no thread can be had to read it: {error}")),
        }
    }

    /// When the disk is to be read.
    fn due(&self) -> Option<Duration> {
        self.anew.into_iter().chain(self.again).min()
    }

    /// The disk is read later.
    fn give_up(&mut self, why: &str) {
        let meanwhile = match self.disk {
            Some(_) => "what happens is told as if nothing else had changed",
            None => "what happens is told by block",
        };
        let seconds = self.pause.as_secs();
        self.telling.note(&format!(
            "the disk could not be read: {why}; {meanwhile}; it is read again in {seconds} s"
        ));
        self.reading = None;
        self.anew = Some(self.clock.monotonic() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// The disk was read.
    fn is_read(&mut self, kept: Kept, found: Result<Vec<reader::Area>, IoError>) {
        let areas = match found {
            Ok(areas) => areas,
            Err(error) => return self.give_up(&error.to_string()),
        };
        if kept.is_too_much {
            return self.give_up("too much was written meanwhile");
        }
        self.pause = PAUSE_MIN;
        let disk = Disk::new(areas, self.memory_max);
        self.telling.found(&disk);
        let is_unread = |area: &reader::Area| matches!(area.found, Err(ScanError::Io(_)));
        if disk.areas().iter().any(is_unread) {
            self.again = Some(self.clock.monotonic() + PAUSE_PARTLY);
        }
        self.want_nothing();
        // What was known before has told what was written meanwhile.
        let is_told = self.disk.replace(disk).is_some();
        for (offset, data) in kept.writes {
            let seen = self.follow(offset, &data);
            if !is_told {
                self.tell(seen);
            }
        }
    }

    /// What a write is to the files.
    fn follow(&mut self, offset: u64, data: &[u8]) -> Vec<Seen> {
        let mut seen = Vec::new();
        if let Some(reading) = &mut self.reading {
            reading.kept.add(offset, data);
        }
        match &mut self.disk {
            Some(disk) => {
                if disk.was_written(offset, data, &mut seen) {
                    let now = self.clock.monotonic();
                    self.anew.get_or_insert(now + READ_ANEW_AFTER);
                }
                let wanted = disk.take_wanted();
                self.want(wanted);
            }
            // What is kept is told when it is known what it is.
            None if self.reading.is_some() => {}
            None => {
                let range = offset..offset + data.len() as u64;
                seen.push(Seen::Blocks(None, policy::Operation::Write, range));
            }
        }
        let written = offset..offset + data.len() as u64;
        if self.own_under_way > 0 {
            for waiting in self.tokens.iter_mut() {
                if let Waiting::Wanted {
                    place, is_stale, ..
                } = waiting
                {
                    *is_stale |= place.start < written.end && written.start < place.end;
                }
            }
        }
        seen
    }

    /// Blocks are to be read to follow on.
    fn want(&mut self, wanted: Vec<(usize, u64, Range<u64>)>) {
        self.wanted.extend(wanted);
        if self.wanted.len() > WANTED_MAX {
            self.want_nothing();
            let now = self.clock.monotonic();
            self.anew.get_or_insert(now + READ_ANEW_AFTER);
        }
    }

    fn want_nothing(&mut self) {
        self.wanted = Vec::new();
        self.found.clear();
    }

    /// Tells of it; why it is denied, if a rule says so.
    fn tell(&mut self, seen: Vec<Seen>) -> Option<String> {
        let denied = self.telling.tell(self.disk.as_ref(), seen);
        if denied.is_some() {
            // What was followed does not come to pass.
            self.anew.get_or_insert(self.clock.monotonic());
        }
        denied
    }

    /// A write or a part of one that was passed on, or is about to be.
    fn saw_write(&mut self, offset: u64, data: &[u8]) -> Option<String> {
        let seen = self.follow(offset, data);
        match seen.is_empty() {
            true => None,
            false => self.tell(seen),
        }
    }

    /// Passes on what puts `data` in this place, or zeroes, and follows it: before it is
    /// passed, if it may be denied.
    fn change(
        &mut self,
        token: Token,
        (place, data): (Range<u64>, Option<&[u8]>),
        mut follow: impl FnMut(&mut Self) -> Option<String>,
        ask: impl FnOnce(Token) -> Started,
    ) -> Started {
        if !self.telling.may_deny() {
            let started = self.pass(token, ask);
            if matches!(started, Started::Done | Started::Pending) {
                follow(self);
            }
            return started;
        }
        match self.followed.iter().position(|one| one.is(&place, data)) {
            Some(at) => drop(self.followed.remove(at)),
            None => {
                // What waits and meets this comes after it, and is followed once more.
                self.followed
                    .retain(|one| one.place.end <= place.start || place.end <= one.place.start);
                if let Some(why) = follow(self) {
                    return Started::Failed(IoError::Unavailable(why));
                }
            }
        }
        let started = self.pass(token, ask);
        if started == Started::Busy {
            if self.followed.len() == FOLLOWED_MAX {
                // Whoever asked that has gone.
                self.followed.remove(0);
            }
            self.followed.push(Followed::new(place, data));
        }
        started
    }

    /// Follows zeroes.
    fn saw_zeroes(&mut self, offset: u64, length: u64) -> Option<String> {
        let mut at = 0;
        while at < length {
            let piece = (length - at).min(ZEROES.len() as u64);
            let denied = self.saw_write(offset + at, &ZEROES[..piece as usize]);
            if denied.is_some() {
                return denied;
            }
            at += piece;
        }
        None
    }

    /// Asks below for what the reader and the file systems need.
    fn ask_for_own(&mut self, below: &mut dyn BlockDevice) {
        while !self.is_resting {
            let ask = match self.asked.take() {
                Some(ask) => ask,
                None => match self.reading.as_ref().and_then(|one| one.reader.next()) {
                    Some(ask) => ask,
                    None => break,
                },
            };
            let mut content = vec![0; ask.length];
            let own = self.tokens.next();
            match below.read(own, ask.offset, &mut content) {
                // Whoever has stopped waiting needs no answer.
                Started::Done => drop(ask.answer.send(Ok(content))),
                Started::Failed(error) => drop(ask.answer.send(Err(error))),
                Started::Pending => {
                    self.own_under_way += 1;
                    self.tokens.insert(Waiting::Reader(ask));
                }
                Started::Busy => {
                    self.asked = Some(ask);
                    break;
                }
            }
        }
        for _ in self.own_under_way..WANTED_AT_ONCE {
            if self.is_resting {
                break;
            }
            let Some((area, block, place)) = self.wanted.pop() else {
                break;
            };
            let mut content = vec![0; (place.end - place.start) as usize];
            let own = self.tokens.next();
            match below.read(own, place.start, &mut content) {
                Started::Done => self.is_found(area, block, content),
                Started::Pending => {
                    self.own_under_way += 1;
                    let is_stale = false;
                    self.tokens.insert(Waiting::Wanted {
                        area,
                        block,
                        place,
                        is_stale,
                    });
                }
                Started::Busy => {
                    self.wanted.push((area, block, place));
                    break;
                }
                Started::Failed(error) => {
                    self.give_up(&error.to_string());
                    self.want_nothing();
                }
            }
        }
        self.follow_found();
    }

    fn is_found(&mut self, area: usize, block: u64, content: Vec<u8>) {
        self.found.entry(area).or_default().insert(block, content);
    }

    /// Follows what was found.
    fn follow_found(&mut self) {
        for (area, blocks) in take(&mut self.found) {
            let Some(disk) = &mut self.disk else {
                continue;
            };
            let mut seen = Vec::new();
            let is_new = disk.were_found(area, blocks, &mut seen);
            let wanted = disk.take_wanted();
            self.want(wanted);
            if is_new {
                let now = self.clock.monotonic();
                self.anew.get_or_insert(now + READ_ANEW_AFTER);
            }
            self.tell(seen);
        }
    }

    /// What was asked below has ended; what is to be told above.
    fn ended(&mut self, completion: Completion, completions: &mut Vec<Completion>) {
        let Completion { token, result } = completion;
        match self.tokens.take(token) {
            Some(Waiting::Above(token)) => {
                if result.is_err() {
                    // It may be a write that was followed.
                    let now = self.clock.monotonic();
                    self.anew.get_or_insert(now + READ_ANEW_AFTER);
                }
                completions.push(Completion { token, result });
            }
            Some(Waiting::Reader(ask)) => {
                self.own_under_way -= 1;
                // Whoever has stopped waiting needs no answer.
                let _ = ask.answer.send(result.and_then(content_of));
            }
            Some(Waiting::Wanted {
                area,
                block,
                place,
                is_stale,
            }) => {
                self.own_under_way -= 1;
                match result.and_then(content_of) {
                    Ok(_) if is_stale => self.wanted.push((area, block, place)),
                    Ok(content) => self.is_found(area, block, content),
                    Err(error) => self.give_up(&error.to_string()),
                }
            }
            None => debug_assert!(false, "nobody asked for {token}"),
        }
    }

    /// Goes on with what the monitor does by itself.
    fn go_on(&mut self, below: &mut dyn BlockDevice) {
        let now = self.clock.monotonic();
        let is_due = self.due().is_some_and(|due| now >= due);
        if is_due && self.reading.is_none() && !self.is_resting {
            self.begin_reading(below.geometry().size_bytes);
        }
        self.ask_for_own(below);
        if let Some(reading) = self.reading.take() {
            match reading.reader.found() {
                Some(found) => {
                    self.is_read(reading.kept, found);
                    self.ask_for_own(below);
                }
                None => self.reading = Some(reading),
            }
        }
        self.telling.hand_over(now);
    }
}

fn content_of(outcome: Outcome) -> Result<Vec<u8>, IoError> {
    match outcome {
        Outcome::Data(content) => Ok(content),
        other => Err(IoError::Damaged(format!("a read brought {other:?}"))),
    }
}

impl MiddleBox for Monitor {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let now = self.clock.monotonic();
        if self.opened.is_none() {
            self.telling.begins(self.memory_max);
        }
        let opened = *self.opened.get_or_insert(now);
        self.go_on(below);
        let is_first = self.disk.is_none() && self.reading.is_some();
        match is_first && now.saturating_sub(opened) < READ_FIRST_FOR {
            true => Opening::UnderWay,
            false => Opening::Ready,
        }
    }

    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Started {
        let range = offset..offset + out.len() as u64;
        let mut seen = Vec::new();
        let may_deny = self.telling.may_deny();
        if may_deny {
            // What cannot begin yet is told of when it does.
            if let Some(why) = self.telling.denies_read(self.disk.as_ref(), &range) {
                return Started::Failed(IoError::Unavailable(why));
            }
        }
        let started = self.pass(token, |own| below.read(own, offset, out));
        if matches!(started, Started::Done | Started::Pending) {
            match self.disk.as_ref() {
                Some(disk) => disk.was_read(&range, &mut seen),
                None if self.reading.is_some() => {}
                None => seen.push(Seen::Blocks(None, policy::Operation::Read, range)),
            }
            if !seen.is_empty() {
                self.tell(seen);
            }
        }
        started
    }

    fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Started {
        self.change(
            token,
            (offset..offset + data.len() as u64, Some(data)),
            |monitor| monitor.saw_write(offset, data),
            |own| below.write(own, offset, data, durability),
        )
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        self.pass(token, |own| below.flush(own))
    }

    fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Started {
        // What a guest gives up is nobody's by then.
        self.pass(token, |own| below.trim(own, offset, length, durability))
    }

    fn write_zeroes(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        mode: ZeroMode,
    ) -> Started {
        self.change(
            token,
            (offset..offset.saturating_add(length), None),
            |monitor| monitor.saw_zeroes(offset, length),
            |own| below.write_zeroes(own, offset, length, mode),
        )
    }

    fn extents(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        self.pass(token, |own| below.extents(own, offset, length, runs))
    }

    fn prefetch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
    ) -> Started {
        self.pass(token, |own| below.prefetch(own, offset, length))
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        let ended = completions.split_off(before);
        for completion in ended {
            self.ended(completion, completions);
        }
        self.go_on(below);
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let read = self
            .due()
            .filter(|_| !self.is_resting && self.reading.is_none());
        let retry = (self.asked.is_some() || !self.wanted.is_empty()) && !self.is_resting;
        let retry = retry.then_some(now + telling::GATHER_FOR);
        let times = [read, retry, self.telling.due()];
        let next = times.into_iter().flatten().min();
        next.map(|next| next.saturating_sub(now))
    }

    fn rest(&mut self) -> bool {
        self.is_resting = true;
        self.own_under_way == 0
    }

    fn resume(&mut self) {
        self.is_resting = false;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.telling.end();
    }
}
