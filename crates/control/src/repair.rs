//! Units that go, and what is repaired (docs/internals/repair.md).

use std::collections::HashSet;
use std::time::Duration;

use api::host::Report;
use api::words::UnitState;
use base::UnitId;
use world::Millis;

use crate::control::Control;
use crate::database::{DrainResult, HostReport, Removal, RepairRow, UnitRow};
use crate::error::ControlError;
use crate::units::Units;
use crate::units::{UnitView, is_called, no_unit};

/// The default time after which a missing unit is replaced.
pub const REPLACE_AFTER: Duration = Duration::from_secs(3600);

impl Units<'_> {
    /// Drains units: others take over what they hold. Each is removed when it is a member of no
    /// copyset any more.
    ///
    /// # Errors
    /// [`ControlError`]: then nothing has changed.
    pub async fn drain(self, names: &[String]) -> Result<Vec<(UnitId, DrainResult)>, ControlError> {
        self.request.must_administer()?;
        let views = self.request.unit_registry().all().await?;
        let units = all_named(&views, names)?;
        let usable = usable(&views);
        let database = &self.request.inner.database;
        let drained = database
            .units()
            .drain(self.request.principal(), &units, &usable);
        Ok(drained.await?)
    }

    /// Ends that: each takes its places back.
    ///
    /// # Errors
    /// [`ControlError`]: then nothing has changed.
    pub async fn cancel_drain(
        self,
        names: &[String],
    ) -> Result<Vec<(UnitId, DrainResult)>, ControlError> {
        self.request.must_administer()?;
        let units = all_named(&self.request.unit_registry().all().await?, names)?;
        let database = &self.request.inner.database;
        Ok(database
            .units()
            .cancel_drain(self.request.principal(), &units)
            .await?)
    }

    /// Removes a unit that is a member of no copyset, or that is lost for good.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn remove(
        self,
        name: &str,
        how: Removal,
    ) -> Result<(UnitId, DrainResult), ControlError> {
        self.request.must_administer()?;
        let units = self.request.unit_registry().all().await?;
        let removed = view_of(&units, name)?;
        let unit = removed.row.id;
        let there = units.iter().filter(|unit| unit.found_by.is_some());
        let there: HashSet<UnitId> = there.map(|unit| unit.row.id).collect();
        if let Some(host) = removed.found_by.as_ref().filter(|_| how != Removal::Empty)
            && !removed.row.is_disabled
        {
            let reason = format!(
                "host {host} still reaches {name}: `scree unit drain` moves its data to other \
                 units. If it must not be read any more, stop its daemon or unmount it, and try \
                 again",
            );
            return Err(ControlError::Conflict { reason });
        }
        let usable = usable(&units);
        let database = &self.request.inner.database;
        let removed = database
            .units()
            .remove(self.request.principal(), unit, how, &usable, &there);
        Ok((unit, removed.await?))
    }

    /// Lets units take over copysets from those that have more. Returns how many.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn rebalance(self) -> Result<u64, ControlError> {
        self.request.must_administer()?;
        let usable = usable(&self.request.unit_registry().all().await?);
        Ok(self
            .request
            .inner
            .database
            .units()
            .rebalance(self.request.principal(), &usable)
            .await?)
    }

    /// Has every slot of a unit's copysets read and compared; of all copysets, if
    /// none is named. Returns of how many.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn scrub(self, name: Option<&str>) -> Result<u64, ControlError> {
        self.request.must_administer()?;
        let unit = match name {
            None => None,
            Some(name) => Some(named(
                &self.request.inner.database.units().all().await?,
                name,
            )?),
        };
        Ok(self
            .request
            .inner
            .database
            .units()
            .request_scrub(self.request.principal(), unit)
            .await?)
    }

    /// Requests a comparison of all members of all copysets; what is missing is copied. Returns the
    /// number of copysets.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn repair(self) -> Result<u64, ControlError> {
        self.request.must_administer()?;
        Ok(self
            .request
            .inner
            .database
            .units()
            .request_comparison(self.request.principal())
            .await?)
    }

    /// What is repaired, or waits for it.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn repairs(self) -> Result<Vec<RepairRow>, ControlError> {
        self.request.must_administer()?;
        let now = self.request.now().await?;
        Ok(self.request.inner.database.repair().list(now).await?)
    }
}

impl Control {
    /// Replaces the units that all responsive hosts have reported missing for longer than
    /// `replace_after`.
    pub(crate) async fn replace_missing(&self, report: &Report) -> Result<(), ControlError> {
        let inner = &self.inner;
        let is_missing = |unit: &api::host::UnitReport| {
            unit.state.parse().unwrap_or(UnitState::Unknown) == UnitState::Missing
        };
        let units = inner.database.units().all().await?;
        let is_noted = units.iter().any(|unit| unit.missing_since.is_some());
        if inner.replace_after.is_zero() || (!is_noted && !report.units.iter().any(is_missing)) {
            return Ok(());
        }
        let hosts = inner.database.hosts().reports().await?;
        let unresponsive_before = self.unresponsive_before().await?;
        let missing = missing(&units, &hosts, unresponsive_before);
        let now = self.now().await?;
        let after = i64::try_from(inner.replace_after.as_millis()).unwrap_or(i64::MAX);
        let since = Millis(now.0.saturating_sub(after));
        let database = &inner.database;
        let long = database
            .units()
            .record_missing(&missing, now, since, unresponsive_before)
            .await?;
        if long.is_empty() {
            return Ok(());
        }
        let mut usable = usable(&self.unit_registry().of_reports(&hosts).await?);
        usable.retain(|unit| !missing.contains(unit));
        let ids = units.iter().map(|unit| unit.id);
        let there: HashSet<UnitId> = ids.filter(|unit| !missing.contains(unit)).collect();
        for unit in long {
            let replaced = inner
                .database
                .units()
                .replace_missing(unit, &usable, &there, now);
            let copysets = replaced.await?;
            if copysets > 0 {
                tracing::warn!(%unit, copysets, "controller replaces missing unit");
            }
        }
        Ok(())
    }
}

/// The units that all responsive hosts report missing.
fn missing(
    units: &[UnitRow],
    hosts: &[HostReport],
    unresponsive_before: Millis,
) -> HashSet<UnitId> {
    let there = || {
        let heard = |host: &&HostReport| host.host.heard.is_some_and(|at| at > unresponsive_before);
        hosts.iter().filter(heard)
    };
    let is_missing = |unit: &&UnitRow| {
        let mut said = there()
            .flat_map(|host| {
                host.report
                    .units
                    .iter()
                    .filter(|report| report.id == unit.id)
            })
            .map(|report| report.state.parse().unwrap_or(UnitState::Unknown))
            .peekable();
        said.peek().is_some() && said.all(|state| state == UnitState::Missing)
    };
    let missing = units.iter().filter(is_missing);
    missing.map(|unit| unit.id).collect()
}

/// Those that may take over what others have.
fn usable(units: &[UnitView]) -> HashSet<UnitId> {
    let takes = |unit: &&UnitView| {
        let state = unit.state();
        !unit.row.is_draining && matches!(state, UnitState::Healthy | UnitState::Unknown)
    };
    units.iter().filter(takes).map(|unit| unit.row.id).collect()
}

fn view_of<'a>(units: &'a [UnitView], name: &str) -> Result<&'a UnitView, ControlError> {
    let found = units.iter().find(|unit| is_called(&unit.row, name));
    found.ok_or_else(|| no_unit(name))
}

/// The units that are called so, each once.
fn all_named(units: &[UnitView], names: &[String]) -> Result<Vec<UnitId>, ControlError> {
    let mut found = Vec::new();
    for name in names {
        let unit = view_of(units, name)?.row.id;
        if !found.contains(&unit) {
            found.push(unit);
        }
    }
    Ok(found)
}

/// The unit that is called so.
fn named(units: &[UnitRow], name: &str) -> Result<UnitId, ControlError> {
    let found = units.iter().find(|unit| is_called(unit, name));
    found.map(|unit| unit.id).ok_or_else(|| no_unit(name))
}
