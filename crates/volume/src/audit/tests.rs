//! Audits of versions on folder units of a simulated disk. The expected result is searched in
//! the units' files, byte by byte, without their tables.

use std::collections::BTreeSet;
use std::path::PathBuf;

use base::{BlockSize, ClusterId, CopysetId, Lineage, Sequence, VolumeId};
use catalog::{Catalog as _, Copyset, Erasure, LineageKey, MemoryCatalog, NewVolume, VersionKey};
use unit::TrackedUnit;
use unit_folder::FolderUnit;
use world::simulated::{Fault, Simulation};
use world::{Millis, OpenMode};

use super::*;
use crate::lease_term::LeaseTerm;
use crate::map::{Level, Overlay, PAGE_ENTRIES, Page, Position, Root};
use crate::scatter::{Layout, Ledger, Placer, PlacerConfig, Progress, Serials, Source, place};
use crate::seal::{LeaseSalt, SequenceSource, WrappingKey};
use crate::version::{Record, encode_tail};

const VOLUME: VolumeId = VolumeId::from_u128(1);
const SLOT_BYTES: u32 = 4096;
const SIZE_BYTES: u64 = 1 << 40;

fn unit_id(unit: u8) -> UnitId {
    UnitId::from_u128(u128::from(unit) + 1)
}

fn folder(unit: u8) -> PathBuf {
    PathBuf::from(format!("/unit{unit}"))
}

/// The content of a block. No two blocks have 16 bytes in common at any offset.
fn plain(block: u64) -> Vec<u8> {
    let word = |at: u64| (block << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = (0..u64::from(SLOT_BYTES) / 8).map(word);
    words.flat_map(u64::to_le_bytes).collect()
}

fn keyring(is_sealed: bool) -> Keyring {
    match is_sealed {
        true => crate::fixture::keyring(1),
        false => {
            let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
            let lineage = Lineage::from_u128(1);
            let random = world::simulated::SimulatedRandom::new(1);
            let key = LineageKey {
                lineage,
                epoch_first: 1,
                wrapped: Some(wrapping_key.wrap_none(lineage, &random)),
                wrapped_by: None,
                salts: vec![(1, LeaseSalt([7; 16]))],
            };
            Keyring::unwrap(&[key], &wrapping_key).expect("it was just wrapped")
        }
    }
}

/// The units, the volume and the content of a [`Rig`].
#[derive(Clone, Copy)]
struct Setup<'a> {
    /// The number of units.
    units: u8,
    /// The members of each copyset.
    copysets: &'a [&'a [u8]],
    erasure: Option<Erasure>,
    is_sealed: bool,
    /// The blocks that are written.
    blocks: &'a [u64],
    /// The number of map leaves all of whose blocks have been zeroed since.
    discarded_leaves: u64,
}

impl<'a> Setup<'a> {
    fn new(units: u8, copysets: &'a [&'a [u8]], blocks: &'a [u64]) -> Self {
        Self {
            units,
            copysets,
            erasure: None,
            is_sealed: false,
            blocks,
            discarded_leaves: 0,
        }
    }

    /// A store of new units.
    fn store(&self, simulation: &Simulation) -> Arc<Store> {
        let world = simulation.world();
        let cluster = ClusterId::from_u128(1);
        let unit = |unit: u8| {
            let folder = folder(unit);
            let made = FolderUnit::create(&world, &folder, cluster, unit_id(unit)).expect("made");
            let tracked = TrackedUnit::new(Arc::new(made), Arc::clone(&world.clock));
            (unit_id(unit), Arc::new(tracked))
        };
        let copyset = |(number, set): (u16, &&[u8])| {
            let members = set.iter().map(|unit| unit_id(*unit)).collect();
            Copyset {
                data: self.erasure.map_or(1, Erasure::data),
                ..Copyset::of_copies(CopysetId::new(number).expect("12 bits"), members)
            }
        };
        let copysets: Vec<Copyset> = (0..).zip(self.copysets).map(copyset).collect();
        let store = Store::new(Arc::clone(&world.pool));
        store.set_table((0..self.units).map(unit).collect(), &copysets);
        store
    }

    fn replicas(&self) -> u8 {
        match self.erasure {
            Some(_) => 1,
            None => self.copysets[0].len() as u8,
        }
    }

    /// A new volume in a catalog of its own, and the epoch of its first lease.
    fn volume(&self) -> (Arc<MemoryCatalog>, u32) {
        let catalog = Arc::new(MemoryCatalog::default());
        let created = catalog.create_volume(NewVolume {
            volume: VOLUME,
            size_bytes: SIZE_BYTES,
            block_size: BlockSize::DEFAULT,
            replicas: self.replicas(),
            erasure: self.erasure,
            key: LineageKey {
                lineage: Lineage::from_u128(1),
                epoch_first: 0,
                wrapped: None,
                wrapped_by: None,
                salts: Vec::new(),
            },
            from: None,
        });
        created.expect("a new volume");
        let lease = catalog.acquire(VOLUME, LeaseSalt([0; 16]), None);
        let epoch = lease.expect("a lease").epoch;
        (catalog, epoch)
    }

    fn placer(
        &self,
        catalog: Arc<MemoryCatalog>,
        epoch: u32,
        store: &Store,
        clock: Arc<dyn world::Clock>,
    ) -> Placer {
        let layout = Layout::new(self.erasure);
        let config = PlacerConfig {
            slot_bytes: SLOT_BYTES,
            slots_max: layout.slots_max(64),
            destage_width: 3,
            replicas: self.replicas(),
            layout,
            shuffle: !self.is_sealed,
        };
        let serials = Arc::new(Serials::new(catalog, VOLUME, epoch));
        let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
        let progress = Arc::new(Progress::new(LeaseTerm::unlimited(), clock));
        Placer::new(config, serials, ledger, progress)
    }
}

/// A version all of whose blocks are in its tail, on units of its own.
struct Rig {
    simulation: Simulation,
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    version: StoredVersion,
    entries: Vec<(u64, Entry)>,
}

impl Rig {
    fn new(setup: Setup<'_>) -> Self {
        let simulation = Simulation::new(5);
        let store = setup.store(&simulation);
        let (catalog, epoch) = setup.volume();
        let mut placer = setup.placer(catalog, epoch, &store, simulation.world().clock);
        let mut rig = Self {
            keyring: Arc::new(keyring(setup.is_sealed)),
            simulation,
            store,
            version: StoredVersion {
                key: VersionKey {
                    volume: VOLUME,
                    number: 1,
                },
                parent: None,
                lineage: Lineage::from_u128(1),
                epoch,
                journal_next: 0,
                created: Millis(0),
                record: Vec::new(),
            },
            entries: Vec::new(),
        };
        rig.write(&setup, &mut placer);
        rig
    }

    /// Places the blocks, the map and the tail, and seals the record of the version.
    fn write(&mut self, setup: &Setup<'_>, placer: &mut Placer) {
        let epoch = self.version.epoch;
        let sequences = SequenceSource::new(epoch);
        let content = |block: &u64| (Address::data(BlockIndex(*block)), plain(*block));
        let blocks = setup.blocks.iter().map(content).collect();
        let entries = self.put(placer, &sequences, blocks);
        self.entries = setup.blocks.iter().copied().zip(entries).collect();
        let leaves = setup.discarded_leaves;
        let root = match leaves {
            0 => Root::default(),
            leaves => self.put_map(placer, &sequences, leaves),
        };
        let mut overlay = Overlay::default();
        overlay.zero(0..leaves * PAGE_ENTRIES as u64);
        let entries = self.entries.iter();
        entries.for_each(|(block, entry)| overlay.insert(*block, *entry));
        let pages = encode_tail(&overlay, BlockSize::DEFAULT).into_iter();
        let pages = pages.map(|page| (Address::TAIL, page)).collect();
        let record = Record {
            key: self.version.key,
            block_size: BlockSize::DEFAULT,
            size_bytes: SIZE_BYTES,
            last_sequence: Sequence::new(epoch, 0).expect("small"),
            root,
            tail: self.put(placer, &sequences, pages),
        };
        let sequence = sequences.take().expect("few");
        self.version.record = record.seal(self.keyring.own(), sequence);
    }

    /// Places a map of `leaves` leaves, all of whose entries name the same block.
    fn put_map(&self, placer: &mut Placer, sequences: &SequenceSource, leaves: u64) -> Root {
        let named = self.entries[0].1;
        let mut below = vec![Some(named); leaves as usize * PAGE_ENTRIES];
        for level in [Level::Leaf, Level::Index, Level::Root] {
            let page = |(index, entries): (u64, &[Option<Entry>])| {
                let mut page = Page::default();
                let entries = entries.iter().enumerate();
                entries.for_each(|(at, entry)| page.set(at, *entry));
                let address = Position { level, index }.address();
                (address, page.bytes().to_vec())
            };
            let pages = (0..).zip(below.chunks(PAGE_ENTRIES)).map(page).collect();
            let put = self.put(placer, sequences, pages);
            below = put.into_iter().map(Some).collect();
        }
        Root::new(below)
    }

    fn put(
        &self,
        placer: &mut Placer,
        sequences: &SequenceSource,
        pieces: Vec<(Address, Vec<u8>)>,
    ) -> Vec<Entry> {
        let seal = |(address, mut content): (Address, Vec<u8>)| {
            let sequence = sequences.take().expect("few");
            let tag = self.keyring.own().seal(address, sequence, &mut content);
            (sequence, tag, content)
        };
        let sealed: Vec<_> = pieces.into_iter().map(seal).collect();
        let order: Vec<Sequence> = sealed.iter().map(|(sequence, ..)| *sequence).collect();
        let source: Source = Arc::new(move |index, slot| {
            let (_, tag, content) = &sealed[index];
            slot.copy_from_slice(content);
            Ok(*tag)
        });
        let random = Arc::clone(&self.simulation.world().random);
        let places = place(&self.store, placer, &*random, order.len(), &source).expect("placed");
        placer.confirm();
        let entry = |(location, sequence)| Entry { location, sequence };
        places.into_iter().zip(order).map(entry).collect()
    }

    fn audit(&self, compromised: &[u8]) -> Result<(Vec<BlockExposure>, Tally), AuditError> {
        let compromised: Vec<UnitId> = compromised.iter().map(|unit| unit_id(*unit)).collect();
        let mut audit = Audit::open(&self.store, &self.version, &self.keyring, &compromised)?;
        let mut all = Vec::new();
        let mut end = 0;
        while let Some(batch) = audit.next_batch()? {
            let own = end..batch.end;
            assert!(batch.blocks.iter().all(|one| own.contains(&one.block)));
            assert!(batch.blocks.len() * SLOT_BYTES as usize <= BATCH_BYTES);
            end = batch.end;
            all.extend(batch.blocks);
        }
        assert_eq!(audit.next_batch()?, None, "the end stays the end");
        Ok((all, audit.map()))
    }

    /// All bytes in the files of some units.
    fn files(&self, units: &[u8]) -> Vec<u8> {
        let disk = &self.simulation.disk;
        let mut all = Vec::new();
        for unit in units {
            for (path, length) in disk.files_under(&folder(*unit).join("segments")) {
                let file = self.simulation.world().disk.open(&path, OpenMode::Read);
                let mut bytes = vec![0; length as usize];
                file.expect("there").read_at(&mut bytes, 0).expect("read");
                all.extend(bytes);
            }
        }
        all
    }

    /// The blocks whose content is in the files of some units, at the places of slots.
    fn found(&self, units: &[u8]) -> BTreeSet<u64> {
        let bytes = self.files(units);
        let slots: BTreeSet<&[u8]> = bytes.chunks_exact(SLOT_BYTES as usize).collect();
        let blocks = self.entries.iter().map(|(block, _)| *block);
        blocks
            .filter(|block| slots.contains(&*plain(*block)))
            .collect()
    }
}

fn blocks_exposed(judged: &[BlockExposure], exposure: Exposure) -> BTreeSet<u64> {
    let such = judged.iter().filter(|one| one.exposure == exposure);
    such.map(|one| one.block).collect()
}

/// Adjacent blocks, and some far away.
fn blocks() -> Vec<u64> {
    (0..300).chain([70_000, 70_001, 1 << 26]).collect()
}

const PAIRS: [&[u8]; 6] = [&[0, 1], &[1, 2], &[2, 3], &[3, 0], &[0, 2], &[1, 3]];

#[test]
fn copies_on_compromised_units_are_exposed_as_content() {
    let blocks = blocks();
    for sets in [&[&[0][..], &[1], &[2], &[3]], &PAIRS[..]] {
        let rig = Rig::new(Setup::new(4, sets, &blocks));
        for compromised in [&[][..], &[0], &[2], &[0, 3], &[1, 2, 3], &[0, 1, 2, 3]] {
            let (judged, map) = rig.audit(compromised).expect("audited");
            let order: Vec<u64> = judged.iter().map(|one| one.block).collect();
            assert_eq!(order, blocks, "each once, in order");
            let content = blocks_exposed(&judged, Exposure::Content);
            assert_eq!(content, rig.found(compromised), "{sets:?} {compromised:?}");
            let nothing = blocks_exposed(&judged, Exposure::Nothing).len();
            assert_eq!(nothing + content.len(), blocks.len());
            assert_eq!(map.all, 2, "170 blocks to a page of the tail");
            if compromised.len() == 4 {
                assert_eq!((nothing, map.content), (0, 2));
            }
        }
    }
}

#[test]
fn sealed_blocks_reveal_no_content() {
    let blocks = blocks();
    let setup = Setup::new(4, &PAIRS, &blocks);
    let open = Rig::new(setup);
    let rig = Rig::new(Setup {
        is_sealed: true,
        ..setup
    });
    for compromised in [&[0][..], &[0, 1, 2, 3]] {
        let (judged, map) = rig.audit(compromised).expect("audited");
        assert_eq!(blocks_exposed(&judged, Exposure::Content), BTreeSet::new());
        assert_eq!(rig.found(compromised), BTreeSet::new());
        assert_eq!(map.content, 0);
        // Both volumes are placed alike, except for the order within a segment.
        let sealed = blocks_exposed(&judged, Exposure::Sealed);
        assert!(!sealed.is_empty());
        if compromised.len() == 4 {
            assert_eq!((sealed.len(), map.sealed), (blocks.len(), 2));
        }
        let (judged, _) = open.audit(compromised).expect("audited");
        assert_eq!(blocks_exposed(&judged, Exposure::Sealed), BTreeSet::new());
    }
}

#[test]
fn with_parity_k_compromised_members_reveal_all_and_fewer_only_their_own_slots() {
    let erasure = Erasure::new(2, 2).expect("allowed");
    // As many whole rows as possible: the parity of a padded row reveals more.
    let blocks: Vec<u64> = (0..600).collect();
    for is_sealed in [false, true] {
        let rig = Rig::new(Setup {
            erasure: Some(erasure),
            is_sealed,
            ..Setup::new(4, &[&[0, 1, 2, 3]], &blocks)
        });
        let have = if is_sealed {
            Exposure::Sealed
        } else {
            Exposure::Content
        };
        for compromised in [[0, 1], [0, 3], [2, 3], [1, 2]] {
            let (judged, _) = rig.audit(&compromised).expect("audited");
            assert_eq!(
                blocks_exposed(&judged, have).len(),
                blocks.len(),
                "{compromised:?}"
            );
        }
        for compromised in 0..4 {
            let (judged, _) = rig.audit(&[compromised]).expect("audited");
            let held = blocks_exposed(&judged, have);
            match is_sealed {
                false => assert_eq!(held, rig.found(&[compromised]), "{compromised}"),
                true => assert_eq!(rig.found(&[compromised]), BTreeSet::new()),
            }
            let is_data = compromised < 2;
            let expected = if is_data { 290..=310 } else { 0..=4 };
            assert!(
                expected.contains(&held.len()),
                "{compromised}: {}",
                held.len()
            );
        }
    }
}

/// Padding is zeroes, so the parity of a single slot is that slot, byte by byte.
#[test]
fn the_parity_of_a_padded_row_reveals_its_slot() {
    let erasure = Erasure::new(2, 1).expect("allowed");
    let rig = Rig::new(Setup {
        erasure: Some(erasure),
        ..Setup::new(3, &[&[0, 1, 2]], &[7])
    });
    let (judged, _) = rig.audit(&[2]).expect("audited");
    assert_eq!(judged[0].exposure, Exposure::Content);
    assert_eq!(rig.found(&[2]), [7].into());
}

#[test]
fn a_damaged_or_falsified_slot_is_exposed_as_other() {
    let blocks: Vec<u64> = (0..20).collect();
    let rig = Rig::new(Setup::new(2, &[&[0, 1]], &blocks));
    let disk = &rig.simulation.disk;
    for (path, length) in disk.files_under(&folder(0).join("segments")) {
        // A bit in the last slot, which was put last.
        disk.flip_bit(&path, length - 100, 3).expect("flipped");
    }
    let (judged, map) = rig.audit(&[0]).expect("audited");
    let other = blocks_exposed(&judged, Exposure::Other).len() as u64 + map.other;
    assert!(other > 0);
    let content = blocks_exposed(&judged, Exposure::Content);
    assert_eq!(content, rig.found(&[0]));
    // The other unit has the correct content.
    let (judged, map) = rig.audit(&[0, 1]).expect("audited");
    assert_eq!(
        blocks_exposed(&judged, Exposure::Content).len(),
        blocks.len()
    );
    assert_eq!(map.other, 0);
}

#[test]
fn a_unit_that_does_not_answer_is_an_error_and_does_not_count_as_empty() {
    let blocks: Vec<u64> = (0..20).collect();
    let erasure = Erasure::new(2, 1).expect("allowed");
    let setup = Setup::new(3, &[&[0, 1, 2]], &blocks);
    let copies = Rig::new(setup);
    let parity = Rig::new(Setup {
        erasure: Some(erasure),
        is_sealed: true,
        ..setup
    });
    for rig in [copies, parity] {
        rig.simulation.disk.inject(&folder(2), Fault::Missing);
        let refused = rig.audit(&[0, 2]).map(|_| ());
        let Err(AuditError::Compromised(CompromisedError::Unanswered { unit, .. })) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(unit, unit_id(2));
        rig.audit(&[0, 1]).expect("the others answer");
    }
}

/// The walk read a whole map of discarded blocks before it judged any page of it.
#[test]
fn map_pages_of_discarded_blocks_are_judged_in_batches() {
    let leaves = 2 * (BATCH_BYTES / PAGE_BYTES) as u64 + 10;
    let rig = Rig::new(Setup {
        discarded_leaves: leaves,
        ..Setup::new(2, &[&[0], &[1]], &[1 << 26])
    });
    let mut audit = Audit::open(&rig.store, &rig.version, &rig.keyring, &[unit_id(0)]);
    let audit = audit.as_mut().expect("opened");
    let tail = audit.map().all;
    let mut seen = Vec::new();
    while let Some(batch) = audit.next_batch().expect("judged") {
        seen.push((audit.map().all - tail, batch.end / PAGE_ENTRIES as u64));
        let judged = batch.blocks.iter().map(|one| one.block);
        assert!(judged.eq((seen.len() == 3).then_some(1 << 26)));
    }
    let in_batch = (BATCH_BYTES / PAGE_BYTES) as u64;
    let end = (1 << 26) / PAGE_ENTRIES as u64 + 1;
    let expected = [
        (in_batch, in_batch),
        (2 * in_batch, 2 * in_batch),
        (leaves, end),
    ];
    assert_eq!(
        seen, expected,
        "pages of the map, and where each batch ends"
    );
}

#[test]
fn an_unknown_unit_is_refused() {
    let rig = Rig::new(Setup::new(2, &[&[0, 1]], &[1]));
    let refused = rig.audit(&[0, 9]).map(|_| ());
    let Err(AuditError::Compromised(CompromisedError::Unknown(unit))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(unit, unit_id(9));
}
