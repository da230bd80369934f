//! [`Xts`]: AES-XTS (IEEE 1619) of whole sectors, as in `aes-xts-plain64`. Headers and filters use
//! AES-256; measurements of cost also use AES-128.
//!
//! ```text
//!  tweak of a sector   AES(second key, number as 128 bits, little-endian)
//!  block i of it       AES(first key, block ^ tweak·2^i) ^ tweak·2^i       16 bytes
//! ```
//!
//! The number counts units of 512 bytes, whatever the size of a sector is: a sector of 4096 bytes
//! has a number that is a multiple of 8.
//!
//! Invariant: only whole sectors are encrypted and decrypted, so ciphertext stealing is never
//! needed.

use aes::cipher::consts::U16;
use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockCipher, BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes256, Block};
use zeroize::{Zeroize, Zeroizing};

/// The length of a volume key or of the key of a key slot's area, in bytes: two AES keys.
pub const KEY_BYTES: usize = 64;

/// A key in memory, which is wiped when dropped.
pub type KeyBytes = Zeroizing<[u8; KEY_BYTES]>;

/// The unit of sector numbers, in bytes.
pub const TWEAK_UNIT_BYTES: u64 = 512;

/// The length of an AES block, in bytes.
const BLOCK_BYTES: usize = 16;

/// The number of blocks that are given to AES at once: enough to fill its pipeline, and few enough
/// for the first-level cache.
const BLOCKS_AT_ONCE: usize = 32;

/// An XTS key for encryption and decryption.
pub struct Xts<A = Aes256> {
    data: A,
    tweak: A,
}

/// The number of tweaks that are computed at once, for the same reason.
const SECTORS_AT_ONCE: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl Xts {
    /// A key whose first half is for the data and whose second half is for tweaks.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self::of(key)
    }
}

impl<A> Xts<A>
where
    A: KeyInit + BlockCipher + BlockEncrypt<BlockSize = U16> + BlockDecrypt,
{
    /// As [`Xts::new`], for AES with keys of any length.
    ///
    /// # Panics
    /// If the key is not two keys of that AES.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let (data, tweak) = key.split_at(key.len() / 2);
        let schedule = |key| A::new_from_slice(key).expect("half of it is a key");
        Self {
            data: schedule(data),
            tweak: schedule(tweak),
        }
    }

    /// Encrypts whole sectors in place. The first one has the number `first`, in units of
    /// [`TWEAK_UNIT_BYTES`] from the start of what this key encrypts.
    pub fn encrypt(&self, first: u64, sector_bytes: usize, data: &mut [u8]) {
        self.turn(Direction::Encrypt, first, sector_bytes, data);
    }

    /// Decrypts what [`Xts::encrypt`] has encrypted.
    pub fn decrypt(&self, first: u64, sector_bytes: usize, data: &mut [u8]) {
        self.turn(Direction::Decrypt, first, sector_bytes, data);
    }

    fn turn(&self, direction: Direction, first: u64, sector_bytes: usize, data: &mut [u8]) {
        assert_eq!(data.len() % sector_bytes, 0, "sectors are whole");
        let units = sector_bytes as u64 / TWEAK_UNIT_BYTES;
        let mut masks = [0; BLOCKS_AT_ONCE];
        let mut next = first;
        for sectors in data.chunks_mut(SECTORS_AT_ONCE * sector_bytes) {
            let tweaks = self.tweaks_of(next, units);
            next += SECTORS_AT_ONCE as u64 * units;
            for (sector, mut tweak) in sectors.chunks_exact_mut(sector_bytes).zip(tweaks) {
                for blocks in sector.chunks_mut(BLOCKS_AT_ONCE * BLOCK_BYTES) {
                    for mask in &mut masks {
                        *mask = tweak;
                        tweak = doubled(tweak);
                    }
                    mix(blocks, &masks);
                    let (inout, _) = InOutBuf::from(&mut *blocks).into_chunks();
                    match direction {
                        Direction::Encrypt => self.data.encrypt_blocks_inout(inout),
                        Direction::Decrypt => self.data.decrypt_blocks_inout(inout),
                    }
                    mix(blocks, &masks);
                }
            }
        }
        masks.zeroize();
    }

    /// The tweaks of consecutive sectors of `units` units each.
    fn tweaks_of(&self, first: u64, units: u64) -> [u128; SECTORS_AT_ONCE] {
        let number = |at| u128::from(first.wrapping_add(at as u64 * units));
        let mut blocks: [Block; SECTORS_AT_ONCE] =
            std::array::from_fn(|at| Block::from(number(at).to_le_bytes()));
        self.tweak.encrypt_blocks(&mut blocks);
        blocks.map(|block| u128::from_le_bytes(block.into()))
    }
}

/// The product with x in the field of 2^128 elements that XTS uses.
fn doubled(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

fn mix(blocks: &mut [u8], masks: &[u128]) {
    let (blocks, _) = blocks.as_chunks_mut::<BLOCK_BYTES>();
    for (block, mask) in blocks.iter_mut().zip(masks) {
        *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 1619-2007, annex B: the key of vectors 10 to 14, and bytes that count up.
    fn vector_key() -> [u8; KEY_BYTES] {
        let digits = concat!(
            "2718281828459045235360287471352662497757247093699959574966967627",
            "3141592653589793238462643383279502884197169399375105820974944592",
        );
        let mut key = [0; KEY_BYTES];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hex digits");
        }
        key
    }

    fn counting(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| at as u8).collect()
    }

    #[test]
    fn aes_256_xts_matches_the_vectors_of_the_standard() {
        let xts = Xts::new(&vector_key());
        // Vectors 10 to 14: their first and last 16 bytes.
        for (number, begin, end) in [
            (
                0xff,
                0x1c3b_3a10_2f77_0386_e483_6c99_e370_cf9b_u128,
                0xc4f3_6ffd_a9fc_ea70_b9c6_e693_e148_c151_u128,
            ),
            (
                0xffff,
                0x77a3_1251_618a_15e6_b92d_1d66_dffe_7b50,
                0xa4f9_e27b_42af_8100_cb9d_59ce_f964_5803,
            ),
            (
                0xff_ffff,
                0xe387_aaa5_8ba4_83af_a7e8_eb46_9778_317e,
                0x2263_a1ee_f52d_d688_8c30_9f5a_7d71_2826,
            ),
            (
                0xffff_ffff,
                0xbf53_d2da_de78_e822_a4d9_49a9_bc67_66b0,
                0x4c82_f335_abb1_52c4_a934_1137_3aaa_8220,
            ),
            (
                0xff_ffff_ffff,
                0x6449_7e5a_831e_4a93_2c09_be3e_5393_376d,
                0xd609_d273_ad5b_0d59_631c_531f_6a0a_57b9,
            ),
        ] {
            let mut data = counting(512);
            xts.encrypt(number, 512, &mut data);
            assert_eq!(data[..16], begin.to_be_bytes(), "{number:x}");
            assert_eq!(data[496..], end.to_be_bytes(), "{number:x}");
            xts.decrypt(number, 512, &mut data);
            assert_eq!(data, counting(512));
        }
    }

    #[test]
    fn aes_128_xts_matches_the_vectors_of_the_standard() {
        // Vector 1: zeroes under a key of zeroes, in a sector of 32 bytes.
        let xts = Xts::<aes::Aes128>::of(&[0; 32]);
        let mut data = [0; 32];
        xts.encrypt(0, 32, &mut data);
        let first = 0x917c_f69e_bd68_b2ec_9b9f_e9a3_eadd_a692_u128;
        assert_eq!(data[..16], first.to_be_bytes());
        xts.decrypt(0, 32, &mut data);
        assert_eq!(data, [0; 32]);
    }

    #[test]
    fn a_large_sector_has_one_tweak_and_its_number_counts_512_bytes() {
        let xts = Xts::new(&vector_key());
        let mut data = counting(8192);
        xts.encrypt(0, 4096, &mut data);
        let mut second = counting(4096);
        xts.encrypt(8, 4096, &mut second);
        assert_eq!(data[4096..], second);
        // As OpenSSL has it, of data unit number 8.
        assert_eq!(second[..8], 0x2ba7_fe15_26a5_6fbf_u64.to_be_bytes());
        assert_eq!(second[4088..], 0x4a7f_c3fd_7fb7_97e1_u64.to_be_bytes());
        xts.decrypt(0, 4096, &mut data);
        assert_eq!(data, counting(8192));
    }
}
