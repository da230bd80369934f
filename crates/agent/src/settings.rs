//! [`Settings`] of an agent, and why it does not start ([`StartError`]).

use std::net::SocketAddr;
use std::path::PathBuf;

use api::{Client, ClientError};
use nbd::ServerTls;
use volume::VolumeConfig;

use crate::cache::CacheSettings;
use crate::context::TaskFailed;
use crate::export::NbdServerError;
use crate::filters::FilterSettings;
use crate::folder::FolderError;
use crate::jobs::CreateKeyError;
use crate::journals::JournalsError;
use crate::keys::{HostKeyError, KeyEntry};
use crate::lease::CheckError;
use crate::units::UnitsError;
use crate::vm::VmOptions;

/// The settings of an agent.
pub struct Settings {
    /// The data directory.
    pub folder: PathBuf,
    /// The client of the controllers.
    pub client: Client,
    /// The number of folder units to create if the cluster has no units.
    pub units: Option<usize>,
    /// The number of units to create if `units` is `None`.
    pub units_default: usize,
    /// Location of the wrapping key `main`, if it is not in `keys.toml`.
    pub key: Option<KeyEntry>,
    /// Path of `keys.toml`, if it is not in the keys folder of the data directory.
    pub keys_file: Option<PathBuf>,
    /// Unencrypted volumes may be written.
    pub allows_unencrypted: bool,
    /// The limits and rights of tenants' filters.
    pub filters: FilterSettings,
    /// An address to serve NBD at over TCP as well.
    pub listen_nbd: Option<SocketAddr>,
    /// TLS settings for NBD over TCP.
    pub nbd_tls: Option<ServerTls>,
    /// How VMs are reached.
    pub vm: VmOptions,
    /// A folder of journals that several hosts share; `None`: journals are in the data directory.
    pub journals: Option<PathBuf>,
    /// Uid of the user who runs the VMs; `None`: the owner of the socket of a VM's monitor.
    pub vm_user: Option<u32>,
    /// The default configuration of a volume.
    pub volume: VolumeConfig,
    /// The host's cache.
    pub cache: CacheSettings,
    /// Memory for the maps of all volumes together, in bytes; each gets at least 4 MiB.
    pub map_memory_bytes: u64,
    /// Limit of the bandwidth of repair, in bytes per second.
    pub repair_bytes_per_second: u64,
}

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No controller answers, or it refuses.
    #[error("the controller: {0}")]
    Controller(#[from] ClientError),
    /// The age of the database could not be checked.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A wrapping key cannot be opened.
    #[error(transparent)]
    Key(#[from] HostKeyError),
    /// A background task was aborted.
    #[error(transparent)]
    Task(#[from] TaskFailed),
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
}
