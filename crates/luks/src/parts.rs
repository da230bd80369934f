//! Which key is for which part of the data: one for all of it; or, while it is re-encrypted,
//! the new key before a boundary and the old one behind it.
//!
//! ```text
//!            ┌──────── segment 0 ────────┬──────── segment 1 ────────────────▶
//!  data      │ new key                   │ old key                 "dynamic"
//!            └───────────────────────────┴───────────────────────────────────▶
//!            0                           boundary
//! ```
//!
//! At boundary 0 there is one segment, of the old key. The token `scree-reencryption` says
//! how often it was done, and of one that is under way which it is, its new key's digest,
//! and the name that its journal has. With it the header has the mandatory requirement
//! [`REQUIREMENT`], so nobody uses the disk who does not know of the journal.

use std::ops::Range;

use serde::Deserialize;

use super::check::{AREA_ALIGNMENT, VolumeDigest, check_cipher, check_word, id_of, refused};
use super::metadata::{Metadata, Segment, Size, bytes, number, parse};
use super::{DATA_OFFSET, HeaderError, TWEAK_UNIT_BYTES};

/// Of a re-encryption that is under way.
pub const REQUIREMENT: &str = "scree-reencrypt-v1";

/// Our token's type.
pub const TOKEN: &str = "scree-reencryption";

/// So much of the data is re-encrypted at once, in bytes: little enough that what is asked
/// of it meanwhile can wait, and enough that four flushes of it cost little.
pub const ZONE_BYTES: u64 = 1 << 20;

/// The journal: what it is of, and a zone.
pub const JOURNAL_BYTES: u64 = AREA_ALIGNMENT + ZONE_BYTES;

/// Of the name of a re-encryption, in bytes.
pub const RUN_BYTES: usize = 16;

/// A re-encryption that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What counts as done when it has ended ([`super::Layout::done`]).
    pub to: u64,
    /// The data before it has the new key, in bytes of the data; whole blocks of 4 KiB.
    pub boundary: u64,
    /// Its name, which its journal has too.
    pub(super) id: [u8; RUN_BYTES],
    /// Of the new key.
    pub(super) digest: u32,
}

/// What the segments and tokens mean.
pub(super) struct Parts {
    pub sector_bytes: u32,
    /// Of the key of what is not re-encrypted.
    pub digest: u32,
    pub done: u64,
    pub run: Option<Run>,
}

#[derive(Debug, Deserialize)]
struct Token {
    #[serde(deserialize_with = "number")]
    done: u64,
    run: Option<WrittenRun>,
}

#[derive(Debug, Deserialize)]
struct WrittenRun {
    #[serde(deserialize_with = "number")]
    to: u64,
    digest: String,
    #[serde(deserialize_with = "bytes")]
    id: Vec<u8>,
}

/// Where the journal lies, in an area of key slots.
pub(super) fn journal_of(area: &Range<u64>) -> Range<u64> {
    area.end.saturating_sub(JOURNAL_BYTES)..area.end
}

impl Metadata {
    pub(super) fn check_parts(&self, digests: &[VolumeDigest]) -> Result<Parts, HeaderError> {
        let mandatory = &self.config.requirements.mandatory;
        if let Some(other) = mandatory.iter().find(|one| *one != REQUIREMENT) {
            return refused(
                "requirements",
                format!("who uses it has to know {other:?}, which nobody does here"),
            );
        }
        let token = self.token()?;
        let done = token.as_ref().map_or(0, |token| token.done);
        let run = token.and_then(|token| token.run);
        if run.is_some() == mandatory.is_empty() {
            return refused(
                "requirements",
                "they do not say what the token of re-encryptions says",
            );
        }
        let mut segments = Vec::new();
        for (at, (id, segment)) in (0_u32..).zip(&self.segments) {
            let part = format!("segment {id}");
            if id_of("segment", id)? != at {
                return refused(part, "its name is not the next one");
            }
            match self.digest_of(&part, |digest| digest.segments.contains(id))? {
                Some(digest) => segments.push((part, segment, digest)),
                None => return refused(part, "no digest tells its key"),
            }
        }
        let check = |part: &str, segment: &Segment, begin, size| {
            segment
                .check(begin, size)
                .or_else(|reason| refused(part, reason))
        };
        let (boundary, (part, last, digest)) = match (&segments[..], &run) {
            ([last], _) => (0, last),
            ([(part, first, digest), last], Some(run)) => {
                let Size::Bytes(boundary) = first.size else {
                    return refused(part, "something comes after its end");
                };
                if boundary == 0 || !boundary.is_multiple_of(AREA_ALIGNMENT) {
                    return refused(part, format!("it has {boundary} bytes"));
                }
                let sector_bytes = check(part, first, 0, first.size)?;
                if u64::from(sector_bytes) != last.1.sector_size {
                    return refused(part, "its sectors are not those of the other one");
                }
                if digest.to_string() != run.digest {
                    return refused(part, "its key is not the new one");
                }
                (boundary, last)
            }
            (many, _) => {
                let many = many.len();
                return refused("segments", format!("there are {many}, and one is taken"));
            }
        };
        let sector_bytes = check(part, last, boundary, Size::Dynamic)?;
        let run = run.map(|run| run.check(boundary, *digest, digests));
        Ok(Parts {
            sector_bytes,
            digest: *digest,
            done,
            run: run.transpose()?,
        })
    }

    /// Ours.
    fn token(&self) -> Result<Option<Token>, HeaderError> {
        let is_ours = |token: &&serde_json::Value| token["type"] == TOKEN;
        let mut ours = self.tokens.values().filter(is_ours);
        let token = ours.next().map(Token::deserialize).transpose();
        match (token, ours.next()) {
            (Ok(token), None) => Ok(token),
            (Ok(_), Some(_)) => refused("tokens", format!("two are of type {TOKEN}")),
            (Err(error), _) => refused("tokens", error.to_string()),
        }
    }
}

impl WrittenRun {
    fn check(self, boundary: u64, old: u32, digests: &[VolumeDigest]) -> Result<Run, HeaderError> {
        let named = parse(&self.digest).and_then(|id| u32::try_from(id).ok());
        let known = named.filter(|id| digests.iter().any(|digest| digest.id == *id));
        let Some(digest) = known.filter(|id| *id != old) else {
            let reason = format!("digest {} is not that of a new key", self.digest);
            return refused("tokens", reason);
        };
        match self.id.try_into() {
            Ok(id) => Ok(Run {
                to: self.to,
                boundary,
                id,
                digest,
            }),
            Err(_) => refused("tokens", "a re-encryption's name has 16 bytes"),
        }
    }
}

impl Segment {
    /// Whether it is the one that begins so many bytes into the data; the size of its
    /// sectors.
    fn check(&self, begin: u64, size: Size) -> Result<u32, String> {
        check_word("type", &self.kind, "crypt")?;
        check_cipher(&self.encryption)?;
        if self.integrity.is_some() {
            return Err("it has an integrity of its own".to_owned());
        }
        let sector_bytes = match self.sector_size {
            512 => 512,
            4096 => 4096,
            other => return Err(format!("its sectors have {other} bytes")),
        };
        if Some(self.offset) != begin.checked_add(DATA_OFFSET) {
            return Err(format!("it begins at byte {} of the disk", self.offset));
        }
        if self.size != size {
            return Err("it does not go to the end of the disk".to_owned());
        }
        if self.iv_tweak != begin / TWEAK_UNIT_BYTES {
            return Err(format!("its first tweak is {}", self.iv_tweak));
        }
        Ok(sector_bytes)
    }
}
