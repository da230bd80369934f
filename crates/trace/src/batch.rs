//! [`Batch`]: a head and records, which are valid only as a whole.

use base::checksum::{crc32c, crc32c_append};
use base::codec::{OutOfBytes, Reader, Writer as _};

use crate::record::{RECORD_BYTES, Record};

/// The first bytes of a batch. [`VERSION`] follows.
const MAGIC: [u8; 6] = *b"SCRTRC";
const VERSION: [u8; 2] = *b"01";

/// The length of a head, in bytes.
pub const HEAD_BYTES: usize = 64;

/// The maximal number of records in a batch.
pub const BATCH_RECORDS_MAX: usize = 4096;

/// The offset of the checksum within the head, in bytes.
const CHECKSUM_AT: usize = 60;

/// What a batch says about its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHead {
    /// The start of the trace, in microseconds since 1970.
    pub began_us: u64,
    /// The random number of the trace.
    pub trace_id: u64,
    /// The number of the batch within the trace, from 0. A gap means that batches are missing.
    pub number: u64,
    /// The number of requests that were recorded in earlier batches of the trace.
    pub records_before: u64,
    /// The number of requests since the start of the trace that were not recorded, because there
    /// was no room for them or the file could not be written.
    pub lost: u64,
    /// The size of the disk, in bytes.
    pub disk_bytes: u64,
}

/// A batch of records of one trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// What the batch says about its trace.
    pub head: BatchHead,
    /// The requests in the order in which they ended, at most [`BATCH_RECORDS_MAX`].
    pub records: Vec<Record>,
}

/// Why bytes are not a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The bytes do not begin as a batch does.
    #[error("there is no batch of a trace at byte {at}")]
    Magic {
        /// The offset of the batch, in bytes.
        at: usize,
    },
    /// The batch has an unknown version.
    #[error("the batch at byte {at} has a version that this program does not know")]
    Version {
        /// The offset of the batch, in bytes.
        at: usize,
    },
    /// The file ends within the batch, which was being written.
    #[error("the batch at byte {at} is incomplete")]
    Torn {
        /// The offset of the batch, in bytes.
        at: usize,
    },
    /// The batch claims more than [`BATCH_RECORDS_MAX`] records.
    #[error("the batch at byte {at} claims {count} records; the maximum is {BATCH_RECORDS_MAX}")]
    Count {
        /// The offset of the batch, in bytes.
        at: usize,
        /// The number of records that it claims.
        count: u32,
    },
    /// The checksum is wrong.
    #[error("the batch at byte {at} is damaged")]
    Checksum {
        /// The offset of the batch, in bytes.
        at: usize,
    },
    /// The checksum is right and a record is invalid.
    #[error("record {number} of the batch at byte {at} is invalid")]
    Record {
        /// The offset of the batch, in bytes.
        at: usize,
        /// The number of the record within the batch, from 0.
        number: usize,
    },
}

impl Batch {
    /// The batch as bytes.
    ///
    /// # Panics
    /// If the batch has more than [`BATCH_RECORDS_MAX`] records.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.records.len() <= BATCH_RECORDS_MAX,
            "a batch has too many records"
        );
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.records.len() * RECORD_BYTES);
        bytes.put_bytes(&MAGIC);
        bytes.put_bytes(&VERSION);
        let head = &self.head;
        for word in [
            head.began_us,
            head.trace_id,
            head.number,
            head.records_before,
            head.lost,
            head.disk_bytes,
        ] {
            bytes.put_u64(word);
        }
        bytes.put_u32(self.records.len() as u32);
        bytes.put_u32(0);
        self.records
            .iter()
            .for_each(|record| record.encode(&mut bytes));
        let checksum = checksum(&bytes);
        bytes[CHECKSUM_AT..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// The checksum of a batch, which does not cover its own field.
fn checksum(bytes: &[u8]) -> u32 {
    let (head, rest) = bytes.split_at(CHECKSUM_AT);
    crc32c_append(crc32c(head), &rest[4..])
}

/// An iterator over the batches of a file, up to its end or the first error.
pub struct Batches<'a> {
    bytes: &'a [u8],
    at: usize,
    has_ended: bool,
}

impl<'a> Batches<'a> {
    /// The batches of a file's content.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            has_ended: false,
        }
    }

    fn parse(&mut self) -> Result<Batch, TraceError> {
        let at = self.at;
        let rest = &self.bytes[at..];
        let magic_bytes = rest.len().min(MAGIC.len());
        if rest[..magic_bytes] != MAGIC[..magic_bytes] {
            return Err(TraceError::Magic { at });
        }
        let torn = |_: OutOfBytes| TraceError::Torn { at };
        let mut reader = Reader::new(rest);
        reader.bytes(MAGIC.len()).map_err(torn)?;
        if reader.array::<2>().map_err(torn)? != VERSION {
            return Err(TraceError::Version { at });
        }
        let mut word = || reader.u64().map_err(torn);
        let head = BatchHead {
            began_us: word()?,
            trace_id: word()?,
            number: word()?,
            records_before: word()?,
            lost: word()?,
            disk_bytes: word()?,
        };
        let count = reader.u32().map_err(torn)?;
        if count as usize > BATCH_RECORDS_MAX {
            return Err(TraceError::Count { at, count });
        }
        let stored = reader.u32().map_err(torn)?;
        let length = HEAD_BYTES + count as usize * RECORD_BYTES;
        let whole = rest.get(..length).ok_or(TraceError::Torn { at })?;
        if checksum(whole) != stored {
            return Err(TraceError::Checksum { at });
        }
        let record = |number| {
            let read = Record::decode(&mut reader).map_err(torn)?;
            read.ok_or(TraceError::Record { at, number })
        };
        let records = (0..count as usize).map(record).collect::<Result<_, _>>()?;
        self.at += length;
        Ok(Batch { head, records })
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended || self.at == self.bytes.len() {
            return None;
        }
        let parsed = self.parse();
        self.has_ended = parsed.is_err();
        Some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{OpKind, Outcome};

    fn record() -> impl Strategy<Value = Record> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
        let words = (0..6_u8, any::<bool>(), any::<bool>(), any::<bool>());
        (numbers, words).prop_map(|((time_ns, latency_ns, offset, length), words)| Record {
            time_ns,
            latency_ns,
            offset: offset.into(),
            length: length.into(),
            kind: [
                OpKind::Read,
                OpKind::Write,
                OpKind::Flush,
                OpKind::Trim,
                OpKind::WriteZeroes,
                OpKind::Prefetch,
            ][usize::from(words.0)],
            is_fua: words.1,
            may_punch: words.2,
            outcome: if words.3 {
                Outcome::Done
            } else {
                Outcome::Failed
            },
        })
    }

    fn batch(records: Vec<Record>) -> Batch {
        let head = BatchHead {
            began_us: 1,
            trace_id: 2,
            number: 3,
            records_before: 4,
            lost: 5,
            disk_bytes: 6,
        };
        Batch { head, records }
    }

    proptest! {
        #[test]
        fn batches_survive_encoding_and_decoding(
            first in proptest::collection::vec(record(), 0..20),
            second in proptest::collection::vec(record(), 0..20),
        ) {
            let batches = [batch(first), batch(second)];
            let bytes = [batches[0].encode(), batches[1].encode()].concat();
            let read: Result<Vec<Batch>, TraceError> = Batches::new(&bytes).collect();
            prop_assert_eq!(read, Ok(batches.to_vec()));
        }

        #[test]
        fn reading_arbitrary_bytes_ends(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(Batches::new(&bytes).count() <= 1 + bytes.len() / HEAD_BYTES);
        }
    }

    fn some() -> Batch {
        batch(vec![
            Record {
                time_ns: 7,
                latency_ns: 8,
                offset: 4096,
                length: 512,
                kind: OpKind::Write,
                is_fua: true,
                may_punch: false,
                outcome: Outcome::Done,
            };
            2
        ])
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = some().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut batches = Batches::new(&bytes);
            assert!(batches.next().expect("something").is_err(), "bit {bit}");
            assert_eq!(batches.next(), None, "nothing is read after an error");
        }
    }

    #[test]
    fn a_torn_end_is_an_error_after_the_batches_before_it() {
        let bytes = [some().encode(), some().encode()].concat();
        let whole = bytes.len() / 2;
        for length in whole + 1..bytes.len() {
            let read: Vec<_> = Batches::new(&bytes[..length]).collect();
            assert_eq!(read, [Ok(some()), Err(TraceError::Torn { at: whole })]);
        }
    }

    #[test]
    fn an_invalid_record_with_a_right_checksum_is_refused() {
        for (byte, value) in [(32, 6), (33, 4), (34, 2), (39, 1), (23, 255)] {
            let mut bytes = some().encode();
            bytes[HEAD_BYTES + byte] = value;
            if byte == 23 {
                bytes[HEAD_BYTES + 16..HEAD_BYTES + 24].fill(255);
            }
            let sum = checksum(&bytes);
            bytes[CHECKSUM_AT..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
            let read = Batches::new(&bytes).next();
            let expected = TraceError::Record { at: 0, number: 0 };
            assert_eq!(read, Some(Err(expected)), "byte {byte}");
        }
    }

    /// Version 1, byte by byte: what is written today must stay readable. The bytes were computed
    /// without this code, from docs/internals/filter-formats.md.
    #[rustfmt::skip]
    const FIXTURE: [u8; 144] = [
        0x53, 0x43, 0x52, 0x54, 0x52, 0x43, 0x30, 0x31,
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
        0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00,
        0x02, 0x00, 0x00, 0x00, 0x77, 0xd2, 0xf0, 0xce,
        0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x00, 0x00,
        0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x04, 0x02, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn the_fixture_of_version_1_is_read_and_written() {
        let batch = Batch {
            head: BatchHead {
                began_us: 0x0102_0304_0506_0708,
                trace_id: 0x1112_1314_1516_1718,
                number: 3,
                records_before: 4,
                lost: 5,
                disk_bytes: 1 << 30,
            },
            records: vec![
                some().records[0],
                Record {
                    time_ns: 0x0a0b_0c0d_0e0f,
                    latency_ns: 9,
                    offset: 1 << 20,
                    length: 8192,
                    kind: OpKind::WriteZeroes,
                    is_fua: false,
                    may_punch: true,
                    outcome: Outcome::Failed,
                },
            ],
        };
        assert_eq!(batch.encode(), FIXTURE);
        let read: Vec<_> = Batches::new(&FIXTURE).collect();
        assert_eq!(read, [Ok(batch)]);
    }

    #[test]
    fn another_version_is_refused_and_not_called_damage() {
        let mut newer = FIXTURE;
        newer[7] = b'2';
        let read = Batches::new(&newer).next();
        assert_eq!(read, Some(Err(TraceError::Version { at: 0 })));
    }
}
