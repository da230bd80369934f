//! A host and a daemon in one process, with nothing but bytes between them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use auth::{Capability, Fence, Scope, SigningKey, VerifyingKey};
use base::{ClusterId, LineageTag, UnitId};
use unit::{Put, Read};
use unit_daemon::{BUDGET_BYTES, Budget, Keeper, KeeperConfig, Session, Step, UndeletePolicy};
use unit_folder::FolderUnit;
use unit_remote::{Conversation, Done, Link, RemoteUnit};
use unit_wire::Request;
use world::{Millis, Wake, World};

pub const CLUSTER: ClusterId = ClusterId::from_u128(0xc1);
pub const UNIT: UnitId = UnitId::from_u128(0x1d);
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
    let unit = FolderUnit::create(world, Path::new(FOLDER), CLUSTER, UNIT).expect("a unit");
    keeper_of(world, unit)
}

/// A keeper of a unit that may be missing.
pub fn keeper_anyhow(world: &World) -> Arc<Keeper> {
    keeper_of(
        world,
        FolderUnit::open(world, Path::new(FOLDER), CLUSTER, UNIT),
    )
}

fn keeper_of(world: &World, unit: FolderUnit) -> Arc<Keeper> {
    let unit = unit.with_undelete(UndeletePolicy::default());
    let config = KeeperConfig {
        cluster: CLUSTER,
        keys: vec![verifying_key()],
        generation: 1,
    };
    Arc::new(Keeper::open(world, unit, Path::new(FOLDER), config).expect("kept"))
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
        lineage_tag: LineageTag(7),
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

/// A connection without a network: requests are answered before `send` returns.
pub struct Inside(Mutex<Ends>);

impl Inside {
    pub fn connect(keeper: Arc<Keeper>, holder: [u8; 32]) -> Arc<Self> {
        let mut hello = Vec::new();
        let mut ends = Ends {
            host: Conversation::begin(UNIT, CLUSTER, &mut hello),
            daemon: Session::new(keeper, holder, &Budget::new(BUDGET_BYTES), Wake::noop()),
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
    fn send(&self, request: &Request<'_>, done: Done) {
        let mut ends = self.0.lock().expect("no panic");
        ends.last_tag += 1;
        let tag = ends.last_tag;
        let mut sent = Vec::new();
        request.encode(tag, &mut sent);
        ends.host.expect(tag, Duration::MAX, done);
        ends.carry(&sent);
    }
}

/// The unit as a host sees it that has presented `scopes`.
pub fn unit_of(keeper: &Arc<Keeper>, holder: [u8; 32], scopes: &[Scope]) -> RemoteUnit {
    let link = Inside::connect(Arc::clone(keeper), holder);
    let unit = RemoteUnit::new("scree://there".to_owned(), link);
    for scope in scopes {
        let signed = key().sign(&capability(holder, scope.clone()));
        unit.present(&signed.0).expect("accepted");
    }
    unit
}

/// A frame that asks `request`.
fn frame(request: &Request<'_>, tag: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(tag, &mut bytes);
    bytes
}

/// It held up its connection, and all that was allowed already, while the disk and
/// the older lease's requests were waited for.
#[test]
fn what_follows_a_capability_waits_for_it_and_nothing_waits_in_the_session() {
    let world = world::simulated::Simulation::new(6).world();
    let keeper = keeper(&world);
    let own = unit_of(&keeper, HOST, &[whole_lease(1)]);
    let segment = base::SegmentId::from_bits(10).expect("one");
    unit::Unit::put(
        &own,
        Put {
            lineage_tag: LineageTag::NONE,
            segment,
            slot_bytes: 512,
            first: base::Slot(0),
            tags: &[[5; 16]],
            data: &[9; 512],
        },
    )
    .expect("put");
    unit::Unit::sync(&own, &[segment]).expect("synced");
    let run = unit::SlotRun {
        segment,
        first: base::Slot(0),
        count: 1,
    };
    let read = Request::Read {
        run,
        slot_bytes: 512,
    };
    // What was read once can be read again without waiting.
    unit::Unit::read(
        &own,
        Read {
            run,
            slot_bytes: 512,
            tags: &mut [[0; 16]],
            data: &mut [0; 512],
        },
    )
    .expect("read");
    let budget = Budget::new(BUDGET_BYTES);
    let mut session = Session::new(Arc::clone(&keeper), HOST, &budget, Wake::noop());
    let sign = |scope| key().sign(&capability(HOST, scope)).0;
    let lineage_tags = vec![LineageTag(7)];
    let (may_read, lease) = (sign(Scope::Read { lineage_tags }), sign(whole_lease(2)));
    let hello = Request::Hello {
        version: 1,
        cluster: CLUSTER,
    };
    let sync = Request::Sync {
        incarnation: 0,
        segments: vec![segment],
    };
    let sent = [
        frame(&hello, 1),
        frame(&Request::Present(&may_read), 2),
        frame(&Request::Present(&lease), 3),
        frame(&read, 4),
        frame(&sync, 5),
        frame(&read, 6),
    ];
    session.receive(&sent.concat());
    let mut out = Vec::new();
    let mut answered = || match session.step(&mut out).expect("it stays open") {
        Step::Answered => None,
        Step::Wait => Some(None),
        Step::Job(job) => Some(Some(job)),
    };
    assert!(answered().is_none(), "the hello");
    assert!(answered().is_none(), "there is nothing to wait for");
    let present = answered().flatten().expect("it writes to the disk");
    assert_eq!(present.tag(), 3);
    assert!(answered().is_none(), "it may be read already");
    assert!(matches!(answered(), Some(None)), "it is held up");
    assert!(!session.has_room());
    let _ = present.run();
    session.answered(3);
    let job = match session.step(&mut out).expect("it stays open") {
        Step::Job(job) => job,
        _ => panic!("it goes on"),
    };
    assert_eq!(job.tag(), 5);
    let held = budget.held();
    drop((job, session));
    assert!(held > 0 && budget.held() == 0);
}
