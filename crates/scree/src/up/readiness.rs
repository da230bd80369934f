//! Reports readiness on standard output and to the service manager.

use std::net::SocketAddr;

use agent::Agent;
use control::Control;

use crate::commands::Failure;
use crate::output::{shell_word, write_out};

/// The line on standard output that people and scripts wait for.
pub(super) async fn report_ready(
    control: Option<&Control>,
    agent: Option<&Agent>,
    address: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
) -> Result<(), Failure> {
    let at = |what: &str, address: Option<SocketAddr>| {
        address.map_or_else(String::new, |address| format!("{what} at {address}; "))
    };
    let line = match (control, agent) {
        (Some(control), _) => {
            let status = control
                .status()
                .await
                .map_err(|error| Failure::of(&error))?;
            for problem in &status.problems {
                tracing::warn!("{problem}");
            }
            let folder = control.folder().path();
            format!(
                "scree is ready: {} ({} units, {} volumes, {} exported); {}{}export SCREE_DIR={}\n",
                folder.display(),
                status.units,
                status.volumes,
                status.exported,
                at("API", address),
                at("metrics", metrics),
                shell_word(folder)
            )
        }
        (None, Some(agent)) => {
            let folder = agent.folder().path().display();
            let metrics = metrics.map(|address| format!("; metrics at {address}"));
            format!(
                "scree agent is ready: {folder}{}\n",
                metrics.unwrap_or_default()
            )
        }
        (None, None) => return Ok(()),
    };
    announce(&line);
    Ok(())
}

/// Prints a line on standard output and reports readiness to the service manager.
pub(super) fn announce(line: &str) {
    if let Err(error) = write_out(line.as_bytes()) {
        tracing::warn!("{error}");
    }
    notify_init("READY=1");
}

/// Notifies the service manager, if there is one (sd_notify(3)).
pub(super) fn notify_init(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.strip_prefix('@') {
        Some(hidden) => SocketAddr::from_abstract_name(hidden),
        None => SocketAddr::from_pathname(&name),
    };
    #[expect(clippy::disallowed_methods, reason = "one word to one socket")]
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, name, "process could not notify service manager");
    }
}
