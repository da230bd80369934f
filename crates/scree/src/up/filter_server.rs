//! `scree filter-server`: remote filters, on a tenant's machine, for disks that hosts serve.
//!
//! ```text
//!   DIR/filter.key, DIR/filter.pem    this machine's identity, created at the first start
//!   DIR/policies/NAME.toml      the filter NAME: an inline chain
//!   DIR/keys, DIR/programs      as for the filters of a relay
//!   DIR/state/VOLUME/           state of filters for recovery, one folder a disk
//! ```

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use auth::{Authority, Credentials, certificate_key, server_config};
use base::with_causes;
use chain::{Attribution, Filter, build_filters};
use chain_policy::{FilterKind, FilterPolicy};
use nbd::Watcher;
use sandbox::FilterServer;
use world::real::Listener;
use world::{Endpoint, Wake, World, host};
use zeroize::Zeroizing;

use super::prepare;
use super::readiness::announce;
use super::relay_filters::{Filters, policy_of};
use crate::args::FilterServerArguments;
use crate::commands::Failure;

/// The largest PEM file, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Runs `scree filter-server`.
pub fn run_filter_server(arguments: &FilterServerArguments) -> Result<(), Failure> {
    let (world, _runtime) = prepare()?;
    let folder = &arguments.filter_dir;
    host::make_folders(&*world.disk, folder)?;
    let (chain_pem, key_pem) = own_key(&world, folder)?;
    let authority = read(&world, &arguments.authority)?;
    let credentials = Credentials {
        chain_pem: &chain_pem,
        key_pem: &key_pem,
    };
    let mut tls = server_config(&[&authority], credentials).map_err(|error| Failure::of(&error))?;
    tls.alpn_protocols = Vec::new();
    let key = certificate_key(&chain_pem).map_err(|error| Failure::of(&error))?;
    let listener = Listener::bind(&Endpoint::Tcp(arguments.listen), 0o600)
        .map_err(|error| Failure::new(format!("cannot listen at {}: {error}", arguments.listen)))?;
    let at = listener.endpoint().clone();
    let (own, filters) = (world.clone(), folder.clone());
    let make = move |name: &str, attribution: Attribution, wake: Wake, watcher: &Watcher| {
        make(&own, &filters, name, attribution, (wake, watcher))
            .map_err(|failure| failure.to_string())
    };
    let server = FilterServer::new(world, Arc::new(tls), Box::new(make));
    announce(&format!(
        "scree filter-server is ready at {at}; its key is {key}\n"
    ));
    Ok(server.run(&listener)?)
}

fn read(world: &World, path: &Path) -> Result<String, Failure> {
    let failed = |words: String| Failure::new(format!("{}: {words}", path.display()));
    let bytes = host::read_small(&*world.disk, path, PEM_BYTES_MAX)
        .map_err(|error| failed(with_causes(&error)))?;
    let text = str::from_utf8(&bytes).map_err(|_| failed("it is not UTF-8 text".to_owned()))?;
    Ok(text.to_owned())
}

/// This machine's certificate and key, which are created if they do not exist.
fn own_key(world: &World, folder: &Path) -> Result<(String, Zeroizing<String>), Failure> {
    let (certificate, key) = (folder.join("filter.pem"), folder.join("filter.key"));
    let mut file = host::open_private(&key)?;
    if file.metadata()?.len() > 0 {
        super::check_private(&key)?;
        let key = Zeroizing::new(read(world, &key)?);
        return Ok((read(world, &certificate)?, key));
    }
    let (made, secret) = Authority::create("filter", &*world.random, world.clock.wall())
        .map_err(|error| Failure::of(&error))?;
    let mut other = host::open_private(&certificate)?;
    other.set_len(0)?;
    other.write_all(made.certificate_pem().as_bytes())?;
    other.sync_all()?;
    // Written last: if it exists, the other file does, too.
    file.write_all(secret.as_bytes())?;
    file.sync_all()?;
    Ok((made.certificate_pem().to_owned(), secret))
}

fn make(
    world: &World,
    folder: &Path,
    name: &str,
    attribution: Attribution,
    (wake, watcher): (Wake, &Watcher),
) -> Result<Vec<Box<dyn Filter>>, Failure> {
    // The name comes from a host and becomes part of a path.
    if !chain_policy::is_name(name) {
        return Err(Failure::new(format!(
            "{name:?} is not the name of a filter"
        )));
    }
    let path = folder.join("policies").join(format!("{name}.toml"));
    let policy = policy_of(world, &path, &attribution.volume)?;
    // There are no leases here: an old journal would overwrite what another host wrote since.
    let acknowledges = |filter: &FilterPolicy| matches!(filter.kind, FilterKind::Journal(_));
    if let Some(one) = policy.filters.iter().find(|filter| acknowledges(filter)) {
        return Err(Failure::new(format!(
            "{}: filter {} is a journal, which can only run on the disk's own host: take it out",
            path.display(),
            one.name
        )));
    }
    let filters = Filters::new(
        world,
        Some(folder),
        &state_folder(&attribution),
        attribution,
    )?;
    Ok(build_filters(&policy, &filters.context(wake, watcher)))
}

/// The folder with the state of a disk's filters, named by the volume's id or its encoded name.
fn state_folder(attribution: &Attribution) -> PathBuf {
    match &attribution.volume_id {
        Some(id)
            if id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') =>
        {
            id.into()
        }
        other => {
            let name = other.as_ref().unwrap_or(&attribution.volume);
            let digits = name.bytes().map(|byte| format!("{byte:02x}"));
            format!("named-{}", digits.collect::<String>()).into()
        }
    }
}
