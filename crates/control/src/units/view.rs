//! [`UnitView`]: a unit as all hosts see it. The worst report counts, and reports of unresponsive
//! hosts count only where no other host reports.

use std::cmp::Reverse;

use api::host::UnitReport;
use api::types::Message;
use api::unit::SECOND_PLACE_MS;
use api::words::{MessageCode, UnitState};
use world::Millis;

use crate::database::{HostReport, HostRow, UnitRow};

/// A unit as it is shown.
#[derive(Debug, Clone)]
pub struct UnitView {
    /// The row.
    pub row: UnitRow,
    /// The worst report on it, among those of responsive hosts if any of these has reported on it.
    pub report: Option<UnitReport>,
    /// The name of a host that reaches it, in whatever state, among those whose reports count.
    pub found_by: Option<String>,
    /// The URL of a second daemon that has just claimed it.
    pub second: Option<String>,
    /// How many bytes of blocks all hosts have read from it.
    pub read_bytes: u64,
    /// How many they have written.
    pub written_bytes: u64,
}

impl UnitView {
    /// The state in `report`, unless its daemon is disabled or has never started.
    #[must_use]
    pub fn state(&self) -> UnitState {
        if self.row.is_disabled {
            return UnitState::Disabled;
        }
        if self.row.url.is_empty() {
            return UnitState::Expected;
        }
        self.report.as_ref().map_or(UnitState::Unknown, state_in)
    }

    /// What is wrong with it, if anything is.
    #[must_use]
    pub fn message(&self) -> Option<Message> {
        let state = self.state();
        let text = match (state, &self.second) {
            (UnitState::Disabled, _) => "its daemon is disabled, and nothing is written to it; \
                                         enable it with `scree unit enable`, or leave it disabled \
                                         if the unit is lost for good"
                .to_owned(),
            (UnitState::Expected, _) => {
                "its daemon has never started; start it with `scree unit --listen`".to_owned()
            }
            (_, Some(second)) => {
                let text = format!(
                    "a second daemon at {second} claims it, and is refused: stop that one, or \
                     give it an identity of its own"
                );
                return Some(Message::new(MessageCode::UnitDuplicate, text));
            }
            _ => self.report.as_ref()?.problem.clone()?,
        };
        let code = state
            .message_code()
            .unwrap_or(MessageCode::UnitStateUnknown);
        Some(Message::new(code, text))
    }

    /// Whether nothing is wrong with it.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.state() == UnitState::Healthy && self.second.is_none()
    }
}

/// The state in a host's report.
fn state_in(report: &UnitReport) -> UnitState {
    report.state.parse().unwrap_or(UnitState::Unknown)
}

/// How much trouble a state is: first come those in which a unit is still read,
/// last what may be anything.
fn trouble(state: UnitState) -> u8 {
    match state {
        UnitState::Healthy => 0,
        UnitState::Full => 1,
        UnitState::ReadOnly => 2,
        UnitState::Failing => 3,
        UnitState::Missing => 4,
        UnitState::Disabled | UnitState::Expected | UnitState::Unknown => 5,
    }
}

/// Selects the reports that count: those of responsive hosts, or, if none of these reports on the
/// object, the last ones of unresponsive hosts.
fn counting<T>(
    reports: impl Iterator<Item = (Option<Millis>, T)>,
    unresponsive_before: Millis,
) -> impl Iterator<Item = T> {
    let is_unresponsive =
        |report: &(Option<Millis>, T)| report.0.is_none_or(|heard| heard <= unresponsive_before);
    let (unresponsive, responsive): (Vec<_>, Vec<_>) = reports.partition(is_unresponsive);
    let counts = if responsive.is_empty() {
        unresponsive
    } else {
        responsive
    };
    counts.into_iter().map(|(_, what)| what)
}

/// The least free space that a host reports, in bytes. Unresponsive hosts count only if no other
/// host reports.
pub(crate) fn least_free(hosts: &[HostRow], unresponsive_before: Millis) -> Option<u64> {
    let reported = hosts.iter();
    let reported = reported.filter_map(|host| Some((host.heard, host.free_bytes?)));
    counting(reported, unresponsive_before).min()
}

/// A unit as `hosts` see it.
pub(crate) fn view(row: UnitRow, hosts: &[HostReport], unresponsive_before: Millis) -> UnitView {
    let reported = || {
        hosts.iter().filter_map(|HostReport { host, report }| {
            let unit = report.units.iter().find(|unit| unit.id == row.id)?;
            Some((host.heard, (host, unit)))
        })
    };
    let found = |(_, report): &(&HostRow, &UnitReport)| {
        trouble(state_in(report)) < trouble(UnitState::Missing)
    };
    let found_by = counting(reported(), unresponsive_before).find(found);
    // The first of those that are as bad.
    let reports = counting(reported(), unresponsive_before).map(|(_, report)| report);
    let worst = reports.min_by_key(|report| Reverse(trouble(state_in(report))));
    UnitView {
        report: worst.cloned(),
        found_by: found_by.map(|(host, _)| host.name.clone()),
        second: row
            .second
            .clone()
            .filter(|(_, at)| at.0 > unresponsive_before.0 - SECOND_PLACE_MS)
            .map(|(url, _)| url),
        read_bytes: reported().map(|(_, (_, report))| report.read_bytes).sum(),
        written_bytes: reported()
            .map(|(_, (_, report))| report.written_bytes)
            .sum(),
        row,
    }
}

#[cfg(test)]
mod tests {
    use base::{PartyId, UnitId};

    use super::*;

    const UNRESPONSIVE_BEFORE: Millis = Millis(100);

    fn host(heard: Option<i64>, free_bytes: Option<u64>) -> HostRow {
        HostRow {
            host: PartyId::from_u128(1),
            name: "h".to_owned(),
            reports_requested: 0,
            report_number: 0,
            heard: heard.map(Millis),
            free_bytes,
        }
    }

    /// A unit by reports: when each host reported, and its state.
    fn view_of(words: &[(i64, &str)]) -> UnitView {
        let row = UnitRow::new(UnitId::from_u128(7), "file:///srv/unit-7".to_owned());
        let report = |(heard, word): &(i64, &str)| HostReport {
            host: host(Some(*heard), None),
            report: api::host::Report {
                units: vec![UnitReport {
                    id: row.id,
                    state: (*word).to_owned(),
                    problem: None,
                    segments: None,
                    bytes: None,
                    free_bytes: None,
                    read_bytes: 3,
                    written_bytes: 5,
                    facts: Vec::new(),
                }],
                ..Default::default()
            },
        };
        let hosts: Vec<HostReport> = words.iter().map(report).collect();
        view(row.clone(), &hosts, UNRESPONSIVE_BEFORE)
    }

    #[test]
    fn the_worst_reported_state_of_a_unit_counts_also_if_it_is_unknown() {
        assert_eq!(view_of(&[]).state(), UnitState::Unknown);
        let worse = [
            "healthy",
            "full",
            "read-only",
            "failing",
            "missing",
            "tired",
        ];
        for (at, word) in worse.into_iter().enumerate() {
            let state = word.parse().unwrap_or(UnitState::Unknown);
            for better in &worse[..=at] {
                assert_eq!(view_of(&[(200, better), (200, word)]).state(), state);
                assert_eq!(view_of(&[(200, word), (200, better)]).state(), state);
            }
        }
    }

    /// A repaired unit was once shown as broken while a host that had reported it so was
    /// unresponsive.
    #[test]
    fn the_report_of_an_unresponsive_host_counts_if_there_is_no_other() {
        let repaired = view_of(&[(100, "missing"), (101, "healthy")]);
        assert!(repaired.is_healthy());
        assert_eq!((repaired.read_bytes, repaired.written_bytes), (6, 10));
        let gone = view_of(&[(99, "full"), (100, "missing")]);
        assert_eq!(gone.state(), UnitState::Missing);
    }

    #[test]
    fn the_free_space_of_an_unresponsive_host_stops_counting() {
        let least = |hosts: &[HostRow]| least_free(hosts, UNRESPONSIVE_BEFORE);
        let (gone, never) = (host(Some(100), Some(5)), host(None, Some(0)));
        let (there, roomy) = (host(Some(101), Some(70)), host(Some(200), Some(80)));
        let mute = host(Some(200), None);
        assert_eq!(least(&[gone.clone(), roomy, there, mute.clone()]), Some(70));
        assert_eq!(least(&[gone, mute.clone()]), Some(5));
        assert_eq!(least(&[mute]), None);
        assert_eq!(least(&[never]), Some(0));
        assert_eq!(least(&[]), None);
    }
}
