//! What `scree relay` is told.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::NbdUri;
use clap::{Args, ValueEnum};
use world::Endpoint;

use super::size;

#[derive(Args)]
pub struct RelayArguments {
    /// Where clients come in: unix:/PATH, or tcp:ADDR:PORT. There is no TLS here, so an
    /// address is one of this host.
    #[arg(long, value_name = "WHERE", value_parser = endpoint)]
    pub listen: Endpoint,

    /// The export that is relayed: nbd+unix:///EXPORT?socket=PATH, nbd://ADDR:PORT/EXPORT, or
    /// nbds://ADDR:PORT/EXPORT?tls-certificates=DIR&tls-hostname=NAME.
    #[arg(long, value_name = "URI", value_parser = target)]
    pub to: RelayTarget,

    /// Acknowledge a write when the relay's own journal has it, and carry it out afterwards.
    /// Without this every request reaches the server before it is answered.
    #[arg(long, requires = "journal")]
    pub active: bool,

    /// The folder of that journal, of one relay. It has to be the same one after a crash:
    /// what is in it may be nowhere else.
    #[arg(long, value_name = "DIR", requires = "active")]
    pub journal: Option<PathBuf>,

    /// What the journal has is for the disk that is served at `--to` now, though it was served
    /// elsewhere when that was acknowledged: otherwise it is another disk's, and is refused.
    #[arg(long, requires = "active")]
    pub server_moved: bool,

    /// How long the journal is, if it is made.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size, requires = "active")]
    pub journal_size: u64,

    /// When a flush is answered.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "through",
        requires = "active"
    )]
    pub flush: Flush,

    /// A policy, whose filters requests go through before they reach the journal and the
    /// server.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// What those filters have: keys, each in a private file DIR/keys/NAME, programs, each as
    /// DIR/programs/NAME.toml says, and in DIR/state what they have to know after a crash.
    #[arg(long, value_name = "DIR")]
    pub filter_dir: Option<PathBuf>,

    /// Which volume this is, for the policy. [default: the export's name]
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,

    /// Which machine uses it, for the policy.
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,

    /// Whose it is, for what filters tell of it.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

/// When an active relay answers a flush.
#[derive(Clone, Copy, ValueEnum)]
pub enum Flush {
    /// When all before it is carried out and flushed on the server.
    Through,
    /// When the journal is on stable storage.
    Journal,
}

/// What is relayed, by the protocol that it is reached by. iSCSI will be another one.
#[derive(Clone)]
pub enum RelayTarget {
    /// An NBD server's export.
    Nbd(NbdUri),
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let with_port = match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => text.to_owned(),
        _ => format!("{text}:10809"),
    };
    super::address(&with_port)
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    match text.split_once(':') {
        Some(("unix", path)) if Path::new(path).is_absolute() => Ok(Endpoint::Unix(path.into())),
        Some(("tcp", at)) => {
            let at = address(at)?;
            if !at.ip().is_loopback() {
                return Err(format!(
                    "{at} can be reached from other machines, without TLS"
                ));
            }
            Ok(Endpoint::Tcp(at))
        }
        _ => Err("it is unix:/PATH or tcp:ADDR:PORT".to_owned()),
    }
}

fn target(text: &str) -> Result<RelayTarget, String> {
    text.parse().map(RelayTarget::Nbd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_listens_where_no_other_machine_comes_in() {
        assert!(endpoint("tcp:127.0.0.1:1").is_ok());
        assert!(endpoint("tcp:0.0.0.0:1").is_err());
        assert!(endpoint("unix:relative").is_err());
    }
}
