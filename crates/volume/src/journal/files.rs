//! The journal's file: making it, opening it, taking it over from another
//! host.
//!
//! A file belongs to one lease's holder from when it gets its name until
//! another file gets that name. A former holder may be slow, and have it open
//! still; so what another host had is never written, but copied:
//!
//! 1. clear away the drafts of earlier leases
//! 2. open the former file, for reading
//! 3. copy the records that follow into a draft, at the same places
//! 4. sync it, and look whether the lease still holds
//! 5. rename it to the journal's name, and sync the folder
//!
//! Where a host has a journal for itself, that name is the former file's: from
//! 5 on the former holder's descriptor leads to a file without a name, and what
//! it still writes there, nobody will read. In a folder that several hosts have
//! each lease has a name of its own, and the catalog says which one counts
//! (`place.rs`). Until 5 the former file is as it was, so a crash in
//! between costs nothing.
//!
//! Invariant: at most one host writes a file that has, or will ever have, the
//! journal's name. A draft's name has its lease's epoch in it; 1 stops a host
//! that is further behind than its clock says, 4 one that knows it is late.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::checksum::crc32c;
use base::codec::{Reader, Writer};
use base::{BlockSize, VolumeId, with_causes};
use world::{File, OpenMode, World};

use super::record::HEADER_BYTES;
use super::ring::Journal;
use crate::lease_term::{LeaseStatus, LeaseTerm};

const MAGIC: &[u8; 8] = b"SCRJRNL1";
const PAGE: u64 = HEADER_BYTES as u64;

/// Why a journal could not be made, opened or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot {doing} the journal {path}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// It could not be made, and what was made of it could not be removed.
    #[error(
        "{}; its draft {draft} cannot be removed: {removing}",
        with_causes(error)
    )]
    DraftLeft {
        /// Why it could not be made.
        #[source]
        error: Box<JournalError>,
        /// The file that is left; the next attempt removes it.
        draft: String,
        /// Why it could not be removed.
        removing: std::io::Error,
    },
    /// A record that was durable is not there any more, or not whole, though
    /// later ones are.
    #[error("{path} is damaged at byte {offset}: writes that were flushed cannot be read back")]
    Damaged {
        /// The file.
        path: String,
        /// Where the damaged record begins, in bytes.
        offset: u64,
    },
    /// The lease ran out before the file had its name: whoever has the volume
    /// now may have put another one there.
    #[error("the lease ran out before the journal {path} was made")]
    LeaseExpired {
        /// The file.
        path: String,
    },
    /// A journal that was named is not there.
    #[error("the journal {path} is missing: writes that were flushed cannot be read back")]
    Missing {
        /// The file.
        path: String,
    },
    /// The file is not a journal of this volume.
    #[error("{path} is not a journal of {volume}: {reason}")]
    Foreign {
        /// The file.
        path: String,
        /// Whose journal was expected.
        volume: VolumeId,
        /// What was found.
        reason: String,
    },
}

impl JournalError {
    /// Whether what was flushed is lost with the journal, as far as can be
    /// known: it was there to be read, and is gone or not whole.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Missing { .. } | Self::Foreign { .. }
        )
    }
}

/// Under which lease a file is made.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The lease's epoch.
    pub epoch: u32,
    /// Until when it holds.
    pub term: LeaseTerm,
}

impl Claim {
    /// Where nobody else can come.
    #[must_use]
    pub fn sole() -> Self {
        Self {
            epoch: 0,
            term: LeaseTerm::unlimited(),
        }
    }
}

/// What a journal's first page says.
#[derive(Debug, Clone, Copy)]
struct Page {
    id: u128,
    volume: VolumeId,
    ring_bytes: u64,
}

/// A journal's file that is there.
struct Found {
    file: Arc<dyn File>,
    page: Page,
}

impl Journal {
    /// Makes a new journal of `ring_bytes` (rounded up to whole pages), whose
    /// log begins at `position`.
    ///
    /// # Errors
    /// [`JournalError::Io`], also if there is no room for the ring; nothing is
    /// left of the journal then, or the error is [`JournalError::DraftLeft`].
    pub fn create(
        world: &World,
        path: &Path,
        volume: VolumeId,
        block_size: BlockSize,
        ring_bytes: u64,
        position: u64,
        claim: &Claim,
    ) -> Result<Self, JournalError> {
        let page = Page {
            id: world.random.u128(),
            volume,
            ring_bytes: ring_bytes.next_multiple_of(PAGE),
        };
        clear_drafts(world, path, claim.epoch)?;
        make(world, path, page, claim, |file| {
            Ok(page.journal(file, path, block_size, position))
        })
    }

    /// Opens the file at `path` and checks whose it is.
    ///
    /// # Errors
    /// [`JournalError`]; `None` if there is no file.
    pub fn open(
        world: &World,
        path: &Path,
        volume: VolumeId,
        block_size: BlockSize,
        position: u64,
    ) -> Result<Option<Self>, JournalError> {
        let Some(Found { file, page }) = look_up(world, path, volume, OpenMode::Write)? else {
            return Ok(None);
        };
        Ok(Some(page.journal(file, path, block_size, position)))
    }

    /// Takes over what another host may still have open at `former`, into
    /// `path`, which may be the same: see the module's head. `copy` brings what
    /// is worth keeping from the former file into the journal.
    ///
    /// # Errors
    /// As [`Journal::create`], and what `copy` says; `None` if there is no
    /// former file.
    #[expect(
        clippy::too_many_arguments,
        reason = "two paths, and what `create` takes"
    )]
    pub fn take_over<T>(
        world: &World,
        former: &Path,
        path: &Path,
        volume: VolumeId,
        block_size: BlockSize,
        position: u64,
        claim: &Claim,
        copy: impl FnOnce(&dyn File, &mut Self) -> Result<T, JournalError>,
    ) -> Result<Option<(Self, T)>, JournalError> {
        clear_drafts(world, path, claim.epoch)?;
        let Some(former) = look_up(world, former, volume, OpenMode::Read)? else {
            return Ok(None);
        };
        let page = former.page;
        // With the same id: its records are copied as they are.
        let taken = make(world, path, page, claim, |file| {
            let mut journal = page.journal(file, path, block_size, position);
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

/// Opens a file and reads whose journal it is.
fn look_up(
    world: &World,
    path: &Path,
    volume: VolumeId,
    mode: OpenMode,
) -> Result<Option<Found>, JournalError> {
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
    let page = Page::decode(&bytes).ok_or_else(|| foreign("its first page is damaged"))?;
    if page.volume != volume {
        return Err(foreign(&format!("it belongs to {}", page.volume)));
    }
    if length < PAGE + page.ring_bytes {
        return Err(foreign("it is shorter than its ring"));
    }
    Ok(Some(Found { file, page }))
}

/// Makes a file under a draft's name first, so that a journal that exists is
/// whole; `fill` writes what is to be in it beside the first page.
fn make<T>(
    world: &World,
    path: &Path,
    page: Page,
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
        // What it took of a full disk is given back.
        Err(error) => {
            return Err(match world.disk.remove(&draft) {
                Ok(()) => error,
                // A rename that failed may have been carried out.
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

/// Removes what this lease, and those before it, began to make at `path`.
fn clear_drafts(world: &World, path: &Path, epoch: u32) -> Result<(), JournalError> {
    let (Some(folder), Some(stem)) = (path.parent(), path.file_stem()) else {
        return Ok(());
    };
    let replace = failed("replace a draft of", path);
    let prefix = format!("{}.new", stem.display());
    for entry in world.disk.list(folder).map_err(&replace)? {
        let Some(rest) = entry.name.strip_prefix(&prefix) else {
            continue;
        };
        // Drafts of earlier programs have no epoch.
        let drafted: Option<u32> = match rest {
            "" => Some(0),
            _ => rest.strip_prefix('-').and_then(|epoch| epoch.parse().ok()),
        };
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

impl Page {
    /// The journal in `file`, followed from `position` on.
    fn journal(
        self,
        file: Arc<dyn File>,
        path: &Path,
        block_size: BlockSize,
        position: u64,
    ) -> Journal {
        let path = path.display().to_string();
        Journal::over(file, path, self.id, self.ring_bytes, block_size, position)
    }

    fn encode(self) -> Vec<u8> {
        let mut page = Vec::with_capacity(HEADER_BYTES);
        page.put_bytes(MAGIC);
        page.put_u128(self.id);
        page.put_u128(self.volume.as_u128());
        page.put_u64(self.ring_bytes);
        let crc = crc32c(&page);
        page.put_u32(crc);
        page.resize(HEADER_BYTES, 0);
        page
    }

    fn decode(page: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut reader = Reader::new(page);
        let magic = reader.bytes(8).ok()?;
        let id = reader.u128().ok()?;
        let volume = VolumeId::from_u128(reader.u128().ok()?);
        let ring_bytes = reader.u64().ok()?;
        let sound = magic == MAGIC
            && reader.u32().ok()? == crc32c(&page[..48])
            && ring_bytes > 0
            && ring_bytes.is_multiple_of(PAGE)
            && ring_bytes < 1 << 50;
        sound.then_some(Self {
            id,
            volume,
            ring_bytes,
        })
    }
}
