//! Data keys, and the key that wraps them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base::Lineage;
use catalog::{LeaseSalt, LineageKey, WrappedKey};
use world::Random;
use zeroize::Zeroizing;

use super::Sealer;

/// Why a key could not be unwrapped.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KeyError {
    /// The wrapped key does not open: another wrapping key wrapped it, or it
    /// was altered. Retrying is of no use.
    #[error(
        "the key of {lineage} does not open with its wrapping key: it was wrapped by another key, \
         or altered"
    )]
    Unwrap {
        /// The lineage of the key.
        lineage: Lineage,
    },
    /// The wrapping key is not available, so the wrapped one is unknown. Retrying
    /// may help.
    #[error("the wrapping key of {lineage} cannot be used")]
    Unavailable {
        /// The lineage of the key to wrap or unwrap.
        lineage: Lineage,
        /// The cause.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The volume has no key.
    #[error("the volume has no key")]
    Missing,
    /// A sealed volume without any lease: nothing was ever sealed.
    #[error("the volume was never attached: it has no lease whose key could open it")]
    NeverLeased,
}

/// A lineage's data key: 256 bits from which the keys of its leases are derived. Wiped
/// from memory when dropped, never printed.
pub struct DataKey(Zeroizing<[u8; 32]>);

impl DataKey {
    /// A new random key.
    #[must_use]
    pub fn generate(random: &dyn Random) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        random.fill(&mut *bytes);
        Self(bytes)
    }

    /// The key made of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The key's bytes, for wrapping.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the key that seals writes under lease `epoch`.
    #[must_use]
    pub fn lease_key(&self, epoch: u32, salt: LeaseSalt) -> LeaseKey {
        LeaseKey(self.derive(&salt.0, &[b"scree lease key", &epoch.to_le_bytes()]))
    }

    /// Derives the key of one sealed report.
    pub(super) fn report_key(&self, salt: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        self.derive(salt, &[b"scree report key"])
    }

    /// HKDF-SHA-256.
    fn derive(&self, salt: &[u8], info: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut bytes = Zeroizing::new([0; 32]);
        Salt::new(HKDF_SHA256, salt)
            .extract(self.bytes())
            .expand(info, HKDF_SHA256)
            .and_then(|key| key.fill(&mut *bytes))
            .expect("SHA-256 yields 32 bytes");
        bytes
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DataKey(..)")
    }
}

/// The key that seals what is written under one lease: 256 bits, derived from the data key of the
/// lease's lineage. Wiped from memory when dropped, never printed.
pub struct LeaseKey(Zeroizing<[u8; 32]>);

impl LeaseKey {
    /// The key's bytes, for a cipher.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for LeaseKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LeaseKey(..)")
    }
}

/// The content of a wrapped key. The wrapping key authenticates both variants, so a
/// party that stores wrapped keys can turn neither into the other.
#[derive(Debug)]
pub enum Unwrapped {
    /// The data key.
    Key(DataKey),
    /// There is no data key: the volume is not sealed.
    None,
}

/// Unwraps data keys: a wrapping key in memory, or a service that has one.
///
/// A call may wait for a network or a token: it belongs on a pool thread, never in
/// a volume's loop.
pub trait UnwrapKeys: Send + Sync {
    /// Unwraps a key that was wrapped for `lineage`.
    ///
    /// # Errors
    /// [`KeyError::Unwrap`] if it was not wrapped by this wrapping key for this
    /// lineage, [`KeyError::Unavailable`] if the wrapping key cannot be used.
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError>;
}

impl<T: UnwrapKeys + ?Sized> UnwrapKeys for Arc<T> {
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError> {
        (**self).unwrap_key(lineage, wrapped)
    }
}

/// A wrapping key in memory: from a key file, or derived from a passphrase. It
/// never leaves the host.
///
/// A wrapped key is 12 bytes of nonce, 32 of ciphertext and 16 of tag; without the
/// ciphertext it says that the volume is not sealed.
pub struct WrappingKey(LessSafeKey);

impl WrappingKey {
    /// The key made of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let unbound = UnboundKey::new(&AES_256_GCM, bytes).expect("32 bytes are an AES-256 key");
        Self(LessSafeKey::new(unbound))
    }

    /// Wraps `key` for `lineage`. The nonce is random: a host wraps far fewer
    /// than the 2^32 keys at which that would begin to matter.
    #[must_use]
    pub fn wrap(&self, lineage: Lineage, key: &DataKey, random: &dyn Random) -> WrappedKey {
        let mut nonce = [0; NONCE_LEN];
        random.fill(&mut nonce);
        let mut sealed = key.bytes().to_vec();
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(lineage.as_u128().to_le_bytes()),
                &mut sealed,
            )
            .expect("32 bytes are far below GCM's limit");
        let mut wrapped = nonce.to_vec();
        wrapped.append(&mut sealed);
        WrappedKey(wrapped)
    }

    /// Makes a wrapped key which says that `lineage` is not sealed. Without the
    /// wrapping key, no one can turn a sealed volume into one that is not.
    #[must_use]
    pub fn wrap_none(&self, lineage: Lineage, random: &dyn Random) -> WrappedKey {
        let mut nonce = [0; NONCE_LEN];
        random.fill(&mut nonce);
        let mut wrapped = nonce.to_vec();
        let tag = self
            .0
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(unsealed(lineage)),
                &mut [],
            )
            .expect("an empty text is far below GCM's limit");
        wrapped.extend_from_slice(tag.as_ref());
        WrappedKey(wrapped)
    }

    fn is_wrapped_none(&self, lineage: Lineage, wrapped: &WrappedKey) -> bool {
        let Some((nonce, tag)) = wrapped.0.split_at_checked(NONCE_LEN) else {
            return false;
        };
        let Ok(nonce) = Nonce::try_assume_unique_for_key(nonce) else {
            return false;
        };
        let aad = Aad::from(unsealed(lineage));
        let mut tag = tag.to_vec();
        self.0.open_in_place(nonce, aad, &mut tag).is_ok()
    }

    /// Unwraps a data key.
    ///
    /// # Errors
    /// [`KeyError::Unwrap`].
    pub fn unwrap(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        let failed = || KeyError::Unwrap { lineage };
        let (nonce, sealed) = wrapped.0.split_at_checked(NONCE_LEN).ok_or_else(failed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| failed())?;
        let mut buffer = Zeroizing::new(sealed.to_vec());
        let plain = self
            .0
            .open_in_place(
                nonce,
                Aad::from(lineage.as_u128().to_le_bytes()),
                &mut buffer,
            )
            .map_err(|_| failed())?;
        let bytes: [u8; 32] = (&*plain).try_into().map_err(|_| failed())?;
        Ok(DataKey::from_bytes(bytes))
    }
}

impl UnwrapKeys for WrappingKey {
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError> {
        if self.is_wrapped_none(lineage, wrapped) {
            return Ok(Unwrapped::None);
        }
        self.unwrap(lineage, wrapped).map(Unwrapped::Key)
    }
}

fn unsealed(lineage: Lineage) -> [u8; 24] {
    let mut bytes = *b"----------------unsealed";
    bytes[..16].copy_from_slice(&lineage.as_u128().to_le_bytes());
    bytes
}

impl fmt::Debug for WrappingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WrappingKey(..)")
    }
}

/// The sealers of a volume: one for each lease of its own and of the volumes that
/// it was cloned from. The epoch of a sequence selects the sealer.
pub struct Keyring {
    /// By epoch, newest first. A lineage that is not sealed has one sealer for
    /// all its epochs.
    sealers: Vec<(u32, Sealer)>,
}

impl Keyring {
    /// Unwraps the keys of a volume, its own first. May wait, as `with` may.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn unwrap(
        keys: &[LineageKey],
        with: &(impl UnwrapKeys + ?Sized),
    ) -> Result<Self, KeyError> {
        if keys.is_empty() {
            return Err(KeyError::Missing);
        }
        let mut sealers = Vec::new();
        // A clone does not inherit what its parent's lineage wrote later.
        let mut before = u32::MAX;
        for key in keys {
            let inherited = |(epoch, _): &&(u32, LeaseSalt)| *epoch < before;
            let lineage = key.lineage;
            let wrapped = key.wrapped.as_ref().ok_or(KeyError::Unwrap { lineage })?;
            match with.unwrap_key(lineage, wrapped)? {
                Unwrapped::None => sealers.push((key.epoch_first, Sealer::checksum(lineage))),
                Unwrapped::Key(data_key) => {
                    for (epoch, salt) in key.salts.iter().rev().filter(inherited) {
                        let lease_key = data_key.lease_key(*epoch, *salt);
                        sealers.push((*epoch, Sealer::aead(lineage, &lease_key)));
                    }
                }
            }
            before = key.epoch_first;
        }
        if sealers.is_empty() {
            return Err(KeyError::NeverLeased);
        }
        Ok(Self { sealers })
    }

    /// A keyring for a volume without versions: there is nothing to open, and it
    /// must not seal.
    #[must_use]
    pub(crate) fn of_nothing() -> Self {
        let sealer = Sealer::checksum(Lineage::from_u128(0));
        Self {
            sealers: vec![(0, sealer)],
        }
    }

    /// The sealer of this volume's own writes.
    #[must_use]
    pub fn own(&self) -> &Sealer {
        &self.sealers[0].1
    }

    /// The sealer of writes under `epoch`.
    #[must_use]
    pub fn of_epoch(&self, epoch: u32) -> &Sealer {
        let newer = self.sealers.partition_point(|(first, _)| *first > epoch);
        // Nothing opens under an unknown epoch: any sealer finds that the tag does
        // not match.
        &self.sealers[newer.min(self.sealers.len() - 1)].1
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Keyring({} keys)", self.sealers.len())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    struct Counting(std::sync::atomic::AtomicU8);

    impl Random for Counting {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        }
    }

    #[test]
    fn a_wrapped_key_opens_for_its_lineage_and_its_wrapping_key_only() {
        let random = Counting(1.into());
        let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
        let lineage = Lineage::from_u128(5);
        let key = DataKey::generate(&random);
        let wrapped = wrapping_key.wrap(lineage, &key, &random);
        assert_eq!(
            wrapping_key
                .unwrap(lineage, &wrapped)
                .expect("opens")
                .bytes(),
            key.bytes()
        );
        assert!(
            wrapping_key
                .unwrap(Lineage::from_u128(6), &wrapped)
                .is_err()
        );
        assert!(
            WrappingKey::from_bytes(&[2; 32])
                .unwrap(lineage, &wrapped)
                .is_err()
        );
        for length in 0..wrapped.0.len() {
            let short = WrappedKey(wrapped.0[..length].to_vec());
            assert!(
                wrapping_key.unwrap(lineage, &short).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn an_epoch_names_the_key() {
        let random = Counting(1.into());
        let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
        let key = |lineage: u128, epoch_first| LineageKey {
            lineage: Lineage::from_u128(lineage),
            epoch_first,
            wrapped: Some(wrapping_key.wrap_none(Lineage::from_u128(lineage), &random)),
            wrapped_by: None,
            salts: Vec::new(),
        };
        let ring =
            Keyring::unwrap(&[key(30, 7), key(20, 4), key(10, 1)], &wrapping_key).expect("ok");
        let lineage_of = |epoch| ring.of_epoch(epoch).lineage().as_u128();
        assert_eq!(
            [1, 3, 4, 6, 7, 99].map(lineage_of),
            [10, 10, 20, 20, 30, 30]
        );
        assert_eq!(ring.own().lineage().as_u128(), 30);
        // No one without the wrapping key can say that a volume is not sealed.
        let forged = |wrapped| LineageKey {
            wrapped,
            wrapped_by: None,
            ..key(30, 7)
        };
        let others = WrappingKey::from_bytes(&[2; 32]);
        let by_others = others.wrap_none(Lineage::from_u128(30), &random);
        let of_another = key(20, 7).wrapped;
        for wrapped in [None, Some(by_others), of_another] {
            assert!(Keyring::unwrap(&[forged(wrapped)], &wrapping_key).is_err());
        }
    }

    #[test]
    fn each_lease_seals_with_a_key_of_its_own() {
        let random = Counting(1.into());
        let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
        let lineage = Lineage::from_u128(5);
        let wrapped = wrapping_key.wrap(lineage, &DataKey::generate(&random), &random);
        let with = |salts: &[(u32, u8)]| {
            let key = LineageKey {
                lineage,
                epoch_first: 1,
                wrapped: Some(wrapped.clone()),
                wrapped_by: None,
                salts: salts
                    .iter()
                    .map(|(epoch, byte)| (*epoch, LeaseSalt([*byte; 16])))
                    .collect(),
            };
            Keyring::unwrap(&[key], &wrapping_key).expect("it opens")
        };
        let address = crate::seal::Address::data(base::BlockIndex(1));
        let sequence = base::Sequence::new(3, 1).expect("small");
        let seal = |ring: &Keyring| {
            let mut piece = [7; 64];
            let tag = ring.of_epoch(3).seal(address, sequence, &mut piece);
            (piece, tag)
        };
        let opens = |ring: &Keyring, (piece, tag): &([u8; 64], [u8; 16])| {
            let sealer = ring.of_epoch(3);
            let opened = sealer.open(address, sequence, tag, piece, &mut [0; 64]);
            opened.is_ok()
        };
        let first = with(&[(1, 1), (3, 3)]);
        let later = with(&[(1, 1), (3, 3), (4, 4), (9, 9)]);
        // The database was rolled back to before lease 3, which was acquired again.
        let other = with(&[(1, 1), (3, 8)]);
        let sealed = seal(&first);
        assert!(opens(&later, &sealed));
        assert!(!opens(&other, &sealed));
        assert_ne!(seal(&other).0, sealed.0, "same sequence, another key");
        let never = LineageKey {
            lineage,
            epoch_first: 1,
            wrapped: Some(wrapped.clone()),
            wrapped_by: None,
            salts: Vec::new(),
        };
        assert!(matches!(
            Keyring::unwrap(&[never], &wrapping_key),
            Err(KeyError::NeverLeased)
        ));
    }

    /// The data key of all fixtures of sealing.
    #[rustfmt::skip]
    pub(in crate::seal) const DATA_KEY: [u8; 32] = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b,
        0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
        0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
    ];

    /// The salt of the lease whose key seals the fixtures.
    #[rustfmt::skip]
    pub(in crate::seal) const SALT: [u8; 16] = [
        0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab,
        0xac, 0xad, 0xae, 0xaf,
    ];

    /// The key of one lease, byte by byte. It protects the derivation (HKDF-SHA-256, its salt and
    /// its info): with another one, nothing that was ever written opens. The bytes were computed
    /// without this code, from docs/internals/formats.md.
    #[test]
    fn the_fixture_of_a_lease_key_is_derived() {
        #[rustfmt::skip]
        const LEASE_KEY: [u8; 32] = [
            0xde, 0x29, 0xec, 0xd4, 0x4e, 0xea, 0x36, 0x23, 0x3f, 0xbb, 0xbb, 0x48,
            0x1e, 0x9b, 0x17, 0x71, 0x4a, 0xce, 0x7d, 0x42, 0xdb, 0x50, 0x8a, 0xe1,
            0xd0, 0x6c, 0x5d, 0xa8, 0x27, 0x30, 0x27, 0xf2,
        ];
        let key = DataKey::from_bytes(DATA_KEY).lease_key(0x01_0203, LeaseSalt(SALT));
        assert_eq!(key.bytes(), &LEASE_KEY);
    }

    /// A wrapped key, and the mark of a volume that is not sealed, byte by byte. They protect the
    /// order of nonce, ciphertext and tag, and the associated data: with others, no volume of an
    /// existing cluster opens. The bytes were computed without this code, from
    /// docs/internals/formats.md.
    #[test]
    fn the_fixtures_of_wrapped_keys_are_read_and_written() {
        #[rustfmt::skip]
        const WRAPPED: [u8; 60] = [
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c,
            0xfd, 0xfe, 0x6e, 0xac, 0x6e, 0x73, 0xf4, 0xb6, 0x91, 0x50, 0x97, 0x4b,
            0x1a, 0x9f, 0xe9, 0x48, 0x99, 0xf0, 0xdc, 0xa9, 0xd5, 0xaa, 0x21, 0xf1,
            0xc6, 0x3a, 0x0a, 0x66, 0xeb, 0x6d, 0xfb, 0x05, 0x20, 0x6b, 0x15, 0x89,
            0xb0, 0x70, 0x1c, 0xa0, 0x29, 0xe8, 0x87, 0xcb, 0xad, 0x26, 0x7b, 0x33,
        ];
        #[rustfmt::skip]
        const NOT_SEALED: [u8; 28] = [
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c,
            0x12, 0x65, 0x1d, 0x1e, 0x37, 0x13, 0x13, 0x4e, 0xe6, 0x79, 0x6e, 0xfc,
            0xce, 0xc0, 0x7d, 0x26,
        ];
        /// Yields the nonce of the fixtures.
        struct Nonces;

        impl Random for Nonces {
            fn fill(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&WRAPPED[..NONCE_LEN]);
            }
        }

        let wrapping_key = WrappingKey::from_bytes(&[0x11; 32]);
        let lineage = Lineage::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let data_key = DataKey::from_bytes(DATA_KEY);
        assert_eq!(wrapping_key.wrap(lineage, &data_key, &Nonces).0, WRAPPED);
        assert_eq!(wrapping_key.wrap_none(lineage, &Nonces).0, NOT_SEALED);
        let unwrap = |bytes: &[u8]| {
            let unwrapped = wrapping_key.unwrap_key(lineage, &WrappedKey(bytes.to_vec()));
            unwrapped.expect("it opens")
        };
        let unwrapped = unwrap(&WRAPPED);
        assert!(matches!(unwrapped, Unwrapped::Key(key) if key.bytes() == &DATA_KEY));
        assert!(matches!(unwrap(&NOT_SEALED), Unwrapped::None));
    }
}
