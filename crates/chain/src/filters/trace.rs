//! `trace`: records every request that passes (docs/internals/filter-formats.md).
//!
//! ```text
//!  request ─▶ started ─▶ completed ─▶ batch ── full or a second old ─▶ queue ─▶ job ─▶ file
//!             (in the disk's thread, which never blocks)              └ full: lost and counted
//! ```
//!
//! The filter forwards tokens unchanged. It costs one reading of the clock per request and per loop
//! turn, and 40 bytes per request.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ::trace::{Batch, BatchHead, Outcome, Record};
use base::{BlockDevice, Completion, Durability, IoError, Op, OpKind, Request, Started, Token};
use chain_policy::TraceConfig;
use parking_lot::Mutex;
use world::RollingFile;

use crate::{Filter, FilterContext, Opening, StateFolder};

/// The largest number of records in a batch.
const BATCH_RECORDS: usize = 1024;

/// The largest age of a batch when it is written.
const BATCH_AGE: Duration = Duration::from_secs(1);

/// The largest number of batches that wait to be written: 5 MiB.
const QUEUE_MAX: usize = 128;

/// The number of older files of a trace besides the newest one.
const OLD_FILES: u32 = 7;

/// The suffix of the name of a trace's file. In the names of older files a number follows.
pub const TRACE_SUFFIX: &str = ".trace";

/// With a smaller limit on disk space the filter refuses to open, in bytes.
const BYTES_MIN: u64 = 1 << 20;

/// The batches that wait for the job that writes.
#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    /// A job is running or scheduled.
    has_job: bool,
    /// The last write failed, which was logged.
    is_failing: bool,
}

/// The queue, and the file, which only the job uses.
struct Writer {
    queue: Mutex<Queue>,
    file: Mutex<RollingFile>,
}

impl Writer {
    /// Writes batches until the queue is empty.
    fn write(&self) {
        let mut file = self.file.lock();
        loop {
            let batch = {
                let mut queue = self.queue.lock();
                let next = queue.batches.pop_front();
                queue.has_job = next.is_some();
                next
            };
            let Some(batch) = batch else { return };
            // A reader notices a missing batch by its sequence.
            let written = file.append(&batch.encode());
            let mut queue = self.queue.lock();
            if let Err(error) = &written
                && !queue.is_failing
            {
                tracing::warn!(%error, "filter cannot write its trace");
            }
            queue.is_failing = written.is_err();
        }
    }
}

/// The `trace` filter of a chain.
pub struct Trace {
    name: Arc<str>,
    context: FilterContext,
    writer: Arc<Writer>,
    /// The largest size of the trace that this host allows, in bytes.
    bytes_max: u64,
    /// The size that the policy requests, in bytes.
    requested_bytes: u64,
    /// The head of the next batch.
    head: BatchHead,
    /// The start of the trace, by the monotonic clock.
    began: Duration,
    /// Pending requests.
    pending: HashMap<Token, Record>,
    /// Requests that were answered at once, and complete when their batch ends.
    done: Vec<Record>,
    /// The records of the next batch.
    records: Vec<Record>,
    /// The time of the first of these records, by the monotonic clock.
    since: Duration,
}

impl Trace {
    /// A filter whose files are in `state`.
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
        // The job of an earlier filter may still write to the newest file.
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
            requested_bytes: config.bytes_max,
            head: BatchHead {
                began_us: wall_ms.saturating_mul(1000),
                trace_id: u64::from_le_bytes(trace),
                number: 0,
                records_before: 0,
                lost: 0,
                disk_bytes: 0,
            },
            began: context.host.clock.monotonic(),
            context,
            pending: HashMap::new(),
            done: Vec::new(),
            records: Vec::new(),
            since: Duration::ZERO,
        }
    }

    fn now(&self) -> u64 {
        let since = self.context.host.clock.monotonic() - self.began;
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records how a request was started.
    fn note(&mut self, token: Token, started: &Started, mut record: Record) {
        match started {
            Started::Pending => {
                self.pending.insert(token, record);
            }
            Started::Done => self.done.push(record),
            Started::Failed(_) => {
                record.outcome = Outcome::Failed;
                self.done.push(record);
            }
            // The request is retried, and recorded then.
            Started::Busy => {}
        }
    }

    /// The record of a request that starts now; `None` if its kind is not recorded.
    fn record_of(&self, op: &Op<'_>) -> Option<Record> {
        let kind = op.kind();
        if kind == OpKind::Extents {
            return None;
        }
        let range = op.range();
        let mut record = Record::plain(kind, self.now(), range);
        record.is_fua = op.durability() == Durability::Durable;
        record.may_punch = matches!(op, Op::WriteZeroes { mode, .. } if mode.may_punch);
        Some(record)
    }

    /// Completes the requests that were answered at once.
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
            self.queue_batch();
        }
    }

    /// Moves the batch to the queue; if that is full, the batch is lost.
    fn queue_batch(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::replace(&mut self.records, Vec::with_capacity(BATCH_RECORDS));
        let count = records.len() as u64;
        let mut queue = self.writer.queue.lock();
        if queue.batches.len() >= QUEUE_MAX {
            self.head.lost += count;
            return;
        }
        queue.batches.push_back(Batch {
            head: self.head,
            records,
        });
        let has_job = std::mem::replace(&mut queue.has_job, true);
        drop(queue);
        self.head.number += 1;
        self.head.records_before += count;
        if !has_job {
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
        self.queue_batch();
    }
}

impl Filter for Trace {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        self.head.disk_bytes = below.geometry().size_bytes;
        if self.bytes_max < BYTES_MIN {
            return Opening::Failed(
                "this host stores no traces (--filter-trace)"
                    .to_owned()
                    .into(),
            );
        }
        if self.bytes_max < self.requested_bytes {
            let (limit, requested) = (self.bytes_max >> 20, self.requested_bytes >> 20);
            let message = format!(
                "the trace is limited to {limit} MiB instead of {requested} MiB by this host \
                 (--filter-trace)"
            );
            self.context.report(&self.name, message);
        }
        Opening::Ready
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let token = request.token;
        let record = self.record_of(&request.op);
        let started = below.start(request);
        if let Some(record) = record {
            self.note(token, &started, record);
        }
        started
    }

    fn end_batch(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        let ended = below.end_batch();
        if ended.is_err() {
            let failed = |record: &mut Record| record.outcome = Outcome::Failed;
            self.done.iter_mut().for_each(failed);
        }
        self.end_done();
        ended
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        if completions.len() > before {
            let now = self.now();
            for Completion { token, result } in &completions[before..] {
                // Requests for extents have no record.
                if let Some(mut record) = self.pending.remove(token) {
                    if result.is_err() {
                        record.outcome = Outcome::Failed;
                    }
                    self.end(record, now);
                }
            }
        }
        if self.is_old() {
            self.head.disk_bytes = below.geometry().size_bytes;
            self.queue_batch();
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.context.host.clock.monotonic();
        let has_records = !self.records.is_empty();
        has_records.then(|| (self.since + BATCH_AGE).saturating_sub(now))
    }

    fn quiesce(&mut self) -> bool {
        self.queue_batch();
        true
    }
}
