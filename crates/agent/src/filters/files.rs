//! [`FilterFiles`]: the files of filters in the data directory, and when they are removed, so that
//! authors of policies cannot fill the disk by renaming filters (docs/internals/journal-filter.md
//! and "Traces").
//!
//! ```text
//! <data>/chains/vol-…/FILTER.journal                removed with its filter; empty, or quarantined
//! <data>/chains/vol-…/FILTER.journal.new            likewise
//! <data>/chains/vol-…/FILTER.journal.quarantined-7  stays until an operator removes it
//! <data>/chains/vol-…/FILTER.replicas               removed like these, if the volume is complete
//! <data>/chains/vol-…/FILTER.trace[.N]              stays after its filter, while there is room
//! <data>/events/vol-….jsonl[.N]                     stays as long as the volume
//! ```
//!
//! Invariant: no file of a filter in the current chain is ever removed, and no acknowledged write.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use base::VolumeId;
use chain::StateFolder;
use chain::filters::{
    JOURNAL_SUFFIX, QUARANTINED_INFIX, REPLACEMENT_SUFFIX, REPLICAS_SUFFIX, TRACE_SUFFIX,
    journal_leftover, volume_is_missing_writes,
};
use chain_policy::{FilterKind, Policy};
use world::{Disk, OpenMode};

use crate::context::{HostContext, TaskFailed, blocking};
use crate::export::volume_of_file;

/// The kind and the filter of a file, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterFile<'a> {
    Journal(&'a str),
    Quarantined,
    Replicas(&'a str),
    /// A trace and its age: the newest is 0.
    Trace(&'a str, u32),
}

impl<'a> FilterFile<'a> {
    pub fn parse(name: &'a str) -> Option<Self> {
        if name.contains(QUARANTINED_INFIX) {
            return Some(Self::Quarantined);
        }
        if let Some(name) = name.strip_suffix(REPLICAS_SUFFIX) {
            return Some(Self::Replicas(name));
        }
        let journal = name.strip_suffix(REPLACEMENT_SUFFIX).unwrap_or(name);
        if let Some(name) = journal.strip_suffix(JOURNAL_SUFFIX) {
            return Some(Self::Journal(name));
        }
        if let Some(name) = name.strip_suffix(TRACE_SUFFIX) {
            return Some(Self::Trace(name, 0));
        }
        let (name, age) = name.rsplit_once('.')?;
        let name = name.strip_suffix(TRACE_SUFFIX)?;
        Some(Self::Trace(name, age.parse().ok()?))
    }
}

/// The filters of a chain that have files, by kind.
#[derive(Debug, Default)]
pub(super) struct FileOwners {
    journals: Vec<String>,
    replicates: Vec<String>,
    traces: Vec<String>,
}

impl FileOwners {
    /// The filters of a policy.
    pub fn of(policy: &Policy) -> Self {
        let mut owners = Self::default();
        for filter in &policy.filters {
            let of_kind = match filter.kind {
                FilterKind::Journal(_) => &mut owners.journals,
                FilterKind::Replicate(_) => &mut owners.replicates,
                FilterKind::Trace(_) => &mut owners.traces,
                _ => continue,
            };
            of_kind.push(filter.name.clone());
        }
        owners
    }

    /// The filters that acknowledge writes before they apply them.
    pub fn journals(&self) -> &[String] {
        &self.journals
    }
}

/// The names in a folder; empty if it does not exist.
pub(super) fn names(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    match disk.list(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => Ok(listed?.into_iter().map(|entry| entry.name).collect()),
    }
}

/// Calls `act` with the name and the path of each file in a folder. A failure does not stop the
/// others; the first one is returned at the end.
fn each(
    disk: &dyn Disk,
    folder: &Path,
    mut act: impl FnMut(&str, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let acted = names(disk, folder)?.into_iter();
    let acted = acted.map(|name| act(&name, &folder.join(&name)));
    acted.fold(Ok(()), io::Result::and)
}

/// Removes a file; a missing file is no error.
pub(super) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes an empty journal. A journal that cannot be read stays, and is quarantined before the
/// volume is served.
fn remove_if_empty(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match journal_leftover(disk, path) {
        Ok(None) => remove(disk, path),
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Removes the files of filters that are not in the chain any more. Their traces stay while they
/// fit into what the traces of the chain leave of `trace_bytes`.
fn tidy(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    owners: &FileOwners,
    trace_bytes: u64,
) -> io::Result<()> {
    let state = StateFolder {
        disk: Arc::clone(disk),
        path: folder.to_owned(),
    };
    let is_one = |filters: &[String], name: &str| filters.iter().any(|filter| filter == name);
    let mut traces = Vec::new();
    let mut outcome = each(&**disk, folder, |name, path| {
        match FilterFile::parse(name) {
            Some(FilterFile::Journal(of)) if !is_one(&owners.journals, of) => {
                remove_if_empty(&**disk, path)
            }
            Some(FilterFile::Replicas(of)) if !is_one(&owners.replicates, of) => {
                volume_is_missing_writes(&state, of).and_then(|lacks| match lacks {
                    true => Ok(()),
                    false => remove(&**disk, path),
                })
            }
            Some(FilterFile::Trace(of, age)) if !is_one(&owners.traces, of) => {
                let length = disk.open(path, OpenMode::Read)?.length()?;
                traces.push((age, length, path.to_owned()));
                Ok(())
            }
            _ => Ok(()),
        }
    });
    let mut room = match owners.traces.is_empty() {
        true => trace_bytes,
        false => 0,
    };
    traces.sort();
    for (_, length, path) in traces {
        match room.checked_sub(length) {
            Some(rest) => room = rest,
            None => outcome = outcome.and(remove(&**disk, &path)),
        }
    }
    outcome
}

/// The files of filters in the data directory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FilterFiles {
    context: Arc<HostContext>,
}

impl FilterFiles {
    pub fn new(context: &Arc<HostContext>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.context.world.disk)
    }

    /// Removes the files of filters that are not in the chain of a volume that this host may write.
    /// All traces together may use `trace_bytes`.
    pub(super) async fn tidy(&self, volume: VolumeId, owners: FileOwners, trace_bytes: u64) {
        let (disk, folder) = (self.disk(), self.context.folder.chain(volume));
        let tidied = blocking(move || tidy(&disk, &folder, &owners, trace_bytes)).await;
        if let Ok(Err(error)) = tidied {
            // The next hot swap retries.
            tracing::warn!(%volume, %error, "agent could not remove files of former filters");
        }
    }

    /// Removes the empty journals of a detached volume, which would use space on a host that may
    /// never attach it again. Journals with content stay.
    pub async fn remove_empty_journals(&self, volume: VolumeId) {
        let (disk, folder) = (self.disk(), self.context.folder.chain(volume));
        let removed = blocking(move || {
            each(&*disk, &folder, |name, path| {
                match FilterFile::parse(name) {
                    Some(FilterFile::Journal(_)) => remove_if_empty(&*disk, path),
                    _ => Ok(()),
                }
            })
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%volume, %error, "agent could not remove empty filter journals");
        }
    }

    /// The volumes whose filters have files.
    pub async fn volumes(&self) -> Result<io::Result<Vec<VolumeId>>, TaskFailed> {
        let disk = self.disk();
        let folder = &self.context.folder;
        let (chains, events) = (folder.chains(), folder.events());
        blocking(move || {
            let logs = names(&*disk, &events)?;
            let logs = logs.iter().filter_map(|name| volume_of_file(name));
            let mut found: BTreeSet<VolumeId> = logs.collect();
            for name in names(&*disk, &chains)? {
                let Ok(volume) = name.parse::<VolumeId>() else {
                    continue;
                };
                if !names(&*disk, &chains.join(name))?.is_empty() {
                    found.insert(volume);
                }
            }
            Ok(found.into_iter().collect())
        })
        .await
    }

    /// Removes all files and events of the filters of a deleted volume.
    pub async fn remove_all(&self, volume: VolumeId) {
        let disk = self.disk();
        let folder = &self.context.folder;
        let (folder, events) = (folder.chain(volume), folder.events());
        let removed = blocking(move || {
            let files = each(&*disk, &folder, |_, path| remove(&*disk, path));
            let logs = each(&*disk, &events, |name, path| match volume_of_file(name) {
                Some(of) if of == volume => remove(&*disk, path),
                _ => Ok(()),
            });
            files.and(logs)
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%volume, %error, "agent could not remove filter files of a deleted volume");
        }
    }
}

#[cfg(test)]
mod tests {
    use world::World;

    use super::*;

    fn folder_of(files: &[(&str, usize)]) -> (tempfile::TempDir, Arc<dyn Disk>) {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = World::real(1).disk;
        for (name, length) in files {
            let file = disk.open(&folder.path().join(name), OpenMode::CreateNew);
            file.expect("made")
                .write_at(&vec![7; *length], 0)
                .expect("written");
        }
        (folder, disk)
    }

    #[test]
    fn the_name_of_a_file_tells_its_kind_and_filter() {
        for (name, expected) in [
            ("a.journal", Some(FilterFile::Journal("a"))),
            ("a.journal.new", Some(FilterFile::Journal("a"))),
            ("a.journal.quarantined-7", Some(FilterFile::Quarantined)),
            (
                "a.journal.quarantined-unknown-2",
                Some(FilterFile::Quarantined),
            ),
            ("a.replicas", Some(FilterFile::Replicas("a"))),
            ("a.trace", Some(FilterFile::Trace("a", 0))),
            ("a.trace.7", Some(FilterFile::Trace("a", 7))),
            ("a.trace.x", None),
            ("else", None),
        ] {
            assert_eq!(FilterFile::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn files_of_former_filters_are_removed_unless_they_may_hold_writes() {
        let files = [
            // Empty, or too short for a journal.
            ("gone.journal", 0),
            ("gone.journal.new", 100),
            // A journal that cannot be read.
            ("odd.journal", 9000),
            ("here.journal", 0),
            ("here.journal.new", 0),
            ("gone.journal.quarantined-3", 9000),
            ("gone.replicas", 10),
            ("here.replicas", 10),
            // The newest traces stay while there is room for them.
            ("gone.trace", 60),
            ("gone.trace.1", 30),
            ("gone.trace.2", 30),
            ("else", 5),
        ];
        let (folder, disk) = folder_of(&files);
        let text = "volume = 'v'\n[[filter]]\nkind = 'journal'\nname = 'here'\n";
        let policy = Policy::parse(text).expect("a policy");
        tidy(&disk, folder.path(), &FileOwners::of(&policy), 100).expect("tidied");
        let mut left = names(&*disk, folder.path()).expect("listed");
        left.sort();
        let expected = [
            "else",
            "gone.journal.quarantined-3",
            "gone.trace",
            "gone.trace.1",
            "here.journal",
            "here.journal.new",
            "odd.journal",
        ];
        assert_eq!(left, expected);
        // A filter that records may use all the room.
        let text = "volume = 'v'\n[[filter]]\nkind = 'trace'\nname = 'other'\n";
        let policy = Policy::parse(text).expect("a policy");
        tidy(&disk, folder.path(), &FileOwners::of(&policy), 100).expect("tidied");
        let left = names(&*disk, folder.path()).expect("listed");
        assert!(!left.iter().any(|name| name.contains("trace")), "{left:?}");
    }
}
