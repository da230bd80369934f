//! `scree unit restore`: undeletes slots on the machine of a unit daemon.

use std::path::Path;

use serde::Serialize;
use unit_daemon::{RestoreFilter, RestoredSegment, SegmentFate};
use world::real::RealClock;
use world::{Clock as _, Millis, World};

use super::Failure;
use crate::args::RestoreArguments;
use crate::output::{Format, Table, print, print_notice};
use crate::times;

/// The result for one segment.
#[derive(Serialize)]
struct Segment {
    segment: String,
    /// The fate of the segment as a whole: `present`, `restored`, `swapped` (in place of a newer
    /// one), `replaced` (a newer one was left in place), `lost` or `failed`.
    state: &'static str,
    slots: u32,
    lost: u32,
}

#[derive(Serialize)]
struct RestoreReport {
    segments: Vec<Segment>,
    /// The undelete window is incomplete before this time: some space was reclaimed early.
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete_before: Option<String>,
    /// Number of unreadable logs, from which nothing was restored.
    #[serde(skip_serializing_if = "is_zero")]
    unreadable_logs: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<&RestoredSegment> for Segment {
    fn from(restored: &RestoredSegment) -> Self {
        Self {
            segment: restored.segment.to_string(),
            state: match restored.whole {
                SegmentFate::Present => "present",
                SegmentFate::Restored => "restored",
                SegmentFate::Reverted => "swapped",
                SegmentFate::Occupied => "replaced",
                SegmentFate::Lost => "lost",
                SegmentFate::Failed => "failed",
            },
            slots: restored.slots,
            lost: restored.lost,
        }
    }
}

impl From<&unit_daemon::RestoreReport> for RestoreReport {
    fn from(restored: &unit_daemon::RestoreReport) -> Self {
        Self {
            segments: restored.segments.iter().map(Segment::from).collect(),
            incomplete_before: restored.reclaimed_until.map(|at| times::text(at.0)),
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
    let wanted = RestoreFilter {
        since: Millis(arguments.since),
        until: arguments.until.map_or(Millis(i64::MAX), Millis),
        segment: arguments.segment,
        replaced: arguments.replaced,
    };
    if wanted.since > wanted.until || wanted.since > RealClock::new().wall() {
        return Err(Failure::new(
            "--since is after --until or in the future: give an earlier --since",
        ));
    }
    let restored = unit_daemon::restore(&World::real(1), folder, &wanted, arguments.dry_run);
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
            "some slots could not be restored: see the table above",
        )),
    }
}

fn table(report: &RestoreReport) -> String {
    let mut table = Table::new(&["SEGMENT", "STATE", "SLOTS", "LOST"]);
    for segment in &report.segments {
        table.row(vec![
            segment.segment.clone(),
            segment.state.to_owned(),
            segment.slots.to_string(),
            segment.lost.to_string(),
        ]);
    }
    let mut text = table.to_string();
    if report
        .segments
        .iter()
        .any(|segment| segment.state == "replaced")
    {
        text +=
            "\"replaced\" segments were replaced by a newer one; --replaced restores the old one\n";
    }
    if report
        .segments
        .iter()
        .any(|segment| segment.state == "failed")
    {
        text += "\"failed\" segments can be restored later: check the file system, then run the command \
                 again\n";
    }
    if report.unreadable_logs > 0 {
        text += "some logs of deletions cannot be read: start the daemon, wait some minutes, stop \
                 it, and run the command again with --since that start\n";
    }
    if let Some(at) = &report.incomplete_before {
        text += &format!(
            "the undelete window is incomplete before {at}: some space was reclaimed early\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_explains_states_that_need_action() {
        let report = |state, incomplete_before: Option<&str>| RestoreReport {
            segments: vec![Segment {
                segment: "001-000000001".to_owned(),
                state,
                slots: 3,
                lost: 1,
            }],
            incomplete_before: incomplete_before.map(str::to_owned),
            unreadable_logs: u32::from(state == "failed"),
        };
        let text = table(&report("present", None));
        let head = "SEGMENT        STATE    SLOTS  LOST\n";
        assert_eq!(text, format!("{head}001-000000001  present  3      1\n"));
        let text = table(&report("replaced", Some("2026-01-01T00:00:00Z")));
        assert!(text.contains("--replaced restores"), "{text}");
        assert!(text.contains("before 2026-01-01T00:00:00Z"), "{text}");
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
