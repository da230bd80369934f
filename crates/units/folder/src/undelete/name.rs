//! The names in `freed/`.
//!
//! ```text
//!  freed/
//!    log-rrrrrrrrrrrrrrrr             slots that were freed from this run time on
//!    ccc-sssssssss.rrrr….wwww…        a segment that was deleted or replaced then
//!    ccc-sssssssss.rrrr….wwww….ssss…  a segment that a restore has replaced
//!    draft-…                          an incomplete copy or file
//!    run-time                         the run time of the unit
//!    restore                          the plan of an incomplete restore
//! ```
//!
//! `r…` is a run time of the unit in microseconds; no two are equal. The wall-clock time
//! beside it, `w…`, is for people.

use base::SegmentId;
use world::Millis;

use crate::root::segment_of;

/// Name of the folder, within the unit's.
pub(super) const FOLDER: &str = "freed";

/// Name of the file with the unit's run time.
pub(super) const RUN_TIME: &str = "run-time";

/// Name of the file with the plan of a restore.
pub(super) const RESTORE: &str = "restore";

/// Prefix of the names of incomplete files.
pub(super) const DRAFT: &str = "draft-";

const LOG: &str = "log-";

/// The time at which something was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp {
    /// Run time of the unit in microseconds.
    pub run_time_us: u64,
    /// Wall-clock time.
    pub wall: Millis,
}

/// Name of the file of a segment that was deleted or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreedSegmentName {
    pub segment: SegmentId,
    pub freed_at: Timestamp,
    /// If a restore has replaced this segment: the wall-clock time at which the restored one was
    /// freed. A filter that begins then or earlier selects the restored one and not this.
    pub superseded: Option<Millis>,
}

impl FreedSegmentName {
    pub fn parse(name: &str) -> Option<Self> {
        let wall = |text| Some(Millis(number(text)?.cast_signed()));
        let mut parts = name.split('.');
        let segment = segment_of(parts.next()?)?;
        let freed_at = Timestamp {
            run_time_us: run_time_us(parts.next()?)?,
            wall: wall(parts.next()?)?,
        };
        let superseded = match parts.next() {
            Some(superseded) => Some(wall(superseded)?),
            None => None,
        };
        parts.next().is_none().then_some(Self {
            segment,
            freed_at,
            superseded,
        })
    }
}

impl std::fmt::Display for FreedSegmentName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            segment, freed_at, ..
        } = self;
        let (run_time_us, wall) = (freed_at.run_time_us, freed_at.wall.0.cast_unsigned());
        write!(formatter, "{segment}.{run_time_us:016x}.{wall:016x}")?;
        match self.superseded {
            Some(superseded) => write!(formatter, ".{:016x}", superseded.0.cast_unsigned()),
            None => Ok(()),
        }
    }
}

/// Name of the log that was begun at `run_time_us`.
pub(super) fn log_name(run_time_us: u64) -> String {
    format!("{LOG}{run_time_us:016x}")
}

/// The run time at which the log named `name` was begun, if that is the name of one.
pub(super) fn log_of(name: &str) -> Option<u64> {
    run_time_us(name.strip_prefix(LOG)?)
}

/// Maximum of a run time: some 140,000 years.
pub(super) const RUN_TIME_US_MAX: u64 = 1 << 62;

fn run_time_us(text: &str) -> Option<u64> {
    number(text).filter(|run_time_us| *run_time_us <= RUN_TIME_US_MAX)
}

fn number(text: &str) -> Option<u64> {
    let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_number = text.len() == 16 && text.bytes().all(is_hex);
    is_number.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for superseded in [None, Some(Millis(-7))] {
            let name = FreedSegmentName {
                segment: SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits"),
                freed_at: Timestamp {
                    run_time_us: 0x0123_4567_89ab,
                    wall: Millis(-5),
                },
                superseded,
            };
            assert_eq!(FreedSegmentName::parse(&name.to_string()), Some(name));
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
            assert!(log_of(other).is_none() && FreedSegmentName::parse(other).is_none());
        }
    }
}
