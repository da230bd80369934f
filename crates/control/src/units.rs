//! The units as all hosts see them, and the table of copysets over them.

use std::cmp::Reverse;
use std::time::Duration;

use api::host::{HostUnit, Refusal, TaskDone, TaskKind, UnitReport};
use api::words::UnitState;
use base::{PartyId, UnitId};
use catalog::Copyset;
use catalog::copysets::{self, SCATTER_WIDTH};
use world::Millis;

use crate::acting::Acting;
use crate::control::Control;
use crate::database::{HostReport, HostRow, UnitRow};
use crate::error::ControlError;

/// Who asks how things are is kept waiting no longer.
const SHOW_WITHIN: Duration = Duration::from_millis(800);

/// A host that was not heard of for longer is silent, and not waited for, in
/// milliseconds.
pub(crate) const SILENT_MS: i64 = 10_000;

/// A host that is well makes a folder a unit in less.
const ADD_WITHIN: Duration = Duration::from_secs(60);

/// An answer that nobody has come for in so long is forgotten, in milliseconds.
const FORGET_MS: i64 = 3_600_000;

/// A unit as it is shown.
#[derive(Debug, Clone)]
pub struct UnitView {
    /// Its row.
    pub row: UnitRow,
    /// As the host finds it that has the most trouble with it, of those that
    /// are heard of if any of these has said anything of it; none if none has.
    pub report: Option<UnitReport>,
    /// How many bytes of blocks all hosts have read from it.
    pub read_bytes: u64,
    /// How many they have written.
    pub written_bytes: u64,
}

impl UnitView {
    /// How it is, as `report` says.
    #[must_use]
    pub fn state(&self) -> UnitState {
        self.report.as_ref().map_or(UnitState::Unknown, state_in)
    }

    /// Whether nothing is wrong with it.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.state() == UnitState::Healthy
    }
}

/// How a host says that a unit is.
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
        UnitState::Unknown => 5,
    }
}

impl Control {
    /// Hosts that were not heard of since are silent.
    pub(crate) async fn silent_before(&self) -> Result<Millis, ControlError> {
        Ok(Millis(self.now().await?.0.saturating_sub(SILENT_MS)))
    }

    /// Asks the hosts that are there how they are, and waits until they have said
    /// so, but not for long.
    pub(crate) async fn ask_hosts(&self) -> Result<(), ControlError> {
        let since = self.silent_before().await?;
        let database = &self.inner.database;
        if database.ask_hosts(since).await? > 0 {
            let is_owing = |host: &HostRow| {
                let is_there = host.heard.is_some_and(|heard| heard > since);
                is_there && host.seen < host.look
            };
            self.until(SHOW_WITHIN, || async {
                let hosts = database.hosts().await?;
                Ok((!hosts.iter().any(is_owing)).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// What all hosts say, who are asked anew.
    pub(crate) async fn host_reports(&self) -> Result<Vec<HostReport>, ControlError> {
        self.ask_hosts().await?;
        Ok(self.inner.database.host_reports().await?)
    }

    /// All units. Hosts are asked anew; one that does not answer at once is
    /// believed what it said last.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn units(&self) -> Result<Vec<UnitView>, ControlError> {
        let hosts = self.host_reports().await?;
        self.units_of(&hosts).await
    }

    /// All units, as `hosts` find them.
    pub(crate) async fn units_of(
        &self,
        hosts: &[HostReport],
    ) -> Result<Vec<UnitView>, ControlError> {
        let rows = self.inner.database.units().await?.into_iter();
        let since = self.silent_before().await?;
        Ok(rows.map(|row| view(row, hosts, since)).collect())
    }

    /// Takes units in that a host has marked, and plans copysets over them.
    /// One that is there already is no error.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn register_units(&self, units: &[HostUnit]) -> Result<(), ControlError> {
        if let Some(unit) = units.iter().find(|unit| unit.url.starts_with("scree:")) {
            let reason = format!("{}: a unit daemon adds itself", unit.url);
            return Err(ControlError::invalid("units", reason));
        }
        let asked = units.iter().map(|unit| UnitRow {
            id: unit.id,
            url: unit.url.clone(),
            daemon: None,
            is_draining: false,
            missing_since: None,
        });
        self.add_units(&asked.collect::<Vec<_>>()).await
    }

    /// Adds those that are not there yet, and plans copysets over them.
    pub(crate) async fn add_units(&self, asked: &[UnitRow]) -> Result<(), ControlError> {
        let known = self.inner.database.units().await?;
        let is_known = |unit: &UnitRow| known.iter().any(|known| known.id == unit.id);
        if asked.iter().all(is_known) {
            return Ok(());
        }
        let plan = |all: &[UnitRow], existing: &[Copyset]| {
            let ids = taking(all);
            let mut widths: Vec<usize> = existing.iter().map(|set| set.members.len()).collect();
            widths.push(usize::from(default_replicas(ids.len())));
            widths.sort_unstable();
            widths.dedup();
            let mut existing = existing.to_vec();
            let mut added = Vec::new();
            for width in widths {
                let more = self.plan(&ids, width as u8, &existing);
                existing.extend_from_slice(&more);
                added.extend(more);
            }
            added
        };
        let now = self.inner.world.clock.wall();
        for unit in self.inner.database.plan_units(asked, plan, now).await? {
            tracing::info!(unit = %unit.id, url = unit.url, "unit added");
        }
        Ok(())
    }

    fn plan(&self, units: &[UnitId], replicas: u8, existing: &[Copyset]) -> Vec<Copyset> {
        let random = &*self.inner.world.random;
        copysets::plan(units, replicas, existing, SCATTER_WIDTH, random)
    }

    /// Makes sure that there are copysets of `replicas` units.
    pub(crate) async fn ensure_copysets(
        &self,
        replicas: u8,
        is_dry_run: bool,
    ) -> Result<(), ControlError> {
        let units = self.inner.database.units().await?;
        let count = taking(&units).len();
        if count < usize::from(replicas) {
            return Err(ControlError::invalid(
                "replicas",
                format!(
                    "{replicas} replicas need {replicas} units, and there are {count}; ask for \
                     fewer, or have an administrator add units (`scree unit add`)"
                ),
            ));
        }
        let plan =
            |all: &[UnitRow], existing: &[Copyset]| self.plan(&taking(all), replicas, existing);
        // Nearly always there is nothing to add, and nobody has to wait for that.
        if !is_dry_run && !plan(&units, &self.copysets().await?).is_empty() {
            let now = self.inner.world.clock.wall();
            self.inner.database.plan_units(&[], plan, now).await?;
        }
        Ok(())
    }

    /// How many copies a volume gets if nothing is said: two, so that a unit
    /// may be lost, if there are two units.
    pub(crate) async fn default_replicas(&self) -> Result<u8, ControlError> {
        let units = self.inner.database.units().await?;
        Ok(default_replicas(taking(&units).len()))
    }

    /// Free room on the units' file systems, in bytes, as far as it is known.
    pub(crate) async fn free_bytes(&self) -> Result<Option<u64>, ControlError> {
        let hosts = self.inner.database.hosts().await?;
        Ok(least_free(&hosts, self.silent_before().await?))
    }
}

impl Acting {
    /// Makes the folder at `url` a unit, as `host` sees it. It must exist, so
    /// that a mistyped or unmounted path is not taken for a new unit; and be
    /// empty, or be a unit of this cluster already.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add_unit(&self, host: PartyId, url: &str) -> Result<UnitView, ControlError> {
        self.must_administer()?;
        let what = TaskKind::AddUnit {
            url: url.to_owned(),
        };
        let hint = "it adds the unit when it can, and `scree unit list` shows it then";
        let TaskDone::Unit(unit) = self.task(host, &what, "url", hint).await? else {
            return Err(not_asked());
        };
        let hosts = self.host_reports().await?;
        let row = UnitRow {
            id: unit.id,
            url: unit.url,
            daemon: None,
            is_draining: false,
            missing_since: None,
        };
        Ok(view(row, &hosts, self.silent_before().await?))
    }

    /// Has `host` do something, and waits until it has. What makes no sense is
    /// in the request's `field`; `hint` says what comes of it if the host does
    /// not answer.
    pub(crate) async fn task(
        &self,
        host: PartyId,
        what: &TaskKind,
        field: &'static str,
        hint: &str,
    ) -> Result<TaskDone, ControlError> {
        // No host would hear of it.
        debug_assert!(!self.is_dry_run(), "a task is not tried");
        let database = &self.inner.database;
        let now = self.asker().by.at;
        let task = database.insert_task(self.asker(), host, what).await?;
        let answer = self
            .until(ADD_WITHIN, || async {
                Ok(database.task_answer(task).await?)
            })
            .await?;
        let Some(answer) = answer else {
            return Err(ControlError::Unavailable {
                reason: format!("the host does not answer; {hint}"),
            });
        };
        let old = Millis(now.0.saturating_sub(FORGET_MS));
        database.forget_task(task, old).await?;
        answer.map_err(|refusal| refused(&refusal, field))
    }
}

/// Of what hosts have said, and when each was last heard of, that which counts:
/// what those say that were heard of after `silent_before`, or, if none of them
/// says anything, what the silent ones said last.
fn counting<T>(
    said: impl Iterator<Item = (Option<Millis>, T)>,
    silent_before: Millis,
) -> impl Iterator<Item = T> {
    let is_silent = |said: &(Option<Millis>, T)| said.0.is_none_or(|heard| heard <= silent_before);
    let (silent, there): (Vec<_>, Vec<_>) = said.partition(is_silent);
    let counts = if there.is_empty() { silent } else { there };
    counts.into_iter().map(|(_, what)| what)
}

/// The free room as that host sees it which sees the least, in bytes. What silent
/// hosts said counts only if nobody else says anything.
fn least_free(hosts: &[HostRow], silent_before: Millis) -> Option<u64> {
    let said = hosts.iter();
    let said = said.filter_map(|host| Some((host.heard, host.free_bytes?)));
    counting(said, silent_before).min()
}

/// Those over which copysets are planned.
fn taking(units: &[UnitRow]) -> Vec<UnitId> {
    let taking = units.iter().filter(|unit| !unit.is_draining);
    taking.map(|unit| unit.id).collect()
}

fn default_replicas(units: usize) -> u8 {
    if units >= 2 { 2 } else { 1 }
}

/// A host has answered something that it was not asked.
pub(crate) fn not_asked() -> ControlError {
    ControlError::Internal {
        reason: "the host has done something else than it was asked".to_owned(),
    }
}

fn refused(refusal: &Refusal, field: &'static str) -> ControlError {
    match refusal.field {
        Some(_) => ControlError::invalid(field, refusal.reason.clone()),
        None => ControlError::conflict(refusal.reason.clone()),
    }
}

fn view(row: UnitRow, hosts: &[HostReport], silent_before: Millis) -> UnitView {
    let said = || {
        hosts.iter().filter_map(|HostReport { host, report }| {
            let unit = report.units.iter().find(|unit| unit.id == row.id)?;
            Some((host.heard, unit))
        })
    };
    // The first of those that are as bad.
    let worst =
        counting(said(), silent_before).min_by_key(|report| Reverse(trouble(state_in(report))));
    UnitView {
        report: worst.cloned(),
        read_bytes: said().map(|(_, report)| report.read_bytes).sum(),
        written_bytes: said().map(|(_, report)| report.written_bytes).sum(),
        row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT_BEFORE: Millis = Millis(100);

    fn host(heard: Option<i64>, free_bytes: Option<u64>) -> HostRow {
        HostRow {
            host: PartyId::from_random(1),
            name: "h".to_owned(),
            look: 0,
            seen: 0,
            heard: heard.map(Millis),
            free_bytes,
        }
    }

    /// Of one unit: when each host was heard of, and what it says.
    fn said(words: &[(i64, &str)]) -> UnitView {
        let row = UnitRow {
            id: UnitId::from_random(7),
            url: "file:///srv/unit-7".to_owned(),
            daemon: None,
            is_draining: false,
            missing_since: None,
        };
        let report = |(heard, word): &(i64, &str)| HostReport {
            host: host(Some(*heard), None),
            report: api::host::Report {
                units: vec![UnitReport {
                    id: row.id,
                    state: (*word).to_owned(),
                    reason: None,
                    segments: None,
                    bytes: None,
                    free_bytes: None,
                    read_bytes: 3,
                    written_bytes: 5,
                }],
                ..Default::default()
            },
        };
        let hosts: Vec<HostReport> = words.iter().map(report).collect();
        view(row.clone(), &hosts, SILENT_BEFORE)
    }

    #[test]
    fn of_a_unit_the_worst_counts_that_any_host_says_also_in_words_of_a_later_version() {
        assert_eq!(said(&[]).state(), UnitState::Unknown);
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
                assert_eq!(said(&[(200, better), (200, word)]).state(), state);
                assert_eq!(said(&[(200, word), (200, better)]).state(), state);
            }
        }
    }

    /// A unit that was mended stayed broken for as long as a host was away that
    /// had seen it so.
    #[test]
    fn what_a_silent_host_said_of_a_unit_counts_if_no_other_says_anything() {
        let mended = said(&[(100, "missing"), (101, "healthy")]);
        assert!(mended.is_healthy());
        assert_eq!((mended.read_bytes, mended.written_bytes), (6, 10));
        let gone = said(&[(99, "full"), (100, "missing")]);
        assert_eq!(gone.state(), UnitState::Missing);
    }

    #[test]
    fn a_host_that_is_gone_does_not_say_for_ever_that_there_is_no_room() {
        let least = |hosts: &[HostRow]| least_free(hosts, SILENT_BEFORE);
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
