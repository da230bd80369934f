//! The entry point for fuzzers: a hostile header.

use world::simulated::SimulatedRandom;

use super::binary::{BINARY_BYTES, CHECKSUM, Copy, HEADER_BYTES, checksum};
use super::kdf::{ITERATIONS_MAX, Kdf, LANES_MAX, MEMORY_KIB_MAX};
use super::split::SPLIT_BYTES;
use super::{DATA_OFFSET, Header, Step};

/// The length of the part of a binary header that has fields, in bytes.
const FIXED_BYTES: usize = 512;

/// The length of the disk's beginning that holds the header, in bytes.
const DISK_BYTES: usize = 64 << 10;

/// Reads a header that is made of `data`: a byte that chooses how, the first 512 bytes of a copy,
/// and its JSON.
///
/// It checks that a header that is accepted is within all bounds, and is the same after it was
/// written again. No key is derived, which would take as long as the header says.
pub fn fuzz_header(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else {
        return;
    };
    // The data as it is.
    check(data);
    // The data with valid checksums, as an attacker who can write the disk makes it.
    let mut copy = vec![0; BINARY_BYTES];
    let fixed = data.len().min(FIXED_BYTES);
    copy[..fixed].copy_from_slice(&data[..fixed]);
    copy.extend(&data[fixed..]);
    let said = u64::from_be_bytes(copy[8..16].try_into().expect("8 bytes"));
    let header_bytes = match HEADER_BYTES.contains(&said) {
        true => said.min(DISK_BYTES as u64 / 2) as usize,
        false => HEADER_BYTES[0] as usize,
    };
    copy.resize(header_bytes, 0);
    let mut disk = Vec::new();
    for (number, which) in [Copy::First, Copy::Second].into_iter().enumerate() {
        let mut own = copy.clone();
        if how & 1 << number != 0 {
            own[..6].copy_from_slice(which.magic());
            own[256..264].copy_from_slice(&which.offset(header_bytes as u64).to_be_bytes());
        }
        if number == 1 && how & 4 != 0 {
            own[23] = own[23].wrapping_add(1);
        }
        own[CHECKSUM].fill(0);
        let sum = checksum(&own);
        own[CHECKSUM][..sum.len()].copy_from_slice(&sum);
        disk.extend(own);
    }
    check(&disk);
}

fn check(disk: &[u8]) {
    let _ = Header::is_being_formatted(disk);
    let Ok((header, _)) = Header::read(disk) else {
        return;
    };
    let layout = header.layout();
    assert!(layout.area.end <= DATA_OFFSET);
    for slot in &layout.slots {
        assert!(slot.area.start >= layout.area.start && slot.area.end <= layout.area.end);
        assert!(slot.area.end - slot.area.start >= SPLIT_BYTES as u64);
        match &slot.kdf {
            Kdf::Pbkdf2 { iterations, .. } => assert!(*iterations <= ITERATIONS_MAX),
            Kdf::Argon2 { cost, .. } => {
                assert!(cost.memory_kib <= MEMORY_KIB_MAX && cost.lanes <= LANES_MAX);
            }
        }
    }
    assert!(header.saved(disk).is_none() || layout.run.is_some());
    let random = SimulatedRandom::new(1);
    let mut again = disk.to_vec();
    let end = 2 * header.binary.header_bytes as usize;
    again.resize(again.len().max(end), 0);
    for copy in [Copy::First, Copy::Second] {
        for step in header.repair(copy, &random) {
            if let Step::Write { offset, bytes } = step {
                again[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
    let (read, repaired) = Header::read(&again).expect("it was just written");
    assert_eq!(repaired, None);
    assert_eq!(read.binary, header.binary);
    assert_eq!(read.layout, header.layout);
}
