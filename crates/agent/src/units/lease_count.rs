//! The lease count on a unit: a note that the unit stores for hosts (`lease::database_age` explains
//! its purpose).
//!
//! ```text
//!  512 bytes:  leases 17 <HMAC-SHA256, 64 hex digits>, spaces, line feed
//! ```
//!
//! The HMAC covers the count, under a key that the hosts of the cluster share: a unit does not have
//! that key, so it cannot claim leases that were never granted.

use std::fmt::Write as _;

use api::host::LeaseCountKey;
use aws_lc_rs::hmac;
use unit::{NOTE_BYTES, Unit, UnitError};

/// The first word of a note.
const TITLE: &str = "leases";

/// The prefix of the authenticated message; no other message under the key starts with it.
const DOMAIN: &[u8] = b"scree lease count\0";

/// Writes and authenticates lease counts with the cluster's [`LeaseCountKey`].
pub(crate) struct CountSigner(hmac::Key);

impl CountSigner {
    pub fn new(key: &LeaseCountKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key.0))
    }

    fn spell(&self, count: u64) -> [u8; NOTE_BYTES] {
        let tag = hmac::sign(&self.0, &message(count));
        let mut text = format!("{TITLE} {count} ");
        for byte in tag.as_ref() {
            let _ = write!(text, "{byte:02x}");
        }
        let mut bytes = [b' '; NOTE_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes[NOTE_BYTES - 1] = b'\n';
        bytes
    }

    /// Parses the count of a note; `None` if the key does not authenticate it.
    fn parse(&self, text: &[u8]) -> Option<u64> {
        let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        let (title, count, tag) = (words.next()?, words.next()?, words.next()?);
        if title != TITLE || words.next().is_some() || !tag.len().is_multiple_of(2) {
            return None;
        }
        let count: u64 = count.parse().ok()?;
        let digits = tag.as_bytes().chunks_exact(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let tag: Vec<u8> = digits.map(byte).collect::<Option<_>>()?;
        hmac::verify(&self.0, &message(count), &tag).ok()?;
        Some(count)
    }
}

fn message(count: u64) -> Vec<u8> {
    [DOMAIN, &count.to_le_bytes()].concat()
}

/// Reads the lease count on a unit; 0 if none is stored.
///
/// # Errors
/// [`UnitError`]; [`UnitError::Tampered`] if this cluster has not written the note.
pub(crate) fn read(unit: &dyn Unit, signer: &CountSigner) -> Result<u64, UnitError> {
    let Some(note) = unit.read_note()? else {
        return Ok(0);
    };
    signer.parse(&note).ok_or_else(|| UnitError::Tampered {
        url: unit.url().to_owned(),
        doing: "read its lease count".to_owned(),
        found: "the note was not written by this cluster".to_owned(),
    })
}

/// Reads the lease count on a unit; a note that this cluster has not written counts as 0.
///
/// # Errors
/// [`UnitError`].
pub(crate) fn read_own(unit: &dyn Unit, signer: &CountSigner) -> Result<u64, UnitError> {
    match read(unit, signer) {
        Err(UnitError::Tampered { .. }) => Ok(0),
        other => other,
    }
}

/// Stores the lease count on a unit, durably.
///
/// # Errors
/// [`UnitError`].
pub(crate) fn write(unit: &dyn Unit, signer: &CountSigner, count: u64) -> Result<(), UnitError> {
    unit.write_note(&signer.spell(count))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{ClusterId, UnitId};
    use unit_folder::FolderUnit;
    use world::World;
    use world::simulated::{Fault, Simulation};

    use super::*;

    const FOLDER: &str = "/unit";

    fn unit_in(world: &World) -> FolderUnit {
        let ids = (ClusterId::from_u128(1), UnitId::from_u128(2));
        FolderUnit::create(world, Path::new(FOLDER), ids.0, ids.1).expect("a unit")
    }

    /// A note, byte by byte: what is written today must stay readable, or every unit would seem to
    /// have none.
    #[test]
    fn the_fixture_of_a_note_is_read_and_written() {
        let fixture = format!(
            "{:511}\n",
            "leases 17 9ccb8eb47f5842f2fd5b26bde29afc9b278666e3acf52b5680e8d174e286f287"
        );
        let signer = CountSigner::new(&LeaseCountKey([1; 32]));
        assert_eq!(&signer.spell(17)[..], fixture.as_bytes());
        assert_eq!(signer.parse(fixture.as_bytes()), Some(17));
    }

    #[test]
    fn a_count_is_read_back_and_accepted_only_if_the_key_authenticates_it() {
        let simulation = Simulation::new(1);
        let unit = unit_in(&simulation.world());
        let signer = CountSigner::new(&LeaseCountKey([1; 32]));
        assert_eq!(read(&unit, &signer).expect("none yet"), 0);
        for count in [1, 70_000, u64::MAX] {
            write(&unit, &signer, count).expect("written");
            assert_eq!(read(&unit, &signer).expect("read"), count);
        }
        let other = CountSigner::new(&LeaseCountKey([2; 32]));
        assert!(read(&unit, &other).is_err());
        write(&unit, &signer, 17).expect("written");
        let note = unit.read_note().expect("read").expect("there");
        for at in 0..130 {
            let mut altered = note;
            altered[at] ^= 1;
            unit.write_note(&altered).expect("written");
            let found = read(&unit, &signer);
            assert!(found.is_err(), "byte {at} was flipped: {found:?}");
        }
        unit.write_note(&note).expect("written");
        assert_eq!(read(&unit, &signer).expect("read"), 17);
    }

    #[test]
    fn a_crash_leaves_the_old_count_or_the_new_one() {
        for seed in 0..50 {
            let mut simulation = Simulation::new(seed);
            let world = simulation.world();
            let unit = unit_in(&world);
            let signer = CountSigner::new(&LeaseCountKey([1; 32]));
            write(&unit, &signer, 1).expect("written");
            simulation.disk.inject(Path::new(FOLDER), Fault::SyncFails);
            let _ = write(&unit, &signer, 2);
            simulation.disk.heal(Path::new(FOLDER));
            simulation.crash();
            let world = simulation.world();
            let found = read(&unit_in(&world), &signer).expect("whole");
            assert!(found == 1 || found == 2, "{found}");
            write(&unit_in(&world), &signer, 3).expect("written");
            simulation.crash();
            let found = read(&unit_in(&simulation.world()), &signer).expect("whole");
            assert_eq!(found, 3, "the former count is known");
        }
    }
}
