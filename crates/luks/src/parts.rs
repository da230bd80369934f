//! The parts of the data and their keys. Usually one key encrypts all of it. While the data is
//! re-encrypted, the new key encrypts the data before a boundary and the old key the rest.
//!
//! ```text
//!            ┌──────── segment 0 ────────┬──────── segment 1 ────────────────▶
//!  data      │ new key                   │ old key                 "dynamic"
//!            └───────────────────────────┴───────────────────────────────────▶
//!            0                           boundary
//! ```
//!
//! At boundary 0 there is one segment, with the old key. The token `scree-reencryption` counts the
//! re-encryptions, and describes the one that is under way: its number, the digest of its new key,
//! and the id that its journal has. The header then has the mandatory requirement
//! [`REQUIREMENT`], so that software which does not know the journal refuses the disk.

use std::ops::Range;

use serde::Deserialize;

use super::check::{AREA_ALIGNMENT, VolumeDigest, check_cipher, check_word, id_of, refused};
use super::metadata::{Metadata, Segment, Size, bytes, number, parse};
use super::{DATA_OFFSET, HeaderError, TWEAK_UNIT_BYTES};

/// The mandatory requirement of a header while a re-encryption is under way.
pub const REQUIREMENT: &str = "scree-reencrypt-v1";

/// The type of Scree's token.
pub const TOKEN: &str = "scree-reencryption";

/// The length of the zone that is re-encrypted at once, in bytes. It is short enough that requests
/// for it can wait, and long enough that its four flushes cost little.
pub const ZONE_BYTES: u64 = 1 << 20;

/// The length of the journal, in bytes: a head and a zone.
pub const JOURNAL_BYTES: u64 = AREA_ALIGNMENT + ZONE_BYTES;

/// The length of the id of a re-encryption, in bytes.
pub const RUN_BYTES: usize = 16;

/// A re-encryption that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The count of re-encryptions when it has ended ([`super::Layout::done`]).
    pub to: u64,
    /// The length of the data that has the new key, in bytes; a multiple of 4 KiB.
    pub boundary: u64,
    /// The id, which the journal has as well.
    pub(super) id: [u8; RUN_BYTES],
    /// The digest of the new key.
    pub(super) digest: u32,
}

/// What the segments and tokens describe.
pub(super) struct Parts {
    pub sector_bytes: u32,
    /// The digest of the key of the data that is not re-encrypted yet.
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

/// A segment with its key.
struct KeyedSegment<'a> {
    /// Its name in errors.
    part: String,
    segment: &'a Segment,
    /// The digest of its key.
    digest: u32,
}

impl KeyedSegment<'_> {
    /// As [`Segment::check`].
    fn check(&self, begin: u64, size: Size) -> Result<u32, HeaderError> {
        let checked = self.segment.check(begin, size);
        checked.or_else(|reason| refused(&self.part, reason))
    }
}

/// The place of the journal in the area of the key slots.
pub(super) fn journal_of(area: &Range<u64>) -> Range<u64> {
    area.end.saturating_sub(JOURNAL_BYTES)..area.end
}

impl Metadata {
    pub(super) fn check_parts(&self, digests: &[VolumeDigest]) -> Result<Parts, HeaderError> {
        let mandatory = &self.config.requirements.mandatory;
        if let Some(other) = mandatory.iter().find(|one| *one != REQUIREMENT) {
            return refused(
                "requirements",
                format!("the header requires {other:?}, which is not supported"),
            );
        }
        let token = self.token()?;
        let done = token.as_ref().map_or(0, |token| token.done);
        let run = token.and_then(|token| token.run);
        if run.is_some() == mandatory.is_empty() {
            return refused(
                "requirements",
                "they contradict the token of re-encryptions",
            );
        }
        let segments = self.keyed_segments()?;
        let (boundary, last) = boundary_of(&segments, run.as_ref())?;
        let sector_bytes = last.check(boundary, Size::Dynamic)?;
        let run = run.map(|run| run.check(boundary, last.digest, digests));
        Ok(Parts {
            sector_bytes,
            digest: last.digest,
            done,
            run: run.transpose()?,
        })
    }

    /// The segments with the digests of their keys, in their order on the disk.
    fn keyed_segments(&self) -> Result<Vec<KeyedSegment<'_>>, HeaderError> {
        let mut segments = Vec::new();
        for (at, (id, segment)) in (0_u32..).zip(&self.segments) {
            let part = format!("segment {id}");
            if id_of("segment", id)? != at {
                return refused(part, "its number is not the next one");
            }
            match self.digest_of(&part, |digest| digest.segments.contains(id))? {
                Some(digest) => segments.push(KeyedSegment {
                    part,
                    segment,
                    digest,
                }),
                None => return refused(part, "it has no digest"),
            }
        }
        Ok(segments)
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

/// Where the segment with the old key begins, in bytes of the data, and that segment: the last one.
fn boundary_of<'a>(
    segments: &'a [KeyedSegment<'a>],
    run: Option<&WrittenRun>,
) -> Result<(u64, &'a KeyedSegment<'a>), HeaderError> {
    match (segments, run) {
        ([last], _) => Ok((0, last)),
        ([first, last], Some(run)) => {
            let part = &first.part;
            let Size::Bytes(boundary) = first.segment.size else {
                return refused(part, "something comes after its end");
            };
            if boundary == 0 || !boundary.is_multiple_of(AREA_ALIGNMENT) {
                return refused(part, format!("it has {boundary} bytes"));
            }
            let sector_bytes = first.check(0, first.segment.size)?;
            if u64::from(sector_bytes) != last.segment.sector_size {
                return refused(part, "its sectors are not those of the other one");
            }
            if first.digest.to_string() != run.digest {
                return refused(part, "its key is not the new one");
            }
            Ok((boundary, last))
        }
        (many, _) => {
            let many = many.len();
            refused("segments", format!("there are {many}; one is supported"))
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
            Err(_) => refused("tokens", "a re-encryption's id has 16 bytes"),
        }
    }
}

impl Segment {
    /// Checks a segment that has to begin `begin` bytes into the data. Returns the length of its
    /// sectors, in bytes.
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
