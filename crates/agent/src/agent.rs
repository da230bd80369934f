//! [`Agent`]: everything that a host does, without the command line around it. It starts the parts
//! that `compose` makes, and passes the desired state on to them.
//!
//! The agent follows the controllers' [`Assignments`], and reports its progress. Each attachment
//! has a worker, so that none waits for another. Only journals survive a crash here; the
//! controllers know everything else that the next start needs.
//!
//! Lifecycle: 1. start (lock the data directory, open the keys, mount the units, open the desired
//! volumes), 2. run, 3. shut down (destage everything). After a `kill -9` instead of step 3, the
//! next start replays the journals.

use std::sync::Arc;
use std::time::Duration;

use api::host::{Assignments, Cluster, FIRST_KEY};
use metrics::{Answer, Measures, Part};
use tokio::runtime::Handle;
use world::{World, host};

use crate::compose::{Foundation, Parts};
use crate::context::{HostContext, Shutdown, blocking};
use crate::controller::{Contact, Controller, Pauses};
use crate::folder::Folder;
use crate::jobs::create_key;
use crate::keys::{HostKeys, KeyLocations};
use crate::settings::{Settings, StartError};
use crate::unit_owner::UnitOwner;

/// The longest time of a shutdown: the 30 s in which an export may finish the requests of its
/// clients, the 60 s in which a destage must make progress, and a margin.
pub const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(95);

/// How long the agent waits for the controllers to acknowledge its shutdown.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause between two passes over the units.
const UNITS_PASS_EVERY: Duration = Duration::from_secs(1);

/// Healthy units are probed in one of this many passes.
const PROBE_PASSES: u64 = 5;

/// The agent of a host. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    pub(crate) parts: Arc<Parts>,
}

impl Agent {
    /// Locks the data directory, and opens the volumes that are desired of this host.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let folder = Folder::lock(&world, &settings.folder)?;
        let shutdown = Shutdown::default();
        let clock = Arc::clone(&world.clock);
        let controller = Controller::new(
            settings.client.clone(),
            Handle::current(),
            clock,
            shutdown.clone(),
        );
        let contact = Arc::new(Contact::new(world.clock.monotonic()));
        let cluster = controller.begin().await?;
        let keys = open_keys(&world, &settings, &folder, &cluster, &controller).await?;
        let context = Arc::new(HostContext {
            world,
            runtime: Handle::current(),
            folder,
            cluster: cluster.id,
            owner: UnitOwner::new(&cluster),
        });
        let (count, default) = (settings.units, settings.units_default);
        let foundation = Foundation {
            context,
            shutdown,
            controller,
            contact,
            keys,
            cluster,
        };
        let agent = Self {
            parts: Arc::new(foundation.compose(settings).await?),
        };
        agent.begin(count, default).await?;
        Ok(agent)
    }

    /// Mounts the units and opens the desired volumes; returns when each has been tried once.
    async fn begin(&self, units: Option<usize>, default: usize) -> Result<(), StartError> {
        let parts = &self.parts;
        let mut assignments = parts.foundation.controller.assignments(None).await?;
        if assignments.units.is_empty() {
            parts
                .storage
                .units
                .make_first(units.unwrap_or(default))
                .await?;
            assignments = parts.foundation.controller.assignments(None).await?;
        } else if let Some(requested) = units.filter(|count| *count != assignments.units.len()) {
            tracing::info!(
                units = assignments.units.len(),
                requested,
                "cluster already has units; add more with `scree unit add`"
            );
        }
        parts
            .storage
            .units
            .follow(&assignments.units, &assignments.copysets);
        parts.storage.units.get_certificate().await;
        parts.storage.units.wait_until_found().await;
        parts.storage.units.refuse_if_held()?;
        parts.storage.age.check().await?;
        // Volumes may be opened only after that check: the desired state may have changed
        // meanwhile.
        let assignments = parts.foundation.controller.assignments(None).await?;
        self.apply(assignments);
        // Replaying one long journal may take longer than the leases of the other volumes last.
        tokio::select! {
            () = parts.volumes.attachments.tried() => {}
            () = self.keep_entitled() => unreachable!("the loops never end"),
        }
        parts.reporter.send(true).await;
        Ok(())
    }

    /// Runs all loops of the agent until the future is dropped.
    pub async fn run(self) {
        let parts = &self.parts;
        tokio::join!(
            self.follow(),
            parts.reporter.run(),
            parts.storage.leases.run(),
            parts.maintenance.journal_cleaning.run(),
            self.watch_units(),
            parts.maintenance.cleaning.run_removing(),
            parts.maintenance.cleaning.run_freeing(),
            parts.storage.rejoin_reports.run(),
            parts.maintenance.repair.run(),
            parts.maintenance.rewrapping.run(),
            parts.storage.caching.run(),
            parts.foundation.controller.keep_capabilities(),
            parts.storage.units.keep_certificate(),
        );
    }

    /// Follows the desired state of this host.
    pub(crate) async fn follow(&self) {
        let mut after = None;
        let mut pauses = Pauses::default();
        let mut is_lost = false;
        loop {
            match self.parts.foundation.controller.assignments(after).await {
                Ok(assignments) => {
                    let clock = &self.parts.foundation.context.world.clock;
                    self.parts.foundation.contact.note_answer(clock.monotonic());
                    if is_lost {
                        tracing::info!("controllers answer again");
                    }
                    is_lost = false;
                    pauses = Pauses::default();
                    after = Some(assignments.serial);
                    self.apply(assignments);
                }
                Err(error) => {
                    if !is_lost {
                        tracing::warn!(%error, "no controller answers; the agent will retry");
                    }
                    is_lost = true;
                    pauses.next().await;
                }
            }
        }
    }

    /// Watches the units as long as the agent runs.
    async fn watch_units(&self) {
        let mut ticks = host::ticks(UNITS_PASS_EVERY);
        for pass in 0_u64.. {
            ticks.tick().await;
            // The answers arrive in the units' state; the next pass does not wait for them.
            drop(
                self.parts
                    .storage
                    .units
                    .probe(pass.is_multiple_of(PROBE_PASSES)),
            );
        }
    }

    /// Passes the desired state on to the parts.
    fn apply(&self, desired: Assignments) {
        let parts = &self.parts;
        parts
            .storage
            .units
            .follow(&desired.units, &desired.copysets);
        if parts.foundation.keys.list(desired.keys) {
            let keys = Arc::clone(&parts.foundation.keys);
            tokio::task::spawn_blocking(move || keys.follow_and_notify());
        }
        for job in desired.jobs {
            parts.jobs.begin(job);
        }
        // Before blocks are unpinned: while a worker is busy, its volume would pin the blocks that
        // it reads again.
        for assignment in &desired.attachments {
            if let Some(open_volume) = parts.volumes.open.get(assignment.id) {
                open_volume.follow_image(assignment.image);
            }
        }
        parts.volumes.attachments.set_desired(desired.attachments);
        parts.preloads.set_desired(desired.preloads);
        parts.audits.set_desired(desired.audits);
        parts.storage.caching.set_unpins(desired.unpins);
        parts
            .maintenance
            .repair
            .set_compare_count(desired.comparisons_requested);
        parts
            .maintenance
            .cleaning
            .set_serial(desired.cleaning_serial);
        parts.reporter.set_requested(desired.report_number);
    }

    /// Closes every volume, also one that is being opened, so that all writes are in versions on
    /// the units. The next start opens them again. Returns how many could not be closed; their
    /// journals hold the writes that are not destaged. Ends within [`SHUT_DOWN_WITHIN`] even if
    /// units do not answer.
    pub async fn shut_down(&self) -> usize {
        let parts = &self.parts;
        parts.foundation.shutdown.begin();
        let mut shutting_down = parts.volumes.attachments.shut_down();
        let has_timed_out = tokio::select! {
            closed = host::timeout(SHUT_DOWN_WITHIN, shutting_down.wait()) => closed.is_none(),
            () = self.keep_entitled() => unreachable!("the loops never end"),
        };
        if has_timed_out {
            let seconds = SHUT_DOWN_WITHIN.as_secs();
            tracing::error!(seconds, "agent did not close all volumes in time");
        }
        parts.storage.caching.leave().await;
        let reported = parts.foundation.controller.begin();
        if !matches!(host::timeout(GOODBYE_TIMEOUT, reported).await, Some(Ok(_))) {
            tracing::warn!("controllers did not acknowledge the shutdown");
        }
        shutting_down.unclean()
    }

    /// Renews the leases and capabilities while [`Agent::run`] does not: while volumes are opened
    /// before it, and destaged after it. Both may take longer than a lease lasts.
    async fn keep_entitled(&self) {
        tokio::join!(
            self.parts.storage.leases.run(),
            self.parts.foundation.controller.keep_capabilities()
        );
        std::future::pending().await
    }

    /// The data directory.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.parts.foundation.context.folder
    }
}

/// Opens the wrapping keys; creates the first one of a new cluster.
async fn open_keys(
    world: &World,
    settings: &Settings,
    folder: &Folder,
    cluster: &Cluster,
    controller: &Controller,
) -> Result<Arc<HostKeys>, StartError> {
    let locations = KeyLocations {
        first: settings.key.clone(),
        keys_file: settings.keys_file.clone(),
        default_keys_file: folder.keys_file(),
        default_key_file: folder.key_file(),
    };
    let keys = Arc::new(HostKeys::new(world, locations));
    keys.list(cluster.keys.clone());
    if cluster.keys.is_empty() {
        let first = create_key(&keys, controller, FIRST_KEY.to_owned()).await?;
        keys.list(vec![first]);
    }
    let opening = Arc::clone(&keys);
    blocking(move || opening.start()).await??;
    Ok(keys)
}

impl Part for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { self.parts.monitor.unready_for() })
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(self.parts.monitor.measures())
    }
}
