//! `replicate`: the other disks to which a disk is written.

use std::fmt;

use base::{Endpoint, NbdUri};
use serde::Deserialize;

use crate::Glob;
use crate::kind::FilterConfig;
use crate::monitor::{MEMORY_BYTES, MEMORY_DEFAULT, PATHS_MAX};
use crate::out_of_process::Placement;

/// The maximal number of replicas in addition to the volume itself.
const REPLICAS_MAX: usize = 2;

/// The maximal length of a replica's URI, in bytes.
const URI_BYTES_MAX: usize = 1024;

/// The maximal length of a volume's name or id, in bytes.
const VOLUME_BYTES_MAX: usize = 256;

/// The allowed values of `stall_ms`.
const STALL_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

/// The parameters of a `replicate` filter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicateConfig {
    /// The replicas. Each has to be at least as large as the volume.
    #[serde(rename = "replica", default)]
    pub replicas: Vec<Replica>,
    /// After this time without an answer a replica is left out, in milliseconds.
    #[serde(default = "stall_ms")]
    pub stall_ms: u64,
    /// The memory that the filter may use for what it knows of each file system, in bytes. Only
    /// partial replicas need it.
    #[serde(default = "memory_max", deserialize_with = "crate::size::required")]
    pub memory_max: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Replica {
    /// The replica's name. Events use it, and the filter recognizes the replica by it after the
    /// replica was unavailable.
    pub name: String,
    /// The location of the replica.
    pub location: ReplicaLocation,
    /// The files whose content a partial replica has; `None` for a replica of the whole disk.
    pub paths: Option<Vec<Glob>>,
}

/// The location of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaLocation {
    /// An export of an NBD server, as `nbd://ADDRESS:PORT/EXPORT`,
    /// `nbd+unix:///EXPORT?socket=PATH`, or over TLS
    /// `nbds://ADDRESS:PORT/EXPORT?tls-certificates=FOLDER`.
    Uri(String),
    /// A volume of the same cluster and owner, by its name or id.
    Volume(String),
}

impl fmt::Display for ReplicaLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => f.write_str(uri),
            Self::Volume(volume) => write!(f, "volume {volume}"),
        }
    }
}

impl ReplicaLocation {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Uri(uri) => {
                let schemes = ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"];
                let is_nbd = schemes.iter().any(|scheme| uri.starts_with(scheme));
                match is_nbd && uri.len() <= URI_BYTES_MAX {
                    true => Ok(()),
                    false => parse_uri(uri)
                        .and(Err(format!("uri may have at most {URI_BYTES_MAX} bytes"))),
                }
            }
            Self::Volume(volume) => match (1..=VOLUME_BYTES_MAX).contains(&volume.len()) {
                true => Ok(()),
                false => Err("volume must be the name or id of a volume".to_owned()),
            },
        }
    }
}

/// Parses a replica's URI. An IPv4 address that is written as an IPv6 one (`::ffff:10.0.0.1`)
/// becomes the IPv4 address, so that one location has one spelling.
fn parse_uri(uri: &str) -> Result<NbdUri, String> {
    let mut found: NbdUri = uri.parse().map_err(|why| {
        format!(
            "uri must be nbd://ADDRESS:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH, or over TLS \
             nbds://ADDRESS:PORT/EXPORT?tls-certificates=FOLDER; {uri:?}: {why}"
        )
    })?;
    if let Endpoint::Tcp(at) = &mut found.at {
        at.set_ip(at.ip().to_canonical());
    }
    Ok(found)
}

/// Parses a URI in the policy of a tenant, in which sockets and certificates are names in that
/// tenant's folders.
///
/// # Errors
/// Text for users, if the URI is not one or has a path in place of a name.
pub fn parse_tenant_uri(uri: &str) -> Result<NbdUri, String> {
    let found = parse_uri(uri)?;
    let socket = match &found.at {
        Endpoint::Unix(socket) => Some(socket),
        Endpoint::Tcp(_) => None,
    };
    let certificates = found.tls.as_ref().map(|tls| &tls.certificates);
    for path in socket.into_iter().chain(certificates) {
        let text = path.to_str().unwrap_or_default();
        if text.is_empty() || text.starts_with('.') || text.contains('/') {
            return Err(format!(
                "{uri:?}: {text:?} is a path; it must be a name in the tenant's folder"
            ));
        }
    }
    Ok(found)
}

/// The network address of a replica, as `ADDRESS:PORT/EXPORT`, independent of how its URI is
/// spelled. `None` for a volume, and for a Unix socket, which names another server on each host.
pub(crate) fn address(location: &ReplicaLocation) -> Option<String> {
    let ReplicaLocation::Uri(uri) = location else {
        return None;
    };
    let found = parse_uri(uri).ok()?;
    match found.at {
        Endpoint::Tcp(at) => Some(format!("{at}/{}", found.export)),
        Endpoint::Unix(_) => None,
    }
}

/// A replica as a policy spells it.
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
        let location = match (written.uri, written.volume) {
            (Some(uri), None) => ReplicaLocation::Uri(uri),
            (None, Some(volume)) => ReplicaLocation::Volume(volume),
            _ => return Err("a replica needs either a uri or a volume".to_owned()),
        };
        Ok(Self {
            name: written.name,
            location,
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

impl FilterConfig for ReplicateConfig {
    const NAME: &'static str = "replicate";
    const PLACEMENT: Placement = Placement::Inline;
    const KEEPS_FILES: bool = true;
    const TRANSFORMS: bool = false;

    /// Checks the names and numbers.
    fn check(&self) -> Result<(), String> {
        if !(1..=REPLICAS_MAX).contains(&self.replicas.len()) {
            let count = self.replicas.len();
            return Err(format!(
                "the filter has {count} [[filter.replica]]; it needs 1 to {REPLICAS_MAX}"
            ));
        }
        if !STALL_MS.contains(&self.stall_ms) {
            return Err("stall_ms must be 10 to 60000".to_owned());
        }
        if !MEMORY_BYTES.contains(&self.memory_max) {
            return Err("memory_max must be 1M to 16G".to_owned());
        }
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let mut names = vec!["volume"];
        for replica in &self.replicas {
            let name = &replica.name;
            if name.is_empty() || name.len() > 32 || !name.bytes().all(is_name) {
                return Err(format!(
                    "{name:?} is not the name of a replica: use 1 to 32 lowercase letters, digits and \
                     hyphens"
                ));
            }
            if names.contains(&&**name) {
                return Err(format!("two replicas are named {name:?}"));
            }
            match replica.paths.as_deref() {
                Some([]) => {
                    return Err(format!(
                        "replica {name:?}: paths is empty; remove it to replicate all files"
                    ));
                }
                Some(paths) if paths.len() > PATHS_MAX => {
                    return Err(format!(
                        "replica {name:?}: paths may have at most {PATHS_MAX} patterns"
                    ));
                }
                _ => {}
            }
            names.push(name);
            replica
                .location
                .check()
                .map_err(|reason| format!("replica {name:?}: {reason}"))?;
            let same = self
                .replicas
                .iter()
                .filter(|one| one.location == replica.location);
            if same.count() > 1 {
                return Err(format!("two replicas are {}", replica.location));
            }
        }
        Ok(())
    }
}

impl ReplicateConfig {
    /// Checks that the replicas can be reached: that their URIs are valid, and that no two are
    /// the same location. In the policy of a tenant (`is_tenants`), sockets and certificates have
    /// to be names in that tenant's folders.
    pub(crate) fn check_locations(&self, is_tenants: bool) -> Result<(), String> {
        let mut found = Vec::new();
        for replica in &self.replicas {
            let name = &replica.name;
            let location = match &replica.location {
                ReplicaLocation::Uri(uri) if is_tenants => parse_tenant_uri(uri).map(Ok),
                ReplicaLocation::Uri(uri) => parse_uri(uri).map(Ok),
                ReplicaLocation::Volume(volume) => Ok(Err(volume)),
            };
            let location = location.map_err(|why| format!("replica {name:?}: {why}"))?;
            if found.contains(&location) {
                return Err(format!(
                    "replica {name:?}: another replica is also {}",
                    replica.location
                ));
            }
            found.push(location);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_can_never_be_reached_is_refused() {
        let check = |uri: &str| {
            let config: ReplicateConfig =
                toml::from_str(&format!("[[replica]]\nname = 'b'\nuri = '{uri}'\n"))
                    .expect("it is written so");
            config.check().and_then(|()| config.check_locations(true))
        };
        for uri in [
            "nbd://10.0.0.1:10809/disk",
            "nbd+unix:///disk?socket=b",
            "nbds://10.0.0.1/disk?tls-certificates=mine",
        ] {
            assert_eq!(check(uri), Ok(()), "{uri}");
        }
        for (uri, why) in [
            ("nbd://localhost/disk", "names are not resolved"),
            ("nbd://10.0.0.1:99999/disk", "is not an IP address"),
            ("nbd+unix:///disk?socket=..", "must be a name"),
            ("nbd+unix:///disk?socket=/run/b", "must be a name"),
            ("nbd+unix:///disk?socket=a%00b", "has a NUL byte"),
            ("nbd+unix:///%00?socket=b", "has a NUL byte"),
            (
                "nbds://10.0.0.1/disk?tls-certificates=../other",
                "must be a name",
            ),
        ] {
            let refused = check(uri).expect_err(uri);
            assert!(refused.contains(why), "{uri}: {refused}");
        }
        // The same location in other spellings.
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
            let refused = config.check_locations(false).expect_err("it is one place");
            assert!(
                refused.contains("\"c\": another replica is also"),
                "{refused}"
            );
            let [one, same] = &config.replicas[..] else {
                panic!("there are two");
            };
            assert_eq!(address(&same.location), address(&one.location));
        }
    }

    #[test]
    fn invalid_parameters_of_replicas_are_refused() {
        let check = |text: &str| {
            let config: Result<ReplicateConfig, _> = toml::from_str(text);
            config.map_err(|error| error.to_string())?.check()
        };
        let one = "[[replica]]\nname = 'b'\nuri = 'nbd://10.0.0.1:1/x'\n";
        assert_eq!(check(one), Ok(()));
        let chosen = format!("memory_max = '64M'\n{one}paths = ['/etc/**', '/home/*/mail/**']");
        assert_eq!(check(&chosen), Ok(()));
        for (text, expected) in [
            ("".to_owned(), "needs 1 to 2"),
            (one.repeat(3), "needs 1 to 2"),
            (one.repeat(2), "two replicas"),
            (format!("stall_ms = 0\n{one}"), "stall_ms"),
            (one.replace("'b'", "'volume'"), "two replicas"),
            (one.replace("'b'", "'B'"), "1 to 32"),
            (one.replace("nbd://", "http://"), "uri must be"),
            (format!("{one}paths = []"), "paths is empty"),
            (format!("{one}paths = ['etc']"), "not a path pattern"),
            (format!("{one}paths = ['/[']"), "unclosed character class"),
            (format!("{one}paths = '/etc'"), "expected a sequence"),
            (
                format!("{one}paths = [{}]", "'/a',".repeat(257)),
                "at most 256 patterns",
            ),
            (format!("memory_max = 10\n{one}"), "1M to 16G"),
            (format!("{one}color = 1"), "unknown field"),
        ] {
            let refused = check(&text).expect_err("refused");
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
