//! Health and metrics of this process (`--listen-metrics`).

use std::net::SocketAddr;

use api::Profile;
use metrics::{Monitor, MonitorListener};
use world::{Millis, World};

use crate::commands::Failure;

/// Serves health and metrics at `at`, if given, from before the parts start until the process ends.
/// Returns the address.
pub fn listen(at: Option<SocketAddr>, monitor: &Monitor) -> Result<Option<SocketAddr>, Failure> {
    let Some(at) = at else { return Ok(None) };
    let listener = MonitorListener::bind(at)
        .map_err(|error| Failure::new(format!("cannot listen for metrics at {at}: {error}")))?;
    let address = listener.address();
    tracing::info!(%address, "process serves /healthz, /readyz and /metrics");
    tokio::spawn(listener.serve(monitor.clone()));
    Ok(Some(address))
}

/// A monitor of this process, which will have these parts.
pub fn monitor(world: &World, parts: &[&'static str]) -> Monitor {
    Monitor::new(env!("CARGO_PKG_VERSION"), world.clock.wall(), parts)
}

/// Records when the certificate of an agent expires.
pub fn note_identity(monitor: &Monitor, profile: &Profile) {
    match profile.expires.parse::<jiff::Timestamp>() {
        Ok(ends) => monitor.set_certificate("client", Millis(ends.as_millisecond())),
        Err(error) => tracing::warn!(%error, "process cannot parse expiry of its certificate"),
    }
}
