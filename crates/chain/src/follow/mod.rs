//! [`Follower`]: the file systems of a disk, read once and then followed by the writes to it
//! (docs/internals/monitor.md). The filters `monitor` and `replicate` use it. It is here and
//! not in `extfs`, since it needs requests of a filter, tokens and a clock.
//!
//! ```text
//!  1. read     partitions and file systems are read, in a thread that requests blocks from
//!              the filter; writes are kept meanwhile
//!  2. follow   the kept writes, and all later ones
//!  3. reread   1 again when there may be another file system, while 2 continues
//! ```
//!
//! Invariants: it makes no requests itself, but lets its filter make them ([`Follower::next`]); it
//! never waits; the writes that it keeps are bounded. Each write is reported once, in order.

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

/// The maximal length of writes that are kept while the disk is read, in bytes. The limit on memory
/// counts if it is lower.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// The delay before the disk is read again because of a write. A program that makes a file system
/// writes for a while.
const READ_ANEW_AFTER: Duration = Duration::from_secs(1);

/// The first pause after a failed read of the disk. Each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest pause after a failed read of the disk.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The pause after a read in which some file systems failed.
const PAUSE_PARTLY: Duration = Duration::from_secs(600);

/// The maximal number of wanted blocks that are read at once and followed together.
const WANTED_AT_ONCE: usize = 64;

/// The maximal number of wanted blocks. If there are more, reading the whole disk again costs less.
const WANTED_MAX: usize = 1 << 16;

/// A range that has to be read from the disk.
pub struct Need {
    place: Range<u64>,
    of: Of,
}

enum Of {
    /// The reader requested the range.
    Reader(Ask),
    /// The range is a block that is needed to follow a file system.
    Wanted {
        area: usize,
        block: u64,
        /// Whether the block was written since the request.
        is_stale: bool,
    },
}

impl Need {
    /// The first byte of the range.
    pub fn offset(&self) -> u64 {
        self.place.start
    }

    /// The length of the range, in bytes.
    pub fn length(&self) -> usize {
        (self.place.end - self.place.start) as usize
    }
}

/// What a follower reports to its filter.
pub enum News {
    /// Accesses to files.
    Seen(Vec<Seen>),
    /// The disk was read.
    Found,
    /// The disk could not be read, for this reason. It is tried again after this pause.
    GivenUp(String, Duration),
}

/// A read of the disk that is under way, and the writes since it began.
struct Reading {
    reader: Reader,
    kept: Kept,
}

/// A change of the disk.
enum Changed {
    Written(u64, Vec<u8>),
    Trimmed(Range<u64>),
}

/// The changes of the disk while it is read, in order.
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

/// The file systems of a disk, read once and then followed by the writes to it.
pub struct Follower {
    memory_max: u64,
    clock: Arc<dyn Clock>,
    wake: Wake,
    /// The known state of the disk, also while the disk is read again.
    disk: Option<Disk>,
    reading: Option<Reading>,
    /// The time at which the disk has to be read.
    anew: Option<Duration>,
    /// The time at which the disk is read again because some of it could not be read.
    again: Option<Duration>,
    pause: Duration,
    /// A read for which the filter had no room.
    put_back: Option<Need>,
    /// The blocks that are needed: the area, the block and its range on the disk.
    wanted: Vec<(usize, u64, Range<u64>)>,
    /// The wanted blocks that were read, by area. They are followed before anything else.
    found: BTreeMap<usize, BTreeMap<u64, Vec<u8>>>,
    /// Events of these blocks that were not reported yet.
    unheard: Vec<Seen>,
    under_way: Tokens<Need>,
}

impl Follower {
    /// A follower that uses at most `memory_max` bytes of memory for all file systems together.
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

    /// The known state of the disk, if the disk was read.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Whether the disk is being read.
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether the known state is complete: nothing is being read or has to be read.
    pub fn is_settled(&self) -> bool {
        let is_read = self.disk.is_some() && self.reading.is_none() && self.anew.is_none();
        let is_followed = self.wanted.is_empty() && self.found.is_empty();
        is_read && is_followed && self.put_back.is_none() && self.is_idle()
    }

    /// Whether no read is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The time at which [`Follower::go_on`] has to be called.
    pub fn due(&self) -> Option<Duration> {
        let at = self.anew.into_iter().chain(self.again).min();
        at.filter(|_| self.reading.is_none())
    }

    /// Whether reads wait to be made.
    pub fn has_needs(&self) -> bool {
        self.put_back.is_some() || !self.wanted.is_empty()
    }

    /// Discards trust in the known state: the disk is read again, at once or after a delay.
    pub fn read_anew(&mut self, is_urgent: bool) {
        let after = if is_urgent {
            Duration::ZERO
        } else {
            READ_ANEW_AFTER
        };
        self.read_anew_after(after);
    }

    /// Lets the disk be read again after `after`, or earlier if that was requested before.
    pub fn read_anew_after(&mut self, after: Duration) {
        let at = self.clock.monotonic() + after;
        self.anew.get_or_insert(at);
    }

    /// Takes the next steps for a disk of `disk_bytes`. `may_begin` allows to begin to read it.
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
            Err(error) => self.give_up(&format!("cannot start a thread: {error}"), news),
        }
    }

    /// Ends the read of the disk, which is tried again later.
    fn give_up(&mut self, why: &str, news: &mut Vec<News>) {
        news.push(News::GivenUp(why.to_owned(), self.pause));
        self.reading = None;
        self.anew = Some(self.clock.monotonic() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Takes over what was read from the disk, and follows the kept changes.
    fn is_read(&mut self, kept: Kept, found: Result<Vec<Area>, IoError>, news: &mut Vec<News>) {
        let areas = match found {
            Ok(areas) => areas,
            Err(error) => return self.give_up(&error.to_string(), news),
        };
        if kept.is_too_much {
            return self.give_up("too much was written while the disk was read", news);
        }
        self.pause = PAUSE_MIN;
        self.forget_wanted();
        let is_unread = |area: &Area| matches!(area.found, Err(ScanError::Io(_)));
        if areas.iter().any(is_unread) {
            self.again = Some(self.clock.monotonic() + PAUSE_PARTLY);
        }
        // If an earlier state was known, it has reported the kept changes already.
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

    /// Drops the blocks that the earlier state of the disk needed.
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

    /// The accesses to files of a write.
    pub fn was_written(&mut self, offset: u64, data: &[u8]) -> Vec<Seen> {
        self.forget_changed();
        // Blocks that were read before this write are followed before it, and reported apart.
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
            // Kept changes are reported when the disk is known.
            None if self.reading.is_some() => {}
            None => {
                let write = chain_policy::Operation::Write;
                seen.push(Seen::Blocks(None, write, written.clone()));
            }
        }
        self.outdate(&written);
        seen
    }

    /// The accesses to files of a trim, which counts as a write of content. The content of trimmed
    /// metadata is unknown, so the disk is read again, and the known state stays until then.
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
            // Kept changes are reported when the disk is known.
            None if self.reading.is_some() => {}
            None => {
                let write = chain_policy::Operation::Write;
                seen.push(Seen::Blocks(None, write, range.clone()));
            }
        }
        self.outdate(&range);
        seen
    }

    /// Marks reads under way as stale if they overlap a change.
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

    /// Clears the changes of the write before.
    fn forget_changed(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.forget_changed();
        }
    }

    fn has_changed(&self) -> bool {
        let disk = self.disk.as_ref();
        disk.is_some_and(|disk| disk.has_moved() || !disk.changed().is_empty())
    }

    /// Follows the wanted blocks that were read.
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

    /// The number of wanted blocks that are being read or were read.
    fn wanted_under_way(&self) -> usize {
        let is_wanted = |need: &&Need| matches!(need.of, Of::Wanted { .. });
        let read: usize = self.found.values().map(BTreeMap::len).sum();
        self.under_way.iter().filter(is_wanted).count() + read
    }

    /// The next read that the filter has to make.
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

    /// Returns a read for which the filter had no room.
    pub fn put_back(&mut self, need: Need) {
        self.put_back = Some(need);
    }

    /// Registers a read that the filter makes. Its result is passed to [`Follower::answered`].
    pub fn asked(&mut self, need: Need) -> Token {
        self.under_way.add(need)
    }

    /// Handles the result of a read.
    pub fn answered(&mut self, token: Token, result: Result<Outcome, IoError>) -> Vec<News> {
        match self.under_way.take(token) {
            Some(need) => self.was_read(need, result),
            None => Vec::new(),
        }
    }

    /// Handles the content of a range that was needed.
    pub fn was_read(&mut self, need: Need, result: Result<Outcome, IoError>) -> Vec<News> {
        let mut news = Vec::new();
        self.forget_changed();
        let Need { place, of } = need;
        match (of, result.and_then(content_of)) {
            // The reader may have ended.
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
                // Many blocks are followed at once, since a map is read once for all of them.
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
