//! Reads through a cache whose file hangs, of units that respond.

use std::path::Path;
use std::sync::Arc;

use base::{
    BlockIndex, ClusterId, CopysetId, LineageTag, Location, SegmentId, Sequence, Slot, UnitId,
    VolumeId,
};
use cache::host::HostCache;
use cache::store::{AreaKind, Cache, CacheConfig, Division};
use catalog::Copyset;
use unit::{Put, TrackedUnit, Unit as _};
use unit_folder::FolderUnit;
use world::real::ThreadPool;
use world::simulated::{Fault, Simulation};
use world::{Pool, World};

use super::piece::{Piece, data_piece};
use super::read::read_pieces_through;
use super::store::Store;
use super::view::CacheView;
use crate::fixture::keyring;
use crate::map::Entry;
use crate::seal::Keyring;

const SLOT_BYTES: u32 = 4096;
const SSD: &str = "/ssd";

struct Rig {
    simulation: Simulation,
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    view: CacheView,
    pieces: Vec<Piece>,
}

impl Rig {
    /// `count` pieces on one unit, all of which are also in the cache's file.
    fn new(count: u16) -> Self {
        let simulation = Simulation::new(1);
        let threads = |count| Arc::new(ThreadPool::new(count)) as Arc<dyn Pool>;
        let world = simulation.world();
        let id = UnitId::from_u128(1);
        let unit = FolderUnit::create(&world, Path::new("/u1"), ClusterId::from_u128(1), id);
        let unit = TrackedUnit::new(Arc::new(unit.expect("made")), Arc::clone(&world.clock));
        let copyset = CopysetId::new(1).expect("small");
        let segment = SegmentId::new(copyset, 1).expect("small");
        let keyring = keyring(1);
        let (mut pieces, mut tags, mut content) = (Vec::new(), Vec::new(), Vec::new());
        for slot in 0..count {
            let location = Location::new(segment, Slot(slot));
            let sequence = Sequence::new(1, u64::from(slot) + 1).expect("small");
            let piece = data_piece(BlockIndex(u64::from(slot)), Entry { location, sequence });
            let mut sealed = vec![slot as u8; SLOT_BYTES as usize];
            tags.push(keyring.own().seal(piece.address, sequence, &mut sealed));
            content.extend(sealed);
            pieces.push(piece);
        }
        unit.put(Put {
            lineage_tag: LineageTag::NONE,
            segment,
            slot_bytes: SLOT_BYTES,
            first: Slot(0),
            tags: &tags,
            data: &content,
        })
        .expect("put");
        // The pool of the store: it must not be occupied by reads of the cache's file.
        let store = Store::new(threads(4));
        let units = [(id, Arc::new(unit))];
        store.set_table(units.into(), &[Copyset::of_copies(copyset, vec![id])]);
        world.disk.create_directory(Path::new(SSD)).expect("made");
        let config = CacheConfig {
            path: Path::new(SSD).join("cache"),
            bytes: Some(4 << 20),
            division: Division::default(),
            cluster: [1; 16],
        };
        let pool = threads(2);
        let (file, _) = Cache::open(&World { pool, ..world }, &config).expect("made");
        let cache = HostCache::new(0);
        cache.use_file(file);
        let rig = Self {
            simulation,
            store,
            keyring: Arc::new(keyring),
            view: CacheView::new(cache, VolumeId::from_u128(1)),
            pieces,
        };
        rig.read();
        rig
    }

    /// Reads all pieces and checks their content.
    fn read(&self) {
        let (view, store, keyring) = (Some(&self.view), &self.store, &self.keyring);
        let read = read_pieces_through(view, store, keyring, SLOT_BYTES, &self.pieces, &[]);
        for (slot, content) in read.into_iter().enumerate() {
            let content = content.expect("a unit has it");
            assert!(content.iter().all(|byte| *byte == slot as u8), "{slot}");
        }
    }

    /// Reads all pieces again and returns the number of hits in the file.
    fn file_hits(&self) -> u64 {
        let hits = || self.view.counts().areas[AreaKind::Active as usize].file;
        let before = hits();
        self.read();
        hits() - before
    }
}

/// A read with a single copy waited as long as the cache's file did not respond.
#[test]
fn a_read_that_the_cache_does_not_answer_is_sent_to_the_only_unit() {
    let rig = Rig::new(100);
    while rig.file_hits() < 100 {}
    rig.simulation.disk.inject(Path::new(SSD), Fault::Hangs);
    // More than the cache has threads.
    (0..4).for_each(|_| rig.read());
    rig.simulation.disk.heal(Path::new(SSD));
    rig.read();
}
