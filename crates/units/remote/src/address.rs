//! Where a unit's daemon is: `scree://IP:PORT`. Names are not looked up: whoever
//! answers for one would be asked first, and a machine's address changes less
//! often than it is asked for.

use std::net::SocketAddr;

use world::Endpoint;

/// What a daemon's URL begins with.
const SCHEME: &str = "scree://";

/// The URL of a daemon that hosts reach at `address`.
#[must_use]
pub fn url_of_address(address: SocketAddr) -> String {
    format!("{SCHEME}{address}")
}

/// Where the daemon at `url` is; `None` if that is not the URL of one, or names
/// no port or address that could be reached.
#[must_use]
pub fn endpoint_of_url(url: &str) -> Option<Endpoint> {
    let address: SocketAddr = url.strip_prefix(SCHEME)?.parse().ok()?;
    let is_place = address.port() != 0 && !address.ip().is_unspecified();
    is_place.then_some(Endpoint::Tcp(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_and_its_address_are_each_others_inverse() {
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
    fn what_names_no_address_and_port_is_nowhere() {
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
