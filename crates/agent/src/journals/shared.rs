//! [`SharedJournals`]: the folder of journals that several hosts share
//! (docs/internals/leases-and-fencing.md), and its identity.
//!
//! ```text
//!   FOLDER/scree-journals      format, cluster, the folder's id
//!   FOLDER/vol-….journal-41    see volume::journal::place
//! ```
//!
//! A path may lead each host to another folder, and later to yet another; the marker in the folder
//! identifies it. The first agent creates the marker, and nothing changes it. No agent creates the
//! folder: below a mount point, it does not exist while nothing is mounted.
//!
//! Invariant: an agent verifies the marker right before it creates, looks for or gives up a journal
//! in the folder.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{ClusterId, JournalFolderId, VolumeId, with_causes};
use serde::{Deserialize, Serialize};
use volume::journal::SharedFolder;
use world::{OpenMode, World, host};

use crate::context::blocking;

/// The marker's name.
const NAME: &str = "scree-journals";

/// The format version of the folder that this program reads and writes.
const FORMAT: u32 = 1;

/// The longest marker, in bytes.
const MARKER_BYTES_MAX: u64 = 4096;

/// Why a shared folder of journals cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalsError {
    /// The folder does not exist, or the operating system refuses.
    #[error(
        "cannot use the folder of journals {path}: {source}; it must exist, be mounted, and be \
         writable for this agent",
        path = path.display()
    )]
    Io {
        /// Path of the folder or its marker.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The marker cannot be parsed.
    #[error(
        "{path} does not name the owner of the journals: {reason}; if no other agent is creating \
         it now, and there are no journals beside it, remove it",
        path = path.display()
    )]
    Unreadable {
        /// The marker.
        path: PathBuf,
        /// Why it cannot be parsed.
        reason: String,
    },
    /// A newer Scree wrote the marker.
    #[error(
        "{path} was written by a newer Scree (format {found}, this one reads {FORMAT}); start the newer one",
        path = path.display()
    )]
    Newer {
        /// The marker.
        path: PathBuf,
        /// The format of the marker.
        found: u32,
    },
    /// Hosts of another cluster use the folder.
    #[error(
        "{path} holds the journals of another cluster ({found}); give each cluster a folder of \
         its own",
        path = path.display()
    )]
    OtherCluster {
        /// The folder.
        path: PathBuf,
        /// The other cluster.
        found: ClusterId,
    },
    /// The path leads to another folder than before.
    #[error(
        "{path} is another folder of journals ({found}) than before ({expected}); mount the \
         former one again",
        path = path.display()
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// Id of the folder found.
        found: JournalFolderId,
        /// Id of the former folder.
        expected: JournalFolderId,
    },
}

/// The field that all formats have.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    format: u32,
    cluster: ClusterId,
    folder: JournalFolderId,
}

/// The folder of journals that several hosts share.
pub(crate) struct SharedJournals {
    world: World,
    folder: SharedFolder,
    cluster: ClusterId,
}

impl std::fmt::Debug for SharedJournals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("SharedJournals");
        shown.field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl SharedJournals {
    /// Opens the folder at `path` for hosts of `cluster`; creates the marker if there is none.
    ///
    /// # Errors
    /// [`JournalsError`].
    pub fn open(world: &World, path: &Path, cluster: ClusterId) -> Result<Self, JournalsError> {
        let path = host::resolve(path).map_err(failed(path))?;
        let marker = match read(world, &path)? {
            Some(marker) => marker,
            None => mark(world, &path, cluster)?,
        };
        let folder = SharedFolder {
            id: marker.of(cluster, &path)?,
            path,
        };
        Ok(Self {
            world: world.clone(),
            folder,
            cluster,
        })
    }

    /// The id of the folder when it was opened.
    pub fn id(&self) -> JournalFolderId {
        self.folder.id
    }

    /// Checks that the folder is still the one that was opened, and returns it.
    ///
    /// # Errors
    /// [`JournalsError`].
    pub fn verified(&self) -> Result<&SharedFolder, JournalsError> {
        let SharedFolder { path, id } = &self.folder;
        let marker = read(&self.world, path)?
            .ok_or_else(|| failed(&path.join(NAME))(io::Error::from(ErrorKind::NotFound)))?;
        let found = marker.of(self.cluster, path)?;
        if found == *id {
            return Ok(&self.folder);
        }
        Err(JournalsError::Changed {
            path: path.clone(),
            found,
            expected: *id,
        })
    }
}

impl SharedJournals {
    /// Removes the journals of a volume's leases before `epoch`, which no lease names any more.
    pub async fn remove_before(self: &Arc<Self>, volume: VolumeId, epoch: u32) {
        let shared = Arc::clone(self);
        let removed = blocking(move || {
            let folder = shared.verified();
            let folder = folder.map_err(|error| with_causes(&error))?;
            let removed = folder.remove_before(&shared.world, volume, epoch);
            removed.map_err(|error| with_causes(&error))
        })
        .await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%volume, error, "agent could not remove shared journals");
        }
    }
}

impl Marker {
    fn of(self, cluster: ClusterId, path: &Path) -> Result<JournalFolderId, JournalsError> {
        if self.cluster == cluster {
            return Ok(self.folder);
        }
        Err(JournalsError::OtherCluster {
            path: path.to_owned(),
            found: self.cluster,
        })
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> JournalsError {
    let path = path.to_owned();
    move |source| JournalsError::Io { path, source }
}

/// Reads the marker; `None` if there is none.
fn read(world: &World, folder: &Path) -> Result<Option<Marker>, JournalsError> {
    let path = folder.join(NAME);
    let text = match world.disk.open(&path, OpenMode::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| {
            let length = file.length()?.min(MARKER_BYTES_MAX);
            let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
            file.read_at(&mut text, 0)?;
            Ok(text)
        }),
    };
    let text = text.map_err(failed(&path))?;
    let unreadable = |reason: String| JournalsError::Unreadable {
        path: path.clone(),
        reason,
    };
    let text = String::from_utf8(text).map_err(|error| unreadable(error.to_string()))?;
    let parsed = |error: toml::de::Error| unreadable(error.message().to_owned());
    let AnyFormat { format: found } = toml::from_str(&text).map_err(parsed)?;
    if found > FORMAT {
        return Err(JournalsError::Newer { path, found });
    }
    toml::from_str(&text).map(Some).map_err(parsed)
}

/// Creates the marker. If two agents do so at once, one of them reads the marker of the other.
fn mark(world: &World, folder: &Path, cluster: ClusterId) -> Result<Marker, JournalsError> {
    let path = folder.join(NAME);
    let file = match world.disk.open(&path, OpenMode::CreateNew) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let unread = || failed(&path)(io::Error::from(ErrorKind::NotFound));
            return read(world, folder)?.ok_or_else(unread);
        }
        made => made.map_err(failed(&path))?,
    };
    let marker = Marker {
        format: FORMAT,
        cluster,
        folder: JournalFolderId::from_u128(world.random.u128()),
    };
    let text = toml::to_string(&marker).expect("strings and numbers can be written as TOML");
    let text = format!(
        "# Hosts of the cluster named here have their journals in this folder. Do not\n\
         # copy it: what a journal has is of use once, and in one place.\n{text}"
    );
    file.write_at(text.as_bytes(), 0)
        .and_then(|()| file.sync_data())
        .and_then(|()| world.disk.sync_directory(folder))
        .map_err(failed(&path))?;
    tracing::info!(path = %folder.display(), id = %marker.folder, "agent marked a folder of journals");
    Ok(marker)
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "these tests are users of a real machine"
)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId::from_u128(1);

    fn folder() -> (tempfile::TempDir, World) {
        let folder = tempfile::tempdir().expect("a folder");
        (folder, World::real(1))
    }

    fn put(folder: &Path, text: &str) {
        std::fs::write(folder.join(NAME), text).expect("written");
    }

    #[test]
    fn the_first_agent_marks_a_folder_and_all_others_find_the_same() {
        let (folder, world) = folder();
        let open = || SharedJournals::open(&world, folder.path(), CLUSTER).expect("a folder");
        let (first, second) = (open(), open());
        assert_eq!(first.id(), second.id());
        assert_eq!(first.verified().expect("there").id, first.id());
        let (other, _) = self::folder();
        let other = SharedJournals::open(&world, other.path(), CLUSTER).expect("a folder");
        assert_ne!(first.id(), other.id());
    }

    #[test]
    fn a_missing_folder_is_not_created() {
        let (folder, world) = folder();
        let missing = folder.path().join("not-mounted");
        let refused = SharedJournals::open(&world, &missing, CLUSTER).expect_err("it is missing");
        assert!(matches!(refused, JournalsError::Io { .. }), "{refused}");
        assert!(!missing.exists());
    }

    #[test]
    fn a_marker_that_is_foreign_or_newer_or_unreadable_is_refused() {
        let (folder, world) = folder();
        SharedJournals::open(&world, folder.path(), ClusterId::from_u128(2)).expect("a folder");
        let refused = |folder: &Path| {
            let opened = SharedJournals::open(&world, folder, CLUSTER);
            opened.expect_err("it belongs to another cluster")
        };
        let error = refused(folder.path());
        assert!(
            matches!(error, JournalsError::OtherCluster { .. }),
            "{error}"
        );
        put(folder.path(), "format = 2\nclan = 1\n");
        let error = refused(folder.path());
        assert!(
            matches!(error, JournalsError::Newer { found: 2, .. }),
            "{error}"
        );
        for text in ["", "format", "format = 1", "format = 1\ncluster = \"x\""] {
            put(folder.path(), text);
            let error = refused(folder.path());
            assert!(matches!(error, JournalsError::Unreadable { .. }), "{error}");
        }
    }

    #[test]
    fn an_unmounted_or_replaced_folder_is_detected_before_it_is_used() {
        let (folder, world) = folder();
        let journals = SharedJournals::open(&world, folder.path(), CLUSTER).expect("a folder");
        let kept = std::fs::read_to_string(folder.path().join(NAME)).expect("read");
        std::fs::remove_file(folder.path().join(NAME)).expect("removed");
        let error = journals.verified().expect_err("nothing is mounted");
        assert!(matches!(error, JournalsError::Io { .. }), "{error}");
        SharedJournals::open(&world, folder.path(), CLUSTER).expect("another one");
        let error = journals.verified().expect_err("another one");
        assert!(matches!(error, JournalsError::Changed { .. }), "{error}");
        put(folder.path(), &kept);
        journals.verified().expect("as before");
    }
}
