//! [`Tracker`]: follows the file systems of the disk, for partial replicas.
//!
//! ```text
//!  a write ─▶ 1. follow it  2. what is wanted from now on, and not there, is missing
//!             3. hold it until that is in the file, if it was not  4. dispatch it
//! ```
//!
//! Invariants:
//!
//! * Each write is followed once, and is certain to be dispatched then: it is not answered `Busy`
//!   after that.
//! * What a partial replica should have and does not have is in regions that it is missing. That
//!   is in the file before the write that makes it so is dispatched.
//! * While it is uncertain what is wanted, all regions are missing, and none is rebuilt.
//! * Only sources are read, so what is known is that of complete members.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, ByteRange, Completion, IoError, Outcome, OwnedOp, Started, Token};

use super::held::HeldChange;
use super::member::Members;
use super::region_log::Acknowledge;
use super::replica_set::ReplicaSet;
use super::requests::{Request, RequestKind, Requester, Requests};
use super::selection::{KnownFiles, Selection};
use crate::FilterContext;
use crate::follow::{Disk, Follower, FollowerEvent};

/// The pause before a disk with damaged file systems is read again: the first one, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The number of files that are judged in a poll.
const JUDGED_AT_ONCE: usize = 1024;

/// The content of the pieces in which written zeroes are followed.
const ZEROES: &[u8] = &[0; 64 << 10];

/// The maximal length of zeroes that are followed, in bytes. After longer ones the disk is read
/// again.
const ZEROES_MAX: u64 = 64 << 20;

/// An inode of a file system of the disk.
#[derive(Debug, Clone, Copy)]
struct FileId {
    area: usize,
    inode: u32,
}

/// What is known of the disk's file systems, and what is still to be found out.
pub(super) struct Tracker {
    pub follower: Follower,
    /// Files that have to be judged.
    to_judge: Vec<FileId>,
    /// Whether the disk was read since the last report.
    has_news: bool,
    /// The number of damaged structures that were found.
    damaged: u64,
    /// That number when the disk was read last.
    damaged_when_read: u64,
    /// The pause before the disk is read again because of damage.
    pause: Duration,
    /// Whether the filter is ready, so that partial replicas are missing all that is uncertain.
    pub is_in_use: bool,
    /// The sequence of the map that has to be in the file before a change is dispatched.
    needed: u64,
}

impl Tracker {
    /// A tracker that takes at most `memory_max` bytes for all file systems together.
    pub fn new(memory_max: u64, context: &FilterContext) -> Self {
        let clock = Arc::clone(&context.host.clock);
        let wake = context.attachment.wake.clone();
        Self {
            follower: Follower::new(memory_max, clock, wake),
            to_judge: Vec::new(),
            has_news: false,
            damaged: 0,
            damaged_when_read: 0,
            pause: PAUSE_MIN,
            is_in_use: false,
            needed: 0,
        }
    }

    /// What is known of the disk's file systems.
    pub fn disk(&self) -> Option<&Disk> {
        self.follower.disk()
    }

    /// Whether it is known what is wanted.
    pub fn is_certain(&self) -> bool {
        self.follower.is_complete() && self.to_judge.is_empty()
    }

    /// The files by which partial replicas are rebuilt.
    pub fn known_files(&self) -> KnownFiles<'_> {
        KnownFiles {
            is_certain: self.is_certain(),
            disk: self.disk(),
        }
    }

    /// Whether there is work that no event announces.
    pub fn has_work(&self, requests: &Requests) -> bool {
        !self.to_judge.is_empty()
            || !requests.follower_reads.is_empty()
            || self.follower.has_reads()
    }

    /// After a change was followed: if it damaged something, or may have repaired it, the disk is
    /// read again. In a file system without a journal, a block may be written to its new file
    /// before its old file has given it up.
    fn check_damage(&mut self) {
        let before = self.damaged;
        self.count_damage();
        let disk = self.disk();
        let has_changed = disk.is_some_and(|disk| !disk.changed().is_empty());
        if self.damaged > before || self.damaged > 0 && has_changed {
            self.follower.reread_after(self.pause);
        }
    }

    /// After the disk was read: a disk with lasting damage is read less and less often.
    fn check_damage_read(&mut self) {
        self.count_damage();
        let before = std::mem::replace(&mut self.damaged_when_read, self.damaged);
        self.pause = match self.damaged {
            0 => PAUSE_MIN,
            _ => (self.pause * 2).min(PAUSE_MAX),
        };
        if self.damaged > 0 && self.damaged != before {
            self.follower.reread_after(self.pause);
        }
    }

    fn count_damage(&mut self) {
        let areas = self.disk().map_or(&[][..], Disk::areas);
        let lives = areas.iter().filter_map(|area| area.found.as_ref().ok());
        self.damaged = lives.map(|live| live.view().damaged()).sum();
    }

    /// All files have to be judged, if the disk is known.
    fn judge_all(&mut self) {
        self.to_judge = self.disk().map_or_else(Vec::new, files_of);
    }

    /// Takes some of the files that have to be judged.
    fn take_to_judge(&mut self) -> Vec<FileId> {
        let left = self.to_judge.len().saturating_sub(JUDGED_AT_ONCE);
        self.to_judge.split_off(left)
    }

    /// Follows a change, and dispatches it or holds it.
    pub fn follow_and_dispatch(
        &mut self,
        set: &mut ReplicaSet,
        below: &mut dyn BlockDevice,
        token: Token,
        op: OwnedOp,
    ) -> Started {
        self.follow(set, &op);
        let needed = self.needed;
        let started = match set.log.has_stored(needed) {
            true => set.dispatch(below, token, &op, self.disk()),
            false => Started::Busy,
        };
        match started {
            Started::Busy => {
                set.requests.locks.lock(op.range());
                set.requests.held.push(HeldChange { needed, token, op });
                Started::Pending
            }
            Started::Failed(_) => {
                // What was followed does not happen.
                self.follower.reread_now();
                self.add_all_if_uncertain(set);
                started
            }
            _ => started,
        }
    }

    /// Lets the follower see a change.
    fn follow(&mut self, set: &mut ReplicaSet, op: &OwnedOp) {
        match op {
            OwnedOp::Write { offset, data, .. } => self.follow_write(set, *offset, data),
            OwnedOp::WriteZeroes { offset, length, .. } if *length <= ZEROES_MAX => {
                let mut at = 0;
                while at < *length {
                    let piece = (length - at).min(ZEROES.len() as u64);
                    self.follow_write(set, offset + at, &ZEROES[..piece as usize]);
                    at += piece;
                }
            }
            OwnedOp::WriteZeroes { .. } => {
                self.follower.reread_later();
                self.add_all_if_uncertain(set);
            }
            // A trim is dispatched as zeroes, and nothing else is a change.
            _ => {}
        }
    }

    fn follow_write(&mut self, set: &mut ReplicaSet, offset: u64, data: &[u8]) {
        self.follower.was_written(offset, data);
        self.take_changed_files(set);
    }

    /// Judges the files that the last write or read has changed. Members are missing what they
    /// should have from now on, and do not have.
    fn take_changed_files(&mut self, set: &mut ReplicaSet) {
        let missing = self.newly_wanted(&mut set.members, set.log.map.region_bytes);
        let mut is_new = false;
        for (at, region) in missing {
            let region = region..(region + 1).min(set.log.map.regions);
            let map = &set.log.map;
            is_new |= region.clone().any(|one| !map.missing[at].has(one));
            set.add_missing(at, region);
        }
        if is_new {
            self.hold_changes(set);
        }
        self.check_damage();
        self.add_all_if_uncertain(set);
    }

    /// The members and regions in which something is wanted from now on that is not there.
    fn newly_wanted(&mut self, members: &mut Members, region_bytes: u64) -> Vec<(usize, usize)> {
        let mut missing = Vec::new();
        if self.disk().is_some_and(Disk::has_moved) {
            self.judge_all();
        }
        let Some(disk) = self.disk() else {
            return missing;
        };
        for (area_at, inode) in disk.changed() {
            let area = &disk.areas()[*area_at];
            let Ok(live) = &area.found else { continue };
            let block_bytes = u64::from(live.view().superblock().block_bytes);
            for (at, member) in members.iter_mut().enumerate() {
                let Some(selection) = &mut member.selection else {
                    continue;
                };
                if !selection.judge(live, *area_at, *inode) {
                    continue;
                }
                for blocks in live.view().blocks_of(*inode) {
                    let begin = area.place.offset + blocks.start * block_bytes;
                    let end = area.place.offset + blocks.end * block_bytes;
                    let regions = selection.missing_regions(&(begin..end), region_bytes);
                    missing.extend(regions.into_iter().map(|region| (at, region)));
                }
            }
        }
        // Metadata of a file system that has grown was written when these blocks had no owner.
        for range in disk.laid_out() {
            for (at, member) in members.iter().enumerate() {
                let Some(selection) = &member.selection else {
                    continue;
                };
                let regions = selection.missing_regions(range, region_bytes);
                missing.extend(regions.into_iter().map(|region| (at, region)));
            }
        }
        missing
    }

    /// Members are missing more: no change is dispatched before that is in the file.
    fn hold_changes(&mut self, set: &mut ReplicaSet) {
        set.log_changed(Acknowledge::AtOnce);
        self.needed = set.log.map.sequence;
    }

    /// While it is uncertain what is wanted, partial replicas are missing everything.
    pub fn add_all_if_uncertain(&mut self, set: &mut ReplicaSet) {
        if self.is_certain() || !self.is_in_use {
            return;
        }
        if set.add_all_missing_to_partial() {
            self.hold_changes(set);
        }
    }

    /// Takes the next steps of reading and following the disk.
    pub fn track(&mut self, set: &mut ReplicaSet, below: &mut dyn BlockDevice, may_begin: bool) {
        let answers = std::mem::take(&mut set.requests.follower_reads);
        let events = self.follower.proceed(set.disk_bytes, may_begin);
        self.take_follower_events(set, events);
        for (token, result) in answers {
            let events = self.follower.completed(token, result);
            self.take_follower_events(set, events);
        }
        while may_begin && self.start_next_read(set, below) {}
        self.judge_some(set);
        self.add_all_if_uncertain(set);
    }

    /// Starts the next read of the follower. Returns whether one was started.
    fn start_next_read(&mut self, set: &mut ReplicaSet, below: &mut dyn BlockDevice) -> bool {
        let Some(read) = self.follower.next_read() else {
            return false;
        };
        let range = ByteRange::new(read.offset(), read.length() as u64);
        let mut content = vec![0; read.length()];
        let request = Request::new(Requester::Tracker(None), RequestKind::Read(range));
        let id = set.requests.pending.add(request);
        let buffer = &mut content.as_mut_slice().into();
        match set.read_from_source(below, id, range.offset, buffer) {
            Some(Started::Done) => {
                let events = self.follower.was_read(read, Ok(Outcome::Data(content)));
                set.requests.withdraw(id);
                self.take_follower_events(set, events);
                true
            }
            Some(_) => {
                if let Some(request) = set.requests.pending.get_mut(id) {
                    request.requester = Requester::Tracker(Some(self.follower.started(read)));
                }
                true
            }
            None => {
                self.follower.return_read(read);
                set.requests.withdraw(id);
                false
            }
        }
    }

    fn take_follower_events(&mut self, set: &mut ReplicaSet, events: Vec<FollowerEvent>) {
        for event in events {
            match event {
                FollowerEvent::Accesses(_) => self.take_changed_files(set),
                FollowerEvent::DiskRead => {
                    set.members.selections_mut().for_each(Selection::forget);
                    self.judge_all();
                    self.has_news = true;
                    self.check_damage_read();
                    self.add_all_if_uncertain(set);
                    self.finish_judging(set);
                }
                FollowerEvent::ReadFailed {
                    reason,
                    retry_after,
                } => set.note(format!(
                    "the disk could not be read: {reason}; partial replicas are not rebuilt until \
                     it is; the next attempt is in {} s",
                    retry_after.as_secs()
                )),
            }
        }
    }

    /// Judges some of the files that have to be judged.
    fn judge_some(&mut self, set: &mut ReplicaSet) {
        if self.to_judge.is_empty() {
            return;
        }
        let some = self.take_to_judge();
        if let Some(disk) = self.disk() {
            for FileId { area, inode } in some {
                let Ok(live) = &disk.areas()[area].found else {
                    continue;
                };
                for selection in set.members.selections_mut() {
                    selection.judge(live, area, inode);
                }
            }
        }
        self.finish_judging(set);
    }

    /// If every file was judged, that is noted, and reported once after each read of the disk.
    fn finish_judging(&mut self, set: &mut ReplicaSet) {
        let Some(disk) = self.disk() else {
            return;
        };
        if !self.to_judge.is_empty() {
            return;
        }
        let mut notes = whole_areas(disk);
        let has_files = disk.areas().iter().any(|area| area.found.is_ok());
        for member in set.members.iter_mut() {
            let Some(selection) = &mut member.selection else {
                continue;
            };
            selection.set_judged();
            let (name, files) = (&member.name, selection.files());
            notes.push(match has_files {
                true => format!("replica {name} gets the content of {files} files"),
                false => {
                    format!("replica {name} gets the whole disk: it has no readable file system")
                }
            });
        }
        if std::mem::take(&mut self.has_news) {
            notes.into_iter().for_each(|note| set.note(note));
        }
    }

    /// Dispatches held changes, as far as the file has what they need.
    pub fn dispatch_held(&mut self, set: &mut ReplicaSet, below: &mut dyn BlockDevice) {
        while let Some(held) = set.next_held() {
            let (token, range) = (held.token, held.op.range());
            set.requests.locks.unlock(range.offset);
            let failure = set.log.failure().map(str::to_owned);
            let started = match failure.filter(|_| !set.log.has_stored(held.needed)) {
                Some(reason) => Started::Failed(IoError::NoSpace(reason)),
                None => set.dispatch(below, token, &held.op, self.disk()),
            };
            let result = match started {
                Started::Pending => continue,
                Started::Done => Ok(Outcome::Done),
                Started::Busy => {
                    set.requests.locks.lock(range);
                    set.requests.held.put_back(held);
                    return;
                }
                Started::Failed(error) => {
                    self.follower.reread_now();
                    self.add_all_if_uncertain(set);
                    Err(error)
                }
            };
            set.requests.ended.push(Completion { token, result });
        }
    }
}

/// Why areas of the disk are replicated as a whole: one sentence for each.
fn whole_areas(disk: &Disk) -> Vec<String> {
    let mut notes = Vec::new();
    for area in disk.areas() {
        if let Err(reason) = &area.found {
            let name = match area.number {
                Some(number) => format!("partition {number}"),
                None => "the disk".to_owned(),
            };
            notes.push(format!("{name} is replicated as a whole: {reason}"));
        }
    }
    notes
}

/// All files of a disk.
fn files_of(disk: &Disk) -> Vec<FileId> {
    let areas = disk.areas().iter().enumerate();
    let lives = areas.filter_map(|(area, found)| Some((area, found.found.as_ref().ok()?)));
    let files = lives.flat_map(|(area, live)| {
        let inodes = live.view().inodes();
        inodes.map(move |inode| FileId { area, inode })
    });
    files.collect()
}
