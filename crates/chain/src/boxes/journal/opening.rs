//! How a journal begins, and what the jobs bring that wait for its file.
//!
//! ```text
//!  closed ─▶ opening ─▶ scanning ─▶ replaying ─▶ flushing ─▶ starting ─▶ open
//!                        │ ▲   what there is                     │          ▲
//!                        │ └─────────────────────────────────────┘ more     │
//!                        └▶ idle: it is empty ── it comes into use ─────────┘
//! ```
//!
//! In a chain it is idle first also with something in it, and goes on when it comes into use:
//! boxes below pass on no changes before that. Until it is open all is answered `Busy`.
//!
//! Invariants: a ring begins, with an epoch of its own, only when what the one before it had
//! is below and flushed there. Of an empty one nothing is written before the box is used: the
//! one in whose place it comes may go on with the file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use base::{BlockDevice, Durability};
use world::File;

use super::active::Journal;
use super::carry::{Carry, Change};
use super::left::put_journal_aside;
use super::record::{Kind, Start};
use super::ring::{self, Found, Ring, Shape};

/// What a job brought.
pub(super) enum Told {
    Opened(Arc<dyn File>, Start),
    /// What there was is put aside there, and another one made.
    PutAside(PathBuf, (Arc<dyn File>, Start)),
    /// Another file in its place, which is empty.
    Made(Arc<dyn File>, Start),
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
    /// It is empty, and the box not in use yet.
    Idle(Arc<dyn File>, Start),
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
        if self.config.tenure.is_some() && below.capabilities().read_only {
            // The file may be that of the one who writes it.
            self.stage = Stage::ReadOnly;
            return;
        }
        let disk = Arc::clone(&self.world.disk);
        let (path, shape) = (self.config.path.clone(), self.shape(size_of(below)));
        self.stage = Stage::Opening;
        self.run(move || {
            let opened = ring::open(&*disk, &path, &shape);
            opened.map(|(file, start)| Told::Opened(file, start))
        });
    }

    /// What it is to be for a disk of this size, if it is made now.
    fn shape(&self, size_bytes: u64) -> Shape {
        Shape {
            ring_bytes: self.config.ring_bytes,
            size_bytes,
            lease: self.config.tenure.and_then(|tenure| tenure.epoch),
        }
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
                let path = self.config.path.display();
                return self.fail(format!("the journal {path}: {error}"));
            }
        };
        match (told, std::mem::replace(&mut self.stage, Stage::Closed)) {
            (Told::Opened(file, start), Stage::Opening) => {
                if self.config.tenure.is_none() && start.size_bytes != size_of(below) {
                    return self.is_anothers(&start, below);
                }
                self.begin_scan(file, start, below);
            }
            (Told::PutAside(path, (file, start)), Stage::Opening) => {
                self.note(format!(
                    "the volume was used without what this journal had acknowledged: that is kept \
                     in {}, and not carried out",
                    path.display()
                ));
                self.begin_scan(file, start, below);
            }
            (Told::Made(file, start), Stage::Opening) => {
                self.can_flush = below.capabilities().can_flush;
                self.begun(file, start);
            }
            (Told::Found(found, None), Stage::Scanning(file, start))
                if found.is_empty() && self.is_untouched =>
            {
                self.stage = Stage::Idle(file, start);
            }
            (Told::Found(found, next), Stage::Scanning(file, start)) => {
                if std::mem::take(&mut self.is_untouched) {
                    if !self.may_carry_out(&start, below) {
                        return;
                    }
                    if self.config.tenure.is_some() {
                        // Boxes below pass on no changes before they are in use.
                        self.has_left = true;
                        self.stage = Stage::Idle(file, start);
                        return;
                    }
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
            (Told::Synced(upto), Stage::Open(ring)) => {
                self.synced = upto;
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

    fn is_anothers(&mut self, start: &Start, below: &dyn BlockDevice) {
        let path = self.config.path.display();
        let (was, is) = (start.size_bytes, size_of(below));
        self.fail(format!(
            "the journal {path}: it is the journal of a disk of {was} bytes, and this one has {is}"
        ));
    }

    /// Whether what a journal has may go below, if it has anything; otherwise it fails, or
    /// that is put aside.
    fn may_carry_out(&mut self, start: &Start, below: &dyn BlockDevice) -> bool {
        let Some(tenure) = self.config.tenure else {
            return true;
        };
        let path = self.config.path.display();
        if start.lease > tenure.epoch && tenure.epoch.is_some() {
            self.fail(format!(
                "the journal {path} is of a later lease than this one: the database is an older \
                 copy, or another volume's"
            ));
            return false;
        }
        if tenure.follows == 0 {
            if start.size_bytes > size_of(below) {
                self.is_anothers(start, below);
                return false;
            }
            return true;
        }
        // Whoever was let in before this chain has written the volume without it.
        let disk = Arc::clone(&self.world.disk);
        let (path, shape) = (self.config.path.clone(), self.shape(size_of(below)));
        let lease = start.lease;
        self.stage = Stage::Opening;
        self.run(move || {
            let aside = put_journal_aside(&*disk, &path, lease)?;
            Ok(Told::PutAside(aside, ring::open(&*disk, &path, &shape)?))
        });
        false
    }

    /// The box comes into use: an empty ring begins, of the length that it is to have by now.
    pub(super) fn begin_idle(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Idle(file, start) if std::mem::take(&mut self.has_left) => {
                self.stage = Stage::Scanning(file, start);
                self.scan(start);
            }
            Stage::Idle(file, start) => {
                let size_bytes = self.disk_bytes;
                let shape = self.shape(size_bytes);
                let is_shaped = start.ring_bytes == shape.ring_bytes;
                if self.config.tenure.is_some() && !is_shaped {
                    let (disk, path) = (Arc::clone(&self.world.disk), self.config.path.clone());
                    self.stage = Stage::Opening;
                    drop(file);
                    return self.run(move || {
                        let made = ring::make_anew(&*disk, &path, &shape);
                        made.map(|(file, start)| Told::Made(file, start))
                    });
                }
                self.stage = Stage::Flushing(
                    file,
                    Start {
                        size_bytes,
                        ..start
                    },
                    None,
                );
                self.begin_start();
            }
            stage => self.stage = stage,
        }
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
                    lease: self.config.tenure.and_then(|tenure| tenure.epoch),
                    ..start
                });
                self.stage = Stage::Starting(Arc::clone(&file), next);
                self.run(move || ring::write_start(&*file, &start).map(|()| Told::Started(start)));
            }
            stage => self.stage = stage,
        }
    }

    pub(super) fn go_on_opening(&mut self) {
        if !matches!(self.stage, Stage::Replaying(..)) || !self.carry.is_empty() {
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
