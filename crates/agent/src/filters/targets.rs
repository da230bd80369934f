//! [`FilterTargets`]: disks outside the chain that filters use: NBD servers that the operator lets
//! tenants reach, and other volumes of the tenant that are attached to the same host.
//!
//! A tenant writes a policy, and the agent applies it with its own rights, which exceed the
//! tenant's. So filters can reach only sockets in the tenant's own folder, and addresses in
//! networks that the operator names; by default there are none.
//!
//! ```text
//!   nbd+unix:///EXPORT?socket=NAME    <data>/filter-sockets/TENANT/NAME
//!   nbd://ADDRESS:PORT/EXPORT         if a --filter-network contains the address
//!   nbds…?tls-certificates=NAME       <data>/filter-certificates/TENANT/NAME
//!   volume NAME                       the volume that the controllers name
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use auth::{Kind, Subject};
use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, NbdUri, Request, Started,
    VolumeId, with_causes,
};
use chain::{LinkState, RemoteDisk, Targets};
use chain_policy::ReplicaLocation;
use nbd::Watcher;
use nbd::client::{ClientOptions, ClientTls, NbdClient, OrphanedConnections, State, Target};
use world::{Clock, Disk, Endpoint};

/// A network: an address, and the number of its leading bits that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// Whether an address is in the network. An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) counts
    /// as the IPv4 address.
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
        let wrong = || format!("{text:?} is not a network; write it as 10.0.0.0/8 or 10.1.2.3");
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
        // A network of IPv4-mapped addresses is an IPv4 network.
        Ok(match (address.to_canonical(), bits.checked_sub(96)) {
            (own @ IpAddr::V4(_), Some(bits)) if address.is_ipv6() => Self { address: own, bits },
            _ => Self { address, bits },
        })
    }
}

/// The volumes that a chain writes besides its own.
pub(super) struct OtherVolumes {
    /// The volumes by their names in the policy.
    pub named: BTreeMap<String, VolumeId>,
    /// Returns the name of a volume's export, while it is attached here.
    pub export: Box<dyn Fn(VolumeId) -> Option<String> + Send + Sync>,
    /// The socket that serves volumes that are attached without a VM.
    pub socket: PathBuf,
}

impl OtherVolumes {
    fn find(&self, name: &str) -> Result<NbdUri, String> {
        let removed = || format!("{name:?} is not one of the tenant's volumes any more");
        let id = self.named.get(name).ok_or_else(removed)?;
        let export = (self.export)(*id);
        let export = export.ok_or_else(|| {
            format!(
                "{name:?} is not attached to this host; attach it here with `scree volume export`"
            )
        })?;
        Ok(NbdUri {
            at: Endpoint::Unix(self.socket.clone()),
            export,
            tls: None,
        })
    }
}

/// The targets that one tenant's filters may use.
pub(super) struct FilterTargets {
    /// The folder of the tenant's sockets, if there is one.
    sockets: Option<PathBuf>,
    /// The folder of the tenant's certificate folders, if there is one.
    certificates: Option<PathBuf>,
    disk: Arc<dyn Disk>,
    networks: Arc<[Network]>,
    volumes: OtherVolumes,
    watcher: Watcher,
    orphaned: Arc<OrphanedConnections>,
    clock: Arc<dyn Clock>,
}

/// The options of [`FilterTargets`].
pub(super) struct TargetOptions<'a> {
    pub tenant: &'a str,
    /// The folder of all tenants' sockets.
    pub sockets: &'a Path,
    /// The folder of all tenants' certificates.
    pub certificates: &'a Path,
    pub disk: Arc<dyn Disk>,
    pub networks: Arc<[Network]>,
    pub volumes: OtherVolumes,
    pub watcher: Watcher,
    pub orphaned: Arc<OrphanedConnections>,
    pub clock: Arc<dyn Clock>,
}

impl FilterTargets {
    pub fn new(options: TargetOptions<'_>) -> Self {
        let tenant = options.tenant;
        let is_name = Subject::new(Kind::User, tenant).is_ok();
        Self {
            sockets: is_name.then(|| options.sockets.join(tenant)),
            certificates: is_name.then(|| options.certificates.join(tenant)),
            disk: options.disk,
            networks: options.networks,
            volumes: options.volumes,
            watcher: options.watcher,
            orphaned: options.orphaned,
            clock: options.clock,
        }
    }

    /// The target of a tenant's URI. Sockets and certificates in it are names in the tenant's
    /// folders.
    fn find(&self, uri: &str) -> Result<NbdUri, String> {
        let mut found = chain_policy::parse_tenant_uri(uri)?;
        let no_folder = || {
            format!("{uri:?} names a file in the tenant's folder, but this host has no such folder")
        };
        match &mut found.at {
            Endpoint::Unix(socket) => {
                *socket = self.sockets.as_ref().ok_or_else(no_folder)?.join(&*socket);
            }
            Endpoint::Tcp(at) => may_reach(&self.networks, *at)?,
        }
        if let Some(tls) = &mut found.tls {
            let folder = self.certificates.as_ref().ok_or_else(no_folder)?;
            tls.certificates = folder.join(&tls.certificates);
        }
        Ok(found)
    }

    fn client_of(&self, found: NbdUri) -> Result<NbdClient, String> {
        let mut options = ClientOptions::new(found.export, Arc::clone(&self.clock));
        options.orphaned = Arc::clone(&self.orphaned);
        if let Some(tls) = found.tls {
            let read = ClientTls::read(&*self.disk, &tls.certificates, &tls.server);
            options.tls = Some(read.map_err(|error| with_causes(&error))?);
        }
        let target = Target::Endpoint(found.at);
        Ok(NbdClient::new(target, options, self.watcher.clone()))
    }
}

/// Checks that filters of this host may reach an address.
///
/// # Errors
/// A sentence that says that they may not, and how to change that.
pub(super) fn may_reach(networks: &[Network], at: SocketAddr) -> Result<(), String> {
    match networks.iter().any(|network| network.has(at.ip())) {
        true => Ok(()),
        false => Err(format!(
            "filters of this host may not reach {at}; its operator can allow the network with \
             --filter-network"
        )),
    }
}

impl Targets for FilterTargets {
    fn open(&self, location: &ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String> {
        let found = match location {
            ReplicaLocation::Uri(uri) => self.find(uri)?,
            ReplicaLocation::Volume(name) => self.volumes.find(name)?,
        };
        Ok(Box::new(Connected(self.client_of(found)?)))
    }

    fn identity(&self, location: &ReplicaLocation) -> String {
        let named = &self.volumes.named;
        match location {
            // Another volume of the same name is another target.
            ReplicaLocation::Volume(name) if let Some(id) = named.get(name) => {
                format!("volume {id}")
            }
            _ => location.to_string(),
        }
    }
}

/// The export of an NBD server, as filters use it.
pub struct Connected(pub NbdClient);

impl RemoteDisk for Connected {
    fn link_state(&self) -> LinkState {
        match self.0.state() {
            State::Connecting => LinkState::Connecting,
            State::Ready => LinkState::Ready,
            State::Disconnected { error } => LinkState::Broken(error.to_string()),
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

    fn start(&mut self, request: Request<'_>) -> Started {
        self.0.start(request)
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.0.end_batch()
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

    /// Two named volumes, of which the first is attached.
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
        for (name, why) in [("c", "not attached"), ("d", "not one of the tenant's")] {
            let refused = others().find(name).expect_err("refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    fn find(tenant: &str, networks: &[&str], uri: &str) -> Result<String, String> {
        let networks = networks.iter().map(|one| one.parse().expect("a network"));
        let watcher = Watcher::new().expect("a poller");
        let World { clock, disk, .. } = World::real(1);
        let targets = FilterTargets::new(TargetOptions {
            tenant,
            sockets: Path::new("/d/filter-sockets"),
            certificates: Path::new("/d/certificates"),
            disk,
            networks: networks.collect(),
            volumes: others(),
            watcher,
            orphaned: Arc::default(),
            clock,
        });
        let found = targets.find(uri);
        found.map(|found| {
            let tls = found
                .tls
                .map(|tls| format!(" {}", tls.certificates.display()));
            format!("{} {}{}", found.at, found.export, tls.unwrap_or_default())
        })
    }

    #[test]
    fn a_tenant_reaches_only_what_the_operator_allows() {
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
            (
                "alice",
                &[],
                "nbd+unix:///x?socket=/d/nbd.sock",
                "must be a name",
            ),
            ("alice", &[], "nbd+unix:///x?socket=..", "must be a name"),
            (
                "alice",
                &[],
                "nbd+unix:///x?socket=%2e%2e%2fbob%2fb",
                "must be a name",
            ),
            ("../bob", &[], socket, "has no such folder"),
            ("", &[], socket, "has no such folder"),
            ("alice", &["0.0.0.0/0"], "nbd://host/x", "not resolved"),
            (
                "alice",
                &["0.0.0.0/0"],
                "nbds://10.1.2.3/x?tls-certificates=/pki",
                "must be a name",
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
