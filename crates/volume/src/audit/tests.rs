//! Versions on folder units of a simulated disk. What is expected is looked for in the units'
//! files, byte by byte, without their tables.

use std::collections::BTreeSet;
use std::path::PathBuf;

use base::{BlockSize, ClusterId, CopysetId, Lineage, Sequence, VolumeId};
use unit::TrackedUnit;
use unit_folder::FolderUnit;
use world::simulated::{Fault, Simulation};
use world::{Millis, OpenMode};

use super::*;
use crate::catalog::{
    Catalog as _, Copyset, Erasure, LineageKey, MemoryCatalog, NewVolume, VersionKey,
};
use crate::lease_term::LeaseTerm;
use crate::map::{Level, Overlay, PAGE_ENTRIES, Page, Position, Root};
use crate::scatter::{Layout, Ledger, Placer, PlacerConfig, Progress, Serials, Source, place};
use crate::seal::{KeyEncryptionKey, LeaseSalt, SequenceSource};
use crate::version::{Record, encode_tail};

const VOLUME: VolumeId = VolumeId::from_u128(1);
const SLOT_BYTES: u32 = 4096;

fn unit_id(unit: u8) -> UnitId {
    UnitId::from_u128(u128::from(unit) + 1)
}

fn folder(unit: u8) -> PathBuf {
    PathBuf::from(format!("/unit{unit}"))
}

/// No two blocks have 16 bytes in common at any place.
fn plain(block: u64) -> Vec<u8> {
    let word = |at: u64| (block << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = (0..u64::from(SLOT_BYTES) / 8).map(word);
    words.flat_map(u64::to_le_bytes).collect()
}

fn keyring(is_sealed: bool) -> Keyring {
    match is_sealed {
        true => crate::fixture::keyring(1),
        false => {
            let wrapping = KeyEncryptionKey::from_bytes(&[1; 32]);
            let lineage = Lineage::from_u128(1);
            let random = world::simulated::SimulatedRandom::new(1);
            let key = LineageKey {
                lineage,
                epoch_first: 1,
                wrapped: Some(wrapping.wrap_none(lineage, &random)),
                wrapped_by: None,
                salts: vec![(1, LeaseSalt([7; 16]))],
            };
            Keyring::unwrap(&[key], &wrapping).expect("it was just wrapped")
        }
    }
}

/// A version whose tail has all of it, on units of their own.
struct Rig {
    simulation: Simulation,
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    version: StoredVersion,
    entries: Vec<(u64, Entry)>,
}

impl Rig {
    /// Of `blocks`, over `units` in these sets.
    fn new(
        units: u8,
        sets: &[&[u8]],
        erasure: Option<Erasure>,
        is_sealed: bool,
        blocks: &[u64],
    ) -> Self {
        Self::discarded(units, sets, erasure, is_sealed, blocks, 0)
    }

    /// The same, with so many leaves of a map, all of whose blocks were zeroed since.
    fn discarded(
        units: u8,
        sets: &[&[u8]],
        erasure: Option<Erasure>,
        is_sealed: bool,
        blocks: &[u64],
        leaves: u64,
    ) -> Self {
        let simulation = Simulation::new(5);
        let world = simulation.world();
        let cluster = ClusterId::from_u128(1);
        let unit = |unit: u8| {
            let folder = folder(unit);
            let made = FolderUnit::create(&world, &folder, cluster, unit_id(unit)).expect("made");
            let tracked = TrackedUnit::new(Arc::new(made), Arc::clone(&world.clock));
            (unit_id(unit), Arc::new(tracked))
        };
        let store = Store::new(Arc::clone(&world.pool));
        let copyset = |(number, set): (u16, &&[u8])| {
            let members = set.iter().map(|unit| unit_id(*unit)).collect();
            Copyset {
                data: erasure.map_or(1, Erasure::data),
                ..Copyset::of_copies(CopysetId::new(number).expect("12 bits"), members)
            }
        };
        let copysets: Vec<Copyset> = (0..).zip(sets).map(copyset).collect();
        store.set_table((0..units).map(unit).collect(), &copysets);
        let replicas = if erasure.is_some() {
            1
        } else {
            sets[0].len() as u8
        };
        let catalog = Arc::new(MemoryCatalog::default());
        let made = catalog.create_volume(NewVolume {
            volume: VOLUME,
            size_bytes: 1 << 40,
            block_size: BlockSize::DEFAULT,
            replicas,
            erasure,
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
        let lease = catalog.acquire(VOLUME, LeaseSalt([0; 16]), None);
        let epoch = lease.expect("a lease").epoch;
        let layout = Layout::new(erasure);
        let config = PlacerConfig {
            slot_bytes: SLOT_BYTES,
            slots_max: layout.slots_max(64),
            width: 3,
            replicas,
            layout,
            shuffle: !is_sealed,
        };
        let serials = Arc::new(Serials::new(catalog, VOLUME, epoch));
        let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
        let progress = Progress::new(LeaseTerm::unlimited(), Arc::clone(&world.clock));
        let mut rig = Self {
            keyring: Arc::new(keyring(is_sealed)),
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
        let mut placer = Placer::new(config, serials, ledger, Arc::new(progress));
        let sequences = SequenceSource::new(epoch);
        let content = |block: &u64| (Address::data(BlockIndex(*block)), plain(*block));
        let entries = rig.put(
            &mut placer,
            &sequences,
            blocks.iter().map(content).collect(),
        );
        rig.entries = blocks.iter().copied().zip(entries).collect();
        let root = match leaves {
            0 => Root::default(),
            leaves => rig.map(&mut placer, &sequences, leaves),
        };
        let mut overlay = Overlay::default();
        overlay.zero(0..leaves * PAGE_ENTRIES as u64);
        let entries = rig.entries.iter();
        entries.for_each(|(block, entry)| overlay.insert(*block, *entry));
        let pages = encode_tail(&overlay, BlockSize::DEFAULT).into_iter();
        let pages = pages.map(|page| (Address::TAIL, page)).collect();
        let record = Record {
            key: rig.version.key,
            block_size: BlockSize::DEFAULT,
            size_bytes: 1 << 40,
            last_sequence: Sequence::new(epoch, 0).expect("small"),
            root,
            tail: rig.put(&mut placer, &sequences, pages),
        };
        let sequence = sequences.take().expect("few");
        rig.version.record = record.seal(rig.keyring.own(), sequence);
        rig
    }

    /// A map of so many leaves, which all name the same block.
    fn map(&self, placer: &mut Placer, sequences: &SequenceSource, leaves: u64) -> Root {
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

    /// The blocks whose content lies in the files of some units, at the places of slots.
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

/// Some next to each other, some far away.
fn blocks() -> Vec<u64> {
    (0..300).chain([70_000, 70_001, 1 << 26]).collect()
}

const PAIRS: [&[u8]; 6] = [&[0, 1], &[1, 2], &[2, 3], &[3, 0], &[0, 2], &[1, 3]];

#[test]
fn of_copies_that_is_content_whose_bytes_lie_on_compromised_units() {
    let blocks = blocks();
    for sets in [&[&[0][..], &[1], &[2], &[3]], &PAIRS[..]] {
        let rig = Rig::new(4, sets, None, false, &blocks);
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
fn sealed_blocks_are_there_and_say_nothing() {
    let blocks = blocks();
    let rig = Rig::new(4, &PAIRS, None, true, &blocks);
    let open = Rig::new(4, &PAIRS, None, false, &blocks);
    for compromised in [&[0][..], &[0, 1, 2, 3]] {
        let (judged, map) = rig.audit(compromised).expect("audited");
        assert_eq!(blocks_exposed(&judged, Exposure::Content), BTreeSet::new());
        assert_eq!(rig.found(compromised), BTreeSet::new());
        assert_eq!(map.content, 0);
        // Both were dealt alike but for the order within a segment.
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
fn with_parity_k_compromised_members_have_all_and_fewer_what_lies_on_them() {
    let erasure = Erasure::new(2, 2).expect("allowed");
    // Whole rows in all segments, as far as that can be: the parity of one that is not says more.
    let blocks: Vec<u64> = (0..600).collect();
    for is_sealed in [false, true] {
        let rig = Rig::new(4, &[&[0, 1, 2, 3]], Some(erasure), is_sealed, &blocks);
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

/// Padding is zeroes: then the parity of a single slot is that slot, byte by byte.
#[test]
fn parity_of_a_row_that_is_padded_gives_its_slot_away() {
    let erasure = Erasure::new(2, 1).expect("allowed");
    let rig = Rig::new(3, &[&[0, 1, 2]], Some(erasure), false, &[7]);
    let (judged, _) = rig.audit(&[2]).expect("audited");
    assert_eq!(judged[0].exposure, Exposure::Content);
    assert_eq!(rig.found(&[2]), [7].into());
}

#[test]
fn a_unit_that_lies_or_was_damaged_has_something_else() {
    let blocks: Vec<u64> = (0..20).collect();
    let rig = Rig::new(2, &[&[0, 1]], None, false, &blocks);
    let disk = &rig.simulation.disk;
    for (path, length) in disk.files_under(&folder(0).join("segments")) {
        // One in the last slot: of those that were put last.
        disk.flip_bit(&path, length - 100, 3).expect("flipped");
    }
    let (judged, map) = rig.audit(&[0]).expect("audited");
    let other = blocks_exposed(&judged, Exposure::Other).len() as u64 + map.other;
    assert!(other > 0);
    let content = blocks_exposed(&judged, Exposure::Content);
    assert_eq!(content, rig.found(&[0]));
    // The other one has what is right.
    let (judged, map) = rig.audit(&[0, 1]).expect("audited");
    assert_eq!(
        blocks_exposed(&judged, Exposure::Content).len(),
        blocks.len()
    );
    assert_eq!(map.other, 0);
}

#[test]
fn a_unit_that_does_not_answer_is_named_and_not_taken_for_empty() {
    let blocks: Vec<u64> = (0..20).collect();
    let erasure = Erasure::new(2, 1).expect("allowed");
    let copies = Rig::new(3, &[&[0, 1, 2]], None, false, &blocks);
    let parity = Rig::new(3, &[&[0, 1, 2]], Some(erasure), true, &blocks);
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

/// So the walk once came across all of a map before it judged any of it.
#[test]
fn what_was_discarded_is_judged_bit_by_bit_as_well() {
    let leaves = 2 * (BATCH_BYTES / PAGE_BYTES) as u64 + 10;
    let rig = Rig::discarded(2, &[&[0], &[1]], None, false, &[1 << 26], leaves);
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
fn a_unit_that_nobody_knows_is_refused() {
    let rig = Rig::new(2, &[&[0, 1]], None, false, &[1]);
    let refused = rig.audit(&[0, 9]).map(|_| ());
    let Err(AuditError::Compromised(CompromisedError::Unknown(unit))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(unit, unit_id(9));
}
