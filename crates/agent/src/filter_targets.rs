//! Disks elsewhere that filters use: NBD servers that an operator lets tenants reach, and other
//! volumes of the tenant that are attached to the same host.
//!
//! A policy is a tenant's word, and is carried out with the agent's rights: whatever the
//! agent can connect to is not for everybody. So sockets are those of the tenant's own
//! folder, and addresses those of networks that the operator names; by default none.
//!
//! ```text
//!   nbd+unix:///EXPORT?socket=NAME    D/filter-sockets/TENANT/NAME
//!   nbd://ADDRESS:PORT/EXPORT         if --filter-network has it
//!   nbds…?tls-certificates=NAME       D/filter-certificates/TENANT/NAME
//!   volume NAME                       as controllers say which one that is
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use auth::{Kind, Subject};
use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, IoError, NbdUri,
    Started, Token, VolumeId, ZeroMode, with_causes,
};
use chain::{Link, Remote, Targets};
use chain_policy::ReplicaLocation;
use nbd::Watcher;
use nbd::client::{ClientOptions, ClientTls, Departed, NbdClient, State, Target};
use world::{Clock, Disk, Endpoint};

/// A network: an address, and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// Whether an address is of it. One of IPv4 that is written as one of IPv6
    /// (`::ffff:10.0.0.1`) leads where that of IPv4 does, and counts as it.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= self.bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network; write it as 10.0.0.0/8 or 10.1.2.3");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits: u32 = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        // What has addresses of IPv4 only is one of IPv4.
        Ok(match (address.to_canonical(), bits.checked_sub(96)) {
            (own @ IpAddr::V4(_), Some(bits)) if address.is_ipv6() => Self { address: own, bits },
            _ => Self { address, bits },
        })
    }
}

/// The volumes that a chain writes beside its own.
pub(crate) struct OtherVolumes {
    /// Which they are, by the names that its policy has for them.
    pub named: BTreeMap<String, VolumeId>,
    /// What one is called here, while it is attached.
    pub export: Box<dyn Fn(VolumeId) -> Option<String> + Send + Sync>,
    /// Where those that are attached without a machine are served.
    pub socket: PathBuf,
}

impl OtherVolumes {
    fn find(&self, name: &str) -> Result<NbdUri, String> {
        let gone = || format!("{name:?} is none of the tenant's volumes any more");
        let id = self.named.get(name).ok_or_else(gone)?;
        let export = (self.export)(*id);
        let export = export.ok_or_else(|| {
            format!("{name:?} is not attached to this host: `scree volume export` it here")
        })?;
        Ok(NbdUri {
            at: Endpoint::Unix(self.socket.clone()),
            export,
            tls: None,
        })
    }
}

/// Those that one tenant's filters may use.
pub(crate) struct FilterTargets {
    /// None: nobody's are nobody's.
    pub sockets: Option<PathBuf>,
    /// Folders of certificates; none, too.
    pub certificates: Option<PathBuf>,
    pub disk: Arc<dyn Disk>,
    pub networks: Arc<[Network]>,
    pub volumes: OtherVolumes,
    pub watcher: Watcher,
    pub departed: Arc<Departed>,
    pub clock: Arc<dyn Clock>,
}

impl FilterTargets {
    /// Those of `tenant`, whose sockets and certificates are below these folders.
    pub fn new(
        [sockets, certificates]: [&Path; 2],
        disk: Arc<dyn Disk>,
        tenant: &str,
        networks: Arc<[Network]>,
        volumes: OtherVolumes,
        (watcher, departed): (Watcher, Arc<Departed>),
        clock: Arc<dyn Clock>,
    ) -> Self {
        let is_name = Subject::new(Kind::User, tenant).is_ok();
        Self {
            sockets: is_name.then(|| sockets.join(tenant)),
            certificates: is_name.then(|| certificates.join(tenant)),
            disk,
            networks,
            volumes,
            watcher,
            departed,
            clock,
        }
    }

    /// What a tenant means by a URI: the sockets and certificates in it are names.
    fn find(&self, uri: &str) -> Result<NbdUri, String> {
        let mut found = chain_policy::parse_tenant_uri(uri)?;
        let nobodys =
            || format!("{uri:?} names something in the tenant's folder, and there is none");
        match &mut found.at {
            Endpoint::Unix(socket) => {
                *socket = self.sockets.as_ref().ok_or_else(nobodys)?.join(&*socket);
            }
            Endpoint::Tcp(at) => may_reach(&self.networks, *at)?,
        }
        if let Some(tls) = &mut found.tls {
            let folder = self.certificates.as_ref().ok_or_else(nobodys)?;
            tls.certificates = folder.join(&tls.certificates);
        }
        Ok(found)
    }

    fn client_of(&self, found: NbdUri) -> Result<NbdClient, String> {
        let mut options = ClientOptions::new(found.export, Arc::clone(&self.clock));
        options.departed = Arc::clone(&self.departed);
        if let Some(tls) = found.tls {
            let read = ClientTls::read(&*self.disk, &tls.certificates, &tls.server);
            options.tls = Some(read.map_err(|error| with_causes(&error))?);
        }
        let target = Target::Endpoint(found.at);
        Ok(NbdClient::new(target, options, self.watcher.clone()))
    }
}

/// Whether filters of this host may reach an address.
///
/// # Errors
/// That they may not, for people.
pub(crate) fn may_reach(networks: &[Network], at: SocketAddr) -> Result<(), String> {
    match networks.iter().any(|network| network.has(at.ip())) {
        true => Ok(()),
        false => Err(format!(
            "{at} is not for filters of this host; its operator can let them reach a network: \
             --filter-network"
        )),
    }
}

impl Targets for FilterTargets {
    fn open(&self, place: &ReplicaLocation) -> Result<Box<dyn Remote>, String> {
        let found = match place {
            ReplicaLocation::Uri(uri) => self.find(uri)?,
            ReplicaLocation::Volume(name) => self.volumes.find(name)?,
        };
        Ok(Box::new(Connected(self.client_of(found)?)))
    }

    fn identity(&self, place: &ReplicaLocation) -> String {
        let named = &self.volumes.named;
        match place {
            // Another one of this name is another place.
            ReplicaLocation::Volume(name) if let Some(id) = named.get(name) => {
                format!("volume {id}")
            }
            _ => place.to_string(),
        }
    }
}

/// An NBD server's export, to filters.
pub struct Connected(pub NbdClient);

impl Remote for Connected {
    fn link(&self) -> Link {
        match self.0.state() {
            State::Connecting => Link::Connecting,
            State::Ready => Link::Ready,
            State::Broken { why } => Link::Broken(why.to_string()),
        }
    }
}

impl BlockDevice for Connected {
    fn geometry(&self) -> DeviceGeometry {
        self.0.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn read(&mut self, token: Token, offset: u64, out: &mut [u8]) -> Started {
        self.0.read(token, offset, out)
    }

    fn write(&mut self, token: Token, offset: u64, data: &[u8], durability: Durability) -> Started {
        self.0.write(token, offset, data, durability)
    }

    fn flush(&mut self, token: Token) -> Started {
        self.0.flush(token)
    }

    fn trim(&mut self, token: Token, offset: u64, length: u64, durability: Durability) -> Started {
        self.0.trim(token, offset, length, durability)
    }

    fn write_zeroes(&mut self, token: Token, offset: u64, length: u64, mode: ZeroMode) -> Started {
        self.0.write_zeroes(token, offset, length, mode)
    }

    fn extents(
        &mut self,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        self.0.extents(token, offset, length, runs)
    }

    fn prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        self.0.prefetch(token, offset, length)
    }

    fn commit(&mut self) -> Result<(), IoError> {
        self.0.commit()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.0.poll(completions);
    }

    fn stop_waiting(&mut self) {
        self.0.stop_waiting();
    }

    fn next_timer(&self) -> Option<std::time::Duration> {
        self.0.next_timer()
    }
}

#[cfg(test)]
mod tests {
    use world::World;

    use super::*;

    /// Two volumes have names, of which the first is attached.
    fn others() -> OtherVolumes {
        let [first, second] = [1, 2].map(VolumeId::from_u128);
        OtherVolumes {
            named: [("b".to_owned(), first), ("c".to_owned(), second)].into(),
            export: Box::new(move |id| (id == first).then(|| "alice/b".to_owned())),
            socket: "/d/nbd.sock".into(),
        }
    }

    #[test]
    fn a_volume_is_found_where_it_is_attached() {
        let found = others().find("b");
        let NbdUri { at, export, .. } = found.expect("it is attached");
        assert_eq!(format!("{at} {export}"), "unix:/d/nbd.sock alice/b");
        for (name, why) in [("c", "not attached"), ("d", "none of the tenant's")] {
            let refused = others().find(name).expect_err("refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    fn find(tenant: &str, networks: &[&str], uri: &str) -> Result<String, String> {
        let networks = networks.iter().map(|one| one.parse().expect("a network"));
        let watcher = Watcher::new().expect("a poller");
        let World { clock, disk, .. } = World::real(1);
        let targets = FilterTargets::new(
            [Path::new("/d/filter-sockets"), Path::new("/d/certificates")],
            disk,
            tenant,
            networks.collect(),
            others(),
            (watcher, Arc::default()),
            clock,
        );
        let found = targets.find(uri);
        found.map(|found| {
            let tls = found
                .tls
                .map(|tls| format!(" {}", tls.certificates.display()));
            format!("{} {}{}", found.at, found.export, tls.unwrap_or_default())
        })
    }

    #[test]
    fn a_tenant_reaches_what_an_operator_has_said_and_nothing_else() {
        let at = |text: &str| Ok(text.to_owned());
        let socket = "nbd+unix:///a%20b?socket=b.sock";
        assert_eq!(
            find("alice", &[], socket),
            at("unix:/d/filter-sockets/alice/b.sock a b")
        );
        let tcp = "nbd://10.1.2.3/x";
        assert_eq!(
            find("alice", &["10.0.0.0/8"], tcp),
            at("tcp:10.1.2.3:10809 x")
        );
        let tls = "nbds://10.1.2.3/x?tls-certificates=pki";
        assert_eq!(
            find("alice", &["10.0.0.0/8"], tls),
            at("tcp:10.1.2.3:10809 x /d/certificates/alice/pki")
        );
        let mapped = "nbd://[::ffff:10.1.2.3]/x";
        for network in ["10.0.0.0/8", "::ffff:10.0.0.0/104"] {
            assert_eq!(
                find("alice", &[network], mapped),
                at("tcp:10.1.2.3:10809 x"),
                "{network}"
            );
            assert_eq!(find("alice", &[network], tcp), at("tcp:10.1.2.3:10809 x"));
        }
        let six = "nbd://[fd00::1]:7/x";
        assert_eq!(find("alice", &["fd00::/8"], six), at("tcp:[fd00::1]:7 x"));
        for (tenant, networks, uri, why) in [
            ("alice", &[][..], tcp, "--filter-network"),
            ("alice", &["10.1.2.4"], tcp, "--filter-network"),
            ("alice", &["::/0"], tcp, "--filter-network"),
            ("alice", &["::/0"], mapped, "--filter-network"),
            ("alice", &["::ffff:10.1.2.4"], mapped, "--filter-network"),
            ("alice", &["0.0.0.0/0"], six, "--filter-network"),
            ("alice", &[], "nbd+unix:///x?socket=/d/nbd.sock", "no path"),
            ("alice", &[], "nbd+unix:///x?socket=..", "no path"),
            (
                "alice",
                &[],
                "nbd+unix:///x?socket=%2e%2e%2fbob%2fb",
                "no path",
            ),
            ("../bob", &[], socket, "there is none"),
            ("", &[], socket, "there is none"),
            ("alice", &["0.0.0.0/0"], "nbd://host/x", "not looked up"),
            (
                "alice",
                &["0.0.0.0/0"],
                "nbds://10.1.2.3/x?tls-certificates=/pki",
                "no path",
            ),
            ("alice", &[], "http://x", "begins with"),
        ] {
            let refused = find(tenant, networks, uri).expect_err("refused");
            assert!(refused.contains(why), "{uri}: {refused}");
        }
        for wrong in ["10.0.0.0/33", "host", "10.0.0.0/x", ""] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
