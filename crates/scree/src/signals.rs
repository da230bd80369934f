//! The signals that end something.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::Failure;

const TERMINATE: (&str, SignalKind) = ("SIGTERM", SignalKind::terminate());
const INTERRUPT: (&str, SignalKind) = ("SIGINT", SignalKind::interrupt());
const QUIT: (&str, SignalKind) = ("SIGQUIT", SignalKind::quit());
const HANGUP: (&str, SignalKind) = ("SIGHUP", SignalKind::hangup());

/// Signals that are listened for, from the moment on that it is made.
pub struct Ends {
    signals: Vec<(&'static str, Signal)>,
    /// Taken, so that they do nothing.
    _ignored: Vec<Signal>,
}

impl Ends {
    /// Those that end a daemon, which does not care for whose terminal it was started from.
    ///
    /// # Errors
    /// If the system takes none, as below.
    pub fn of_daemon() -> Result<Self, Failure> {
        Self::of(&[TERMINATE, INTERRUPT, QUIT], &[HANGUP])
    }

    /// Those that end a command which has something to take down before. A hangup does not, if
    /// the command was started so that it ignores it, as `nohup` does.
    ///
    /// # Errors
    /// If the system takes none.
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
        let cannot = |error: io::Error| Failure::new(format!("signals: {error}"));
        let ends = ends.iter().map(|(name, kind)| Ok((*name, signal(*kind)?)));
        let ignored = ignored.iter().map(|(_, kind)| signal(*kind));
        Ok(Self {
            signals: ends.collect::<io::Result<_>>().map_err(cannot)?,
            _ignored: ignored.collect::<io::Result<_>>().map_err(cannot)?,
        })
    }

    /// Waits for one, and says which it is. One that came before is not lost.
    pub async fn come(&mut self) -> &'static str {
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

/// As this process was started, if it does not listen for it yet.
#[expect(
    clippy::disallowed_methods,
    reason = "it is this very process that is asked about"
)]
fn is_ignored(kind: SignalKind) -> bool {
    // Without it nothing says so.
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
    async fn each_signal_ends_and_says_which_it_is() {
        let has_hangups = !is_ignored(SignalKind::hangup());
        let mut ends = Ends::of_command().ok().expect("signals");
        for name in ["SIGHUP", "SIGTERM", "SIGINT"] {
            if name != "SIGHUP" || has_hangups {
                send(name);
                assert_eq!(ends.come().await, name);
            }
        }
        let mut ends = Ends::of_daemon().ok().expect("signals");
        send("SIGHUP");
        send("SIGTERM");
        assert_eq!(ends.come().await, "SIGTERM", "a hangup does nothing");
    }
}
