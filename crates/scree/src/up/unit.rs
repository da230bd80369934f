//! `scree unit --listen`: the daemon of a unit, until SIGTERM, SIGINT or SIGQUIT.
//!
//! Nothing has to be saved when it exits: synced slots are durable, and hosts put the others again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::Profile;
use auth::Kind;
use tokio::sync::watch;
use unit_daemon::{REPORT_EVERY, Service, UndeletePolicy};
use world::{World, host};

use super::prepare;
use super::readiness::{announce, notify_init};
use super::renewal::keep_renewed;
use super::settings::Identity;
use crate::args::DaemonArguments;
use crate::commands::Failure;
use crate::monitoring;
use crate::signals::EndSignals;

/// How long closing connections may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long remaining tasks may take to end with their runtime.
const LEFT_MAX: Duration = Duration::from_millis(100);

/// Runs the daemon of the unit in `folder`.
pub fn run_unit(folder: &Path, arguments: &DaemonArguments) -> Result<(), Failure> {
    let (world, runtime) = prepare()?;
    let ended = runtime.block_on(serve(world, folder, arguments));
    // A hanging folder must not block the signals.
    runtime.shutdown_timeout(LEFT_MAX);
    ended
}

/// The line that says that the daemon is ready.
fn ready_line(service: &Service, metrics: Option<SocketAddr>) -> String {
    let metrics = metrics.map_or_else(String::new, |at| format!("; metrics at {at}"));
    format!(
        "scree unit is ready: {} ({}) at {}{metrics}\n",
        service.folder().display(),
        service.unit(),
        service.url(),
    )
}

async fn serve(world: World, folder: &Path, arguments: &DaemonArguments) -> Result<(), Failure> {
    // Received before anything is opened, so that an early signal counts.
    let mut ends = EndSignals::of_daemon()?;
    let Some(listen) = arguments.listen else {
        return Err(Failure::new(
            "--listen is missing: add the address for hosts, as --listen 0.0.0.0:7070",
        ));
    };
    let identity = Identity::read(&world, folder, Kind::Unit)?;
    let monitor = monitoring::monitor(&world, &["unit"]);
    let metrics = monitoring::listen(arguments.monitor.listen_metrics, &monitor)?;
    monitoring::note_identity(&monitor, &identity.profile);
    let (newest, profile) = watch::channel(Arc::new(identity.profile.clone()));
    let settings = unit_daemon::Settings {
        folder: folder.to_owned(),
        listen,
        address: arguments.address,
        client: identity.client.clone(),
        profile,
        connections_max: arguments.connections.into(),
        undelete: UndeletePolicy {
            window: arguments.undelete_window,
            room_percent: arguments.undelete_room,
        },
        report_every: REPORT_EVERY,
    };
    let noted_by = monitor.clone();
    let note = move |profile: &Profile| {
        monitoring::note_identity(&noted_by, profile);
        newest.send_replace(Arc::new(profile.clone()));
    };
    let renewing = tokio::spawn(keep_renewed(world.clone(), identity, note));
    let started = tokio::select! {
        started = Service::start(world, settings) => started,
        name = ends.received() => {
            tracing::info!(signal = name, "daemon received signal and is stopping");
            return Ok(());
        }
    };
    let service = started.map_err(|error| Failure::of(&error))?;
    monitor.add(Arc::new(service.clone()));
    let serving = service.clone();
    let running = tokio::spawn(async move { serving.run().await });
    announce(&ready_line(&service, metrics));
    let ended = tokio::select! {
        name = ends.received() => {
            tracing::info!(signal = name, "daemon received signal and is stopping");
            Ok(())
        }
        ended = running => Err(format!("the daemon ended unexpectedly: {ended:?}")),
        ended = renewing => Err(format!("the renewal of the certificate ended unexpectedly: {ended:?}")),
    };
    notify_init("STOPPING=1");
    if host::timeout(GOODBYE, service.shut_down()).await.is_none() {
        tracing::warn!("daemon did not close all connections in time");
    }
    ended.map_err(Failure::new)
}
