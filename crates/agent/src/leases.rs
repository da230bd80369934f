//! Whether the database is as new as what lies on the units.
//!
//! A database that was put back from a backup would lose what was written
//! since without a word, and give epochs and segment serials that have been
//! used. (No nonce comes twice by that: see [`LeaseSalt`].) So every lease is
//! counted, in the database and on the units:
//!
//! 1. *acquire*: the count grows in the transaction that gives the lease;
//! 2. *note*: every unit that can be reached is told of the count, durably;
//! 3. *use*: what has the lease may seal.
//!
//! A unit that knows of more leases than the database has seen a younger one.
//! Then no lease is given and nothing is freed, until the operator either puts
//! the younger one back or says that it is lost.
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
use std::sync::Arc;

use base::{Lineage, VolumeId};
use catalog::{CatalogError, Lease, LeaseSalt, WrappedKey};
use tokio::sync::mpsc;
use volume::seal::{DataKey, KeyEncryptionKey};
use world::{OpenMode, World, host};

use crate::agent::{Agent, Inner, StartError, lock};
use crate::attached::AttachError;
use crate::journals::Journals;
use crate::units::{LOOK_AGAIN, Mounted};
use crate::watch::ANSWER_WITHIN;

const NAME: &str = "leases";

/// One sector: it is written whole or not at all.
const FILE_BYTES: usize = 512;

/// The database is older than what lies on the units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the database is older than the data: it knows of {database} leases, and the unit {url} of \
     {unit}, so versions are missing from it and it must not be written with as it is; put the \
     newer scree.db back, or, if that is lost, start once with `scree up --restored-database`"
)]
pub struct OlderDatabase {
    /// A unit that knows more.
    pub url: String,
    /// How many leases it knows of.
    pub unit: u64,
    /// How many the database knows of.
    pub database: u64,
}

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
fn write(world: &World, key: &KeyEncryptionKey, folder: &Path, count: u64) -> io::Result<()> {
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

/// Tells one unit. Waits.
fn tell(inner: &Inner, mounted: &Mounted, count: u64) -> Result<(), String> {
    // One after another, and never back: of two that attach at once, the one
    // with the smaller count may come last.
    let mut told = lock(&mounted.told);
    if *told >= count {
        return Ok(());
    }
    // A folder without the unit's mark is never written to.
    let verified = mounted.place.verify();
    verified.map_err(|error| inner.claim.spell(&error))?;
    write(&inner.world, &inner.vouch, &mounted.folder, count)
        .map_err(|error| format!("{}: {error}", mounted.url))?;
    *told = count;
    mounted.watched.knows_leases(count);
    Ok(())
}

impl Agent {
    /// A lease that may be used: every unit that answers knows of it.
    pub(crate) async fn acquire(&self, volume: VolumeId) -> Result<Lease, AttachError> {
        if let Some(older) = self.older_database().await? {
            return Err(older.into());
        }
        let salt = LeaseSalt::generate(&*self.inner.world.random);
        let journals = self.inner.journals.as_ref().map(Journals::id);
        let lease = self.inner.controller.lease(volume, salt, journals).await;
        let lease = lease.map_err(AttachError::Lease)?;
        // The database is not trusted with secrets: another volume's key,
        // perhaps of one that is not sealed, or the salt of an earlier lease,
        // would do harm.
        let is_own = lease.keys.first().is_some_and(|key| {
            key.lineage.as_u128() == volume.as_u128()
                && key.salts.last() == Some(&(lease.epoch, salt))
        });
        if !is_own {
            return Err(AttachError::ForeignKey);
        }
        // Perhaps some more have been given meanwhile; to know of them early
        // does no harm.
        let count = self.inner.controller.leases().await?;
        self.tell_units(count).await.map_err(AttachError::Untold)?;
        Ok(lease)
    }

    /// Tells every unit that answers; returns when all have been told that
    /// answer soon, and at least one was.
    async fn tell_units(&self, count: u64) -> Result<(), String> {
        let units = lock(&self.inner.units).clone();
        let (answer, mut answers) = mpsc::unbounded_channel();
        for mounted in units {
            if mounted.watched.is_silent() {
                continue;
            }
            let inner = Arc::clone(&self.inner);
            let answer = answer.clone();
            tokio::task::spawn_blocking(move || {
                // Nobody may be listening any more: it was told all the same.
                let _ = answer.send(tell(&inner, &mounted, count));
            });
        }
        drop(answer);
        let clock = &self.inner.world.clock;
        let enough = clock.monotonic() + ANSWER_WITHIN;
        let mut told = false;
        let mut failure = "no unit answers".to_owned();
        let mut tick = host::ticks(LOOK_AGAIN);
        loop {
            tokio::select! {
                answer = answers.recv() => match answer {
                    Some(Ok(())) => told = true,
                    Some(Err(why)) => {
                        tracing::warn!(why, "a unit was not told of a lease");
                        failure = why;
                    }
                    None => break,
                },
                _ = tick.tick() => if clock.monotonic() >= enough { break },
            }
        }
        if told { Ok(()) } else { Err(failure) }
    }

    /// Whether some unit knows of more leases than the database.
    pub(crate) async fn older_database(&self) -> Result<Option<OlderDatabase>, CatalogError> {
        // The units first: a lease that is given meanwhile is in the database
        // before any of them hears of it.
        let most = lock(&self.inner.units)
            .iter()
            .map(|mounted| (mounted.watched.last_found().leases, mounted.url.clone()))
            .max();
        let database = self.inner.controller.leases().await?;
        Ok(most
            .filter(|(unit, _)| *unit > database)
            .map(|(unit, url)| OlderDatabase {
                url,
                unit,
                database,
            }))
    }

    /// After the units were looked at for the first time: has a database moved
    /// ahead that is older than they, if the operator has said that it was
    /// restored.
    pub(crate) async fn check_database_age(&self) -> Result<(), StartError> {
        let takes_over = self.inner.claim.takes_over;
        match self.older_database().await? {
            None if takes_over => tracing::info!(
                "the database is as new as the units; --restored-database had nothing to do"
            ),
            None => {}
            Some(older) if takes_over => {
                self.inner.controller.move_ahead(older.unit).await?;
            }
            Some(older) => tracing::error!("{older}"),
        }
        Ok(())
    }
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
