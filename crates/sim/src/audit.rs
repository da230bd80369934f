//! The audit: walks the maps itself, without an open volume, and compares the slots that kept
//! versions name with those that units hold. It also checks that no nonce was used twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use base::{BlockIndex, CopysetId, Lineage, Location, SegmentId, Sequence, Slot, UnitId};
use catalog::{Copyset, LineageKey, StoredVersion};
use unit::Tag;
use unit_folder::format;
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
pub struct WalkedVersion {
    /// The entry of each block that is not a hole.
    pub blocks: BTreeMap<u64, Entry>,
    /// The entries of map and tail pages.
    pub pages: Vec<Entry>,
    keyring: Arc<Keyring>,
    keys: Vec<LineageKey>,
    slot_bytes: u32,
}

impl WalkedVersion {
    /// The entries of all slots that the version names.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.blocks.values().chain(&self.pages).copied()
    }

    /// The lineage whose key sealed this sequence.
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

/// Walks the whole map of a version.
///
/// # Errors
/// The first page that cannot be read.
pub fn walk(machine: &Machine, version: &StoredVersion) -> Check<WalkedVersion> {
    use catalog::Catalog as _;
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
    let mut walked = WalkedVersion {
        blocks: BTreeMap::new(),
        pages: record.tail,
        keyring,
        keys,
        slot_bytes,
    };
    walk_tree(&mut pages, &record.root, &mut walked)?;
    for zero in overlay.zeroes() {
        let zeroed: Vec<u64> = walked.blocks.range(zero).map(|(block, _)| *block).collect();
        zeroed.iter().for_each(|block| {
            walked.blocks.remove(block);
        });
    }
    // A tree entry that the tail overwrites stays in its page, but is no block's any more.
    walked.blocks.extend(overlay.blocks());
    Ok(walked)
}

fn walk_tree(pages: &mut StoredPages, root: &Root, walked: &mut WalkedVersion) -> Check {
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

/// Reads the content of a version.
///
/// # Errors
/// The first block that cannot be read.
pub fn read_version(machine: &Machine, walked: &WalkedVersion) -> Check<Blocks> {
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

/// The content of a unit.
#[derive(Default)]
pub struct UnitContent {
    /// The slots that are not freed, by the unit's own numbers.
    slots: BTreeMap<Location, Tag>,
    /// Segments with an unreadable file: leftovers of a failed put and a power failure.
    torn: Vec<SegmentId>,
}

/// Reads the content of a unit from its files.
///
/// # Errors
/// The first file that cannot be read.
pub fn unit_content(machine: &Machine, unit: usize) -> Check<UnitContent> {
    let mut content = UnitContent::default();
    let (_, unit_now) = &machine.units[unit];
    let segments = unit_now.list().map_err(text)?;
    let disk = machine.unit_disk(unit);
    let mut files = disk.files_under(&machine.unit_path(unit).join("segments"));
    // Drafts that a crash has left are removed later.
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
            content.torn.extend(segments.iter().find(|it| id(it)));
            continue;
        };
        for (slot, entry) in (0_u16..).zip(entries) {
            match entry.state {
                format::SlotState::Kept => {
                    content
                        .slots
                        .insert(Location::new(header.segment, Slot(slot)), entry.tag);
                }
                format::SlotState::Unknown => {
                    content
                        .slots
                        .insert(Location::new(header.segment, Slot(slot)), [0xff; 16]);
                }
                _ => {}
            }
        }
    }
    Ok(content)
}

fn read_file(disk: &dyn Disk, path: &Path, length: u64) -> Check<Vec<u8>> {
    let mut bytes = vec![0; length.min(64 << 10) as usize];
    let file = disk.open(path, OpenMode::Read).map_err(text)?;
    file.read_at(&mut bytes, 0).map_err(text)?;
    Ok(bytes)
}

/// The nonces that were used so far, each with the tag that it was used for.
#[derive(Default)]
pub struct Nonces {
    seen: HashMap<(Lineage, u64), Tag>,
}

impl Nonces {
    /// Records the use of a nonce.
    ///
    /// # Errors
    /// An earlier use of the nonce for another content.
    pub fn note(&mut self, lineage: Lineage, sequence: Sequence, tag: Tag) -> Check {
        match self.seen.insert((lineage, sequence.bits()), tag) {
            Some(before) if before != tag => {
                Err(format!("nonce {sequence:?} of {lineage} was used twice"))
            }
            _ => Ok(()),
        }
    }

    /// Records the nonce of a version record.
    ///
    /// # Errors
    /// As [`Nonces::note`].
    pub fn note_record(&mut self, version: &StoredVersion) -> Check {
        let sequence = version.record[..8].try_into().expect("eight bytes");
        let sequence = Sequence::from_bits(u64::from_le_bytes(sequence));
        let tag = version.record[8..24].try_into().expect("sixteen bytes");
        self.note(version.lineage, sequence, tag)
    }

    /// Records the nonces of all records in a journal, also those of earlier laps.
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

/// The current copysets, by id.
struct Copysets(BTreeMap<CopysetId, Copyset>);

impl Copysets {
    fn of(machine: &Machine) -> Self {
        let sets = machine.catalog.members.copysets().into_iter();
        Self(sets.map(|set| (set.id, set)).collect())
    }

    /// The members of a segment's copyset, in order.
    fn members(&self, segment: SegmentId) -> &[UnitId] {
        let set = self.0.get(&segment.copyset());
        set.map_or(&[], |set| &set.members)
    }

    /// The layout of a segment.
    fn layout(&self, segment: SegmentId) -> Layout {
        let set = self.0.get(&segment.copyset());
        Layout::new(set.and_then(Copyset::erasure))
    }
}

/// A unit's place in the copyset of a segment; `None` if it is not a member.
fn place_of(copysets: &Copysets, unit: UnitId, segment: SegmentId) -> Option<usize> {
    let mut members = copysets.members(segment).iter();
    members.position(|member| *member == unit)
}

/// The location, within its segment, of a slot that a unit keeps; `None` for parity.
fn in_segment(copysets: &Copysets, unit: UnitId, kept: Location) -> Option<Location> {
    let layout = copysets.layout(kept.segment());
    if layout.erasure().is_none() {
        return Some(kept);
    }
    let (place, data) = (
        place_of(copysets, unit, kept.segment())?,
        layout.row_slots(),
    );
    let slot = u32::from(kept.slot().0) * data + place as u32;
    let is_data = (place as u32) < data;
    is_data.then(|| Location::new(kept.segment(), Slot(slot as u16)))
}

/// Compares the slots that units keep with those that `versions` name.
///
/// Every copy of every named slot must be there, except of segments that the catalog lists
/// as degraded, because a unit was unavailable during their put. Other slots must not be
/// there, except of segments that `reappeared` on a unit that was rolled back: these may
/// also have a truncated file.
///
/// # Errors
/// The first slot that is kept and not named, or named and not kept.
pub fn check_slots(
    machine: &Machine,
    versions: &[WalkedVersion],
    nonces: &mut Nonces,
    reappeared: &BTreeSet<SegmentId>,
) -> Check {
    let named = named_slots(versions)?;
    let mut comparison = Comparison {
        copies: named.keys().map(|location| (*location, 0)).collect(),
        named,
        gathered: gathered_slots(machine),
        degraded: machine.catalog.memory.degraded().into_keys().collect(),
        was_degraded: machine.catalog.members.was_degraded(),
        copysets: Copysets::of(machine),
        reappeared,
    };
    for (number, (id, _)) in machine.units.iter().enumerate() {
        if machine.removed.contains(&number) {
            continue;
        }
        let unit = ComparedUnit {
            number,
            id: *id,
            content: unit_content(machine, number)?,
        };
        comparison.check_torn(&unit)?;
        comparison.check_kept(&unit, nonces)?;
        comparison.count_copies(&unit)?;
    }
    comparison.check_copies()
}

/// The slots that versions name, with what is sealed in each.
fn named_slots(versions: &[WalkedVersion]) -> Check<BTreeMap<Location, (Lineage, Sequence)>> {
    let mut named = BTreeMap::new();
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
    Ok(named)
}

/// Dead slots that wait in the catalog until their segment is worth reclaiming.
fn gathered_slots(machine: &Machine) -> BTreeSet<Location> {
    let dead = machine.catalog.memory.dead();
    let slots = dead.segments().flat_map(|(segment, slots)| {
        slots
            .into_iter()
            .map(move |slot| Location::new(segment, slot))
    });
    slots.collect()
}

/// A unit and its content.
struct ComparedUnit {
    number: usize,
    id: UnitId,
    content: UnitContent,
}

/// A comparison of units with versions.
struct Comparison<'a> {
    named: BTreeMap<Location, (Lineage, Sequence)>,
    /// The number of copies found of each named slot; with parity, of members that have the
    /// slot or its parity.
    copies: BTreeMap<Location, usize>,
    gathered: BTreeSet<Location>,
    /// The segments that are degraded now.
    degraded: BTreeSet<SegmentId>,
    /// The segments that were ever degraded.
    was_degraded: BTreeSet<SegmentId>,
    copysets: Copysets,
    reappeared: &'a BTreeSet<SegmentId>,
}

impl Comparison<'_> {
    /// Checks that unreadable files belong to segments whose put has failed.
    fn check_torn(&self, unit: &ComparedUnit) -> Check {
        let mut torn = unit.content.torn.iter();
        let is_known = |segment: &&SegmentId| {
            self.was_degraded.contains(segment) || self.reappeared.contains(segment)
        };
        match torn.find(|segment| !is_known(segment)) {
            None => Ok(()),
            Some(segment) => Err(format!(
                "unit {} cannot read {segment}, which is not degraded",
                unit.number
            )),
        }
    }

    /// Checks that the slots of a unit are named or wait to be freed.
    fn check_kept(&self, unit: &ComparedUnit, nonces: &mut Nonces) -> Check {
        for (location, tag) in &unit.content.slots {
            let Some(location) = in_segment(&self.copysets, unit.id, *location) else {
                continue;
            };
            // An empty slot stays until its segment is deleted.
            if *tag == [0; 16] {
                continue;
            }
            match self.named.get(&location) {
                Some((lineage, sequence)) => nonces.note(*lineage, *sequence, *tag)?,
                None if self.gathered.contains(&location)
                    || self.reappeared.contains(&location.segment()) => {}
                None => {
                    return Err(format!(
                        "unit {} keeps {location:?}, which no version names",
                        unit.number
                    ));
                }
            }
        }
        Ok(())
    }

    /// Counts the copies of named slots on a unit.
    fn count_copies(&mut self, unit: &ComparedUnit) -> Check {
        for (location, copies) in &mut self.copies {
            let segment = location.segment();
            let Some(place) = place_of(&self.copysets, unit.id, segment) else {
                continue;
            };
            let layout = self.copysets.layout(segment);
            let home = layout.home(location.slot());
            let data = layout.row_slots() as usize;
            // The slot is on its own member; the parity of its row on the parity members.
            let is_expected = home
                .member_index
                .is_none_or(|home| place == usize::from(home) || place >= data);
            if !is_expected {
                continue;
            }
            let own = Location::new(segment, home.slot);
            if unit.content.slots.contains_key(&own) {
                *copies += 1;
            } else if !self.degraded.contains(&segment) {
                return Err(format!("unit {} has lost {location:?}", unit.number));
            }
        }
        Ok(())
    }

    /// Checks that every named slot has all its copies, unless its segment is degraded.
    fn check_copies(&self) -> Check {
        for (location, copies) in &self.copies {
            let segment = location.segment();
            if *copies == 0 {
                return Err(format!("no unit keeps {location:?}, which a version names"));
            }
            let required = match self.copysets.layout(segment).erasure() {
                Some(erasure) => 1 + usize::from(erasure.parity()),
                None => self.copysets.members(segment).len(),
            };
            if *copies < required && !self.degraded.contains(&segment) {
                return Err(format!(
                    "{location:?} has {copies} of {required} copies, and its segment is not degraded"
                ));
            }
        }
        Ok(())
    }
}
