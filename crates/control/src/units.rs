//! The units as all hosts see them, and the table of copysets over them.

use api::types::Message;
use api::words::MessageCode;
use std::cmp::Reverse;
use std::time::Duration;

use api::host::{HostUnit, JobKind, JobOutput, JobResult, Refusal, UnitReport};
use api::unit::SECOND_PLACE_MS;
use api::words::UnitState;
use auth::{Kind, Subject};
use base::{PartyId, UnitId};
use catalog::copysets::{self, Zones};
use catalog::{Copyset, Erasure};
use world::Millis;

use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::{DatabaseError, HostReport, HostRow, UnitRow};
use crate::error::ControlError;
use crate::parse;
use crate::parties::unit_of;
use crate::unit_registry::UnitRegistry;
use crate::volumes::Redundancy;

/// How long a request for the current state waits for hosts.
const SHOW_WITHIN: Duration = Duration::from_millis(800);

/// A host that has not reported for this time, in milliseconds, is unresponsive and not waited for.
pub(crate) const UNRESPONSIVE_MS: i64 = 10_000;

/// The time within which a responsive host creates a unit.
const ADD_WITHIN: Duration = Duration::from_secs(60);

/// How long an answer that no one fetched is kept, in milliseconds.
const FORGET_MS: i64 = 3_600_000;

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

impl Control {
    /// The time since which a responsive host has reported.
    pub(crate) async fn unresponsive_before(&self) -> Result<Millis, ControlError> {
        Ok(Millis(self.now().await?.0.saturating_sub(UNRESPONSIVE_MS)))
    }

    /// Requests reports from the responsive hosts and waits for them, but not for long. Returns why
    /// they were not requested if the database is read-only, as on a full disk: the last reports
    /// then have to do.
    pub(crate) async fn request_reports(&self) -> Result<Option<String>, ControlError> {
        let since = self.unresponsive_before().await?;
        let database = &self.inner.database;
        let requested = match database.hosts().request_reports(since).await {
            Err(error @ (DatabaseError::Full(_) | DatabaseError::ReadOnly(_))) => {
                return Ok(Some(error.to_string()));
            }
            requested => requested?,
        };
        if requested > 0 {
            let is_outdated = |host: &HostRow| {
                let is_responsive = host.heard.is_some_and(|heard| heard > since);
                is_responsive && host.report_number < host.reports_requested
            };
            self.until(SHOW_WITHIN, || async {
                let hosts = database.hosts().all().await?;
                Ok((!hosts.iter().any(is_outdated)).then_some(()))
            })
            .await?;
        }
        Ok(None)
    }

    /// The reports of all hosts, after a request for fresh ones; and why fresh ones were not
    /// requested, if so.
    pub(crate) async fn host_reports(
        &self,
    ) -> Result<(Vec<HostReport>, Option<String>), ControlError> {
        let not_requested = self.request_reports().await?;
        Ok((self.inner.database.hosts().reports().await?, not_requested))
    }
}

impl UnitRegistry<'_> {
    /// All units, after a request for fresh reports. The last report of a host that does not answer
    /// at once is used.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn all(self) -> Result<Vec<UnitView>, ControlError> {
        let (hosts, _) = self.host_reports().await?;
        self.of_reports(&hosts).await
    }

    /// The units of daemons that were created and have never started.
    ///
    /// # Errors
    /// [`ControlError`].
    pub(crate) async fn expected(self) -> Result<Vec<UnitView>, ControlError> {
        let rows = self.inner.database.units().expected().await?.into_iter();
        Ok(rows.map(|row| view(row, &[], Millis(0))).collect())
    }

    /// All units, as `hosts` find them.
    pub(crate) async fn of_reports(
        self,
        hosts: &[HostReport],
    ) -> Result<Vec<UnitView>, ControlError> {
        let rows = self.inner.database.units().all().await?.into_iter();
        let since = self.unresponsive_before().await?;
        Ok(rows.map(|row| view(row, hosts, since)).collect())
    }

    /// Takes units in that a host has marked, and plans copysets over them.
    /// One that is there already is no error.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn register_all(self, units: &[HostUnit]) -> Result<(), ControlError> {
        let asked: Result<Vec<UnitRow>, _> = units.iter().map(|unit| marked(unit, None)).collect();
        self.add(&asked?).await
    }

    /// As [`Control::register_all`], of one that is in `zone`.
    pub(crate) async fn register(
        self,
        unit: &HostUnit,
        zone: Option<String>,
    ) -> Result<(), ControlError> {
        self.add(&[marked(unit, zone)?]).await
    }

    /// Adds those that are not there yet, and plans copysets over them.
    pub(crate) async fn add(self, asked: &[UnitRow]) -> Result<(), ControlError> {
        let known = self.inner.database.units().all().await?;
        let is_known = |unit: &UnitRow| known.iter().any(|known| known.id == unit.id);
        if asked.iter().all(is_known) {
            return Ok(());
        }
        self.plan_over(asked).await
    }

    /// Plans copysets over the existing and the added units, as wide as existing ones and as the
    /// default redundancy.
    async fn plan_over(self, added: &[UnitRow]) -> Result<(), ControlError> {
        let plan = |all: &[UnitRow], existing: &[Copyset]| {
            let of = |set: &Copyset| (set.members.len() as u8, set.data);
            let mut widths: Vec<(u8, u8)> = existing.iter().map(of).collect();
            widths.push((default_replicas(used(all).len()), 1));
            widths.sort_unstable();
            widths.dedup();
            let mut existing = existing.to_vec();
            let mut added = Vec::new();
            for (members, data) in widths {
                let redundancy = Redundancy {
                    replicas: members,
                    erasure: Erasure::new(data, members.saturating_sub(data)),
                };
                let more = self.plan(all, redundancy, &existing);
                existing.extend_from_slice(&more);
                added.extend(more);
            }
            added
        };
        let now = self.inner.world.clock.wall();
        for unit in self.inner.database.units().plan(added, plan, now).await? {
            tracing::info!(unit = %unit.id, url = unit.url, "unit added");
        }
        Ok(())
    }

    fn plan(self, units: &[UnitRow], redundancy: Redundancy, existing: &[Copyset]) -> Vec<Copyset> {
        let Redundancy { replicas, erasure } = redundancy;
        let random = &*self.inner.world.random;
        let width = self.inner.scatter_width;
        let ids = used(units);
        let zones = zones_of(units);
        copysets::plan(&ids, &zones, replicas, erasure, existing, width, random)
    }

    /// The notice if the copies, or the units with data and parity, cannot all be in different
    /// zones.
    pub(crate) async fn missing_zones(
        self,
        redundancy: Redundancy,
    ) -> Result<Option<Message>, ControlError> {
        let needed = redundancy.members();
        let units = self.inner.database.units().all().await?;
        let used = used(&units);
        let zones = copysets::zone_count(&used, &zones_of(&units));
        let is_enough = zones >= usize::from(needed) || used.len() < usize::from(needed);
        let what = match redundancy.erasure {
            Some(erasure) => format!("units of erasure {erasure}"),
            None => format!("{needed} copies"),
        };
        Ok((!is_enough).then(|| {
            let text = format!(
                "{what} have to be in {needed} zones to be apart, and there are \
                 {zones}: some lie in one zone, and are lost with it; have an administrator add \
                 units in other zones (`scree unit add --zone`, `scree unit set-zone`)"
            );
            Message::new(MessageCode::ZonesInsufficient, text)
        }))
    }

    /// Creates copysets for volumes of this redundancy, if there are none.
    pub(crate) async fn ensure_copysets(
        self,
        redundancy: Redundancy,
        is_dry_run: bool,
    ) -> Result<(), ControlError> {
        let units = self.inner.database.units().all().await?;
        let count = used(&units).len();
        let needed = redundancy.members();
        if count < usize::from(needed) {
            let (field, what) = match redundancy.erasure {
                Some(erasure) => ("erasure", format!("erasure {erasure} needs")),
                None => ("replicas", format!("{needed} replicas need")),
            };
            return Err(ControlError::invalid(
                field,
                format!(
                    "{what} {needed} units, and there are {count}; ask for \
                     fewer, or have an administrator add units (`scree unit add`)",
                ),
            ));
        }
        let plan = |all: &[UnitRow], existing: &[Copyset]| self.plan(all, redundancy, existing);
        // There is rarely anything to add, and reading first avoids a write transaction.
        if !is_dry_run && !plan(&units, &self.copysets().await?).is_empty() {
            let now = self.inner.world.clock.wall();
            self.inner.database.units().plan(&[], plan, now).await?;
        }
        Ok(())
    }

    /// The notice if copysets were planned before the zones were set.
    pub(crate) async fn shared_zones(self) -> Result<Option<Message>, ControlError> {
        let units = self.inner.database.units().all().await?;
        let (ids, zones) = (used(&units), zones_of(&units));
        let enough = copysets::zone_count(&ids, &zones);
        let is_shared = |set: &&Copyset| {
            let members = &set.members;
            members.len() <= enough && copysets::zone_count(members, &zones) < members.len()
        };
        let shared = self.copysets().await?.iter().filter(is_shared).count();
        Ok((shared > 0).then(|| {
            let text = format!(
                "{shared} sets of units that hold segments together have two in one zone: they \
                 were planned before it was said, and stay in use"
            );
            Message::new(MessageCode::ZonesShared, text)
        }))
    }

    /// The default number of copies: two if there are two units, so that a unit may be lost; else
    /// one.
    pub(crate) async fn default_replicas(self) -> Result<u8, ControlError> {
        let units = self.inner.database.units().all().await?;
        Ok(default_replicas(used(&units).len()))
    }

    /// Free space on the units' file systems in bytes, if it is known.
    pub(crate) async fn free_bytes(self) -> Result<Option<u64>, ControlError> {
        let hosts = self.inner.database.hosts().all().await?;
        Ok(least_free(&hosts, self.unresponsive_before().await?))
    }
}

/// Storage units, as one authorized request may change them.
#[derive(Clone, Copy)]
pub struct Units<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Storage units.
    #[must_use]
    pub fn units(&self) -> Units<'_> {
        Units { request: self }
    }
}

impl Units<'_> {
    /// Adds a unit at `url` in `zone`, which `host` creates. The folder, bucket or pool must exist,
    /// so that a mistyped or unmounted path is not taken for a new unit; and be empty, or be a unit
    /// of this cluster already.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add(
        self,
        host: PartyId,
        url: &str,
        zone: Option<&str>,
    ) -> Result<UnitView, ControlError> {
        self.request.must_administer()?;
        let zone = zone.map(parse::zone).transpose()?;
        let what = JobKind::AddUnit {
            url: url.to_owned(),
            zone: zone.map(str::to_owned),
        };
        let hint = "it adds the unit when it can, and `scree unit list` shows it then";
        let JobOutput::Unit(unit) = self.request.task(host, &what, "url", hint).await? else {
            return Err(wrong_output());
        };
        self.get(&unit.id.to_string()).await
    }

    /// A unit: by its id, its URL, or the name of its daemon.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn get(self, name: &str) -> Result<UnitView, ControlError> {
        self.request.must_administer()?;
        let mut units = self.request.unit_registry().all().await?.into_iter();
        let found = units.find(|unit| is_called(&unit.row, name));
        found.ok_or_else(|| no_unit(name))
    }

    /// Sets the zone of a unit, which may be that of a daemon that has never started. Copysets that
    /// respect the zone are added. Returns the unit's id and a notice for the operator.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Invalid`] for a name that is none.
    pub async fn set_zone(
        self,
        name: &str,
        zone: Option<&str>,
    ) -> Result<(UnitId, Option<Message>), ControlError> {
        self.request.must_administer()?;
        let zone = zone.map(parse::zone).transpose()?;
        let database = &self.request.inner.database;
        let units = database.units().all().await?;
        let unit = match units.iter().find(|unit| is_called(unit, name)) {
            Some(unit) => unit.id,
            None => {
                let daemon = Subject::new(Kind::Unit, name).map_err(|_| no_unit(name))?;
                match database.parties().get(&daemon).await {
                    Ok(party) => unit_of(party.id),
                    Err(DatabaseError::NotFound { .. }) => return Err(no_unit(name)),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        database
            .units()
            .set_zone(self.request.principal(), unit, zone)
            .await?;
        if self.request.is_dry_run() {
            return Ok((unit, None));
        }
        self.request.unit_registry().plan_over(&[]).await?;
        Ok((unit, self.request.unit_registry().shared_zones().await?))
    }
}

impl AuthorizedRequest {
    /// Sends a job to `host` and waits for the answer. A refusal names the request's `field`;
    /// `hint` says what happens if the host does not answer.
    pub(crate) async fn task(
        &self,
        host: PartyId,
        what: &JobKind,
        field: &'static str,
        hint: &str,
    ) -> Result<JobOutput, ControlError> {
        // No host would hear of it.
        debug_assert!(!self.is_dry_run(), "a task is not tried");
        let task = self
            .inner
            .database
            .hosts()
            .insert_job(self.principal(), host, what);
        let answer = self.task_done_within(task.await?, ADD_WITHIN).await?;
        let Some(answer) = answer else {
            return Err(ControlError::Unavailable {
                reason: format!("the host does not answer; {hint}"),
            });
        };
        answer.map_err(|refusal| refused(&refusal, field))
    }

    /// The answer to a job, if it arrives in time. The job is deleted then.
    pub(crate) async fn task_done_within(
        &self,
        task: i64,
        within: Duration,
    ) -> Result<Option<JobResult>, ControlError> {
        let database = &self.inner.database;
        let answer = self
            .until(within, || async {
                Ok(database.hosts().job_answer(task).await?)
            })
            .await?;
        if answer.is_some() {
            let now = self.principal().by.at;
            let old = Millis(now.0.saturating_sub(FORGET_MS));
            database.hosts().forget_job(task, old).await?;
        }
        Ok(answer)
    }
}

/// Selects the reports that count: those of responsive hosts, or, if none of these reports on the
/// object, the last ones of unresponsive hosts.
fn counting<T>(
    said: impl Iterator<Item = (Option<Millis>, T)>,
    unresponsive_before: Millis,
) -> impl Iterator<Item = T> {
    let is_unresponsive =
        |said: &(Option<Millis>, T)| said.0.is_none_or(|heard| heard <= unresponsive_before);
    let (unresponsive, there): (Vec<_>, Vec<_>) = said.partition(is_unresponsive);
    let counts = if there.is_empty() {
        unresponsive
    } else {
        there
    };
    counts.into_iter().map(|(_, what)| what)
}

/// The least free space that a host reports, in bytes. Unresponsive hosts count only if no other
/// host reports.
fn least_free(hosts: &[HostRow], unresponsive_before: Millis) -> Option<u64> {
    let said = hosts.iter();
    let said = said.filter_map(|host| Some((host.heard, host.free_bytes?)));
    counting(said, unresponsive_before).min()
}

/// Those over which copysets are planned.
fn used(units: &[UnitRow]) -> Vec<UnitId> {
    let used = units
        .iter()
        .filter(|unit| !unit.is_disabled && !unit.is_draining);
    used.map(|unit| unit.id).collect()
}

pub(crate) fn zones_of(units: &[UnitRow]) -> Zones {
    let zone = |unit: &UnitRow| Some((unit.id, unit.zone.clone()?));
    units.iter().filter_map(zone).collect()
}

/// A unit that a host has marked.
fn marked(unit: &HostUnit, zone: Option<String>) -> Result<UnitRow, ControlError> {
    if unit.url.starts_with("scree:") {
        let reason = format!("{}: a unit daemon adds itself", unit.url);
        return Err(ControlError::invalid("units", reason));
    }
    Ok(UnitRow {
        zone,
        ..UnitRow::new(unit.id, unit.url.clone())
    })
}

pub(crate) fn is_called(unit: &UnitRow, name: &str) -> bool {
    unit.id.to_string() == name || unit.url == name || unit.daemon.as_deref() == Some(name)
}

/// How a unit is called where people read of it.
pub(crate) fn name_of(units: &[UnitRow], id: UnitId) -> String {
    let row = units.iter().find(|unit| unit.id == id);
    let name = row.map(|unit| unit.daemon.as_ref().unwrap_or(&unit.url));
    name.map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
}

pub(crate) fn no_unit(name: &str) -> ControlError {
    ControlError::NotFound {
        what: format!("unit {name}"),
        hint: "`scree unit list` shows those there are".into(),
    }
}

fn default_replicas(units: usize) -> u8 {
    if units >= 2 { 2 } else { 1 }
}

/// The error if a host's answer does not match the job.
pub(crate) fn wrong_output() -> ControlError {
    ControlError::Internal {
        reason: "the host has done something else than it was asked".to_owned(),
    }
}

fn refused(refusal: &Refusal, field: &'static str) -> ControlError {
    match refusal.field {
        Some(_) => ControlError::invalid(field, refusal.message.clone()),
        None => ControlError::conflict(refusal.message.clone()),
    }
}

fn view(row: UnitRow, hosts: &[HostReport], unresponsive_before: Millis) -> UnitView {
    let said = || {
        hosts.iter().filter_map(|HostReport { host, report }| {
            let unit = report.units.iter().find(|unit| unit.id == row.id)?;
            Some((host.heard, (host, unit)))
        })
    };
    let found = |(_, report): &(&HostRow, &UnitReport)| {
        trouble(state_in(report)) < trouble(UnitState::Missing)
    };
    let found_by = counting(said(), unresponsive_before).find(found);
    // The first of those that are as bad.
    let reports = counting(said(), unresponsive_before).map(|(_, report)| report);
    let worst = reports.min_by_key(|report| Reverse(trouble(state_in(report))));
    UnitView {
        report: worst.cloned(),
        found_by: found_by.map(|(host, _)| host.name.clone()),
        second: row
            .second
            .clone()
            .filter(|(_, at)| at.0 > unresponsive_before.0 - SECOND_PLACE_MS)
            .map(|(url, _)| url),
        read_bytes: said().map(|(_, (_, report))| report.read_bytes).sum(),
        written_bytes: said().map(|(_, (_, report))| report.written_bytes).sum(),
        row,
    }
}

#[cfg(test)]
mod tests {
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
    fn said(words: &[(i64, &str)]) -> UnitView {
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

    /// A repaired unit was once shown as broken while a host that had reported it so was
    /// unresponsive.
    #[test]
    fn the_report_of_an_unresponsive_host_counts_if_there_is_no_other() {
        let repaired = said(&[(100, "missing"), (101, "healthy")]);
        assert!(repaired.is_healthy());
        assert_eq!((repaired.read_bytes, repaired.written_bytes), (6, 10));
        let gone = said(&[(99, "full"), (100, "missing")]);
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
