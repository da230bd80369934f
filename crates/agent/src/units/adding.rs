//! Creating units in backends: the first ones of a cluster, and later ones.

use std::sync::Arc;

use api::host::calls::RegisterUnits;
use api::host::{HostUnit, Refusal};
use base::UnitId;
use unit::UnitError;

use super::backends::{Backend, Folder, backend_of};
use super::{Units, UnitsError};
use crate::context::{HostContext, blocking};

impl Units {
    /// Creates the first units of a cluster without units, as folders in the data directory.
    pub async fn make_first(&self, count: usize) -> Result<(), UnitsError> {
        if count == 0 {
            tracing::warn!("cluster has no units; add some with `scree unit add`");
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
        tracing::info!(units = count, "agent created folder units");
        Ok(())
    }

    /// Makes the backend at `url` a unit. The backend must exist, so that a mistyped or unmounted
    /// path does not become a unit; and it must be empty, or already a unit of this cluster.
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

/// A mounted unit.
struct KnownUnit {
    id: UnitId,
    url: String,
}

fn add(context: &HostContext, known: &[KnownUnit], url: &str) -> Result<HostUnit, Refusal> {
    let backend = backend_of(url)?.resolved()?;
    if let Some(other) = known.iter().find(|other| backend.overlaps(&other.url)) {
        return Err(refused(format!(
            "{} overlaps {}, which is already a unit; give each unit a location of its \
             own",
            backend.url(),
            other.url
        )));
    }
    // Checked before anything is written. `make_unit` reports a marker that cannot be read.
    let found = backend.identify(context);
    let is_twin = |other: &&KnownUnit| found == Some((context.cluster, other.id));
    if let Some(KnownUnit { id, url: twin }) = known.iter().find(is_twin) {
        return Err(refused(format!(
            "{} is a copy of unit {id} at {twin}, or was moved from there, or is the same folder by \
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

/// Makes an empty backend a unit; a unit of this cluster is used unchanged.
fn make_unit(context: &HostContext, backend: &dyn Backend) -> Result<HostUnit, UnitError> {
    let id = match backend.identify(context) {
        Some((cluster, unit)) if cluster == context.cluster => unit,
        // `make` reports anything else that it finds.
        _ => UnitId::from_u128(context.world.random.u128()),
    };
    let unit = backend.make(context, id)?;
    Ok(HostUnit {
        id,
        url: unit.url().to_owned(),
        is_disabled: false,
    })
}
