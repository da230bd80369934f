//! Re-encryption of the data with a new key while the disk is used: its progress in the header, and
//! its journal (docs/internals/encrypt-filter.md).
//!
//! The journal is the end of the key slots area:
//!
//! ```text
//!    0 magic[8]        "SCREEJNL"
//!    8 id[16]          of the re-encryption, as in the header
//!   24 begin           of the zone, in bytes of the data
//!   32 length          of the zone
//!   40 checksum[32]    SHA-256 of the 40 bytes before, and the content
//! 4096 content         of the zone, encrypted with the old key
//! ```
//!
//! Numbers are little-endian.
//!
//! Invariant: a journal is valid if its id and begin are those of the header. Then the zone may
//! have been written in part, and nothing else has been written to it since.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use world::Random;

use super::change::{SlotError, digest_of, fresh_key, take_slot, wipe};
use super::check::{AREA_ALIGNMENT, SLOTS_MAX, Slot};
use super::header::{Header, UnlockError};
use super::kdf::Argon2Cost;
use super::metadata::base64;
use super::parts::{REQUIREMENT, RUN_BYTES, TOKEN, ZONE_BYTES, journal_of};
use super::xts::KeyBytes;
use super::{DATA_OFFSET, HeaderError, Step, TWEAK_UNIT_BYTES};

const MAGIC: &[u8; 8] = b"SCREEJNL";
const NAME: std::ops::Range<usize> = 8..8 + RUN_BYTES;
const SUMMED: usize = 40;
const CHECKSUM: std::ops::Range<usize> = SUMMED..SUMMED + 32;

/// A zone as it was before it was re-encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The offset in the data, in bytes.
    pub begin: u64,
    /// The content, encrypted with the old key.
    pub content: Vec<u8>,
}

fn checksum(head: &[u8], content: &[u8]) -> [u8; 32] {
    let hash = Sha256::new().chain_update(head).chain_update(content);
    hash.finalize().into()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The name of Scree's token, or a free one.
fn token_id(tree: &Value) -> String {
    let tokens = tree["tokens"].as_object();
    let ours = tokens
        .into_iter()
        .flatten()
        .find(|(_, token)| token["type"] == TOKEN);
    match ours {
        Some((id, _)) => id.clone(),
        None => free_id(&tree["tokens"]),
    }
}

fn free_id(objects: &Value) -> String {
    let mut ids = (0..=SLOTS_MAX).map(|id| id.to_string());
    let free = ids.find(|id| objects.get(id).is_none());
    free.unwrap_or_else(|| SLOTS_MAX.to_string())
}

/// Sets the number of re-encryptions in the token.
pub(super) fn put_done(tree: &mut Value, done: u64) {
    let id = token_id(tree);
    tree["tokens"][id] = json!({ "type": TOKEN, "keyslots": [], "done": done.to_string() });
}

impl Header {
    /// Begins a re-encryption with a new key, which encrypts no data yet. Only this passphrase
    /// opens the new key, since other ones are not known here. This takes as long as `cost` says.
    ///
    /// # Errors
    /// [`SlotError`] if a re-encryption is under way, or if there is no space for its key or its
    /// journal.
    pub fn begin_reencryption(
        &mut self,
        to: u64,
        cost: Argon2Cost,
        passphrase: &[u8],
        random: &dyn Random,
    ) -> Result<(KeyBytes, Vec<Step>), SlotError> {
        self.check_at_rest()?;
        let journal = journal_of(&self.layout.area);
        let is_over = |slot: &Slot| slot.area.end > journal.start;
        if journal.start < self.layout.area.start || self.layout.slots.iter().any(is_over) {
            return Err(SlotError::Full);
        }
        let key = fresh_key(random);
        let mut tree = self.tree.clone();
        let digest = free_id(&tree["digests"]);
        tree["digests"][&digest] = digest_of(&key, random);
        let (_, mut steps) = self.put_slot(&mut tree, &digest, &key, cost, passphrase, random)?;
        put_done(&mut tree, self.layout.done);
        let token = token_id(&tree);
        let mut name = [0; RUN_BYTES];
        random.fill(&mut name);
        tree["tokens"][token]["run"] = json!({
            "to": to.to_string(),
            "digest": digest,
            "id": base64(&name),
        });
        tree["config"]["requirements"] = json!({ "mandatory": [REQUIREMENT] });
        steps.extend(self.change(tree, random)?);
        Ok((key, steps))
    }

    /// The old and the new key of the re-encryption that is under way.
    ///
    /// # Errors
    /// [`UnlockError::Wrong`], also if no re-encryption is under way.
    pub fn unlock_both(
        &self,
        disk: &[u8],
        passphrase: &[u8],
    ) -> Result<(KeyBytes, KeyBytes), UnlockError> {
        let run = self.layout.run.as_ref();
        let run = run.ok_or(UnlockError::Wrong { tried: 0 })?;
        let old = self.unlock_digest(disk, passphrase, self.layout.digest)?;
        let new = self.unlock_digest(disk, passphrase, run.digest)?;
        Ok((old, new))
    }

    /// The saved content of the zone at the boundary, if that may have been written in part.
    /// `disk` holds the bytes from which the header was read.
    #[must_use]
    pub fn saved(&self, disk: &[u8]) -> Option<Saved> {
        let run = self.layout.run.as_ref()?;
        let journal = journal_of(&self.layout.area);
        let begin = usize::try_from(journal.start).ok()?;
        let end = usize::try_from(journal.end).ok()?;
        let (head, content) = disk
            .get(begin..end)?
            .split_at_checked(AREA_ALIGNMENT as usize)?;
        let length = u64_at(head, 32);
        let is_zone = length > 0 && length <= ZONE_BYTES && length.is_multiple_of(AREA_ALIGNMENT);
        if !is_zone || !head.starts_with(MAGIC) || head[NAME] != run.id {
            return None;
        }
        let content = content.get(..length as usize)?;
        let is_whole = head[CHECKSUM] == checksum(&head[..SUMMED], content);
        let begin = u64_at(head, 24);
        (is_whole && begin == run.boundary).then(|| Saved {
            begin,
            content: content.to_vec(),
        })
    }

    /// The steps that save a zone of at most [`ZONE_BYTES`] at the boundary of the re-encryption
    /// that is under way.
    #[must_use]
    pub fn save(&self, content: &[u8]) -> Vec<Step> {
        let Some(run) = &self.layout.run else {
            return Vec::new();
        };
        let mut bytes = vec![0; AREA_ALIGNMENT as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[NAME].copy_from_slice(&run.id);
        bytes[24..32].copy_from_slice(&run.boundary.to_le_bytes());
        bytes[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
        let checksum = checksum(&bytes[..SUMMED], content);
        bytes[CHECKSUM].copy_from_slice(&checksum);
        bytes.extend_from_slice(content);
        let offset = journal_of(&self.layout.area).start;
        vec![Step::Write { offset, bytes }, Step::Flush]
    }

    /// Moves the boundary: the data before it, a multiple of 4 KiB, has the new key.
    ///
    /// # Errors
    /// If no re-encryption is under way, or the JSON does not fit.
    pub fn advance(
        &mut self,
        boundary: u64,
        random: &dyn Random,
    ) -> Result<Vec<Step>, HeaderError> {
        let mut tree = self.tree.clone();
        let (old, new) = self.both()?;
        let segments = &mut tree["segments"];
        let mut last = segments["0"].clone();
        if let Some(second) = segments.get("1") {
            last = second.clone();
        }
        let mut first = last.clone();
        first["offset"] = json!(DATA_OFFSET.to_string());
        first["size"] = json!(boundary.to_string());
        first["iv_tweak"] = json!("0");
        last["offset"] = json!((DATA_OFFSET + boundary).to_string());
        last["iv_tweak"] = json!((boundary / TWEAK_UNIT_BYTES).to_string());
        *segments = json!({ "0": first, "1": last });
        tree["digests"][new]["segments"] = json!(["0"]);
        tree["digests"][old]["segments"] = json!(["1"]);
        self.change(tree, random)
    }

    /// Ends the re-encryption when all data has the new key, and removes the old key with its key
    /// slots.
    ///
    /// # Errors
    /// If no re-encryption is under way.
    pub fn finish(&mut self, random: &dyn Random) -> Result<Vec<Step>, HeaderError> {
        let mut tree = self.tree.clone();
        let (old, new) = self.both()?;
        let done = self.layout.run.as_ref().map_or(0, |run| run.to);
        let mut segment = tree["segments"]["0"].clone();
        segment["offset"] = json!(DATA_OFFSET.to_string());
        segment["size"] = json!("dynamic");
        segment["iv_tweak"] = json!("0");
        tree["segments"] = json!({ "0": segment });
        let old_digest = Some(self.layout.digest);
        let slots = self.layout.slots.iter();
        let gone: Vec<Slot> = slots
            .filter(|slot| slot.digest == old_digest)
            .cloned()
            .collect();
        gone.iter().for_each(|slot| take_slot(&mut tree, slot.id));
        if let Some(digests) = tree["digests"].as_object_mut() {
            digests.remove(&old);
        }
        tree["digests"][new]["segments"] = json!(["0"]);
        put_done(&mut tree, done);
        if let Some(config) = tree["config"].as_object_mut() {
            config.remove("requirements");
        }
        let journal = journal_of(&self.layout.area);
        let mut steps = self.change(tree, random)?;
        let areas = gone.into_iter().map(|slot| slot.area);
        steps.extend(areas.chain([journal]).flat_map(wipe));
        Ok(steps)
    }

    /// The steps that wipe what is left of an old key after the end of a re-encryption was
    /// interrupted. `disk` holds the bytes from which the header was read.
    #[must_use]
    pub fn wipe_remains(&self, disk: &[u8]) -> Vec<Step> {
        if self.layout.done == 0 || self.layout.run.is_some() {
            return Vec::new();
        }
        let area = self.layout.area.clone();
        let blocks = area.step_by(AREA_ALIGNMENT as usize);
        let is_used = |block: &u64| {
            let mut slots = self.layout.slots.iter();
            slots.any(|slot| slot.area.contains(block))
        };
        let is_empty = |block: &u64| {
            let there = disk.get(*block as usize..(*block + AREA_ALIGNMENT) as usize);
            there.is_none_or(|there| there.iter().all(|byte| *byte == 0))
        };
        let remains = blocks.filter(|block| !is_used(block) && !is_empty(block));
        let mut steps: Vec<Step> = remains
            .map(|offset| Step::Write {
                offset,
                bytes: vec![0; AREA_ALIGNMENT as usize],
            })
            .collect();
        if !steps.is_empty() {
            steps.push(Step::Flush);
        }
        steps
    }

    /// The digests of the old and the new key.
    fn both(&self) -> Result<(String, String), HeaderError> {
        match &self.layout.run {
            Some(run) => Ok((self.layout.digest.to_string(), run.digest.to_string())),
            None => Err(HeaderError::Refused {
                part: "tokens".to_owned(),
                reason: "no re-encryption is under way".to_owned(),
            }),
        }
    }
}
