//! Parses times, durations and restore targets.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use world::Clock;
use world::real::RealClock;

/// The target of `volume restore --at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// A point in time.
    Time(Timestamp),
    /// A version, by number.
    Version(u64),
}

/// Parses `100ms`, `90s`, `10m`, `12h`, `1d` or `2w`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write it as 100ms, 90s, 10m, 12h or 1d");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let milliseconds = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .ok_or_else(wrong)
}

/// Parses a restore target: see [`crate::args::VolumeCommand::Restore`].
pub fn parse(text: &str) -> Result<RestoreTarget, String> {
    let now = Timestamp::from_millisecond(RealClock::new().wall().0)
        .map_err(|error| format!("this machine's clock is wrong: {error}"))?;
    parse_at(text, now, &TimeZone::system())
}

/// Parses a point in time into milliseconds since 1970.
pub fn milliseconds(text: &str) -> Result<i64, String> {
    match parse(text)? {
        RestoreTarget::Time(time) => Ok(time.as_millisecond()),
        RestoreTarget::Version(_) => Err(format!(
            "{text} is a version's number: give a time, as '2026-01-31 09:30' or -2h"
        )),
    }
}

/// Formats a point in time given in milliseconds since 1970.
pub fn text(milliseconds: i64) -> String {
    let time = Timestamp::from_millisecond(milliseconds);
    time.map_or_else(|_| milliseconds.to_string(), |time| time.to_string())
}

fn parse_at(text: &str, now: Timestamp, local: &TimeZone) -> Result<RestoreTarget, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = text
            .parse()
            .map_err(|_| format!("{text} is too large for a version's number"))?;
        return Ok(RestoreTarget::Version(number));
    }
    if let Some(ago) = text.strip_prefix('-').or_else(|| text.strip_suffix("ago")) {
        let ago = duration(ago.trim())?;
        let time = now
            .checked_sub(ago)
            .map_err(|_| format!("{text} is before the first year that can be represented"))?;
        return Ok(RestoreTarget::Time(time));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(RestoreTarget::Time(time));
    }
    let (civil, zone) = match text.strip_suffix("UTC") {
        Some(civil) => (civil.trim_end(), &TimeZone::UTC),
        None => (text, local),
    };
    let wrong = || {
        format!(
            "{text:?} is not a time: write it as 2026-01-31 09:30, 2026-01-31T09:30:00Z, -10m, \
             '10m ago', or a version's number"
        )
    };
    let civil: DateTime = civil.parse().map_err(|_| wrong())?;
    let zoned = zone
        .to_ambiguous_zoned(civil)
        .compatible()
        .map_err(|_| wrong())?;
    Ok(RestoreTarget::Time(zoned.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Result<RestoreTarget, String> {
        let now = "2026-03-01T12:00:00Z".parse().expect("a time");
        parse_at(text, now, &TimeZone::fixed(jiff::tz::offset(2)))
    }

    fn time(text: &str) -> Result<RestoreTarget, String> {
        Ok(RestoreTarget::Time(text.parse().expect("a time")))
    }

    #[test]
    fn each_form_of_a_restore_target_is_parsed() {
        assert_eq!(at("17"), Ok(RestoreTarget::Version(17)));
        assert_eq!(at("-10m"), time("2026-03-01T11:50:00Z"));
        assert_eq!(at("10m ago"), time("2026-03-01T11:50:00Z"));
        assert_eq!(at("1d ago"), time("2026-02-28T12:00:00Z"));
        assert_eq!(at("2026-01-31 09:30"), time("2026-01-31T07:30:00Z"));
        assert_eq!(at("2026-01-31 09:30:05"), time("2026-01-31T07:30:05Z"));
        assert_eq!(at("2026-01-31 09:30 UTC"), time("2026-01-31T09:30:00Z"));
        assert_eq!(at("2026-01-31T09:30:00Z"), time("2026-01-31T09:30:00Z"));
        assert_eq!(
            at("2026-01-31T09:30:00+01:00"),
            time("2026-01-31T08:30:00Z")
        );
    }

    #[test]
    fn each_form_of_a_duration_is_parsed() {
        for (text, milliseconds) in [
            ("0s", 0),
            ("100ms", 100),
            ("90s", 90_000),
            ("10 m", 600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)));
        }
    }

    #[test]
    fn invalid_restore_targets_are_refused() {
        for bad in [
            "",
            "yesterday",
            "-",
            "-10",
            "10m",
            "-10 parsecs",
            "2026-13-01 00:00",
            "25:00",
        ] {
            assert!(at(bad).is_err(), "{bad:?}");
        }
        assert!(duration("99999999999999999w").is_err());
    }
}
