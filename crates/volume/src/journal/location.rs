//! Where journals lie, and which of them a lease goes on with.
//!
//! A host that has its journals for itself has one name for each volume, and
//! puts each lease's file in the place of the one before. In a folder that
//! several hosts have, each lease has a name of its own, so that no host ever
//! takes a name from another; which of them counts, the catalog says:
//!
//! ```text
//!  1. lease   the catalog says which journal is named, if one is
//!  2. copy    that into a file of this lease: draft, sync, rename, sync
//!  3. name    it: fenced by the epoch; nothing is acknowledged before
//!  4. remove  what is of earlier leases
//! ```
//!
//! Invariant: from 3 on the catalog names a file that is complete and durable,
//! and so it does if a crash comes before, after or between any two of these.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base::{JournalFolderId, VolumeId};
use world::World;

use super::files::{JournalError, failed};
use crate::catalog::Lease;

/// Where a volume's journal is to be, and where the one before it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLocation {
    /// Its file. The folder must be there.
    pub path: PathBuf,
    /// What the last lease left, if this one goes on with it; it may be the
    /// same file. Where the lease names a journal in this folder, this is it,
    /// and has to be there; any other need not be.
    pub former: Option<PathBuf>,
    /// The folder, if several hosts have it. Then the file is of this lease
    /// alone, and the catalog is told of it before anything is acknowledged.
    pub folder: Option<JournalFolderId>,
}

/// A folder of journals that several hosts have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFolder {
    /// Where this host finds it.
    pub path: PathBuf,
    /// Which one it is, as its marker says.
    pub id: JournalFolderId,
}

impl JournalLocation {
    /// Where the journal of `lease` lies: in the shared folder, if there is
    /// one, else at `own`, where the host has it for itself. A host that was
    /// given a shared folder since takes along what it has there.
    #[must_use]
    pub fn of(lease: &Lease, own: &Path, shared: Option<&SharedFolder>) -> Self {
        let is_own = lease.journal.is_none();
        let Some(shared) = shared else {
            return Self {
                path: own.to_owned(),
                // What lies there is older than what was given up.
                former: is_own.then(|| own.to_owned()),
                folder: None,
            };
        };
        let named = lease.journal.filter(|named| named.folder == shared.id);
        let named = named.map(|named| shared.journal(lease.volume, named.epoch));
        Self {
            path: shared.journal(lease.volume, lease.epoch),
            former: named.or_else(|| is_own.then(|| own.to_owned())),
            folder: Some(shared.id),
        }
    }
}

impl SharedFolder {
    /// The journal of one lease.
    #[must_use]
    pub fn journal(&self, volume: VolumeId, epoch: u32) -> PathBuf {
        self.path.join(format!("{volume}.journal-{epoch}"))
    }

    /// Removes what is here of a volume's leases before `epoch`, drafts too.
    /// Only for whoever has named a journal of that lease, or later: the
    /// listing may be old, and then something stays.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn remove_before(
        &self,
        world: &World,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<(), JournalError> {
        let of = self.path.join(volume.to_string());
        let remove = failed("remove an older file of", &of);
        for entry in world.disk.list(&self.path).map_err(&remove)? {
            if epoch_of(&entry.name, volume).is_none_or(|of| of >= epoch) {
                continue;
            }
            match world.disk.remove(&self.path.join(&entry.name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(remove(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The lease that a file in a shared folder is of, if it is of this volume.
fn epoch_of(name: &str, volume: VolumeId) -> Option<u32> {
    let (stem, rest) = name.split_once('.')?;
    if stem.parse() != Ok(volume) {
        return None;
    }
    let epoch = ["journal-", "new-"]
        .into_iter()
        .find_map(|kind| rest.strip_prefix(kind))?;
    epoch.parse().ok()
}

#[cfg(test)]
mod tests {
    use base::BlockSize;

    use super::*;
    use crate::catalog::{Leftovers, NamedJournal};

    fn lease(journal: Option<NamedJournal>) -> Lease {
        Lease {
            volume: VolumeId::from_u128(1),
            epoch: 42,
            size_bytes: 1 << 20,
            block_size: BlockSize::DEFAULT,
            replicas: 1,
            erasure: None,
            keys: Vec::new(),
            head: None,
            journal_next: 0,
            journal,
            number_last: 0,
            leftovers: Leftovers::default(),
            restores: None,
        }
    }

    #[test]
    fn a_lease_goes_on_with_what_is_named_here_or_else_with_the_hosts_own() {
        let folder = |number| SharedFolder {
            path: PathBuf::from(format!("/shared-{number}")),
            id: JournalFolderId::from_u128(number),
        };
        let (here, elsewhere) = (folder(1), folder(2));
        let own = Path::new("/host/vol");
        let named = |folder: &SharedFolder| {
            lease(Some(NamedJournal {
                epoch: 41,
                folder: folder.id,
            }))
        };
        let volume = VolumeId::from_u128(1);
        for (lease, shared, path, former) in [
            // As ever: one file.
            (lease(None), None, own.to_owned(), Some(own.to_owned())),
            // Given up: what lies in the host's own is older.
            (named(&here), None, own.to_owned(), None),
            (
                lease(None),
                Some(&here),
                here.journal(volume, 42),
                Some(own.to_owned()),
            ),
            (
                named(&here),
                Some(&here),
                here.journal(volume, 42),
                Some(here.journal(volume, 41)),
            ),
            (
                named(&elsewhere),
                Some(&here),
                here.journal(volume, 42),
                None,
            ),
        ] {
            let place = JournalLocation::of(&lease, own, shared);
            let expected = JournalLocation {
                path,
                former,
                folder: shared.map(|shared| shared.id),
            };
            assert_eq!(place, expected, "{:?}", lease.journal);
        }
    }

    #[test]
    fn only_a_volumes_own_files_are_taken_for_its_journals() {
        let volume = VolumeId::from_u128(1);
        let epoch = |name: &str| epoch_of(name, volume);
        assert_eq!(epoch(&format!("{volume}.journal-41")), Some(41));
        assert_eq!(epoch(&format!("{volume}.new-7")), Some(7));
        for other in [
            "scree-journals".to_owned(),
            volume.to_string(),
            format!("{volume}.journal-"),
            format!("{volume}.journal-4x"),
            format!("{volume}.fenced-4"),
            format!("{}.journal-4", VolumeId::from_u128(2)),
        ] {
            assert_eq!(epoch(&other), None, "{other}");
        }
    }
}
