//! The monitor filter of `watched` on a partition of a disk.

use tempfile::TempDir;

use crate::watched::{Tested, assert_guest_is_monitored, crc32, file_system, tree};
use crate::workload::Workload;

/// A disk with a GPT: partition 1 is empty, and partition 2 has this file system.
fn partitioned(content: &[u8]) -> (Vec<u8>, std::ops::Range<usize>) {
    const SECTOR: usize = 512;
    let first = (2 << 20) / SECTOR;
    let last = first + content.len() / SECTOR - 1;
    let sectors = last + 1 + 2048;
    let mut entries = vec![0; 128 * 128];
    let linux: u128 = 0x0FC6_3DAF_8483_4772_8E79_3D69_D847_7DE4;
    // The first three fields of a GUID are little-endian.
    let mut linux = linux.to_be_bytes();
    linux[..4].reverse();
    linux[4..6].reverse();
    linux[6..8].reverse();
    for (number, (begin, end)) in [(2048, first - 1), (first, last)].into_iter().enumerate() {
        let entry = &mut entries[number * 128..][..128];
        entry[..16].copy_from_slice(&linux);
        entry[16] = number as u8 + 1;
        entry[32..40].copy_from_slice(&(begin as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&(end as u64).to_le_bytes());
    }
    let header = |own: usize, other: usize, at: usize| {
        let mut header = vec![0; SECTOR];
        header[..8].copy_from_slice(b"EFI PART");
        let fields = [
            (8, 0x1_0000),
            (12, 92),
            (80, 128),
            (84, 128),
            (88, crc32(&entries)),
        ];
        for (place, number) in fields {
            header[place..place + 4].copy_from_slice(&number.to_le_bytes());
        }
        let fields = [
            (24, own),
            (32, other),
            (40, 34),
            (48, sectors - 34),
            (72, at),
        ];
        for (place, number) in fields {
            header[place..place + 8].copy_from_slice(&(number as u64).to_le_bytes());
        }
        header[56] = 9;
        let crc = crc32(&header[..92]);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        header
    };
    let mut disk = vec![0; sectors * SECTOR];
    let (backup, copy) = (sectors - 1, sectors - 33);
    let mut put = |sector: usize, bytes: &[u8]| {
        disk[sector * SECTOR..][..bytes.len()].copy_from_slice(bytes);
    };
    put(1, &header(1, backup, 2));
    put(2, &entries);
    put(copy, &entries);
    put(backup, &header(backup, 1, copy));
    put(first, content);
    // The protective MBR: one partition over the whole disk.
    disk[446 + 4] = 0xEE;
    disk[446 + 8] = 1;
    disk[446 + 12..446 + 16].copy_from_slice(&(sectors as u32 - 1).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let begin = first * SECTOR;
    (disk, begin..begin + content.len())
}

#[test]
fn each_operation_in_a_partition_is_reported_with_its_number() {
    let folder = TempDir::new().expect("a folder");
    let tree = tree();
    let block_bytes = 1024;
    let content = file_system(folder.path(), &tree, block_bytes, "ext4");
    let (disk, place) = partitioned(&content);
    let mut workload = Workload::new(2, block_bytes, &tree);
    let mut steps = workload.steps(100, 1);
    steps.extend(workload.steps(10, 5));
    let tested = Tested {
        disk,
        place,
        partition: Some(2),
        block_bytes,
        kind: "ext4",
    };
    assert_guest_is_monitored(&tested, &workload, &steps, &folder);
}
