//! Where those who watch this process ask: `--listen-metrics`.

use std::net::SocketAddr;

use api::Profile;
use metrics::{Monitor, MonitorListener};
use world::{Millis, World};

use crate::commands::Failure;

/// Answers at `at`, if that was asked for, from before the parts begin until the
/// process ends. Returns where.
pub fn listen(at: Option<SocketAddr>, monitor: &Monitor) -> Result<Option<SocketAddr>, Failure> {
    let Some(at) = at else { return Ok(None) };
    let listener = MonitorListener::bind(at)
        .map_err(|error| Failure::new(format!("cannot listen for metrics at {at}: {error}")))?;
    let address = listener.address();
    tracing::info!(%address, "/healthz, /readyz and /metrics");
    tokio::spawn(listener.serve(monitor.clone()));
    Ok(Some(address))
}

/// Watches this process, which is to have these parts.
pub fn monitor(world: &World, parts: &[&'static str]) -> Monitor {
    Monitor::new(env!("CARGO_PKG_VERSION"), world.clock.wall(), parts)
}

/// Notes when the certificate ends that an agent shows.
pub fn note_identity(monitor: &Monitor, profile: &Profile) {
    match profile.expires.parse::<jiff::Timestamp>() {
        Ok(ends) => monitor.set_certificate("client", Millis(ends.as_millisecond())),
        Err(error) => tracing::warn!(%error, "the certificate's end is not known"),
    }
}
