//! The state of the whole cluster, and what needs attention.

use api::host::{AttachmentState, VolumeReport};
use api::types::{HostLoad, Status, VolumeLoad};
use api::words::{Health, UnitState};
use base::counted;

use crate::control::Control;
use crate::database::{DegradedVolume, HostReport, RepairRow, VolumeRows};
use crate::error::ControlError;
use crate::units::UnitView;

impl Control {
    /// The state of the whole cluster.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn status(&self) -> Result<Status, ControlError> {
        let volumes = self.inner.database.volumes().all().await?;
        let (hosts, not_requested) = self.host_reports().await?;
        let units = self.unit_registry().of_reports(&hosts).await?;
        let mut problems: Vec<String> = not_requested.into_iter().collect();
        let unhealthy = units.iter().filter(|unit| !unit.is_healthy());
        problems.extend(unhealthy.map(unit_problem));
        for volume in &volumes.damaged {
            let (name, why) = (&volume.name, &volume.reason);
            problems.push(format!("volume {name:?} is in error: {why}"));
        }
        let attachments = self.inner.database.attachments().all().await?;
        problems.extend(attachments.iter().filter_map(|attachment| {
            let name = volumes.name_of(attachment.volume).unwrap_or_default();
            let why = attachment.observed.problem.as_ref()?;
            Some(format!("volume {name:?} is in error: {why}"))
        }));
        let open = || hosts.iter().flat_map(|host| &host.report.volumes);
        let journal_used_bytes = open().map(|volume| volume.engine.journal_used_bytes).sum();
        problems.extend(open().flat_map(|volume| engine_problems(volume, &volumes)));
        problems.extend(
            self.unit_registry()
                .shared_zones()
                .await?
                .map(|message| message.text),
        );
        let degraded = self.inner.database.repair().degraded_volumes().await?;
        problems.extend(
            degraded
                .iter()
                .map(|degraded| degraded_problem(degraded, &volumes)),
        );
        let repair = self.inner.database.repair().list(self.now().await?).await?;
        problems.extend(repair_problem(&repair));
        let is_one = hosts.len() == 1;
        for HostReport { host, report } in hosts {
            problems.extend(report.problems.into_iter().map(|problem| match is_one {
                true => problem,
                false => format!("host {}: {problem}", host.name),
            }));
        }
        let reports = units.iter().filter_map(|unit| unit.report.as_ref());
        let bytes = reports.filter_map(|report| report.bytes).sum();
        let there = volumes.rows.iter().filter(|row| !row.deleting).count();
        let healthy = units.iter().filter(|unit| unit.is_healthy());
        let is_served = |state| state == AttachmentState::Attached;
        let served = attachments
            .iter()
            .filter(|attachment| is_served(attachment.observed.state));
        let state = match problems.is_empty() {
            true => Health::Ok,
            false => Health::Degraded,
        };
        Ok(Status {
            state: state.as_str().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: self.inner.cluster.to_string(),
            folder: self.folder().path().display().to_string(),
            pid: std::process::id(),
            volumes: (there + volumes.damaged.len()) as u64,
            exported: served.count() as u64,
            snapshots: self.inner.database.snapshots().count().await?,
            units: units.len() as u64,
            units_healthy: healthy.count() as u64,
            bytes,
            journal_used_bytes,
            pending_frees: self.inner.database.catalog().pending_free_count().await?,
            degraded_segments: degraded.iter().map(|degraded| degraded.segments).sum(),
            degraded_blocks: degraded.iter().map(|degraded| degraded.slots).sum(),
            problems,
        })
    }
}

impl Control {
    /// The load of each host and its cache, as last reported.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn load(&self) -> Result<Vec<HostLoad>, ControlError> {
        let volumes = self.inner.database.volumes().all().await?;
        let (hosts, _) = self.host_reports().await?;
        let loads = hosts.into_iter().map(|HostReport { host, report }| {
            let open = report.volumes.into_iter().map(|open| VolumeLoad {
                volume: open.volume.to_string(),
                name: volumes.name_of(open.volume).unwrap_or_default().to_owned(),
                attachment: open.attachment.to_string(),
                engine: open.engine,
            });
            HostLoad {
                volumes: open.collect(),
                host: host.name,
                cache: report.cache,
            }
        });
        Ok(loads.collect())
    }
}

fn unit_problem(unit: &UnitView) -> String {
    let reason = unit.message();
    let reason = reason.map_or_else(|| "no reason is known".to_owned(), |why| why.text);
    // A daemon that has never started has no URL.
    let name = match &unit.row.daemon {
        Some(daemon) if unit.row.url.is_empty() => daemon,
        _ => &unit.row.url,
    };
    let text = joined_problem(name, unit.state().as_str(), &reason);
    match unit.state() {
        UnitState::Full => {
            format!("{text}; add units (`scree unit add`), or delete volumes and snapshots")
        }
        _ => text,
    }
}

/// The state of a unit with the reason, which often begins with the unit's name as well.
fn joined_problem(url: &str, state: &str, reason: &str) -> String {
    let head = format!("unit {url} is {state}");
    if let Some(rest) = reason.strip_prefix(&head) {
        return format!("{head}{rest}");
    }
    match reason.strip_prefix(&format!("unit {url}")) {
        Some(rest) if rest.starts_with(':') => format!("{head}{rest}"),
        Some(rest) if rest.starts_with(' ') => format!("{head}: it{rest}"),
        _ => format!("{head}: {reason}"),
    }
}

/// Why an open volume cannot destage or read.
fn engine_problems(volume: &VolumeReport, volumes: &VolumeRows) -> impl Iterator<Item = String> {
    let name = volumes.name_of(volume.volume).unwrap_or_default();
    let engine = &volume.engine;
    let destage = engine.destage_error.as_ref();
    let read = engine.read_error.as_ref();
    [
        destage.map(|why| format!("volume {name:?} cannot destage: {why}")),
        read.map(|why| format!("reads of volume {name:?} wait: {why}")),
    ]
    .into_iter()
    .flatten()
}

fn degraded_problem(degraded: &DegradedVolume, volumes: &VolumeRows) -> String {
    let of = match volumes.name_of(degraded.volume) {
        Some(name) => format!("volume {name:?}"),
        None => format!("the deleted volume {}", degraded.volume),
    };
    format!(
        "up to {} of {of} have fewer copies than they should, in {}: units were \
         unavailable when these blocks were written. Hosts copy them when the units are back or \
         replaced (`scree unit jobs` shows the progress)",
        counted(degraded.slots, "block"),
        counted(degraded.segments, "segment")
    )
}

/// The problems of repair.
fn repair_problem(repair: &[RepairRow]) -> Vec<String> {
    let mut problems = Vec::new();
    let damaged: u64 = repair.iter().map(|row| row.damaged).sum();
    if damaged > 0 {
        problems.push(format!(
            "{} damaged on every unit: restore the content from a backup (`scree unit jobs` lists \
             the copysets)",
            counted(damaged, "slot")
        ));
    }
    let filled: Vec<&RepairRow> = repair
        .iter()
        .filter(|row| row.members.iter().any(|(_, state)| state == "rebuilding"))
        .collect();
    if filled.is_empty() {
        return problems;
    }
    let mut units: Vec<String> = filled
        .iter()
        .flat_map(|row| {
            row.members
                .iter()
                .filter(|(_, state)| state == "rebuilding")
        })
        .map(|(unit, _)| unit.to_string())
        .collect();
    units.sort_unstable();
    units.dedup();
    let under_way = filled.iter().filter(|row| row.repairer.is_some());
    let (done, all) = under_way.fold((0, 0), |(done, all), row| {
        (done + row.progress.done, all + row.progress.all)
    });
    let percent = (done * 100).checked_div(all).unwrap_or(0);
    let mut text = format!(
        "in {} {} may be incomplete and {} being rebuilt; the running comparison is \
         {percent} % done",
        counted(filled.len() as u64, "copyset"),
        units.join(", "),
        if units.len() == 1 { "is" } else { "are" }
    );
    // A copyset that is being retried may succeed now.
    let mut waiting = filled.iter().filter(|row| row.repairer.is_none());
    if let Some(problem) = waiting.find_map(|row| row.problem.as_ref()) {
        text += &format!("; the last failure: {problem}");
    }
    problems.push(text);
    problems
}

#[cfg(test)]
mod tests {
    use super::joined_problem;

    /// Once it was "unit X is full: unit X is full".
    #[test]
    fn the_problem_of_a_unit_names_the_unit_once() {
        for (reason, expected) in [
            ("unit /a is full", "unit /a is full"),
            ("unit /a: cannot write", "unit /a is full: cannot write"),
            ("unit /a is not there", "unit /a is full: it is not there"),
            ("unit /ab is full", "unit /a is full: unit /ab is full"),
            ("no reason", "unit /a is full: no reason"),
        ] {
            assert_eq!(joined_problem("/a", "full", reason), expected);
        }
    }
}
