//! Opening a journal: finding its file, replaying its records, and starting an empty ring.
//!
//! Invariants: an empty ring, with a new epoch, is started only when the records before it are
//! written and flushed below. Nothing is written to an empty ring before the filter is in use: the
//! filter that it replaces may have to continue with the file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use base::{BlockDevice, Durability};
use world::File;

use super::changes::Change;
use super::file::{self, JournalFile, JournalSpec, Scan};
use super::filter::Journal;
use super::jobs::JobResult;
use super::leftover::{REPLACEMENT_SUFFIX, quarantine_journal};
use super::origin::Origin;
use super::record::{ChangeKind, LogPosition, Recorded, StartPage};
use super::ring::Ring;
use super::stage::{IdleContent, Stage};

/// What may be done with the records of a journal.
enum Verdict {
    WriteBack,
    /// The volume may have changed without them, for this reason.
    Quarantine(&'static str),
    /// The journal cannot be opened here, for this reason.
    Refuse(String),
}

impl Journal {
    /// Starts to open the journal.
    pub(super) fn begin(&mut self, below: &dyn BlockDevice) {
        if self.config.history.is_some() && below.capabilities().read_only {
            // The file may belong to the writer of the volume.
            self.stage = Stage::ReadOnly;
            return;
        }
        let disk = Arc::clone(&self.world.disk);
        let (path, spec) = (self.config.path.clone(), self.spec());
        self.stage = Stage::Opening;
        let replacement = self.replacement_path();
        self.job.run(move || {
            // An earlier replacement that never took the journal's place is not needed.
            file::remove_if_exists(&*disk, &replacement)?;
            file::open(&*disk, &path, &spec).map(JobResult::Opened)
        });
    }

    /// How the journal is made, if it is made now.
    fn spec(&self) -> JournalSpec {
        JournalSpec {
            ring_bytes: self.config.ring_bytes,
            disk_bytes: self.disk_bytes,
            origin: self.origin(),
        }
    }

    fn origin(&self) -> Origin {
        let history = self.config.history;
        Origin {
            lease: history.and_then(|history| history.epoch),
            restores: history.and_then(|history| history.restores),
            below: self.config.below,
            disk: self.config.disk,
        }
    }

    /// Where a journal is created that will take the place of this one.
    fn replacement_path(&self) -> PathBuf {
        let mut name = self.config.path.clone().into_os_string();
        name.push(REPLACEMENT_SUFFIX);
        name.into()
    }

    /// Takes the result of the job, if it has ended.
    pub(super) fn take_job_result(&mut self, below: &mut dyn BlockDevice) {
        let result = match self.job.poll() {
            None => return,
            Some(Err(error)) => return self.fail_with_file_error(&error),
            Some(Ok(result)) => result,
        };
        match (result, std::mem::replace(&mut self.stage, Stage::Closed)) {
            (JobResult::Opened(journal), Stage::Opening) => self.begin_scan(journal, below),
            (
                JobResult::Quarantined {
                    path,
                    reason,
                    created,
                },
                Stage::Opening,
            ) => {
                self.note(format!(
                    "{reason}: the acknowledged writes of this journal are quarantined in {}, and \
                     not written back",
                    self.config.shown(&path)
                ));
                match created {
                    Ok(journal) => self.begin_scan(journal, below),
                    Err(error) => self.fail_with_file_error(&error),
                }
            }
            (JobResult::ReplacementCreated(created), Stage::Resizing { journal }) => {
                let content = match created {
                    Ok(replacement) => IdleContent::Replaced(replacement),
                    Err(error) => {
                        self.note_old_length(&journal.start, &error);
                        IdleContent::Empty
                    }
                };
                self.stage = Stage::Idle { journal, content };
            }
            (
                JobResult::Replaced(replaced),
                Stage::Replacing {
                    journal,
                    replacement,
                },
            ) => match replaced {
                Ok(()) => self.begin_empty(replacement),
                Err(error) => {
                    self.note_old_length(&journal.start, &error);
                    self.begin_empty(journal);
                }
            },
            (JobResult::Scanned(scan), Stage::Scanning { journal, is_first }) => match is_first {
                true => self.scanned_first(journal, &scan, below),
                false => self.replay(journal, scan),
            },
            (
                JobResult::Started(_),
                Stage::Starting {
                    file,
                    next: Some(start),
                },
            ) => {
                self.scan(JournalFile { file, start }, false);
            }
            (JobResult::Started(start), Stage::Starting { file, next: None }) => {
                self.started_empty(JournalFile { file, start });
            }
            (JobResult::Started(start), Stage::Open(mut ring)) => {
                ring.set_start(start);
                self.stage = Stage::Open(ring);
            }
            (JobResult::Synced(synced), Stage::Open(mut ring)) => {
                ring.set_synced(synced);
                self.stage = Stage::Open(ring);
            }
            (_, stage) => self.stage = stage,
        }
    }

    fn begin_scan(&mut self, journal: JournalFile, below: &dyn BlockDevice) {
        self.backlog.restart(journal.start.tail);
        self.flush.is_supported = below.capabilities().can_flush;
        self.scan(journal, true);
    }

    /// Reads records from the journal's tail.
    fn scan(&mut self, journal: JournalFile, is_first: bool) {
        let scanned = journal.clone();
        self.stage = Stage::Scanning { journal, is_first };
        self.job.run(move || scanned.scan().map(JobResult::Scanned));
    }

    /// The first records of the file were read, to know whether there are any.
    fn scanned_first(&mut self, journal: JournalFile, scan: &Scan, below: &dyn BlockDevice) {
        if scan.records.is_empty() && scan.next.is_none() {
            return self.found_nothing(journal);
        }
        match self.judge(&journal.start, below) {
            Verdict::Refuse(reason) => self.fail(reason),
            Verdict::Quarantine(reason) => self.quarantine(&journal.start, reason),
            Verdict::WriteBack => {
                self.stage = Stage::Idle {
                    journal,
                    content: IdleContent::Leftover,
                };
            }
        }
    }

    /// Starts to write back what was read.
    fn replay(&mut self, journal: JournalFile, scan: Scan) {
        for record in scan.records {
            let header = record.header;
            let data = (header.kind == ChangeKind::Write).then(|| record.payload.into());
            let recorded = Recorded {
                end: 0,
                sequence: header.sequence,
            };
            let durability = Durability::Volatile;
            let change = Change::new(header.kind, header.range, data, durability, recorded);
            self.backlog.changes.push(change);
        }
        let next = scan.next;
        self.stage = Stage::Replaying { journal, next };
    }

    /// The start page of an empty ring is durable: the journal is open.
    fn started_empty(&mut self, journal: JournalFile) {
        let tail = journal.start.tail;
        self.flush.flushed = tail;
        self.backlog.restart(tail);
        self.stage = Stage::Open(Ring::new(journal));
    }

    /// Stops the journal because of an error of its file.
    pub(super) fn fail_with_file_error(&mut self, error: &io::Error) {
        let path = self.config.shown_path();
        self.fail(format!("the journal {path}: {error}"));
    }

    /// Decides what may be done with the records of a journal with this start page.
    fn judge(&self, start: &StartPage, below: &dyn BlockDevice) -> Verdict {
        if let Some(reason) = self.disk_mismatch(start, below.geometry().size_bytes) {
            return Verdict::Refuse(reason);
        }
        let Some(history) = self.config.history else {
            return Verdict::WriteBack;
        };
        let path = self.config.shown_path();
        if start.origin.lease > history.epoch && history.epoch.is_some() {
            return Verdict::Refuse(format!(
                "the journal {path} is of a later lease than this one: the database is an older \
                 copy, or the file belongs to another volume"
            ));
        }
        if history.predecessor != 0
            && history.epoch.is_some()
            && start.origin.lease == history.epoch
        {
            // The chain that is in use may continue with it.
            return Verdict::Refuse(format!(
                "the journal {path} has acknowledged writes that are not written back yet"
            ));
        }
        let reason = match history.predecessor {
            0 => start.origin.conflict_with(&self.origin()),
            // The chain before this one let clients in.
            _ => Some("the volume was written without this journal since"),
        };
        reason.map_or(Verdict::WriteBack, Verdict::Quarantine)
    }

    /// Why the records are not for the disk below, which has `disk_bytes`; `None` if they are.
    fn disk_mismatch(&self, start: &StartPage, disk_bytes: u64) -> Option<String> {
        let path = self.config.shown_path();
        if start.origin.is_other_disk(&self.origin()) && !self.config.has_moved {
            let hint = match self.config.history {
                Some(_) => "",
                None => "; if it is the same disk at another address, add --server-moved",
            };
            return Some(format!(
                "the journal {path} has writes that were acknowledged for another disk: move the \
                 file back to that disk, and restore the file of this one{hint}"
            ));
        }
        // A disk may have grown, if it is known to be the same one.
        let is_known = self.config.history.is_some() || start.origin.disk.is_some();
        let recorded = start.disk_bytes;
        let has_changed = recorded > disk_bytes || recorded != disk_bytes && !is_known;
        has_changed.then(|| {
            format!(
                "the journal {path} is of a disk of {recorded} bytes, and this one has {disk_bytes}"
            )
        })
    }

    /// Renames the file, so that its records are kept and never written back, and creates another.
    fn quarantine(&mut self, start: &StartPage, reason: &'static str) {
        let disk = Arc::clone(&self.world.disk);
        let (path, spec) = (self.config.path.clone(), self.spec());
        let lease = start.origin.lease;
        self.stage = Stage::Opening;
        self.job.run(move || {
            let quarantined = quarantine_journal(&*disk, &path, lease)?;
            Ok(JobResult::Quarantined {
                path: quarantined,
                reason,
                created: file::open(&*disk, &path, &spec),
            })
        });
    }

    /// The journal is empty. If its length is not the configured one, a replacement is created
    /// beside it, while the chain in use may continue with the file.
    fn found_nothing(&mut self, journal: JournalFile) {
        let spec = self.spec();
        if self.config.history.is_none() || journal.start.ring_bytes == spec.ring_bytes {
            self.stage = Stage::Idle {
                journal,
                content: IdleContent::Empty,
            };
            return;
        }
        self.stage = Stage::Resizing { journal };
        let (disk, path) = (Arc::clone(&self.world.disk), self.replacement_path());
        self.job.run(move || {
            let created = file::recreate(&*disk, &path, &spec);
            Ok(JobResult::ReplacementCreated(created))
        });
    }

    /// The journal keeps its length, because the replacement failed.
    fn note_old_length(&self, start: &StartPage, error: &io::Error) {
        self.note(format!(
            "the journal keeps {} MiB instead of {} MiB: {error}",
            start.ring_bytes >> 20,
            self.config.ring_bytes >> 20
        ));
    }

    /// The filter comes into use: records are replayed, or an empty ring is started, which has the
    /// configured length if possible.
    pub(super) fn leave_idle(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Idle { journal, content } => match content {
                IdleContent::Leftover => self.scan(journal, false),
                IdleContent::Replaced(replacement) => self.replace(journal, replacement),
                IdleContent::Empty => self.begin_empty(journal),
            },
            stage => self.stage = stage,
        }
    }

    fn replace(&mut self, journal: JournalFile, replacement: JournalFile) {
        self.stage = Stage::Replacing {
            journal,
            replacement,
        };
        let (disk, path) = (Arc::clone(&self.world.disk), self.config.path.clone());
        let replacement_path = self.replacement_path();
        self.job.run(move || {
            if let Err(error) = disk.rename(&replacement_path, &path) {
                return Ok(JobResult::Replaced(Err(error)));
            }
            // If this fails, it is unknown which of the two a crash would leave: the journal stops.
            path.parent()
                .map_or(Ok(()), |folder| disk.sync_directory(folder))?;
            Ok(JobResult::Replaced(Ok(())))
        });
    }

    /// Starts an empty ring in a journal without records.
    fn begin_empty(&mut self, mut journal: JournalFile) {
        journal.start.disk_bytes = self.disk_bytes;
        self.stage = Stage::Flushing {
            journal,
            next: None,
        };
        self.begin_start();
    }

    /// The replayed records are durable below: the ring begins behind them, or an empty one with
    /// the next epoch is started.
    pub(super) fn begin_start(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Flushing { journal, next } => {
                let JournalFile { file, start } = journal;
                let number = start.number + 1;
                let next = next.map(|next| StartPage { number, ..next });
                // Records of earlier epochs do not count, so the empty ring may begin anywhere.
                let page = next.unwrap_or(StartPage {
                    number,
                    epoch: start.epoch + 1,
                    tail: LogPosition {
                        offset: 0,
                        sequence: 1,
                    },
                    origin: self.origin(),
                    ..start
                });
                self.write_start(&file, page);
                self.stage = Stage::Starting { file, next };
            }
            stage => self.stage = stage,
        }
    }

    /// Writes a start page.
    pub(super) fn write_start(&mut self, file: &Arc<dyn File>, page: StartPage) {
        let file = Arc::clone(file);
        self.job
            .run(move || file::write_start(&*file, &page).map(|()| JobResult::Started(page)));
    }

    /// If everything that was read is written back, it is flushed below next.
    pub(super) fn finish_replay(&mut self) {
        if !matches!(self.stage, Stage::Replaying { .. }) || !self.backlog.changes.are_written() {
            return;
        }
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Replaying { journal, next } => {
                self.stage = Stage::Flushing { journal, next };
                self.was_busy = true;
            }
            stage => self.stage = stage,
        }
    }
}
