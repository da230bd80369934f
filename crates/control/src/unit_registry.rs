//! [`UnitRegistry`]: the units of the cluster, their observed states, and the copysets that are
//! planned over them.

use std::ops::Deref;

use api::host::HostUnit;
use world::Millis;

use crate::control::Control;
use crate::database::{HostReport, UnitRow};
use crate::error::ControlError;
use crate::units::{UnitView, least_free, view};

/// The units of the cluster.
#[derive(Clone, Copy)]
pub struct UnitRegistry<'a> {
    control: &'a Control,
}

impl Deref for UnitRegistry<'_> {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.control
    }
}

impl Control {
    /// The units of the cluster.
    #[must_use]
    pub fn unit_registry(&self) -> UnitRegistry<'_> {
        UnitRegistry { control: self }
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

    /// Registers units that a host has created, and plans copysets over them. Registering a unit
    /// again is no error.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn register_all(self, units: &[HostUnit]) -> Result<(), ControlError> {
        let rows: Result<Vec<UnitRow>, _> = units.iter().map(|unit| marked(unit, None)).collect();
        self.add(&rows?).await
    }

    /// As [`UnitRegistry::register_all`], for one unit in `zone`.
    pub(crate) async fn register(
        self,
        unit: &HostUnit,
        zone: Option<String>,
    ) -> Result<(), ControlError> {
        self.add(&[marked(unit, zone)?]).await
    }

    /// Adds the units that are not registered yet, and plans copysets over them.
    pub(crate) async fn add(self, units: &[UnitRow]) -> Result<(), ControlError> {
        let known = self.inner.database.units().all().await?;
        let is_known = |unit: &UnitRow| known.iter().any(|known| known.id == unit.id);
        if units.iter().all(is_known) {
            return Ok(());
        }
        self.plan_over(units).await
    }

    /// Free space on the units' file systems in bytes, if it is known.
    pub(crate) async fn free_bytes(self) -> Result<Option<u64>, ControlError> {
        let hosts = self.inner.database.hosts().all().await?;
        Ok(least_free(&hosts, self.unresponsive_before().await?))
    }
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
