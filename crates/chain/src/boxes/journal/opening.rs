//! How a journal begins, and what the jobs bring that wait for its file.
//!
//! ```text
//!  closed ─▶ opening ─▶ scanning ─▶ replaying ─┬▶ flushing ─▶ starting ─▶ open
//!                          ▲   what there is    │
//!                          └────────────────────┘ there is more
//! ```
//!
//! Invariant: a ring begins, with an epoch of its own, only when what the one before it had
//! is below and flushed there.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use base::{BlockDevice, Durability};
use world::File;

use super::active::Journal;
use super::carry::{Carry, Change};
use super::record::{Kind, Start};
use super::ring::{self, Found, Ring};

/// What a job brought.
pub(super) enum Told {
    Opened(Arc<dyn File>, Start),
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
    Flushing(Arc<dyn File>, Start),
    Starting(Arc<dyn File>),
    Open(Ring),
    Failed(String),
}

impl Journal {
    /// Begins to open it.
    pub(super) fn begin(&mut self, below: &dyn BlockDevice) {
        let (disk, config) = (Arc::clone(&self.world.disk), self.config.clone());
        let size = below.geometry().size_bytes;
        self.stage = Stage::Opening;
        self.run(move || {
            let opened = ring::open(&*disk, &config.path, config.ring_bytes, size);
            opened.map(|(file, start)| Told::Opened(file, start))
        });
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
                self.stage = Stage::Scanning(file, start);
                self.carry = Carry::new(start.tail, start.sequence);
                self.can_flush = below.capabilities().can_flush;
                self.scan(start);
            }
            (Told::Found(found, next), Stage::Scanning(file, start)) => {
                for (header, payload) in found {
                    let data = (header.kind == Kind::Write).then(|| payload.into());
                    let what = (header.kind, header.offset, header.length);
                    let end = (0, header.sequence);
                    self.carry
                        .push(Change::new(what, data, end, Durability::Volatile));
                }
                self.stage = Stage::Replaying(file, start, next);
            }
            (Told::Started(start), Stage::Starting(file)) => {
                self.synced = start.tail;
                self.flushed = (start.tail, start.sequence);
                self.carry = Carry::new(start.tail, start.sequence);
                self.stage = Stage::Open(Ring::new(file, start));
            }
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

    fn scan(&mut self, from: Start) {
        if let Stage::Scanning(file, _) = &self.stage {
            let file = Arc::clone(file);
            self.run(move || {
                let (found, next) = ring::scan(&*file, &from)?;
                Ok(Told::Found(found, next))
            });
        }
    }

    /// What was found is below and durable: a new, empty ring begins.
    pub(super) fn begin_start(&mut self) {
        if let Stage::Flushing(file, start) = std::mem::replace(&mut self.stage, Stage::Closed) {
            // Records of earlier openings do not count any more, so it may begin anywhere.
            let start = Start {
                number: start.number + 1,
                epoch: start.epoch + 1,
                tail: 0,
                sequence: 1,
                ..start
            };
            self.stage = Stage::Starting(Arc::clone(&file));
            self.run(move || ring::write_start(&*file, &start).map(|()| Told::Started(start)));
        }
    }

    pub(super) fn go_on_opening(&mut self) {
        if !matches!(self.stage, Stage::Replaying(..)) || !self.carry.is_empty() {
            return;
        }
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Replaying(file, start, Some(next)) => {
                self.stage = Stage::Scanning(file, start);
                self.scan(next);
            }
            Stage::Replaying(file, start, None) => {
                self.stage = Stage::Flushing(file, start);
                self.was_busy = true;
            }
            stage => self.stage = stage,
        }
    }
}
