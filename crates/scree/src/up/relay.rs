//! `scree relay`: filters or a journal between any NBD client and any NBD server, until SIGTERM,
//! SIGINT or SIGQUIT.
//!
//! ```text
//!  client ─ NBD ─▶ frontend ─▶ [filters of the policy] ─▶ [journal] ─▶ NBD client ─ NBD ─▶ server
//! ```
//!
//! A lost connection to the server is reopened; requests wait for it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::checksum::crc32c;
use base::{BlockDevice as _, NbdUri};
use chain::filters::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
use chain::{
    Attribution, Chain, Filter, FilterError, HotSwap, HotSwapError, SizeRule, build_filters,
};
use chain_policy::{FilterKind, FilterPolicy, Policy};
use nbd::client::{ClientOptions, ClientTls, ConnectionError, NbdClient, Reconnect, Target};
use nbd::{
    Export, ExportOptions, ExportTable, ExportThread, ListenOptions, Server, ServerOptions, Watcher,
};
use world::{Wake, World, host};

use super::prepare;
use super::readiness::{announce, notify_init};
use super::relay_filters::{Filters, policy_of};
use crate::args::{Flush, RelayArguments, RelayTarget};
use crate::commands::Failure;
use crate::signals::EndSignals;

/// Pauses before a connection is reopened.
const AGAIN: Reconnect = Reconnect::Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(5),
};

/// A full journal may have to be written to the server over a slow network.
const OPEN_WITHIN: Duration = Duration::from_secs(3600);

/// How often a chain that is being opened is polled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How often a permanent failure of the disk is checked for.
const LOOK_AT_DEVICE_EVERY: Duration = Duration::from_secs(1);

/// Memory for changes of a journal.
const MEMORY_MAX: u64 = 256 << 20;

/// The name of an export that the server serves without a name.
const UNNAMED: &str = "disk";

/// The device that a relay serves.
type Relayed = Chain<NbdClient>;

/// Why a relay cannot start.
#[derive(Debug, thiserror::Error)]
enum Unopened {
    #[error("the server cannot be used")]
    Server(#[from] ConnectionError),
    #[error("the filters cannot be used")]
    Filters(#[from] HotSwapError),
    #[error("--journal {folder}: {why}{}", size_hint(why))]
    Journal { folder: String, why: FilterError },
    #[error("waiting for sockets failed")]
    Wait(#[from] io::Error),
}

/// The remedy for a journal's error, if there is one.
fn size_hint(why: &FilterError) -> &'static str {
    match why {
        FilterError::StorageFull(_) => "; free disk space, or give a smaller --journal-size",
        FilterError::Other(_) => "",
    }
}

fn has_journal(policy: &Policy) -> bool {
    let is_one = |filter: &FilterPolicy| matches!(filter.kind, FilterKind::Journal(_));
    policy.filters.iter().any(is_one)
}

/// Runs `scree relay`.
pub fn run_relay(arguments: RelayArguments) -> Result<(), Failure> {
    let (world, runtime) = prepare()?;
    let served = runtime.block_on(serve(&world, &Arc::new(arguments)));
    // Does not wait for a relay that is still opening its disk: it has acknowledged no write.
    runtime.shutdown_background();
    served
}

/// The filters of the policy, if it is for this volume and machine.
fn policy(
    world: &World,
    arguments: &RelayArguments,
    export: &str,
) -> Result<Option<Policy>, Failure> {
    let Some(path) = &arguments.policy else {
        return Ok(None);
    };
    let volume = arguments.volume.as_deref().unwrap_or(export);
    let policy = policy_of(world, path, volume)?;
    if has_journal(&policy) && arguments.journal.is_some() {
        return Err(Failure::new(format!(
            "the policy {} has a journal, and --active adds a second one: leave out --active and \
             --journal, or take the filter out of the policy",
            path.display()
        )));
    }
    if policy.vm.is_some() && policy.vm != arguments.vm {
        return Err(Failure::new(format!(
            "the policy {} is for the VM {}: add --vm {}",
            path.display(),
            policy.vm.as_deref().unwrap_or_default(),
            policy.vm.as_deref().unwrap_or_default()
        )));
    }
    Ok(Some(policy))
}

/// Creates the folder of one disk and locks it against other relays.
fn lock(world: &World, folder: &Path) -> Result<File, Failure> {
    let failed = |words: &str| Failure::new(format!("the folder {}: {words}", folder.display()));
    let opened = host::make_folders(&*world.disk, folder)
        .and_then(|()| host::open_private(&folder.join("lock")));
    let file = opened.map_err(|error| failed(&error.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(failed(
            "another relay uses it; give each relay a folder of its own",
        )),
    }
}

/// Connects and opens the filters, in the thread that will serve them.
fn open(
    client: NbdClient,
    mut filters: Vec<Box<dyn Filter>>,
    journal: Option<JournalConfig>,
    world: &World,
    (wake, watcher): (Wake, &Watcher),
) -> Result<Relayed, Unopened> {
    let client = client.opened()?;
    // The journal is the lowest filter.
    let journal_at = filters.len();
    let journal_in = journal.as_ref().map(|config| {
        let folder = config.path.parent().unwrap_or(&config.path);
        folder.display().to_string()
    });
    if let Some(config) = journal {
        let config = JournalConfig {
            block_min: client.block_min(),
            ..config
        };
        filters.push(Box::new(Journal::new(config, world.clone(), wake.clone())));
    }
    let mut chain = Chain::new(client, Arc::clone(&world.clock), wake);
    if filters.is_empty() {
        return Ok(chain);
    }
    chain.set_open_within(OPEN_WITHIN);
    let (tell, told) = mpsc::channel();
    chain.hot_swap(HotSwap {
        filters,
        rule: SizeRule::First,
        on_swapped: Box::new(move |ended| drop(tell.send(ended))),
    });
    loop {
        chain.poll(&mut Vec::new());
        if let Ok(ended) = told.try_recv() {
            return match (ended, journal_in) {
                (Ok(()), _) => Ok(chain),
                (Err(HotSwapError::Open { at, reason: why }), Some(folder)) if at == journal_at => {
                    Err(Unopened::Journal { folder, why })
                }
                (Err(error), _) => Err(error.into()),
            };
        }
        let timer = chain.next_timer().unwrap_or(LOOK_AGAIN);
        watcher.wait(Some(timer.min(LOOK_AGAIN)))?;
    }
}

async fn serve(world: &World, arguments: &Arc<RelayArguments>) -> Result<(), Failure> {
    let mut ends = EndSignals::of_daemon()?;
    let RelayTarget::Nbd(NbdUri { at, export, .. }) = &arguments.to;
    let policy = policy(world, arguments, export)?;
    let is_active = arguments.journal.is_some() || policy.as_ref().is_some_and(has_journal);
    let _state_lock = lock_state(world, arguments, policy.as_ref())?;
    let starting = {
        let (world, arguments) = (world.clone(), Arc::clone(arguments));
        tokio::task::spawn_blocking(move || start(&world, &arguments, policy))
    };
    let started = tokio::select! {
        started = starting => started.map_err(|error| Failure::of(&error))??,
        name = ends.received() => {
            tracing::info!(signal = name, "relay received signal while it opened the disk");
            return Ok(());
        }
    };
    let Started {
        thread,
        _journal_lock,
    } = started;
    let served = thread.export();
    let block_min = thread.call(|chain| chain.bottom().block_min());
    served.set_block_min(block_min.map_err(|error| Failure::of(&error))?);
    let table = Arc::new(ExportTable::new());
    table.add(served.clone());
    let server = Server::start(ServerOptions::new(Arc::clone(&world.clock)))?;
    let listening = server.listen(&arguments.listen, ListenOptions::new(table));
    let listening = listening
        .map_err(|error| Failure::new(format!("cannot listen at {}: {error}", arguments.listen)))?;
    if let Some(tenant) = &arguments.tenant {
        tracing::info!(
            tenant,
            volume = arguments.volume,
            vm = arguments.vm,
            "relay serves disk of tenant"
        );
    }
    announce(&format!(
        "scree relay is ready: {} of {at} at {}\n",
        if export.is_empty() {
            "the export"
        } else {
            export
        },
        listening.endpoint
    ));
    let failure = wait_for_end(&mut ends, &served).await;
    notify_init("STOPPING=1");
    drop(server);
    stop(thread, failure, is_active)
}

/// Serves until a signal arrives, or until the disk fails. Returns why it failed.
async fn wait_for_end(ends: &mut EndSignals, served: &Export) -> Option<String> {
    let mut checks = host::ticks(LOOK_AT_DEVICE_EVERY);
    loop {
        tokio::select! {
            name = ends.received() => {
                tracing::info!(signal = name, "relay received signal and is stopping");
                return None;
            }
            // The next start writes the rest of the journal to the server.
            _ = checks.tick() => if let Some(why) = served.failure() {
                return Some(why);
            },
        }
    }
}

/// Locks the folder with the state of filters, which belongs to one disk, if the policy has filters
/// that keep files.
fn lock_state(
    world: &World,
    arguments: &RelayArguments,
    policy: Option<&Policy>,
) -> Result<Option<File>, Failure> {
    match (&arguments.filter_dir, policy) {
        (Some(folder), Some(policy)) if policy.keeps_files() => {
            lock(world, &folder.join("state")).map(Some)
        }
        _ => Ok(None),
    }
}

/// The thread that serves the relayed disk.
struct Started {
    thread: ExportThread<Relayed>,
    /// Held as long as the journal is in use.
    _journal_lock: Option<File>,
}

/// Starts the thread, which connects to the server and opens the filters, and waits until the disk
/// is open.
fn start(
    world: &World,
    arguments: &RelayArguments,
    policy: Option<Policy>,
) -> Result<Started, Failure> {
    let RelayTarget::Nbd(NbdUri { at, export, tls }) = &arguments.to;
    let mut options = ClientOptions::new(export, Arc::clone(&world.clock));
    options.reconnect = AGAIN;
    if let Some(tls) = tls {
        let read = ClientTls::read(&*world.disk, &tls.certificates, &tls.server);
        options.tls = Some(read.map_err(|error| Failure::of(&error))?);
    }
    let (journal, journal_lock) = match &arguments.journal {
        None => (None, None),
        Some(folder) => (
            Some(journal(arguments, folder)?),
            Some(lock(world, folder)?),
        ),
    };
    let name = if export.is_empty() { UNNAMED } else { export };
    let target = Target::Endpoint(at.clone());
    let export_options = ExportOptions::new(name, Arc::clone(&world.clock));
    let own = world.clone();
    let volume = arguments.volume.as_deref().unwrap_or(name);
    let attribution = Attribution {
        tenant: arguments.tenant.clone().unwrap_or_default(),
        vm: arguments.vm.clone(),
        volume: volume.to_owned(),
        volume_id: None,
    };
    let relay_filters = Filters::new(
        world,
        arguments.filter_dir.as_deref(),
        Path::new(""),
        attribution,
    )?;
    let thread =
        ExportThread::spawn_watching(export_options, move |wake: Wake, watcher: Watcher| {
            let client = NbdClient::new(target, options, watcher.clone());
            let context = relay_filters.context(wake.clone(), &watcher);
            let filters = policy.map_or_else(Vec::new, |policy| build_filters(&policy, &context));
            open(client, filters, journal, &own, (wake, &watcher))
        });
    Ok(Started {
        thread: thread.map_err(|error| Failure::of(&error))?,
        _journal_lock: journal_lock,
    })
}

/// Stops the thread, which flushes the disk, and reports what failed.
fn stop(
    thread: ExportThread<Relayed>,
    failure: Option<String>,
    is_active: bool,
) -> Result<(), Failure> {
    let stopped = tokio::task::block_in_place(|| thread.stop(|_, stopped| stopped));
    let stopped = stopped.map_err(|error| Failure::of(&error))?;
    if let Some(why) = failure {
        return Err(Failure::new(format!(
            "the disk has failed permanently: {why}"
        )));
    }
    stopped.flushed.map_err(|error| {
        let journal = match is_active {
            true => "; the journal has them, and the next start writes them to the server",
            false => "",
        };
        let words = "writes could not be flushed on the server";
        Failure::new(format!("{words}: {error}{journal}"))
    })
}

fn journal(arguments: &RelayArguments, folder: &Path) -> Result<JournalConfig, Failure> {
    let RelayTarget::Nbd(NbdUri { at, export, .. }) = &arguments.to;
    let ring_bytes = arguments.journal_size / 4096 * 4096;
    if ring_bytes < RING_BYTES_MIN {
        let words = format!(
            "a journal needs at least {} MiB: raise --journal-size",
            RING_BYTES_MIN >> 20
        );
        return Err(Failure::new(words));
    }
    Ok(JournalConfig {
        path: folder.join("relay.journal"),
        ring_bytes,
        flush: match arguments.flush {
            Flush::Through => FlushMode::Through,
            Flush::Journal => FlushMode::Journal,
        },
        memory_max: MEMORY_MAX,
        // The size is known once the server has answered.
        block_min: 1,
        // The folder belongs to one disk.
        history: None,
        below: None,
        disk: Some(crc32c(format!("{at} {export}").as_bytes())),
        has_moved: arguments.server_moved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_has_the_advice_to_free_space() {
        let folder = "/var/lib/scree/relay".to_owned();
        let shown = |why| {
            let folder = folder.clone();
            Unopened::Journal { folder, why }.to_string()
        };
        let why = "its 64 MiB cannot be reserved: no space".to_owned();
        assert_eq!(
            shown(FilterError::StorageFull(why.clone())),
            format!("--journal {folder}: {why}; free disk space, or give a smaller --journal-size")
        );
        let other = shown(FilterError::Other(why.clone()));
        assert_eq!(other, format!("--journal {folder}: {why}"));
    }
}
