//! What `scree relay` is told.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::url;
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

    /// A policy, whose boxes requests go through before they reach the journal and the
    /// server.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// What those boxes have: keys, each in a private file DIR/keys/NAME, and in DIR/state what
    /// they have to know after a crash.
    #[arg(long, value_name = "DIR")]
    pub box_dir: Option<PathBuf>,

    /// Which volume this is, for the policy. [default: the export's name]
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,

    /// Which machine uses it, for the policy.
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,

    /// Whose it is, for what boxes tell of it.
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
    Nbd {
        /// Where the server is.
        at: Endpoint,
        /// Its name there.
        export: String,
        /// A folder with ca-cert.pem, client-cert.pem and client-key.pem, and the name that
        /// the server's certificate has.
        tls: Option<(PathBuf, String)>,
    },
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

pub fn target(text: &str) -> Result<RelayTarget, String> {
    let (scheme, rest) = text
        .split_once("://")
        .ok_or("it is a URI, as nbd+unix:///EXPORT?socket=PATH")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
    let decoded = |text: &str| {
        let path = url::decode(text).ok_or(format!("{text:?} is not percent-encoded"))?;
        Ok::<_, String>(path)
    };
    let export = decoded(export)?;
    let export = export.to_str().ok_or("the export's name is no text")?;
    let said = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(found, _)| *found == key);
        value.map(|(_, value)| decoded(value)).transpose()
    };
    let known = ["socket", "tls-certificates", "tls-hostname"];
    let mut keys = query.split('&').filter(|pair| !pair.is_empty());
    let keys = keys
        .by_ref()
        .map(|pair| pair.split('=').next().unwrap_or(pair));
    if let Some(other) = keys.into_iter().find(|key| !known.contains(key)) {
        return Err(format!("nothing is known of {other:?}"));
    }
    let (at, is_tls) = match scheme {
        "nbd+unix" | "nbds+unix" if host.is_empty() => {
            let socket = said("socket")?.ok_or("say which socket: ?socket=PATH")?;
            (Endpoint::Unix(socket), scheme == "nbds+unix")
        }
        "nbd" | "nbds" => (Endpoint::Tcp(address(host)?), scheme == "nbds"),
        _ => return Err("it begins with nbd+unix:///, nbd:// or nbds://".to_owned()),
    };
    let tls = match (is_tls, said("tls-certificates")?) {
        (false, None) => None,
        (false, Some(_)) => return Err("there is no TLS: it would begin with nbds".to_owned()),
        (true, None) => return Err("say where certificates are: ?tls-certificates=DIR".to_owned()),
        (true, Some(folder)) => {
            let name = said("tls-hostname")?;
            let name = name.as_deref().and_then(Path::to_str).map(str::to_owned);
            let own = match &at {
                Endpoint::Tcp(at) => at.ip().to_string(),
                Endpoint::Unix(_) => "localhost".to_owned(),
            };
            Some((folder, name.unwrap_or(own)))
        }
    };
    Ok(RelayTarget::Nbd {
        at,
        export: export.to_owned(),
        tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, String, bool), String> {
        let RelayTarget::Nbd { at, export, tls } = target(text)?;
        Ok((at.to_string(), export, tls.is_some()))
    }

    #[test]
    fn uris_are_read_as_libnbd_does() {
        let ok = |at: &str, export: &str, tls| Ok((at.to_owned(), export.to_owned(), tls));
        assert_eq!(
            read("nbd+unix:///a%20b?socket=/tmp/s"),
            ok("unix:/tmp/s", "a b", false)
        );
        assert_eq!(read("nbd+unix:///?socket=/s"), ok("unix:/s", "", false));
        assert_eq!(
            read("nbd://127.0.0.1"),
            ok("tcp:127.0.0.1:10809", "", false)
        );
        assert_eq!(read("nbd://[::1]:7/x"), ok("tcp:[::1]:7", "x", false));
        assert_eq!(
            read("nbds://10.0.0.1/x?tls-certificates=/pki"),
            ok("tcp:10.0.0.1:10809", "x", true)
        );
        for (text, why) in [
            ("/tmp/s", "it is a URI"),
            ("http://x/", "begins with"),
            ("nbd+unix:///x", "say which socket"),
            ("nbd://host/x", "names are not looked up"),
            ("nbds://10.0.0.1/x", "say where certificates are"),
            ("nbd://10.0.0.1/x?tls-certificates=/pki", "there is no TLS"),
            (
                "nbd://10.0.0.1/x?colour=red",
                "nothing is known of \"colour\"",
            ),
            ("nbd://10.0.0.1/%zz", "not percent-encoded"),
        ] {
            let said = read(text).expect_err(text);
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!(endpoint("tcp:0.0.0.0:1").is_err());
        assert!(endpoint("unix:relative").is_err());
    }
}
