//! Runs the parts of a process from start to end, and handles signals.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use agent::Agent;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};
use world::{Clock, World, host};

use super::parts::Up;
use super::readiness::{notify_init, report_ready};
use super::settings::Settings;
use crate::commands::Failure;
use crate::monitoring;

/// How long open requests may take after a signal.
const GOODBYE: Duration = Duration::from_secs(2);

/// A signal within this time of the first one counts as the same.
const REPEATS: Duration = Duration::from_secs(1);

/// The signals that end this process. SIGHUP is received and ignored.
struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    _hangup: Signal,
}

/// Why the process ends.
enum End {
    /// Destage everything first.
    Orderly,
    /// SIGQUIT: exit without destaging.
    Immediate,
}

impl ProcessSignals {
    fn receive() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            _hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the first signal, or for a part that ends by itself.
    async fn first(&mut self, api: &mut JoinSet<()>, agent: &mut JoinHandle<()>) -> End {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!(signal = "SIGTERM", "process received signal and is stopping"),
            _ = self.interrupt.recv() => tracing::info!(signal = "SIGINT", "process received signal and is stopping"),
            _ = self.quit.recv() => return End::Immediate,
            ended = api.join_next(), if !api.is_empty() => {
                tracing::error!(?ended, "API ended unexpectedly");
            }
            ended = agent => tracing::error!(?ended, "agent ended unexpectedly"),
        }
        End::Orderly
    }

    /// Waits for a signal that does not count as the first one again.
    async fn second(&mut self, clock: &dyn Clock) {
        let first = clock.monotonic();
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.quit.recv() => return,
            }
            if clock.monotonic() - first >= REPEATS {
                return;
            }
        }
    }
}

/// Serves until a signal comes, then destages everything to the units.
///
/// # Errors
/// If a part cannot be opened, or volumes cannot be closed.
pub(super) async fn serve(world: World, settings: Settings) -> Result<(), Failure> {
    // Received before anything is opened, so that an early signal counts.
    let mut signals = ProcessSignals::receive()?;
    let clock = Arc::clone(&world.clock);
    let parts = [
        settings.control.as_ref().map(|_| "controller"),
        settings.agent.as_ref().map(|_| "agent"),
    ];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    let monitor = monitoring::monitor(&world, &parts);
    let metrics = monitoring::listen(settings.listen_metrics, &monitor)?;
    let mut up = Up::start(world, settings, &monitor).await?;
    let mut running = tokio::spawn({
        let agent = up.agent.clone();
        async move {
            match agent {
                Some(agent) => agent.run().await,
                None => std::future::pending().await,
            }
        }
    });
    report_ready(up.control.as_ref(), up.agent.as_ref(), up.address, metrics).await?;
    if let End::Immediate = signals.first(&mut up.api, &mut running).await {
        end_immediately(up.agent);
        return Ok(());
    }
    running.abort();
    notify_init("STOPPING=1");
    let unclean = tokio::select! {
        unclean = shut_down(&mut up) => unclean,
        () = signals.second(&*clock) => {
            return Err(Failure::new("exited immediately at a second signal"));
        }
    };
    if unclean > 0 {
        // Closing a file on a hanging unit may never return.
        std::mem::forget(up.agent);
        return Err(Failure::new(format!(
            "{unclean} volumes could not be destaged; their journals have all acknowledged writes, \
             and the next start replays them"
        )));
    }
    if up.agent.is_some() {
        tracing::info!("agent destaged all volumes; process exits");
    }
    Ok(())
}

/// Refuses requests, destages everything and stops the API. Returns the number of volumes that
/// could not be destaged.
async fn shut_down(up: &mut Up) -> usize {
    if let Some(control) = &up.control {
        control.set_open(false);
    }
    let unclean = match &up.agent {
        Some(agent) => agent.shut_down().await,
        None => 0,
    };
    up.stop.send_replace(true);
    let ended = async { while up.api.join_next().await.is_some() {} };
    let _ = host::timeout(GOODBYE, ended).await;
    if let Some(control) = &up.control {
        control.shut_down().await;
    }
    unclean
}

/// Exits as after a crash: the journals have all acknowledged writes.
fn end_immediately(agent: Option<Agent>) {
    notify_init("STOPPING=1");
    tracing::info!(
        "process exits at SIGQUIT without destaging; the next start replays the journals"
    );
    // Closing would take time.
    std::mem::forget(agent);
}
