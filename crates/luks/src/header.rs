//! [`Header`]: a header that was read and checked, and how passphrases open it.

use serde_json::Value;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::binary::{Binary, Copy};
use super::check::{Layout, Slot, VolumeDigest};
use super::kdf::Kdf;
use super::metadata::Metadata;
use super::split::{SPLIT_BYTES, merge, split};
use super::xts::{KEY_BYTES, KeyBytes, TWEAK_UNIT_BYTES, Xts};
use super::{HeaderError, Step};

/// A header that was read and checked.
#[derive(Debug, Clone)]
pub struct Header {
    pub(super) binary: Binary,
    /// The JSON area as a tree, which keeps what [`Layout`] does not have.
    pub(super) tree: Value,
    pub(super) layout: Layout,
}

/// Why a passphrase does not open a disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnlockError {
    /// The passphrase is wrong, or the key slots are damaged.
    #[error("the passphrase opens none of the {tried} key slots")]
    Wrong {
        /// The number of key slots that were tried.
        tried: usize,
    },
}

/// Checks the JSON tree of a header whose copies have `header_bytes` bytes.
pub(super) fn layout_of(tree: &Value, header_bytes: u64) -> Result<Layout, HeaderError> {
    let metadata: Metadata = serde::Deserialize::deserialize(tree)
        .map_err(|error: serde_json::Error| HeaderError::Json(error.to_string()))?;
    metadata.check(header_bytes)
}

impl Header {
    /// Reads the header from the beginning of a disk: the bytes before [`super::DATA_OFFSET`], or
    /// as many of them as hold the header. Also returns the copy that has to be repaired, if any.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn read(disk: &[u8]) -> Result<(Self, Option<Copy>), HeaderError> {
        let (binary, repair) = Binary::read(disk)?;
        let tree: Value = serde_json::from_str(&binary.json)
            .map_err(|error| HeaderError::Json(error.to_string()))?;
        let layout = layout_of(&tree, binary.header_bytes)?;
        let header = Self {
            binary,
            tree,
            layout,
        };
        Ok((header, repair))
    }

    /// The steps that write one copy again.
    #[must_use]
    pub fn repair(&self, copy: Copy, random: &dyn world::Random) -> Vec<Step> {
        vec![self.step(copy, random), Step::Flush]
    }

    pub(super) fn step(&self, copy: Copy, random: &dyn world::Random) -> Step {
        Step::Write {
            offset: copy.offset(self.binary.header_bytes),
            bytes: self.binary.write(copy, random),
        }
    }

    /// The layout that the header describes.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Derives the key of the data from a passphrase. This takes as long as the costs of the key
    /// slots say. `disk` holds the bytes from which the header was read.
    ///
    /// # Errors
    /// [`UnlockError`].
    pub fn unlock(&self, disk: &[u8], passphrase: &[u8]) -> Result<KeyBytes, UnlockError> {
        self.unlock_digest(disk, passphrase, self.layout.digest)
    }

    /// The key of a digest.
    pub(super) fn unlock_digest(
        &self,
        disk: &[u8],
        passphrase: &[u8],
        digest: u32,
    ) -> Result<KeyBytes, UnlockError> {
        let known = |one: &&VolumeDigest| one.id == digest;
        let expected = self.layout.digests.iter().find(known);
        let slots = self.layout.slots.iter();
        let slots: Vec<&Slot> = slots.filter(|slot| slot.digest == Some(digest)).collect();
        let key = slots.iter().find_map(|slot| {
            let key = slot.open(disk, passphrase)?;
            expected?.is_of(&key).then_some(key)
        });
        key.ok_or(UnlockError::Wrong { tried: slots.len() })
    }
}

impl VolumeDigest {
    /// The digest of a key.
    pub fn of(id: u32, iterations: u32, salt: Vec<u8>, key: &KeyBytes) -> Self {
        let mut digest = vec![0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(&**key, &salt, iterations, &mut digest);
        Self {
            id,
            iterations,
            salt,
            digest,
        }
    }

    /// Whether this is the digest of `key`. The digest is on the disk in the clear, so the time
    /// of the comparison reveals nothing.
    pub fn is_of(&self, key: &KeyBytes) -> bool {
        *self == Self::of(self.id, self.iterations, self.salt.clone(), key)
    }
}

impl Slot {
    /// The key that a passphrase opens, which may be wrong.
    fn open(&self, disk: &[u8], passphrase: &[u8]) -> Option<KeyBytes> {
        let begin = usize::try_from(self.area.start).ok()?;
        let sealed = disk.get(begin..begin.checked_add(SPLIT_BYTES)?)?;
        let mut stripes = Zeroizing::new(sealed.to_vec());
        let own = Xts::new(&self.kdf.derive(passphrase));
        own.decrypt(0, TWEAK_UNIT_BYTES as usize, &mut stripes);
        Some(merge(&stripes))
    }
}

/// The content of a slot's area that holds `key`.
pub(super) fn seal(
    kdf: &Kdf,
    passphrase: &[u8],
    key: &[u8; KEY_BYTES],
    random: &dyn world::Random,
) -> Vec<u8> {
    let own = Xts::new(&kdf.derive(passphrase));
    let mut stripes = split(&Zeroizing::new(*key), random);
    own.encrypt(0, TWEAK_UNIT_BYTES as usize, &mut stripes);
    std::mem::take(&mut *stripes)
}
