//! Runs the parts of a process from start to end, and handles signals.

use std::sync::Arc;
use std::time::Duration;

use agent::Agent;
use tokio::signal::unix::{SignalKind, signal};
use world::{World, host};

use super::parts::Up;
use super::readiness::{say_ready, tell_init};
use super::settings::Settings;
use crate::commands::Failure;
use crate::monitoring;

/// How long open requests may take after a signal.
const GOODBYE: Duration = Duration::from_secs(2);

/// A signal within this time of the first one counts as the same.
const REPEATS: Duration = Duration::from_secs(1);

/// Serves until a signal comes, then destages everything to the units.
///
/// # Errors
/// If a part cannot be opened, or volumes cannot be closed.
pub(super) async fn serve(world: World, settings: Settings) -> Result<(), Failure> {
    // Received before anything is opened, so that an early signal counts.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    // Received and ignored.
    let _hangup = signal(SignalKind::hangup())?;

    let clock = Arc::clone(&world.clock);
    let parts = [
        settings.control.as_ref().map(|_| "controller"),
        settings.agent.as_ref().map(|_| "agent"),
    ];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    let monitor = monitoring::monitor(&world, &parts);
    let metrics = monitoring::listen(settings.listen_metrics, &monitor)?;
    let Up {
        control,
        agent,
        mut api,
        address,
        stop,
    } = Up::start(world, settings, &monitor).await?;
    let mut running = tokio::spawn({
        let agent = agent.clone();
        async move {
            match agent {
                Some(agent) => agent.run().await,
                None => std::future::pending().await,
            }
        }
    });
    say_ready(control.as_ref(), agent.as_ref(), address, metrics).await?;

    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM"),
        _ = interrupt.recv() => tracing::info!("SIGINT"),
        _ = quit.recv() => {
            end_at_once(agent);
            return Ok(());
        }
        ended = api.join_next(), if !api.is_empty() => {
            tracing::error!(?ended, "the API ended by itself");
        }
        ended = &mut running => {
            tracing::error!(?ended, "agent ended unexpectedly");
        }
    }
    running.abort();
    tell_init("STOPPING=1");
    let end = async {
        if let Some(control) = &control {
            control.set_open(false);
        }
        let unclean = match &agent {
            Some(agent) => agent.shut_down().await,
            None => 0,
        };
        stop.send_replace(true);
        let ended = async { while api.join_next().await.is_some() {} };
        let _ = host::timeout(GOODBYE, ended).await;
        if let Some(control) = &control {
            control.shut_down().await;
        }
        unclean
    };
    let first = clock.monotonic();
    let insisted = async {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = quit.recv() => break,
            }
            if clock.monotonic() - first >= REPEATS {
                break;
            }
        }
    };
    let unclean = tokio::select! {
        unclean = end => unclean,
        () = insisted => {
            return Err(Failure::new("exited immediately at a second signal"));
        }
    };
    if unclean > 0 {
        // Closing a file on a hanging unit may never return.
        std::mem::forget(agent);
        return Err(Failure::new(format!(
            "{unclean} volumes could not be destaged; their journals have what is missing, and \
             the next start goes on with them"
        )));
    }
    if agent.is_some() {
        tracing::info!("all data is on the units; exiting");
    }
    Ok(())
}

/// Exits as after a crash: the journals have all acknowledged writes.
fn end_at_once(agent: Option<Agent>) {
    tell_init("STOPPING=1");
    tracing::info!("exiting at SIGQUIT without destaging; the next start replays the journals");
    // Closing would take time.
    std::mem::forget(agent);
}
