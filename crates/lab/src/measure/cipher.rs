//! Ciphers by themselves: E and D without a place.

use crate::cost::{Both, Linear};
use aes::{Aes128, Aes256};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use luks::Xts;
use serde::{Deserialize, Serialize};

use crate::measure::{Account, MeasureError, Meter, Stop};

/// A cipher, with the length of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// Authenticated, 128 bits; volumes are sealed with 256 bits.
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    /// Authenticated, 256 bits: the cipher of volumes.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    /// Disk encryption with two keys of 128 bits.
    #[serde(rename = "aes-128-xts")]
    Aes128Xts,
    /// Disk encryption with two keys of 256 bits, as in LUKS and filters.
    #[serde(rename = "aes-256-xts")]
    Aes256Xts,
    /// Former disk encryption, 128 bits.
    #[serde(rename = "aes-128-cbc")]
    Aes128Cbc,
    /// Former disk encryption, 256 bits.
    #[serde(rename = "aes-256-cbc")]
    Aes256Cbc,
    /// Authenticated, for processors without AES.
    #[serde(rename = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Aes128Gcm,
        Self::Aes256Gcm,
        Self::Aes128Xts,
        Self::Aes256Xts,
        Self::Aes128Cbc,
        Self::Aes256Cbc,
        Self::ChaCha20Poly1305,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::Aes128Xts => "aes-128-xts",
            Self::Aes256Xts => "aes-256-xts",
            Self::Aes128Cbc => "aes-128-cbc",
            Self::Aes256Cbc => "aes-256-cbc",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Whether two ciphers differ only in the length of their keys: then the difference of their
    /// costs is the same at each place. Other ciphers have different implementations at each place.
    #[must_use]
    pub fn is_of_one_mode(self, other: Self) -> bool {
        let mode = |name: &'static str| {
            let keys = ["aes-128-", "aes-256-"];
            keys.iter()
                .find_map(|key| name.strip_prefix(key))
                .unwrap_or(name)
        };
        mode(self.name()) == mode(other.name())
    }
}

impl std::fmt::Display for Cipher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The speed of a cipher on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CipherSpeed {
    /// The cipher.
    pub cipher: Cipher,
    /// D of reads and E of writes; an operation is a separately encrypted block.
    pub cpu: Both<Linear>,
    /// The measurements: bytes of a block, seconds to decrypt and to encrypt one.
    pub blocks: Vec<(u64, Both<f64>)>,
}

/// The measured block sizes, in bytes.
const BLOCKS: [usize; 4] = [512, 4096, 65_536, 1 << 20];

impl CipherSpeed {
    /// Measures a cipher, for `each_s` seconds per block size and direction.
    ///
    /// # Errors
    /// If CPU time cannot be read, or the measurement is stopped.
    pub fn measure(cipher: Cipher, each_s: f64, stop: &Stop) -> Result<Self, MeasureError> {
        let mut machine = BlockCipher::new(cipher);
        let mut blocks = Vec::new();
        for bytes in BLOCKS {
            let write = machine.seconds(bytes, true, (each_s, stop))?;
            let read = machine.seconds(bytes, false, (each_s, stop))?;
            blocks.push((bytes as u64, Both { read, write }));
        }
        let line = |way: fn(&Both<f64>) -> f64| {
            let points = blocks
                .iter()
                .map(|(bytes, both)| (*bytes as f64, way(both)));
            Linear::through(&points.collect::<Vec<_>>())
        };
        let cpu = Both {
            read: line(|both| both.read),
            write: line(|both| both.write),
        };
        Ok(Self {
            cipher,
            cpu,
            blocks,
        })
    }
}

/// The key does not matter: no result is stored.
const KEY: [u8; 64] = {
    let mut key = [7; 64];
    // XTS requires two different keys.
    key[63] = 8;
    key
};

/// Encrypts and decrypts blocks in place.
enum BlockCipher {
    Sealed(LessSafeKey),
    Xts128(Box<Xts<Aes128>>),
    Xts256(Box<Xts<Aes256>>),
    Cbc(Box<(PaddedBlockEncryptingKey, PaddedBlockDecryptingKey)>),
}

/// Ciphers fail only for keys and lengths that do not fit.
const FITS: &str = "the lengths of keys and blocks are valid";

impl BlockCipher {
    fn new(cipher: Cipher) -> Self {
        let sealed = |algorithm: &'static aead::Algorithm| {
            let key = UnboundKey::new(algorithm, &KEY[..algorithm.key_len()]);
            Self::Sealed(LessSafeKey::new(key.expect(FITS)))
        };
        let cbc = |algorithm, bytes: usize| {
            let key = || UnboundCipherKey::new(algorithm, &KEY[..bytes]).expect(FITS);
            let encrypts = PaddedBlockEncryptingKey::cbc_pkcs7(key()).expect(FITS);
            let decrypts = PaddedBlockDecryptingKey::cbc_pkcs7(key()).expect(FITS);
            Self::Cbc(Box::new((encrypts, decrypts)))
        };
        match cipher {
            Cipher::Aes128Gcm => sealed(&aead::AES_128_GCM),
            Cipher::Aes256Gcm => sealed(&aead::AES_256_GCM),
            Cipher::ChaCha20Poly1305 => sealed(&aead::CHACHA20_POLY1305),
            Cipher::Aes128Xts => Self::Xts128(Box::new(Xts::of(&KEY[32..]))),
            Cipher::Aes256Xts => Self::Xts256(Box::new(Xts::of(&KEY))),
            Cipher::Aes128Cbc => cbc(&AES_128, 16),
            Cipher::Aes256Cbc => cbc(&AES_256, 32),
        }
    }

    fn encrypt(&self, block: &mut Vec<u8>, number: u64) {
        match self {
            Self::Sealed(key) => {
                let tag = key.seal_in_place_separate_tag(nonce(number), Aad::empty(), block);
                block.extend_from_slice(tag.expect(FITS).as_ref());
            }
            Self::Xts128(xts) => xts.encrypt(number, block.len(), block),
            Self::Xts256(xts) => xts.encrypt(number, block.len(), block),
            Self::Cbc(keys) => {
                let context = EncryptionContext::Iv128(FixedLength::from(iv(number)));
                keys.0.less_safe_encrypt(block, context).expect(FITS);
            }
        }
    }

    fn decrypt(&self, block: &mut [u8], number: u64) {
        match self {
            Self::Sealed(key) => {
                let plain = key.open_in_place(nonce(number), Aad::empty(), block);
                plain.expect("a sealed block");
            }
            Self::Xts128(xts) => xts.decrypt(number, block.len(), block),
            Self::Xts256(xts) => xts.decrypt(number, block.len(), block),
            Self::Cbc(keys) => {
                let context = DecryptionContext::Iv128(FixedLength::from(iv(number)));
                keys.1.decrypt(block, context).expect("an encrypted block");
            }
        }
    }

    /// CPU seconds to encrypt or decrypt one block of `bytes` bytes.
    fn seconds(
        &mut self,
        bytes: usize,
        is_write: bool,
        (each_s, stop): (f64, &Stop),
    ) -> Result<f64, MeasureError> {
        let meter = Meter::new(vec![Account::Own]);
        let plain = vec![3_u8; bytes];
        let mut sealed = plain.clone();
        self.encrypt(&mut sealed, 0);
        let begins_as = if is_write { &plain } else { &sealed };
        let mut block = Vec::with_capacity(bytes + 64);
        let (mut count, mut spent_s) = (0_u64, 0.0);
        // The first half warms up.
        for _ in 0..2 {
            (count, spent_s) = (0, 0.0);
            let before = meter.read()?;
            while spent_s < each_s / 2.0 {
                stop.check()?;
                for _ in 0..(1 << 20) / bytes.max(4096) {
                    block.clear();
                    block.extend_from_slice(begins_as);
                    match is_write {
                        true => self.encrypt(&mut block, 0),
                        false => self.decrypt(&mut block, 0),
                    }
                    std::hint::black_box(&block);
                    count += 1;
                }
                spent_s = (meter.read()? - before).as_secs_f64();
            }
        }
        // Copying the block does not count.
        let before = meter.read()?;
        for _ in 0..count {
            block.clear();
            block.extend_from_slice(begins_as);
            std::hint::black_box(&block);
        }
        let copied_s = (meter.read()? - before).as_secs_f64();
        Ok((spent_s - copied_s).max(spent_s * 0.01) / count as f64)
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn iv(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use crate::cost::Flow;

    use super::*;

    #[test]
    fn an_encrypted_block_is_decrypted_again() {
        for cipher in Cipher::ALL {
            let turn = BlockCipher::new(cipher);
            let plain: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
            let mut block = plain.clone();
            turn.encrypt(&mut block, 5);
            assert_ne!(block[..4096], plain[..], "{cipher}");
            turn.decrypt(&mut block, 5);
            assert_eq!(block[..4096], plain[..], "{cipher}");
            let speed = CipherSpeed::measure(cipher, 0.002, &Stop::default()).expect("measured");
            // In such a short time the two parts are imprecise, but each takes some time.
            let block = Flow::of(4096, 4096);
            for line in [speed.cpu.read, speed.cpu.write] {
                assert!(line.is_valid() && line.of(block) > 0.0, "{speed:?}");
            }
        }
    }

    #[test]
    fn a_mode_has_keys_of_both_lengths() {
        let alike = |one: Cipher| {
            Cipher::ALL
                .iter()
                .filter(move |other| one.is_of_one_mode(**other))
        };
        assert_eq!(alike(Cipher::Aes128Xts).count(), 2);
        assert_eq!(alike(Cipher::ChaCha20Poly1305).count(), 1);
        assert!(!Cipher::Aes256Cbc.is_of_one_mode(Cipher::Aes256Gcm));
    }

    #[test]
    fn names_are_the_same_in_files() {
        for cipher in Cipher::ALL {
            let json = serde_json::to_string(&cipher).expect("a name");
            assert_eq!(json, format!("\"{cipher}\""));
        }
    }
}
