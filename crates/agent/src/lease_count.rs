//! How many leases a unit knows of: the note that it keeps for hosts
//! (`database_age` says what that is for).
//!
//! ```text
//!  512 bytes:  leases 17 <wrapped key, 120 hex digits> … spaces, and a line's end
//! ```
//!
//! The wrapped key is random and of no use but this: it opens for this count
//! and with what the cluster's hosts vouch with, so a unit cannot claim leases
//! that nobody gave.

use std::fmt::Write as _;

use base::Lineage;
use catalog::WrappedKey;
use unit::{NOTE_BYTES, Unit, UnitError};
use volume::seal::{DataKey, KeyEncryptionKey};
use world::World;

/// What a note begins with.
const TITLE: &str = "leases";

/// What a unit says of a count of leases.
fn spell(world: &World, key: &KeyEncryptionKey, count: u64) -> [u8; NOTE_BYTES] {
    let proof = key.wrap(
        lineage_of(count),
        &DataKey::generate(&*world.random),
        &*world.random,
    );
    let mut text = format!("{TITLE} {count} ");
    for byte in &proof.0 {
        let _ = write!(text, "{byte:02x}");
    }
    let mut bytes = [b' '; NOTE_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes[NOTE_BYTES - 1] = b'\n';
    bytes
}

/// The count as a lineage, for the key to vouch for. Lineages are random
/// numbers of 128 bits: none is that small.
fn lineage_of(count: u64) -> Lineage {
    Lineage::from_u128(count.into())
}

/// The count in such a text, if the key vouches for it.
fn parse(key: &KeyEncryptionKey, text: &[u8]) -> Option<u64> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let (title, count, proof) = (words.next()?, words.next()?, words.next()?);
    if title != TITLE {
        return None;
    }
    let count: u64 = count.parse().ok()?;
    let digits = proof.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let proof = WrappedKey(digits.map(byte).collect::<Option<_>>()?);
    key.unwrap(lineage_of(count), &proof).ok()?;
    Some(count)
}

/// How many leases a unit knows of: none, if nothing was noted there.
///
/// # Errors
/// [`UnitError`]; as [`UnitError::Tampered`], that this cluster has not written
/// what is noted there.
pub(crate) fn read(unit: &dyn Unit, key: &KeyEncryptionKey) -> Result<u64, UnitError> {
    let Some(note) = unit.read_note()? else {
        return Ok(0);
    };
    parse(key, &note).ok_or_else(|| UnitError::Tampered {
        url: unit.url().to_owned(),
        doing: "read how many leases it knows of".to_owned(),
        found: "the note there is not what this cluster wrote".to_owned(),
    })
}

/// As [`read`]; of what this cluster has not written, nothing counts.
///
/// # Errors
/// [`UnitError`].
pub(crate) fn read_own(unit: &dyn Unit, key: &KeyEncryptionKey) -> Result<u64, UnitError> {
    match read(unit, key) {
        Err(UnitError::Tampered { .. }) => Ok(0),
        other => other,
    }
}

/// Makes a unit know of `count` leases, durably.
pub(crate) fn write(
    unit: &dyn Unit,
    world: &World,
    key: &KeyEncryptionKey,
    count: u64,
) -> Result<(), UnitError> {
    unit.write_note(&spell(world, key, count))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{ClusterId, UnitId};
    use unit_folder::FolderUnit;
    use world::simulated::{Fault, Simulation};

    use super::*;

    const FOLDER: &str = "/unit";

    fn unit_in(world: &World) -> FolderUnit {
        let ids = (ClusterId::from_u128(1), UnitId::from_u128(2));
        FolderUnit::create(world, Path::new(FOLDER), ids.0, ids.1).expect("a unit")
    }

    #[test]
    fn a_count_is_read_back_and_believed_only_if_the_key_vouches_for_it() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let unit = unit_in(&world);
        let key = KeyEncryptionKey::from_bytes(&[1; 32]);
        assert_eq!(read(&unit, &key).expect("none yet"), 0);
        for count in [1, 70_000, u64::MAX] {
            write(&unit, &world, &key, count).expect("written");
            assert_eq!(read(&unit, &key).expect("read"), count);
        }
        let other = KeyEncryptionKey::from_bytes(&[2; 32]);
        assert!(read(&unit, &other).is_err());
        write(&unit, &world, &key, 17).expect("written");
        let note = unit.read_note().expect("read").expect("there");
        for at in 0..130 {
            let mut altered = note;
            altered[at] ^= 1;
            unit.write_note(&altered).expect("written");
            let found = read(&unit, &key);
            assert!(found.is_err(), "byte {at} was turned over: {found:?}");
        }
        unit.write_note(&note).expect("written");
        assert_eq!(read(&unit, &key).expect("read"), 17);
    }

    #[test]
    fn a_crash_leaves_the_old_count_or_the_new_one() {
        for seed in 0..50 {
            let mut simulation = Simulation::new(seed);
            let world = simulation.world();
            let unit = unit_in(&world);
            let key = KeyEncryptionKey::from_bytes(&[1; 32]);
            write(&unit, &world, &key, 1).expect("written");
            simulation.disk.inject(Path::new(FOLDER), Fault::SyncFails);
            let _ = write(&unit, &world, &key, 2);
            simulation.disk.heal(Path::new(FOLDER));
            simulation.crash();
            let world = simulation.world();
            let found = read(&unit_in(&world), &key).expect("whole");
            assert!(found == 1 || found == 2, "{found}");
            write(&unit_in(&world), &world, &key, 3).expect("written");
            simulation.crash();
            let found = read(&unit_in(&simulation.world()), &key).expect("whole");
            assert_eq!(found, 3, "what was told is known");
        }
    }
}
