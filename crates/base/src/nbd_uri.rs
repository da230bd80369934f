//! [`NbdUri`]: the address of an NBD export, spelled as libnbd spells it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{Endpoint, url};

/// The TCP port that IANA assigned to NBD.
const PORT: u16 = 10809;

/// The parameters that may follow the question mark.
const KEYS: [&str; 3] = ["socket", "tls-certificates", "tls-hostname"];

/// The address of an export.
///
/// ```text
///   nbd+unix:///EXPORT?socket=PATH
///   nbd://ADDRESS:PORT/EXPORT
///   nbds://ADDRESS:PORT/EXPORT?tls-certificates=DIR&tls-hostname=NAME
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUri {
    /// The address of the server.
    pub at: Endpoint,
    /// The name of the export, which may be empty.
    pub export: String,
    /// The TLS parameters; `None` for a connection without TLS.
    pub tls: Option<UriTls>,
}

/// The TLS parameters of a URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriTls {
    /// The folder that holds `ca-cert.pem`, `client-cert.pem` and `client-key.pem`.
    pub certificates: PathBuf,
    /// The name that the server's certificate has to have.
    pub server: String,
}

/// Parses `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`.
fn address(text: &str) -> Result<SocketAddr, String> {
    let alone = text.trim_start_matches('[').trim_end_matches(']');
    text.parse()
        .or_else(|_| alone.parse().map(|at: IpAddr| SocketAddr::new(at, PORT)))
        .map_err(|_| format!("{text:?} is not an IP address; host names are not resolved"))
}

fn decoded(text: &str) -> Result<PathBuf, String> {
    let path = url::decode(text).ok_or(format!("{text:?} is not percent-encoded"))?;
    // Neither a path nor an export can have a NUL byte.
    match path.as_os_str().as_encoded_bytes().contains(&0) {
        true => Err(format!("{text:?} has a NUL byte")),
        false => Ok(path),
    }
}

fn text_of(path: &Path, what: &str) -> Result<String, String> {
    let text = path.to_str().ok_or(format!("{what} is not UTF-8"))?;
    Ok(text.to_owned())
}

impl FromStr for NbdUri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("write a URI, such as nbd+unix:///EXPORT?socket=PATH")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = text_of(&decoded(export)?, "the export's name")?;
        let parameter = |key: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let value = pairs.find(|(found, _)| *found == key);
            value.map(|(_, value)| decoded(value)).transpose()
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let key = pair.split('=').next().unwrap_or(pair);
            if !KEYS.contains(&key) {
                return Err(format!(
                    "unknown parameter {key:?}; there are {}",
                    KEYS.join(", ")
                ));
            }
        }
        let at = match scheme {
            "nbd+unix" | "nbds+unix" if host.is_empty() => Endpoint::Unix(
                parameter("socket")?.ok_or("add the path of the socket: ?socket=PATH")?,
            ),
            "nbd" | "nbds" => Endpoint::Tcp(address(host)?),
            _ => {
                return Err("an NBD URI begins with nbd+unix:///, nbd:// or nbds://".to_owned());
            }
        };
        let tls = match (scheme.starts_with("nbds"), parameter("tls-certificates")?) {
            (false, None) => None,
            (false, Some(_)) => {
                return Err(
                    "tls-certificates needs a URI that begins with nbds:// or nbds+unix://"
                        .to_owned(),
                );
            }
            (true, None) => {
                return Err("add the folder of certificates: ?tls-certificates=DIR".to_owned());
            }
            (true, Some(certificates)) => {
                let name = parameter("tls-hostname")?;
                let name = name.map(|name| text_of(&name, "the server's name"));
                let own = match &at {
                    Endpoint::Tcp(at) => at.ip().to_string(),
                    Endpoint::Unix(_) => "localhost".to_owned(),
                };
                Some(UriTls {
                    certificates,
                    server: name.transpose()?.unwrap_or(own),
                })
            }
        };
        Ok(Self { at, export, tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, String, bool), String> {
        let uri: NbdUri = text.parse()?;
        Ok((uri.at.to_string(), uri.export, uri.tls.is_some()))
    }

    #[test]
    fn uris_are_parsed_as_libnbd_parses_them() {
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
        assert_eq!(read("nbd://[::1]/x"), ok("tcp:[::1]:10809", "x", false));
        assert_eq!(
            read("nbds://10.0.0.1/x?tls-certificates=/pki"),
            ok("tcp:10.0.0.1:10809", "x", true)
        );
        let named: NbdUri = "nbds://10.0.0.1/x?tls-hostname=disks&tls-certificates=/pki"
            .parse()
            .expect("a URI");
        assert_eq!(named.tls.expect("it is there").server, "disks");
        for (text, why) in [
            ("/tmp/s", "write a URI"),
            ("http://x/", "begins with"),
            ("nbd+unix://h/x?socket=/s", "begins with"),
            ("nbd+unix:///x", "add the path of the socket"),
            ("nbd://host/x", "names are not resolved"),
            ("nbds://10.0.0.1/x", "add the folder of certificates"),
            (
                "nbd://10.0.0.1/x?tls-certificates=/pki",
                "tls-certificates needs",
            ),
            ("nbd://10.0.0.1/x?color=red", "unknown parameter \"color\""),
            ("nbd://10.0.0.1/%zz", "not percent-encoded"),
        ] {
            let parameter = read(text).expect_err(text);
            assert!(parameter.contains(why), "{text}: {parameter}");
        }
    }
}
