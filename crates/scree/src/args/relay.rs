//! Arguments of `scree relay`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::NbdUri;
use clap::{Args, ValueEnum};
use world::Endpoint;

use super::size;

#[derive(Args)]
pub struct RelayArguments {
    /// Address for clients: unix:/PATH, or tcp:ADDR:PORT with a loopback address, as there is no
    /// TLS.
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    pub listen: Endpoint,

    /// Export to relay: nbd+unix:///EXPORT?socket=PATH, nbd://ADDR:PORT/EXPORT, or
    /// nbds://ADDR:PORT/EXPORT?tls-certificates=DIR&tls-hostname=NAME.
    #[arg(long, value_name = "URI", value_parser = target)]
    pub to: RelayTarget,

    /// Acknowledge a write once the relay's journal has it, and send it to the server afterwards.
    /// Without this option the server answers every request.
    #[arg(long, requires = "journal")]
    pub active: bool,

    /// Folder of the journal, for this relay alone. Use the same folder after a crash: its journal
    /// may have the only copy of acknowledged writes.
    #[arg(long, value_name = "DIR", requires = "active")]
    pub journal: Option<PathBuf>,

    /// Accept a journal that was written for another --to, because the same disk is served there
    /// now. Without this option such a journal is refused.
    #[arg(long, requires = "active")]
    pub server_moved: bool,

    /// Size of the journal when it is created.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size, requires = "active")]
    pub journal_size: u64,

    /// When a flush is answered: `through`, once the server has flushed all earlier writes;
    /// `journal`, once the journal is on stable storage.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "through",
        requires = "active"
    )]
    pub flush: Flush,

    /// Policy whose filters handle requests before the journal and the server.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Folder of those filters: keys in private files DIR/keys/NAME, external programs in
    /// DIR/programs/NAME.toml, and in DIR/state what they need after a crash.
    #[arg(long, value_name = "DIR")]
    pub filter_dir: Option<PathBuf>,

    /// Name of the volume in the policy [default: the export's name]
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,

    /// Name of the VM in the policy.
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,

    /// Owner of the disk, for the logs of filters.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

/// When an active relay answers a flush.
#[derive(Clone, Copy, ValueEnum)]
pub enum Flush {
    /// Once the server has flushed all earlier writes.
    Through,
    /// Once the journal is on stable storage.
    Journal,
}

/// The export to relay, by its protocol.
#[derive(Clone)]
pub enum RelayTarget {
    /// An export of an NBD server.
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
                    "{at} can be reached from other machines, and a relay has no TLS: use tcp:127.0.0.1:PORT \
                     or unix:/PATH"
                ));
            }
            Ok(Endpoint::Tcp(at))
        }
        _ => Err("write it as unix:/PATH or tcp:ADDR:PORT".to_owned()),
    }
}

fn target(text: &str) -> Result<RelayTarget, String> {
    text.parse().map(RelayTarget::Nbd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_listens_on_local_addresses_only() {
        assert!(endpoint("tcp:127.0.0.1:1").is_ok());
        assert!(endpoint("tcp:0.0.0.0:1").is_err());
        assert!(endpoint("unix:relative").is_err());
    }
}
