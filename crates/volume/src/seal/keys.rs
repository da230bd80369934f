//! Data keys, and the key that wraps them.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base::Lineage;
use world::Random;
use zeroize::Zeroizing;

use super::Sealer;
use crate::catalog::LineageKey;

/// Why a key could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The wrapped key does not open: another key file or passphrase wrapped
    /// it, or it was altered.
    #[error("the key of {lineage} does not open with this key file or passphrase")]
    Unwrap {
        /// Whose key it is.
        lineage: Lineage,
    },
    /// A volume without any key.
    #[error("the volume has no key")]
    Missing,
}

/// 256 bits that seal one lineage. Wiped from memory when dropped, never
/// printed.
pub struct DataKey(Zeroizing<[u8; 32]>);

impl DataKey {
    /// A new key.
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

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DataKey(..)")
    }
}

/// A data key sealed under a [`KeyEncryptionKey`]: 12 bytes of nonce, 32 of
/// ciphertext, 16 of tag. Fit to be stored anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey(pub Vec<u8>);

/// The key that wraps data keys: from a key file, or derived from a
/// passphrase. It never leaves the host.
pub struct KeyEncryptionKey(LessSafeKey);

impl KeyEncryptionKey {
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

    /// Opens a wrapped key.
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

impl fmt::Debug for KeyEncryptionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeyEncryptionKey(..)")
    }
}

/// The sealers of a volume: its own, and those of the volumes it was cloned
/// from. An epoch says which one.
pub struct Keyring {
    /// Newest first: `sealers[i]` serves epochs from its first one up to the
    /// first one of `sealers[i - 1]`.
    sealers: Vec<(u32, Sealer)>,
}

impl Keyring {
    /// Opens the keys of a volume, its own first. Keys without a wrapped part
    /// belong to volumes that are not sealed.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn unwrap(keys: &[LineageKey], with: &KeyEncryptionKey) -> Result<Self, KeyError> {
        if keys.is_empty() {
            return Err(KeyError::Missing);
        }
        let sealers = keys
            .iter()
            .map(|key| {
                let sealer = match &key.wrapped {
                    Some(wrapped) => Sealer::aead(key.lineage, &with.unwrap(key.lineage, wrapped)?),
                    None => Sealer::checksum(key.lineage),
                };
                Ok((key.epoch_first, sealer))
            })
            .collect::<Result<_, KeyError>>()?;
        Ok(Self { sealers })
    }

    /// The sealer of what this volume writes.
    #[must_use]
    pub fn own(&self) -> &Sealer {
        &self.sealers[0].1
    }

    /// The sealer of what was written under `epoch`.
    #[must_use]
    pub fn of_epoch(&self, epoch: u32) -> &Sealer {
        let found = self.sealers.iter().find(|(first, _)| *first <= epoch);
        // An epoch below the oldest lineage's first opens with no key; any
        // sealer then finds the tag wrong, which is the truth.
        &found.unwrap_or(&self.sealers[self.sealers.len() - 1]).1
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Keyring({} keys)", self.sealers.len())
    }
}

#[cfg(test)]
mod tests {
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
        let wrapping = KeyEncryptionKey::from_bytes(&[1; 32]);
        let lineage = Lineage::from_random(5);
        let key = DataKey::generate(&random);
        let wrapped = wrapping.wrap(lineage, &key, &random);
        assert_eq!(
            wrapping.unwrap(lineage, &wrapped).expect("opens").bytes(),
            key.bytes()
        );
        assert!(wrapping.unwrap(Lineage::from_random(6), &wrapped).is_err());
        assert!(
            KeyEncryptionKey::from_bytes(&[2; 32])
                .unwrap(lineage, &wrapped)
                .is_err()
        );
        for length in 0..wrapped.0.len() {
            let short = WrappedKey(wrapped.0[..length].to_vec());
            assert!(wrapping.unwrap(lineage, &short).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn an_epoch_names_the_key() {
        let key = |lineage: u128, epoch_first| LineageKey {
            lineage: Lineage::from_random(lineage),
            epoch_first,
            wrapped: None,
        };
        let wrapping = KeyEncryptionKey::from_bytes(&[1; 32]);
        let ring = Keyring::unwrap(&[key(30, 7), key(20, 4), key(10, 1)], &wrapping).expect("ok");
        let lineage_of = |epoch| ring.of_epoch(epoch).lineage().as_u128();
        assert_eq!(
            [1, 3, 4, 6, 7, 99].map(lineage_of),
            [10, 10, 20, 20, 30, 30]
        );
        assert_eq!(ring.own().lineage().as_u128(), 30);
    }
}
