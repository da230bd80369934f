//! [`JournalLocation`]: the path of a lease's journal, and of the one that it continues.
//!
//! A host that has its journals for itself uses one name for each volume, and
//! each lease's file replaces the previous one. In a folder that several hosts
//! share, each lease has a name of its own, so that no host ever takes a name from
//! another; the catalog says which one counts:
//!
//! ```text
//!  1. lease   the catalog says which journal is named, if one is
//!  2. copy    it into a file of this lease: draft, sync, rename, sync
//!  3. name    the file: fenced by the epoch; nothing is acknowledged before
//!  4. remove  the files of earlier leases
//! ```
//!
//! Invariant: from 3 on the catalog names a file that is complete and durable,
//! also if a crash comes before, after or between any two of these steps.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base::{JournalFolderId, VolumeId};
use catalog::Lease;
use world::World;

use super::files::{JournalError, failed};

/// Where a volume's journal is, and where the previous lease's is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLocation {
    /// The journal's file. Its folder must exist.
    pub path: PathBuf,
    /// The previous lease's journal, if this lease continues it; it may be the same
    /// file. If the lease names a journal in this folder, it is that one and must
    /// exist; otherwise it need not.
    pub former: Option<PathBuf>,
    /// The folder's id, if several hosts share it. Then the file belongs to this
    /// lease alone, and is named in the catalog before anything is acknowledged.
    pub folder: Option<JournalFolderId>,
}

/// A folder of journals that several hosts share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFolder {
    /// Its path on this host.
    pub path: PathBuf,
    /// The id in its marker.
    pub id: JournalFolderId,
}

impl JournalLocation {
    /// Where the journal of `lease` is: in the shared folder, if there is one,
    /// else at `own`, the host's own path. A host that has been given a shared
    /// folder since continues its own journal there.
    #[must_use]
    pub fn of(lease: &Lease, own: &Path, shared: Option<&SharedFolder>) -> Self {
        let is_own = lease.journal.is_none();
        let Some(shared) = shared else {
            return Self {
                path: own.to_owned(),
                // A journal at `own` would be older than the named one.
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
    /// The path of one lease's journal.
    #[must_use]
    pub fn journal(&self, volume: VolumeId, epoch: u32) -> PathBuf {
        self.path.join(format!("{volume}.journal-{epoch}"))
    }

    /// Removes the files of a volume's leases before `epoch`, drafts too. The caller
    /// has named a journal of that lease or a later one. The listing may be stale,
    /// and then some files stay.
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

/// The epoch of the lease that a file in a shared folder belongs to, if it is this volume's.
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
    use catalog::{Leftovers, NamedJournal};

    use super::*;

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
    fn a_lease_continues_the_journal_named_here_or_else_the_hosts_own() {
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
            // One file.
            (lease(None), None, own.to_owned(), Some(own.to_owned())),
            // The named journal was given up: the host's own is older.
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
    fn only_a_volumes_own_files_count_as_its_journals() {
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
