//! Changes of a header: formatting, and adding and removing key slots. A disk is marked while it is
//! formatted, so that an interrupted format is recognized as a disk without content.
//!
//! ```text
//!  1. fill     write the key slot's area, which is unused so far    flush
//!  2. first    write the first copy, which names the area           flush
//!  3. second   write the second copy                                flush
//!  4. wipe     overwrite areas that are not used any more           flush
//! ```

use std::ops::Range;

use serde_json::{Value, json};
use world::Random;
use zeroize::Zeroizing;

use super::binary::{BINARY_BYTES, Binary, Copy};
use super::check::{AREA_ALIGNMENT, CIPHER, SLOTS_MAX, VolumeDigest};
use super::header::{Header, UnlockError, layout_of, seal};
use super::kdf::{Argon2Cost, Kdf};
use super::metadata::base64;
use super::parts::journal_of;
use super::reencrypt::put_done;
use super::split::{SPLIT_BYTES, STRIPES};
use super::xts::{KEY_BYTES, KeyBytes};
use super::{DATA_OFFSET, HeaderError, Step};

/// The length of a copy of a new header with its JSON area, in bytes: cryptsetup's default.
const HEADER_BYTES: u64 = 16 << 10;

/// The mark of a disk that is being formatted, in the last sector before the data.
const MARK: &[u8; 32] = b"scree: this disk is formatted...";
const MARK_OFFSET: u64 = DATA_OFFSET - 512;

/// The PBKDF2 iterations of a digest. Few are enough, since a random key cannot be guessed.
const DIGEST_ITERATIONS: u32 = 1000;

/// The length of new salts, in bytes.
const SALT_BYTES: usize = 32;

/// The length of a key slot's area, in bytes.
const SLOT_BYTES: u64 = (SPLIT_BYTES as u64).next_multiple_of(AREA_ALIGNMENT);

/// Why key slots cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// All key slots are used, or there is no space for another one.
    #[error("the header has no space for another key slot")]
    Full,
    /// The key slot does not exist.
    #[error("there is no key slot {0}")]
    NoSuch(u32),
    /// The key slot is the last one, and removing it would make the data unreadable.
    #[error("key slot {0} is the last one that opens the disk")]
    Last(u32),
    /// The cost of the key derivation is invalid.
    #[error("invalid cost of the key derivation: {0}")]
    Cost(String),
    /// A re-encryption is under way. Key slots can be changed after it.
    #[error("the disk is being re-encrypted")]
    Reencrypting,
    /// The key is not that of the data.
    #[error("the key is not that of the disk")]
    Key,
    /// The passphrase opens no key slot.
    #[error(transparent)]
    Unlock(#[from] UnlockError),
    /// The changed header would be refused, or would not fit.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

fn salt(random: &dyn Random) -> Vec<u8> {
    let mut salt = vec![0; SALT_BYTES];
    random.fill(&mut salt);
    salt
}

/// A new random key.
pub(super) fn fresh_key(random: &dyn Random) -> KeyBytes {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    random.fill(&mut *key);
    key
}

/// A random UUID, as text.
fn uuid(random: &dyn Random) -> [u8; 40] {
    let mut bytes = random.u128().to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = [0; 40];
    let hex = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
    let mut at = 0;
    for (number, byte) in bytes.iter().enumerate() {
        if matches!(number, 4 | 6 | 8 | 10) {
            text[at] = b'-';
            at += 1;
        }
        text[at] = hex(byte >> 4);
        text[at + 1] = hex(byte & 15);
        at += 2;
    }
    text
}

pub(super) fn digest_of(key: &KeyBytes, random: &dyn Random) -> Value {
    let made = VolumeDigest::of(0, DIGEST_ITERATIONS, salt(random), key);
    json!({
        "type": "pbkdf2",
        "keyslots": [],
        "segments": [],
        "hash": "sha256",
        "iterations": made.iterations,
        "salt": base64(&made.salt),
        "digest": base64(&made.digest),
    })
}

impl Header {
    /// A header for a disk that has none, its key, and the steps that write it. `sector_bytes` is
    /// 512 or 4096; `done` is the number of re-encryptions that count as done. Takes as long as
    /// `cost` says.
    ///
    /// # Errors
    /// [`SlotError::Cost`], [`SlotError::Header`].
    pub fn format(
        sector_bytes: u32,
        done: u64,
        cost: Argon2Cost,
        passphrase: &[u8],
        random: &dyn Random,
    ) -> Result<(Self, KeyBytes, Vec<Step>), SlotError> {
        let key = fresh_key(random);
        let mut digest = digest_of(&key, random);
        digest["segments"] = json!(["0"]);
        digest["keyslots"] = json!(["0"]);
        let begin = 2 * HEADER_BYTES;
        let (slot, content) = new_slot(begin, cost, passphrase, &key, random)?;
        let mut tree = json!({
            "keyslots": { "0": slot },
            "tokens": {},
            "segments": { "0": {
                "type": "crypt",
                "offset": DATA_OFFSET.to_string(),
                "size": "dynamic",
                "iv_tweak": "0",
                "encryption": CIPHER,
                "sector_size": sector_bytes,
            } },
            "digests": { "0": digest },
            "config": {
                "json_size": (HEADER_BYTES - BINARY_BYTES as u64).to_string(),
                "keyslots_size": (DATA_OFFSET - begin).to_string(),
            },
        });
        if done > 0 {
            put_done(&mut tree, done);
        }
        let mut header = Self {
            layout: layout_of(&tree, HEADER_BYTES)?,
            binary: Binary {
                header_bytes: HEADER_BYTES,
                sequence: 0,
                uuid: uuid(random),
                label: [0; 48],
                subsystem: [0; 48],
                json: String::new(),
            },
            tree: Value::Null,
        };
        let (mark, unmark) = (MARK.to_vec(), vec![0; MARK.len()]);
        let write = |offset, bytes| [Step::Write { offset, bytes }, Step::Flush];
        let mut steps = Vec::new();
        steps.extend(write(MARK_OFFSET, mark));
        steps.extend(write(begin, content));
        steps.extend(header.change(tree, random)?);
        steps.extend(write(MARK_OFFSET, unmark));
        Ok((header, key, steps))
    }

    /// Whether formatting was interrupted, so that the disk has no data yet. `disk` is its
    /// beginning.
    #[must_use]
    pub fn is_being_formatted(disk: &[u8]) -> bool {
        let there = disk.get(MARK_OFFSET as usize..);
        there.is_some_and(|there| there.starts_with(MARK))
    }

    /// Adds a passphrase and returns the number of its slot. This takes as long as `cost` says.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn add_key(
        &mut self,
        key: &KeyBytes,
        cost: Argon2Cost,
        passphrase: &[u8],
        random: &dyn Random,
    ) -> Result<(u32, Vec<Step>), SlotError> {
        self.check_at_rest()?;
        let digest = self.layout.digest;
        let mut digests = self.layout.digests.iter();
        if !digests.any(|one| one.id == digest && one.is_of(key)) {
            return Err(SlotError::Key);
        }
        let mut tree = self.tree.clone();
        let (id, mut steps) = self.put_slot(
            &mut tree,
            &digest.to_string(),
            key,
            cost,
            passphrase,
            random,
        )?;
        steps.extend(self.change(tree, random)?);
        Ok((id, steps))
    }

    /// Removes the passphrase of a slot.
    ///
    /// # Errors
    /// [`SlotError::NoSuch`], [`SlotError::Last`], [`SlotError::Reencrypting`].
    pub fn remove_key(&mut self, id: u32, random: &dyn Random) -> Result<Vec<Step>, SlotError> {
        self.check_at_rest()?;
        let mut slots = self.layout.slots.iter();
        let slot = slots.find(|slot| slot.id == id);
        let slot = slot.ok_or(SlotError::NoSuch(id))?.clone();
        let data = Some(self.layout.digest);
        let is_other = |slot: &super::Slot| slot.id != id && slot.digest == data;
        if slot.digest == data && !self.layout.slots.iter().any(is_other) {
            return Err(SlotError::Last(id));
        }
        let mut tree = self.tree.clone();
        take_slot(&mut tree, id);
        let mut steps = self.change(tree, random)?;
        steps.extend(wipe(slot.area));
        Ok(steps)
    }

    pub(super) fn check_at_rest(&self) -> Result<(), SlotError> {
        match self.layout.run {
            Some(_) => Err(SlotError::Reencrypting),
            None => Ok(()),
        }
    }

    /// Adds a slot to the tree, if there is space for it.
    pub(super) fn put_slot(
        &self,
        tree: &mut Value,
        digest: &str,
        key: &KeyBytes,
        cost: Argon2Cost,
        passphrase: &[u8],
        random: &dyn Random,
    ) -> Result<(u32, Vec<Step>), SlotError> {
        let slots = &self.layout.slots;
        let is_free = |id: &u32| slots.iter().all(|slot| slot.id != *id);
        let id = (0..SLOTS_MAX as u32).find(is_free);
        let id = id.ok_or(SlotError::Full)?;
        let offset = self.free_area().ok_or(SlotError::Full)?;
        let (slot, bytes) = new_slot(offset, cost, passphrase, key, random)?;
        tree["keyslots"][id.to_string()] = slot;
        if let Some(named) = tree["digests"][digest]["keyslots"].as_array_mut() {
            named.push(json!(id.to_string()));
        }
        Ok((id, vec![Step::Write { offset, bytes }, Step::Flush]))
    }

    /// The positions where a slot may be.
    fn free_area(&self) -> Option<u64> {
        let mut taken: Vec<&Range<u64>> = self.layout.slots.iter().map(|slot| &slot.area).collect();
        taken.sort_by_key(|area| area.start);
        let mut begin = self.layout.area.start;
        for area in taken {
            if begin + SLOT_BYTES <= area.start {
                return Some(begin);
            }
            begin = area.end;
        }
        // What is left is for a journal.
        let end = journal_of(&self.layout.area).start;
        (begin + SLOT_BYTES <= end).then_some(begin)
    }

    /// Replaces the JSON tree, which is checked as when a header is read.
    pub(super) fn change(
        &mut self,
        tree: Value,
        random: &dyn Random,
    ) -> Result<Vec<Step>, HeaderError> {
        let layout = layout_of(&tree, self.binary.header_bytes)?;
        let text = tree.to_string();
        // A 0 comes after it.
        let room = self.binary.header_bytes as usize - BINARY_BYTES;
        if text.len() >= room {
            return Err(HeaderError::Refused {
                part: "text".to_owned(),
                reason: format!("it has {} bytes, and there is room for {room}", text.len()),
            });
        }
        let sequence = self.binary.sequence.checked_add(1);
        self.binary.sequence = sequence.ok_or(HeaderError::Refused {
            part: "sequence".to_owned(),
            reason: "there is none after it".to_owned(),
        })?;
        self.layout = layout;
        self.tree = tree;
        self.binary.json = text;
        Ok(vec![
            self.step(Copy::First, random),
            Step::Flush,
            self.step(Copy::Second, random),
            Step::Flush,
        ])
    }
}

/// Removes a slot and all references to it from the tree.
pub(super) fn take_slot(tree: &mut Value, id: u32) {
    let id = id.to_string();
    if let Some(slots) = tree["keyslots"].as_object_mut() {
        slots.remove(&id);
    }
    for part in ["digests", "tokens"] {
        let named = tree[part].as_object_mut().into_iter();
        for one in named.flat_map(|objects| objects.values_mut()) {
            if let Some(slots) = one.get_mut("keyslots").and_then(Value::as_array_mut) {
                slots.retain(|named| *named != json!(id));
            }
        }
    }
}

/// The steps that overwrite the area of a removed slot.
pub(super) fn wipe(area: Range<u64>) -> [Step; 2] {
    let bytes = vec![0; (area.end - area.start) as usize];
    let offset = area.start;
    [Step::Write { offset, bytes }, Step::Flush]
}

fn new_slot(
    offset: u64,
    cost: Argon2Cost,
    passphrase: &[u8],
    key: &KeyBytes,
    random: &dyn Random,
) -> Result<(Value, Vec<u8>), SlotError> {
    let salt = salt(random);
    let slot = json!({
        "type": "luks2",
        "key_size": KEY_BYTES,
        "af": { "type": "luks1", "stripes": STRIPES, "hash": "sha256" },
        "area": {
            "type": "raw",
            "offset": offset.to_string(),
            "size": SLOT_BYTES.to_string(),
            "encryption": CIPHER,
            "key_size": KEY_BYTES,
        },
        "kdf": {
            "type": "argon2id",
            "time": cost.passes,
            "memory": cost.memory_kib,
            "cpus": cost.lanes,
            "salt": base64(&salt),
        },
    });
    let kdf = Kdf::Argon2 {
        is_id: true,
        cost,
        salt,
    };
    kdf.check().map_err(SlotError::Cost)?;
    Ok((slot, seal(&kdf, passphrase, key, random)))
}
