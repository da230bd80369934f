//! LUKS2, on a disk as cryptsetup has it: bytes in, bytes out ("LUKS2 On-Disk Format
//! Specification", 1.1).
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
//! *digest* tells that it is the right one, and which *segments* of the disk it is for.
//!
//! Must not know how the bytes come and go, or who has the passphrase.
//!
//! Invariants:
//!
//! * Whoever writes the disk may mean harm. A [`Header`] was checked as a whole: what it
//!   names lies where it may lie, costs what it may cost, and is encrypted with AES-256-XTS
//!   and nothing else, so there is no way to a disk that is not encrypted.
//! * A key that is handed out has a digest that the segment it is for has.
//! * What is not understood, and need not be, is kept: labels, tokens, fields of others.
//! * Every change is a list of [`Step`]s that may end after any of them: the header before,
//!   or the one after, opens the disk.

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

/// Where the data begins, in bytes: what cryptsetup makes, and nothing else is taken. So
/// how large the disk is for its user is known before its header is.
pub const DATA_OFFSET: u64 = 16 << 20;

/// Why a disk's header is none, or none that is used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There is nothing that looks like one.
    #[error("it has no LUKS2 header")]
    None,
    /// LUKS of another version.
    #[error("it has a header of LUKS version {0}, and this is version 2")]
    Version(u16),
    /// It says that it lies elsewhere, or has a size that none has.
    #[error("the header at byte {offset} does not belong there")]
    Misplaced {
        /// Of the copy.
        offset: u64,
    },
    /// It was damaged, or changed by who cannot.
    #[error("the header at byte {offset} is damaged")]
    Checksum {
        /// Of the copy.
        offset: u64,
    },
    /// Its two copies are both valid, and say different things.
    #[error("the two copies of the header differ in their {0}")]
    Inconsistent(&'static str),
    /// Its text is none.
    #[error("the header's text is damaged: {0}")]
    Json(String),
    /// It says what is not taken.
    #[error("the header is refused: {part}: {reason}")]
    Refused {
        /// What of it.
        part: String,
        /// Why.
        reason: String,
    },
}

/// Something to do to a disk, after what comes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Bytes of the disk; but for a zone that is re-encrypted, before [`DATA_OFFSET`].
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// What was written before is durable.
    Flush,
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
