//! [`FilterContext`]: everything that a filter gets from the process that runs it.
//!
//! Filters reach keys, other disks, processes and files only through their context, so the agent,
//! a relay and a filter server can each give them something else.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use world::{Clock, Disk, Pool, Random, Wake};
use zeroize::Zeroizing;

use crate::filters::{Event, EventKind};
use crate::{BackendFactory, KeyDerivations, Targets};

/// The reason why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key does not exist.
    #[error(
        "there is no key {0} here: write its passphrase into filter-keys/TENANT/{0} of the agent's \
         data directory, or into keys/{0} of --filter-dir"
    )]
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
    /// Makes the backends of out-of-process, external and remote filters.
    pub backends: Arc<dyn BackendFactory>,
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
    /// Reports a message about the filter `name`, as an event. It allocates, and events that come
    /// too fast are lost, so it is for what the owner of the disk has to know, and not for each
    /// request (docs/explanation/filters.md).
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
