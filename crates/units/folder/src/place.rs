//! Where a unit's files are, whose they are, and what an error there means.
//!
//! ```text
//!  <folder>/
//!    scree-unit.toml          the marker, made last: no marker, no unit
//!    file-system.toml         what was found out when the unit was made
//!    probe                    written now and then, to see whether it works
//!    segments/                made with the unit and never again
//!      000/ … 3ff/            made when first needed
//!        ccc-sssssssss        copyset and serial of a segment, in hex
//!    freed/                   what is kept for a while (`keep`), where that is wanted
//! ```
//!
//! 1024 sub-folders hold four million segments (32 TiB) with 4096 names each.
//! Sixteen serials in a row share one, so that the segments of a destage,
//! which are numbered in a row, need few folders synced.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{CopysetId, SegmentId};
use parking_lot::Mutex;
use unit::{Marker, MarkerError, Owner, UnitError};
use world::{Disk, OpenMode, WrongKind};

/// How many sub-folders segments are spread over.
pub(super) const FOLDERS: usize = 1024;

/// The longest marker that is read, in bytes.
const MARKER_BYTES_MAX: u64 = 64 << 10;

/// Number of the sub-folder that holds a segment.
pub(super) fn folder_of(segment: SegmentId) -> usize {
    (segment.serial() >> 4) as usize % FOLDERS
}

/// The numbers of the sub-folders that hold segments with these serials.
pub(super) fn folders_of(serials: &Range<u64>) -> BTreeSet<usize> {
    if serials.is_empty() {
        return BTreeSet::new();
    }
    let rows = serials.start >> 4..=(serials.end - 1) >> 4;
    // After so many they come again.
    rows.take(FOLDERS)
        .map(|row| row as usize % FOLDERS)
        .collect()
}

/// The number of the sub-folder that is called `name`, if it is one's name.
pub(super) fn folder_called(name: &str) -> Option<usize> {
    let number = usize::from_str_radix(name, 16).ok()?;
    (number < FOLDERS && name_of(number) == name).then_some(number)
}

fn name_of(folder: usize) -> String {
    format!("{folder:03x}")
}

/// The segment whose file is called `name`, if it is a segment's.
#[must_use]
pub fn segment_of(name: &str) -> Option<SegmentId> {
    let (copyset, serial) = name.split_once('-')?;
    let number = |text: &str, digits| {
        let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_number = text.len() == digits && text.bytes().all(is_hex);
        is_number.then(|| u64::from_str_radix(text, 16).ok())?
    };
    let copyset = CopysetId::new(u16::try_from(number(copyset, 3)?).ok()?)?;
    SegmentId::new(copyset, number(serial, 9)?)
}

/// The folder of segments, in the unit's.
pub(super) const SEGMENTS: &str = "segments";

/// What the marker's name begins with while it is written, and those of files
/// that are nothing but a try.
pub(super) const DRAFT: &str = "scree-unit.toml.draft";

/// One unit's folder.
pub(super) struct Place {
    /// What lies in the folder, and nothing else: whoever keeps the unit is
    /// trusted with nothing, so no name in it may lead out. Paths are relative.
    pub(super) disk: Arc<dyn Disk>,
    /// Where the folder itself is made; used for nothing else.
    pub(super) outside: Arc<dyn Disk>,
    /// The folder, on `outside`.
    pub(super) path: PathBuf,
    pub(super) url: String,
    /// Whose the folder should be. Without an owner, it may have any.
    pub(super) marker: Marker,
    /// Whether to claim it, once, from an owner of the same generation too.
    pub(super) takes_over: AtomicBool,
    /// The marker with this owner is known to be durable: a process before
    /// this one may have been killed between renaming it and syncing that.
    pub(super) is_claim_durable: AtomicBool,
    /// Why it could not be claimed when that was last tried.
    pub(super) unclaimed: Mutex<Option<UnitError>>,
}

/// Reads the marker in the folder at `url`, which `disk` is within.
pub(super) fn identify(disk: &dyn Disk, url: &str) -> Result<Marker, UnitError> {
    let url = url.to_owned();
    let read = || {
        let file = disk.open(Path::new(unit::MARKER_FILE), OpenMode::Read)?;
        let mut text = vec![0; file.length()?.min(MARKER_BYTES_MAX) as usize];
        file.read_at(&mut text, 0)?;
        Ok(text)
    };
    let is_missing = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    };
    let missing = |reason| UnitError::Missing {
        url: url.clone(),
        reason,
    };
    let text = read().map_err(|error: io::Error| {
        if !is_missing(&error) {
            return meaning(&url, "read its marker", error);
        }
        match disk.list(Path::new("")) {
            Ok(_) => missing(format!(
                "the folder has no {}; is it mounted?",
                unit::MARKER_FILE
            )),
            Err(why) if is_missing(&why) => missing("there is no such folder".to_owned()),
            Err(why) => meaning(&url, "list its folder", why),
        }
    })?;
    Marker::parse(&text).map_err(|error| match error {
        MarkerError::Newer { found, known } => UnitError::Newer { url, found, known },
        MarkerError::Unreadable { reason } => UnitError::Missing {
            url,
            reason: format!("its {} cannot be read: {reason}", unit::MARKER_FILE),
        },
    })
}

/// What an error of the operating system means for the unit at `url`.
pub(super) fn meaning(url: &str, doing: &str, error: io::Error) -> UnitError {
    use io::ErrorKind as Kind;
    let url = url.to_owned();
    if let Some(wrong) = WrongKind::of(&error) {
        return UnitError::Tampered {
            url,
            doing: doing.to_owned(),
            found: wrong.to_string(),
        };
    }
    match error.kind() {
        _ if is_full(&error) => UnitError::Full { url },
        Kind::ReadOnlyFilesystem => UnitError::ReadOnly { url },
        Kind::NotFound
        | Kind::NotADirectory
        // What network file systems and FUSE say when the other end has gone.
        | Kind::StaleNetworkFileHandle
        | Kind::NotConnected
        | Kind::HostUnreachable => UnitError::Unavailable {
            url,
            doing: doing.to_owned(),
            source: Arc::new(error),
        },
        _ => UnitError::Io {
            url,
            doing: doing.to_owned(),
            source: Arc::new(error),
        },
    }
}

/// Whether an error says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::StorageFull | Kind::QuotaExceeded)
}

impl Place {
    pub(super) fn segments(&self) -> PathBuf {
        PathBuf::from(SEGMENTS)
    }

    pub(super) fn folder(&self, folder: usize) -> PathBuf {
        self.segments().join(name_of(folder))
    }

    pub(super) fn file(&self, segment: SegmentId) -> PathBuf {
        self.folder(folder_of(segment)).join(segment.to_string())
    }

    pub(super) fn meaning(&self, doing: &str, error: io::Error) -> UnitError {
        meaning(&self.url, doing, error)
    }

    /// As [`Place::meaning`], for an error at a segment's file: a file that is
    /// not there is a missing segment only if the unit itself is there.
    pub(super) fn meaning_at(
        &self,
        segment: SegmentId,
        doing: &str,
        error: io::Error,
    ) -> UnitError {
        match error.kind() {
            io::ErrorKind::NotFound => match self.look() {
                Ok(_) => UnitError::NoSegment {
                    url: self.url.clone(),
                    segment,
                },
                Err(why) => why,
            },
            io::ErrorKind::UnexpectedEof => self.damaged(segment, "the file is too short"),
            // In place of its own file: of the other segments that says nothing.
            _ if WrongKind::of(&error)
                .is_some_and(|wrong| wrong.path.ends_with(self.file(segment))) =>
            {
                self.damaged(segment, error)
            }
            _ => self.meaning(&format!("{doing} segment {segment}"), error),
        }
    }

    pub(super) fn damaged(&self, segment: SegmentId, reason: impl ToString) -> UnitError {
        UnitError::Damaged {
            url: self.url.clone(),
            segment,
            reason: reason.to_string(),
        }
    }

    /// Looks whether the folder is the unit it should be, whoever may change
    /// it.
    ///
    /// Cost: opening and reading a small file.
    pub(super) fn look(&self) -> Result<Marker, UnitError> {
        let found = identify(&*self.disk, &self.url)?;
        self.check_unit(&found)?;
        Ok(found)
    }

    /// As [`Place::look`], and whether it may be changed.
    pub(super) fn verify(&self) -> Result<(), UnitError> {
        let found = self.look()?;
        let Some(own) = &self.marker.owner else {
            return Ok(());
        };
        match found.owner {
            Some(holder) if holder == *own => Ok(()),
            Some(holder) if !self.may_claim(own, &holder) => Err(self.held(holder)),
            // What keeps it from being claimed is what is wrong with it.
            _ => Err(self
                .unclaimed
                .lock()
                .clone()
                .unwrap_or_else(|| UnitError::Missing {
                    url: self.url.clone(),
                    reason: "it was not claimed yet".to_owned(),
                })),
        }
    }

    /// As [`Place::verify`]; a folder that is the unit and may be claimed is.
    pub(super) fn claim(&self) -> Result<(), UnitError> {
        let claimed = self.try_claim();
        *self.unclaimed.lock() = claimed.as_ref().err().cloned();
        claimed
    }

    fn try_claim(&self) -> Result<(), UnitError> {
        // Until it is claimed anew: what comes back may be another folder.
        let was_durable = self.is_claim_durable.swap(false, Ordering::Relaxed);
        let found = self.look()?;
        let Some(own) = &self.marker.owner else {
            return Ok(());
        };
        let failed = |error| self.meaning("claim the unit", error);
        match found.owner {
            Some(holder) if holder == *own => {
                if !was_durable {
                    self.disk.sync_directory(Path::new("")).map_err(failed)?;
                }
            }
            Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
            _ => {
                self.write_marker_even_if_full().map_err(failed)?;
                // Of two that claim it at once, the first one finds out here
                // or later.
                self.verify()?;
                self.remove_drafts();
            }
        }
        self.takes_over.store(false, Ordering::Relaxed);
        self.is_claim_durable.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Never from a later generation: of that one the operator said later
    /// that the others are gone, however late the unit is seen.
    fn may_claim(&self, own: &Owner, holder: &Owner) -> bool {
        let takes_over = self.takes_over.load(Ordering::Relaxed);
        holder.generation < own.generation || (holder.generation == own.generation && takes_over)
    }

    /// Writes the marker anew, also where there is no room: the probe has as
    /// much as that needs, and freeing, which makes more, needs the claim.
    fn write_marker_even_if_full(&self) -> io::Result<()> {
        match self.write_marker() {
            Err(error) if is_full(&error) => {
                self.give_up_probe()?;
                self.write_marker()
            }
            other => other,
        }
    }

    fn held(&self, holder: Owner) -> UnitError {
        UnitError::Held {
            url: self.url.clone(),
            holder: Box::new(holder),
        }
    }

    fn check_unit(&self, found: &Marker) -> Result<(), UnitError> {
        let own = &self.marker;
        let reason = if found.cluster != own.cluster {
            format!(
                "it is a unit of {}, and this is {}; a unit of another cluster is never taken over",
                found.cluster, own.cluster
            )
        } else if found.unit != own.unit {
            format!("it is {}, and should be {}", found.unit, own.unit)
        } else {
            return Ok(());
        };
        Err(self.foreign(reason))
    }

    /// All segments, sorted.
    pub(super) fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_folders(|_| true, |_| Ok(()))
    }

    /// Those with these serials, sorted. The absence of the others is durable:
    /// a process before this one may have removed a name and not lived to sync
    /// that.
    pub(super) fn list_serials(&self, serials: &Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let wanted = folders_of(serials);
        let mut found = self.list_folders(
            |folder| wanted.contains(&folder),
            |folder| self.disk.sync_directory(folder),
        )?;
        found.retain(|segment| serials.contains(&segment.serial()));
        Ok(found)
    }

    /// The segments in the sub-folders that are wanted, each of which is
    /// looked at first and then shown to `after`.
    fn list_folders(
        &self,
        is_wanted: impl Fn(usize) -> bool,
        after: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<Vec<SegmentId>, UnitError> {
        let failed = |error| self.meaning("list its segments", error);
        let mut segments = Vec::new();
        for entry in self.disk.list(&self.segments()).map_err(failed)? {
            // Of any other name nothing is expected. One of these that is no
            // folder must not pass for one without segments.
            let Some(number) = folder_called(&entry.name).filter(|number| is_wanted(*number))
            else {
                continue;
            };
            let folder = self.folder(number);
            let names = self.disk.list(&folder).map_err(failed)?;
            after(&folder).map_err(failed)?;
            let ids = names.iter().filter_map(|entry| segment_of(&entry.name));
            segments.extend(ids.filter(|id| folder_of(*id) == number));
        }
        segments.sort_unstable();
        Ok(segments)
    }

    pub(super) fn foreign(&self, reason: String) -> UnitError {
        UnitError::Foreign {
            url: self.url.clone(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_found_again_by_its_file_name() {
        let segment = SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits");
        assert_eq!(segment.to_string(), "0ab-c12345678");
        assert_eq!(segment_of("0ab-c12345678"), Some(segment));
        for name in [
            "",
            "0ab-",
            "0ab-c1234567",
            "0ab-C12345678",
            "0ab-c12345678.tmp",
            "+ab-c12345678",
        ] {
            assert_eq!(segment_of(name), None, "{name}");
        }
    }

    #[test]
    fn segments_in_a_row_share_folders_and_all_folders_are_used() {
        let folder = |serial| folder_of(SegmentId::from_bits(serial).expect("48 bits"));
        assert_eq!(folder(0), folder(15));
        let used: std::collections::BTreeSet<usize> =
            (0..FOLDERS as u64 * 16).map(folder).collect();
        assert_eq!(used.len(), FOLDERS);
    }
}
