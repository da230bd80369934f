//! The URL of a unit daemon: `scree://IP:PORT`. Host names are not allowed: resolving one would
//! depend on another service, and addresses of machines rarely change.

use std::net::SocketAddr;

use world::Endpoint;

/// Prefix of a daemon's URL.
const SCHEME: &str = "scree://";

/// The URL of a daemon that hosts reach at `address`.
#[must_use]
pub fn url_of_address(address: SocketAddr) -> String {
    format!("{SCHEME}{address}")
}

/// The endpoint of the daemon at `url`; `None` if that is not the URL of one, or has no port or
/// address that can be reached.
#[must_use]
pub fn endpoint_of_url(url: &str) -> Option<Endpoint> {
    let address: SocketAddr = url.strip_prefix(SCHEME)?.parse().ok()?;
    let is_reachable = address.port() != 0 && !address.ip().is_unspecified();
    is_reachable.then_some(Endpoint::Tcp(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_addresses_round_trip() {
        for (address, url) in [
            ("10.0.0.7:7070", "scree://10.0.0.7:7070"),
            ("[fd00::7]:1", "scree://[fd00::7]:1"),
        ] {
            let address: SocketAddr = address.parse().expect("an address");
            assert_eq!(url_of_address(address), url);
            assert_eq!(endpoint_of_url(url), Some(Endpoint::Tcp(address)));
        }
    }

    #[test]
    fn a_url_without_address_and_port_is_refused() {
        for url in [
            "",
            "scree://",
            "scree://10.0.0.7",
            "scree://10.0.0.7:0",
            "scree://0.0.0.0:7070",
            "scree://[::]:7070",
            "scree://fd00::7:7070",
            "scree://storage1:7070",
            "scree://10.0.0.7:7070/",
            "SCREE://10.0.0.7:7070",
            "https://10.0.0.7:7070",
            "file:///srv/u1",
            "10.0.0.7:7070",
        ] {
            assert_eq!(endpoint_of_url(url), None, "{url}");
        }
    }
}
