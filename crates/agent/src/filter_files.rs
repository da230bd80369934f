//! What filters keep in D beside their volumes, and what of that is removed, so that whoever
//! writes policies cannot fill D with the names of filters (docs/chains.md, "An active relay in
//! a chain" and "Traces").
//!
//! ```text
//!  D/chains/vol-…/FILTER.journal          goes with its filter; it is empty, or was put aside
//!  D/chains/vol-…/FILTER.journal.new      likewise
//!  D/chains/vol-…/FILTER.journal.aside-7  stays until somebody removes it
//!  D/chains/vol-…/FILTER.replicas         goes with its filter, unless the volume lacks something
//!  D/chains/vol-…/FILTER.trace[.N]        stays when its filter goes, while there is room for it
//!  D/events/vol-….jsonl[.N]            stays while there is the volume
//! ```
//!
//! Invariant: what belongs to a filter of the chain that is in use is never removed, nor anything
//! that was acknowledged.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use base::VolumeId;
use chain::StateFolder;
use chain::filters::{
    ASIDE, BESIDE, JOURNAL_SUFFIX, REPLICAS_SUFFIX, TRACE_SUFFIX, journal_left, volume_lacks,
};
use chain_policy::{FilterKind, Policy};
use world::{Disk, OpenMode};

use crate::agent::{Agent, TaskEnded, blocking};
use crate::events;

/// Whose a file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept<'a> {
    Journal(&'a str),
    Aside,
    Replicas(&'a str),
    /// Of this age: the newest one is 0.
    Trace(&'a str, u32),
}

impl<'a> Kept<'a> {
    pub fn of(name: &'a str) -> Option<Self> {
        if name.contains(ASIDE) {
            return Some(Self::Aside);
        }
        if let Some(name) = name.strip_suffix(REPLICAS_SUFFIX) {
            return Some(Self::Replicas(name));
        }
        let journal = name.strip_suffix(BESIDE).unwrap_or(name);
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

/// The filters of a chain that have files.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    journals: Vec<String>,
    replicates: Vec<String>,
    traces: Vec<String>,
}

impl Keepers {
    /// Those of a policy.
    pub fn of(policy: &Policy) -> Self {
        let mut keepers = Self::default();
        for one in &policy.filters {
            let of_kind = match one.kind {
                FilterKind::Journal(_) => &mut keepers.journals,
                FilterKind::Replicate(_) => &mut keepers.replicates,
                FilterKind::Trace(_) => &mut keepers.traces,
                _ => continue,
            };
            of_kind.push(one.name.clone());
        }
        keepers
    }

    /// Those that acknowledge what is to be carried out.
    pub fn journals(&self) -> &[String] {
        &self.journals
    }
}

/// The names in a folder; none, if it is not there.
pub(crate) fn names(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    match disk.list(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => Ok(listed?.into_iter().map(|entry| entry.name).collect()),
    }
}

/// Does something with each file in a folder, given its name and where it is. What fails is in
/// the way of nothing else; what failed first is told in the end.
fn each(
    disk: &dyn Disk,
    folder: &Path,
    mut act: impl FnMut(&str, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let acted = names(disk, folder)?.into_iter();
    let acted = acted.map(|name| act(&name, &folder.join(&name)));
    acted.fold(Ok(()), io::Result::and)
}

/// Removes a file; that it is not there is no error.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a ring that has nothing. One that cannot be read stays, and is put aside before
/// anybody is let in.
fn remove_if_empty(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match journal_left(disk, path) {
        Ok(None) => remove(disk, path),
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Removes what filters have kept that are none of the chain any more. Traces of such have what
/// is left of `trace_bytes` when the chain's own are as long as they may be.
fn tidy(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    keepers: &Keepers,
    trace_bytes: u64,
) -> io::Result<()> {
    let state = StateFolder {
        disk: Arc::clone(disk),
        path: folder.to_owned(),
    };
    let is_one = |filters: &[String], name: &str| filters.iter().any(|one| one == name);
    let mut traces = Vec::new();
    let mut outcome = each(&**disk, folder, |name, path| match Kept::of(name) {
        Some(Kept::Journal(of)) if !is_one(&keepers.journals, of) => remove_if_empty(&**disk, path),
        Some(Kept::Replicas(of)) if !is_one(&keepers.replicates, of) => volume_lacks(&state, of)
            .and_then(|lacks| match lacks {
                true => Ok(()),
                false => remove(&**disk, path),
            }),
        Some(Kept::Trace(of, age)) if !is_one(&keepers.traces, of) => {
            let length = disk.open(path, OpenMode::Read)?.length()?;
            traces.push((age, length, path.to_owned()));
            Ok(())
        }
        _ => Ok(()),
    });
    let mut room = match keepers.traces.is_empty() {
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

impl Agent {
    /// Removes what is of no filter of the chain of a volume that this host may write.
    pub(crate) async fn tidy_filters(&self, volume: VolumeId, keepers: Keepers) {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.chain(volume);
        let trace_bytes = self.inner.filter_room.trace_bytes;
        let tidied = blocking(move || tidy(&disk, &folder, &keepers, trace_bytes)).await;
        if let Ok(Err(error)) = tidied {
            // It is tried again with the next exchange.
            tracing::warn!(%volume, %error, "what filters of before have kept is not removed");
        }
    }

    /// Removes the rings of a volume that is detached, so that they take nothing on a host
    /// that may never have it again. One that has something stays.
    pub(crate) async fn remove_empty_rings(&self, volume: VolumeId) {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.chain(volume);
        let removed = blocking(move || {
            each(&*disk, &folder, |name, path| match Kept::of(name) {
                Some(Kept::Journal(_)) => remove_if_empty(&*disk, path),
                _ => Ok(()),
            })
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%volume, %error, "the rings of its filters are not removed");
        }
    }

    /// Volumes of which filters have kept something.
    pub(crate) async fn volumes_with_filter_files(
        &self,
    ) -> Result<io::Result<Vec<VolumeId>>, TaskEnded> {
        let disk = Arc::clone(&self.inner.world.disk);
        let (chains, events) = (self.inner.folder.chains(), self.inner.folder.events());
        blocking(move || {
            let told = names(&*disk, &events)?;
            let told = told.iter().filter_map(|name| events::whose(name));
            let mut found: BTreeSet<VolumeId> = told.collect();
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

    /// Removes all that the filters of a volume that is no more have kept, and told.
    pub(crate) async fn forget_filters(&self, volume: VolumeId) {
        let disk = Arc::clone(&self.inner.world.disk);
        let (folder, events) = (self.inner.folder.chain(volume), self.inner.folder.events());
        let removed = blocking(move || {
            let kept = each(&*disk, &folder, |_, path| remove(&*disk, path));
            let told = each(&*disk, &events, |name, path| match events::whose(name) {
                Some(of) if of == volume => remove(&*disk, path),
                _ => Ok(()),
            });
            kept.and(told)
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%volume, %error, "what its filters have kept is not removed");
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
    fn files_are_whose_their_names_say() {
        for (name, expected) in [
            ("a.journal", Some(Kept::Journal("a"))),
            ("a.journal.new", Some(Kept::Journal("a"))),
            ("a.journal.aside-7", Some(Kept::Aside)),
            ("a.journal.aside-unknown-2", Some(Kept::Aside)),
            ("a.replicas", Some(Kept::Replicas("a"))),
            ("a.trace", Some(Kept::Trace("a", 0))),
            ("a.trace.7", Some(Kept::Trace("a", 7))),
            ("a.trace.x", None),
            ("else", None),
        ] {
            assert_eq!(Kept::of(name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_of_no_filter_goes_and_what_may_be_missed_stays() {
        let files = [
            // Empty, or nobody's: too short for a journal.
            ("gone.journal", 0),
            ("gone.journal.new", 100),
            // It is no journal that anybody can read.
            ("odd.journal", 9000),
            ("here.journal", 0),
            ("here.journal.new", 0),
            ("gone.journal.aside-3", 9000),
            ("gone.replicas", 10),
            ("here.replicas", 10),
            // The newest ones stay while they have room.
            ("gone.trace", 60),
            ("gone.trace.1", 30),
            ("gone.trace.2", 30),
            ("else", 5),
        ];
        let (folder, disk) = folder_of(&files);
        let text = "volume = 'v'\n[[filter]]\nkind = 'journal'\nname = 'here'\n";
        let policy = Policy::parse(text).expect("a policy");
        tidy(&disk, folder.path(), &Keepers::of(&policy), 100).expect("tidied");
        let mut left = names(&*disk, folder.path()).expect("listed");
        left.sort();
        let expected = [
            "else",
            "gone.journal.aside-3",
            "gone.trace",
            "gone.trace.1",
            "here.journal",
            "here.journal.new",
            "odd.journal",
        ];
        assert_eq!(left, expected);
        // A filter that records has all the room.
        let text = "volume = 'v'\n[[filter]]\nkind = 'trace'\nname = 'other'\n";
        let policy = Policy::parse(text).expect("a policy");
        tidy(&disk, folder.path(), &Keepers::of(&policy), 100).expect("tidied");
        let left = names(&*disk, folder.path()).expect("listed");
        assert!(!left.iter().any(|name| name.contains("trace")), "{left:?}");
    }
}
