//! `scree unit restore`: undeletes slots on the machine of a unit daemon.

use std::path::Path;

use serde::Serialize;
use unit_daemon::{RestoreFilter, RestoredSegment, SegmentFate};
use world::real::RealClock;
use world::{Clock as _, Millis, World};

use super::Failure;
use crate::args::RestoreArguments;
use crate::moment;
use crate::output::{Format, Table, print, print_notice};

/// The result for one segment.
#[derive(Serialize)]
struct Segment {
    segment: String,
    /// The state of the segment as a whole.
    whole: &'static str,
    slots: u32,
    gone: u32,
}

#[derive(Serialize)]
struct RestoreReport {
    segments: Vec<Segment>,
    /// The undelete window is incomplete before this time: some space was reclaimed early.
    #[serde(skip_serializing_if = "Option::is_none")]
    given_back: Option<String>,
    /// Number of unreadable logs, from which nothing was restored.
    #[serde(skip_serializing_if = "is_zero")]
    unreadable_logs: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<&RestoredSegment> for Segment {
    fn from(one: &RestoredSegment) -> Self {
        Self {
            segment: one.segment.to_string(),
            whole: match one.whole {
                SegmentFate::Present => "there",
                SegmentFate::Restored => "brought-back",
                SegmentFate::Reverted => "put-back",
                SegmentFate::OtherPresent => "replaced",
                SegmentFate::Lost => "gone",
                SegmentFate::Failed => "failed",
            },
            slots: one.slots,
            gone: one.lost,
        }
    }
}

impl From<&unit_daemon::RestoreReport> for RestoreReport {
    fn from(restored: &unit_daemon::RestoreReport) -> Self {
        let given_back = restored.reclaimed_until;
        Self {
            segments: restored.segments.iter().map(Segment::from).collect(),
            given_back: given_back.map(|at| moment::text(at.0)),
            unreadable_logs: restored.unreadable_logs,
        }
    }
}

/// Undeletes slots on the unit in `folder`, whose daemon is stopped.
pub fn restore_unit(
    folder: &Path,
    format: Format,
    arguments: &RestoreArguments,
) -> Result<(), Failure> {
    let meant = RestoreFilter {
        since: Millis(arguments.since),
        until: arguments.until.map_or(Millis(i64::MAX), Millis),
        segment: arguments.segment,
        replaced: arguments.replaced,
    };
    if meant.since > meant.until || meant.since > RealClock::new().wall() {
        return Err(Failure::new(
            "--since is after --until or in the future: use an earlier --since",
        ));
    }
    let restored = unit_daemon::restore(&World::real(1), folder, &meant, arguments.dry_run);
    let restored = restored.map_err(|error| Failure::of(&error))?;
    print(format, &RestoreReport::from(&restored), table)?;
    if arguments.dry_run {
        print_notice(format, "nothing was changed (--dry-run)");
    }
    whole(&restored)
}

/// Fails if something could not be restored, so that scripts see it in the exit code.
fn whole(restored: &unit_daemon::RestoreReport) -> Result<(), Failure> {
    match restored.is_complete() {
        true => Ok(()),
        false => Err(Failure::new(
            "some slots could not be restored; the table above says which",
        )),
    }
}

fn table(report: &RestoreReport) -> String {
    let mut table = Table::new(&["SEGMENT", "WHOLE", "SLOTS", "GONE"]);
    for one in &report.segments {
        table.row(vec![
            one.segment.clone(),
            one.whole.to_owned(),
            one.slots.to_string(),
            one.gone.to_string(),
        ]);
    }
    let mut text = table.to_string();
    if report.segments.iter().any(|one| one.whole == "replaced") {
        text +=
            "another segment has the name of a \"replaced\" one; --replaced takes the old one\n";
    }
    if report.segments.iter().any(|one| one.whole == "failed") {
        text += "what \"failed\" can be restored later: check the file system, then run the command \
                 again\n";
    }
    if report.unreadable_logs > 0 {
        text += "some logs of deletions cannot be read: start the daemon, wait some minutes, stop \
                 it, and restore what was deleted since that start\n";
    }
    if let Some(at) = &report.given_back {
        text += &format!("some of what was deleted up to {at} is not kept any more\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_explains_states_that_need_action() {
        let report = |whole, given_back: Option<&str>| RestoreReport {
            segments: vec![Segment {
                segment: "001-000000001".to_owned(),
                whole,
                slots: 3,
                gone: 1,
            }],
            given_back: given_back.map(str::to_owned),
            unreadable_logs: u32::from(whole == "failed"),
        };
        let text = table(&report("there", None));
        let head = "SEGMENT        WHOLE  SLOTS  GONE\n";
        assert_eq!(text, format!("{head}001-000000001  there  3      1\n"));
        let text = table(&report("replaced", Some("2026-01-01T00:00:00Z")));
        assert!(text.contains("--replaced takes"), "{text}");
        assert!(text.contains("up to 2026-01-01T00:00:00Z"), "{text}");
        let text = table(&report("failed", None));
        assert!(text.contains("can be restored later"), "{text}");
        assert!(text.contains("since that start"), "{text}");
    }

    #[test]
    fn an_incomplete_restore_is_a_failure() {
        let mut restored = unit_daemon::RestoreReport::default();
        assert!(whole(&restored).is_ok());
        restored.unreadable_logs = 1;
        assert!(whole(&restored).is_err());
    }
}
