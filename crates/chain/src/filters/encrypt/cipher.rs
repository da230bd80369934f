//! [`Cipher`]: encrypts and decrypts the data of a disk, which may be re-encrypted up to a
//! boundary.

use std::ops::Range;

use luks::{TWEAK_UNIT_BYTES, Xts};

/// The keys of the data. While the disk is re-encrypted, data before the boundary has the new key,
/// and data behind it the old one.
pub struct Cipher {
    sector_bytes: usize,
    /// The key of the data that is not re-encrypted.
    key: Xts,
    /// The boundary in bytes, and the key of the data before it.
    new: Option<(u64, Xts)>,
}

impl Cipher {
    pub fn new(sector_bytes: u32, key: Xts, new: Option<(u64, Xts)>) -> Self {
        Self {
            sector_bytes: sector_bytes as usize,
            key,
            new,
        }
    }

    /// The range of whole sectors around a range of bytes within the disk.
    pub fn sectors(&self, range: &Range<u64>) -> Range<u64> {
        let sector = self.sector_bytes as u64;
        range.start / sector * sector..range.end.next_multiple_of(sector)
    }

    /// Encrypts whole sectors in place.
    pub fn encrypt(&self, offset: u64, data: &mut [u8]) {
        self.each_part(offset, data, |key, first, part| {
            key.encrypt(first, self.sector_bytes, part);
        });
    }

    /// Decrypts whole sectors in place.
    pub fn decrypt(&self, offset: u64, data: &mut [u8]) {
        self.each_part(offset, data, |key, first, part| {
            key.decrypt(first, self.sector_bytes, part);
        });
    }

    fn each_part(&self, offset: u64, data: &mut [u8], apply: impl Fn(&Xts, u64, &mut [u8])) {
        let boundary = self.boundary();
        let before = boundary.saturating_sub(offset).min(data.len() as u64);
        let (first, last) = data.split_at_mut(before as usize);
        if let Some((_, new)) = &self.new {
            apply(new, offset / TWEAK_UNIT_BYTES, first);
        }
        apply(&self.key, (offset + before) / TWEAK_UNIT_BYTES, last);
    }

    /// The number of bytes that have the new key, from the beginning of the data.
    pub fn boundary(&self) -> u64 {
        self.new.as_ref().map_or(0, |(boundary, _)| *boundary)
    }

    /// Re-encrypts whole sectors in place, from the old key to the new one.
    pub fn reencrypt(&self, offset: u64, data: &mut [u8]) {
        if let Some((_, new)) = &self.new {
            let first = offset / TWEAK_UNIT_BYTES;
            self.key.decrypt(first, self.sector_bytes, data);
            new.encrypt(first, self.sector_bytes, data);
        }
    }

    /// Moves the boundary, after the data before it was re-encrypted.
    pub fn advance(&mut self, to: u64) {
        if let Some((boundary, _)) = &mut self.new {
            *boundary = to;
        }
    }

    /// Drops the old key, after all data was re-encrypted.
    pub fn finish(&mut self) {
        if let Some((_, new)) = self.new.take() {
            self.key = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xts(byte: u8) -> Xts {
        Xts::new(&[byte; 64])
    }

    #[test]
    fn a_range_across_the_boundary_uses_both_keys() {
        let old = Cipher::new(512, xts(1), None);
        let mut both = Cipher::new(512, xts(1), Some((0, xts(2))));
        let plain: Vec<u8> = (0..8192_u32).map(|at| at as u8).collect();
        let mut data = plain.clone();
        old.encrypt(4096, &mut data);
        // The first half gets the new key.
        both.reencrypt(4096, &mut data[..4096]);
        both.advance(8192);
        let mut read = data.clone();
        both.decrypt(4096, &mut read);
        assert_eq!(read, plain);
        let mut written = plain.clone();
        both.encrypt(4096, &mut written);
        assert_eq!(written, data);
        let mut read = data[..4096].to_vec();
        Cipher::new(512, xts(2), None).decrypt(4096, &mut read);
        assert_eq!(read, plain[..4096]);
        both.reencrypt(8192, &mut data[4096..]);
        both.finish();
        both.decrypt(4096, &mut data);
        assert_eq!(data, plain);
        assert_eq!(both.boundary(), 0);
    }
}
