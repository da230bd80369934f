//! The formats of the files in `freed/`: the records of its logs, and the run time. Their names are
//! in [`name`](super::name).

use base::codec::{OutOfBytes, Reader, Writer};
use base::{SegmentId, checksum};
use unit::format::{FormatError, check, wrong};
use world::Millis;

use super::name::{RUN_TIME_US_MAX, Timestamp};
use crate::runs::runs;

/// The version of these formats that this program reads and writes.
pub(super) const VERSION: u16 = 1;

/// The first bytes of a log.
const LOG_MAGIC: &[u8; 8] = b"screelog";

/// Length of a log's header in bytes.
pub(super) const LOG_HEADER_BYTES: usize = 16;

/// The first bytes of the file with the run time.
const RUN_TIME_MAGIC: &[u8; 8] = b"screerun";

/// Length of a record without its runs, in bytes.
pub(super) const RECORD_BYTES: usize = 40;

/// Maximum number of runs in a record: every other slot of the largest segment.
const RUNS_MAX: usize = 1 << 15;

/// The header of a log. Only its version may ever change.
pub(super) struct LogHeader;

impl LogHeader {
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LOG_HEADER_BYTES);
        bytes.put_bytes(LOG_MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(0);
        bytes.put_u32(checksum::crc32c(&bytes));
        bytes
    }

    /// Checks the header of a log, and returns the bytes of its records.
    pub fn parse(log: &[u8]) -> Result<&[u8], FormatError> {
        let mut reader = Reader::new(log);
        if reader.bytes(LOG_MAGIC.len())? != LOG_MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u16()?;
        let reserved = reader.u16()?;
        check(
            reader.u32()?,
            checksum::crc32c(&log[..LOG_HEADER_BYTES - 4]),
        )?;
        check_version(version)?;
        if reserved != 0 {
            return Err(wrong("a reserved field", reserved));
        }
        Ok(&log[LOG_HEADER_BYTES..])
    }
}

fn check_version(found: u16) -> Result<(), FormatError> {
    match found {
        VERSION => Ok(()),
        _ => Err(FormatError::Version {
            found,
            known: VERSION,
        }),
    }
}

/// Slots of one segment that were freed at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub freed_at: Timestamp,
    pub segment: SegmentId,
    pub slot_bytes: u32,
    /// First and last slot of each run, in order and not adjacent.
    pub runs: Vec<(u16, u16)>,
}

impl Record {
    /// The same record with other slots, which are sorted.
    pub fn with_slots(mut self, slots: &[u32]) -> Self {
        let runs = runs(slots).map(|run| (run.start as u16, (run.end - 1) as u16));
        self.runs = runs.collect();
        self
    }

    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let runs = self.runs.iter();
        runs.flat_map(|(first, last)| u32::from(*first)..=u32::from(*last))
    }

    /// Number of slots that it names.
    pub fn count(&self) -> u64 {
        let runs = self.runs.iter();
        runs.map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Room that its slots take, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.count() * u64::from(self.slot_bytes)
    }

    /// Length of the encoded record in bytes.
    pub fn encoded_bytes(&self) -> u64 {
        (RECORD_BYTES + 4 * self.runs.len()) as u64
    }

    pub fn encode(&self) -> Vec<u8> {
        let length = RECORD_BYTES + 4 * self.runs.len();
        let mut rest = Vec::with_capacity(length);
        rest.put_u64(self.freed_at.run_time_us);
        rest.put_u64(self.freed_at.wall.0.cast_unsigned());
        rest.put_u64(self.segment.bits());
        rest.put_u32(self.slot_bytes);
        rest.put_u32(self.runs.len() as u32);
        for (first, last) in &self.runs {
            rest.put_u16(*first);
            rest.put_u16(*last);
        }
        let mut bytes = Vec::with_capacity(length);
        bytes.put_u32(length as u32);
        bytes.put_u32(crc_of(length as u32, &rest));
        bytes.put_bytes(&rest);
        bytes
    }

    /// Reads the record at the front of `bytes`, and its length.
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let length = Reader::new(bytes).u32().ok()?;
        let whole = bytes.get(..length as usize)?;
        let record = Self::parse_whole(length, whole).ok()??;
        Some((record, whole.len()))
    }

    fn parse_whole(length: u32, whole: &[u8]) -> Result<Option<Self>, OutOfBytes> {
        let mut reader = Reader::new(whole);
        let _length = reader.u32()?;
        let crc = reader.u32()?;
        let is_whole = crc == crc_of(length, &whole[8..]);
        let freed_at = Timestamp {
            run_time_us: reader.u64()?,
            wall: Millis(reader.u64()?.cast_signed()),
        };
        let segment = SegmentId::from_bits(reader.u64()?);
        let slot_bytes = reader.u32()?;
        let count = reader.u32()? as usize;
        let is_whole = is_whole && freed_at.run_time_us <= RUN_TIME_US_MAX;
        if !is_whole || count > RUNS_MAX || reader.remaining() != 4 * count {
            return Ok(None);
        }
        let mut runs = Vec::with_capacity(count);
        let mut next = 0;
        for _ in 0..count {
            let (first, last) = (reader.u16()?, reader.u16()?);
            if u32::from(first) < next || last < first {
                return Ok(None);
            }
            next = u32::from(last) + 2;
            runs.push((first, last));
        }
        Ok(segment.map(|segment| Self {
            freed_at,
            segment,
            slot_bytes,
            runs,
        }))
    }

    /// The records of a log, up to the first damaged one. After a crash that one was not durable
    /// yet. If the disk damaged it, records behind it are not read; the walk after a start logs
    /// the slots that they name again.
    pub fn all(mut bytes: &[u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (record, length) = Self::parse(bytes)?;
            bytes = &bytes[length..];
            Some(record)
        })
    }
}

fn crc_of(length: u32, rest: &[u8]) -> u32 {
    checksum::crc32c_append(checksum::crc32c(&length.to_le_bytes()), rest)
}

/// The saved run time of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RunTime {
    /// Run time in microseconds.
    pub run_time_us: u64,
    /// Wall-clock time at which the newest that was reclaimed was freed; 0 if nothing was.
    pub newest_reclaimed: i64,
}

/// Length of the file with the run time in bytes.
pub(super) const RUN_TIME_BYTES: usize = 40;

impl RunTime {
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RUN_TIME_BYTES);
        bytes.put_bytes(RUN_TIME_MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_bytes(&[0; 6]);
        bytes.put_u64(self.run_time_us);
        bytes.put_u64(self.newest_reclaimed.cast_unsigned());
        bytes.put_u32(0);
        bytes.put_u32(checksum::crc32c(&bytes));
        bytes
    }

    pub fn parse(bytes: &[u8; RUN_TIME_BYTES]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(RUN_TIME_MAGIC.len())? != RUN_TIME_MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u16()?;
        let reserved: [u8; 6] = reader.array()?;
        let saved = Self {
            run_time_us: reader.u64()?,
            newest_reclaimed: reader.u64()?.cast_signed(),
        };
        let reserved_end = reader.u32()?;
        check(
            reader.u32()?,
            checksum::crc32c(&bytes[..RUN_TIME_BYTES - 4]),
        )?;
        check_version(version)?;
        let mut reserved = reserved.into_iter().map(u32::from).chain([reserved_end]);
        if let Some(value) = reserved.find(|value| *value != 0) {
            return Err(wrong("a reserved field", value));
        }
        if saved.run_time_us > RUN_TIME_US_MAX {
            return Err(wrong("the run time", saved.run_time_us));
        }
        Ok(saved)
    }
}

#[cfg(test)]
mod tests {
    use testkit::damage::{assert_flipped_bits_are_detected, of_version_2};

    use super::*;

    const FREED_AT: Timestamp = Timestamp {
        run_time_us: 0x0123_4567_89ab,
        wall: Millis(-5),
    };

    fn record(runs: &[(u16, u16)]) -> Record {
        Record {
            freed_at: FREED_AT,
            segment: SegmentId::from_bits(77).expect("48 bits"),
            slot_bytes: 4096,
            runs: runs.to_vec(),
        }
    }

    #[test]
    fn records_round_trip_one_after_another_up_to_the_first_that_is_torn() {
        let records = [record(&[]), record(&[(0, 0), (2, 9), (65_535, 65_535)])];
        let bytes = records.each_ref().map(Record::encode).concat();
        assert_eq!(Record::all(&bytes).collect::<Vec<_>>(), records);
        assert_eq!(records[1].content_bytes(), 10 * 4096);
        for length in 0..bytes.len() {
            let found = Record::all(&bytes[..length]).count();
            assert_eq!(found, usize::from(length >= RECORD_BYTES), "{length}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_detected() {
        assert_flipped_bits_are_detected(&record(&[(3, 9)]).encode(), |bytes| {
            Record::all(bytes).next().ok_or("no record")
        });
    }

    #[test]
    fn adjacent_or_unordered_runs_are_refused() {
        for runs in [&[(3, 2)][..], &[(5, 6), (7, 8)], &[(5, 6), (1, 2)]] {
            assert_eq!(Record::all(&record(runs).encode()).count(), 0, "{runs:?}");
        }
        let slots = [1, 2, 3, 7, 9, 10];
        let of_slots = record(&[]).with_slots(&slots);
        assert_eq!(of_slots.runs, [(1, 3), (7, 7), (9, 10)]);
        assert_eq!(of_slots.slots().collect::<Vec<_>>(), slots);
    }

    #[test]
    fn the_run_time_round_trips_and_every_flipped_bit_is_detected() {
        let saved = RunTime {
            run_time_us: 9,
            newest_reclaimed: -1,
        };
        let bytes: [u8; RUN_TIME_BYTES] = saved.encode().try_into().expect("40 bytes");
        assert_eq!(RunTime::parse(&bytes), Ok(saved));
        assert_flipped_bits_are_detected(&bytes, |bytes| {
            RunTime::parse(bytes.first_chunk().expect("40 bytes"))
        });
    }

    #[test]
    fn every_flipped_bit_of_a_logs_header_is_detected() {
        let bytes = LogHeader.encode();
        assert_eq!(LogHeader::parse(&bytes), Ok(&[][..]));
        assert_eq!(bytes.len(), LOG_HEADER_BYTES);
        assert_flipped_bits_are_detected(&bytes, |bytes| LogHeader::parse(bytes).map(|_| ()));
        for length in 0..LOG_HEADER_BYTES {
            let short = LogHeader::parse(&bytes[..length]);
            assert!(matches!(short, Err(FormatError::Short(_))), "{length}");
        }
    }

    #[test]
    fn a_newer_version_is_not_reported_as_damage() {
        let newer = Err(FormatError::Version { found: 2, known: 1 });
        let log = of_version_2(&LogHeader.encode());
        assert_eq!(
            LogHeader::parse(&log).map(|_| ()),
            newer.clone().map(|_: ()| ())
        );
        let saved = of_version_2(&RunTime::default().encode());
        let saved: [u8; RUN_TIME_BYTES] = saved.try_into().expect("40 bytes");
        assert_eq!(RunTime::parse(&saved).map(|_| ()), newer);
    }

    /// Version 1 of a log and of the run time, byte by byte: what is written today must stay
    /// readable.
    #[test]
    fn the_fixtures_of_version_1_are_read_and_written() {
        #[rustfmt::skip]
        let fixture: [u8; 60] = [
            0x73, 0x63, 0x72, 0x65, 0x65, 0x6c, 0x6f, 0x67, 0x01, 0x00, 0x00, 0x00,
            0x80, 0x5b, 0xf2, 0x88,
            0x2c, 0x00, 0x00, 0x00, 0x16, 0xf5, 0x05, 0xb5, 0x23, 0x01, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00,
            0x01, 0x00, 0x00, 0x00, 0x03, 0x00, 0x09, 0x00,
        ];
        let freed_at = Timestamp {
            run_time_us: 0x123,
            wall: Millis(-5),
        };
        let record = Record {
            freed_at,
            ..record(&[(3, 9)])
        };
        assert_eq!([LogHeader.encode(), record.encode()].concat(), fixture);
        let records = LogHeader::parse(&fixture).expect("a log");
        assert_eq!(Record::all(records).collect::<Vec<_>>(), [record]);
        #[rustfmt::skip]
        let fixture: [u8; 40] = [
            0x73, 0x63, 0x72, 0x65, 0x65, 0x72, 0x75, 0x6e, 0x01, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x23, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00,
            0xe1, 0xf1, 0x2e, 0x9c,
        ];
        let saved = RunTime {
            run_time_us: 0x123,
            newest_reclaimed: -5,
        };
        assert_eq!(saved.encode(), fixture);
        assert_eq!(RunTime::parse(&fixture), Ok(saved));
    }
}
