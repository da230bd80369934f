//! The root folder of a unit: paths, the marker, the owner, and the meaning of errors.
//!
//! ```text
//!  <folder>/
//!    scree-unit.toml          the marker, written last: no marker, no unit
//!    file-system.toml         what the file system was found to do at creation
//!    probe                    written by each probe of the unit's health
//!    segments/                created with the unit only
//!      000/ … 3ff/            created when first needed
//!        ccc-sssssssss        copyset and serial of a segment, in hex
//!    freed/                   stored for undelete, where there is a window
//! ```
//!
//! 1024 sub-folders hold four million segments (32 TiB) with 4096 names each.
//! Sixteen consecutive serials share one, so that the segments of a destage, which are numbered
//! consecutively, need few folders synced.

mod create;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{CopysetId, SegmentId, url};
use parking_lot::Mutex;
use unit::{Marker, Owner, UnitError};
use world::{Disk, OpenMode, WrongKind};

/// Number of sub-folders that segments are spread over.
pub(super) const FOLDERS: usize = 1024;

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
    // After 1024 rows the folders repeat.
    rows.take(FOLDERS)
        .map(|row| row as usize % FOLDERS)
        .collect()
}

/// The number of the sub-folder named `name`, if that is the name of one.
pub(super) fn folder_called(name: &str) -> Option<usize> {
    let number = usize::from_str_radix(name, 16).ok()?;
    (number < FOLDERS && name_of(number) == name).then_some(number)
}

fn name_of(folder: usize) -> String {
    format!("{folder:03x}")
}

/// The segment whose file is named `name`, if that is the name of a segment's file.
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

/// Name of the folder of segments, within the unit's.
pub(super) const SEGMENTS: &str = "segments";

/// Prefix of the names of a marker that is being written, and of the files with which the
/// file system is examined.
pub(super) const DRAFT: &str = "scree-unit.toml.draft";

/// The root folder of one unit.
pub(super) struct Root {
    /// The folder's content and nothing outside it: its administrator is not trusted, so no
    /// name in it may lead out. Paths are relative.
    pub(super) disk: Arc<dyn Disk>,
    /// The disk on which the folder itself is created; used for nothing else.
    pub(super) outside: Arc<dyn Disk>,
    /// The folder, on `outside`.
    pub(super) path: PathBuf,
    pub(super) url: String,
    /// The marker that the folder should have. Without an owner here, any owner matches.
    pub(super) marker: Marker,
    /// Whether the next claim also succeeds against an owner of the same generation.
    takes_over: AtomicBool,
    /// Whether the marker with this owner is known to be durable: an earlier process may have
    /// been killed between renaming the marker and syncing its name.
    is_claim_durable: AtomicBool,
    /// The error of the last claim.
    claim_error: Mutex<Option<UnitError>>,
}

/// Reads the marker in the folder at `url`, whose content is `disk`.
pub(super) fn identify(disk: &dyn Disk, url: &str) -> Result<Marker, UnitError> {
    let url = url.to_owned();
    let read = || {
        let file = disk.open(Path::new(unit::MARKER_FILE), OpenMode::Read)?;
        let mut text = vec![0; file.length()?.min(unit::MARKER_BYTES_MAX as u64) as usize];
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
            return unit_error(&url, "read its marker", error);
        }
        match disk.list(Path::new("")) {
            Ok(_) => missing(format!(
                "the folder has no {}; is it mounted?",
                unit::MARKER_FILE
            )),
            Err(why) if is_missing(&why) => missing("there is no such folder".to_owned()),
            Err(why) => unit_error(&url, "list its folder", why),
        }
    })?;
    Marker::parse(&text).map_err(|error| error.of_unit(url))
}

/// Converts an error of the operating system at the unit at `url`.
pub(super) fn unit_error(url: &str, doing: &str, error: io::Error) -> UnitError {
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
        _ if world::is_out_of_space(&error) => UnitError::Full { url },
        Kind::ReadOnlyFilesystem => UnitError::ReadOnly {
            url,
            reason: error.to_string(),
        },
        Kind::NotFound
        | Kind::NotADirectory
        // Network file systems and FUSE report these when the server is unavailable.
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

impl Root {
    pub(super) fn new(outside: Arc<dyn Disk>, path: &Path, marker: Marker) -> Self {
        Self {
            disk: outside.within(path),
            outside,
            path: path.to_owned(),
            url: url::url_of(path),
            marker,
            takes_over: AtomicBool::new(false),
            is_claim_durable: AtomicBool::new(false),
            claim_error: Mutex::default(),
        }
    }

    pub(super) fn set_owner(&mut self, owner: Owner, takes_over: bool) {
        self.marker.owner = Some(owner);
        self.takes_over = AtomicBool::new(takes_over);
    }

    pub(super) fn segments(&self) -> PathBuf {
        PathBuf::from(SEGMENTS)
    }

    pub(super) fn folder(&self, folder: usize) -> PathBuf {
        self.segments().join(name_of(folder))
    }

    pub(super) fn file(&self, segment: SegmentId) -> PathBuf {
        self.folder(folder_of(segment)).join(segment.to_string())
    }

    pub(super) fn unit_error(&self, doing: &str, error: io::Error) -> UnitError {
        unit_error(&self.url, doing, error)
    }

    /// As [`Root::unit_error`], for an error of a segment's file: a missing file is a missing
    /// segment only if the unit itself is there.
    pub(super) fn segment_error(
        &self,
        segment: SegmentId,
        doing: &str,
        error: io::Error,
    ) -> UnitError {
        match error.kind() {
            io::ErrorKind::NotFound => match self.check() {
                Ok(_) => UnitError::NoSegment {
                    url: self.url.clone(),
                    segment,
                },
                Err(why) => why,
            },
            io::ErrorKind::UnexpectedEof => self.damaged(segment, "the file is too short"),
            // Something else has the name of this file; other segments are not affected.
            _ if WrongKind::of(&error)
                .is_some_and(|wrong| wrong.path.ends_with(self.file(segment))) =>
            {
                self.damaged(segment, error)
            }
            _ => self.unit_error(&format!("{doing} segment {segment}"), error),
        }
    }

    pub(super) fn damaged(&self, segment: SegmentId, reason: impl ToString) -> UnitError {
        UnitError::Damaged {
            url: self.url.clone(),
            segment,
            reason: reason.to_string(),
        }
    }

    /// Checks that the folder is the expected unit, with any owner, and returns its marker.
    ///
    /// Cost: opening and reading a small file.
    pub(super) fn check(&self) -> Result<Marker, UnitError> {
        let found = identify(&*self.disk, &self.url)?;
        self.check_unit(&found)?;
        Ok(found)
    }

    /// As [`Root::check`], and checks that this owner may change the unit.
    pub(super) fn verify(&self) -> Result<(), UnitError> {
        let found = self.check()?;
        let Some(own) = &self.marker.owner else {
            return Ok(());
        };
        match found.owner {
            Some(holder) if holder == *own => Ok(()),
            Some(holder) if !self.may_claim(own, &holder) => Err(self.held(holder)),
            // The reason is the error of the last claim.
            _ => Err(self
                .claim_error
                .lock()
                .clone()
                .unwrap_or_else(|| UnitError::Missing {
                    url: self.url.clone(),
                    reason: "it is not claimed yet".to_owned(),
                })),
        }
    }

    /// As [`Root::verify`]; claims the unit first if this owner may.
    pub(super) fn claim(&self) -> Result<(), UnitError> {
        let claimed = self.try_claim();
        *self.claim_error.lock() = claimed.as_ref().err().cloned();
        claimed
    }

    fn try_claim(&self) -> Result<(), UnitError> {
        // Until it is claimed again: another folder may be there now.
        let was_durable = self.is_claim_durable.swap(false, Ordering::Relaxed);
        let found = self.check()?;
        let Some(own) = &self.marker.owner else {
            return Ok(());
        };
        let failed = |error| self.unit_error("claim the unit", error);
        match found.owner {
            Some(holder) if holder == *own => {
                if !was_durable {
                    self.disk.sync_directory(Path::new("")).map_err(failed)?;
                }
            }
            Some(holder) if !self.may_claim(own, &holder) => return Err(self.held(holder)),
            _ => {
                self.write_marker_even_if_full().map_err(failed)?;
                // Of two concurrent claims, the first one fails here or later.
                self.verify()?;
                self.remove_drafts();
            }
        }
        self.takes_over.store(false, Ordering::Relaxed);
        self.is_claim_durable.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether `own` may claim the unit from `holder`. Never from a later generation: the
    /// operator has declared the earlier ones lost, however late the unit becomes available.
    fn may_claim(&self, own: &Owner, holder: &Owner) -> bool {
        let takes_over = self.takes_over.load(Ordering::Relaxed);
        holder.generation < own.generation || (holder.generation == own.generation && takes_over)
    }

    /// Writes the marker, also on a full file system: the probe's file has enough room for it,
    /// and freeing, which makes more room, needs the claim.
    fn write_marker_even_if_full(&self) -> io::Result<()> {
        match self.write_marker() {
            Err(error) if world::is_out_of_space(&error) => {
                self.remove_probe()?;
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
                "it is a unit of {}, and this is {}; a unit of another cluster cannot be taken over",
                found.cluster, own.cluster
            )
        } else if found.unit != own.unit {
            format!("it is {}, and should be {}", found.unit, own.unit)
        } else {
            return Ok(());
        };
        Err(self.foreign(reason))
    }

    /// Lists all segments, sorted.
    pub(super) fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_folders(|_| true, |_| Ok(()))
    }

    /// Lists the segments with these serials, sorted. The absence of the others is durable on
    /// return: an earlier process may have removed a name and died before syncing that.
    pub(super) fn list_serials(&self, serials: &Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        let folders = folders_of(serials);
        let mut found = self.list_folders(
            |folder| folders.contains(&folder),
            |folder| self.disk.sync_directory(folder),
        )?;
        found.retain(|segment| serials.contains(&segment.serial()));
        Ok(found)
    }

    /// Lists the segments in the selected sub-folders, and calls `after` for each of these
    /// once it is listed.
    fn list_folders(
        &self,
        is_selected: impl Fn(usize) -> bool,
        after: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<Vec<SegmentId>, UnitError> {
        let failed = |error| self.unit_error("list its segments", error);
        let mut segments = Vec::new();
        for entry in self.disk.list(&self.segments()).map_err(failed)? {
            // Other names are ignored. A file with the name of a sub-folder is an error, not an
            // empty sub-folder.
            let Some(number) = folder_called(&entry.name).filter(|number| is_selected(*number))
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
    fn a_segments_file_name_is_parsed_back_to_its_id() {
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
    fn consecutive_segments_share_folders_and_all_folders_are_used() {
        let folder = |serial| folder_of(SegmentId::from_bits(serial).expect("48 bits"));
        assert_eq!(folder(0), folder(15));
        let used: std::collections::BTreeSet<usize> =
            (0..FOLDERS as u64 * 16).map(folder).collect();
        assert_eq!(used.len(), FOLDERS);
    }
}
