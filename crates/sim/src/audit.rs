//! Looking at what lies on units and in journals, past the engine: what each
//! version names, what units keep, which nonces were used for what.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use base::{BlockIndex, CopysetId, Lineage, Location, SegmentId, Sequence, Slot, UnitId};
use unit::Tag;
use unit_folder::format;
use volume::catalog::{Copyset, LineageKey, StoredVersion};
use volume::engine::StoredPages;
use volume::journal;
use volume::map::{Entry, FetchPages, Level, Overlay, PAGE_ENTRIES, Position, Root};
use volume::scatter::{Layout, Piece, read_pieces};
use volume::seal::{Address, Keyring};
use volume::version::{Record, decode_tail_page};
use world::{Disk, OpenMode};

use crate::Check;
use crate::machine::Machine;
use crate::model::{Blocks, content};

/// A version, read without the engine.
pub struct Walked {
    /// What each block is, holes left out.
    pub blocks: BTreeMap<u64, Entry>,
    /// Map and tail pages.
    pub pages: Vec<Entry>,
    keyring: Arc<Keyring>,
    keys: Vec<LineageKey>,
    slot_bytes: u32,
}

impl Walked {
    /// Every slot it names.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.blocks.values().chain(&self.pages).copied()
    }

    /// Under whose key something of this epoch was sealed.
    fn lineage_of(&self, sequence: Sequence) -> Lineage {
        lineage_of(&self.keys, sequence)
    }
}

fn lineage_of(keys: &[LineageKey], sequence: Sequence) -> Lineage {
    let found = keys.iter().find(|key| key.epoch_first <= sequence.epoch());
    found.unwrap_or(&keys[keys.len() - 1]).lineage
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Walks all of a version.
///
/// # Errors
/// If a page cannot be had.
pub fn walk(machine: &Machine, version: &StoredVersion) -> Check<Walked> {
    use volume::catalog::Catalog as _;
    let keys = machine.catalog.memory.keys(version.lineage).map_err(text)?;
    let keyring = machine.keyring(&keys);
    let record = Record::open(version.key, &version.record, &keyring).map_err(text)?;
    let slot_bytes = record.block_size.bytes() as u32;
    let piece = |entry: &Entry| Piece {
        entry: *entry,
        address: Address::TAIL,
    };
    let tail: Vec<Piece> = record.tail.iter().map(piece).collect();
    let mut overlay = Overlay::default();
    for page in read_pieces(&machine.audited, &keyring, slot_bytes, &tail, &[]) {
        decode_tail_page(&page.map_err(text)?, &mut overlay).map_err(text)?;
    }
    let mut pages = StoredPages::new(Arc::clone(&machine.audited), Arc::clone(&keyring), 256);
    let mut walked = Walked {
        blocks: BTreeMap::new(),
        pages: record.tail,
        keyring,
        keys,
        slot_bytes,
    };
    walk_tree(&mut pages, &record.root, &mut walked)?;
    for zero in overlay.zeroes() {
        let dead: Vec<u64> = walked.blocks.range(zero).map(|(block, _)| *block).collect();
        dead.iter().for_each(|block| {
            walked.blocks.remove(block);
        });
    }
    // Named by the tree and overwritten in the tail: still held by the tree's
    // page, but by no block.
    walked.blocks.extend(overlay.blocks());
    Ok(walked)
}

fn walk_tree(pages: &mut StoredPages, root: &Root, walked: &mut Walked) -> Check {
    let mut level: Vec<(Position, Entry)> = Vec::new();
    for (index, entry) in root.entries().iter().enumerate() {
        let position = Position {
            level: Level::Root,
            index: index as u64,
        };
        level.extend(entry.map(|entry| (position, entry)));
    }
    while !level.is_empty() {
        walked.pages.extend(level.iter().map(|(_, entry)| *entry));
        let fetched = pages.fetch(&level).map_err(text)?;
        let mut below = Vec::new();
        for ((position, _), page) in level.iter().zip(fetched) {
            for index in 0..PAGE_ENTRIES {
                let Some(entry) = page.get(index) else {
                    continue;
                };
                match position.child(index) {
                    Some(child) => below.push((child, entry)),
                    None => {
                        walked
                            .blocks
                            .insert(position.blocks().start + index as u64, entry);
                    }
                }
            }
        }
        level = below;
    }
    Ok(())
}

/// What a version holds.
///
/// # Errors
/// If a block cannot be read.
pub fn read_version(machine: &Machine, walked: &Walked) -> Check<Blocks> {
    let piece = |(block, entry): (&u64, &Entry)| Piece {
        entry: *entry,
        address: Address::data(BlockIndex(*block)),
    };
    let pieces: Vec<Piece> = walked.blocks.iter().map(piece).collect();
    let read = read_pieces(
        &machine.audited,
        &walked.keyring,
        walked.slot_bytes,
        &pieces,
        &[],
    );
    let blocks = walked.blocks.keys().zip(read);
    blocks
        .map(|(block, plain)| Ok((*block, content(&plain.map_err(text)?))))
        .collect()
}

/// What lies on a unit.
#[derive(Default)]
pub struct Kept {
    /// The slots that are not free, as the unit numbers them.
    slots: BTreeMap<Location, Tag>,
    /// Files that cannot be read: what a power failure leaves of a put that failed.
    torn: Vec<SegmentId>,
}

/// What lies on a unit.
///
/// # Errors
/// If a file cannot be read.
pub fn kept_slots(machine: &Machine, unit: usize) -> Check<Kept> {
    let mut kept = Kept::default();
    let (_, unit_now) = &machine.units[unit];
    let segments = unit_now.list().map_err(text)?;
    let disk = machine.unit_disk(unit);
    let mut files = disk.files_under(&machine.unit_path(unit).join("segments"));
    // What a crash left of a replacement is removed in time.
    files.retain(|(path, _)| !path.to_string_lossy().contains(".draft-"));
    if files.len() != segments.len() {
        return Err(format!(
            "unit {unit} has {} files and {} segments",
            files.len(),
            segments.len()
        ));
    }
    for (path, length) in files {
        let bytes = read_file(&*disk, &path, length)?;
        let Ok((header, entries)) = format::parse(&bytes) else {
            let id = |segment: &SegmentId| path.ends_with(segment.to_string());
            kept.torn.extend(segments.iter().find(|it| id(it)));
            continue;
        };
        for (slot, entry) in (0_u16..).zip(entries) {
            match entry.state {
                format::SlotState::Kept => {
                    kept.slots
                        .insert(Location::new(header.segment, Slot(slot)), entry.tag);
                }
                format::SlotState::Unknown => {
                    kept.slots
                        .insert(Location::new(header.segment, Slot(slot)), [0xff; 16]);
                }
                _ => {}
            }
        }
    }
    Ok(kept)
}

fn read_file(disk: &dyn Disk, path: &Path, length: u64) -> Check<Vec<u8>> {
    let mut bytes = vec![0; length.min(64 << 10) as usize];
    let file = disk.open(path, OpenMode::Read).map_err(text)?;
    file.read_at(&mut bytes, 0).map_err(text)?;
    Ok(bytes)
}

/// Every use of a nonce that was ever seen, and the tag that came of it.
#[derive(Default)]
pub struct Nonces {
    seen: HashMap<(Lineage, u64), Tag>,
}

impl Nonces {
    /// Takes note of a use.
    ///
    /// # Errors
    /// If the nonce was used for something else.
    pub fn note(&mut self, lineage: Lineage, sequence: Sequence, tag: Tag) -> Check {
        match self.seen.insert((lineage, sequence.bits()), tag) {
            Some(before) if before != tag => {
                Err(format!("nonce {sequence:?} of {lineage} was used twice"))
            }
            _ => Ok(()),
        }
    }

    /// Looks at a version record.
    ///
    /// # Errors
    /// As [`Nonces::note`].
    pub fn note_record(&mut self, version: &StoredVersion) -> Check {
        let sequence = version.record[..8].try_into().expect("eight bytes");
        let sequence = Sequence::from_bits(u64::from_le_bytes(sequence));
        let tag = version.record[8..24].try_into().expect("sixteen bytes");
        self.note(version.lineage, sequence, tag)
    }

    /// Looks at every record in a journal, also those of earlier laps.
    ///
    /// # Errors
    /// As [`Nonces::note`].
    pub fn note_journal(&mut self, disk: &dyn Disk, path: &Path, keys: &[LineageKey]) -> Check {
        let Ok(file) = disk.open(path, OpenMode::Read) else {
            return Ok(());
        };
        let length = file.length().map_err(text)?;
        let mut page = [0; journal::HEADER_BYTES];
        for at in (0..length).step_by(journal::HEADER_BYTES) {
            if file.read_at(&mut page, at).is_err() || !page.starts_with(b"SCRJREC1") {
                continue;
            }
            let Ok(header) = journal::Header::decode(&page) else {
                continue;
            };
            for (index, entry) in header.entries.iter().enumerate() {
                if let journal::Entry::Data { tag, .. } = entry {
                    let sequence = Sequence::from_bits(header.first.bits() + index as u64);
                    self.note(lineage_of(keys, sequence), sequence, *tag)?;
                }
            }
        }
        Ok(())
    }
}

/// The copysets, by their numbers.
struct Sets(BTreeMap<CopysetId, Copyset>);

impl Sets {
    fn of(machine: &Machine) -> Self {
        let sets = machine.catalog.members.copysets().into_iter();
        Self(sets.map(|set| (set.id, set)).collect())
    }

    /// Units that hold a segment, in order.
    fn members(&self, segment: SegmentId) -> &[UnitId] {
        let set = self.0.get(&segment.copyset());
        set.map_or(&[], |set| &set.members)
    }

    /// How they hold it.
    fn layout(&self, segment: SegmentId) -> Layout {
        let set = self.0.get(&segment.copyset());
        Layout::new(set.and_then(Copyset::erasure))
    }
}

/// Which of its copyset's members a unit is.
fn place_of(sets: &Sets, unit: UnitId, segment: SegmentId) -> Option<usize> {
    let mut members = sets.members(segment).iter();
    members.position(|member| *member == unit)
}

/// Which of a segment's slots a unit keeps there; `None` if it is parity.
fn in_segment(sets: &Sets, unit: UnitId, kept: Location) -> Option<Location> {
    let layout = sets.layout(kept.segment());
    if layout.erasure().is_none() {
        return Some(kept);
    }
    let (place, data) = (place_of(sets, unit, kept.segment())?, layout.row_slots());
    let slot = u32::from(kept.slot().0) * data + place as u32;
    let is_data = (place as u32) < data;
    is_data.then(|| Location::new(kept.segment(), Slot(slot as u16)))
}

/// Compares what units keep with what `versions` name.
///
/// Every copy of every slot must be there, but of segments of which the catalog was told
/// that they are degraded, since a unit was away while they were put.
///
/// Of segments that some unit had when it was put back to an earlier state (`ghosts`)
/// what was freed or deleted since may be there, and a file that a crash had cut short.
///
/// # Errors
/// What is kept and not named, or named and not kept.
pub fn compare(
    machine: &Machine,
    versions: &[Walked],
    nonces: &mut Nonces,
    ghosts: &BTreeSet<SegmentId>,
) -> Check {
    let mut named: BTreeMap<Location, (Lineage, Sequence)> = BTreeMap::new();
    for version in versions {
        for entry in version.entries() {
            let sealed = (version.lineage_of(entry.sequence), entry.sequence);
            if let Some(other) = named.insert(entry.location, sealed)
                && other != sealed
            {
                return Err(format!("{:?} is named with two sequences", entry.location));
            }
        }
    }
    let mut copies: BTreeMap<Location, usize> =
        named.keys().map(|location| (*location, 0)).collect();
    let gathered: BTreeSet<Location> = machine
        .catalog
        .memory
        .dead()
        .segments()
        .flat_map(|(segment, slots)| {
            slots
                .into_iter()
                .map(move |slot| Location::new(segment, slot))
        })
        .collect();
    let degraded = machine.catalog.memory.degraded();
    let sets = Sets::of(machine);
    for (number, (unit, _)) in machine.units.iter().enumerate() {
        if machine.removed.contains(&number) {
            continue;
        }
        let Kept { slots: kept, torn } = kept_slots(machine, number)?;
        let was_degraded = machine.catalog.members.was_degraded();
        let is_known =
            |segment: &&SegmentId| was_degraded.contains(segment) || ghosts.contains(segment);
        if let Some(segment) = torn.iter().find(|segment| !is_known(segment)) {
            return Err(format!(
                "unit {number} cannot read {segment}, and nobody was told"
            ));
        }
        for (location, tag) in &kept {
            let Some(location) = in_segment(&sets, *unit, *location) else {
                continue;
            };
            // An empty one takes room until its segment goes.
            if *tag == [0; 16] {
                continue;
            }
            let Some((lineage, sequence)) = named.get(&location) else {
                if gathered.contains(&location) || ghosts.contains(&location.segment()) {
                    continue;
                }
                return Err(format!(
                    "unit {number} keeps {location:?}, which no version names"
                ));
            };
            nonces.note(*lineage, *sequence, *tag)?;
        }
        for (location, copies) in &mut copies {
            let Some(place) = place_of(&sets, *unit, location.segment()) else {
                continue;
            };
            let layout = sets.layout(location.segment());
            let home = layout.home(location.slot());
            let data = layout.row_slots() as usize;
            // On its own member, and with those that have its row's parity.
            let is_there = home
                .place
                .is_none_or(|home| place == usize::from(home) || place >= data);
            if !is_there {
                continue;
            }
            if kept.contains_key(&Location::new(location.segment(), home.slot)) {
                *copies += 1;
            } else if !degraded.contains_key(&location.segment()) {
                return Err(format!("unit {number} has lost {location:?}"));
            }
        }
    }
    for (location, copies) in copies {
        let segment = location.segment();
        if copies == 0 {
            return Err(format!("no unit keeps {location:?}, which a version names"));
        }
        let erasure = sets.layout(segment).erasure();
        let wanted = match erasure {
            Some(erasure) => 1 + usize::from(erasure.parity()),
            None => sets.members(segment).len(),
        };
        if copies < wanted && !degraded.contains_key(&segment) {
            return Err(format!(
                "{location:?} has {copies} copies, and nobody was told"
            ));
        }
    }
    Ok(())
}
