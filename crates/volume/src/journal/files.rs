//! The journal's file: creating it, opening it, taking it over from another
//! host.
//!
//! A file belongs to the holder of one lease from when it gets its name until
//! another file gets that name. A former holder may be slow and still have it
//! open. So what another host had open is never written, but copied:
//!
//! 1. remove the drafts of earlier leases
//! 2. open the former file for reading
//! 3. copy the records that follow into a draft, at the same offsets
//! 4. sync it, and check that the lease still holds
//! 5. rename it to the journal's name, and sync the folder
//!
//! Where a host has its journals for itself, that name is the former file's:
//! from 5 on the former holder's descriptor leads to a file without a name, and
//! nothing it still writes there is ever read. In a folder that several hosts
//! share, each lease has a name of its own, and the catalog says which one
//! counts (`location.rs`). Until 5 the former file is unchanged, so a crash in
//! between loses nothing.
//!
//! Invariant: at most one host writes a file that has, or will ever have, the
//! journal's name. A draft's name contains its lease's epoch; step 1 stops a
//! host that is further behind than its clock says, step 4 one that knows that
//! it is late.
//!
//! The first page, 8 bytes to a row:
//!
//! ```text
//!  0│ magic "SCRJRNL"         │ format u8 = 1 │
//!  8│ journal id, 16 bytes                    │  in every record
//! 24│ volume id, 16 bytes                     │
//! 40│ ring bytes u64                          │
//! 48│ CRC-32C of bytes 0 to 47, u32           │  then zeroes
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::checksum::crc32c;
use base::codec::{OutOfBytes, Reader, Writer};
use base::{VolumeId, with_causes};
use world::{File, OpenMode, World};

use super::record::HEADER_BYTES;
use super::ring::{Journal, JournalSpec};
use crate::lease_term::{LeaseStatus, LeaseTerm};

const MAGIC: &[u8; 7] = b"SCRJRNL";
/// The format of the first page and of the records that follow it.
const FORMAT: u8 = 1;
const PAGE: u64 = HEADER_BYTES as u64;

/// Why a journal could not be created, opened or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system returned an error.
    #[error("cannot {doing} the journal {path}")]
    Io {
        /// The verb of the failed operation.
        doing: &'static str,
        /// The file.
        path: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The journal could not be created, and its draft could not be removed.
    #[error(
        "{}; its draft {draft} cannot be removed: {removing}",
        with_causes(error)
    )]
    DraftLeft {
        /// Why it could not be created.
        #[source]
        error: Box<JournalError>,
        /// The draft, which the next attempt removes.
        draft: String,
        /// Why the draft could not be removed.
        removing: std::io::Error,
    },
    /// A record that was durable is missing or damaged, though later ones are
    /// intact.
    #[error("{path} is damaged at byte {offset}: writes that were flushed cannot be read back")]
    Damaged {
        /// The file.
        path: String,
        /// Where the damaged record begins, in bytes.
        offset: u64,
    },
    /// The lease expired before the file got its name: its next holder may have
    /// put another file there.
    #[error("the lease expired before the journal {path} was created")]
    LeaseExpired {
        /// The file.
        path: String,
    },
    /// The journal that the catalog names does not exist.
    #[error("the journal {path} is missing: writes that were flushed cannot be read back")]
    Missing {
        /// The file.
        path: String,
    },
    /// The file is not a journal of this volume, or has a newer format.
    #[error("{path} is not a journal of {volume}: {reason}")]
    Foreign {
        /// The file.
        path: String,
        /// The volume whose journal was expected.
        volume: VolumeId,
        /// What was found instead.
        reason: String,
    },
}

impl JournalError {
    /// Whether flushed writes are lost with the journal, as far as can be known:
    /// it was readable once, and is missing or damaged now.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Missing { .. } | Self::Foreign { .. }
        )
    }
}

/// The lease under which a file is created.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The lease's epoch.
    pub epoch: u32,
    /// How long the lease lasts.
    pub term: LeaseTerm,
}

impl Claim {
    /// A claim for tests and tools, where no other host exists.
    #[must_use]
    pub fn sole() -> Self {
        Self {
            epoch: 0,
            term: LeaseTerm::unlimited(),
        }
    }
}

/// The first page of a journal's file.
#[derive(Debug, Clone, Copy)]
struct FilePage {
    id: u128,
    volume: VolumeId,
    ring_bytes: u64,
}

/// A journal's file that was opened, and its first page.
struct OpenedFile {
    file: Arc<dyn File>,
    page: FilePage,
}

impl Journal {
    /// Creates a journal of `ring_bytes` (rounded up to whole pages), whose log
    /// begins at the position of `spec`.
    ///
    /// # Errors
    /// [`JournalError::Io`], also if there is no room for the ring; nothing is
    /// left of the journal then, or the error is [`JournalError::DraftLeft`].
    pub fn create(
        world: &World,
        path: &Path,
        spec: JournalSpec,
        ring_bytes: u64,
        claim: &Claim,
    ) -> Result<Self, JournalError> {
        let page = FilePage {
            id: world.random.u128(),
            volume: spec.volume,
            ring_bytes: ring_bytes.next_multiple_of(PAGE),
        };
        clear_drafts(world, path, claim.epoch)?;
        create_file(world, path, page, claim, |file| {
            Ok(page.journal(file, path, spec))
        })
    }

    /// Opens the file at `path` and checks that it belongs to the volume.
    ///
    /// # Errors
    /// [`JournalError`]; `None` if there is no file.
    pub fn open(
        world: &World,
        path: &Path,
        spec: JournalSpec,
    ) -> Result<Option<Self>, JournalError> {
        let opened = open_file(world, path, spec.volume, OpenMode::Write)?;
        Ok(opened.map(|OpenedFile { file, page }| page.journal(file, path, spec)))
    }

    /// Takes over what another host may still have open at `former`, into
    /// `path`, which may be the same: see the module's lifecycle. `copy` brings
    /// what is worth keeping from the former file into the journal.
    ///
    /// # Errors
    /// As [`Journal::create`], and those of `copy`; `None` if there is no former
    /// file.
    pub fn take_over<T>(
        world: &World,
        former: &Path,
        path: &Path,
        spec: JournalSpec,
        claim: &Claim,
        copy: impl FnOnce(&dyn File, &mut Self) -> Result<T, JournalError>,
    ) -> Result<Option<(Self, T)>, JournalError> {
        clear_drafts(world, path, claim.epoch)?;
        let Some(former) = open_file(world, former, spec.volume, OpenMode::Read)? else {
            return Ok(None);
        };
        let page = former.page;
        // The id stays the same: the records are copied as they are.
        let taken = create_file(world, path, page, claim, |file| {
            let mut journal = page.journal(file, path, spec);
            let copied = copy(&*former.file, &mut journal)?;
            Ok((journal, copied))
        })?;
        Ok(Some(taken))
    }
}

pub(super) fn failed(doing: &'static str, path: &Path) -> impl Fn(std::io::Error) -> JournalError {
    let path = path.display().to_string();
    move |source| JournalError::Io {
        doing,
        path: path.clone(),
        source,
    }
}

/// Opens a file and checks that its first page names `volume`.
fn open_file(
    world: &World,
    path: &Path,
    volume: VolumeId,
    mode: OpenMode,
) -> Result<Option<OpenedFile>, JournalError> {
    let file = match world.disk.open(path, mode) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let foreign = |reason: &str| JournalError::Foreign {
        path: path.display().to_string(),
        volume,
        reason: reason.to_owned(),
    };
    let length = file.length().map_err(failed("read", path))?;
    if length < PAGE {
        return Err(foreign("it is too short"));
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_at(&mut bytes, 0).map_err(failed("read", path))?;
    let page = FilePage::decode(&bytes).map_err(|reason| foreign(&reason))?;
    if page.volume != volume {
        return Err(foreign(&format!("it belongs to {}", page.volume)));
    }
    if length < PAGE + page.ring_bytes {
        return Err(foreign("it is shorter than its ring"));
    }
    Ok(Some(OpenedFile { file, page }))
}

/// Creates a file under a draft's name and renames it, so that a journal that
/// exists is complete; `fill` writes what follows the first page.
fn create_file<T>(
    world: &World,
    path: &Path,
    page: FilePage,
    claim: &Claim,
    fill: impl FnOnce(Arc<dyn File>) -> Result<T, JournalError>,
) -> Result<T, JournalError> {
    let draft = path.with_extension(format!("new-{}", claim.epoch));
    let file = world
        .disk
        .open(&draft, OpenMode::CreateNew)
        .map_err(failed("create", path))?;
    let fill = || {
        file.allocate(PAGE + page.ring_bytes)
            .map_err(failed("reserve room for", path))?;
        file.write_at(&page.encode(), 0)
            .map_err(failed("write", path))?;
        let filled = fill(Arc::clone(&file))?;
        file.sync_data().map_err(failed("sync", path))?;
        if claim.term.status(&*world.clock) != LeaseStatus::Held {
            return Err(JournalError::LeaseExpired {
                path: path.display().to_string(),
            });
        }
        world
            .disk
            .rename(&draft, path)
            .map_err(failed("name", path))?;
        Ok(filled)
    };
    let filled = match fill() {
        Ok(filled) => filled,
        // A full disk gets back what the draft took.
        Err(error) => {
            return Err(match world.disk.remove(&draft) {
                Ok(()) => error,
                // A rename that failed may have taken effect.
                Err(removing) if removing.kind() == ErrorKind::NotFound => error,
                Err(removing) => JournalError::DraftLeft {
                    error: Box::new(error),
                    draft: draft.display().to_string(),
                    removing,
                },
            });
        }
    };
    if let Some(folder) = path.parent() {
        world
            .disk
            .sync_directory(folder)
            .map_err(failed("sync the folder of", path))?;
    }
    Ok(filled)
}

/// Removes the drafts that this lease and earlier ones left at `path`.
fn clear_drafts(world: &World, path: &Path, epoch: u32) -> Result<(), JournalError> {
    let (Some(folder), Some(stem)) = (path.parent(), path.file_stem()) else {
        return Ok(());
    };
    let replace = failed("replace a draft of", path);
    let prefix = format!("{}.new-", stem.display());
    for entry in world.disk.list(folder).map_err(&replace)? {
        let Some(rest) = entry.name.strip_prefix(&prefix) else {
            continue;
        };
        let drafted: Option<u32> = rest.parse().ok();
        if drafted.is_some_and(|drafted| drafted <= epoch) {
            let draft: PathBuf = folder.join(&entry.name);
            match world.disk.remove(&draft) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(replace(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

impl FilePage {
    /// The journal in `file`.
    fn journal(self, file: Arc<dyn File>, path: &Path, spec: JournalSpec) -> Journal {
        let path = path.display().to_string();
        Journal::over(file, path, self.id, self.ring_bytes, spec)
    }

    fn encode(self) -> Vec<u8> {
        let mut page = Vec::with_capacity(HEADER_BYTES);
        page.put_bytes(MAGIC);
        page.put_u8(FORMAT);
        page.put_u128(self.id);
        page.put_u128(self.volume.as_u128());
        page.put_u64(self.ring_bytes);
        let crc = crc32c(&page);
        page.put_u32(crc);
        page.resize(HEADER_BYTES, 0);
        page
    }

    /// Reads a first page; the error says what is wrong with it.
    fn decode(page: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        Self::parse(page).unwrap_or_else(|_| Err("its first page is damaged".to_owned()))
    }

    fn parse(page: &[u8; HEADER_BYTES]) -> Result<Result<Self, String>, OutOfBytes> {
        let mut reader = Reader::new(page);
        let magic = reader.bytes(MAGIC.len())?;
        let format = reader.u8()?;
        let id = reader.u128()?;
        let volume = VolumeId::from_u128(reader.u128()?);
        let ring_bytes = reader.u64()?;
        let is_intact = magic == MAGIC && reader.u32()? == crc32c(&page[..48]);
        if is_intact && format != FORMAT {
            return Ok(Err(format!(
                "it has format {format}; this build reads format {FORMAT}"
            )));
        }
        let is_valid =
            is_intact && ring_bytes > 0 && ring_bytes.is_multiple_of(PAGE) && ring_bytes < 1 << 50;
        Ok(match is_valid {
            true => Ok(Self {
                id,
                volume,
                ring_bytes,
            }),
            false => Err("its first page is damaged".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A first page of format 1, up to where its zeroes begin.
    const FIXTURE: [u8; 52] = [
        0x53, 0x43, 0x52, 0x4a, 0x52, 0x4e, 0x4c, 0x01, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23,
        0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00,
        0x00, 0x00, 0x00, 0xd7, 0xb3, 0x4c, 0x5a,
    ];

    fn page() -> FilePage {
        FilePage {
            id: 0x0123_4567_89ab_cdef,
            volume: VolumeId::from_u128(7),
            ring_bytes: 1 << 20,
        }
    }

    #[test]
    fn the_first_page_has_format_1() {
        let encoded = page().encode();
        assert_eq!(encoded[..FIXTURE.len()], FIXTURE);
        assert!(encoded[FIXTURE.len()..].iter().all(|byte| *byte == 0));
        let read = FilePage::decode(encoded[..].try_into().expect("a page"));
        assert_eq!(read.map(|page| page.ring_bytes), Ok(1 << 20));
    }

    #[test]
    fn a_first_page_of_a_newer_format_is_refused_by_its_number() {
        let mut newer = page().encode();
        newer[7] = FORMAT + 1;
        let crc = crc32c(&newer[..48]);
        newer[48..52].copy_from_slice(&crc.to_le_bytes());
        let read = FilePage::decode(newer[..].try_into().expect("a page"));
        let reason = read.map(|_| ()).expect_err("it is newer");
        assert_eq!(reason, "it has format 2; this build reads format 1");
    }
}
