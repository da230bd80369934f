//! [`Lifecycle`]: the journal's file, and the phases from opening it to an open ring: finding the
//! file, replaying its records, and starting an empty ring.
//!
//! Invariants: an empty ring, with a new epoch, is started only when the records before it are
//! written and flushed below. Nothing is written to an empty ring before the filter is in use: the
//! filter that it replaces may have to continue with the file.

use std::io;
use std::sync::Arc;

use base::{BlockDevice, Durability};
use world::{File, Wake, World};

use super::JournalConfig;
use super::changes::Change;
use super::file::{self, JournalFile, JournalSpec, Scan};
use super::jobs::{FileJob, JobResult, Quarantined};
use super::leftover::quarantine_journal;
use super::policy::ChainContext;
use super::record::{ChangeKind, LogPosition, Recorded, StartPage};
use super::ring::Ring;
use super::stage::{IdleContent, Stage};
use super::verdict::Verdict;
use super::write_back::WriteBack;
use crate::FilterError;

/// The file of a journal, and the phase of its life. It knows no requests.
pub(super) struct Lifecycle {
    pub config: JournalConfig,
    pub world: World,
    /// The chain, if the journal is a filter of a policy.
    pub chain: Option<ChainContext>,
    pub stage: Stage,
    pub job: FileJob,
    /// The size of the disk when the journal was opened, in bytes.
    pub disk_bytes: u64,
}

impl Lifecycle {
    /// The life of a journal that is not open. `wake` has the chain polled when a job has ended.
    pub fn new(config: JournalConfig, world: World, wake: Wake) -> Self {
        Self {
            job: FileJob::new(Arc::clone(&world.pool), wake),
            config,
            world,
            chain: None,
            stage: Stage::Closed,
            disk_bytes: 0,
        }
    }

    /// Reports something about the journal, as an event and in the host's log.
    pub fn note(&self, note: String) {
        tracing::warn!(path = %self.config.path.display(), "{note}");
        if let Some(chain) = &self.chain {
            chain.report(note);
        }
    }

    /// The reason to stop the journal because of an error of its file.
    pub fn file_error(&self, error: &io::Error) -> FilterError {
        let path = self.config.shown_path();
        let reason = format!("the journal {path}: {error}");
        let is_too_large = error.kind() == io::ErrorKind::FileTooLarge;
        match is_too_large || world::is_out_of_space(error) {
            true => FilterError::StorageFull(reason),
            false => FilterError::Other(reason),
        }
    }

    /// Starts to open the journal.
    pub fn begin(&mut self, below: &dyn BlockDevice) {
        if self.config.history.is_some() && below.capabilities().read_only {
            // The file may belong to the writer of the volume.
            self.stage = Stage::ReadOnly;
            return;
        }
        let disk = Arc::clone(&self.world.disk);
        let (path, spec) = (self.config.path.clone(), self.spec());
        self.stage = Stage::Opening;
        let replacement = self.config.replacement_path();
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
            origin: self.config.origin(),
        }
    }

    /// Takes the result of the job, if it has ended.
    ///
    /// # Errors
    /// Why the journal has to stop.
    pub fn take_job_result(
        &mut self,
        below: &dyn BlockDevice,
        write_back: &mut WriteBack,
    ) -> Result<(), FilterError> {
        let result = match self.job.poll() {
            None => return Ok(()),
            Some(Err(error)) => return Err(self.file_error(&error)),
            Some(Ok(result)) => result,
        };
        match (result, std::mem::replace(&mut self.stage, Stage::Closed)) {
            (JobResult::Opened(journal), Stage::Opening) => {
                self.begin_scan(journal, below, write_back);
            }
            (JobResult::Quarantined(quarantined), Stage::Opening) => {
                self.note_quarantined(&quarantined);
                match quarantined.created {
                    Ok(journal) => self.begin_scan(journal, below, write_back),
                    Err(error) => return Err(self.file_error(&error)),
                }
            }
            (JobResult::ReplacementCreated(created), Stage::Resizing { journal }) => {
                self.replacement_created(journal, created);
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
                true => self.scanned_first(journal, &scan, below)?,
                false => self.replay(journal, scan, write_back),
            },
            (JobResult::Started(start), Stage::Starting { file, next }) => match next {
                Some(start) => self.scan(JournalFile { file, start }, false),
                None => self.started_empty(JournalFile { file, start }, write_back),
            },
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
        Ok(())
    }

    fn note_quarantined(&self, quarantined: &Quarantined) {
        self.note(format!(
            "{}: the acknowledged writes of this journal are quarantined in {}, and not written \
             back",
            quarantined.reason,
            self.config.shown(&quarantined.path)
        ));
    }

    /// The journal is idle until the filter is in use, and then replaced if that is possible.
    fn replacement_created(&mut self, journal: JournalFile, created: io::Result<JournalFile>) {
        let content = match created {
            Ok(replacement) => IdleContent::Replaced(replacement),
            Err(error) => {
                self.note_old_length(&journal.start, &error);
                IdleContent::Empty
            }
        };
        self.stage = Stage::Idle { journal, content };
    }

    fn begin_scan(
        &mut self,
        journal: JournalFile,
        below: &dyn BlockDevice,
        write_back: &mut WriteBack,
    ) {
        write_back.backlog.restart(journal.start.tail);
        write_back.flush.is_supported = below.capabilities().can_flush;
        self.scan(journal, true);
    }

    /// Reads records from the journal's tail.
    fn scan(&mut self, journal: JournalFile, is_first: bool) {
        let scanned = journal.clone();
        self.stage = Stage::Scanning { journal, is_first };
        self.job.run(move || scanned.scan().map(JobResult::Scanned));
    }

    /// The first records of the file were read, to know whether there are any.
    fn scanned_first(
        &mut self,
        journal: JournalFile,
        scan: &Scan,
        below: &dyn BlockDevice,
    ) -> Result<(), FilterError> {
        if scan.records.is_empty() && scan.next.is_none() {
            self.found_nothing(journal);
            return Ok(());
        }
        let disk_bytes = below.geometry().size_bytes;
        match self.config.judge(&journal.start, disk_bytes) {
            Verdict::Refuse(reason) => return Err(reason.into()),
            Verdict::Quarantine(reason) => self.quarantine(&journal.start, reason),
            Verdict::WriteBack => {
                self.stage = Stage::Idle {
                    journal,
                    content: IdleContent::Leftover,
                };
            }
        }
        Ok(())
    }

    /// Starts to write back what was read.
    fn replay(&mut self, journal: JournalFile, scan: Scan, write_back: &mut WriteBack) {
        for record in scan.records {
            let header = record.header;
            let data = (header.kind == ChangeKind::Write).then(|| record.payload.into());
            let recorded = Recorded {
                end: 0,
                sequence: header.sequence,
            };
            let durability = Durability::Volatile;
            let change = Change::new(header.kind, header.range, data, durability, recorded);
            write_back.backlog.changes.push(change);
        }
        let next = scan.next;
        self.stage = Stage::Replaying { journal, next };
    }

    /// The start page of an empty ring is durable: the journal is open.
    fn started_empty(&mut self, journal: JournalFile, write_back: &mut WriteBack) {
        let tail = journal.start.tail;
        write_back.flush.flushed = tail;
        write_back.backlog.restart(tail);
        self.stage = Stage::Open(Ring::new(journal));
    }

    /// Renames the file, so that its records are kept and never written back, and creates another.
    fn quarantine(&mut self, start: &StartPage, reason: &'static str) {
        let disk = Arc::clone(&self.world.disk);
        let (path, spec) = (self.config.path.clone(), self.spec());
        let lease = start.origin.lease;
        self.stage = Stage::Opening;
        self.job.run(move || {
            let quarantined = quarantine_journal(&*disk, &path, lease)?;
            Ok(JobResult::Quarantined(Quarantined {
                path: quarantined,
                reason,
                created: file::open(&*disk, &path, &spec),
            }))
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
        let (disk, path) = (Arc::clone(&self.world.disk), self.config.replacement_path());
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
    pub fn leave_idle(&mut self) {
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
        let replacement_path = self.config.replacement_path();
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
    pub fn begin_start(&mut self) {
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
                    origin: self.config.origin(),
                    ..start
                });
                self.write_start(&file, page);
                self.stage = Stage::Starting { file, next };
            }
            stage => self.stage = stage,
        }
    }

    /// Writes a start page.
    pub fn write_start(&mut self, file: &Arc<dyn File>, page: StartPage) {
        let file = Arc::clone(file);
        self.job
            .run(move || file::write_start(&*file, &page).map(|()| JobResult::Started(page)));
    }

    /// If everything that was read is written back, it is flushed below next. Returns whether that
    /// is so.
    pub fn finish_replay(&mut self, write_back: &WriteBack) -> bool {
        let is_replaying = matches!(self.stage, Stage::Replaying { .. });
        if !is_replaying || !write_back.backlog.changes.are_written() {
            return false;
        }
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Replaying { journal, next } => {
                self.stage = Stage::Flushing { journal, next };
                true
            }
            stage => {
                self.stage = stage;
                false
            }
        }
    }

    /// The flush of what was replayed failed: it is written back again.
    pub fn replay_again(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Flushing { journal, next } => {
                self.stage = Stage::Replaying { journal, next };
            }
            stage => self.stage = stage,
        }
    }
}
