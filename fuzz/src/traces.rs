//! Traces: those of a `trace` filter, and those of other programs.

use trace::{Batch, BatchHead, Batches, OpKind, RECORD_BYTES, Trace};

use base::checksum::{crc32c, crc32c_append};

/// The range of the checksum in a batch.
const TRACE_CRC: std::ops::Range<usize> = 60..64;

/// A trace file. Batches are encoded again as they were.
pub fn trace_file(data: &[u8]) {
    let check = |bytes: &[u8]| {
        let mut encoded = Vec::new();
        for batch in Batches::new(bytes) {
            match batch {
                Ok(batch) => encoded.extend(batch.encode()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        assert!(
            bytes.starts_with(&encoded),
            "a batch was read as another one"
        );
        let (traces, broken) = Trace::read([bytes, bytes]);
        assert!(broken.len() <= 2);
        let records: usize = traces.iter().map(|trace| trace.records.len()).sum();
        assert!(records * RECORD_BYTES <= bytes.len());
    };
    check(data);
    if data.len() >= TRACE_CRC.end {
        let mut repaired = data.to_vec();
        let crc = crc32c_append(crc32c(&data[..TRACE_CRC.start]), &data[TRACE_CRC.end..]);
        repaired[TRACE_CRC].copy_from_slice(&crc.to_le_bytes());
        check(&repaired);
    }
}

pub fn trace_seeds() -> Vec<Vec<u8>> {
    let record = |number: u64| trace::Record {
        time_ns: number * 1000,
        latency_ns: 500,
        offset: number * 4096,
        length: 4096,
        kind: [OpKind::Read, OpKind::Write, OpKind::Flush][number as usize % 3],
        is_fua: number.is_multiple_of(2),
        may_punch: false,
        outcome: trace::Outcome::Done,
    };
    let batch = |sequence: u64, count: u64| Batch {
        head: BatchHead {
            began_us: 1,
            trace_id: 2,
            number: sequence,
            records_before: sequence * 3,
            lost: 0,
            disk_bytes: 1 << 30,
        },
        records: (0..count).map(record).collect(),
    };
    let several = [batch(0, 3).encode(), batch(1, 5).encode()].concat();
    vec![batch(0, 1).encode(), batch(0, 0).encode(), several]
}

/// A trace of another program. Its records are within the largest disk, and there is at most one
/// per line.
pub fn foreign_trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match lab::traces::read_foreign(&text) {
        Ok(read) => {
            let records = read.records;
            assert!(!records.is_empty() && records.len() <= text.lines().count());
            assert!(records.is_sorted_by_key(|record| record.time_ns));
            for record in records {
                assert!(record.offset.checked_add(record.length).is_some());
                assert!(record.time_ns.checked_add(record.latency_ns).is_some());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub fn foreign_trace_seeds() -> Vec<Vec<u8>> {
    let second = "fio version 2 iolog\nx add\nx open\nx write 0 4096\nx wait 20 0\nx sync\n";
    let third = "fio version 3 iolog\n0 x add\n7 x trim 512 512\n9 x read 0 1048576\n";
    let blkparse = "8,0 3 4 0.500002135 697 Q W 223490 + 8 [a]\n8,0 3 7 1.2 697 Q FN [b]\n";
    let merged = "8,0 3 4 0.5 7 Q W 0 + 8 [a]\n8,0 3 5 0.6 7 Q W 8 + 8 [a]\n\
                  8,0 3 6 0.7 0 C W 0 + 16 [0]\n8,0 3 7 0.8 7 Q R 64 + 16 [a]\n\
                  8,0 3 8 0.9 0 C R 72 + 8 [5]\n8,0 3 9 1.0 0 C R 64 + 8 [0]\n";
    let issued =
        "8,0 3 4 0.5 7 D W 0 + 8 [a]\n8,0 3 5 0.6 0 C W 0 + 8 [0]\n8,0 3 6 0.7 0 C WS 0 [0]\n";
    [second, third, blkparse, merged, issued]
        .map(|text| text.as_bytes().to_vec())
        .into()
}
