//! [`EndSignals`]: the signals that end a process or command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::Failure;

const TERMINATE: (&str, SignalKind) = ("SIGTERM", SignalKind::terminate());
const INTERRUPT: (&str, SignalKind) = ("SIGINT", SignalKind::interrupt());
const QUIT: (&str, SignalKind) = ("SIGQUIT", SignalKind::quit());
const HANGUP: (&str, SignalKind) = ("SIGHUP", SignalKind::hangup());

/// Signals that are received from the creation of this value on.
pub struct EndSignals {
    signals: Vec<(&'static str, Signal)>,
    /// Signals that are received and ignored.
    _ignored: Vec<Signal>,
}

impl EndSignals {
    /// The signals that end a daemon. A hangup of the terminal that started it does not.
    ///
    /// # Errors
    /// If signals cannot be received.
    pub fn of_daemon() -> Result<Self, Failure> {
        Self::of(&[TERMINATE, INTERRUPT, QUIT], &[HANGUP])
    }

    /// The signals that end a command which has to clean up. A hangup is ignored if the command was
    /// started that way, as by `nohup`.
    ///
    /// # Errors
    /// If signals cannot be received.
    pub fn of_command() -> Result<Self, Failure> {
        match is_ignored(SignalKind::hangup()) {
            true => Self::of(&[TERMINATE, INTERRUPT], &[]),
            false => Self::of(&[TERMINATE, INTERRUPT, HANGUP], &[]),
        }
    }

    fn of(
        ends: &[(&'static str, SignalKind)],
        ignored: &[(&str, SignalKind)],
    ) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::new(format!("cannot receive signals: {error}"));
        let ends = ends.iter().map(|(name, kind)| Ok((*name, signal(*kind)?)));
        let ignored = ignored.iter().map(|(_, kind)| signal(*kind));
        Ok(Self {
            signals: ends.collect::<io::Result<_>>().map_err(cannot)?,
            _ignored: ignored.collect::<io::Result<_>>().map_err(cannot)?,
        })
    }

    /// Waits for a signal and returns its name. A signal that came earlier is not lost.
    pub async fn received(&mut self) -> &'static str {
        poll_fn(|context| {
            let mut come = self
                .signals
                .iter_mut()
                .filter_map(|(name, signal)| signal.poll_recv(context).is_ready().then_some(*name));
            come.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether this process was started with the signal ignored; valid before it is received here.
#[expect(
    clippy::disallowed_methods,
    reason = "it reads the state of this process"
)]
fn is_ignored(kind: SignalKind) -> bool {
    // Without this file no signal counts as ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, id};

    use super::*;

    fn send(name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name.trim_start_matches("SIG"), &id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    #[tokio::test]
    async fn each_end_signal_is_returned_by_name() {
        let has_hangups = !is_ignored(SignalKind::hangup());
        let mut ends = EndSignals::of_command().ok().expect("signals");
        for name in ["SIGHUP", "SIGTERM", "SIGINT"] {
            if name != "SIGHUP" || has_hangups {
                send(name);
                assert_eq!(ends.received().await, name);
            }
        }
        let mut ends = EndSignals::of_daemon().ok().expect("signals");
        send("SIGHUP");
        send("SIGTERM");
        assert_eq!(ends.received().await, "SIGTERM", "a hangup is ignored");
    }
}
