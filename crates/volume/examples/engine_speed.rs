//! How fast the engine is without a protocol in front: for profiling.
//!
//! `cargo run --release -p volume --example engine_speed -- FOLDER [REPLICAS]`
//!
//! Makes eight folder units and a volume in FOLDER, drives it in batches as a
//! frontend at queue depth 32 would, and prints wall and CPU time for each
//! operation.

#![expect(clippy::disallowed_methods, reason = "this program measures")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{
    BlockDevice, BlockSize, ClusterId, Durability, Lineage, Request, Started, UnitId, VolumeId,
};
use catalog::copysets;
use catalog::{Catalog, Copyset, LineageKey, MemoryCatalog, NewVolume};
use unit::TrackedUnit;
use unit_folder::FolderUnit;
use volume::journal::JournalLocation;
use volume::map::PageBudget;
use volume::seal::{DataKey, Keyring, LeaseSalt, WrappingKey};
use volume::{LeaseTerm, OpenParams, Store, Volume, VolumeConfig};
use world::{Wake, World};

const VOLUME_BYTES: u64 = 1 << 30;
const BLOCK: usize = 4096;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .expect("usage: engine_speed FOLDER [REPLICAS]");
    let replicas = arguments
        .next()
        .map_or(1, |text| text.parse().expect("a number of copies"));
    let mut volume = open(Path::new(&folder), replicas);
    fill(&mut volume);
    for round in 0..2 {
        random(
            &mut volume,
            "random write 4K",
            round,
            |volume, offset, buffer| {
                volume.start(Request::write(0, offset, buffer, Durability::Volatile))
            },
        );
        random(
            &mut volume,
            "random read 4K",
            round,
            |volume, offset, buffer| volume.start(Request::read(0, offset, buffer)),
        );
    }
    sequential_read(&mut volume);
    close(volume);
}

fn open(folder: &Path, replicas: u8) -> Volume {
    let world = World::real(32);
    let store = open_store(folder, replicas, &world);
    let catalog = Arc::new(MemoryCatalog::default());
    let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
    let id = VolumeId::from_u128(1);
    create_volume(&catalog, id, replicas, &wrapping_key, &world);
    let lease = catalog
        .acquire(id, LeaseSalt::generate(&*world.random), None)
        .expect("a lease");
    let keyring = Arc::new(Keyring::unwrap(&lease.keys, &wrapping_key).expect("the key opens"));
    let journal = JournalLocation::of(&lease, &folder.join("journal"), None);
    Volume::open(OpenParams {
        pages: PageBudget::new(32 << 20),
        world,
        wake: Wake::noop(),
        store,
        catalog,
        lease,
        term: LeaseTerm::unlimited(),
        keyring,
        journal,
        taken_over: false,
        config: VolumeConfig::default(),
        cache: None,
    })
    .expect("an empty volume opens")
}

/// A store of eight new folder units.
fn open_store(folder: &Path, replicas: u8, world: &World) -> Arc<Store> {
    let store = Store::new(Arc::clone(&world.pool));
    let cluster = ClusterId::from_u128(1);
    let ids: Vec<UnitId> = (0..8).map(UnitId::from_u128).collect();
    let units = ids.iter().map(|id| {
        let path = folder.join(id.to_string());
        let unit = FolderUnit::create(world, &path, cluster, *id).expect("a new unit");
        (
            *id,
            Arc::new(TrackedUnit::new(Arc::new(unit), Arc::clone(&world.clock))),
        )
    });
    let units: Vec<_> = units.collect();
    let sets: Vec<Copyset> = copysets::plan(
        &ids,
        &copysets::Zones::new(),
        replicas,
        None,
        &[],
        8,
        &*world.random,
    );
    store.set_table(units, &sets);
    store
}

fn create_volume(
    catalog: &MemoryCatalog,
    volume: VolumeId,
    replicas: u8,
    wrapping: &WrappingKey,
    world: &World,
) {
    let lineage = Lineage::from_u128(1);
    let key = wrapping.wrap(lineage, &DataKey::generate(&*world.random), &*world.random);
    let new = NewVolume {
        volume,
        size_bytes: VOLUME_BYTES,
        block_size: BlockSize::DEFAULT,
        replicas,
        erasure: None,
        key: LineageKey {
            lineage,
            epoch_first: 0,
            wrapped: Some(key),
            wrapped_by: None,
            salts: Vec::new(),
        },
        from: None,
    };
    catalog.create_volume(new).expect("a new volume");
}

fn cpu() -> Duration {
    let time = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = time
        .rsplit(") ")
        .next()
        .expect("a name")
        .split(' ')
        .collect();
    let ticks: u64 =
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    Duration::from_millis(ticks * 10)
}

fn measure(name: &str, operations: u64, bytes: u64, work: impl FnOnce()) {
    let (start, cpu_start) = (Instant::now(), cpu());
    work();
    let (wall, used) = (start.elapsed(), cpu() - cpu_start);
    let per = |time: Duration| time.as_secs_f64() * 1e6 / operations as f64;
    println!(
        "{name:24} {:8.2} us/op wall {:8.2} us/op cpu {:8.0} op/s {:8.0} MiB/s",
        per(wall),
        per(used),
        operations as f64 / wall.as_secs_f64(),
        bytes as f64 / wall.as_secs_f64() / 1048576.0,
    );
}

/// Waits for the volume as a loop without sockets would.
fn settle(volume: &mut Volume) {
    let mut completions = Vec::new();
    volume.poll(&mut completions);
    for completion in completions {
        completion.result.expect("no request fails");
    }
    std::thread::yield_now();
}

fn fill(volume: &mut Volume) {
    let data = vec![0x5a; 256 << 10];
    let count = VOLUME_BYTES / data.len() as u64;
    measure("sequential write 256K", count, VOLUME_BYTES, || {
        for index in 0..count {
            let offset = index * data.len() as u64;
            while volume.start(Request::write(0, offset, &data, Durability::Volatile))
                == Started::Busy
            {
                settle(volume);
            }
            volume.end_batch().expect("the journal takes it");
            if index % 16 == 0 {
                settle(volume);
            }
        }
        flush(volume);
    });
}

fn flush(volume: &mut Volume) {
    let started = volume.start(Request::flush(7));
    volume.end_batch().expect("the journal takes it");
    let mut completions = Vec::new();
    while started == Started::Pending && completions.is_empty() {
        volume.poll(&mut completions);
        std::thread::yield_now();
    }
}

fn random(
    volume: &mut Volume,
    name: &str,
    round: u64,
    mut start: impl FnMut(&mut Volume, u64, &mut [u8]) -> Started,
) {
    let mut buffer = vec![0xa5; BLOCK];
    let mut state = 0x1234_5678_9abc_def1_u64 + round;
    let operations = 400_000;
    let mut pending = 0_u64;
    measure(name, operations, operations * BLOCK as u64, || {
        for index in 0..operations {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let offset = state % (VOLUME_BYTES / BLOCK as u64) * BLOCK as u64;
            loop {
                match start(volume, offset, &mut buffer) {
                    Started::Busy => settle(volume),
                    Started::Pending => {
                        pending += 1;
                        break;
                    }
                    Started::Done => break,
                    Started::Failed(error) => panic!("{error}"),
                }
            }
            if index % 32 == 31 {
                volume.end_batch().expect("the journal takes it");
                let mut completions = Vec::new();
                volume.poll(&mut completions);
                while pending > completions.len() as u64 + 64 {
                    volume.poll(&mut completions);
                }
                pending = pending.saturating_sub(completions.len() as u64);
                for completion in completions {
                    completion.result.expect("no request fails");
                }
            }
        }
        flush(volume);
    });
}

fn sequential_read(volume: &mut Volume) {
    let mut buffer = vec![0; 256 << 10];
    let count = VOLUME_BYTES / buffer.len() as u64;
    measure("sequential read 256K", count, VOLUME_BYTES, || {
        for index in 0..count {
            let offset = index * buffer.len() as u64;
            if volume.start(Request::read(1, offset, &mut buffer)) == Started::Pending {
                let mut completions = Vec::new();
                while completions.is_empty() {
                    volume.poll(&mut completions);
                    std::thread::yield_now();
                }
                for completion in completions {
                    completion.result.expect("no request fails");
                }
            }
        }
    });
}

fn close(mut volume: Volume) {
    measure("close", 1, 0, || {
        volume.begin_close();
        while volume.close_state().is_none() {
            settle(&mut volume);
        }
    });
    println!("{:?}", volume.status());
}
