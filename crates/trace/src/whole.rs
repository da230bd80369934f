//! [`Trace`]: a trace, assembled from the batches in one or several files.

use crate::{Batch, BatchHead, Batches, Record, TraceError};

/// One trace, which one run of a filter has recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The start of the trace, in microseconds since 1970.
    pub began_us: u64,
    /// The last known size of the disk, in bytes.
    pub disk_bytes: u64,
    /// The requests in the order in which they began.
    pub records: Vec<Record>,
    /// The number of requests that were recorded and whose files are removed or damaged.
    pub removed: u64,
    /// The number of requests that were never recorded.
    pub lost: u64,
}

impl Trace {
    /// Reads the traces in these files, in any order. Returns the traces, the oldest first, and
    /// for each file that does not end in a batch its number and the error.
    #[must_use]
    pub fn read<'a>(
        files: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<Self>, Vec<(usize, TraceError)>) {
        let mut batches: Vec<Batch> = Vec::new();
        let mut broken = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            for batch in Batches::new(file) {
                match batch {
                    Ok(batch) => batches.push(batch),
                    Err(error) => broken.push((number, error)),
                }
            }
        }
        let of = |head: &BatchHead| (head.began_us, head.trace_id);
        batches.sort_by_key(|batch| (of(&batch.head), batch.head.number));
        // The same file may be given twice.
        batches.dedup_by_key(|batch| (of(&batch.head), batch.head.number));
        let traces = batches.chunk_by(|one, other| of(&one.head) == of(&other.head));
        (traces.map(Self::of_batches).collect(), broken)
    }

    /// The number of requests that the trace is missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.removed.saturating_add(self.lost)
    }

    /// A trace from its batches, ordered by sequence. There is at least one.
    fn of_batches(batches: &[Batch]) -> Self {
        let records = batches
            .iter()
            .flat_map(|batch| batch.records.iter().copied());
        let mut records: Vec<Record> = records.collect();
        records.sort_by_key(|record| record.time_ns);
        let heads = batches.iter().map(|batch| batch.head);
        let last = batches.last();
        let recorded = last.map_or(0, |last| {
            last.head
                .records_before
                .saturating_add(last.records.len() as u64)
        });
        Self {
            began_us: batches[0].head.began_us,
            disk_bytes: last.map_or(0, |last| last.head.disk_bytes),
            removed: recorded.saturating_sub(records.len() as u64),
            lost: heads.map(|head| head.lost).max().unwrap_or(0),
            records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpKind, Outcome};

    fn batch(trace: u64, sequence: u64, times: &[u64]) -> Vec<u8> {
        let record = |time_ns: &u64| Record {
            time_ns: *time_ns,
            latency_ns: 1,
            offset: 0,
            length: 512,
            kind: OpKind::Read,
            is_fua: false,
            may_punch: false,
            outcome: Outcome::Done,
        };
        Batch {
            head: BatchHead {
                began_us: 100 - trace,
                trace_id: trace,
                number: sequence,
                records_before: sequence * 2,
                lost: sequence,
                disk_bytes: 1 << 20,
            },
            records: times.iter().map(record).collect(),
        }
        .encode()
    }

    /// A hostile file may claim any number of missing requests.
    #[test]
    fn counts_of_missing_requests_do_not_overflow() {
        let head = BatchHead {
            began_us: 1,
            trace_id: 1,
            number: 1,
            records_before: u64::MAX,
            lost: u64::MAX,
            disk_bytes: 1,
        };
        let records = Vec::new();
        let file = Batch { head, records }.encode();
        let (traces, _) = Trace::read([&*file]);
        assert_eq!(traces[0].missing(), u64::MAX);
    }

    #[test]
    fn files_are_assembled_in_any_order_and_missing_requests_are_counted() {
        let newest = [batch(7, 2, &[40, 30]), vec![1, 2, 3]].concat();
        let (other, oldest) = (batch(8, 0, &[5, 6]), batch(7, 0, &[10, 20]));
        let files = [&*newest, &*oldest, &*other, &*oldest];
        let (traces, broken) = Trace::read(files);
        let times = |trace: &Trace| -> Vec<u64> {
            trace.records.iter().map(|record| record.time_ns).collect()
        };
        assert_eq!(traces.len(), 2);
        assert_eq!(times(&traces[0]), [5, 6], "it began first");
        assert_eq!(times(&traces[1]), [10, 20, 30, 40]);
        assert_eq!((traces[0].removed, traces[0].lost), (0, 0));
        assert_eq!((traces[1].removed, traces[1].lost), (2, 2));
        let at = newest.len() - 3;
        assert_eq!(broken, [(0, TraceError::Magic { at })]);
    }
}
