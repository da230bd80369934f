//! Arguments of the processes that serve: `scree up`, `scree controller` and `scree agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cache::store::Division;
use clap::Args;

use super::{address, size};
use crate::times;

/// Parses the shares of the cache areas, three percentages that add up to 100.
fn division(text: &str) -> Result<Division, String> {
    let wrong =
        || "write it as 25:50:25: three numbers of at least 1 that add up to 100".to_owned();
    let parts = text.split(':').map(|part| part.parse::<u8>());
    let parts: Vec<u8> = parts.collect::<Result<_, _>>().map_err(|_| wrong())?;
    let [metadata, image, active] = parts[..] else {
        return Err(wrong());
    };
    let division = Division {
        metadata,
        image,
        active,
    };
    division.is_whole().then_some(division).ok_or_else(wrong)
}

#[derive(Args)]
pub struct UpArguments {
    /// Folder units to create in a new data directory, 0 to 1024; with 0, add units with `scree
    /// unit add` [default: 8]
    #[arg(long, value_name = "N", 
          value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub units: Option<u16>,

    #[command(flatten)]
    pub serve: ServeArguments,

    #[command(flatten)]
    pub keep: KeepArguments,

    /// Serve the API over TLS at this address, too.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_api: Option<SocketAddr>,

    /// Name or address by which others reach the API; may be repeated.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "localhost",
        requires = "listen_api",
        hide_short_help = true
    )]
    pub api_name: Vec<String>,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

#[derive(Args)]
pub struct ControllerArguments {
    /// Serve the API over TLS at this address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,

    /// Name or address by which others reach the API; may be repeated.
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub name: Vec<String>,

    /// Database that several controllers may share: postgres://USER@HOST/DATABASE, with
    /// sslmode=verify-full and sslrootcert=FILE for TLS. Others can read a command line: put a URL
    /// with a password in --database-file or the environment variable SCREE_DATABASE [default:
    /// DIR/scree.db]
    #[arg(long, value_name = "URL", conflicts_with = "database_file")]
    pub database: Option<String>,

    /// Private file (mode 600) whose first line is the URL of the database.
    #[arg(long, value_name = "FILE")]
    pub database_file: Option<PathBuf>,

    /// Replace the cluster's lost authority by the one in the data directory, or by a new one. Use
    /// it once. All hosts, users and daemons have to join again, and the other controllers need its
    /// files.
    #[arg(long, help_heading = "Recovery", hide_short_help = true)]
    pub new_authority: bool,

    #[command(flatten)]
    pub tls: TlsArguments,

    /// Term of leases: if a host sends nothing for this long, other hosts may take its volumes.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = times::duration)]
    pub lease: Duration,

    #[command(flatten)]
    pub keep: KeepArguments,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

/// Certificates of the operator's own authority.
#[derive(Args)]
pub struct TlsArguments {
    /// Accept certificates of this authority (PEM) for users and hosts, named scree://user/NAME or
    /// scree://host/NAME; may be repeated.
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "TLS",
        hide_short_help = true
    )]
    pub client_ca: Vec<PathBuf>,

    /// Certificate (PEM) of this server with its intermediate certificates [default: one of the
    /// cluster's own authority]
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "TLS",
        hide_short_help = true
    )]
    pub tls_cert: Option<PathBuf>,

    /// Key (PEM) of that certificate.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "TLS",
        hide_short_help = true
    )]
    pub tls_key: Option<PathBuf>,
}

#[derive(Args)]
pub struct AgentArguments {
    /// Folder units to create here if the cluster has no units, 0 to 1024 [default: 0]
    #[arg(long, value_name = "N", 
          value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub units: Option<u16>,

    /// Serve volumes that were created with --encryption none.
    #[arg(long)]
    pub allow_unencrypted: bool,

    /// Keep journals in this existing folder, which other hosts mount, too: if this host dies,
    /// another host replays flushed writes from there [default: DIR/journal, for this host only]
    #[arg(long, value_name = "FOLDER")]
    pub journals: Option<PathBuf>,

    #[command(flatten)]
    pub serve: ServeArguments,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

/// Where a process serves its health and metrics.
#[derive(Args)]
pub struct MonitorArguments {
    /// Serve /healthz, /readyz and /metrics at this address, such as a loopback one: over HTTP and
    /// without authentication.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_metrics: Option<SocketAddr>,
}

/// Arguments of agents.
#[derive(Args)]
pub struct ServeArguments {
    #[command(flatten)]
    pub nbd: NbdArguments,

    #[command(flatten)]
    pub filters: FilterArguments,

    /// User id that VMs run as; only this user may connect to their disks [default: the owner of
    /// the VM's QMP socket]
    #[arg(long, value_name = "UID", help_heading = "NBD")]
    pub vm_user: Option<u32>,

    /// Bytes per second that repairs by this host may move.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size, hide_short_help = true)]
    pub repair_bytes_per_second: u64,

    #[command(flatten)]
    pub keys: KeyArguments,

    /// Size of the journal of each attached volume, 8M to 256G.
    #[arg(long, value_name = "SIZE", default_value = "100M", value_parser = size)]
    pub journal_size: u64,

    #[command(flatten)]
    pub cache: CacheArguments,

    /// Longest time for which a write is only in the journal: then the volume is destaged.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = times::duration, hide_short_help = true)]
    pub destage_after: Duration,
}

/// How disks are served over NBD.
#[derive(Args)]
pub struct NbdArguments {
    /// Serve NBD over TCP at this address, too.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address, help_heading = "NBD")]
    pub listen_nbd: Option<SocketAddr>,

    /// Require TLS of NBD clients over TCP, with a certificate that one of these authorities (PEM)
    /// has signed.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_cert", "nbd_tls_key", "listen_nbd"], help_heading = "NBD", hide_short_help = true)]
    pub nbd_tls_ca: Option<PathBuf>,

    /// Certificate (PEM) of this server for NBD over TCP.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_ca", "nbd_tls_key"], help_heading = "NBD", hide_short_help = true)]
    pub nbd_tls_cert: Option<PathBuf>,

    /// Key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_ca", "nbd_tls_cert"], help_heading = "NBD", hide_short_help = true)]
    pub nbd_tls_key: Option<PathBuf>,
}

/// Limits of the filters of tenants.
#[derive(Args)]
pub struct FilterArguments {
    /// Network that tenants' filters may connect to, such as that of replicas; may be repeated
    /// [default: none]
    #[arg(
        long = "filter-network",
        value_name = "ADDRESS/BITS",
        help_heading = "Filters",
        hide_short_help = true
    )]
    pub filter_networks: Vec<agent::Network>,

    /// Largest memory of all filters of a chain together, whatever its policy allows.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size, help_heading = "Filters", hide_short_help = true)]
    pub filter_memory: u64,

    /// Largest journal of a tenant's `journal` filter, whatever its policy allows.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size, help_heading = "Filters", hide_short_help = true)]
    pub filter_journal: u64,

    /// Largest disk space for all traces of a tenant's volume, whatever its policy allows; 0
    /// disables traces.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, help_heading = "Filters", hide_short_help = true)]
    pub filter_trace: u64,
}

/// Locations of this host's wrapping keys.
#[derive(Args)]
pub struct KeyArguments {
    /// File that says where this host's wrapping keys are [default: DIR/keys/keys.toml, if it
    /// exists]
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Keys",
        hide_short_help = true
    )]
    pub keys_file: Option<PathBuf>,

    /// Key file of the wrapping key `main`, the first one of a cluster; created if it does not
    /// exist [default: DIR/keys/master.key]
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "passphrase_file",
        help_heading = "Keys"
    )]
    pub key_file: Option<PathBuf>,

    /// File whose first line is the passphrase of the wrapping key `main`, which can also be in the
    /// environment variable SCREE_PASSPHRASE.
    #[arg(long, value_name = "FILE", help_heading = "Keys")]
    pub passphrase_file: Option<PathBuf>,
}

/// The host's cache and its memory.
#[derive(Args)]
pub struct CacheArguments {
    /// Cache encrypted blocks in this file or block device on the host's SSD. It holds no data that
    /// is not on the units.
    #[arg(long, value_name = "FILE", help_heading = "Cache")]
    pub cache: Option<PathBuf>,

    /// Size of the cache, 1M at least; a file is allocated at once [default: the whole device]
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = size, help_heading = "Cache")]
    pub cache_size: Option<u64>,

    /// Percentages of the cache for maps, base images and everything else: three numbers of at
    /// least 1 that add up to 100.
    #[arg(
        long,
        value_name = "MAPS:IMAGES:OTHERS",
        requires = "cache",
        default_value = "25:50:25",
        value_parser = division, help_heading = "Cache", hide_short_help = true)]
    pub cache_division: Division,

    /// Memory for encrypted blocks of all volumes together; 0 disables read-ahead, too.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size, help_heading = "Cache", hide_short_help = true)]
    pub cache_memory: u64,

    /// Memory for map pages of all volumes together. Each volume has at least 4 MiB, enough to map
    /// 1 GiB.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, help_heading = "Cache", hide_short_help = true)]
    pub map_memory: u64,
}

/// Arguments of controllers: retention, capacity and placement.
#[derive(Args)]
pub struct KeepArguments {
    /// Number of automatic versions to keep of each volume; older ones are removed.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        help_heading = "Retention and capacity",
        hide_short_help = true
    )]
    pub retain_count: usize,

    /// Age at which automatic versions are removed, also if fewer are kept.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = times::duration, help_heading = "Retention and capacity", hide_short_help = true)]
    pub retain_age: Duration,

    /// How many times the units' free space may be promised to volumes, 1 at least.
    #[arg(long, value_name = "N", default_value_t = control::control::OVERCOMMIT,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Retention and capacity", hide_short_help = true)]
    pub overcommit: u32,

    /// Number of other units with which a unit shares copysets, 1 to 1024, for units added later. A
    /// larger number makes repair faster, and data loss likelier when several units fail at once.
    #[arg(long, value_name = "N", default_value_t = control::control::SCATTER_WIDTH as u16,
          value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Retention and capacity", hide_short_help = true)]
    pub scatter_width: u16,

    /// Replace a unit that all responsive hosts report missing for this long; 0s disables it.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = times::duration, help_heading = "Retention and capacity", hide_short_help = true)]
    pub replace_after: Duration,

    /// How long to keep the blocks of a removed version.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = times::duration, help_heading = "Retention and capacity", hide_short_help = true)]
    pub grace: Duration,

    /// Start with a database that was restored from a backup, or with a data directory that was
    /// copied or moved. It takes over the units, and later commits of the other copy are lost. Use
    /// it once.
    #[arg(long, help_heading = "Recovery", hide_short_help = true)]
    pub restored_database: bool,
}
