//! Looking at what is on the disk, for replicas that are to have some files only.
//!
//! ```text
//!  a write ─▶ 1. follow  2. what is wanted from now on, and not there, is lacking
//!             3. held until that is in the file, if it was not   4. dispatched
//! ```
//!
//! Invariants:
//!
//! * Each write is followed once, and dispatched then: it is never answered `Busy` again.
//! * Of a partial replica, what is wanted and not there is in regions that are lacking, in
//!   the file before the write is dispatched that makes it so.
//! * While it is not certain what is wanted, all regions are lacking, and none is filled.
//! * The source is what is read: what is known is of disks that have all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, ByteRange, Completion, IoError, Outcome, OwnedOp, Started, Token};

use super::{Begun, Kind, Replicate, Request, State};
use crate::follow::{Disk, Follower, FollowerEvent};

/// A disk that takes longer to read is used meanwhile.
pub(super) const READ_FIRST_FOR: Duration = Duration::from_secs(5);

/// So many changes are held at most, and of content so much, in bytes.
const HELD_MAX: usize = 128;
const HELD_BYTES_MAX: usize = 64 << 20;

/// Where something makes no sense the disk is read anew after so long, at first and at last.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// So many files are judged at a time.
const JUDGED_AT_ONCE: usize = 1024;

/// Zeroes are followed in pieces of so many bytes; where there are more of them than so
/// many, the disk is read anew.
const ZEROES: &[u8] = &[0; 64 << 10];
const ZEROES_MAX: u64 = 64 << 20;

/// What is known of the disk, and what waits for that.
pub(super) struct Looking {
    pub follower: Follower,
    /// Files that are to be judged.
    to_judge: Vec<(usize, u32)>,
    /// The disk was read since that was told.
    is_news: bool,
    /// How many things on it made no sense so far, and when it was read last.
    damaged: u64,
    damaged_when_read: u64,
    /// After how long it is read anew because of that.
    pause: Duration,
    /// What was read for it.
    answers: Vec<(Token, Result<Outcome, IoError>)>,
    /// Changes that were followed, and are not dispatched.
    pub held: VecDeque<Held>,
    /// What is written is held until so much is in the file.
    hold_until: u64,
}

/// A change that was followed, and is not dispatched.
pub(super) struct Held {
    sequence: u64,
    token: Token,
    offset: u64,
    length: u64,
    op: OwnedOp,
}

impl Looking {
    pub fn new(follower: Follower) -> Self {
        Self {
            follower,
            to_judge: Vec::new(),
            is_news: false,
            damaged: 0,
            damaged_when_read: 0,
            pause: PAUSE_MIN,
            answers: Vec::new(),
            held: VecDeque::new(),
            hold_until: 0,
        }
    }

    /// Something that it needs was read.
    pub fn was_read(&mut self, token: Token, result: Result<Outcome, IoError>) {
        self.answers.push((token, result));
    }

    /// Whether it is known what is wanted.
    pub fn is_certain(&self) -> bool {
        self.follower.is_complete() && self.to_judge.is_empty()
    }

    /// Whether one more change may be held.
    fn may_hold(&self) -> bool {
        let bytes = |held: &Held| match &held.op {
            OwnedOp::Write { data, .. } => data.len(),
            _ => 0,
        };
        let held: usize = self.held.iter().map(bytes).sum();
        self.held.len() < HELD_MAX && held < HELD_BYTES_MAX
    }

    /// If something made no sense that was followed, or makes sense by now, the disk is read
    /// anew: where there is no journal a file's blocks may be written before whoever had
    /// them has given them up.
    fn look_at_damage(&mut self) {
        let before = self.damaged;
        self.take_damage();
        let has_changed = self
            .follower
            .disk()
            .is_some_and(|disk| !disk.changed().is_empty());
        if self.damaged > before || self.damaged > 0 && has_changed {
            self.follower.reread_after(self.pause);
        }
    }

    /// The same, of what was read. What is damaged for good is read less and less often.
    fn look_at_damage_read(&mut self) {
        self.take_damage();
        let before = std::mem::replace(&mut self.damaged_when_read, self.damaged);
        self.pause = match self.damaged {
            0 => PAUSE_MIN,
            _ => (self.pause * 2).min(PAUSE_MAX),
        };
        if self.damaged > 0 && self.damaged != before {
            self.follower.reread_after(self.pause);
        }
    }

    fn take_damage(&mut self) {
        let areas = self.follower.disk().map_or(&[][..], Disk::areas);
        let lives = areas.iter().filter_map(|area| area.found.as_ref().ok());
        self.damaged = lives.map(|live| live.view().damaged()).sum();
    }

    /// Whether something is left to be done that nothing else has polled for.
    pub fn is_pressed(&self) -> bool {
        !self.to_judge.is_empty() || !self.answers.is_empty() || self.follower.has_reads()
    }
}

impl Replicate {
    /// Whether a member is not to have all.
    pub(super) fn is_partial(&self, at: usize) -> bool {
        self.members[at].choice.is_some()
    }

    /// Whether a member has all: it may be read.
    pub(super) fn is_source(&self, at: usize) -> bool {
        self.members[at].state == State::InSync && !self.is_partial(at)
    }

    /// Whether it is known what a member is to have.
    pub(super) fn is_certain(&self, at: usize) -> bool {
        !self.is_partial(at) || self.looking.as_ref().is_none_or(Looking::is_certain)
    }

    /// Carries out a change that may begin.
    pub(super) fn change(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        op: OwnedOp,
    ) -> Started {
        let ByteRange { offset, length } = op.range();
        match self.may_change(offset, length) {
            Ok(true) => {}
            Ok(false) => return Started::Busy,
            Err(error) => return Started::Failed(error),
        }
        let kind = Kind::Change { offset, length };
        let Some(looking) = &self.looking else {
            return self.dispatch(below, token, kind, &op);
        };
        if !looking.may_hold() {
            return Started::Busy;
        }
        self.follow(&op);
        let sequence = self
            .looking
            .as_ref()
            .map_or(0, |looking| looking.hold_until);
        let started = match self.stored >= sequence {
            true => self.dispatch(below, token, kind, &op),
            false => Started::Busy,
        };
        match (&started, &mut self.looking) {
            (Started::Busy, Some(looking)) => {
                // Nobody else writes there meanwhile.
                self.ranges.insert(offset, offset + length);
                looking.held.push_back(Held {
                    sequence,
                    token,
                    offset,
                    length,
                    op,
                });
                Started::Pending
            }
            (Started::Failed(_), Some(looking)) => {
                // What was followed does not come to pass.
                looking.follower.reread(true);
                self.lack_if_uncertain();
                started
            }
            _ => started,
        }
    }

    /// What a change is to the file systems.
    fn follow(&mut self, op: &OwnedOp) {
        match op {
            OwnedOp::Write { offset, data, .. } => self.saw(*offset, data),
            OwnedOp::WriteZeroes { offset, length, .. } if *length <= ZEROES_MAX => {
                let mut at = 0;
                while at < *length {
                    let piece = (length - at).min(ZEROES.len() as u64);
                    self.saw(offset + at, &ZEROES[..piece as usize]);
                    at += piece;
                }
            }
            OwnedOp::WriteZeroes { .. } => {
                if let Some(looking) = &mut self.looking {
                    looking.follower.reread(false);
                }
                self.lack_if_uncertain();
            }
            // Nothing else comes here: a trim is zeroes to all members.
            _ => {}
        }
    }

    fn saw(&mut self, offset: u64, data: &[u8]) {
        if let Some(looking) = &mut self.looking {
            looking.follower.was_written(offset, data);
            self.take_changes();
        }
    }

    /// Files were changed by what was written or read last: what is wanted from now on, and
    /// not there, is lacking.
    fn take_changes(&mut self) {
        let Some(looking) = &mut self.looking else {
            return;
        };
        let mut lacking = Vec::new();
        if let Some(disk) = looking.follower.disk() {
            if disk.has_moved() {
                looking.to_judge = all_of(disk);
            }
            for (area, inode) in disk.changed() {
                let area_of = &disk.areas()[*area];
                let Ok(live) = &area_of.found else { continue };
                let block_bytes = u64::from(live.view().superblock().block_bytes);
                for (at, member) in self.members.iter_mut().enumerate() {
                    let Some(choice) = &mut member.choice else {
                        continue;
                    };
                    if !choice.judge(live, *area, *inode) {
                        continue;
                    }
                    for blocks in live.view().blocks_of(*inode) {
                        let begin = area_of.place.offset + blocks.start * block_bytes;
                        let end = area_of.place.offset + blocks.end * block_bytes;
                        let missing = choice.lacking_regions(&(begin..end), self.map.region_bytes);
                        lacking.extend(missing.into_iter().map(|region| (at, region)));
                    }
                }
            }
            // What a file system that has grown has for itself was nobody's when it was
            // written.
            for place in disk.laid_out() {
                for (at, member) in self.members.iter().enumerate() {
                    let Some(choice) = &member.choice else {
                        continue;
                    };
                    let missing = choice.lacking_regions(place, self.map.region_bytes);
                    lacking.extend(missing.into_iter().map(|region| (at, region)));
                }
            }
        }
        let mut is_new = false;
        for (at, region) in lacking {
            let region = region..(region + 1).min(self.map.regions);
            is_new |= region.clone().any(|one| !self.map.lacking[at].has(one));
            self.lacks_regions(at, region);
        }
        if is_new {
            self.hold();
        }
        if let Some(looking) = &mut self.looking {
            looking.look_at_damage();
        }
        self.lack_if_uncertain();
    }

    /// What is lacking is in the file before anything more is written.
    fn hold(&mut self) {
        self.changed(false);
        if let Some(looking) = &mut self.looking {
            looking.hold_until = self.map.sequence;
        }
    }

    /// If it is not known what is wanted, that may be anything.
    pub(super) fn lack_if_uncertain(&mut self) {
        if self.looking.as_ref().is_none_or(Looking::is_certain)
            || !matches!(self.begun, Begun::Yes)
        {
            return;
        }
        let mut is_new = false;
        for at in 0..self.members.len() {
            if self.is_partial(at) {
                is_new |= !self.map.lack_all(at);
                if let Some(fill) = self.fill.as_mut().filter(|fill| fill.member == at) {
                    fill.copied.clear_all();
                    fill.has_missed = true;
                }
            }
        }
        if is_new {
            self.hold();
        }
    }

    /// Goes on with looking at the disk.
    pub(super) fn look(&mut self, below: &mut dyn BlockDevice) {
        let Some(looking) = &mut self.looking else {
            return;
        };
        let may_begin = !self.is_resting || matches!(self.begun, Begun::Looking { .. });
        let answers = std::mem::take(&mut looking.answers);
        let news = looking.follower.proceed(self.disk_bytes, may_begin);
        self.take_news(news);
        for (token, result) in answers {
            let looking = self.looking.as_mut();
            let news = looking.map(|looking| looking.follower.completed(token, result));
            self.take_news(news.unwrap_or_default());
        }
        while may_begin && self.look_at_next(below) {}
        self.judge_some();
        self.lack_if_uncertain();
    }

    /// Reads what is needed next; whether something was.
    fn look_at_next(&mut self, below: &mut dyn BlockDevice) -> bool {
        let Some(need) = self
            .looking
            .as_mut()
            .and_then(|one| one.follower.next_read())
        else {
            return false;
        };
        let (offset, length) = (need.offset(), need.length());
        let mut content = vec![0; length];
        let id = self
            .requests
            .add(Request::new(None, Kind::Read { offset, length }));
        let started = self.read_somewhere(below, id, offset, &mut content.as_mut_slice().into());
        let Some(looking) = &mut self.looking else {
            return false;
        };
        match started {
            Some(Started::Done) => {
                let news = looking.follower.was_read(need, Ok(Outcome::Data(content)));
                self.withdraw(id);
                self.take_news(news);
                true
            }
            Some(_) => {
                if let Some(request) = self.requests.get_mut(id) {
                    request.look = Some(looking.follower.started(need));
                }
                true
            }
            None => {
                looking.follower.return_read(need);
                self.withdraw(id);
                false
            }
        }
    }

    fn take_news(&mut self, news: Vec<FollowerEvent>) {
        for news in news {
            match news {
                FollowerEvent::Accesses(_) => self.take_changes(),
                FollowerEvent::DiskRead => {
                    let choices = self.members.iter_mut();
                    let choices = choices.filter_map(|member| member.choice.as_mut());
                    choices.for_each(super::choice::Choice::forget);
                    if let Some(looking) = &mut self.looking {
                        looking.to_judge = looking.follower.disk().map_or_else(Vec::new, all_of);
                        looking.is_news = true;
                        looking.look_at_damage_read();
                    }
                    self.lack_if_uncertain();
                    self.has_judged();
                }
                FollowerEvent::ReadFailed {
                    reason: why,
                    retry_after: pause,
                } => self.note(format!(
                    "the disk could not be read: {why}; replicas of chosen files are not filled \
                     until it is; it is read again in {} s",
                    pause.as_secs()
                )),
            }
        }
    }

    /// Judges files.
    fn judge_some(&mut self) {
        let Some(looking) = self.looking.as_mut() else {
            return;
        };
        if looking.to_judge.is_empty() {
            return;
        }
        let left = looking.to_judge.len().saturating_sub(JUDGED_AT_ONCE);
        let some = looking.to_judge.split_off(left);
        if let Some(disk) = looking.follower.disk() {
            for (area, inode) in some {
                let Ok(live) = &disk.areas()[area].found else {
                    continue;
                };
                for choice in self
                    .members
                    .iter_mut()
                    .filter_map(|one| one.choice.as_mut())
                {
                    choice.judge(live, area, inode);
                }
            }
        }
        self.has_judged();
    }

    /// If every file was judged, that is known, and told.
    fn has_judged(&mut self) {
        let Some(looking) = self.looking.as_mut() else {
            return;
        };
        let Some(disk) = looking.follower.disk() else {
            return;
        };
        if !looking.to_judge.is_empty() {
            return;
        }
        let mut notes = Vec::new();
        let mut is_any = false;
        for area in disk.areas() {
            is_any |= area.found.is_ok();
            if let Err(why) = &area.found {
                let where_it_is = match area.number {
                    Some(number) => format!("partition {number}"),
                    None => "the disk".to_owned(),
                };
                notes.push(format!("{where_it_is} is replicated as a whole: {why}"));
            }
        }
        for member in &mut self.members {
            let Some(choice) = &mut member.choice else {
                continue;
            };
            choice.all_are_judged();
            let (name, files) = (&member.name, choice.files());
            notes.push(match is_any {
                true => format!("{name} is to have the content of {files} files"),
                false => format!("{name} is taken for a whole one: no files can be told apart"),
            });
        }
        if std::mem::take(&mut looking.is_news) {
            notes.into_iter().for_each(|note| self.note(note));
        }
    }

    /// The filter begins to be used. What was wanted as it began is there, unless it is lacking.
    pub(super) fn settle(&mut self) {
        self.begun = Begun::Yes;
        if !self.looking.as_ref().is_some_and(Looking::is_certain) {
            self.note(
                "the disk takes long to read: replicas of chosen files get all of them anew"
                    .to_owned(),
            );
            return self.lack_if_uncertain();
        }
        let disk = self.looking.as_ref().and_then(|one| one.follower.disk());
        for (member, lacking) in self.members.iter_mut().zip(&self.map.lacking) {
            let Some(choice) = &mut member.choice else {
                continue;
            };
            for region in (0..self.map.regions).filter(|region| !lacking.has(*region)) {
                let begin = region as u64 * self.map.region_bytes;
                let end = (begin + self.map.region_bytes).min(self.disk_bytes);
                for run in choice.wanted(disk, &(begin..end)) {
                    choice.has.set(&run);
                }
            }
        }
    }

    /// Dispatches what was held, as far as the file has what it waits for.
    pub(super) fn let_go_of_held(
        &mut self,
        below: &mut dyn BlockDevice,
        completions: &mut Vec<Completion>,
    ) {
        while let Some(held) = self.next_held() {
            let (token, offset, length) = (held.token, held.offset, held.length);
            self.ranges.remove(&offset);
            let why = self.store_error.as_ref().map(|(why, _)| why.clone());
            let started = match why.filter(|_| self.stored < held.sequence) {
                Some(why) => Started::Failed(IoError::NoSpace(why)),
                None => self.dispatch(below, token, Kind::Change { offset, length }, &held.op),
            };
            let Some(looking) = &mut self.looking else {
                return;
            };
            let result = match started {
                Started::Pending => continue,
                Started::Done => Ok(Outcome::Done),
                Started::Busy => {
                    self.ranges.insert(offset, offset + length);
                    looking.held.push_front(held);
                    return;
                }
                Started::Failed(error) => {
                    looking.follower.reread(true);
                    self.lack_if_uncertain();
                    Err(error)
                }
            };
            completions.push(Completion { token, result });
        }
    }

    fn next_held(&mut self) -> Option<Held> {
        let is_late = self.members.iter().any(|member| !member.queue.is_empty());
        let (stored, has_failed) = (self.stored, self.store_error.is_some());
        let held = &mut self.looking.as_mut()?.held;
        let may = |held: &Held| !is_late && (held.sequence <= stored || has_failed);
        match held.front().is_some_and(may) {
            true => held.pop_front(),
            false => None,
        }
    }

    /// A follower with so much memory for each file system, if one is needed.
    pub(super) fn follower(&self, memory_max: u64) -> Follower {
        let clock = Arc::clone(&self.context.host.clock);
        Follower::new(memory_max, clock, self.context.attachment.wake.clone())
    }
}

/// All files of a disk.
fn all_of(disk: &Disk) -> Vec<(usize, u32)> {
    let areas = disk.areas().iter().enumerate();
    let lives = areas.filter_map(|(at, area)| Some((at, area.found.as_ref().ok()?)));
    let files = lives.flat_map(|(at, live)| live.view().inodes().map(move |inode| (at, inode)));
    files.collect()
}
