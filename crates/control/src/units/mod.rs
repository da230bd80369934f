//! The requests about storage units: adding one, reading it, setting its zone.
//!
//! * `view`: a unit as all hosts see it
//! * `planning`: the copysets that are planned over the units

mod planning;
mod view;

use api::host::{JobKind, JobOutput};
use api::types::Message;
use auth::{Kind, Subject};
use base::{PartyId, UnitId};

use crate::authorized_request::AuthorizedRequest;
use crate::database::{DatabaseError, UnitRow};
use crate::error::ControlError;
use crate::host_jobs::wrong_output;
use crate::parse;
use crate::parties::unit_of;

pub(crate) use planning::zones_of;
pub use view::UnitView;
pub(crate) use view::{least_free, view};

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
        let hint = "it will add the unit when it is back, and `scree unit list` will show the unit";
        let JobOutput::Unit(unit) = self.request.run_job(host, &what, "url", hint).await? else {
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

pub(crate) fn is_called(unit: &UnitRow, name: &str) -> bool {
    // A folder is accepted as its path, too, as `scree unit add` accepts it.
    let path = unit.url.strip_prefix("file://");
    unit.id.to_string() == name
        || unit.url == name
        || path.is_some_and(|path| path == name)
        || unit.daemon.as_deref() == Some(name)
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
        hint: "`scree unit list` lists the units".into(),
    }
}
