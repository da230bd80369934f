//! [`FilterContext`]: everything that a filter gets from the process that runs it, and
//! [`build_filters`], which makes the filters of a policy.
//!
//! Filters reach keys, other disks, processes and files only through their context, so the agent,
//! a relay and a filter server can each give them something else.

use std::path::PathBuf;
use std::sync::Arc;

use chain_policy::{FilterKind, FilterPolicy, Policy};
use serde::{Deserialize, Serialize};
use world::{Clock, Disk, Pool, Random, Wake};
use zeroize::Zeroizing;

use crate::filters::{
    Encrypt, Event, EventKind, Fault, JOURNAL_MEMORY_MAX, Journal, Monitor, OutOfProcess, Rate,
    Replicate, Trace, below_of,
};
use crate::{Filter, KeyDerivations, Opening, Programs, Targets};
#[cfg(test)]
use crate::{NoPrograms, NoTargets};

/// The reason why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key does not exist.
    #[error("there is no key {0} here")]
    NotFound(String),
    /// The key exists and cannot be read.
    #[error("the key {name} cannot be used: {reason}")]
    Unusable {
        /// The name of the key.
        name: String,
        /// The reason, for people.
        reason: String,
    },
}

/// The keys that policies name.
pub trait KeySource: Send + Sync {
    /// Reads the passphrase `name`. May block, so it is called in a [`Pool`].
    ///
    /// # Errors
    /// The key does not exist or cannot be read.
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyError>;
}

/// A source without keys.
pub struct NoKeys;

impl KeySource for NoKeys {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        Err(KeyError::NotFound(name.to_owned()))
    }
}

/// The tenant, VM and volume that a chain serves. Events and greetings carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribution {
    /// The user who owns the volume.
    pub tenant: String,
    /// The VM that the volume is attached to; `None` for a plain export.
    pub vm: Option<String>,
    /// The volume's name.
    pub volume: String,
    /// The volume's id; `None` if the disk is no volume of a cluster.
    pub volume_id: Option<String>,
}

/// A chain's position in the sequence of chains of its volume. From it a filter decides whether
/// the volume may have been written without that filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChainHistory {
    /// The epoch of the lease on the volume. Later writers have a larger one. `None` if unknown.
    pub epoch: Option<u32>,
    /// The number of this chain. No other chain of the volume has the same one.
    pub chain: u64,
    /// The number of the chain that this one replaces, or 0 if it replaces none.
    pub predecessor: u64,
    /// The number of times that the volume was restored to an earlier version. `None` if unknown.
    pub restores: Option<u64>,
    /// The first epoch from which on this host had all leases up to `epoch` without serving the
    /// volume before this chain; `None` means `epoch` itself.
    pub epoch_first: Option<u32>,
}

/// The right to acknowledge writes to the device below a chain.
pub trait Lease: Send + Sync {
    /// Whether the lease is valid now. Called once a loop turn by the thread that owns the disk.
    fn holds(&self) -> bool;
}

/// A lease that never ends.
pub struct UnlimitedLease;

impl Lease for UnlimitedLease {
    fn holds(&self) -> bool {
        true
    }
}

/// The disk space that the filters' state may take, whatever their policies say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// The largest ring of one journal, in bytes.
    pub journal_bytes: u64,
    /// The traces of all filters of a chain together, in bytes.
    pub trace_bytes: u64,
}

impl DiskLimits {
    /// No limit beside those of the policy.
    pub const UNLIMITED: Self = Self {
        journal_bytes: u64::MAX,
        trace_bytes: u64::MAX,
    };
}

/// Receives the events of filters. It is called by the thread that owns the disk, so it must not
/// block; it counts the events that it has to drop.
pub trait EventSink: Send + Sync {
    /// Takes events in the order in which they happened.
    fn report(&self, events: Vec<Event>);
}

/// The part of a context that all filters of a host share.
#[derive(Clone)]
pub struct HostContext {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Runs work that would block the disk's thread.
    pub pool: Arc<dyn Pool>,
    /// Derives keys from passphrases, [`crate::KEY_DERIVATIONS_MAX`] at a time on the host.
    pub key_derivations: Arc<KeyDerivations>,
    /// The source of new keys and salts.
    pub random: Arc<dyn Random>,
    /// Makes the programs of out-of-process, external and remote filters.
    pub programs: Arc<dyn Programs>,
}

/// The part of a context that belongs to one disk and its chain.
#[derive(Clone)]
pub struct AttachmentContext {
    /// The most memory that the chain's filters may take together, in bytes, whatever their policy
    /// says. In the context of a built filter: the most that this filter may take.
    pub memory_max: u64,
    /// Makes the disk's thread poll the chain.
    pub wake: Wake,
    /// The tenant, VM and volume, for events.
    pub attribution: Arc<Attribution>,
    /// Receives the filters' events.
    pub events: Arc<dyn EventSink>,
    /// The keys that the policy names.
    pub keys: Arc<dyn KeySource>,
    /// Opens the other disks that the policy names.
    pub targets: Arc<dyn Targets>,
    /// The position of this chain in the sequence of chains of its volume.
    pub history: ChainHistory,
    /// The lease that allows acknowledging writes.
    pub lease: Arc<dyn Lease>,
    /// The most disk space that the filters' state may take.
    pub disk_limits: DiskLimits,
    /// The folder for what filters need after a crash; `None` if nothing can be stored.
    pub state: Option<StateFolder>,
}

/// Everything that a filter gets from the process that runs it.
#[derive(Clone)]
pub struct FilterContext {
    /// The part that all filters of the host share.
    pub host: HostContext,
    /// The part that belongs to the filter's disk.
    pub attachment: AttachmentContext,
}

/// The folder in which filters keep their state.
#[derive(Clone)]
pub struct StateFolder {
    /// The disk on which it is.
    pub disk: Arc<dyn Disk>,
    /// The path of the folder, which exists.
    pub path: PathBuf,
}

impl FilterContext {
    /// Reports a message about the filter `name`, as an event.
    pub(crate) fn report(&self, name: &Arc<str>, message: String) {
        self.attachment.events.report(vec![Event {
            time: self.host.clock.wall(),
            attribution: Arc::clone(&self.attachment.attribution),
            filter: Arc::clone(name),
            partition: None,
            kind: EventKind::Message(message),
            rule: None,
        }]);
    }
}

#[cfg(test)]
impl FilterContext {
    /// The context of a simulated world, without keys, and with a sink that drops events.
    pub(crate) fn simulated(world: world::World) -> Self {
        struct DropsEvents;
        impl EventSink for DropsEvents {
            fn report(&self, _: Vec<Event>) {}
        }
        Self {
            host: HostContext {
                clock: world.clock,
                key_derivations: Arc::new(KeyDerivations::new(Arc::clone(&world.pool))),
                pool: world.pool,
                random: world.random,
                programs: Arc::new(NoPrograms),
            },
            attachment: AttachmentContext {
                memory_max: 1 << 30,
                wake: Wake::noop(),
                attribution: Arc::new(Attribution {
                    tenant: "alice".to_owned(),
                    vm: None,
                    volume: "disk".to_owned(),
                    volume_id: None,
                }),
                events: Arc::new(DropsEvents),
                keys: Arc::new(NoKeys),
                targets: Arc::new(NoTargets),
                history: ChainHistory::default(),
                lease: Arc::new(UnlimitedLease),
                disk_limits: DiskLimits::UNLIMITED,
                state: None,
            },
        }
    }
}

/// Makes the filters of a policy, for a [`crate::HotSwap`].
#[must_use]
pub fn build_filters(policy: &Policy, context: &FilterContext) -> Vec<Box<dyn Filter>> {
    let shares = memory_shares(&policy.filters, context.attachment.memory_max);
    let is_trace = |one: &&FilterPolicy| matches!(one.kind, FilterKind::Trace(_));
    let traces = policy.filters.iter().filter(is_trace).count().max(1) as u64;
    let disk_limits = DiskLimits {
        trace_bytes: context.attachment.disk_limits.trace_bytes / traces,
        ..context.attachment.disk_limits
    };
    let filters = policy.filters.iter().zip(shares).enumerate();
    filters
        .map(|(at, (one, memory_max))| {
            let mut given = context.clone();
            given.attachment.memory_max = memory_max;
            given.attachment.disk_limits = disk_limits;
            build_one(one, &policy.filters[at + 1..], &given)
        })
        .collect()
}

/// The memory limit of each filter in bytes: that of its policy, scaled down if all together would
/// exceed `memory_max`.
fn memory_shares(filters: &[FilterPolicy], memory_max: u64) -> Vec<u64> {
    let requested = |one: &FilterPolicy| match (&one.out_of_process, &one.kind) {
        (_, FilterKind::Remote(_)) => 0,
        (Some(settings), _) => settings.limits.memory_bytes,
        (None, FilterKind::Monitor(config)) => config.memory_max,
        (None, FilterKind::Replicate(config)) => {
            let is_partial = config
                .replicas
                .iter()
                .any(|replica| replica.paths.is_some());
            if is_partial { config.memory_max } else { 0 }
        }
        (None, FilterKind::Journal(config)) => config.size.min(JOURNAL_MEMORY_MAX),
        (None, _) => 0,
    };
    let all: u128 = filters.iter().map(|one| u128::from(requested(one))).sum();
    let share = |requested: u64| match all <= u128::from(memory_max) {
        true => requested,
        false => (u128::from(requested) * u128::from(memory_max) / all) as u64,
    };
    filters.iter().map(|one| share(requested(one))).collect()
}

fn build_one(
    one: &FilterPolicy,
    below: &[FilterPolicy],
    context: &FilterContext,
) -> Box<dyn Filter> {
    if let Some(settings) = &one.out_of_process {
        return Box::new(OutOfProcess::new(one, settings.on_failure, context.clone()));
    }
    let clock = Arc::clone(&context.host.clock);
    let given = context.clone();
    match &one.kind {
        FilterKind::Monitor(config) => Box::new(Monitor::new(&one.name, config.clone(), given)),
        FilterKind::Encrypt(config) => Box::new(Encrypt::new(config.clone(), given)),
        FilterKind::Replicate(config) => Box::new(Replicate::new(&one.name, config, given)),
        FilterKind::Rate(config) => Box::new(Rate::new(config, clock)),
        FilterKind::Fault(config) => Box::new(Fault::new(config.clone(), clock)),
        FilterKind::Journal(config) => match given.attachment.state.clone() {
            Some(state) => {
                let placed = (config, below_of(below));
                Box::new(Journal::of_policy(&one.name, placed, given, state))
            }
            None => Box::new(Unbuilt(
                "a journal needs a folder for its ring, and there is none here",
            )),
        },
        FilterKind::Trace(config) => match given.attachment.state.clone() {
            Some(state) => Box::new(Trace::new(&one.name, config, given, state)),
            None => Box::new(Unbuilt(
                "a trace needs a folder for its file, and there is none here",
            )),
        },
        FilterKind::External(_) | FilterKind::Remote(_) => {
            Box::new(Unbuilt("a filter of this kind does not run inline"))
        }
    }
}

/// A filter that cannot be made here, for this reason.
struct Unbuilt(&'static str);

impl Filter for Unbuilt {
    fn open(&mut self, _: &mut dyn base::BlockDevice) -> Opening {
        Opening::Failed(self.0.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of sixteen monitors once took all the memory that the operator allows a chain.
    #[test]
    fn the_filters_of_a_chain_share_its_memory_limit() {
        let mut text = "volume = 'v'\n".to_owned();
        for number in 0..14 {
            text += &format!("[[filter]]\nkind = 'monitor'\nname = 'm{number}'\n");
        }
        text += "[[filter]]\nkind = 'rate'\niops = 1\n\
                 [[filter]]\nkind = 'monitor'\nname = 'p'\nruns = 'process'\nmemory = '1G'\n";
        let policy = Policy::parse(&text).expect("a policy");
        let shares = memory_shares(&policy.filters, 1 << 30);
        let of_sixteen = (1 << 30) / 16;
        let mut expected = vec![of_sixteen; 14];
        expected.extend([0, 2 * of_sixteen]);
        assert_eq!(shares, expected);
        // Below the limit each filter gets what its policy says.
        let enough = memory_shares(&policy.filters, 8 << 30);
        assert_eq!((enough[0], enough[15]), (512 << 20, 1 << 30));
        assert_eq!(memory_shares(&policy.filters, u64::MAX), enough);
    }
}
