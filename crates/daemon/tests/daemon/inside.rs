//! A host and a daemon in one process, with nothing but bytes between them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{ClusterId, UnitId};
use capability::{Capability, Fence, Line, Scope, SigningKey, VerifyingKey};
use daemon::{Keeper, KeeperConfig, Session, Step};
use unit::FolderUnit;
use unit::remote::{Conversation, Done, Link, RemoteUnit};
use unit::wire::Request;
use world::{Millis, World};

pub const CLUSTER: ClusterId = ClusterId::from_random(0xc1);
pub const UNIT: UnitId = UnitId::from_random(0x1d);
pub const HOST: [u8; 32] = [1; 32];
const FOLDER: &str = "/unit";

/// What the controllers of the cluster sign with.
pub fn key() -> SigningKey {
    SigningKey::derive(b"the cluster's secret")
}

pub fn verifying_key() -> VerifyingKey {
    key().verifying_key()
}

/// A daemon on a unit in `world`, made if it is not there.
pub fn keeper(world: &World) -> Arc<Keeper> {
    let folder = Path::new(FOLDER);
    let unit = FolderUnit::create(world, folder, CLUSTER, UNIT).expect("a unit");
    let config = KeeperConfig {
        cluster: CLUSTER,
        keys: vec![verifying_key()],
        generation: 1,
    };
    Arc::new(Keeper::open(world, unit, folder, config).expect("kept"))
}

/// A capability of the host `holder`, for an hour from the simulation's start.
pub fn capability(holder: [u8; 32], scope: Scope) -> Capability {
    Capability {
        cluster: CLUSTER,
        holder,
        made: Millis(0),
        ends: Millis(i64::MAX),
        generation: 1,
        scope,
    }
}

/// A lease on all serials.
pub fn whole_lease(epoch: u32) -> Scope {
    Scope::Lease {
        line: Line(7),
        fence: Fence(9),
        epoch,
        serials: std::iter::once(0..1 << 36).collect(),
    }
}

/// Both ends of a connection.
struct Ends {
    host: Conversation,
    daemon: Session,
    last_tag: u64,
}

/// A connection without a network: whoever asks is answered before the asking
/// returns.
pub struct Inside(Mutex<Ends>);

impl Inside {
    pub fn connect(keeper: Arc<Keeper>, holder: [u8; 32]) -> Arc<Self> {
        let mut hello = Vec::new();
        let mut ends = Ends {
            host: Conversation::begin(UNIT, CLUSTER, &mut hello),
            daemon: Session::new(keeper, holder),
            last_tag: 1,
        };
        ends.carry(&hello);
        assert!(ends.host.greeting().is_some());
        Arc::new(Self(Mutex::new(ends)))
    }
}

impl Ends {
    fn carry(&mut self, sent: &[u8]) {
        // In pieces, as a network would.
        for piece in sent.chunks(1000) {
            self.daemon.receive(piece);
            let mut out = Vec::new();
            loop {
                match self.daemon.step(&mut out).expect("it stays open") {
                    Step::Wait => break,
                    Step::Answered => {}
                    Step::Job(job) => {
                        let tag = job.tag();
                        out.extend(job.run());
                        self.daemon.answered(tag);
                    }
                }
            }
            for piece in out.chunks(700) {
                self.host.receive(piece).expect("sound answers");
            }
        }
        assert!(self.daemon.is_idle() && self.daemon.has_room());
        assert_eq!(self.host.waiting(), 0);
    }
}

impl Link for Inside {
    fn ask(&self, request: &Request<'_>, done: Done) {
        let mut ends = self.0.lock().expect("no panic");
        ends.last_tag += 1;
        let tag = ends.last_tag;
        let mut sent = Vec::new();
        request.encode(tag, &mut sent);
        ends.host.expect(tag, Duration::MAX, done);
        ends.carry(&sent);
    }
}

/// The unit as a host sees it that has shown `scopes`.
pub fn unit_of(keeper: &Arc<Keeper>, holder: [u8; 32], scopes: &[Scope]) -> RemoteUnit {
    let link = Inside::connect(Arc::clone(keeper), holder);
    let unit = RemoteUnit::new("scree://there".to_owned(), link);
    for scope in scopes {
        let signed = key().sign(&capability(holder, scope.clone()));
        unit.show(&signed.0).expect("heeded");
    }
    unit
}
