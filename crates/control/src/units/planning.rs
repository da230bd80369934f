//! Copysets over the units: which are planned for a redundancy, and whether there are enough zones
//! for it.

use api::types::Message;
use api::words::MessageCode;
use base::UnitId;
use catalog::copysets::{self, Zones};
use catalog::{Copyset, Erasure};

use crate::database::UnitRow;
use crate::error::ControlError;
use crate::unit_registry::UnitRegistry;
use crate::volumes::Redundancy;

impl UnitRegistry<'_> {
    /// Plans copysets over the existing and the added units, as wide as existing ones and as the
    /// default redundancy.
    pub(crate) async fn plan_over(self, added: &[UnitRow]) -> Result<(), ControlError> {
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
            tracing::info!(unit = %unit.id, url = unit.url, "controller added unit");
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
                "{what} need {needed} zones, and there are {zones}: some share a zone, and are \
                 lost with it; ask an administrator to add units in other zones (`scree unit add \
                 --zone`, `scree unit set-zone`)"
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
                    "{what} {needed} units, and there are {count}; ask for fewer, or ask an \
                     administrator to add units (`scree unit add`)",
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
                "{shared} copysets have two units in one zone: they were planned before the zones \
                 were named, and stay in use"
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

fn default_replicas(units: usize) -> u8 {
    if units >= 2 { 2 } else { 1 }
}
