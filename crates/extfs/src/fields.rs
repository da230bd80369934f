//! Little-endian fields at fixed offsets.
//!
//! The caller has checked the length of the structure: an offset beyond its end is a bug of the
//! program, and not a fault of the disk.

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

/// A 64-bit number in two fields of 32 bits.
pub(super) fn split64(bytes: &[u8], low: usize, high: usize) -> u64 {
    u64::from(le32(bytes, low)) | u64::from(le32(bytes, high)) << 32
}
