//! What lies in `freed/`: names, and the records of its logs.
//!
//! ```text
//!  freed/
//!    log-mmmmmmmmmmmmmmmm            slots that were freed, from this moment on
//!    ccc-sssssssss.mmmm….wwww…       a segment that was deleted or replaced then
//!    ccc-sssssssss.mmmm….wwww….pppp…  one that a restore has put another in place of
//!    draft-…                         a copy that is not whole yet
//!    running                         for how long the unit has run
//!    restore                         a restore that is not through
//! ```
//!
//! A moment is a time that the unit has run, in microseconds; no two are equal.
//! Beside it stands the wall clock's time, for people.

use base::codec::{OutOfBytes, Reader, Writer};
use base::{SegmentId, checksum};
use world::Millis;

use crate::place::segment_of;
use crate::runs::runs;

/// Where all of it lies, in the unit's folder.
pub(super) const FOLDER: &str = "freed";

/// For how long the unit has run.
pub(super) const RUNNING: &str = "running";

/// What a restore is about to do.
pub(super) const RESTORE: &str = "restore";

/// What names of files begin with that are not whole.
pub(super) const DRAFT: &str = "draft-";

const LOG: &str = "log-";

/// Length of a record without its runs, in bytes.
pub(super) const RECORD_BYTES: usize = 40;

/// Runs of slots in a record at most: every other slot of the largest segment.
const RUNS_MAX: usize = 1 << 15;

/// When something was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct When {
    /// By how long the unit had run, in microseconds.
    pub moment: u64,
    /// By the wall clock.
    pub wall: Millis,
}

/// A segment that was set aside, as its file's name says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsideName {
    pub segment: SegmentId,
    pub when: When,
    /// When the one was freed, by the wall clock, that a restore has put in its place:
    /// whoever means what was freed since then or earlier means that one.
    pub passed: Option<Millis>,
}

impl AsideName {
    pub fn parse(name: &str) -> Option<Self> {
        let wall = |text| Some(Millis(number(text)?.cast_signed()));
        let mut parts = name.split('.');
        let segment = segment_of(parts.next()?)?;
        let when = When {
            moment: moment(parts.next()?)?,
            wall: wall(parts.next()?)?,
        };
        let passed = match parts.next() {
            Some(passed) => Some(wall(passed)?),
            None => None,
        };
        parts.next().is_none().then_some(Self {
            segment,
            when,
            passed,
        })
    }
}

impl std::fmt::Display for AsideName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segment, when, .. } = self;
        let (moment, wall) = (when.moment, when.wall.0.cast_unsigned());
        write!(formatter, "{segment}.{moment:016x}.{wall:016x}")?;
        match self.passed {
            Some(passed) => write!(formatter, ".{:016x}", passed.0.cast_unsigned()),
            None => Ok(()),
        }
    }
}

/// The name of the log that was begun at `moment`.
pub(super) fn log_name(moment: u64) -> String {
    format!("{LOG}{moment:016x}")
}

/// When the log of this name was begun, if it is one's.
pub(super) fn log_of(name: &str) -> Option<u64> {
    moment(name.strip_prefix(LOG)?)
}

/// A moment beyond this is none: some 140,000 years.
const MOMENT_MAX: u64 = 1 << 62;

fn moment(text: &str) -> Option<u64> {
    number(text).filter(|moment| *moment <= MOMENT_MAX)
}

fn number(text: &str) -> Option<u64> {
    let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_number = text.len() == 16 && text.bytes().all(is_hex);
    is_number.then(|| u64::from_str_radix(text, 16).ok())?
}

/// Slots of one segment that were freed at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub when: When,
    pub segment: SegmentId,
    pub slot_bytes: u32,
    /// In order, not touching: first and last slot.
    pub runs: Vec<(u16, u16)>,
}

impl Record {
    /// The same of other slots, which are sorted.
    pub fn with_slots(mut self, slots: &[u32]) -> Self {
        let runs = runs(slots).map(|run| (run.start as u16, (run.end - 1) as u16));
        self.runs = runs.collect();
        self
    }

    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let runs = self.runs.iter();
        runs.flat_map(|(first, last)| u32::from(*first)..=u32::from(*last))
    }

    /// How many slots it names.
    pub fn count(&self) -> u64 {
        let runs = self.runs.iter();
        runs.map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// The room that its slots take, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.count() * u64::from(self.slot_bytes)
    }

    pub fn encode(&self) -> Vec<u8> {
        let length = RECORD_BYTES + 4 * self.runs.len();
        let mut rest = Vec::with_capacity(length);
        rest.put_u64(self.when.moment);
        rest.put_u64(self.when.wall.0.cast_unsigned());
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

    /// Reads the record at the front of `bytes`, and how long it is.
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
        let when = When {
            moment: reader.u64()?,
            wall: Millis(reader.u64()?.cast_signed()),
        };
        let segment = SegmentId::from_bits(reader.u64()?);
        let slot_bytes = reader.u32()?;
        let count = reader.u32()? as usize;
        let is_whole = is_whole && when.moment <= MOMENT_MAX;
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
            when,
            segment,
            slot_bytes,
            runs,
        }))
    }

    /// The records in a log, up to the first that is not whole: what follows that
    /// was never durable.
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

/// What `running` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Running {
    /// For how long the unit has run, in microseconds.
    pub moment: u64,
    /// By the wall clock, when the newest was freed of what was given back;
    /// zero if nothing was.
    pub given_back: i64,
}

/// Length of `running` in bytes.
pub(super) const RUNNING_BYTES: usize = 20;

impl Running {
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RUNNING_BYTES);
        bytes.put_u64(self.moment);
        bytes.put_u64(self.given_back.cast_unsigned());
        bytes.put_u32(checksum::crc32c(&bytes));
        bytes
    }

    pub fn parse(bytes: &[u8; RUNNING_BYTES]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let running = Self {
            moment: reader.u64().ok()?,
            given_back: reader.u64().ok()?.cast_signed(),
        };
        let crc = checksum::crc32c(&bytes[..RUNNING_BYTES - 4]);
        let is_whole = reader.u32().ok()? == crc && running.moment <= MOMENT_MAX;
        is_whole.then_some(running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEN: When = When {
        moment: 0x0123_4567_89ab,
        wall: Millis(-5),
    };

    fn record(runs: &[(u16, u16)]) -> Record {
        Record {
            when: WHEN,
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
    fn every_flipped_bit_of_a_record_is_found() {
        let bytes = record(&[(3, 9)]).encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::all(&damaged).count(), 0, "bit {bit}");
        }
    }

    #[test]
    fn runs_that_touch_or_go_back_are_none() {
        for runs in [&[(3, 2)][..], &[(5, 6), (7, 8)], &[(5, 6), (1, 2)]] {
            assert_eq!(Record::all(&record(runs).encode()).count(), 0, "{runs:?}");
        }
        let slots = [1, 2, 3, 7, 9, 10];
        let of_slots = record(&[]).with_slots(&slots);
        assert_eq!(of_slots.runs, [(1, 3), (7, 7), (9, 10)]);
        assert_eq!(of_slots.slots().collect::<Vec<_>>(), slots);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for passed in [None, Some(Millis(-7))] {
            let name = AsideName {
                segment: SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits"),
                when: WHEN,
                passed,
            };
            assert_eq!(AsideName::parse(&name.to_string()), Some(name));
        }
        assert_eq!(log_of(&log_name(77)), Some(77));
        let far = format!("log-{:016x}", u64::MAX);
        for other in [
            &far,
            "log-77",
            "running",
            "0ab-c12345678",
            "0ab-c12345678.1.2",
        ] {
            assert!(log_of(other).is_none() && AsideName::parse(other).is_none());
        }
    }

    #[test]
    fn how_long_it_has_run_round_trips_and_damage_is_found() {
        let running = Running {
            moment: 9,
            given_back: -1,
        };
        let bytes: [u8; RUNNING_BYTES] = running.encode().try_into().expect("as long");
        assert_eq!(Running::parse(&bytes), Some(running));
        for bit in 0..RUNNING_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Running::parse(&damaged), None, "bit {bit}");
        }
    }
}
