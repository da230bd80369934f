//! How fast a host reads from a unit daemon and puts there, over TLS on this
//! machine, both in this process:
//!
//!     cargo run --release -p daemon --example daemon_speed [THREADS] [SECONDS]
//!
//! Reads are 4 KiB at random from 256 MiB in the page cache; puts are 1 MiB, each
//! synced after the eighth. CPU is that of both sides.

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

/// Runs `work` in threads until the time is over; prints how often it was done.
fn measure(
    what: &str,
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
        "{what}: {:.0} a second, {:.1} µs of CPU each",
        count / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / count
    );
    Ok(())
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let threads: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let time = Duration::from_secs(seconds);

    let world = World::real(8);
    let folder = tempfile::tempdir()?;
    let path: &Path = &folder.path().join("unit");
    let signing = SigningKey::derive(b"speed");
    let config = KeeperConfig {
        cluster: CLUSTER,
        keys: vec![signing.verifying_key()],
        generation: 0,
    };
    let place = FolderUnit::create(&world, path, CLUSTER, UNIT)?;
    let keeper = Arc::new(Keeper::open(&world, place, path, config)?);

    let (authority, _) = Authority::create("speed", &RealRandom, world.clock.wall())?;
    let party = |kind, name, names: &[String]| -> Result<_, Failed> {
        let request = KeyRequest::generate()?;
        let lifetime = Lifetime::day(world.clock.wall());
        let subject = Subject::new(kind, name)?;
        let chain = authority.sign(&request.request_pem, &subject, names, lifetime, &RealRandom)?;
        Ok((chain, request))
    };
    let (chain_pem, request) = party(Kind::Unit, "u", &[UNIT.to_string()])?;
    let credentials = Credentials {
        chain_pem: &chain_pem,
        key_pem: &request.key_pem,
    };
    let server = ServerConfig {
        tls: Arc::new(ServerTls::new(
            authority.certificate_pem(),
            &[],
            credentials,
        )?),
        others: Arc::new(|_| None),
        limits: Limits::of(64),
    };
    let anywhere = Endpoint::Tcp("127.0.0.1:0".parse()?);
    let server = Server::open(&world, &anywhere, [keeper], server)?;

    let (chain_pem, request) = party(Kind::Host, "h", &[])?;
    let credentials = Credentials {
        chain_pem: &chain_pem,
        key_pem: &request.key_pem,
    };
    let mut tls = client_config(&[authority.certificate_pem()], Some(credentials))?;
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
        holder: requested_key(&request.request_pem)?.0,
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
    unit.show(&signing.sign(&capability).0)?;

    let tags = vec![[7; 16]; PUT_SLOTS];
    let data = vec![9; PUT_SLOTS * SLOT_BYTES as usize];
    let fill = |id: SegmentId| -> Result<(), Failed> {
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
    };
    for serial in 1..=SEGMENTS {
        fill(segment(serial))?;
    }
    for (name, threads) in [
        ("reads of 4 KiB, many", threads),
        ("reads of 4 KiB, one", 1),
    ] {
        measure(
            &format!("{name} ({threads} threads)"),
            threads,
            time,
            |number| {
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
            },
        )?;
    }
    let serials = AtomicU64::new(1000);
    measure(
        "segments of 8 MiB put and synced (4 threads)",
        4,
        time,
        |_| {
            let id = segment(serials.fetch_add(1, Ordering::Relaxed));
            fill(id)?;
            Ok(unit.delete(id)?)
        },
    )
}
