//! How a journal begins, and what the jobs bring that wait for its file.
//!
//! ```text
//!  closed ─▶ opening ─▶ scanning ─▶ replaying ─▶ flushing ─▶ starting ─▶ open
//!                        │ ▲   what there is         ▲           │
//!                        │ └─────────────────────────┼───────────┘ more
//!                        └▶ idle ── it comes into use ┘ or, with something, scanning again
//!                             [reshaping before that, and replacing behind it]
//! ```
//!
//! It is idle first also with something in it, and goes on when it comes into use: filters below
//! pass on no changes before that. Until it is open all is answered `Busy`, but for reads while
//! it is idle and has nothing.
//!
//! Invariants: a ring begins, with an epoch of its own, only when what the one before it had
//! is below and flushed there. Of an empty one nothing is written before the filter is used: the
//! one in whose place it comes may go on with the file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use base::{BlockDevice, Durability};
use world::File;

use super::active::Journal;
use super::carry::{Carry, Change};
use super::left::{BESIDE, put_journal_aside};
use super::origin::Origin;
use super::record::{Kind, Start};
use super::ring::{self, Found, Ring, Shape};

/// What a job brought.
pub(super) enum Told {
    Opened(Arc<dyn File>, Start),
    /// What there was is put aside there, for that reason, and another one made.
    PutAside(PathBuf, &'static str, io::Result<(Arc<dyn File>, Start)>),
    /// Another one, which is empty, beside it; or why not.
    Beside(io::Result<(Arc<dyn File>, Start)>),
    /// Whether that is in its place.
    Replaced(io::Result<()>),
    /// Records, and what follows.
    Found(Vec<Found>, Option<Start>),
    Started(Start),
    /// All up to there.
    Synced(u64),
}

/// How far a journal is with beginning.
pub(super) enum Stage {
    Closed,
    Opening,
    /// Records are read; then, from where.
    Scanning(Arc<dyn File>, Start),
    /// What was read is carried out; then more is read, or below is flushed.
    Replaying(Arc<dyn File>, Start, Option<Start>),
    Flushing(Arc<dyn File>, Start, Option<Start>),
    /// The page is written; of the empty ring, or of what is left.
    Starting(Arc<dyn File>, Option<Start>),
    /// It is empty, and of another length than it is to be.
    Reshaping(Arc<dyn File>, Start),
    /// It is empty, and the filter not in use yet. Another one, if it is to take its place.
    Idle(Arc<dyn File>, Start, Option<(Arc<dyn File>, Start)>),
    /// The second one takes its place.
    Replacing(Arc<dyn File>, Start, (Arc<dyn File>, Start)),
    /// The disk below is only read: there is nothing to acknowledge.
    ReadOnly,
    Open(Ring),
    Failed(String),
}

fn size_of(below: &dyn BlockDevice) -> u64 {
    below.geometry().size_bytes
}

impl Journal {
    /// Begins to open it.
    pub(super) fn begin(&mut self, below: &dyn BlockDevice) {
        if self.config.history.is_some() && below.capabilities().read_only {
            // The file may be that of the one who writes it.
            self.stage = Stage::ReadOnly;
            return;
        }
        let disk = Arc::clone(&self.world.disk);
        let (path, shape) = (self.config.path.clone(), self.shape(size_of(below)));
        self.stage = Stage::Opening;
        let beside = self.beside();
        self.run(move || {
            // One that never took its place is of no use.
            ring::remove_if_there(&*disk, &beside)?;
            let opened = ring::open(&*disk, &path, &shape);
            opened.map(|(file, start)| Told::Opened(file, start))
        });
    }

    /// What it is to be for a disk of this size, if it is made now.
    fn shape(&self, size_bytes: u64) -> Shape {
        Shape {
            ring_bytes: self.config.ring_bytes,
            size_bytes,
            origin: self.origin(),
        }
    }

    /// What is below, as far as somebody says.
    fn origin(&self) -> Origin {
        let history = self.config.history;
        Origin {
            lease: history.and_then(|history| history.epoch),
            restores: history.and_then(|history| history.restores),
            below: self.config.below,
            disk: self.config.disk,
        }
    }

    /// Where another one is made that is to take its place.
    fn beside(&self) -> PathBuf {
        let mut name = self.config.path.clone().into_os_string();
        name.push(BESIDE);
        name.into()
    }

    /// Has the pool do what waits; one job at a time.
    pub(super) fn run(&mut self, job: impl FnOnce() -> io::Result<Told> + Send + 'static) {
        let (tell, told) = mpsc::channel();
        let wake = self.wake.clone();
        self.job = Some(told);
        self.world.pool.run(Box::new(move || {
            let _ = tell.send(job());
            wake.wake();
        }));
    }

    /// Hears of a job.
    pub(super) fn hear(&mut self, below: &mut dyn BlockDevice) {
        let told = match self.job.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return,
            Some(Err(TryRecvError::Disconnected)) => {
                self.job = None;
                return self.fail("its file is not waited for any more".to_owned());
            }
            Some(Ok(told)) => told,
        };
        self.job = None;
        let told = match told {
            Ok(told) => told,
            Err(error) => {
                return self.fails_to_open(&error);
            }
        };
        match (told, std::mem::replace(&mut self.stage, Stage::Closed)) {
            (Told::Opened(file, start), Stage::Opening) => self.begin_scan(file, start, below),
            (Told::PutAside(path, why, made), Stage::Opening) => {
                self.note(format!(
                    "{why}: what this journal had acknowledged is kept in {}, and not carried out",
                    self.config.told(&path)
                ));
                match made {
                    Ok((file, start)) => self.begin_scan(file, start, below),
                    Err(error) => self.fails_to_open(&error),
                }
            }
            (Told::Beside(Ok(made)), Stage::Reshaping(file, start)) => {
                self.stage = Stage::Idle(file, start, Some(made));
            }
            (Told::Beside(Err(error)), Stage::Reshaping(file, start)) => {
                self.has_old_length(&start, &error);
                self.stage = Stage::Idle(file, start, None);
            }
            (Told::Replaced(Ok(())), Stage::Replacing(_, _, (file, start))) => {
                self.begin_empty(file, start);
            }
            (Told::Replaced(Err(error)), Stage::Replacing(file, start, _)) => {
                self.has_old_length(&start, &error);
                self.begin_empty(file, start);
            }
            (Told::Found(found, None), Stage::Scanning(file, start))
                if found.is_empty() && self.is_untouched =>
            {
                self.found_nothing(file, start);
            }
            (Told::Found(found, next), Stage::Scanning(file, start)) => {
                if std::mem::take(&mut self.is_untouched) {
                    if !self.may_carry_out(&start, below) {
                        return;
                    }
                    // Filters below pass on no changes before they are in use.
                    self.has_left = true;
                    self.stage = Stage::Idle(file, start, None);
                    return;
                }
                for (header, payload) in found {
                    let data = (header.kind == Kind::Write).then(|| payload.into());
                    let what = (header.kind, header.offset, header.length);
                    let end = (0, header.sequence);
                    self.carry
                        .push(Change::new(what, data, end, Durability::Volatile));
                }
                self.stage = Stage::Replaying(file, start, next);
            }
            (Told::Started(_), Stage::Starting(file, Some(next))) => {
                self.stage = Stage::Scanning(file, next);
                self.scan(next);
            }
            (Told::Started(start), Stage::Starting(file, None)) => self.begun(file, start),
            (Told::Started(start), Stage::Open(mut ring)) => {
                ring.started(start);
                self.stage = Stage::Open(ring);
            }
            (Told::Synced(upto), Stage::Open(mut ring)) => {
                self.synced = upto;
                ring.is_synced(upto);
                self.stage = Stage::Open(ring);
            }
            (_, stage) => self.stage = stage,
        }
    }

    fn begin_scan(&mut self, file: Arc<dyn File>, start: Start, below: &dyn BlockDevice) {
        self.stage = Stage::Scanning(file, start);
        self.carry = Carry::new(start.tail, start.sequence);
        self.can_flush = below.capabilities().can_flush;
        self.is_untouched = true;
        self.scan(start);
    }

    /// An empty ring is in use.
    fn begun(&mut self, file: Arc<dyn File>, start: Start) {
        self.synced = start.tail;
        self.flushed = (start.tail, start.sequence);
        self.carry = Carry::new(start.tail, start.sequence);
        self.stage = Stage::Open(Ring::new(file, start));
    }

    fn fails_to_open(&mut self, error: &io::Error) {
        let path = self.config.told_path();
        self.fail(format!("the journal {path}: {error}"));
    }

    /// Whether it is of the disk below, if it has anything.
    fn is_of(&mut self, start: &Start, below: &dyn BlockDevice) -> bool {
        let path = self.config.told_path();
        let (was, is) = (start.size_bytes, size_of(below));
        let is_anothers = start.origin.is_anothers(&self.origin()) && !self.config.has_moved;
        // A disk may have grown, if it is known to be the same one.
        let is_known = self.config.history.is_some() || start.origin.disk.is_some();
        if is_anothers {
            let hint = match self.config.history {
                Some(_) => "",
                None => "; if that is at another place now, --server-moved says so",
            };
            self.fail(format!(
                "the journal {path}: what it has was acknowledged for another disk; put back \
                 this one's, and that one to where it belongs{hint}"
            ));
        } else if was > is || was != is && !is_known {
            self.fail(format!(
                "the journal {path}: it is the journal of a disk of {was} bytes, and this one \
                 has {is}"
            ));
        } else {
            return true;
        }
        false
    }

    /// Whether what a journal has may go below, if it has anything; otherwise it fails, or
    /// that is put aside.
    fn may_carry_out(&mut self, start: &Start, below: &dyn BlockDevice) -> bool {
        if !self.is_of(start, below) {
            return false;
        }
        let Some(history) = self.config.history else {
            return true;
        };
        let path = self.config.told_path();
        if start.origin.lease > history.epoch && history.epoch.is_some() {
            self.fail(format!(
                "the journal {path} is of a later lease than this one: the database is an older \
                 copy, or another volume's"
            ));
            return false;
        }
        if history.predecessor != 0
            && history.epoch.is_some()
            && start.origin.lease == history.epoch
        {
            // Whoever has it now may go on with it.
            self.fail(format!(
                "the journal {path} has something by now that was acknowledged and is not \
                 carried out"
            ));
            return false;
        }
        let why = match history.predecessor {
            0 => start.origin.differs_from(&self.origin()),
            // Whoever was let in before this chain.
            _ => Some("the volume was written without it since"),
        };
        let Some(why) = why else { return true };
        let disk = Arc::clone(&self.world.disk);
        let (path, shape) = (self.config.path.clone(), self.shape(size_of(below)));
        let lease = start.origin.lease;
        self.stage = Stage::Opening;
        self.run(move || {
            let aside = put_journal_aside(&*disk, &path, lease)?;
            Ok(Told::PutAside(
                aside,
                why,
                ring::open(&*disk, &path, &shape),
            ))
        });
        false
    }

    /// It is empty. Of another length than it is to be another one is made, while whoever has
    /// it now may go on with it.
    fn found_nothing(&mut self, file: Arc<dyn File>, start: Start) {
        let shape = self.shape(self.disk_bytes);
        if self.config.history.is_none() || start.ring_bytes == shape.ring_bytes {
            self.stage = Stage::Idle(file, start, None);
            return;
        }
        self.stage = Stage::Reshaping(file, start);
        let (disk, beside) = (Arc::clone(&self.world.disk), self.beside());
        self.run(move || Ok(Told::Beside(ring::make_anew(&*disk, &beside, &shape))));
    }

    /// It goes on with the ring that there is.
    fn has_old_length(&self, start: &Start, error: &io::Error) {
        self.note(format!(
            "it has {} MiB, and not {}: the other one cannot be made: {error}",
            start.ring_bytes >> 20,
            self.config.ring_bytes >> 20
        ));
    }

    /// The filter comes into use: an empty ring begins, of the length that it is to have by now.
    pub(super) fn begin_idle(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Idle(file, start, _) if std::mem::take(&mut self.has_left) => {
                self.stage = Stage::Scanning(file, start);
                self.scan(start);
            }
            Stage::Idle(file, start, Some(made)) => {
                self.stage = Stage::Replacing(file, start, made);
                let (disk, path) = (Arc::clone(&self.world.disk), self.config.path.clone());
                let beside = self.beside();
                self.run(move || {
                    if let Err(error) = disk.rename(&beside, &path) {
                        return Ok(Told::Replaced(Err(error)));
                    }
                    // If that fails nobody knows which one would be there after a crash.
                    path.parent()
                        .map_or(Ok(()), |folder| disk.sync_directory(folder))?;
                    Ok(Told::Replaced(Ok(())))
                });
            }
            Stage::Idle(file, start, None) => self.begin_empty(file, start),
            stage => self.stage = stage,
        }
    }

    /// A ring that is empty begins.
    fn begin_empty(&mut self, file: Arc<dyn File>, start: Start) {
        let size_bytes = self.disk_bytes;
        let start = Start {
            size_bytes,
            ..start
        };
        self.stage = Stage::Flushing(file, start, None);
        self.begin_start();
    }

    fn scan(&mut self, from: Start) {
        if let Stage::Scanning(file, _) = &self.stage {
            let file = Arc::clone(file);
            self.run(move || {
                let (found, next) = ring::scan(&*file, &from)?;
                Ok(Told::Found(found, next))
            });
        }
    }

    /// What was found is below and durable: the ring begins behind it, or a new, empty one.
    pub(super) fn begin_start(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Flushing(file, start, next) => {
                let number = start.number + 1;
                let next = next.map(|next| Start { number, ..next });
                // Records of earlier openings do not count any more, so an empty one may
                // begin anywhere.
                let start = next.unwrap_or(Start {
                    number,
                    epoch: start.epoch + 1,
                    tail: 0,
                    sequence: 1,
                    origin: self.origin(),
                    ..start
                });
                self.stage = Stage::Starting(Arc::clone(&file), next);
                self.run(move || ring::write_start(&*file, &start).map(|()| Told::Started(start)));
            }
            stage => self.stage = stage,
        }
    }

    pub(super) fn go_on_opening(&mut self) {
        if !matches!(self.stage, Stage::Replaying(..)) || !self.carry.is_done() {
            return;
        }
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Replaying(file, start, next) => {
                self.stage = Stage::Flushing(file, start, next);
                self.was_busy = true;
            }
            stage => self.stage = stage,
        }
    }
}
