//! [`Settings`] of a process, from the command line, the environment and the files that they name.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::cache::{CacheFileSettings, CacheSettings};
use agent::folder::{FormerAgent, traces};
use agent::keys::{KeyEntry, Passphrase};
use agent::vm::VmOptions;
use api::{Client, Profile};
use auth::Kind;
use base::size::exact_bytes;
use cache::store::CacheConfig;
use catalog::retention::Retention;
use catalog::{JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN};
use chain::DiskLimits;
use control::database::{AddressError, PostgresUrl};
use control::folder::{FindLeftovers, Leftovers};
use nbd::ServerTls;
use volume::VolumeConfig;
use world::{World, host};

use crate::args::{
    CacheArguments, ControllerArguments, FilterArguments, KeepArguments, KeyArguments,
    NbdArguments, ServeArguments,
};
use crate::commands::Failure;
use crate::environment::{DATABASE, PASSPHRASE};
use crate::output::shell_word;
use crate::tls_files::ApiTls;

/// The passphrase in the environment, if it is set.
pub fn environment_passphrase() -> Option<Passphrase> {
    let passphrase = std::env::var(PASSPHRASE.name).ok();
    let passphrase = passphrase.filter(|passphrase| !passphrase.is_empty());
    passphrase.map(Passphrase::new)
}

/// Default number of folder units in a new data directory.
pub(super) const UNITS_DEFAULT: usize = 8;

/// The file with the identity of an agent or a unit daemon.
const IDENTITY: &str = "identity.toml";

/// The identity of an agent or a unit daemon.
pub(super) struct Identity {
    pub profile: Profile,
    pub path: PathBuf,
    pub client: Client,
}

/// The parts of a process, and their settings.
pub(super) struct Settings {
    pub control: Option<control::Settings>,
    pub agent: Option<agent::Settings>,
    /// Address and TLS settings of the API.
    pub listen: Option<(SocketAddr, ApiTls)>,
    /// Address of health and metrics.
    pub listen_metrics: Option<SocketAddr>,
    /// Identity of the agent, if its controllers are elsewhere.
    pub identity: Option<Identity>,
}

/// The path of the identity of the agent or unit daemon in `folder`.
pub fn identity_of(folder: &Path) -> PathBuf {
    folder.join(IDENTITY)
}

impl Identity {
    /// Reads the identity in `folder`. Its client belongs to the runtime of the caller.
    pub fn read(world: &World, folder: &Path, kind: Kind) -> Result<Self, Failure> {
        let path = identity_of(folder);
        let remedy = format!("join this {kind} with `scree {kind} join`");
        let mut profile = Profile::read(world, &path).map_err(|error| {
            let text = base::with_causes(&error);
            Failure::new(format!("{text}: {remedy}"))
        })?;
        if profile.kind() != Some(kind) {
            let (path, subject) = (path.display(), &profile.subject);
            return Err(Failure::new(format!(
                "{path} is the identity of {subject}, which is not a {kind}: {remedy} in another \
                 folder (--dir)"
            )));
        }
        let read = profile.read_again(world);
        read.map_err(|error| Failure::of(&error))?;
        let client = profile.client().map_err(|error| Failure::of(&error))?;
        Ok(Self {
            profile,
            path,
            client,
        })
    }
}

pub(super) fn control_settings(
    world: &World,
    folder: &Path,
    keep: &KeepArguments,
    lease: Option<Duration>,
) -> control::Settings {
    control::Settings {
        folder: folder.to_owned(),
        remains: remains(world, folder),
        retention: Retention {
            count_max: keep.retain_count,
            age_max_ms: i64::try_from(keep.retain_age.as_millis()).unwrap_or(i64::MAX),
        },
        grace: keep.grace,
        lease,
        overcommit: keep.overcommit,
        scatter_width: usize::from(keep.scatter_width),
        replace_after: keep.replace_after,
        restored_database: keep.restored_database,
        new_authority: false,
        database: None,
    }
}

/// The database of a controller. Errors do not quote its URL, which may have a password.
pub(super) fn database(
    world: &World,
    arguments: &ControllerArguments,
) -> Result<Option<PostgresUrl>, Failure> {
    let failed = |error: AddressError| Failure::of(&error);
    match (&arguments.database, &arguments.database_file) {
        (Some(text), _) => {
            let url: PostgresUrl = text.parse().map_err(failed)?;
            if url.has_password() {
                tracing::warn!(
                    "every user of this machine can read the password in --database; write the URL into a \
                     private file, and give that with --database-file"
                );
            }
            Ok(Some(url))
        }
        (None, Some(path)) => PostgresUrl::read(world, path).map(Some).map_err(failed),
        (None, None) => std::env::var(DATABASE.name)
            .ok()
            .filter(|text| !text.is_empty())
            .map(|text| text.parse().map_err(failed))
            .transpose(),
    }
}

pub(super) fn agent_settings(
    world: &World,
    folder: &Path,
    client: Client,
    arguments: &ServeArguments,
) -> Result<agent::Settings, Failure> {
    check_journal_size(arguments.journal_size)?;
    Ok(agent::Settings {
        folder: folder.to_owned(),
        client,
        units: None,
        units_default: 0,
        key: key_entry(&arguments.keys),
        keys_file: arguments.keys.keys_file.clone(),
        allows_unencrypted: false,
        filters: filter_settings(&arguments.filters)?,
        listen_nbd: arguments.nbd.listen_nbd,
        nbd_tls: tls(world, &arguments.nbd)?,
        vm: VmOptions::default(),
        journals: None,
        vm_user: arguments.vm_user,
        repair_bytes_per_second: arguments.repair_bytes_per_second.max(1),
        cache: cache_settings(&arguments.cache)?,
        map_memory_bytes: arguments.cache.map_memory,
        volume: VolumeConfig {
            journal_bytes: arguments.journal_size,
            destage_after: arguments.destage_after,
            ..VolumeConfig::default()
        },
    })
}

fn check_journal_size(bytes: u64) -> Result<(), Failure> {
    if bytes < JOURNAL_BYTES_MIN {
        return Err(Failure::new(format!(
            "--journal-size {} is too small; give at least {}",
            exact_bytes(bytes),
            exact_bytes(JOURNAL_BYTES_MIN)
        )));
    }
    if bytes > JOURNAL_BYTES_MAX {
        return Err(Failure::new(format!(
            "--journal-size {} is too large; give at most {}",
            exact_bytes(bytes),
            exact_bytes(JOURNAL_BYTES_MAX)
        )));
    }
    Ok(())
}

/// The location of the wrapping key `main`, if the arguments or the environment give it.
fn key_entry(arguments: &KeyArguments) -> Option<KeyEntry> {
    match (&arguments.key_file, &arguments.passphrase_file) {
        (Some(path), _) => Some(KeyEntry::File { path: path.clone() }),
        (None, Some(path)) => Some(KeyEntry::Passphrase { path: path.clone() }),
        (None, None) => environment_passphrase().map(KeyEntry::Given),
    }
}

fn filter_settings(arguments: &FilterArguments) -> Result<agent::FilterSettings, Failure> {
    Ok(agent::FilterSettings {
        networks: arguments.filter_networks.clone().into(),
        program: Some(super::this_program()?),
        memory: arguments.filter_memory,
        disk_limits: DiskLimits {
            journal_bytes: arguments.filter_journal,
            trace_bytes: arguments.filter_trace,
        },
    })
}

fn cache_settings(arguments: &CacheArguments) -> Result<CacheSettings, Failure> {
    let file = match (&arguments.cache, arguments.cache_size) {
        (None, _) => None,
        (Some(_), Some(bytes)) if bytes < CacheConfig::BYTES_MIN => {
            return Err(Failure::new(format!(
                "--cache-size {} is too small; give at least {}",
                exact_bytes(bytes),
                exact_bytes(CacheConfig::BYTES_MIN)
            )));
        }
        (Some(path), bytes) => Some(CacheFileSettings {
            path: path.clone(),
            bytes,
            division: arguments.cache_division,
        }),
    };
    Ok(CacheSettings {
        file,
        memory_bytes: arguments.cache_memory,
    })
}

fn remains(world: &World, folder: &Path) -> FindLeftovers {
    let (world, folder) = (world.clone(), folder.to_owned());
    Arc::new(move || {
        let FormerAgent { certain, likely } = traces(&world, &folder)?;
        Ok(Leftovers { certain, likely })
    })
}

fn tls(world: &World, arguments: &NbdArguments) -> Result<Option<ServerTls>, Failure> {
    let (Some(ca), Some(cert), Some(key)) = (
        &arguments.nbd_tls_ca,
        &arguments.nbd_tls_cert,
        &arguments.nbd_tls_key,
    ) else {
        return Ok(None);
    };
    check_private(key)?;
    ServerTls::read(&*world.disk, ca, cert, key)
        .map(Some)
        .map_err(|error| Failure::of(&error))
}

/// Refuses a key that other users can read. A missing key is reported where it is read.
pub fn check_private(key: &Path) -> Result<(), Failure> {
    match host::mode_for_others(key) {
        Ok(Some(mode)) => {
            let (path, word) = (key.display(), shell_word(key));
            Err(Failure::new(format!(
                "{path} can be read by other users (mode {mode:03o}): run `chmod 600 {word}`, and replace \
                 the secret in it"
            )))
        }
        _ => Ok(()),
    }
}
