//! LUKS2 headers and AES-XTS as cryptsetup has them, from bytes to bytes ("LUKS2 On-Disk
//! Format Specification", 1.1).
//!
//! ```text
//!  0            16 KiB         32 KiB                                           16 MiB
//!  ├────────────┼──────────────┼──────────┬──────────┬─────────────┬────────────┼───────
//!  │ first copy │ second copy  │ key slot │ key slot │ free        │ journal of │ data
//!  │ of the     │ of the       │ 252 KiB  │ 252 KiB  │             │ a re-      │
//!  │ header     │ header       │          │          │             │ encryption │
//!  └────────────┴──────────────┴──────────┴──────────┴─────────────┴────────────┴───────
//!                              │◀──── key slots area, as the header says ──────▶│
//! ```
//!
//! A passphrase opens a key slot, which holds the *volume key*, which encrypts the data. A
//! *digest* verifies the volume key and names the *segments* of the disk that it encrypts.
//!
//! Must not know: how bytes are read and written, or where passphrases are kept.
//!
//! Invariants:
//!
//! * The disk may be hostile. A [`Header`] was checked as a whole: its areas are where they may be,
//!   its key slots cost what they may, and its cipher is AES-256-XTS, so no header can make the
//!   disk unencrypted.
//! * A key is returned only if its digest is that of the segment.
//! * Parts of the header that need not be understood are kept: labels, tokens, fields of other
//!   software.
//! * Every change is a list of [`Step`]s that may be interrupted after any of them: either the old
//!   or the new header opens the disk.

mod binary;
mod change;
mod check;
pub mod fuzz;
mod header;
mod kdf;
mod metadata;
mod parts;
mod reencrypt;
mod split;
mod xts;

pub use change::SlotError;
pub use check::{Layout, Slot};
pub use header::{Header, UnlockError};
pub use kdf::{Argon2Cost, Kdf};
pub use parts::{REQUIREMENT, Run, ZONE_BYTES};
pub use reencrypt::Saved;
pub use xts::{KEY_BYTES, KeyBytes, TWEAK_UNIT_BYTES, Xts};

/// The offset of the data, in bytes, as cryptsetup chooses it. Headers with another offset are
/// refused, so the size of the data is known before the header is read.
pub const DATA_OFFSET: u64 = 16 << 20;

/// Why a disk has no header that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The disk has no header.
    #[error("the disk has no LUKS2 header")]
    None,
    /// The header has another version of LUKS.
    #[error("the disk has a header of LUKS version {0}; version 2 is supported")]
    Version(u16),
    /// The header claims another offset, or an invalid size.
    #[error("the header at byte {offset} does not belong there")]
    Misplaced {
        /// The offset of the copy, in bytes.
        offset: u64,
    },
    /// The header's checksum is wrong.
    #[error("the header at byte {offset} is damaged")]
    Checksum {
        /// The offset of the copy, in bytes.
        offset: u64,
    },
    /// Both copies of the header are valid and differ.
    #[error("the two copies of the header differ in their {0}")]
    Inconsistent(&'static str),
    /// The header's JSON is invalid.
    #[error("the header's JSON is invalid: {0}")]
    Json(String),
    /// The header has a property that is not supported.
    #[error("the header is not supported: {part}: {reason}")]
    Refused {
        /// The part of the header.
        part: String,
        /// The property, and what is supported.
        reason: String,
    },
}

/// One step of a change of a disk. Steps are carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write bytes to the disk. They are before [`DATA_OFFSET`], except for a zone that is being
    /// re-encrypted.
    Write {
        /// The offset, in bytes.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Make all earlier writes durable.
    Flush,
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
