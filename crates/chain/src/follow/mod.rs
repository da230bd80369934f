//! [`Follower`]: the file systems of a disk, read once and then followed from what is
//! written to it (docs/chains.md, "Reconstruction").
//!
//! ```text
//!  1. read     partitions and file systems, in a thread that asks the filter for blocks;
//!              what is written meanwhile is kept
//!  2. follow   what was kept, and what is written from then on
//!  3. anew     when another file system may be there: 1 again, and 2 goes on meanwhile
//! ```
//!
//! Invariants: it asks nothing itself, but has its filter ask ([`Follower::next`]); it never
//! waits; what it keeps is bounded. What is written is told in order, each write once.

mod disk;
mod reader;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{IoError, Outcome, Token};
use world::{Clock, Wake};

pub use disk::{Disk, Seen};
pub use reader::Area;
use reader::{Ask, Reader};

use crate::tokens::Tokens;
use extfs::ScanError;

/// So much of what is written while the disk is read is kept, in bytes, or what may be taken
/// of memory, if that is less.
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

/// Something that is to be read from the disk.
pub struct Need {
    place: Range<u64>,
    of: Of,
}

enum Of {
    /// The reader asked for it.
    Reader(Ask),
    /// A block of a file system that is needed to follow it; whether it was written since.
    Wanted {
        area: usize,
        block: u64,
        is_stale: bool,
    },
}

impl Need {
    /// Where, in bytes.
    pub fn offset(&self) -> u64 {
        self.place.start
    }

    /// How much, in bytes.
    pub fn length(&self) -> usize {
        (self.place.end - self.place.start) as usize
    }
}

/// What came of something.
pub enum News {
    /// It happened to files.
    Seen(Vec<Seen>),
    /// The disk was read, and is known.
    Found,
    /// It could not be read, and why; it is tried again after so long.
    GivenUp(String, Duration),
}

/// The disk is being read; what was written meanwhile.
struct Reading {
    reader: Reader,
    kept: Kept,
}

/// Something that changed the disk.
enum Changed {
    Written(u64, Vec<u8>),
    Trimmed(Range<u64>),
}

/// What is written while the disk is read, in order.
struct Kept {
    changes: Vec<Changed>,
    bytes: usize,
    bytes_max: usize,
    is_too_much: bool,
}

impl Kept {
    fn written(&mut self, offset: u64, data: &[u8]) {
        if self.has_room(data.len()) {
            self.changes.push(Changed::Written(offset, data.to_vec()));
        }
    }

    fn trimmed(&mut self, range: Range<u64>) {
        if self.has_room(size_of::<Changed>()) {
            self.changes.push(Changed::Trimmed(range));
        }
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.is_too_much |= self.bytes > self.bytes_max;
        if self.is_too_much {
            self.changes = Vec::new();
        }
        !self.is_too_much
    }
}

/// See the module's head.
pub struct Follower {
    memory_max: u64,
    clock: Arc<dyn Clock>,
    wake: Wake,
    /// What is known of the disk: also while it is read anew.
    disk: Option<Disk>,
    reading: Option<Reading>,
    /// The disk is to be read then.
    anew: Option<Duration>,
    /// And then, if it was not before: some of it could not be read.
    again: Option<Duration>,
    pause: Duration,
    /// What could not be asked below yet.
    put_back: Option<Need>,
    /// Blocks that are needed, by their area.
    wanted: Vec<(usize, u64, Range<u64>)>,
    /// By area: what was wanted and read, and is to be followed before anything else is.
    found: BTreeMap<usize, BTreeMap<u64, Vec<u8>>>,
    /// What came of that, and was not told yet.
    unheard: Vec<Seen>,
    under_way: Tokens<Need>,
}

impl Follower {
    /// One that takes so many bytes of memory at most for all file systems together.
    pub fn new(memory_max: u64, clock: Arc<dyn Clock>, wake: Wake) -> Self {
        Self {
            memory_max,
            clock,
            wake,
            disk: None,
            reading: None,
            anew: Some(Duration::ZERO),
            again: None,
            pause: PAUSE_MIN,
            put_back: None,
            wanted: Vec::new(),
            found: BTreeMap::new(),
            unheard: Vec::new(),
            under_way: Tokens::default(),
        }
    }

    /// What is known of the disk, if it was read.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Whether the disk is being read.
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether what is known is all that there is to know now.
    pub fn is_settled(&self) -> bool {
        let is_read = self.disk.is_some() && self.reading.is_none() && self.anew.is_none();
        let is_followed = self.wanted.is_empty() && self.found.is_empty();
        is_read && is_followed && self.put_back.is_none() && self.is_idle()
    }

    /// Whether nothing that it has asked for is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// When it is to go on by itself.
    pub fn due(&self) -> Option<Duration> {
        let at = self.anew.into_iter().chain(self.again).min();
        at.filter(|_| self.reading.is_none())
    }

    /// Whether something waits to be asked.
    pub fn has_needs(&self) -> bool {
        self.put_back.is_some() || !self.wanted.is_empty()
    }

    /// What is known is not to be trusted: the disk is read anew, after a while or at once.
    pub fn read_anew(&mut self, is_urgent: bool) {
        let after = if is_urgent {
            Duration::ZERO
        } else {
            READ_ANEW_AFTER
        };
        self.read_anew_after(after);
    }

    /// The same, after so long; or sooner, if that was wanted before.
    pub fn read_anew_after(&mut self, after: Duration) {
        let at = self.clock.monotonic() + after;
        self.anew.get_or_insert(at);
    }

    /// Goes on with reading a disk of `disk_bytes`; `may_begin` that.
    pub fn go_on(&mut self, disk_bytes: u64, may_begin: bool) -> Vec<News> {
        let mut news = Vec::new();
        let now = self.clock.monotonic();
        self.forget_changed();
        let mut seen = std::mem::take(&mut self.unheard);
        seen.append(&mut self.follow_found());
        if !seen.is_empty() || self.has_changed() {
            news.push(News::Seen(seen));
        }
        if self.due().is_some_and(|due| now >= due) && may_begin {
            self.begin_reading(disk_bytes, &mut news);
        }
        if let Some(reading) = self.reading.take() {
            match reading.reader.found() {
                Some(found) => self.is_read(reading.kept, found, &mut news),
                None => self.reading = Some(reading),
            }
        }
        news
    }

    fn begin_reading(&mut self, disk_bytes: u64, news: &mut Vec<News>) {
        (self.anew, self.again) = (None, None);
        self.put_back
            .take_if(|need| matches!(need.of, Of::Reader(_)));
        match Reader::start(disk_bytes, self.memory_max, &self.wake) {
            Ok(reader) => {
                let kept = Kept {
                    changes: Vec::new(),
                    bytes: 0,
                    bytes_max: usize::try_from(self.memory_max)
                        .map_or(KEPT_BYTES_MAX, |most| most.min(KEPT_BYTES_MAX)),
                    is_too_much: false,
                };
                self.reading = Some(Reading { reader, kept });
            }
            Err(error) => self.give_up(&format!("no thread can be had to read it: {error}"), news),
        }
    }

    /// The disk is read later.
    fn give_up(&mut self, why: &str, news: &mut Vec<News>) {
        news.push(News::GivenUp(why.to_owned(), self.pause));
        self.reading = None;
        self.anew = Some(self.clock.monotonic() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// The disk was read.
    fn is_read(&mut self, kept: Kept, found: Result<Vec<Area>, IoError>, news: &mut Vec<News>) {
        let areas = match found {
            Ok(areas) => areas,
            Err(error) => return self.give_up(&error.to_string(), news),
        };
        if kept.is_too_much {
            return self.give_up("too much was written meanwhile", news);
        }
        self.pause = PAUSE_MIN;
        self.forget_wanted();
        let is_unread = |area: &Area| matches!(area.found, Err(ScanError::Io(_)));
        if areas.iter().any(is_unread) {
            self.again = Some(self.clock.monotonic() + PAUSE_PARTLY);
        }
        // What was known before has told what was written meanwhile.
        let disk = Disk::new(areas, self.memory_max);
        let is_told = self.disk.replace(disk).is_some();
        news.push(News::Found);
        for change in kept.changes {
            let seen = match change {
                Changed::Written(offset, data) => self.was_written(offset, &data),
                Changed::Trimmed(range) => self.was_trimmed(range),
            };
            if !is_told {
                news.push(News::Seen(seen));
            }
        }
    }

    /// What was needed of the disk as it was known before is needed no more.
    fn forget_wanted(&mut self) {
        self.wanted = Vec::new();
        self.found.clear();
        self.put_back
            .take_if(|need| matches!(need.of, Of::Wanted { .. }));
        for need in self.under_way.iter_mut() {
            if let Of::Wanted { area, is_stale, .. } = &mut need.of {
                (*area, *is_stale) = (usize::MAX, false);
            }
        }
    }

    /// What a write is to the files.
    pub fn was_written(&mut self, offset: u64, data: &[u8]) -> Vec<Seen> {
        self.forget_changed();
        // What was read before this was written is followed before it, and told apart.
        let mut found = self.follow_found();
        self.unheard.append(&mut found);
        let mut seen = Vec::new();
        if let Some(reading) = &mut self.reading {
            reading.kept.written(offset, data);
        }
        let written = offset..offset + data.len() as u64;
        match &mut self.disk {
            Some(disk) => {
                if disk.was_written(offset, data, &mut seen) {
                    self.read_anew(false);
                }
                self.take_wanted();
            }
            // What is kept is told when it is known what it is.
            None if self.reading.is_some() => {}
            None => {
                let write = chain_policy::Operation::Write;
                seen.push(Seen::Blocks(None, write, written.clone()));
            }
        }
        self.outdate(&written);
        seen
    }

    /// What a trim is to the files: it counts as a write of their content. Of what is a file
    /// system's own nobody knows what a trim leaves there, so that the disk is read anew; what
    /// is known of it stays until then. What is nobody's is no news.
    pub fn was_trimmed(&mut self, range: Range<u64>) -> Vec<Seen> {
        let mut seen = Vec::new();
        if let Some(reading) = &mut self.reading {
            reading.kept.trimmed(range.clone());
        }
        match &self.disk {
            Some(disk) => {
                if disk.was_trimmed(&range, &mut seen) {
                    self.read_anew(false);
                }
            }
            // What is kept is told when it is known what it is.
            None if self.reading.is_some() => {}
            None => {
                let write = chain_policy::Operation::Write;
                seen.push(Seen::Blocks(None, write, range.clone()));
            }
        }
        self.outdate(&range);
        seen
    }

    /// What is being read of this has changed meanwhile.
    fn outdate(&mut self, changed: &Range<u64>) {
        for Need { place, of } in self.under_way.iter_mut() {
            if let Of::Wanted { is_stale, .. } = of {
                *is_stale |= place.start < changed.end && changed.start < place.end;
            }
        }
    }

    fn take_wanted(&mut self) {
        if let Some(disk) = &mut self.disk {
            self.wanted.extend(disk.take_wanted());
        }
        if self.wanted.len() > WANTED_MAX {
            self.forget_wanted();
            self.read_anew(false);
        }
    }

    /// What was changed by what came before is known.
    fn forget_changed(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.forget_changed();
        }
    }

    fn has_changed(&self) -> bool {
        let disk = self.disk.as_ref();
        disk.is_some_and(|disk| disk.has_moved() || !disk.changed().is_empty())
    }

    /// Follows what was wanted and read.
    fn follow_found(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        for (area, blocks) in std::mem::take(&mut self.found) {
            let Some(disk) = &mut self.disk else {
                continue;
            };
            if disk.were_found(area, blocks, &mut seen) {
                self.read_anew(false);
            }
            self.take_wanted();
        }
        seen
    }

    /// So many blocks that were wanted are being read, or were.
    fn wanted_under_way(&self) -> usize {
        let is_wanted = |need: &&Need| matches!(need.of, Of::Wanted { .. });
        let read: usize = self.found.values().map(BTreeMap::len).sum();
        self.under_way.iter().filter(is_wanted).count() + read
    }

    /// What is to be read next.
    pub fn next(&mut self) -> Option<Need> {
        if let Some(need) = self.put_back.take() {
            return Some(need);
        }
        if let Some(ask) = self.reading.as_ref().and_then(|one| one.reader.next()) {
            return Some(Need {
                place: ask.offset..ask.offset + ask.length as u64,
                of: Of::Reader(ask),
            });
        }
        if self.wanted.is_empty() || self.wanted_under_way() >= WANTED_AT_ONCE {
            return None;
        }
        let (area, block, place) = self.wanted.pop()?;
        let is_stale = false;
        Some(Need {
            place,
            of: Of::Wanted {
                area,
                block,
                is_stale,
            },
        })
    }

    /// It could not be asked yet.
    pub fn put_back(&mut self, need: Need) {
        self.put_back = Some(need);
    }

    /// It was asked, and is answered with [`Follower::answered`].
    pub fn asked(&mut self, need: Need) -> Token {
        self.under_way.add(need)
    }

    /// What was asked is answered.
    pub fn answered(&mut self, token: Token, result: Result<Outcome, IoError>) -> Vec<News> {
        match self.under_way.take(token) {
            Some(need) => self.was_read(need, result),
            None => Vec::new(),
        }
    }

    /// Something that was needed was read.
    pub fn was_read(&mut self, need: Need, result: Result<Outcome, IoError>) -> Vec<News> {
        let mut news = Vec::new();
        self.forget_changed();
        let Need { place, of } = need;
        match (of, result.and_then(content_of)) {
            // Whoever has stopped waiting needs no answer.
            (Of::Reader(ask), result) => drop(ask.answer.send(result)),
            (
                Of::Wanted {
                    area,
                    block,
                    is_stale: true,
                },
                Ok(_),
            ) => self.wanted.push((area, block, place)),
            (Of::Wanted { area, block, .. }, Ok(content)) => {
                self.found.entry(area).or_default().insert(block, content);
                // Many at once, since a map is read anew for all of them; the rest with the
                // next turn.
                if self.wanted_under_way() >= WANTED_AT_ONCE || self.wanted.is_empty() {
                    news.push(News::Seen(self.follow_found()));
                }
            }
            (Of::Wanted { .. }, Err(error)) => {
                self.give_up(&error.to_string(), &mut news);
                self.wanted = Vec::new();
                self.found.clear();
            }
        }
        news
    }
}

fn content_of(outcome: Outcome) -> Result<Vec<u8>, IoError> {
    match outcome {
        Outcome::Data(content) => Ok(content),
        other => Err(IoError::Damaged(format!("a read brought {other:?}"))),
    }
}
