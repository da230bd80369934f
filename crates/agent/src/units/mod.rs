//! [`Units`]: the storage units of this host: mounted as the controllers list them, added, looked
//! at, and reported.
//!
//! * `mounted`: one unit; `watch`: units that do not answer; `looks`: asking units how they are
//! * `backends`: what this host reaches by itself; `links`: unit daemons
//! * `adding`: making a unit of a backend
//! * `lease_count`: the note of how many leases a unit knows of
//! * `rejoined`, `reports`: units that were unavailable and have rejoined
//!
//! No caller waits long for a unit to answer: it gets what the unit answered last.
//!
//! Must not know: volumes, attachments, who is the database's owner.

mod adding;
mod backends;
pub(crate) mod lease_count;
mod links;
mod looks;
mod mounted;
mod rejoined;
mod reports;
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

use crate::context::{HostContext, TaskEnded};
use crate::controller::Controller;
use backends::{Unreachable, backend_of};
use lease_count::LeaseCountKey;
use links::Links;
use watch::{ANSWER_WITHIN, WatchedUnit};

pub(crate) use looks::LOOK_AGAIN;
pub(crate) use mounted::MountedUnit;
pub(crate) use rejoined::RejoinedUnits;
pub(crate) use reports::RejoinReports;

/// Why the units cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// A unit of a new D could not be made.
    #[error("cannot make a unit")]
    Make(#[from] UnitError),
    /// Another copy of the database uses them.
    #[error("no unit can be used: {}; {remedy}", with_causes(source))]
    Held {
        /// The error of one of them.
        source: Arc<UnitError>,
        /// What to do.
        remedy: &'static str,
    },
    /// The controllers did not register them.
    #[error("the controller cannot be told of the units: {0}")]
    Unregistered(#[from] ClientError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// The units of a host.
pub(crate) struct Units {
    context: Arc<HostContext>,
    controller: Controller,
    store: Arc<Store>,
    links: Links,
    lease_count_key: LeaseCountKey,
    rejoined: RejoinedUnits,
    mounted: Mutex<Vec<MountedUnit>>,
}

impl Units {
    /// No units yet. Those that are mounted are put into the table of `store`.
    pub fn new(
        context: Arc<HostContext>,
        controller: Controller,
        store: Arc<Store>,
        lease_count_key: LeaseCountKey,
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
            lease_count_key,
            rejoined: RejoinedUnits::default(),
            mounted: Mutex::default(),
        }
    }

    pub fn context(&self) -> &HostContext {
        &self.context
    }

    pub fn lease_count_key(&self) -> &LeaseCountKey {
        &self.lease_count_key
    }

    pub fn rejoined(&self) -> &RejoinedUnits {
        &self.rejoined
    }

    /// The mounted units.
    pub fn mounted(&self) -> Vec<MountedUnit> {
        self.mounted.lock().clone()
    }

    /// Uses the units that the controllers list: mounts new ones, and follows those that have
    /// moved.
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
                tracing::error!(unit = unit.url, why, "unit is not used");
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
    /// and the start is most likely a mistake.
    pub fn refuse_if_held(&self) -> Result<(), UnitsError> {
        let owner = &self.context.owner;
        if owner.takes_over {
            // The operator has said that it is no mistake.
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

    /// Gets a certificate to show to unit daemons, if there are any and a controller signs one;
    /// otherwise that is tried again later.
    pub async fn get_certificate(&self) {
        if self.links.wants_certificate()
            && let Err(error) = self.links.renew_certificate(&self.controller).await
        {
            let why = with_causes(&error);
            tracing::error!(
                why,
                "host has no certificate for unit daemons; it tries again"
            );
        }
    }

    /// Renews the certificate as long as there are unit daemons.
    pub async fn keep_certificate(&self) {
        self.links.keep_certificate(&self.controller).await;
    }

    /// Follows a unit daemon to its new address. What was put there and not synced is known by the
    /// unit that is mounted.
    fn follow_move(&self, known: &mut MountedUnit, url: &str) -> Result<(), String> {
        match (&known.folder, endpoint_of_url(url)) {
            (None, Some(endpoint)) => {
                let link = self.links.link(known.id, endpoint);
                link.map_err(|error| error.to_string())?;
                tracing::info!(from = known.url, to = url, "unit daemon has moved");
                known.url = url.to_owned();
                Ok(())
            }
            _ => Err(format!("it was {} before; restart this agent", known.url)),
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
                // Its address may change.
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

    /// Free room on the units' file systems, in bytes, as far as they have reported it. A file
    /// system of this host is counted once, however many units lie on it. `None` if nothing is
    /// known.
    pub fn free_bytes(&self) -> Option<u64> {
        let mut by_file_system = HashMap::new();
        for mounted in self.mounted.lock().iter() {
            let found = mounted.watched.last_found();
            let free = found.stat.and_then(|stat| stat.free_bytes);
            let file_system = match (&mounted.folder, found.device) {
                // The file system of a daemon's folder is not known.
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

    /// All units, as they answered last.
    pub fn reports(&self) -> Vec<UnitReport> {
        let owner = &self.context.owner;
        let units = self.mounted.lock();
        units.iter().map(|mounted| mounted.report(owner)).collect()
    }
}
