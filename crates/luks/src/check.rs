//! [`Layout`]: a header that was checked as a whole. [`Metadata`] becomes a layout, or is refused.

use std::ops::Range;

use super::kdf::{Argon2Cost, ITERATIONS_MAX, Kdf, PASSES_KIB_MAX};
use super::metadata::{Digest, Keyslot, Metadata, WrittenKdf, parse};
use super::parts::{Run, journal_of};
use super::split::{SPLIT_BYTES, STRIPES};
use super::xts::KEY_BYTES;
use super::{DATA_OFFSET, HeaderError};

/// The one supported cipher of data and key slots.
pub const CIPHER: &str = "aes-xts-plain64";

/// The alignment of areas, in bytes.
pub const AREA_ALIGNMENT: u64 = 4096;

/// The maximal number of key slots, as in cryptsetup.
pub const SLOTS_MAX: usize = 32;

/// The length of a SHA-256 hash, in bytes.
const DIGEST_BYTES: usize = 32;

/// What a checked header describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The length of a sector that is encrypted as a whole, in bytes: 512 or 4096.
    pub sector_bytes: u32,
    /// The key slots, in the order in which they are tried.
    pub slots: Vec<Slot>,
    /// The digests of volume keys.
    pub(super) digests: Vec<VolumeDigest>,
    /// The digest of the data's key; while the data is re-encrypted, of the old key.
    pub(super) digest: u32,
    /// The number of re-encryptions so far.
    pub done: u64,
    /// A re-encryption is under way.
    pub run: Option<Run>,
    /// Where areas of key slots may be.
    pub(super) area: Range<u64>,
}

/// A key slot, which holds a volume key encrypted with a passphrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The slot's number.
    pub id: u32,
    /// How the slot's key is derived from a passphrase.
    pub kdf: Kdf,
    /// The digest of the key that the slot holds.
    pub(super) digest: Option<u32>,
    /// The slot's area, in bytes of the disk.
    pub(super) area: Range<u64>,
    priority: u64,
}

/// The digest of a volume key: PBKDF2 with SHA-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeDigest {
    pub id: u32,
    pub iterations: u32,
    pub salt: Vec<u8>,
    pub digest: Vec<u8>,
}

pub(super) fn refused<T>(
    part: impl Into<String>,
    reason: impl Into<String>,
) -> Result<T, HeaderError> {
    Err(HeaderError::Refused {
        part: part.into(),
        reason: reason.into(),
    })
}

pub(super) fn id_of(part: &str, id: &str) -> Result<u32, HeaderError> {
    match parse(id).and_then(|id| u32::try_from(id).ok()) {
        Some(number) if number.to_string() == id => Ok(number),
        _ => refused(format!("{part} {id:?}"), "its id is not a number"),
    }
}

pub(super) fn check_cipher(cipher: &str) -> Result<(), String> {
    match cipher {
        CIPHER => Ok(()),
        null if null.contains("cipher_null") => Err(format!("{null} encrypts nothing")),
        other => Err(format!("its cipher is {other}; only {CIPHER} is supported")),
    }
}

/// Checks that a field has the expected value.
pub(super) fn check_word(what: &str, is: &str, expected: &str) -> Result<(), String> {
    match is == expected {
        true => Ok(()),
        false => Err(format!(
            "its {what} is {is:?}; only {expected} is supported"
        )),
    }
}

fn check_key_bytes(bytes: u64) -> Result<(), String> {
    match bytes == KEY_BYTES as u64 {
        true => Ok(()),
        false => Err(format!(
            "its key has {bytes} bytes; only {KEY_BYTES} are supported"
        )),
    }
}

impl Metadata {
    /// Checks the metadata of a header whose copies have `header_bytes` bytes.
    ///
    /// # Errors
    /// [`HeaderError::Refused`] for the first property that is not supported.
    pub fn check(&self, header_bytes: u64) -> Result<Layout, HeaderError> {
        let area = self.check_area(header_bytes)?;
        let digests = self.check_digests()?;
        let mut slots = Vec::new();
        for (id, slot) in &self.keyslots {
            let part = format!("key slot {id}");
            let number = id_of("key slot", id)?;
            let digest = self.digest_of(&part, |digest| digest.keyslots.contains(id))?;
            match slot.check(number, digest, &area) {
                Ok(slot) => slots.push(slot),
                Err(reason) => return refused(part, reason),
            }
        }
        check_slots(&mut slots)?;
        let parts = self.check_parts(&digests)?;
        let journal = journal_of(&area);
        if parts.run.is_some() {
            let is_over = |slot: &&Slot| slot.area.end > journal.start;
            if let Some(slot) = slots.iter().find(is_over) {
                let part = format!("key slot {}", slot.id);
                return refused(part, "it overlaps the journal of the re-encryption");
            }
        }
        Ok(Layout {
            sector_bytes: parts.sector_bytes,
            slots,
            digests,
            digest: parts.digest,
            done: parts.done,
            run: parts.run,
            area,
        })
    }

    fn check_area(&self, header_bytes: u64) -> Result<Range<u64>, HeaderError> {
        let config = &self.config;
        let json_max = header_bytes - super::binary::BINARY_BYTES as u64;
        if config.json_size != json_max {
            return refused(
                "config",
                format!("json_size is {}, not {json_max}", config.json_size),
            );
        }
        let begin = 2 * header_bytes;
        let end = begin.checked_add(config.keyslots_size);
        match end.filter(|end| *end <= DATA_OFFSET && end.is_multiple_of(AREA_ALIGNMENT)) {
            Some(end) => Ok(begin..end),
            None => refused(
                "config",
                format!(
                    "{} bytes of key slots do not lie before the data",
                    config.keyslots_size
                ),
            ),
        }
    }

    fn check_digests(&self) -> Result<Vec<VolumeDigest>, HeaderError> {
        let mut digests = Vec::new();
        if self.digests.len() > SLOTS_MAX {
            return refused("digests", "there are too many");
        }
        for (id, digest) in &self.digests {
            let part = format!("digest {id}");
            let number = id_of("digest", id)?;
            let named = digest.keyslots.iter();
            if let Some(other) = named.clone().find(|id| !self.keyslots.contains_key(*id)) {
                return refused(part, format!("there is no key slot {other}"));
            }
            let mut named = digest.segments.iter();
            if let Some(other) = named.find(|id| !self.segments.contains_key(*id)) {
                return refused(part, format!("there is no segment {other}"));
            }
            match digest.check(number) {
                Ok(digest) => digests.push(digest),
                Err(reason) => return refused(part, reason),
            }
        }
        Ok(digests)
    }

    /// The one digest that matches, if any.
    pub(super) fn digest_of(
        &self,
        part: &str,
        is_meant: impl Fn(&Digest) -> bool,
    ) -> Result<Option<u32>, HeaderError> {
        let mut meant = self.digests.iter().filter(|(_, digest)| is_meant(digest));
        let first = meant.next().map(|(id, _)| id_of("digest", id));
        match meant.next() {
            Some(_) => refused(part, "it has more than one digest"),
            None => first.transpose(),
        }
    }
}

/// Checks the number of key slots, their areas and their costs, and sorts them by priority.
fn check_slots(slots: &mut [Slot]) -> Result<(), HeaderError> {
    if slots.is_empty() || slots.len() > SLOTS_MAX {
        let many = slots.len();
        return refused(
            "key slots",
            format!("there are {many}; 1 to {SLOTS_MAX} are supported"),
        );
    }
    let cost: u64 = slots.iter().map(|slot| slot.kdf.passes_kib()).sum();
    if cost > PASSES_KIB_MAX {
        return refused(
            "key slots",
            format!("trying them costs {cost} passes over a KiB; the maximum is {PASSES_KIB_MAX}"),
        );
    }
    slots.sort_by_key(|slot| slot.area.start);
    for pair in slots.windows(2) {
        if pair[0].area.end > pair[1].area.start {
            let (one, other) = (pair[0].id, pair[1].id);
            return refused(
                format!("key slot {one}"),
                format!("it overlaps key slot {other}"),
            );
        }
    }
    slots.sort_by_key(|slot| (std::cmp::Reverse(slot.priority), slot.id));
    Ok(())
}

impl Keyslot {
    fn check(&self, id: u32, digest: Option<u32>, within: &Range<u64>) -> Result<Slot, String> {
        check_word("type", &self.kind, "luks2")?;
        check_key_bytes(self.key_size)?;
        check_word("splitter", &self.af.kind, "luks1")?;
        check_word("splitter's hash", &self.af.hash, "sha256")?;
        if self.af.stripes != STRIPES as u64 {
            return Err(format!(
                "it has {} stripes; only {STRIPES} are supported",
                self.af.stripes
            ));
        }
        check_word("area", &self.area.kind, "raw")?;
        check_cipher(&self.area.encryption)?;
        check_key_bytes(self.area.key_size)?;
        let begin = self.area.offset;
        let end = begin.checked_add(self.area.size);
        let is_aligned =
            begin.is_multiple_of(AREA_ALIGNMENT) && self.area.size.is_multiple_of(AREA_ALIGNMENT);
        let area = match end {
            Some(end) if is_aligned && begin >= within.start && end <= within.end => begin..end,
            _ => {
                return Err(format!(
                    "its area, bytes {begin}+{}, is not one of {}-{}",
                    self.area.size, within.start, within.end
                ));
            }
        };
        if self.area.size < SPLIT_BYTES as u64 {
            return Err(format!("its area has {} bytes", self.area.size));
        }
        let kdf = self.kdf.check()?;
        Ok(Slot {
            id,
            kdf,
            digest,
            area,
            priority: self.priority.unwrap_or(1),
        })
    }
}

impl WrittenKdf {
    fn check(&self) -> Result<Kdf, String> {
        let kdf = match self {
            Self::Argon2id(written) | Self::Argon2i(written) => Kdf::Argon2 {
                is_id: matches!(self, Self::Argon2id(_)),
                cost: Argon2Cost {
                    memory_kib: written.memory,
                    passes: written.time,
                    lanes: written.cpus,
                },
                salt: written.salt.clone(),
            },
            Self::Pbkdf2 {
                hash,
                iterations,
                salt,
            } => {
                check_word("hash", hash, "sha256")?;
                Kdf::Pbkdf2 {
                    iterations: *iterations,
                    salt: salt.clone(),
                }
            }
        };
        kdf.check()?;
        Ok(kdf)
    }
}

impl Digest {
    fn check(&self, id: u32) -> Result<VolumeDigest, String> {
        check_word("type", &self.kind, "pbkdf2")?;
        check_word("hash", &self.hash, "sha256")?;
        if self.iterations == 0 || self.iterations > ITERATIONS_MAX {
            return Err(format!("it has {} iterations", self.iterations));
        }
        if self.digest.len() != DIGEST_BYTES {
            return Err(format!("it has {} bytes", self.digest.len()));
        }
        Ok(VolumeDigest {
            id,
            iterations: self.iterations,
            salt: self.salt.clone(),
            digest: self.digest.clone(),
        })
    }
}
