//! How many leases a unit knows of: a small file in it (`database_age` says what
//! that is for).
//!
//! ```text
//!  <unit>/leases    512 bytes, written over in place: one sector, so never torn
//!    leases 17 <wrapped key, 120 hex digits>
//! ```
//!
//! The wrapped key is random and of no use but this: it opens for this count
//! and with what the cluster's hosts vouch with, so a unit cannot claim leases
//! that nobody gave.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use base::Lineage;
use catalog::WrappedKey;
use volume::seal::{DataKey, KeyEncryptionKey};
use world::{OpenMode, World};

const NAME: &str = "leases";

/// One sector: it is written whole or not at all.
const FILE_BYTES: usize = 512;

/// What a unit says of a count of leases.
fn spell(world: &World, key: &KeyEncryptionKey, count: u64) -> [u8; FILE_BYTES] {
    let proof = key.wrap(
        lineage_of(count),
        &DataKey::generate(&*world.random),
        &*world.random,
    );
    let mut text = format!("leases {count} ");
    for byte in &proof.0 {
        let _ = write!(text, "{byte:02x}");
    }
    let mut bytes = [b' '; FILE_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes[FILE_BYTES - 1] = b'\n';
    bytes
}

/// The count as a lineage, for the key to vouch for. Lineages are random
/// numbers of 128 bits: none is that small.
fn lineage_of(count: u64) -> Lineage {
    Lineage::from_random(count.into())
}

/// The count in such a text, if the key vouches for it.
fn parse(key: &KeyEncryptionKey, text: &[u8]) -> Option<u64> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let (title, count, proof) = (words.next()?, words.next()?, words.next()?);
    if title != NAME {
        return None;
    }
    let count: u64 = count.parse().ok()?;
    let digits = proof.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let proof = WrappedKey(digits.map(byte).collect::<Option<_>>()?);
    key.unwrap(lineage_of(count), &proof).ok()?;
    Some(count)
}

/// How many leases the unit at `folder` knows of: none, if it has no such file
/// or one that only half came to be.
pub(crate) fn read(world: &World, key: &KeyEncryptionKey, folder: &Path) -> io::Result<u64> {
    let disk = world.disk.within(folder);
    let file = match disk.open(Path::new(NAME), OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        opened => opened?,
    };
    if file.length()? < FILE_BYTES as u64 {
        return Ok(0);
    }
    let mut text = [0; FILE_BYTES];
    file.read_at(&mut text, 0)?;
    parse(key, &text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{NAME} is not what this cluster wrote there"),
        )
    })
}

/// Makes the unit at `folder` know of `count` leases, durably.
pub(crate) fn write(
    world: &World,
    key: &KeyEncryptionKey,
    folder: &Path,
    count: u64,
) -> io::Result<()> {
    // What lies in a unit may lead elsewhere; within it, nothing is followed.
    let (disk, path) = (world.disk.within(folder), Path::new(NAME));
    let file = match disk.open(path, OpenMode::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.open(path, OpenMode::CreateNew)?
        }
        opened => opened?,
    };
    file.write_at(&spell(world, key, count), 0)?;
    file.sync_data()?;
    disk.sync_directory(Path::new(""))
}

#[cfg(test)]
mod tests {
    use world::simulated::{Fault, Simulation};

    use super::*;

    #[test]
    fn a_count_is_read_back_and_believed_only_if_the_key_vouches_for_it() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let folder = Path::new("/unit");
        world.disk.create_directory(folder).expect("made");
        let key = KeyEncryptionKey::from_bytes(&[1; 32]);
        assert_eq!(read(&world, &key, folder).expect("none yet"), 0);
        for count in [1, 70_000, u64::MAX] {
            write(&world, &key, folder, count).expect("written");
            assert_eq!(read(&world, &key, folder).expect("read"), count);
        }
        let other = KeyEncryptionKey::from_bytes(&[2; 32]);
        assert!(read(&world, &other, folder).is_err());
        write(&world, &key, folder, 17).expect("written");
        let file = world
            .disk
            .open(&folder.join(NAME), OpenMode::Write)
            .expect("there");
        for at in 0..130 {
            let mut byte = [0];
            file.read_at(&mut byte, at).expect("read");
            file.write_at(&[byte[0] ^ 1], at).expect("written");
            let found = read(&world, &key, folder);
            assert!(found.is_err(), "byte {at} was turned over: {found:?}");
            file.write_at(&byte, at).expect("written");
        }
        assert_eq!(read(&world, &key, folder).expect("read"), 17);
    }

    #[test]
    fn a_crash_leaves_the_old_count_or_the_new_one() {
        for seed in 0..50 {
            let mut simulation = Simulation::new(seed);
            let world = simulation.world();
            let folder = Path::new("/unit");
            world.disk.create_directory(folder).expect("made");
            world.disk.sync_directory(Path::new("/")).expect("synced");
            let key = KeyEncryptionKey::from_bytes(&[1; 32]);
            write(&world, &key, folder, 1).expect("written");
            simulation.disk.inject(folder, Fault::SyncFails);
            let _ = write(&world, &key, folder, 2);
            simulation.disk.heal(folder);
            simulation.crash();
            let found = read(&simulation.world(), &key, folder).expect("whole");
            assert!(found == 1 || found == 2, "{found}");
            write(&simulation.world(), &key, folder, 3).expect("written");
            simulation.crash();
            let found = read(&simulation.world(), &key, folder).expect("whole");
            assert_eq!(found, 3, "what was told is known");
        }
    }
}
