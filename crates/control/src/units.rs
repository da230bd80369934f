//! The units as all hosts see them, and the table of copysets over them.

use std::time::Duration;

use api::host::{HostUnit, Refusal, TaskDone, TaskKind, UnitReport};
use api::words::UnitState;
use base::{PartyId, UnitId};
use catalog::Copyset;
use catalog::copysets::{self, SCATTER_WIDTH};
use world::Millis;

use crate::acting::Acting;
use crate::control::Control;
use crate::database::{HostRow, UnitRow};
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
    /// As the host finds it that has the most trouble with it; none if none
    /// has said anything of it.
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

impl Control {
    /// Hosts that were not heard of since are silent.
    pub(crate) async fn silent_before(&self) -> Result<Millis, ControlError> {
        Ok(Millis(self.now().await?.0.saturating_sub(SILENT_MS)))
    }

    /// Asks the hosts that are there how they are; returns what all said last.
    pub(crate) async fn ask_hosts(&self) -> Result<Vec<HostRow>, ControlError> {
        let since = self.silent_before().await?;
        let database = &self.inner.database;
        if database.ask_hosts(since).await? > 0 {
            let is_owing = |host: &HostRow| {
                let is_there = host.heard.is_some_and(|heard| heard > since);
                is_there && host.report.look < host.look
            };
            self.until(SHOW_WITHIN, || async {
                let hosts = database.hosts().await?;
                Ok((!hosts.iter().any(is_owing)).then_some(()))
            })
            .await?;
        }
        Ok(database.hosts().await?)
    }

    /// All units. Hosts are asked anew; one that does not answer at once is
    /// believed what it said last.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn units(&self) -> Result<Vec<UnitView>, ControlError> {
        let hosts = self.ask_hosts().await?;
        self.units_of(&hosts).await
    }

    /// All units, as `hosts` find them.
    pub(crate) async fn units_of(&self, hosts: &[HostRow]) -> Result<Vec<UnitView>, ControlError> {
        let rows = self.inner.database.units().await?;
        Ok(rows.into_iter().map(|row| view(row, hosts)).collect())
    }

    /// Takes units in that a host has marked, and plans copysets over them.
    /// One that is there already is no error.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn register_units(&self, units: &[HostUnit]) -> Result<(), ControlError> {
        let asked: Vec<UnitRow> = units
            .iter()
            .map(|unit| UnitRow {
                id: unit.id,
                url: unit.url.clone(),
            })
            .collect();
        let known = self.inner.database.units().await?;
        let is_known = |unit: &UnitRow| known.iter().any(|known| known.id == unit.id);
        if asked.iter().all(is_known) {
            return Ok(());
        }
        let plan = |all: &[UnitRow], existing: &[Copyset]| {
            let ids: Vec<UnitId> = all.iter().map(|unit| unit.id).collect();
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
        for unit in self.inner.database.plan_units(&asked, plan, now).await? {
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
        if units.len() < usize::from(replicas) {
            return Err(ControlError::invalid(
                "replicas",
                format!(
                    "{replicas} replicas need {replicas} units, and there are {}; ask for \
                     fewer, or have an administrator add units (`scree unit add`)",
                    units.len()
                ),
            ));
        }
        let plan = |all: &[UnitRow], existing: &[Copyset]| {
            let ids: Vec<UnitId> = all.iter().map(|unit| unit.id).collect();
            self.plan(&ids, replicas, existing)
        };
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
        Ok(default_replicas(self.inner.database.units().await?.len()))
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
        let hosts = self.ask_hosts().await?;
        let row = UnitRow {
            id: unit.id,
            url: unit.url,
        };
        Ok(view(row, &hosts))
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

/// The free room as that host sees it which sees the least, in bytes. What hosts
/// said that are silent since counts only if all are.
fn least_free(hosts: &[HostRow], silent_before: Millis) -> Option<u64> {
    let is_silent = |host: &&HostRow| host.heard.is_none_or(|heard| heard <= silent_before);
    let least = |these: Vec<&HostRow>| these.iter().filter_map(|host| host.report.free_bytes).min();
    let (silent, there): (Vec<_>, Vec<_>) = hosts.iter().partition(is_silent);
    least(there).or_else(|| least(silent))
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

fn view(row: UnitRow, hosts: &[HostRow]) -> UnitView {
    let reports = || {
        let all = hosts.iter().flat_map(|host| &host.report.units);
        all.filter(|report| report.id == row.id)
    };
    let worst = reports().find(|report| state_in(report) != UnitState::Healthy);
    UnitView {
        report: worst.or_else(|| reports().next()).cloned(),
        read_bytes: reports().map(|report| report.read_bytes).sum(),
        written_bytes: reports().map(|report| report.written_bytes).sum(),
        row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_unit_the_worst_counts_that_any_host_says_also_in_words_of_a_later_version() {
        let row = UnitRow {
            id: UnitId::from_random(7),
            url: "file:///srv/unit-7".to_owned(),
        };
        let said = |words: &[&str]| {
            let hosts: Vec<HostRow> = words
                .iter()
                .map(|word| HostRow {
                    host: PartyId::from_random(1),
                    name: "h".to_owned(),
                    look: 0,
                    heard: Some(Millis(1)),
                    report: api::host::Report {
                        units: vec![UnitReport {
                            id: row.id,
                            state: (*word).to_owned(),
                            reason: None,
                            segments: None,
                            bytes: None,
                            free_bytes: None,
                            read_bytes: 0,
                            written_bytes: 0,
                        }],
                        ..Default::default()
                    },
                })
                .collect();
            view(row.clone(), &hosts).state()
        };
        assert_eq!(said(&[]), UnitState::Unknown);
        assert_eq!(said(&["healthy", "healthy"]), UnitState::Healthy);
        assert_eq!(said(&["healthy", "read-only"]), UnitState::ReadOnly);
        assert_eq!(said(&["healthy", "tired"]), UnitState::Unknown);
    }

    #[test]
    fn a_host_that_is_gone_does_not_say_for_ever_that_there_is_no_room() {
        let host = |heard: Option<i64>, free_bytes| HostRow {
            host: PartyId::from_random(1),
            name: "h".to_owned(),
            look: 0,
            heard: heard.map(Millis),
            report: api::host::Report {
                free_bytes,
                ..Default::default()
            },
        };
        let silent_before = Millis(100);
        let least = |hosts: &[HostRow]| least_free(hosts, silent_before);
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
