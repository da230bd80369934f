//! What `scree up`, `scree controller` and `scree agent` are told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cache::store::Division;
use clap::Args;

use super::{address, size};
use crate::moment;

/// Three numbers that make 100.
fn division(text: &str) -> Result<Division, String> {
    let wrong = || "say it as 25:50:25: 1 at least each, and 100 together".to_owned();
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
    /// How many folder units to make in D if it is new; 0 leaves that to `scree unit
    /// add`. [default: 8]
    #[arg(long, value_name = "N", 
          value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub units: Option<u16>,

    #[command(flatten)]
    pub serve: ServeArguments,

    #[command(flatten)]
    pub keep: KeepArguments,

    /// Serve the API over TLS here as well.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_api: Option<SocketAddr>,

    /// A name or address by which others reach that; may be given again.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "localhost",
        requires = "listen_api"
    )]
    pub api_name: Vec<String>,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

#[derive(Args)]
pub struct ControllerArguments {
    /// Serve the API over TLS here.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,

    /// A name or address by which others reach that; may be given again.
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub name: Vec<String>,

    /// The database, which several controllers may share:
    /// postgres://USER@HOST/DATABASE, with sslmode=verify-full and
    /// sslrootcert=FILE for TLS. Give a URL with a password in a file, or in the
    /// environment variable SCREE_DATABASE: others can read a command line.
    /// [default: D/scree.db]
    #[arg(long, value_name = "URL", conflicts_with = "database_file")]
    pub database: Option<String>,

    /// A private file (mode 600) whose first line is the database's URL.
    #[arg(long, value_name = "FILE")]
    pub database_file: Option<PathBuf>,

    /// The authority in D, or a new one if there is none, takes the place of the
    /// cluster's, which is lost. Everybody joins anew, and the other controllers
    /// get its files. Give it once.
    #[arg(long)]
    pub new_authority: bool,

    #[command(flatten)]
    pub tls: TlsArguments,

    /// How long a host's leases hold after it was last heard of: then others
    /// may have its volumes.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = moment::duration)]
    pub lease: Duration,

    #[command(flatten)]
    pub keep: KeepArguments,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

/// Certificates of the operator's own.
#[derive(Args)]
pub struct TlsArguments {
    /// Know users and hosts also by certificates of this authority (PEM), which
    /// name one scree://user/NAME or scree://host/NAME; may be given again.
    #[arg(long, value_name = "FILE")]
    pub client_ca: Vec<PathBuf>,

    /// Serve with this certificate (PEM), with what lies between it and its root,
    /// rather than with one of the cluster's own authority.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Args)]
pub struct AgentArguments {
    /// How many folder units to make here if the cluster has none.
    #[arg(long, value_name = "N", 
          value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub units: Option<u16>,

    /// Volumes may be written in the clear, where that is what was asked for.
    #[arg(long)]
    pub allow_unencrypted: bool,

    /// Keep journals in this folder, which other hosts mount too: whoever takes a
    /// volume from this host when it is dead finds there what it had flushed. The
    /// folder must be there. [default: D/journal, which this host alone has]
    #[arg(long, value_name = "FOLDER")]
    pub journals: Option<PathBuf>,

    #[command(flatten)]
    pub serve: ServeArguments,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

/// What those who watch are told, and where.
#[derive(Args)]
pub struct MonitorArguments {
    /// Answer /healthz, /readyz and /metrics (for Prometheus) over plain HTTP
    /// here, to anybody: use a loopback address or a management network.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_metrics: Option<SocketAddr>,
}

/// What agents are told.
#[derive(Args)]
pub struct ServeArguments {
    /// Serve NBD over TCP here as well.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_nbd: Option<SocketAddr>,

    /// Certificates (PEM) that sign those of NBD clients over TCP.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_cert", "nbd_tls_key", "listen_nbd"])]
    pub nbd_tls_ca: Option<PathBuf>,

    /// This server's certificate (PEM) for NBD over TCP.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_ca", "nbd_tls_key"])]
    pub nbd_tls_cert: Option<PathBuf>,

    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_ca", "nbd_tls_cert"])]
    pub nbd_tls_key: Option<PathBuf>,

    /// A network that tenants' filters may reach, such as replicas' servers; may be given
    /// again. [default: none]
    #[arg(long = "filter-network", value_name = "ADDRESS/BITS")]
    pub filter_networks: Vec<agent::Network>,

    /// What the filters of one chain may take of memory together, whatever their policy gives
    /// them.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub filter_memory: u64,

    /// What a tenant's filter that acknowledges writes may take of D's disk, whatever its policy
    /// gives it.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub filter_journal: u64,

    /// What the traces of a tenant's volume may take of D's disk together, whatever its policy
    /// gives them; with 0 there are none.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub filter_trace: u64,

    /// The number of the user who runs the VMs, and may connect to their disks.
    /// [default: the owner of a VM's QMP socket]
    #[arg(long, value_name = "UID")]
    pub vm_user: Option<u32>,

    /// Move no more to repair what units lack, in bytes per second.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub repair_bytes_per_second: u64,

    /// Says where this host's wrapping keys are. [default: D/keys/keys.toml, if
    /// it is there]
    #[arg(long, value_name = "FILE")]
    pub keys_file: Option<PathBuf>,

    /// The key file of the wrapping key `main`, the first one of a cluster; made
    /// if it does not exist. [default: D/keys/master.key]
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_file")]
    pub key_file: Option<PathBuf>,

    /// A file whose first line is the passphrase that the wrapping key `main` is
    /// made of. The environment variable SCREE_PASSPHRASE does as well.
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,

    /// Size of each attached volume's journal.
    #[arg(long, value_name = "SIZE", default_value = "100M", value_parser = size)]
    pub journal_size: u64,

    /// Keep sealed blocks of what is read in this file, or block device, on the host's SSD.
    /// Losing it costs speed and nothing else.
    #[arg(long, value_name = "FILE")]
    pub cache: Option<PathBuf>,

    /// How long that is: a file is made so long at once. [default: all of a device]
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = size)]
    pub cache_size: Option<u64>,

    /// How it is divided among maps, base images and all else that is read, in percent.
    #[arg(
        long,
        value_name = "MAPS:IMAGES:OTHERS",
        requires = "cache",
        default_value = "25:50:25",
        value_parser = division
    )]
    pub cache_division: Division,

    /// What sealed blocks may take of memory, of all volumes together; with 0, nothing is
    /// read ahead either.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub cache_memory: u64,

    /// What opened pages of maps may take of memory, of all volumes together; each may have
    /// 4 MiB in any case. 4 MiB say where 1 GiB lies.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub map_memory: u64,

    /// How long a write may stay in the journal only, when the volume is idle.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = moment::duration)]
    pub destage_after: Duration,
}

/// What controllers are told.
#[derive(Args)]
pub struct KeepArguments {
    /// How many automatic versions of a volume are kept.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub retain_count: usize,

    /// How long automatic versions are kept.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = moment::duration)]
    pub retain_age: Duration,

    /// How many times the units' free room may be promised to volumes, as if
    /// all were full.
    #[arg(long, value_name = "N", default_value_t = control::control::OVERCOMMIT,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub overcommit: u32,

    /// With how many others a unit shares segments, unless there are fewer: a
    /// larger number repairs faster, and loses more often when several units die at
    /// once. It counts for units that are added from then on.
    #[arg(long, value_name = "N", default_value_t = control::control::SCATTER_WIDTH as u16,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub scatter_width: u16,

    /// Let others take the place of a unit that every host which is heard of has been
    /// missing for so long; 0s: never by itself.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = moment::duration)]
    pub replace_after: Duration,

    /// How long the blocks of a removed version stay, against mistakes.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = moment::duration)]
    pub grace: Duration,

    /// Go on with a database that was put back from a backup, or in a folder
    /// that was copied or moved. What was committed elsewhere after that is
    /// given up, and the units are taken over. Give it once.
    #[arg(long)]
    pub restored_database: bool,
}
