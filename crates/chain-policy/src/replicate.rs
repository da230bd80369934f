//! `replicate`: where else a disk is written.

use std::fmt;

use base::{Endpoint, NbdUri};
use serde::Deserialize;

use crate::Glob;
use crate::monitor::{MEMORY_BYTES, MEMORY_DEFAULT, PATHS_MAX};

/// Beside the volume itself.
const REPLICAS_MAX: usize = 2;

/// An address is as long at most, in bytes.
const URI_BYTES_MAX: usize = 1024;

/// A volume's name or id is as long at most, in bytes.
const VOLUME_BYTES_MAX: usize = 256;

/// How long a replica may take, in milliseconds.
const STALL_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

/// Where else a disk is written, and how long that may take.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicateConfig {
    /// Each is as large as the volume at least.
    #[serde(rename = "replica", default)]
    pub replicas: Vec<Replica>,
    /// One that has answered nothing for so long is put out, in milliseconds.
    #[serde(default = "stall_ms")]
    pub stall_ms: u64,
    /// How much memory what is known of each file system may take, in bytes, for replicas of
    /// chosen files.
    #[serde(default = "memory_max", deserialize_with = "crate::size::required")]
    pub memory_max: u64,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Replica {
    /// By which it is told, and known after it was away.
    pub name: String,
    /// Where it lies.
    pub place: Place,
    /// Of which files it has the content: of all, if this is left out.
    pub paths: Option<Vec<Glob>>,
}

/// Where a replica lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An NBD server's export, as `nbd://ADDRESS:PORT/EXPORT`,
    /// `nbd+unix:///EXPORT?socket=PATH`, or over TLS
    /// `nbds://ADDRESS:PORT/EXPORT?tls-certificates=FOLDER`.
    Uri(String),
    /// A volume of the same cluster and owner, by its name or id.
    Volume(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => f.write_str(uri),
            Self::Volume(volume) => write!(f, "volume {volume}"),
        }
    }
}

impl Place {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Uri(uri) => {
                let schemes = ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"];
                let is_nbd = schemes.iter().any(|scheme| uri.starts_with(scheme));
                match is_nbd && uri.len() <= URI_BYTES_MAX {
                    true => Ok(()),
                    false => {
                        uri_of(uri).and(Err(format!("its uri may have {URI_BYTES_MAX} bytes")))
                    }
                }
            }
            Self::Volume(volume) => match (1..=VOLUME_BYTES_MAX).contains(&volume.len()) {
                true => Ok(()),
                false => Err("its volume is the name or id of one".to_owned()),
            },
        }
    }
}

/// An address of IPv4 that is written as one of IPv6 (`::ffff:10.0.0.1`) is that of IPv4: it
/// is the same place.
fn uri_of(uri: &str) -> Result<NbdUri, String> {
    let mut found: NbdUri = uri.parse().map_err(|why| {
        format!(
            "its uri is nbd://ADDRESS:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH, or over TLS \
             nbds://ADDRESS:PORT/EXPORT?tls-certificates=FOLDER; {uri:?}: {why}"
        )
    })?;
    if let Endpoint::Tcp(at) = &mut found.at {
        at.set_ip(at.ip().to_canonical());
    }
    Ok(found)
}

/// What a tenant of a cluster means by a URI: sockets and certificates in it are names in
/// folders of that tenant's.
///
/// # Errors
/// That they are none, or what is no URI, for people.
pub fn tenants_uri(uri: &str) -> Result<NbdUri, String> {
    let found = uri_of(uri)?;
    let socket = match &found.at {
        Endpoint::Unix(socket) => Some(socket),
        Endpoint::Tcp(_) => None,
    };
    let certificates = found.tls.as_ref().map(|tls| &tls.certificates);
    for path in socket.into_iter().chain(certificates) {
        let text = path.to_str().unwrap_or_default();
        if text.is_empty() || text.starts_with('.') || text.contains('/') {
            return Err(format!(
                "{uri:?}: {text:?} is to be a name in the tenant's folder, and no path"
            ));
        }
    }
    Ok(found)
}

/// Where in the network a replica is, as `ADDRESS:PORT/EXPORT`: the same however its URI is
/// spelt. None: it is a volume, or at a socket, which each host has its own of.
pub(crate) fn address(place: &Place) -> Option<String> {
    let Place::Uri(uri) = place else { return None };
    let found = uri_of(uri).ok()?;
    match found.at {
        Endpoint::Tcp(at) => Some(format!("{at}/{}", found.export)),
        Endpoint::Unix(_) => None,
    }
}

/// A replica as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    uri: Option<String>,
    volume: Option<String>,
    paths: Option<Vec<Glob>>,
}

impl TryFrom<Written> for Replica {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let place = match (written.uri, written.volume) {
            (Some(uri), None) => Place::Uri(uri),
            (None, Some(volume)) => Place::Volume(volume),
            _ => return Err("a replica has either a uri or a volume".to_owned()),
        };
        Ok(Self {
            name: written.name,
            place,
            paths: written.paths,
        })
    }
}

const fn memory_max() -> u64 {
    MEMORY_DEFAULT
}

const fn stall_ms() -> u64 {
    1000
}

impl ReplicateConfig {
    /// Whether its names and numbers make sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=REPLICAS_MAX).contains(&self.replicas.len()) {
            let count = self.replicas.len();
            return Err(format!(
                "it has {count} [[filter.replica]], and has 1 to {REPLICAS_MAX} beside the volume"
            ));
        }
        if !STALL_MS.contains(&self.stall_ms) {
            return Err("stall_ms is 10 to 60000".to_owned());
        }
        if !MEMORY_BYTES.contains(&self.memory_max) {
            return Err("memory_max is 1M to 16G".to_owned());
        }
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let mut names = vec!["volume"];
        for replica in &self.replicas {
            let name = &replica.name;
            if name.is_empty() || name.len() > 32 || !name.bytes().all(is_name) {
                return Err("a replica's name has 1 to 32 characters of a-z, 0-9 and -".to_owned());
            }
            if names.contains(&&**name) {
                return Err(format!("two replicas are called {name:?}"));
            }
            match replica.paths.as_deref() {
                Some([]) => {
                    return Err(format!(
                        "replica {name:?}: paths chooses nothing; leave it out for all files"
                    ));
                }
                Some(paths) if paths.len() > PATHS_MAX => {
                    return Err(format!("replica {name:?}: it may have {PATHS_MAX} paths"));
                }
                _ => {}
            }
            names.push(name);
            replica
                .place
                .check()
                .map_err(|reason| format!("replica {name:?}: {reason}"))?;
            let places = self
                .replicas
                .iter()
                .filter(|one| one.place == replica.place);
            if places.count() > 1 {
                return Err(format!("two replicas are {}", replica.place));
            }
        }
        Ok(())
    }

    /// Whether its replicas can be reached at all: each by a URI, at a place of its own. Those
    /// of a tenant of a cluster are names in folders of that tenant's.
    pub(crate) fn check_places(&self, are_tenants: bool) -> Result<(), String> {
        let mut found = Vec::new();
        for one in &self.replicas {
            let name = &one.name;
            let place = match &one.place {
                Place::Uri(uri) if are_tenants => tenants_uri(uri).map(Ok),
                Place::Uri(uri) => uri_of(uri).map(Ok),
                Place::Volume(volume) => Ok(Err(volume)),
            };
            let place = place.map_err(|why| format!("replica {name:?}: {why}"))?;
            if found.contains(&place) {
                return Err(format!("replica {name:?}: another one is {}", one.place));
            }
            found.push(place);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_be_reached_is_refused() {
        let check = |uri: &str| {
            let config: ReplicateConfig =
                toml::from_str(&format!("[[replica]]\nname = 'b'\nuri = '{uri}'\n"))
                    .expect("it is written so");
            config.check().and_then(|()| config.check_places(true))
        };
        for uri in [
            "nbd://10.0.0.1:10809/disk",
            "nbd+unix:///disk?socket=b",
            "nbds://10.0.0.1/disk?tls-certificates=mine",
        ] {
            assert_eq!(check(uri), Ok(()), "{uri}");
        }
        for (uri, why) in [
            ("nbd://localhost/disk", "names are not looked up"),
            ("nbd://10.0.0.1:99999/disk", "is no address"),
            ("nbd+unix:///disk?socket=..", "is to be a name"),
            ("nbd+unix:///disk?socket=/run/b", "is to be a name"),
            ("nbd+unix:///disk?socket=a%00b", "has a NUL"),
            ("nbd+unix:///%00?socket=b", "has a NUL"),
            (
                "nbds://10.0.0.1/disk?tls-certificates=../other",
                "is to be a name",
            ),
        ] {
            let refused = check(uri).expect_err(uri);
            assert!(refused.contains(why), "{uri}: {refused}");
        }
        // The same place, written otherwise.
        for other in [
            "10.0.0.1:10809",
            "[::ffff:10.0.0.1]",
            "[::ffff:a00:1]:10809",
        ] {
            let two = format!(
                "[[replica]]\nname = 'b'\nuri = 'nbd://10.0.0.1/x'\n\
                 [[replica]]\nname = 'c'\nuri = 'nbd://{other}/x'\n"
            );
            let config: ReplicateConfig = toml::from_str(&two).expect("it is written so");
            let refused = config.check_places(false).expect_err("it is one place");
            assert!(refused.contains("\"c\": another one is"), "{refused}");
            let [one, same] = &config.replicas[..] else {
                panic!("there are two");
            };
            assert_eq!(address(&same.place), address(&one.place));
        }
    }

    #[test]
    fn replicas_that_make_no_sense_are_refused() {
        let check = |text: &str| {
            let config: Result<ReplicateConfig, _> = toml::from_str(text);
            config.map_err(|error| error.to_string())?.check()
        };
        let one = "[[replica]]\nname = 'b'\nuri = 'nbd://10.0.0.1:1/x'\n";
        assert_eq!(check(one), Ok(()));
        let chosen = format!("memory_max = '64M'\n{one}paths = ['/etc/**', '/home/*/mail/**']");
        assert_eq!(check(&chosen), Ok(()));
        for (text, expected) in [
            ("".to_owned(), "has 1 to 2"),
            (one.repeat(3), "has 1 to 2"),
            (one.repeat(2), "two replicas"),
            (format!("stall_ms = 0\n{one}"), "stall_ms"),
            (one.replace("'b'", "'volume'"), "two replicas"),
            (one.replace("'b'", "'B'"), "1 to 32"),
            (one.replace("nbd://", "http://"), "its uri"),
            (format!("{one}paths = []"), "chooses nothing"),
            (format!("{one}paths = ['etc']"), "no pattern of paths"),
            (format!("{one}paths = ['/[']"), "unclosed character class"),
            (format!("{one}paths = '/etc'"), "expected a sequence"),
            (
                format!("{one}paths = [{}]", "'/a',".repeat(257)),
                "it may have 256 paths",
            ),
            (format!("memory_max = 10\n{one}"), "1M to 16G"),
            (format!("{one}colour = 1"), "unknown field"),
        ] {
            let refused = check(&text).expect_err("refused");
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
