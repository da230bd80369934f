//! `scree unit restore`: what hosts have freed on a unit, brought back on the
//! machine of its daemon.

use std::path::Path;

use serde::Serialize;
use unit_daemon::{Restorable, Restored, RestoredSegment, SegmentFate};
use world::real::RealClock;
use world::{Clock as _, Millis, World};

use super::Failure;
use crate::args::RestoreArguments;
use crate::moment;
use crate::output::{Format, Table, print, print_notice};

/// What became of one segment, for programs.
#[derive(Serialize)]
struct Segment {
    segment: String,
    /// What became of it as a whole.
    whole: &'static str,
    slots: u32,
    gone: u32,
}

#[derive(Serialize)]
struct Told {
    segments: Vec<Segment>,
    /// Of what was freed up to then, some was given back before.
    #[serde(skip_serializing_if = "Option::is_none")]
    given_back: Option<String>,
    /// Logs that cannot be read, of which nothing was brought back.
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
                SegmentFate::There => "there",
                SegmentFate::BroughtBack => "brought-back",
                SegmentFate::PutBack => "put-back",
                SegmentFate::OtherThere => "replaced",
                SegmentFate::Gone => "gone",
                SegmentFate::Failed => "failed",
            },
            slots: one.slots,
            gone: one.gone,
        }
    }
}

impl From<&Restored> for Told {
    fn from(restored: &Restored) -> Self {
        let given_back = restored.given_back;
        Self {
            segments: restored.segments.iter().map(Segment::from).collect(),
            given_back: given_back.map(|at| moment::text(at.0)),
            unreadable_logs: restored.unreadable_logs,
        }
    }
}

/// Brings back what was freed on the unit of the daemon in `folder`, which does not
/// run.
pub fn restore_unit(
    folder: &Path,
    format: Format,
    is_dry_run: bool,
    arguments: &RestoreArguments,
) -> Result<(), Failure> {
    let meant = Restorable {
        since: Millis(arguments.since),
        until: arguments.until.map_or(Millis(i64::MAX), Millis),
        segment: arguments.segment,
        replaced: arguments.replaced,
    };
    if meant.since > meant.until || meant.since > RealClock::new().wall() {
        return Err(Failure::new(
            "nothing was freed then yet: --since is after --until, or after now",
        ));
    }
    let restored = unit_daemon::restore(&World::real(1), folder, &meant, is_dry_run);
    let restored = restored.map_err(|error| Failure::of(&error))?;
    print(format, &Told::from(&restored), table)?;
    if is_dry_run {
        print_notice(format, "nothing was changed (--dry-run)");
    }
    whole(&restored)
}

/// Scripts go by the exit code.
fn whole(restored: &Restored) -> Result<(), Failure> {
    match restored.is_whole() {
        true => Ok(()),
        false => Err(Failure::new(
            "not all that is meant could be brought back now",
        )),
    }
}

fn table(told: &Told) -> String {
    let mut table = Table::new(&["SEGMENT", "WHOLE", "SLOTS", "GONE"]);
    for one in &told.segments {
        table.row(vec![
            one.segment.clone(),
            one.whole.to_owned(),
            one.slots.to_string(),
            one.gone.to_string(),
        ]);
    }
    let mut text = table.to_string();
    if told.segments.iter().any(|one| one.whole == "replaced") {
        text += "another segment is in the place of what is \"replaced\"; --replaced takes the \
                 old one\n";
    }
    if told.segments.iter().any(|one| one.whole == "failed") {
        text += "what \"failed\" could not be brought back now, and can be later: look what is \
                 wrong with the file system\n";
    }
    if told.unreadable_logs > 0 {
        text += "some of what says what was freed cannot be read: start the daemon, wait some \
                 minutes, stop it, and bring back what was freed since that start\n";
    }
    if let Some(at) = &told.given_back {
        text += &format!("of what was freed up to {at}, the room was given back of some before\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_in_its_place_and_what_is_gone_is_said() {
        let told = |whole, given_back: Option<&str>| Told {
            segments: vec![Segment {
                segment: "001-000000001".to_owned(),
                whole,
                slots: 3,
                gone: 1,
            }],
            given_back: given_back.map(str::to_owned),
            unreadable_logs: u32::from(whole == "failed"),
        };
        let text = table(&told("there", None));
        let head = "SEGMENT        WHOLE  SLOTS  GONE\n";
        assert_eq!(text, format!("{head}001-000000001  there  3      1\n"));
        let text = table(&told("replaced", Some("2026-01-01T00:00:00Z")));
        assert!(text.contains("--replaced takes"), "{text}");
        assert!(text.contains("up to 2026-01-01T00:00:00Z"), "{text}");
        let text = table(&told("failed", None));
        assert!(text.contains("can be later"), "{text}");
        assert!(text.contains("since that start"), "{text}");
    }

    #[test]
    fn what_could_not_be_brought_back_is_a_failure() {
        let mut restored = Restored::default();
        assert!(whole(&restored).is_ok());
        restored.unreadable_logs = 1;
        assert!(whole(&restored).is_err());
    }
}
