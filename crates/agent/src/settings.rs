//! How an agent is to run ([`Settings`]), and why it does not start ([`StartError`]).

use std::net::SocketAddr;
use std::path::PathBuf;

use api::{Client, ClientError};
use nbd::ServerTls;
use volume::VolumeConfig;

use crate::cache::CacheSettings;
use crate::context::TaskEnded;
use crate::export::NbdServerError;
use crate::filters::Network;
use crate::folder::FolderError;
use crate::jobs::CreateKeyError;
use crate::journals::JournalsError;
use crate::keys::{HostKeyError, KeyEntry};
use crate::lease::CheckError;
use crate::units::UnitsError;
use crate::vm::VmOptions;

/// How an agent is to run.
pub struct Settings {
    /// D, the data directory.
    pub folder: PathBuf,
    /// The client of the controllers.
    pub client: Client,
    /// How many folder units to make if the cluster has none.
    pub units: Option<usize>,
    /// The number of units to make if `units` does not say.
    pub units_default: usize,
    /// Where the wrapping key `main` is, if `keys.toml` does not say so.
    pub key: Option<KeyEntry>,
    /// Where `keys.toml` is, if not in D's keys folder.
    pub keys_file: Option<PathBuf>,
    /// Volumes may be written unencrypted, if their owner wants that.
    pub allows_unencrypted: bool,
    /// Networks that tenants' filters may reach.
    pub filter_networks: Vec<Network>,
    /// The program that runs out-of-process filters, Scree's own; `None`: all filters run inline.
    pub filter_program: Option<PathBuf>,
    /// The memory that the filters of a chain may use together, in bytes.
    pub filter_memory: u64,
    /// The most disk space that the filters' state may take in the data directory.
    pub filter_disk_limits: chain::DiskLimits,
    /// An address to serve NBD at over TCP as well.
    pub listen_nbd: Option<SocketAddr>,
    /// TLS for that.
    pub nbd_tls: Option<ServerTls>,
    /// How VMs are reached.
    pub vm: VmOptions,
    /// A folder of journals that several hosts share, if this host's are not in D.
    pub journals: Option<PathBuf>,
    /// The user who runs the VMs, if their monitors' sockets do not say.
    pub vm_user: Option<u32>,
    /// The sizes and times of each volume, unless it has its own.
    pub volume: VolumeConfig,
    /// The host's cache.
    pub cache: CacheSettings,
    /// The memory that maps may use together, in bytes; at least 4 MiB each.
    pub map_memory_bytes: u64,
    /// The limit of repair.
    pub repair_bytes_per_second: u64,
}

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// D cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No controller answers, or it refuses.
    #[error("the controller: {0}")]
    Controller(#[from] ClientError),
    /// The age of the database is not known.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// There is no wrapping key.
    #[error(transparent)]
    Key(#[from] HostKeyError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
    /// The shared folder of journals cannot be used.
    #[error(transparent)]
    Journals(#[from] JournalsError),
    /// The units cannot be used.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// NBD cannot be served.
    #[error(transparent)]
    Serving(#[from] NbdServerError),
    /// The first wrapping key could not be created.
    #[error(transparent)]
    CreateKey(#[from] CreateKeyError),
    /// The key with which hosts authenticate lease counts has a wrong length.
    #[error("the database is damaged: what hosts vouch with has not 32 bytes")]
    LeaseCountKey,
}
