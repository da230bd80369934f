//! [`Units`]: the storage units of this host: mounted as the controllers list them, added, probed
//! and reported.
//!
//! * `mounted`: one unit; `watch`: unresponsive units; `scan`: scans of units
//! * `backends`: units that this host accesses directly; `links`: unit daemons
//! * `adding`: creating a unit in a backend
//! * `lease_count`: the lease count stored on a unit
//! * `rejoined`, `reports`: units that are available again
//!
//! No caller waits long for a unit: it gets the unit's last answer.
//!
//! Must not know: volumes, attachments, who owns the database.

mod adding;
mod backends;
pub(crate) mod lease_count;
mod links;
mod mounted;
mod rejoined;
mod reports;
mod scan;
pub(crate) mod watch;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use api::ClientError;
use api::host::{HostUnit, UnitReport};
use base::with_causes;
use catalog::Copyset;
use parking_lot::Mutex;
use unit::{TrackedUnit, Unit, UnitError, UnitState};
use unit_remote::{RemoteUnit, endpoint_of_url};
use volume::Store;

use crate::context::{HostContext, TaskFailed};
use crate::controller::Controller;
use backends::{Unreachable, backend_of};
use lease_count::CountSigner;
use links::Links;
use watch::{ANSWER_WITHIN, WatchedUnit};

pub(crate) use mounted::MountedUnit;
pub(crate) use rejoined::RejoinedUnits;
pub(crate) use reports::RejoinReports;
pub(crate) use scan::POLL_INTERVAL;

/// Why the units cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// A first unit could not be created.
    #[error("cannot create a unit")]
    Make(#[from] UnitError),
    /// Another copy of the database uses all units.
    #[error("no unit can be used: {}; {remedy}", with_causes(source))]
    Held {
        /// The error of one unit.
        source: Arc<UnitError>,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// The controllers did not register the units.
    #[error("the units cannot be registered with the controller: {0}")]
    Unregistered(#[from] ClientError),
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}

/// The units of a host.
pub(crate) struct Units {
    context: Arc<HostContext>,
    controller: Controller,
    store: Arc<Store>,
    links: Links,
    count_signer: CountSigner,
    rejoined: RejoinedUnits,
    mounted: Mutex<Vec<MountedUnit>>,
}

impl Units {
    /// No units yet. Mounted units will be put into the table of `store`.
    pub fn new(
        context: Arc<HostContext>,
        controller: Controller,
        store: Arc<Store>,
        count_signer: CountSigner,
    ) -> Self {
        let links = Links::new(
            context.cluster,
            Arc::clone(&context.world.clock),
            Arc::clone(controller.capability_cache()),
        );
        Self {
            context,
            controller,
            store,
            links,
            count_signer,
            rejoined: RejoinedUnits::default(),
            mounted: Mutex::default(),
        }
    }

    pub fn context(&self) -> &HostContext {
        &self.context
    }

    pub fn count_signer(&self) -> &CountSigner {
        &self.count_signer
    }

    pub fn rejoined(&self) -> &RejoinedUnits {
        &self.rejoined
    }

    /// The mounted units.
    pub fn mounted(&self) -> Vec<MountedUnit> {
        self.mounted.lock().clone()
    }

    /// Applies the list of the controllers: mounts new units, and updates the addresses of moved
    /// ones.
    pub fn follow(&self, units: &[HostUnit], copysets: &[Copyset]) {
        let mut mounted = self.mounted.lock();
        // A removed unit is not used any more.
        mounted.retain(|known| units.iter().any(|unit| unit.id == known.id));
        for unit in units {
            let done = match mounted.iter_mut().find(|known| known.id == unit.id) {
                Some(known) if known.url == unit.url => Ok(()),
                Some(known) => self.follow_move(known, &unit.url),
                None => self.mount(unit).map(|new| mounted.push(new)),
            };
            if let Err(why) = done {
                tracing::error!(unit = unit.url, error = why, "agent cannot use unit");
            }
            if let Some(known) = mounted.iter().find(|known| known.id == unit.id) {
                known.tracked.set_closed(unit.is_disabled);
            }
        }
        let table = mounted
            .iter()
            .map(|mounted| (mounted.id, Arc::clone(&mounted.tracked)))
            .collect();
        self.store.set_table(table, copysets);
    }

    /// Refuses to start if another copy of the database uses all units: the host could do nothing,
    /// and starting it is probably a mistake.
    pub fn refuse_if_held(&self) -> Result<(), UnitsError> {
        let owner = &self.context.owner;
        if owner.takes_over {
            // The operator has declared that it is no mistake.
            return Ok(());
        }
        let units = self.mounted.lock();
        let is_missing = |mounted: &MountedUnit| mounted.tracked.state() == UnitState::Missing;
        let held = units.iter().find_map(MountedUnit::held_by_other);
        let held = held.and_then(|error| owner.remedy(&error).map(|remedy| (error, remedy)));
        match held {
            Some((source, remedy)) if units.iter().all(is_missing) => {
                Err(UnitsError::Held { source, remedy })
            }
            _ => Ok(()),
        }
    }

    /// Gets a certificate for unit daemons, if there are any. A failure is retried later.
    pub async fn get_certificate(&self) {
        if self.links.wants_certificate()
            && let Err(error) = self.links.renew_certificate(&self.controller).await
        {
            let why = with_causes(&error);
            tracing::error!(
                error = why,
                "agent has no certificate for unit daemons and will retry"
            );
        }
    }

    /// Renews the certificate as long as there are unit daemons.
    pub async fn keep_certificate(&self) {
        self.links.keep_certificate(&self.controller).await;
    }

    /// Switches to the new address of a unit daemon. The mounted unit stays, because it knows which
    /// writes are not synced.
    fn follow_move(&self, known: &mut MountedUnit, url: &str) -> Result<(), String> {
        match (&known.folder, endpoint_of_url(url)) {
            (None, Some(endpoint)) => {
                let link = self.links.link(known.id, endpoint);
                link.map_err(|error| error.to_string())?;
                tracing::info!(
                    from = known.url,
                    to = url,
                    "unit daemon changed its address"
                );
                known.url = url.to_owned();
                Ok(())
            }
            _ => Err(format!(
                "its URL was {} before; restart this agent",
                known.url
            )),
        }
    }

    fn mount(&self, unit: &HostUnit) -> Result<MountedUnit, String> {
        let clock = &self.context.world.clock;
        let mut folder = None;
        let mut answer_within = ANSWER_WITHIN;
        let inner: Arc<dyn Unit> = match endpoint_of_url(&unit.url) {
            Some(endpoint) => {
                let link = self.links.link(unit.id, endpoint);
                let link = link.map_err(|error| error.to_string())?;
                // The address of the daemon may change.
                Arc::new(RemoteUnit::new(format!("scree://{}", unit.id), link))
            }
            None => match backend_of(&unit.url) {
                Ok(backend) => {
                    folder = backend.folder().map(Path::to_owned);
                    answer_within = backend.answers_within();
                    backend.open(&self.context, unit.id)
                }
                Err(refusal) => Unreachable::unit(&unit.url, refusal.message),
            },
        };
        let watched = WatchedUnit::new(Arc::clone(&inner), Arc::clone(clock));
        let watched = Arc::new(watched.answering_within(answer_within));
        let tracked = TrackedUnit::new(Arc::clone(&watched) as _, Arc::clone(clock));
        Ok(MountedUnit {
            id: unit.id,
            url: unit.url.clone(),
            folder,
            tracked: Arc::new(tracked),
            watched,
            unit: inner,
            noted_leases: Arc::default(),
            facts: Arc::default(),
        })
    }

    /// Free bytes on the units' file systems, as far as they have reported them; `None` if none
    /// has. A file system of this host is counted once, even if it holds several units.
    pub fn free_bytes(&self) -> Option<u64> {
        let mut by_file_system = HashMap::new();
        for mounted in self.mounted.lock().iter() {
            let found = mounted.watched.last_found();
            let free = found.stat.and_then(|stat| stat.free_bytes);
            let file_system = match (&mounted.folder, found.device) {
                // The file system of a daemon's folder is unknown.
                (None, _) => (Some(mounted.id), 0),
                (Some(_), Some(device)) => (None, device),
                (Some(_), None) => continue,
            };
            if let Some(free) = free {
                by_file_system.insert(file_system, free);
            }
        }
        (!by_file_system.is_empty()).then(|| by_file_system.values().sum())
    }

    /// The last answers of all units.
    pub fn reports(&self) -> Vec<UnitReport> {
        let owner = &self.context.owner;
        let units = self.mounted.lock();
        units.iter().map(|mounted| mounted.report(owner)).collect()
    }
}
