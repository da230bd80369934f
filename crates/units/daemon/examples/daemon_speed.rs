//! Measures reads from and puts to a unit daemon over TLS on this machine, with both sides in
//! this process:
//!
//!     cargo run --release -p unit-daemon --example daemon_speed [THREADS] [SECONDS]
//!
//! Reads are 4 KiB at random from 256 MiB in the page cache; puts are 1 MiB, with a sync after
//! every eighth. CPU time is that of both sides.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use auth::{
    Authority, Credentials, KeyRequest, Kind, Lifetime, ServerTls, Subject, client_config,
    requested_key,
};
use auth::{Capability, Fence, Scope, SigningKey};
use base::{ClusterId, CopysetId, LineageTag, SegmentId, Slot, UnitId};
use unit::{Put, Read, SlotRun, Unit as _};
use unit_daemon::{Keeper, KeeperConfig, Limits, Server, ServerConfig};
use unit_folder::FolderUnit;
use unit_remote::RemoteUnit;
use unit_remote::{LinkConfig, TlsLink};
use unit_wire::ALPN;
use world::real::RealRandom;
use world::{Endpoint, Millis, World};

const CLUSTER: ClusterId = ClusterId::from_u128(1);
const UNIT: UnitId = UnitId::from_u128(2);
const SLOT_BYTES: u32 = 4096;
const SEGMENTS: u64 = 32;
const SLOTS: u64 = 2048;
const PUT_SLOTS: usize = 256;

type Failed = Box<dyn Error + Send + Sync>;

fn segment(serial: u64) -> SegmentId {
    let copyset = CopysetId::new(0).expect("the first");
    SegmentId::new(copyset, serial).expect("few")
}

/// Processor time of this process so far.
#[expect(clippy::disallowed_methods, reason = "it measures this machine")]
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
    let ticks: u64 = fields[12..14]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap_or(0))
        .sum();
    Duration::from_millis(ticks * 10)
}

#[expect(clippy::disallowed_methods, reason = "it measures this machine")]
fn now() -> Instant {
    Instant::now()
}

/// Runs `work` in threads for `time` and prints how often it was done.
fn measure(
    name: &str,
    threads: usize,
    time: Duration,
    work: impl Fn(u64) -> Result<(), Failed> + Sync,
) -> Result<(), Failed> {
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let (begun, used) = (now(), processor_time());
    let run = |thread: u64| -> Result<(), Failed> {
        let mut number = thread << 32;
        while !is_over.load(Ordering::Relaxed) {
            work(number)?;
            number += 1;
            count.fetch_add(1, Ordering::Relaxed);
            if now() - begun > time {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.expect("no panic"))
    })?;
    let count = count.load(Ordering::Relaxed) as f64;
    let (took, used) = (now() - begun, processor_time() - used);
    println!(
        "{name}: {:.0} a second, {:.1} µs of CPU each",
        count / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / count
    );
    Ok(())
}

/// A certificate for `name`, with its key.
struct Identity {
    chain_pem: String,
    request: KeyRequest,
}

impl Identity {
    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            chain_pem: &self.chain_pem,
            key_pem: &self.request.key_pem,
        }
    }
}

fn identity(
    authority: &Authority,
    world: &World,
    kind: Kind,
    name: &str,
    names: &[String],
) -> Result<Identity, Failed> {
    let request = KeyRequest::generate()?;
    let lifetime = Lifetime::day(world.clock.wall());
    let subject = Subject::new(kind, name)?;
    let chain_pem = authority.sign(&request.request_pem, &subject, names, lifetime, &RealRandom)?;
    Ok(Identity { chain_pem, request })
}

/// Opens a daemon for a new unit in `folder`.
fn open_server(
    world: &World,
    folder: &Path,
    authority: &Authority,
    signing: &SigningKey,
) -> Result<Server, Failed> {
    let config = KeeperConfig {
        cluster: CLUSTER,
        keys: vec![signing.verifying_key()],
        generation: 0,
    };
    let unit = FolderUnit::create(world, folder, CLUSTER, UNIT)?;
    let keeper = Arc::new(Keeper::open(world, unit, folder, config)?);
    let identity = identity(authority, world, Kind::Unit, "u", &[UNIT.to_string()])?;
    let tls = ServerTls::new(authority.certificate_pem(), &[], identity.credentials())?;
    let config = ServerConfig {
        tls: Arc::new(tls),
        others: Arc::new(|_| None),
        limits: Limits::of(64),
    };
    let anywhere = Endpoint::Tcp("127.0.0.1:0".parse()?);
    Ok(Server::open(world, &anywhere, [keeper], config)?)
}

/// Connects to the daemon as a host with a lease on all serials.
fn connect(
    world: &World,
    server: &Server,
    authority: &Authority,
    signing: &SigningKey,
) -> Result<RemoteUnit, Failed> {
    let identity = identity(authority, world, Kind::Host, "h", &[])?;
    let authorities = [authority.certificate_pem()];
    let mut tls = client_config(&authorities, Some(identity.credentials()))?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let link = LinkConfig {
        cluster: CLUSTER,
        unit: UNIT,
        own: server.endpoint().clone(),
        detours: Arc::new(Vec::new),
        capabilities: Arc::new(Vec::new),
        tls: Some(Arc::new(tls)),
    };
    let link = TlsLink::start(link, Arc::clone(&world.clock))?;
    let unit = RemoteUnit::new(server.endpoint().to_string(), Arc::new(link));
    let capability = Capability {
        cluster: CLUSTER,
        holder: requested_key(&identity.request.request_pem)?.0,
        made: Millis(0),
        ends: Millis(i64::MAX),
        generation: 0,
        scope: Scope::Lease {
            lineage_tag: LineageTag(1),
            fence: Fence(1),
            epoch: 1,
            serials: std::iter::once(0..1 << 36).collect(),
        },
    };
    unit.present(&signing.sign(&capability).0)?;
    Ok(unit)
}

/// Puts a whole segment and syncs it.
fn fill(unit: &RemoteUnit, id: SegmentId) -> Result<(), Failed> {
    let tags = vec![[7; 16]; PUT_SLOTS];
    let data = vec![9; PUT_SLOTS * SLOT_BYTES as usize];
    for first in (0..SLOTS).step_by(PUT_SLOTS) {
        unit.put(Put {
            lineage_tag: LineageTag::NONE,
            segment: id,
            slot_bytes: SLOT_BYTES,
            first: Slot(first as u16),
            tags: &tags,
            data: &data,
        })?;
    }
    Ok(unit.sync(&[id])?)
}

/// Reads one slot, chosen by `number`.
fn read_one(unit: &RemoteUnit, number: u64) -> Result<(), Failed> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let run = SlotRun {
        segment: segment(1 + mixed % SEGMENTS),
        first: Slot((mixed / SEGMENTS % SLOTS) as u16),
        count: 1,
    };
    let mut content = [0; SLOT_BYTES as usize];
    Ok(unit.read(Read {
        run,
        slot_bytes: SLOT_BYTES,
        tags: &mut [[0; 16]],
        data: &mut content,
    })?)
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let threads: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let time = Duration::from_secs(seconds);

    let world = World::real(8);
    let folder = tempfile::tempdir()?;
    let signing = SigningKey::derive(b"speed");
    let (authority, _) = Authority::create("speed", &RealRandom, world.clock.wall())?;
    let server = open_server(&world, &folder.path().join("unit"), &authority, &signing)?;
    let unit = connect(&world, &server, &authority, &signing)?;
    for serial in 1..=SEGMENTS {
        fill(&unit, segment(serial))?;
    }
    for threads in [threads, 1] {
        let name = format!("reads of 4 KiB ({threads} threads)");
        measure(&name, threads, time, |number| read_one(&unit, number))?;
    }
    let serials = AtomicU64::new(1000);
    let name = "segments of 8 MiB put and synced (4 threads)";
    measure(name, 4, time, |_| {
        let id = segment(serials.fetch_add(1, Ordering::Relaxed));
        fill(&unit, id)?;
        Ok(unit.delete(id)?)
    })
}
