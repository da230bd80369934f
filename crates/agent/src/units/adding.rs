//! Making units of backends: the first ones of a cluster, and those that are added later.

use std::sync::Arc;

use api::host::calls::RegisterUnits;
use api::host::{HostUnit, Refusal};
use base::UnitId;
use unit::UnitError;

use super::backends::{Backend, Folder, backend_of};
use super::{Units, UnitsError};
use crate::context::{HostContext, blocking};

impl Units {
    /// Makes the first units of a cluster that has none, folders in D.
    pub async fn make_first(&self, count: usize) -> Result<(), UnitsError> {
        if count == 0 {
            tracing::warn!("cluster has no units yet; add some with `scree unit add`");
            return Ok(());
        }
        let context = Arc::clone(&self.context);
        let made = blocking(move || {
            (1..=count)
                .map(|number| make_unit(&context, &Folder(context.folder.unit(number))))
                .collect::<Result<Vec<_>, UnitError>>()
        });
        let units = made.await??;
        self.controller.call(&RegisterUnits { units }).await?;
        tracing::info!(units = count, "agent made folder units");
        Ok(())
    }

    /// Makes the backend at `url` a unit. It must exist, so that a mistyped or unmounted path is
    /// not taken for a new unit; and be empty, or be a unit of this cluster already.
    pub async fn add(&self, url: &str) -> Result<HostUnit, Refusal> {
        let url = url.to_owned();
        let known: Vec<KnownUnit> = self
            .mounted()
            .into_iter()
            .map(|unit| KnownUnit {
                id: unit.id,
                url: unit.url,
            })
            .collect();
        let context = Arc::clone(&self.context);
        let added = blocking(move || add(&context, &known, &url)).await;
        added.unwrap_or_else(|error| Err(refused(error.to_string())))
    }
}

/// A unit that is mounted already.
struct KnownUnit {
    id: UnitId,
    url: String,
}

fn add(context: &HostContext, known: &[KnownUnit], url: &str) -> Result<HostUnit, Refusal> {
    let backend = backend_of(url)?.resolved()?;
    if let Some(other) = known.iter().find(|other| backend.overlaps(&other.url)) {
        return Err(refused(format!(
            "{} is, holds or lies in {}, which is a unit already; give each unit a place of its \
             own",
            backend.url(),
            other.url
        )));
    }
    // Before anything is written there. A marker that cannot be read is left to `make_unit`.
    let found = backend.identify(context);
    let is_twin = |other: &&KnownUnit| found == Some((context.cluster, other.id));
    if let Some(KnownUnit { id, url: twin }) = known.iter().find(is_twin) {
        return Err(refused(format!(
            "{} is a copy of unit {id} at {twin}, or was moved from there, or is that one by \
             another name; a unit cannot be used twice",
            backend.url(),
        )));
    }
    make_unit(context, &*backend).map_err(|error| refused(context.owner.describe(&error)))
}

fn refused(reason: String) -> Refusal {
    Refusal {
        field: None,
        message: reason,
    }
}

/// Makes an empty backend a unit; a unit of this cluster is taken as it is.
fn make_unit(context: &HostContext, backend: &dyn Backend) -> Result<HostUnit, UnitError> {
    let id = match backend.identify(context) {
        Some((cluster, unit)) if cluster == context.cluster => unit,
        // Anything else that is there makes `make` say what it is.
        _ => UnitId::from_u128(context.world.random.u128()),
    };
    let unit = backend.make(context, id)?;
    Ok(HostUnit {
        id,
        url: unit.url().to_owned(),
        is_disabled: false,
    })
}
