//! `trace`: records each request that passes (docs/internals/filter-formats.md).
//!
//! ```text
//!  request ─▶ begun ─▶ ended ─▶ batch ── full, or a second old ─▶ queue ─▶ job ─▶ file
//!             (the disk's thread, which never waits)                └ full: lost, and counted
//! ```
//!
//! It passes on tokens as they are. What it costs is a look at the clock for each request and
//! each turn, and forty bytes.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::trace::{Batch, BatchHead, Outcome, Record};
use base::{BlockDevice, Completion, Durability, IoError, Op, OpKind, Request, Started, Token};
use chain_policy::TraceConfig;
use world::RollingFile;

use crate::{Filter, FilterContext, Opening, StateFolder};

/// A batch has as many records at most, and is as old at most when it is written.
const BATCH_RECORDS: usize = 1024;
const BATCH_AGE: Duration = Duration::from_secs(1);

/// So many wait to be written at most: 5 MiB.
const QUEUE_MAX: usize = 128;

/// A trace has so many older files beside the newest one.
const OLD_FILES: u32 = 7;

/// How the name of a filter's trace ends in its folder; of older files a number follows.
pub const TRACE_SUFFIX: &str = ".trace";

/// With less no trace is kept, in bytes.
const BYTES_MIN: u64 = 1 << 20;

/// What is handed to the job that writes.
#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    is_written: bool,
    is_failing: bool,
}

/// The queue, and the file, which only the job has.
struct Writer {
    queue: Mutex<Queue>,
    file: Mutex<RollingFile>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    /// Writes what there is, and what comes meanwhile.
    fn write(&self) {
        let mut file = lock(&self.file);
        loop {
            let batch = {
                let mut queue = lock(&self.queue);
                let next = queue.batches.pop_front();
                queue.is_written = next.is_some();
                next
            };
            let Some(batch) = batch else { return };
            // What is not there is missed by its numbers.
            let written = file.append(&batch.encode());
            let mut queue = lock(&self.queue);
            if let Err(error) = &written
                && !queue.is_failing
            {
                tracing::warn!(%error, "a trace is not written");
            }
            queue.is_failing = written.is_err();
        }
    }
}

/// See the module's head.
pub struct Trace {
    name: Arc<str>,
    context: FilterContext,
    writer: Arc<Writer>,
    bytes_max: u64,
    wanted_bytes: u64,
    /// Of the batch that comes next.
    head: BatchHead,
    began: Duration,
    /// Answered later.
    under_way: HashMap<Token, Record>,
    /// Answered at once: told with the next commit.
    done: Vec<Record>,
    /// The batch.
    records: Vec<Record>,
    since: Duration,
}

impl Trace {
    /// As `config` says; its files are in `state`.
    #[must_use]
    pub fn new(
        name: &str,
        config: &TraceConfig,
        context: FilterContext,
        state: StateFolder,
    ) -> Self {
        let bytes_max = config
            .bytes_max
            .min(context.attachment.disk_limits.trace_bytes);
        let path = state.path.join(format!("{name}{TRACE_SUFFIX}"));
        let file_bytes = bytes_max / u64::from(OLD_FILES + 1);
        // One of before may be written to its end still.
        let file = RollingFile::new(state.disk, path, file_bytes, OLD_FILES).in_new_file();
        let mut trace = [0; 8];
        context.host.random.fill(&mut trace);
        let wall_ms = context.host.clock.wall().0.cast_unsigned();
        Self {
            name: name.into(),
            writer: Arc::new(Writer {
                queue: Mutex::default(),
                file: Mutex::new(file),
            }),
            bytes_max,
            wanted_bytes: config.bytes_max,
            head: BatchHead {
                began_us: wall_ms.saturating_mul(1000),
                trace: u64::from_le_bytes(trace),
                sequence: 0,
                before: 0,
                lost: 0,
                disk_bytes: 0,
            },
            began: context.host.clock.monotonic(),
            context,
            under_way: HashMap::new(),
            done: Vec::new(),
            records: Vec::new(),
            since: Duration::ZERO,
        }
    }

    fn now(&self) -> u64 {
        let since = self.context.host.clock.monotonic() - self.began;
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A request was started below, with this answer.
    fn note(&mut self, token: Token, started: &Started, mut record: Record) {
        match started {
            Started::Pending => {
                self.under_way.insert(token, record);
            }
            Started::Done => self.done.push(record),
            Started::Failed(_) => {
                record.outcome = Outcome::Failed;
                self.done.push(record);
            }
            // It is asked again, and begun then.
            Started::Busy => {}
        }
    }

    /// The record of a request that begins now; none of one that is not recorded.
    fn begun(&self, op: &Op<'_>) -> Option<Record> {
        let kind = op.kind();
        if kind == OpKind::Extents {
            return None;
        }
        let range = op.range();
        let mut record = Record::plain(kind, self.now(), (range.offset, range.length));
        record.is_fua = op.durability() == Durability::Durable;
        record.may_punch = matches!(op, Op::WriteZeroes { mode, .. } if mode.may_punch);
        Some(record)
    }

    /// What was answered at once has ended.
    fn end_done(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let now = self.now();
        let mut done = std::mem::take(&mut self.done);
        for record in done.drain(..) {
            self.end(record, now);
        }
        self.done = done;
    }

    fn end(&mut self, mut record: Record, now: u64) {
        record.latency_ns = now.saturating_sub(record.time_ns);
        if self.records.is_empty() {
            self.since = self.began + Duration::from_nanos(now);
        }
        self.records.push(record);
        if self.records.len() >= BATCH_RECORDS {
            self.hand_over();
        }
    }

    /// The batch goes to the job that writes, if there is room.
    fn hand_over(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::replace(&mut self.records, Vec::with_capacity(BATCH_RECORDS));
        let count = records.len() as u64;
        let mut queue = lock(&self.writer.queue);
        if queue.batches.len() >= QUEUE_MAX {
            self.head.lost += count;
            return;
        }
        queue.batches.push_back(Batch {
            head: self.head,
            records,
        });
        let is_written = std::mem::replace(&mut queue.is_written, true);
        drop(queue);
        self.head.sequence += 1;
        self.head.before += count;
        if !is_written {
            let writer = Arc::clone(&self.writer);
            self.context.host.pool.run(Box::new(move || writer.write()));
        }
    }

    fn is_old(&self) -> bool {
        let now = self.context.host.clock.monotonic();
        !self.records.is_empty() && now >= self.since + BATCH_AGE
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl Filter for Trace {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        self.head.disk_bytes = below.geometry().size_bytes;
        if self.bytes_max < BYTES_MIN {
            return Opening::Failed("this host keeps no traces (--filter-trace)".to_owned());
        }
        if self.bytes_max < self.wanted_bytes {
            let (is, wanted) = (self.bytes_max >> 20, self.wanted_bytes >> 20);
            let note = format!(
                "it keeps {is} MiB, and not {wanted}: this host keeps no more (--filter-trace)"
            );
            self.context.report(&self.name, note);
        }
        Opening::Ready
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let token = request.token;
        let record = self.begun(&request.op);
        let started = below.start(request);
        if let Some(record) = record {
            self.note(token, &started, record);
        }
        started
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        let committed = below.commit();
        if committed.is_err() {
            let failed = |record: &mut Record| record.outcome = Outcome::Failed;
            self.done.iter_mut().for_each(failed);
        }
        self.end_done();
        committed
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        if completions.len() > before {
            let now = self.now();
            for Completion { token, result } in &completions[before..] {
                // What is asked of extents is not recorded.
                if let Some(mut record) = self.under_way.remove(token) {
                    if result.is_err() {
                        record.outcome = Outcome::Failed;
                    }
                    self.end(record, now);
                }
            }
        }
        if self.is_old() {
            self.head.disk_bytes = below.geometry().size_bytes;
            self.hand_over();
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.context.host.clock.monotonic();
        let is_any = !self.records.is_empty();
        is_any.then(|| (self.since + BATCH_AGE).saturating_sub(now))
    }

    fn quiesce(&mut self) -> bool {
        self.hand_over();
        true
    }
}
