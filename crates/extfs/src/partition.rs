//! Partition tables: the parts of a disk that may hold file systems.
//!
//! A GUID partition table is behind an MBR with one entry for the whole disk, so it is looked for
//! first. The logical partitions of an MBR form a chain of tables, one for each.

use base::IoError;

use crate::Source;

/// The length of a sector, in bytes.
const SECTOR_BYTES: u64 = 512;
/// The length of a large sector, in bytes. A GUID partition table may be made for such sectors.
const SECTOR_BYTES_LARGE: u64 = 4096;

/// The maximal number of partitions, and of tables of logical ones, that are read.
const PARTITIONS_MAX: usize = 128;

/// The kind of the MBR's partition that stands for a GUID partition table.
const KIND_PROTECTIVE: u8 = 0xEE;
/// The kinds of extended partitions.
const KINDS_EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];

/// A partition of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// The offset on the disk, in bytes.
    pub offset: u64,
    /// The length, in bytes; at least one sector.
    pub length: u64,
}

impl Partition {
    /// The offset on the disk of a range of the partition, in bytes.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] if the range ends beyond the partition.
    pub fn on_disk(&self, offset: u64, length: u64) -> Result<u64, IoError> {
        let size = self.length;
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(self.offset + offset),
            _ => Err(IoError::OutOfRange {
                offset,
                length,
                size,
            }),
        }
    }
}

/// Reads the partitions of a disk of `disk_bytes`, in the order of their table. The list is empty
/// if the disk has no table; then the whole disk may be a file system.
///
/// # Errors
/// The error of the disk.
pub fn partitions(source: &dyn Source, disk_bytes: u64) -> Result<Vec<Partition>, IoError> {
    let Some(sector) = read(source, 0, disk_bytes)? else {
        return Ok(Vec::new());
    };
    let entries = match entries_of(&sector) {
        Some(entries) => entries,
        None => return Ok(Vec::new()),
    };
    if entries.iter().any(|entry| entry.kind == KIND_PROTECTIVE) {
        for sector_bytes in [SECTOR_BYTES, SECTOR_BYTES_LARGE] {
            if let Some(found) = guid_partitions(source, disk_bytes, sector_bytes)? {
                return Ok(found);
            }
        }
    }
    let mut found = Vec::new();
    // A table without a partition only leads to another table. There may be as many as sectors,
    // so their number is limited.
    let mut tables_left = PARTITIONS_MAX;
    for entry in entries {
        match KINDS_EXTENDED.contains(&entry.kind) {
            true => logical(
                source,
                disk_bytes,
                entry.first,
                &mut tables_left,
                &mut found,
            )?,
            false => found.extend(partition(
                entry.first,
                entry.sectors,
                SECTOR_BYTES,
                disk_bytes,
            )),
        }
    }
    Ok(found)
}

/// An entry of an MBR, in sectors.
#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

fn read(source: &dyn Source, offset: u64, disk_bytes: u64) -> Result<Option<[u8; 512]>, IoError> {
    if offset
        .checked_add(SECTOR_BYTES)
        .is_none_or(|end| end > disk_bytes)
    {
        return Ok(None);
    }
    let mut sector = [0; 512];
    source.read(offset, &mut sector)?;
    Ok(Some(sector))
}

/// The used entries of an MBR; `None` if the sector is not an MBR.
fn entries_of(sector: &[u8; 512]) -> Option<Vec<Entry>> {
    if sector[510..] != [0x55, 0xAA] {
        return None;
    }
    let entries = sector[446..510].chunks_exact(16);
    // The boot sector of a file system without a partition table ends in the same two bytes.
    let is_table = entries.clone().all(|entry| entry[0] & 0x7F == 0);
    let entry = |entry: &[u8]| Entry {
        kind: entry[4],
        first: le32(entry, 8).into(),
        sectors: le32(entry, 12).into(),
    };
    is_table.then(|| entries.map(entry).filter(|entry| entry.kind != 0).collect())
}

/// A partition, truncated at the end of the disk.
fn partition(first: u64, sectors: u64, sector_bytes: u64, disk_bytes: u64) -> Option<Partition> {
    let offset = first
        .checked_mul(sector_bytes)
        .filter(|offset| *offset > 0)?;
    let left = disk_bytes.checked_sub(offset)?;
    let length = sectors.saturating_mul(sector_bytes).min(left);
    (length >= sector_bytes).then_some(Partition { offset, length })
}

/// Adds the logical partitions of the extended partition that begins at sector `extended`. Reads at
/// most `tables_left` tables.
fn logical(
    source: &dyn Source,
    disk_bytes: u64,
    extended: u64,
    tables_left: &mut usize,
    found: &mut Vec<Partition>,
) -> Result<(), IoError> {
    let mut at = extended;
    while found.len() < PARTITIONS_MAX && *tables_left > 0 {
        *tables_left -= 1;
        let Some(sector) = read(source, at.saturating_mul(SECTOR_BYTES), disk_bytes)? else {
            return Ok(());
        };
        let mut next = None;
        for entry in entries_of(&sector).unwrap_or_default() {
            match KINDS_EXTENDED.contains(&entry.kind) {
                // The offset counts from the beginning of the extended partition.
                true => next = Some(extended + entry.first),
                false => {
                    let first = at + entry.first;
                    found.extend(partition(first, entry.sectors, SECTOR_BYTES, disk_bytes));
                }
            }
        }
        // Each table is behind the one before. A chain that leads back would be endless.
        match next.filter(|next| *next > at) {
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// The partitions of a GUID partition table; `None` if there is no valid one.
fn guid_partitions(
    source: &dyn Source,
    disk_bytes: u64,
    sector_bytes: u64,
) -> Result<Option<Vec<Partition>>, IoError> {
    let Some(header) = read(source, sector_bytes, disk_bytes)? else {
        return Ok(None);
    };
    let (entry_bytes, entries) = (le32(&header, 84) as usize, le32(&header, 80) as usize);
    let is_sound = &header[..8] == b"EFI PART"
        && entry_bytes.is_power_of_two()
        && (128..=4096).contains(&entry_bytes);
    if !is_sound {
        return Ok(None);
    }
    let begin = le64(&header, 72).saturating_mul(sector_bytes);
    let mut found = Vec::new();
    for number in 0..entries.min(PARTITIONS_MAX) {
        let offset = begin.saturating_add((number * entry_bytes) as u64);
        // Only the first 48 bytes of an entry are used.
        if offset.checked_add(128).is_none_or(|end| end > disk_bytes) {
            break;
        }
        let mut entry = [0; 128];
        source.read(offset, &mut entry)?;
        if entry[..16] == [0; 16] {
            continue;
        }
        let (first, last) = (le64(&entry, 32), le64(&entry, 40));
        let sectors = last.saturating_sub(first).saturating_add(1);
        if last >= first {
            found.extend(partition(first, sectors, sector_bytes, disk_bytes));
        }
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use world::simulated::SimulatedRandom;

    use super::*;

    struct Disk(Vec<u8>);

    impl Source for Disk {
        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
            let offset = offset as usize;
            out.copy_from_slice(&self.0[offset..offset + out.len()]);
            Ok(())
        }
    }

    const SECTORS: usize = 4096;

    impl Disk {
        fn new() -> Self {
            Self(vec![0; SECTORS * 512])
        }

        fn table(&mut self, sector: usize, entries: &[(u8, u32, u32)]) {
            let begin = sector * 512;
            for (number, (kind, first, sectors)) in entries.iter().enumerate() {
                let entry = &mut self.0[begin + 446 + number * 16..][..16];
                entry[4] = *kind;
                entry[8..12].copy_from_slice(&first.to_le_bytes());
                entry[12..].copy_from_slice(&sectors.to_le_bytes());
            }
            self.0[begin + 510..begin + 512].copy_from_slice(&[0x55, 0xAA]);
        }

        fn guid_table(&mut self, sector_bytes: usize, partitions: &[(u64, u64)]) {
            self.table(0, &[(KIND_PROTECTIVE, 1, u32::MAX)]);
            let header = &mut self.0[sector_bytes..][..512];
            header[..8].copy_from_slice(b"EFI PART");
            header[72..80].copy_from_slice(&2_u64.to_le_bytes());
            header[80..84].copy_from_slice(&128_u32.to_le_bytes());
            header[84..88].copy_from_slice(&128_u32.to_le_bytes());
            for (number, (first, last)) in partitions.iter().enumerate() {
                // Unused entries are between them.
                let entry = &mut self.0[2 * sector_bytes + number * 256..][..128];
                entry[0] = 1;
                entry[32..40].copy_from_slice(&first.to_le_bytes());
                entry[40..48].copy_from_slice(&last.to_le_bytes());
            }
        }

        fn found(&self) -> Vec<(u64, u64)> {
            let found = partitions(self, self.0.len() as u64).expect("read");
            let sectors = |partition: &Partition| (partition.offset / 512, partition.length / 512);
            found.iter().map(sectors).collect()
        }
    }

    #[test]
    fn the_partitions_of_an_mbr_are_found() {
        let mut disk = Disk::new();
        assert_eq!(disk.found(), []);
        disk.table(0, &[(0x83, 64, 100), (0x05, 200, 1000), (0x82, 2000, 9000)]);
        disk.table(200, &[(0x83, 10, 50), (0x05, 100, 200)]);
        disk.table(300, &[(0x83, 20, 60)]);
        let expected = [(64, 100), (210, 50), (320, 60), (2000, 2096)];
        assert_eq!(disk.found(), expected, "the last one ends with the disk");
        // A chain that leads back.
        disk.table(300, &[(0x83, 20, 60), (0x05, 0, 200)]);
        assert_eq!(disk.found(), expected);
    }

    #[test]
    fn a_guid_table_is_found_on_small_and_large_sectors() {
        let mut disk = Disk::new();
        disk.guid_table(512, &[(64, 99), (100, 1000), (3000, u64::MAX)]);
        assert_eq!(disk.found(), [(64, 36), (100, 901), (3000, 1096)]);
        let mut disk = Disk::new();
        disk.guid_table(4096, &[(10, 19)]);
        assert_eq!(disk.found(), [(80, 80)]);
    }

    /// A disk that counts reads.
    struct Counted<'a>(&'a Disk, Cell<usize>);

    impl Source for Counted<'_> {
        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
            self.1.update(|reads| reads + 1);
            self.0.read(offset, out)
        }
    }

    /// Every sector of such a disk was once read for each entry.
    #[test]
    fn the_number_of_tables_without_partitions_is_bounded() {
        let mut disk = Disk::new();
        let extended = [100, 101, 102, 103].map(|first| (0x05, first, 1000));
        disk.table(0, &extended);
        for sector in 100..SECTORS - 1 {
            // The tables lead to each other from every starting point.
            let below = sector as u32 + 1 - 100;
            disk.table(sector, &[(0x05, below, 1)]);
        }
        let counted = Counted(&disk, Cell::new(0));
        let found = partitions(&counted, disk.0.len() as u64).expect("read");
        assert_eq!(found, []);
        assert_eq!(counted.1.get(), 1 + PARTITIONS_MAX);
    }

    #[test]
    fn reading_arbitrary_tables_ends() {
        let mut disk = Disk::new();
        disk.guid_table(512, &[(64, 99), (100, 1000)]);
        let mut other = Disk::new();
        other.table(0, &[(0x83, 64, 100), (0x05, 200, 1000)]);
        other.table(200, &[(0x83, 10, 50), (0x05, 100, 200)]);
        let random = SimulatedRandom::new(1);
        for base in [&disk, &other] {
            for _ in 0..2000 {
                let mut bad = Disk(base.0.clone());
                bad.0
                    .truncate(512 * (1 + random.index(8)) + random.index(3));
                for _ in 0..random.below(30) {
                    let at = random.index(bad.0.len());
                    bad.0[at] = random.next() as u8;
                }
                let found = partitions(&bad, bad.0.len() as u64).expect("read");
                let end = |partition: &Partition| partition.offset + partition.length;
                assert!(found.iter().all(|one| end(one) <= bad.0.len() as u64));
                assert!(found.len() <= 2 * PARTITIONS_MAX);
            }
        }
    }
}
