//! A copyset with parity on folder units of a simulated disk, for tests.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use base::{
    BlockIndex, BlockSize, ClusterId, CopysetId, Lineage, SegmentId, Slot, UnitId, VolumeId,
};
use catalog::{Catalog as _, Copyset, Erasure, LineageKey, MemoryCatalog, NewVolume};
use unit::{TrackedUnit, Unit as _};
use unit_folder::FolderUnit;
use world::simulated::{Fault, SimulatedDisk, Simulation};

use crate::lease_term::LeaseTerm;
use crate::map::Entry;
use crate::scatter::{
    Layout, Ledger, Piece, Placer, PlacerConfig, Progress, Serials, Source, Store, place,
    read_pieces,
};
use crate::seal::{Address, Keyring, LeaseSalt, SequenceSource};

pub(crate) const SLOT_BYTES: u32 = 4096;
pub(crate) const VOLUME: VolumeId = VolumeId::from_u128(1);

pub(crate) fn unit_id(place: u8) -> UnitId {
    UnitId::from_u128(u128::from(place) + 1)
}

pub(crate) fn folder(place: u8) -> PathBuf {
    PathBuf::from(format!("/unit{place}"))
}

/// A copyset with parity on units of its own, and the pieces that were put there.
pub(crate) struct Rig {
    pub(crate) simulation: Simulation,
    pub(crate) erasure: Erasure,
    pub(crate) store: Arc<Store>,
    pub(crate) serials: Arc<Serials>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) placer: Placer,
    pub(crate) sequences: SequenceSource,
    pub(crate) pieces: Vec<Piece>,
    /// The unit at each place.
    pub(crate) units: Vec<u8>,
}

impl Rig {
    pub(crate) fn new(data: u8, parity: u8) -> Self {
        let erasure = Erasure::new(data, parity).expect("allowed");
        let simulation = Simulation::new(1);
        let world = simulation.world();
        (0..erasure.members()).for_each(|place| create(&simulation, place));
        let catalog = Arc::new(MemoryCatalog::default());
        let made = catalog.create_volume(NewVolume {
            volume: VOLUME,
            size_bytes: 1 << 30,
            block_size: BlockSize::DEFAULT,
            replicas: 1,
            erasure: Some(erasure),
            key: LineageKey {
                lineage: Lineage::from_u128(1),
                epoch_first: 0,
                wrapped: None,
                wrapped_by: None,
                salts: Vec::new(),
            },
            from: None,
        });
        made.expect("a new volume");
        let epoch = catalog
            .acquire(VOLUME, LeaseSalt([0; 16]), None)
            .expect("a lease")
            .epoch;
        let store = store(&simulation, erasure);
        let layout = Layout::new(Some(erasure));
        let config = PlacerConfig {
            slot_bytes: SLOT_BYTES,
            slots_max: layout.slots_max(64),
            destage_width: 2,
            replicas: 1,
            layout,
            shuffle: false,
        };
        let serials = Arc::new(Serials::new(Arc::clone(&catalog) as _, VOLUME, epoch));
        let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
        let progress = Arc::new(Progress::new(
            LeaseTerm::unlimited(),
            Arc::clone(&world.clock),
        ));
        Self {
            placer: Placer::new(config, Arc::clone(&serials), Arc::clone(&ledger), progress),
            serials,
            ledger,
            keyring: Arc::new(crate::fixture::keyring(1)),
            sequences: SequenceSource::new(epoch),
            pieces: Vec::new(),
            units: (0..erasure.members()).collect(),
            simulation,
            erasure,
            store,
        }
    }

    /// Places `count` more pieces.
    pub(crate) fn put(&mut self, count: usize) {
        let first = self.pieces.len() as u64;
        let (mut sealed, mut pieces) = (Vec::new(), Vec::new());
        for block in first..first + count as u64 {
            let sequence = self.sequences.take().expect("few");
            let address = Address::data(BlockIndex(block));
            let mut content = plain(block);
            let tag = self.keyring.own().seal(address, sequence, &mut content);
            sealed.push((tag, content));
            pieces.push((sequence, address));
        }
        let source: Source = Arc::new(move |index, slot| {
            let (tag, content) = &sealed[index];
            slot.copy_from_slice(content);
            Ok(*tag)
        });
        let random = Arc::clone(&self.simulation.world().random);
        let places = place(&self.store, &mut self.placer, &*random, count, &source);
        self.placer.confirm();
        for ((sequence, address), location) in pieces.into_iter().zip(places.expect("placed")) {
            let entry = Entry { location, sequence };
            self.pieces.push(Piece { entry, address });
        }
    }

    /// Checks that all pieces but the `dead` ones are read correctly.
    pub(crate) fn check(&self, store: &Arc<Store>, dead: &BTreeSet<usize>) {
        let read = read_pieces(store, &self.keyring, SLOT_BYTES, &self.pieces, &[]);
        for (block, read) in read.into_iter().enumerate() {
            if !dead.contains(&block) {
                let right = read.is_ok_and(|found| found == plain(block as u64));
                assert!(right, "block {block}");
            }
        }
    }

    /// As [`Rig::check`], for every set of missing units that parity makes up for.
    pub(crate) fn check_with_losses(&self, dead: &BTreeSet<usize>) {
        let (members, parity) = (self.erasure.members(), u32::from(self.erasure.parity()));
        for lost in (0u32..1 << members).filter(|lost| lost.count_ones() <= parity) {
            let disk = &self.simulation.disk;
            let units = (0..members).zip(&self.units);
            let lost: Vec<u8> = units
                .filter(|(place, _)| lost >> place & 1 == 1)
                .map(|(_, unit)| *unit)
                .collect();
            lost.iter()
                .for_each(|unit| disk.inject(&folder(*unit), Fault::Missing));
            let store = store_of(&self.simulation, self.erasure, &self.units);
            self.check(&store, dead);
            lost.iter().for_each(|unit| disk.heal(&folder(*unit)));
        }
    }

    /// The segments that the ledger lists as degraded.
    pub(crate) fn degraded(&self) -> BTreeSet<SegmentId> {
        let placement = self.ledger.for_commit(&self.serials).placement;
        placement
            .degraded
            .iter()
            .map(|share| share.segment)
            .collect()
    }

    pub(crate) fn segments(&self) -> BTreeSet<SegmentId> {
        let segments = self
            .pieces
            .iter()
            .map(|piece| piece.entry.location.segment());
        segments.collect()
    }

    /// The slots of the `dead` pieces in a segment.
    pub(crate) fn slots(&self, segment: SegmentId, dead: &BTreeSet<usize>) -> Vec<Slot> {
        let locations = dead.iter().map(|block| self.pieces[*block].entry.location);
        let own = locations.filter(|location| location.segment() == segment);
        own.map(|location| location.slot()).collect()
    }

    /// The number of slots of a segment that are not freed on each unit, by place.
    pub(crate) fn live(&self, segment: SegmentId) -> Vec<u32> {
        let store = store(&self.simulation, self.erasure);
        let table = store.table();
        let live = table.members(segment.copyset()).iter().map(|member| {
            let stat = member.unit.stat_segment(segment);
            stat.map_or(0, |stat| stat.slots - stat.freed)
        });
        live.collect()
    }
}

pub(crate) fn plain(block: u64) -> Vec<u8> {
    (0..SLOT_BYTES)
        .map(|at| (block as u32 * 31 + at / 5) as u8)
        .collect()
}

pub(crate) fn copyset() -> CopysetId {
    CopysetId::new(3).expect("12 bits")
}

/// A new process's store of the units.
pub(crate) fn store(simulation: &Simulation, erasure: Erasure) -> Arc<Store> {
    let units: Vec<u8> = (0..erasure.members()).collect();
    store_of(simulation, erasure, &units)
}

/// As [`store`], with `units` at the places.
pub(crate) fn store_of(simulation: &Simulation, erasure: Erasure, units: &[u8]) -> Arc<Store> {
    let world = simulation.world();
    let open = |unit: &u8| {
        let opened = open(simulation, *unit);
        let tracked = TrackedUnit::new(Arc::new(opened), Arc::clone(&world.clock));
        (unit_id(*unit), Arc::new(tracked))
    };
    let store = Store::new(Arc::clone(&world.pool));
    let members: Vec<UnitId> = units.iter().map(|unit| unit_id(*unit)).collect();
    let copyset = Copyset {
        data: erasure.data(),
        ..Copyset::of_copies(copyset(), members)
    };
    store.set_table(units.iter().map(open).collect(), &[copyset]);
    store
}

/// Opens a unit.
pub(crate) fn open(simulation: &Simulation, unit: u8) -> FolderUnit {
    let cluster = ClusterId::from_u128(1);
    FolderUnit::open(&simulation.world(), &folder(unit), cluster, unit_id(unit))
}

/// Creates an empty unit.
pub(crate) fn create(simulation: &Simulation, unit: u8) {
    let cluster = ClusterId::from_u128(1);
    FolderUnit::create(&simulation.world(), &folder(unit), cluster, unit_id(unit)).expect("made");
}

/// Flips a bit in the content of slot `row` of a member.
pub(crate) fn rot(disk: &SimulatedDisk, place: u8, segment: SegmentId, row: u16) {
    let files = disk.files_under(&folder(place).join("segments"));
    let is_its = |path: &PathBuf| path.ends_with(segment.to_string());
    let (path, _) = files
        .into_iter()
        .find(|(path, _)| is_its(path))
        .expect("the segment is there");
    // The data of a segment of 2048 slots begins there.
    disk.flip_bit(
        &path,
        53_248 + u64::from(row) * u64::from(SLOT_BYTES) + 100,
        3,
    )
    .expect("flipped");
}

/// Most of `count` blocks, not in whole rows.
pub(crate) fn most(count: usize) -> BTreeSet<usize> {
    (0..count).filter(|block| block % 7 < 5).collect()
}
