//! Putting slots, making them durable, and making and probing the unit itself.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use base::{SegmentId, Slot};
use world::{File, OpenMode, WrongKind};

use super::examine::{self, ExamineError};
use super::format::{Entry, Header, TABLE_OFFSET};
use super::place::{
    DRAFT, Place, SEGMENTS, folder_called, folder_of, folders_of, identify, segment_of,
};
use super::segment::Segment;
use super::table::write_entries;
use super::{FolderUnit, Marker, is_not_found, lock, marker, misplaced};
use crate::{Tag, Unit, UnitError};

/// The probe's name.
const PROBE: &str = "probe";

/// What a probe consists of.
const PROBE_BYTE: u8 = 0x5a;

/// How long it is, in bytes.
const PROBE_BYTES: u64 = 4096;

pub(super) fn entries_of(slot_bytes: u32, tags: &[Tag], data: &[u8]) -> Vec<Entry> {
    let contents = data.chunks_exact(slot_bytes as usize);
    tags.iter()
        .zip(contents)
        .map(|(tag, content)| Entry::of(tag, content))
        .collect()
}

impl FolderUnit {
    /// Makes a segment of `line` with its first slots.
    pub(super) fn put_first(
        &self,
        id: SegmentId,
        line: u64,
        slot_bytes: u32,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        let cluster = self.place.marker.cluster;
        // Too many slots, a size that cannot be, or a name that is taken.
        let misplaced_new = || UnitError::Misplaced {
            segment: id,
            slots: 0,
            slot_bytes,
        };
        let header = Header::new(id, cluster, slot_bytes, self.segment_data_bytes)
            .filter(|header| tags.len() <= header.capacity as usize)
            .ok_or_else(misplaced_new)?
            .of_line(line);
        self.place.verify()?;
        let file = match self.create_file(id) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(match self.stat_segment(id) {
                    Ok(found) => misplaced(&found),
                    // What bears its name is no segment of ours.
                    Err(why @ UnitError::Damaged { .. }) => why,
                    Err(_) => misplaced_new(),
                });
            }
            other => other.map_err(|error| self.place.meaning("make a segment", error))?,
        };
        let segment = Segment::new(header, file);
        let entries = entries_of(slot_bytes, tags, data);
        if let Err(error) = write_new(&segment, &entries, data) {
            // Nobody names it; what it took so far is given back.
            let _ = self.place.disk.remove(&self.place.file(id));
            return Err(self.place.meaning(&format!("write segment {id}"), error));
        }
        self.remember_put(id, &Arc::new(segment), &entries, 0);
        Ok(())
    }

    fn create_file(&self, segment: SegmentId) -> io::Result<Arc<dyn File>> {
        self.create_at(segment, &self.place.file(segment))
    }

    /// Makes a file in the sub-folder of `segment`, and that if it is missing.
    pub(super) fn create_at(&self, segment: SegmentId, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.place.disk.open(path, OpenMode::CreateNew) {
            Err(error) if is_not_found(&error) => {
                let folder = self.place.folder(folder_of(segment));
                self.place.disk.create_directory(&folder)?;
                self.place.disk.open(path, OpenMode::CreateNew)
            }
            other => other,
        }
    }

    /// Appends slots to a segment.
    pub(super) fn put_next(
        &self,
        id: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        let first = u32::from(first.0);
        let continues = |segment: &Segment| {
            segment.header.slot_bytes == slot_bytes
                && segment.slots() == first
                && first as usize + tags.len() <= segment.header.capacity as usize
        };
        let segment = self.writable(id)?;
        if !continues(&segment) {
            return Err(UnitError::Misplaced {
                segment: id,
                slots: segment.slots(),
                slot_bytes: segment.header.slot_bytes,
            });
        }
        let entries = entries_of(slot_bytes, tags, data);
        let written = segment
            .file
            .write_bulk(data, segment.header.slot_offset(first))
            .and_then(|()| write_entries(&*segment.file, first, &entries));
        if let Err(error) = written {
            let why = self.place.meaning_at(id, "append to", error);
            // Where there is only no room, it is tried again with more.
            if !matches!(why, UnitError::Full { .. }) {
                self.lose(id);
            }
            return Err(why);
        }
        self.remember_put(id, &segment, &entries, first);
        Ok(())
    }

    /// The segment with a file that takes writes, if it has lost none. The
    /// one that has unsynced puts goes first: only it is told of a loss.
    fn writable(&self, id: SegmentId) -> Result<Arc<Segment>, UnitError> {
        let unsynced = {
            let unsynced = lock(&self.unsynced);
            if unsynced.is_lost(id) {
                return Err(self.lost_write(id));
            }
            unsynced.get(id)
        };
        let cached = || self.cache.get(id).filter(|segment| segment.is_writable());
        if let Some(segment) = unsynced.or_else(cached) {
            return Ok(segment);
        }
        self.place.verify()?;
        let open = || {
            let file = self
                .place
                .disk
                .open(&self.place.file(id), OpenMode::Write)?;
            Segment::load(file, true)
        };
        let segment = open().map_err(|error| self.explain(id, "open", error))?;
        self.check_owner(id, &segment.header)?;
        Ok(Arc::new(segment))
    }

    fn remember_put(&self, id: SegmentId, segment: &Arc<Segment>, entries: &[Entry], first: u32) {
        segment.set(first, entries);
        lock(&self.unsynced).wait(id, segment);
        self.cache.insert(id, Arc::clone(segment));
        self.measure(id, &*segment.file);
        self.sync_surplus();
    }

    /// Syncs segments early that nobody may ever ask for, as after a destage
    /// that failed, until no more wait than may be open.
    fn sync_surplus(&self) {
        while let Some((id, _alone)) = self.surplus() {
            // If it fails, the segment is lost from now on, and whoever puts
            // or syncs it next is told.
            let _ = self.sync_segment(id);
        }
    }

    /// A segment to be synced early, with its writer's lock. None if there is
    /// no need, or all that wait are being written: each of those leaves room
    /// when it is through.
    fn surplus(&self) -> Option<(SegmentId, MutexGuard<'_, ()>)> {
        let unsynced = lock(&self.unsynced);
        let mut waiting = unsynced.waiting();
        if waiting.len() <= self.cache.share().segments_max() {
            return None;
        }
        waiting.find_map(|id| Some((id, self.try_writer(id)?)))
    }

    /// No write to the segment can be trusted any more.
    pub(super) fn lose(&self, id: SegmentId) {
        lock(&self.unsynced).lose(id);
        self.cache.remove(id);
    }

    /// As [`FolderUnit::lose`], if any of them is not yet durable.
    pub(super) fn lose_unsynced(&self, id: SegmentId) {
        if lock(&self.unsynced).get(id).is_some() {
            self.lose(id);
        }
    }

    /// Tells the account how much room a segment takes. If that cannot be
    /// learnt now, the account will look itself, in time.
    pub(super) fn measure(&self, id: SegmentId, file: &dyn File) {
        if let Ok(bytes) = file.allocated() {
            self.account.set(id, bytes);
        }
    }

    fn lost_write(&self, segment: SegmentId) -> UnitError {
        let lost = io::Error::other("a write before this was lost");
        self.place
            .meaning(&format!("continue segment {segment}"), lost)
    }

    /// Makes everything put into `segments` durable: their data, then their
    /// names, then the names of the sub-folders they lie in.
    pub(super) fn sync_segments(&self, ids: &[SegmentId]) -> Result<(), UnitError> {
        let mut new_names = Vec::new();
        for id in ids {
            let _alone = self.writer(*id);
            let segment = self.sync_segment(*id)?;
            if !segment.is_name_durable() {
                // Not the segment: they may be more than may be open at once.
                new_names.push(*id);
            }
        }
        let folders: BTreeSet<usize> = new_names.iter().map(|id| folder_of(*id)).collect();
        let failed = |error| self.place.meaning("sync a folder", error);
        for folder in &folders {
            let path = self.place.folder(*folder);
            self.place.disk.sync_directory(&path).map_err(failed)?;
        }
        let (is_new, forgotten) = {
            let durable = lock(&self.durable_folders);
            (!folders.is_subset(&durable.known), durable.forgotten)
        };
        if is_new {
            let path = self.place.segments();
            self.place.disk.sync_directory(&path).map_err(failed)?;
            let mut durable = lock(&self.durable_folders);
            if durable.forgotten == forgotten {
                durable.known.extend(folders);
            }
        }
        for segment in new_names.into_iter().filter_map(|id| self.in_memory(id)) {
            segment.set_name_durable();
        }
        Ok(())
    }

    /// Makes a segment's data durable.
    fn sync_segment(&self, id: SegmentId) -> Result<Arc<Segment>, UnitError> {
        let segment = self.writable(id)?;
        let synced = segment.file.sync_data();
        // It may be long until the next put, if there is one.
        segment.file.end_bulk();
        if let Err(error) = synced {
            self.lose(id);
            return Err(self.place.meaning_at(id, "sync", error));
        }
        lock(&self.unsynced).synced(id);
        self.measure(id, &*segment.file);
        Ok(segment)
    }
}

/// Data first: a process that dies between leaves a file that is no segment,
/// rather than a table that vouches for what is not there.
fn write_new(segment: &Segment, entries: &[Entry], data: &[u8]) -> io::Result<()> {
    let mut head = segment.header.encode();
    head.resize(TABLE_OFFSET as usize, 0);
    for entry in entries {
        entry.encode(&mut head);
    }
    segment
        .file
        .write_bulk(data, segment.header.slot_offset(0))?;
    segment.file.write_at(&head, 0)
}

impl Place {
    /// Makes the folder into the unit it should be.
    ///
    /// 1. look that it does not lie in another unit, and make it, if it is missing
    /// 2. look that nothing else is in it
    /// 3. look whether the file system does what it must
    /// 4. make `segments/`, and sync its name
    /// 5. write the marker under another name, sync it, rename it, sync that
    ///
    /// A folder that is that unit already is claimed.
    pub(super) fn create(&self) -> Result<(), UnitError> {
        let failed = |error| self.meaning("make the unit", error);
        if let Some((folder, marker)) = self.unit_above() {
            return Err(self.foreign(format!(
                "it lies in {}, which is {} of {}; a unit needs a folder of its own",
                folder.display(),
                marker.unit,
                marker.cluster
            )));
        }
        self.outside.create_directory(&self.path).map_err(failed)?;
        match identify(&*self.disk, &self.url) {
            Ok(_) => {
                self.claim()?;
                return self.sync_unit().map_err(failed);
            }
            Err(UnitError::Missing { .. }) => {}
            Err(why) => return Err(why),
        }
        let entries = self.disk.list(Path::new("")).map_err(failed)?;
        let is_ours = |name: &str| {
            [SEGMENTS, "lost+found", examine::NAME].contains(&name) || name.starts_with(DRAFT)
        };
        if let Some(other) = entries.iter().find(|entry| !is_ours(&entry.name)) {
            let name = &other.name;
            return Err(self.foreign(format!(
                "it holds {name:?}, and a new unit needs an empty folder"
            )));
        }
        let found = match examine::examine(&*self.disk) {
            Ok(found) => found,
            Err(ExamineError::Unfit(why)) => {
                return Err(self.foreign(format!("its file system cannot keep a unit: {why}")));
            }
            Err(ExamineError::Io(error)) => return Err(failed(error)),
        };
        let create = || {
            examine::write(&*self.disk, found)?;
            self.disk.create_directory(&self.segments())?;
            self.disk.sync_directory(Path::new(""))?;
            self.write_marker()?;
            self.remove_drafts();
            self.sync_unit()
        };
        create().map_err(failed)
    }

    /// The unit that the folder lies in, if it does. What cannot be looked at
    /// is taken for no unit: folders above may be nobody's business.
    fn unit_above(&self) -> Option<(PathBuf, Marker)> {
        self.path.ancestors().skip(1).find_map(|folder| {
            let marker = identify(&*self.outside.within(folder), "").ok()?;
            Some((folder.to_owned(), marker))
        })
    }

    /// Writes the marker, or writes it anew. Durable on return, but for the
    /// unit's own name.
    pub(super) fn write_marker(&self) -> io::Result<()> {
        self.replace_marker()?;
        self.disk.sync_directory(Path::new(""))
    }

    /// As [`Place::write_marker`], and after a crash it may be the old one: at
    /// every moment there is one of both.
    pub(super) fn replace_marker(&self) -> io::Result<()> {
        self.write_draft()?;
        self.rename_draft()
    }

    pub(super) fn rename_draft(&self) -> io::Result<()> {
        self.disk.rename(&self.draft(), Path::new(marker::NAME))
    }

    /// The marker's name while this owner writes it. Of several that claim the
    /// unit at once, none renames what another one has not written to its end.
    fn draft(&self) -> PathBuf {
        match &self.marker.owner {
            None => PathBuf::from(DRAFT),
            Some(owner) => PathBuf::from(format!("{DRAFT}-{}", owner.database)),
        }
    }

    /// An empty draft of this owner's.
    pub(super) fn begin_draft(&self) -> io::Result<Arc<dyn File>> {
        let draft = self.draft();
        match self.disk.remove(&draft) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => self.disk.open(&draft, OpenMode::CreateNew),
        }
    }

    pub(super) fn write_draft(&self) -> io::Result<()> {
        let file = self.begin_draft()?;
        let written = file
            .write_at(self.marker.encode().as_bytes(), 0)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Else it stays until the next one.
            let _ = self.disk.remove(&self.draft());
            return Err(error);
        }
        Ok(())
    }

    /// Removes the drafts that claims which were cut short have left. One that
    /// is just being written fails by that, and finds out that it is too late.
    pub(super) fn remove_drafts(&self) {
        let entries = self.disk.list(Path::new("")).unwrap_or_default();
        let drafts = entries.iter().filter(|entry| entry.name.starts_with(DRAFT));
        for draft in drafts {
            // It takes some room, and does no other harm.
            let _ = self.disk.remove(Path::new(&draft.name));
        }
    }

    /// Makes the names of the marker and of the unit itself durable.
    fn sync_unit(&self) -> io::Result<()> {
        self.disk.sync_directory(Path::new(""))?;
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => self.outside.sync_directory(parent),
            _ => Ok(()),
        }
    }

    /// Opens the probe that is there. What bears its name and is none is left
    /// as it is: it may be some other file's second name.
    fn open_probe(&self, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let path = Path::new(PROBE);
        let file = self.disk.open(path, mode)?;
        let length = file.length()?;
        let mut found = vec![0; length.min(PROBE_BYTES + 1) as usize];
        file.read_at(&mut found, 0)?;
        // Zeroes, where a crash kept only its length.
        if length > PROBE_BYTES || found.iter().any(|byte| !matches!(*byte, 0 | PROBE_BYTE)) {
            return Err(WrongKind {
                path: self.path.join(path),
                found: "somebody else's file",
                expected: "a probe",
            }
            .into());
        }
        Ok(file)
    }

    /// Writes the probe anew, durably but for its name.
    fn write_probe(&self) -> io::Result<()> {
        let file = match self.open_probe(OpenMode::Write) {
            Err(error) if is_not_found(&error) => {
                self.disk.open(Path::new(PROBE), OpenMode::CreateNew)?
            }
            other => other?,
        };
        file.set_length(0)?;
        file.write_at(&[PROBE_BYTE; PROBE_BYTES as usize], 0)?;
        file.sync_data()
    }

    /// Gives back the probe's room, until it is next written.
    pub(super) fn give_up_probe(&self) -> io::Result<()> {
        match self.open_probe(OpenMode::Read) {
            Err(error) if is_not_found(&error) => return Ok(()),
            other => drop(other?),
        }
        self.disk.remove(Path::new(PROBE))?;
        // Some file systems give room back no sooner.
        self.disk.sync_directory(Path::new(""))
    }

    /// Looks whether the unit is there, takes writes, and has room for one
    /// more segment of `segment_data_bytes`.
    pub(super) fn probe(&self, segment_data_bytes: u64) -> Result<(), UnitError> {
        let failed = |error| self.meaning("write a probe", error);
        self.claim()?;
        for entry in self.disk.list(&self.segments()).map_err(failed)? {
            if let Some(number) = folder_called(&entry.name)
                && !entry.is_directory
            {
                // Says what it is instead.
                self.disk.list(&self.folder(number)).map_err(failed)?;
            }
        }
        self.write_probe().map_err(failed)?;
        match self.disk.space(Path::new("")) {
            Ok(space) if space.free_bytes < segment_data_bytes => Err(UnitError::Full {
                url: self.url.clone(),
            }),
            // A file system that does not know its room may still have some.
            _ => Ok(()),
        }
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
}
