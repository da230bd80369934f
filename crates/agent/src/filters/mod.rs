//! The filters that volumes are served through (docs/internals/live-reconfiguration.md).
//!
//! * [`Filters`]: starts filters before a volume is served, and reconfigures the chain while it is
//! * `state`: the chain through which a volume is served
//! * `files`, `journals`, `notes`: the files of filters in the data directory, and notes about them
//! * `keys`, `targets`, `identity`: the keys of filters, the disks that they may use, and the
//!   host's certificate for remote filters
//!
//! Must not know: when a volume is opened or closed, what a filter does.

mod error;
mod files;
mod identity;
mod journals;
mod keys;
mod notes;
mod state;
mod targets;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::host::{Access, Assignment, DesiredChain};
use chain::{
    AttachmentContext, Attribution, BackendFactory, ChainHistory, EventSink, FilterContext,
    HotSwap, KEY_DERIVATIONS_MAX, KeyDerivations, NoBackends, SizeRule, StateFolder,
    UnlimitedLease, build_filters,
};
use chain_policy::Policy;
use nbd::client::OrphanedConnections;
use nbd::{ExportEnded, Watcher};
use parking_lot::Mutex;
use sandbox::{HostIdentity, OutOfProcessFilters, OutOfProcessOptions};
use tokio::sync::oneshot;
use volume::LeaseTerm;
use world::real::ThreadPool;
use world::{Clock, Wake, host};

use crate::context::{HostContext, blocking};
use crate::controller::Controller;
use crate::export::{EventLog, OpenVolume, OpenVolumes};
use crate::lease::Leases;
use files::FileOwners;
use identity::FilterIdentity;
use targets::{FilterTargets, OtherVolumes, TargetOptions, may_reach};

pub use error::{ChainError, FilterNoteError};
pub(crate) use files::FilterFiles;
pub(crate) use journals::{FilterJournals, quarantine_filter_journals};
pub use keys::FilterKeys;
pub(crate) use notes::FilterNotes;
pub(crate) use state::{ChainState, desired_chain};
pub use targets::{Connected, Network};

/// The limits and rights of filters on this host.
pub struct FilterSettings {
    /// Networks that tenants' filters may reach.
    pub networks: Arc<[Network]>,
    /// The program that runs out-of-process filters, Scree's own; `None`: all filters run in the
    /// agent.
    pub program: Option<PathBuf>,
    /// Memory that the filters of a chain may use together, in bytes.
    pub memory: u64,
    /// The disk space in the data directory that the filters of a volume may use.
    pub disk_limits: chain::DiskLimits,
}

/// The filters of the volumes of this host.
pub(crate) struct Filters {
    context: Arc<HostContext>,
    settings: FilterSettings,
    leases: Arc<Leases>,
    open: Arc<OpenVolumes>,
    identity: Arc<FilterIdentity>,
    files: FilterFiles,
    journals: FilterJournals,
    notes: FilterNotes,
    /// Derives the keys of tenants' filters.
    key_derivations: Arc<KeyDerivations>,
    /// The orphaned connections of filters, by tenant.
    orphaned: Mutex<HashMap<String, Arc<OrphanedConnections>>>,
}

/// The lease of a volume, as its filters see it.
struct FilterLease {
    term: LeaseTerm,
    clock: Arc<dyn Clock>,
}

impl chain::Lease for FilterLease {
    fn holds(&self) -> bool {
        self.term.holds(&*self.clock)
    }
}

/// Parses a policy. Compiling its patterns may take tenths of a second.
async fn parse(chain: &DesiredChain) -> Result<Policy, ChainError> {
    let text = chain.policy.clone();
    Ok(blocking(move || Policy::parse(&text)).await??)
}

impl Filters {
    pub fn new(
        context: Arc<HostContext>,
        controller: Controller,
        settings: FilterSettings,
        leases: Arc<Leases>,
        open: Arc<OpenVolumes>,
    ) -> Self {
        let identity = FilterIdentity::new(Arc::clone(&context), controller);
        let key_derivations = KeyDerivations::new(Arc::new(ThreadPool::new(KEY_DERIVATIONS_MAX)));
        Self {
            settings,
            leases,
            open,
            identity: Arc::new(identity),
            files: FilterFiles::new(&context),
            journals: FilterJournals::new(&context),
            notes: FilterNotes::new(&context),
            key_derivations: Arc::new(key_derivations),
            orphaned: Mutex::default(),
            context,
        }
    }

    pub fn files(&self) -> &FilterFiles {
        &self.files
    }

    pub fn journals(&self) -> &FilterJournals {
        &self.journals
    }

    pub fn notes(&self) -> &FilterNotes {
        &self.notes
    }

    /// Replaces the filters of a served volume by the desired ones.
    pub async fn replace(
        &self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> Result<(), ChainError> {
        let next = Some(&assignment.chain);
        self.notes.note_served(open_volume, next).await??;
        let put = self.put(assignment, open_volume, SizeRule::Keep).await;
        if put.is_ok() {
            open_volume.set_chain(assignment.chain.clone());
        }
        if let Err(error) = self.notes.note_served(open_volume, None).await? {
            // Both chains are noted: the next process finds out which one was in use.
            let volume = assignment.volume;
            tracing::warn!(%volume, %error, "agent could not note the new filter chain");
        }
        put
    }

    /// Starts the first filters of a volume; without a chain there are none.
    pub async fn begin(
        &self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> Result<(), ChainError> {
        if assignment.chain.is_some() {
            return self.put(assignment, open_volume, SizeRule::First).await;
        }
        // Later filters must know that the volume was written without them.
        open_volume.set_chain_turn(self.new_turn());
        if open_volume.epoch().is_some() {
            let trace_bytes = self.settings.disk_limits.trace_bytes;
            let none = FileOwners::default();
            self.files.tidy(assignment.volume, none, trace_bytes).await;
        }
        Ok(())
    }

    /// Installs the desired filters of a volume. Requests in progress are not lost.
    async fn put(
        &self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
        rule: SizeRule,
    ) -> Result<(), ChainError> {
        let turn = self.new_turn();
        let mut owners = FileOwners::default();
        let filters = match &assignment.chain {
            Some(chain) => {
                let policy = self.policy(assignment, chain).await?;
                owners = FileOwners::of(&policy);
                let history = ChainHistory {
                    epoch: open_volume.epoch(),
                    chain: turn,
                    predecessor: open_volume.chain_turn(),
                    restores: open_volume.lease().and_then(|lease| lease.restores),
                    epoch_first: open_volume.lease().map(|lease| lease.since),
                };
                let context = self
                    .filter_context(assignment, chain, open_volume, history)
                    .await?;
                Some((policy, context))
            }
            None => None,
        };
        let (tell, ended) = oneshot::channel();
        let swap = move |wake| HotSwap {
            filters: filters.map_or_else(Vec::new, |(policy, context)| {
                let mut context = context;
                context.attachment.wake = wake;
                build_filters(&policy, &context)
            }),
            rule,
            on_swapped: Box::new(move |ended| {
                // The receiver may have stopped waiting.
                let _ = tell.send(ended);
            }),
        };
        let served = Arc::clone(open_volume);
        blocking(move || served.hot_swap(swap)).await??;
        match ended.await {
            Ok(ended) => ended?,
            Err(_) => return Err(ExportEnded.into()),
        }
        open_volume.set_chain_turn(turn);
        if open_volume.epoch().is_some() {
            let trace_bytes = self.settings.disk_limits.trace_bytes;
            let volume = assignment.volume;
            self.files.tidy(volume, owners, trace_bytes).await;
        }
        // New clients see the geometry of the disk after the hot swap.
        let served = Arc::clone(open_volume);
        Ok(blocking(move || served.publish()).await??)
    }

    /// The policy of a chain, if its journals have room.
    async fn policy(
        &self,
        assignment: &Assignment,
        chain: &DesiredChain,
    ) -> Result<Policy, ChainError> {
        let mut policy = parse(chain).await?;
        if assignment.access == Access::ReadOnly {
            // Filters with files belong to the attachment that writes the volume.
            policy.filters.retain(|filter| !filter.kind.keeps_files());
        }
        for name in FileOwners::of(&policy).journals() {
            let room = self.journals.room_for(assignment.volume, name).await??;
            room.map_err(ChainError::Quarantined)?;
        }
        Ok(policy)
    }

    /// A random number for a chain, which no other chain of this host ever has.
    fn new_turn(&self) -> u64 {
        let mut turn = [0; 8];
        self.context.world.random.fill(&mut turn);
        u64::from_le_bytes(turn).max(1)
    }

    /// The context of a volume's filters, without the wake of its thread.
    async fn filter_context(
        &self,
        assignment: &Assignment,
        chain: &DesiredChain,
        open_volume: &OpenVolume,
        history: ChainHistory,
    ) -> Result<FilterContext, ChainError> {
        let (world, folder) = (&self.context.world, &self.context.folder);
        let state = folder.chain(assignment.volume);
        let (disk, made) = (Arc::clone(&world.disk), state.clone());
        blocking(move || host::make_folders(&*disk, &made)).await??;
        let watcher = open_volume.watcher()?;
        let events = open_volume
            .events_or_start(|| EventLog::start(world, &folder.events(), assignment.volume));
        let keys = FilterKeys::of_tenant(world, &folder.filter_keys(), &chain.tenant);
        Ok(FilterContext {
            host: chain::HostContext {
                clock: Arc::clone(&world.clock),
                pool: Arc::clone(&world.pool),
                key_derivations: Arc::clone(&self.key_derivations),
                random: Arc::clone(&world.random),
                backends: self.backends(watcher.clone()),
            },
            attachment: AttachmentContext {
                memory_max: self.settings.memory,
                wake: Wake::noop(),
                attribution: Arc::new(Attribution {
                    tenant: chain.tenant.clone(),
                    vm: assignment.vm.clone(),
                    volume: assignment.name.clone(),
                    volume_id: Some(assignment.volume.to_string()),
                }),
                events: Arc::clone(events) as Arc<dyn EventSink>,
                keys: Arc::new(keys),
                targets: Arc::new(self.targets(chain, watcher)),
                history,
                lease: self.lease(assignment),
                disk_limits: self.settings.disk_limits,
                state: Some(StateFolder {
                    disk: Arc::clone(&world.disk),
                    path: state,
                }),
            },
        })
    }

    fn targets(&self, chain: &DesiredChain, watcher: Watcher) -> FilterTargets {
        let folder = &self.context.folder;
        FilterTargets::new(TargetOptions {
            tenant: &chain.tenant,
            sockets: &folder.filter_sockets(),
            certificates: &folder.filter_certificates(),
            disk: Arc::clone(&self.context.world.disk),
            networks: Arc::clone(&self.settings.networks),
            volumes: self.other_volumes(chain),
            watcher,
            orphaned: self.orphaned(&chain.tenant),
            clock: Arc::clone(&self.context.world.clock),
        })
    }

    /// The orphaned connections of a tenant's filters. A connection that hangs affects no other
    /// tenant.
    fn orphaned(&self, tenant: &str) -> Arc<OrphanedConnections> {
        let mut all = self.orphaned.lock();
        // Drop tenants without a chain whose connections have all ended.
        all.retain(|_, one| Arc::strong_count(one) > 1 || !one.is_empty());
        Arc::clone(all.entry(tenant.to_owned()).or_default())
    }

    /// The lease that limits how long writes to a volume may be acknowledged.
    fn lease(&self, assignment: &Assignment) -> Arc<dyn chain::Lease> {
        match self.leases.term_of(assignment.id) {
            Some(term) => Arc::new(FilterLease {
                term,
                clock: Arc::clone(&self.context.world.clock),
            }),
            None => Arc::new(UnlimitedLease),
        }
    }

    /// Whether replicas hold writes that the volume is missing, according to the files of this
    /// host.
    pub async fn have_content(&self, assignment: &Assignment) -> Result<bool, ChainError> {
        // If another host had the volume since, the files here are older.
        let is_own = assignment.fenced.is_none();
        let Some(chain) = assignment.chain.as_ref().filter(|_| is_own) else {
            return Ok(false);
        };
        let state = StateFolder {
            disk: Arc::clone(&self.context.world.disk),
            path: self.context.folder.chain(assignment.volume),
        };
        // This works for a policy that this program cannot parse in full, too.
        let mut filters = chain_policy::outline(&chain.policy);
        filters.retain(|filter| filter.kind == "replicate");
        let have = blocking(move || {
            filters.iter().try_fold(false, |any, one| {
                Ok::<_, std::io::Error>(
                    any | chain::filters::volume_is_missing_writes(&state, &one.name)?,
                )
            })
        });
        Ok(have.await??)
    }

    /// The volumes that a chain writes besides its own.
    fn other_volumes(&self, chain: &DesiredChain) -> OtherVolumes {
        // A weak reference: open volumes own chains, which own this.
        let open = Arc::downgrade(&self.open);
        OtherVolumes {
            named: chain.volumes.clone(),
            export: Box::new(move |id| {
                let open_volume = open.upgrade()?.writable(id)?;
                Some(open_volume.export().name().to_owned())
            }),
            socket: self.context.folder.nbd_socket(),
        }
    }

    /// Starts the processes of out-of-process filters.
    fn backends(&self, watcher: Watcher) -> Arc<dyn BackendFactory> {
        let Some(program) = &self.settings.program else {
            return Arc::new(NoBackends);
        };
        let folder = &self.context.folder;
        let networks = Arc::clone(&self.settings.networks);
        let options = OutOfProcessOptions {
            program: program.clone(),
            external_programs: Some(folder.filter_programs()),
            sockets: Some(sandbox::sockets_folder(folder.path())),
            disk: Arc::clone(&self.context.world.disk),
            host: Some(Arc::clone(&self.identity) as Arc<dyn HostIdentity>),
            may_reach: Arc::new(move |at| may_reach(&networks, at)),
        };
        Arc::new(OutOfProcessFilters::new(options, watcher))
    }
}
