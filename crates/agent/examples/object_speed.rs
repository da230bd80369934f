//! Measures how fast blocks are destaged to an object store, compared with plain multipart uploads
//! of the same number of bytes by the same library to the same store, in alternation:
//!
//!     cargo run --release -p agent --example object_speed URL [UNITS] [MIB]
//!
//! URL is a prefix with no objects below it, `s3://bucket/speed`; credentials are read from the
//! environment. The objects are removed again. A destage is 50 MiB of blocks of 4 KiB, half of a
//! journal, with one copy, without sealing. Reads are of 4 KiB at random, one at a time and 32 at
//! once.

#![expect(clippy::disallowed_methods, reason = "this program measures")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use base::{BlockSize, ClusterId, Lineage, Location, UnitId, VolumeId};
use catalog::copysets::{self, Zones};
use catalog::{Catalog, LeaseSalt, LineageKey, MemoryCatalog, NewVolume};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, WriteMultipart};
use unit::{ReadSlots, SlotRun, TrackedUnit, Unit as _, UnitError};
use unit_object::ObjectUnit;
use volume::scatter::{
    Layout, Ledger, MemberRun, Placer, PlacerConfig, Progress, Serials, Source, place,
};
use volume::{LeaseTerm, Store};
use world::World;

const SLOT_BYTES: u32 = 4096;
const MIB: usize = 1 << 20;
const DESTAGE_BYTES: usize = 50 * MIB;
const PART_BYTES: usize = 8 * MIB;
/// The number of concurrent parts: as many as a destage has segments of that size in memory.
const PARTS_AT_ONCE: usize = 4;

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: object_speed URL [UNITS] [MIB]";
    let url = arguments.next().ok_or(usage)?;
    let units: u128 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let mib: usize = arguments.next().map_or(Ok(400), |text| text.parse())?;
    let rounds = (mib * MIB).div_ceil(DESTAGE_BYTES).max(1);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let world = World::real(32);
    let (bucket, prefix) = bucket_of(&url).ok_or(usage)?;
    let plain: Arc<dyn ObjectStore> = {
        let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        Arc::new(builder.with_allow_http(true).build()?)
    };
    let data: Arc<[u8]> = {
        let mut data = vec![0; DESTAGE_BYTES];
        world.random.fill(&mut data);
        data.into()
    };

    let units = create_units(&world, runtime.handle(), &url, units)?;
    let store = store_on(&world, &units);
    let mut placer = placer(&world, &store)?;
    let source = source_of(&data);

    let (mut uploads, mut destages) = (Vec::new(), Vec::new());
    let mut placed = Vec::new();
    for round in 0..rounds {
        let begun = Instant::now();
        let path = Path::from(format!("{prefix}/plain-{round}"));
        runtime.block_on(upload(&*plain, &path, &data))?;
        uploads.push(begun.elapsed());
        runtime.block_on(plain.delete(&path))?;
        let begun = Instant::now();
        let count = DESTAGE_BYTES / SLOT_BYTES as usize;
        placed.extend(place(&store, &mut placer, &*world.random, count, &source)?);
        placer.confirm();
        destages.push(begun.elapsed());
    }
    let (upload, destage) = (rate(&mut uploads), rate(&mut destages));
    println!("multipart upload {upload:7.1} MiB/s  (median of {rounds}, 50 MiB each)");
    let share = destage / upload * 100.0;
    println!("destage          {destage:7.1} MiB/s  {share:.0} % of that");
    for at_once in [1, 32] {
        let (per_second, median) = read(&world, &store, &placed, at_once);
        let ms = median.as_secs_f64() * 1e3;
        println!("4 KiB reads, {at_once:2} at once: {per_second:7.0}/s, median {ms:.2} ms");
    }
    for (_, unit) in &units {
        for segment in unit.list()? {
            unit.delete(segment)?;
        }
    }
    println!("only the units' markers are left below {url}");
    Ok(())
}

fn bucket_of(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix("s3://")?.split_once('/')
}

type Units = Vec<(UnitId, Arc<ObjectUnit>)>;

fn create_units(
    world: &World,
    runtime: &tokio::runtime::Handle,
    url: &str,
    count: u128,
) -> Result<Units, Failed> {
    let made = (1..=count).map(|number| {
        let location = unit_object::Location::at(&format!("{url}/u{number}"))?;
        let id = UnitId::from_u128(number);
        let cluster = ClusterId::from_u128(1);
        let unit = ObjectUnit::create(world, runtime, &location, cluster, id)?;
        Ok((id, Arc::new(unit)))
    });
    made.collect()
}

/// A store on these units, with one copy of each block.
fn store_on(world: &World, units: &Units) -> Arc<Store> {
    let ids: Vec<UnitId> = units.iter().map(|(id, _)| *id).collect();
    let store = Store::new(Arc::clone(&world.pool));
    let tracked = units.iter().map(|(id, unit)| {
        let unit = TrackedUnit::new(Arc::clone(unit) as _, Arc::clone(&world.clock));
        (*id, Arc::new(unit))
    });
    let sets = copysets::plan(&ids, &Zones::new(), 1, None, &[], 8, &*world.random);
    store.set_table(tracked.collect(), &sets);
    store
}

/// The blocks of `data`, unsealed.
fn source_of(data: &Arc<[u8]>) -> Source {
    let data = Arc::clone(data);
    Arc::new(move |index, slot| {
        slot.copy_from_slice(&data[index * SLOT_BYTES as usize..][..SLOT_BYTES as usize]);
        Ok([index as u8; 16])
    })
}

fn placer(world: &World, store: &Store) -> Result<Placer, Failed> {
    let catalog = Arc::new(MemoryCatalog::default());
    let volume = VolumeId::from_u128(1);
    catalog.create_volume(NewVolume {
        volume,
        size_bytes: 1 << 40,
        block_size: BlockSize::DEFAULT,
        replicas: 1,
        erasure: None,
        key: LineageKey {
            lineage: Lineage::from_u128(1),
            epoch_first: 0,
            wrapped: None,
            wrapped_by: None,
            salts: Vec::new(),
        },
        from: None,
    })?;
    let epoch = catalog.acquire(volume, LeaseSalt([0; 16]), None)?.epoch;
    let config = PlacerConfig {
        slot_bytes: SLOT_BYTES,
        slots_max: 2048,
        destage_width: 16,
        replicas: 1,
        layout: Layout::default(),
        shuffle: false,
    };
    Ok(Placer::new(
        config,
        Arc::new(Serials::new(catalog, volume, epoch)),
        Arc::new(Ledger::new(Arc::clone(store.open_segments()))),
        Arc::new(Progress::new(
            LeaseTerm::unlimited(),
            Arc::clone(&world.clock),
        )),
    ))
}

/// A plain upload with the library.
async fn upload(store: &dyn ObjectStore, path: &Path, data: &[u8]) -> Result<(), Failed> {
    let upload = store.put_multipart(path).await?;
    let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
    for part in data.chunks(PART_BYTES) {
        upload.wait_for_capacity(PARTS_AT_ONCE).await?;
        upload.write(part);
    }
    upload.finish().await?;
    Ok(())
}

/// The median rate in MiB/s.
fn rate(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    (DESTAGE_BYTES / MIB) as f64 / times[times.len() / 2].as_secs_f64()
}

/// Reads for 5 s with `at_once` concurrent reads; returns the reads per second, and the median
/// duration of a read.
fn read(world: &World, store: &Arc<Store>, placed: &[Location], at_once: usize) -> (f64, Duration) {
    let (send, durations) = mpsc::channel();
    let begun = Instant::now();
    let number = AtomicU64::new(world.random.u64());
    let start_read = || {
        let at = number.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) as usize;
        let location = placed[at % placed.len()];
        let run = SlotRun {
            segment: location.segment(),
            first: location.slot(),
            count: 1,
        };
        let (send, started) = (send.clone(), Instant::now());
        let done = Box::new(move |read: Result<ReadSlots<'_>, UnitError>| {
            read.expect("a readable slot");
            // The results of the last reads are not needed.
            let _ = send.send(started.elapsed());
        });
        let run = MemberRun {
            place: None,
            slots: run,
        };
        assert!(store.start_read(&store.table(), run, SLOT_BYTES, &[], done));
    };
    (0..at_once).for_each(|_| start_read());
    let mut times = Vec::new();
    while let Ok(time) = durations.recv() {
        times.push(time);
        if begun.elapsed() > Duration::from_secs(5) {
            break;
        }
        start_read();
    }
    let per_second = times.len() as f64 / begun.elapsed().as_secs_f64();
    times.sort_unstable();
    (per_second, times[times.len() / 2])
}
