//! A cluster's parties on real sockets.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use auth::Scope;
use auth::{
    Authority, Credentials, KeyFingerprint, KeyRequest, Kind, Lifetime, ServerTls, Subject,
    client_config, requested_key,
};
use base::{LineageTag, Slot, UnitId, with_causes};
use tempfile::TempDir;
use unit::{Put, SlotRun, Unit, UnitError};
use unit_daemon::{Keeper, KeeperConfig, Limits, Server, ServerConfig};
use unit_folder::FolderUnit;
use unit_remote::RemoteUnit;
use unit_remote::{LinkConfig, TlsLink};
use unit_wire::ALPN;
use world::real::RealRandom;
use world::{Endpoint, World};

use crate::inside::{CLUSTER, capability, key, verifying_key};

/// A party with a certificate.
pub struct Party {
    pub chain_pem: String,
    pub key_pem: String,
    /// Of its key.
    pub fingerprint: KeyFingerprint,
}

impl Party {
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials {
            chain_pem: &self.chain_pem,
            key_pem: &self.key_pem,
        }
    }
}

/// Capabilities, by whose they are.
type Kept = HashMap<[u8; 32], Vec<Arc<[u8]>>>;

/// A cluster's authority, and the world its parties live in.
pub struct Site {
    pub authority: Authority,
    pub world: World,
    pub folder: TempDir,
    /// What each host may do, by its key.
    capabilities: Arc<Mutex<Kept>>,
}

pub fn any_port() -> Endpoint {
    Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"))
}

pub fn unit_called(number: u128) -> UnitId {
    UnitId::from_u128(number)
}

impl Site {
    pub fn new() -> Self {
        let world = World::real(4);
        let founded = Authority::create("cluster-1", &RealRandom, world.clock.wall());
        Self {
            authority: founded.expect("founded").0,
            world,
            folder: tempfile::tempdir().expect("a folder"),
            capabilities: Arc::default(),
        }
    }

    pub fn party(&self, kind: Kind, name: &str, names: &[String]) -> Party {
        let lifetime = Lifetime::day(self.world.clock.wall());
        self.party_for(lifetime, kind, name, names)
    }

    pub fn party_for(&self, lifetime: Lifetime, kind: Kind, name: &str, names: &[String]) -> Party {
        let request = KeyRequest::generate().expect("a key");
        let subject = Subject::new(kind, name).expect("a name");
        let signed =
            self.authority
                .sign(&request.request_pem, &subject, names, lifetime, &RealRandom);
        Party {
            chain_pem: signed.expect("signed"),
            key_pem: request.key_pem.to_string(),
            fingerprint: requested_key(&request.request_pem).expect("a request"),
        }
    }

    pub fn host(&self, name: &str) -> Party {
        self.party(Kind::Host, name, &[])
    }

    pub fn keeper(&self, unit: UnitId) -> Arc<Keeper> {
        let folder = self.folder.path().join(unit.to_string());
        let place = FolderUnit::create(&self.world, &folder, CLUSTER, unit).expect("a unit");
        let config = KeeperConfig {
            cluster: CLUSTER,
            keys: vec![verifying_key()],
            generation: 1,
        };
        Arc::new(Keeper::open(&self.world, place, &folder, config).expect("kept"))
    }

    /// A daemon of `unit` at `endpoint`, which passes on what is for `other`.
    pub fn server_at(
        &self,
        endpoint: &Endpoint,
        unit: UnitId,
        other: Option<(UnitId, Endpoint)>,
    ) -> Server {
        self.server_of(endpoint, self.keeper(unit), other)
    }

    /// As [`Site::server_at`], of a unit that is kept.
    pub fn server_of(
        &self,
        endpoint: &Endpoint,
        keeper: Arc<Keeper>,
        other: Option<(UnitId, Endpoint)>,
    ) -> Server {
        self.server_within(Limits::of(64), endpoint, keeper, other)
    }

    pub fn server_within(
        &self,
        limits: Limits,
        endpoint: &Endpoint,
        keeper: Arc<Keeper>,
        other: Option<(UnitId, Endpoint)>,
    ) -> Server {
        let unit = keeper.id();
        let daemon = self.party(Kind::Unit, "u1", &[unit.to_string()]);
        let tls = ServerTls::new(self.authority.certificate_pem(), &[], daemon.credentials());
        let config = ServerConfig {
            tls: Arc::new(tls.expect("usable")),
            others: Arc::new(move |asked| match &other {
                Some((unit, endpoint)) if *unit == asked => Some(endpoint.clone()),
                _ => None,
            }),
            limits,
        };
        Server::open(&self.world, endpoint, [keeper], config).expect("a free port")
    }

    /// A connection on which nothing was said yet.
    pub fn begin_by_hand(&self, host: &Party, unit: UnitId, at: &Endpoint) -> ByHand {
        let authority = [self.authority.certificate_pem()];
        let mut tls = client_config(&authority, Some(host.credentials())).expect("usable");
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let name = unit.to_string().try_into().expect("a name");
        let tls = rustls::ClientConnection::new(Arc::new(tls), name).expect("usable");
        rustls::StreamOwned::new(tls, connect(at))
    }

    pub fn server(&self, unit: UnitId) -> Server {
        self.server_at(&any_port(), unit, None)
    }

    pub fn link_config(&self, host: &Party, unit: UnitId, endpoints: &[Endpoint]) -> LinkConfig {
        let authority = [self.authority.certificate_pem()];
        let mut tls = client_config(&authority, Some(host.credentials())).expect("usable");
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let detours = endpoints[1..].to_vec();
        let (all, own) = (Arc::clone(&self.capabilities), host.fingerprint.0);
        let capabilities = move || {
            let all = all.lock().expect("no panic");
            all.get(&own).cloned().unwrap_or_default()
        };
        LinkConfig {
            cluster: CLUSTER,
            unit,
            own: endpoints[0].clone(),
            detours: Arc::new(move || detours.clone()),
            capabilities: Arc::new(capabilities),
            tls: Some(Arc::new(tls)),
        }
    }

    pub fn link(&self, config: LinkConfig) -> Arc<TlsLink> {
        let clock = Arc::clone(&self.world.clock);
        Arc::new(TlsLink::start(config, clock).expect("started"))
    }

    /// The unit as a host sees it that has presented `scopes`.
    pub fn unit(
        &self,
        host: &Party,
        unit: UnitId,
        at: &[Endpoint],
        scopes: &[Scope],
    ) -> RemoteUnit {
        let link = self.link(self.link_config(host, unit, at));
        for scope in scopes {
            self.present(&link, host, scope);
        }
        RemoteUnit::new(format!("scree://{unit}"), link)
    }

    pub fn present(&self, link: &TlsLink, host: &Party, scope: &Scope) {
        let own = host.fingerprint.0;
        let signed = key().sign(&capability(own, scope.clone())).0;
        {
            let mut all = self.capabilities.lock().expect("no panic");
            all.entry(own).or_default().push(signed.clone().into());
        }
        let (sender, receiver) = mpsc::channel();
        let done: unit_remote::Done = Box::new(move |reply| {
            let answer = reply
                .map(|reply| reply.status)
                .map_err(|why| with_causes(&why));
            sender.send(answer).expect("waited for");
        });
        link.present(&signed, done);
        let status = receiver.recv().expect("answered").expect("it exists");
        assert_eq!(status, unit_wire::Status::Done);
    }
}

/// Returns as soon as `is_so`.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = world::real::RealClock::default();
    let late = world::Clock::monotonic(&clock) + Duration::from_secs(60);
    while !is_so() {
        assert!(world::Clock::monotonic(&clock) < late, "{what}");
        std::thread::yield_now();
    }
}

pub fn put(unit: &dyn Unit, serial: u64, first: u16) -> Result<(), UnitError> {
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment: segment(serial),
        slot_bytes: 512,
        first: Slot(first),
        tags: &[[5; 16]],
        data: &[serial as u8; 512],
    })
}

pub fn segment(serial: u64) -> base::SegmentId {
    let copyset = base::CopysetId::new(3).expect("one");
    base::SegmentId::new(copyset, serial).expect("one")
}

pub fn read(unit: &dyn Unit, serial: u64) -> Result<Vec<u8>, UnitError> {
    let run = SlotRun {
        segment: segment(serial),
        first: Slot(0),
        count: 1,
    };
    let mut data = vec![0; 512];
    unit.read(unit::Read {
        run,
        slot_bytes: 512,
        tags: &mut [[0; 16]],
        data: &mut data,
    })
    .map(|()| data)
}

pub fn why_not(unit: &RemoteUnit) -> String {
    with_causes(&unit.probe().expect_err("it cannot be asked"))
}

#[expect(clippy::disallowed_methods, reason = "it is no host")]
pub fn connect(endpoint: &Endpoint) -> TcpStream {
    let Endpoint::Tcp(address) = endpoint else {
        panic!("{endpoint} is no TCP");
    };
    TcpStream::connect(address).expect("it listens")
}

/// A connection by hand.
pub fn by_hand(site: &Site, host: &Party, unit: UnitId, at: &Endpoint) -> ByHand {
    let mut stream = site.begin_by_hand(host, unit, at);
    greet(&mut stream).expect("it greets");
    stream
}

pub type ByHand = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// Says HELLO, and takes the answer.
pub fn greet(stream: &mut ByHand) -> std::io::Result<()> {
    let mut hello = Vec::new();
    unit_wire::Request::Hello {
        version: 1,
        cluster: CLUSTER,
    }
    .encode(1, &mut hello);
    stream.write_all(&hello)?;
    stream.read_exact(&mut [0; 16 + 48])
}
