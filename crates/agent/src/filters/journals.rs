//! [`FilterJournals`]: writes that journal filters of a volume have acknowledged and not applied
//! yet. They are looked for before a volume is served, and when it is closed
//! (docs/internals/journal-filter.md).
//!
//! ```text
//!  <data>/chains/vol-…/FILTER.journal                the journal of a filter
//!  <data>/chains/vol-…/FILTER.journal.quarantined-7  quarantined: acknowledged under lease 7
//! ```
//!
//! Invariants: a volume is not served while a journal has content that no filter of its chain will
//! apply: such a journal is quarantined first. A volume is not detached without force while a
//! journal has content.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::Assignment;
use base::VolumeId;
use base::size::about_bytes;
use chain::filters::{JOURNAL_SUFFIX, journal_leftover, quarantine_journal};
use chain_policy::Policy;
use world::{Disk, OpenMode};

use super::files::{FileOwners, FilterFile, names};
use crate::context::{HostContext, TaskFailed, blocking};

/// A volume with this many quarantined journals gets no new journal.
const QUARANTINED_MAX: usize = 4;

/// The names of the filters that have a journal in a folder.
fn journals(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    let mut names = names(disk, folder)?;
    names.retain(|name| matches!(FilterFile::parse(name), Some(FilterFile::Journal(_))));
    let of_filters = names
        .iter()
        .filter_map(|name| name.strip_suffix(JOURNAL_SUFFIX));
    Ok(of_filters.map(str::to_owned).collect())
}

/// A journal that has content or cannot be read.
struct FullJournal {
    path: PathBuf,
    filter: String,
    /// The lease under which the content was acknowledged; `None` if that cannot be read.
    lease: Option<u32>,
}

/// The journals with content. A journal that cannot be read counts as one.
fn with_content(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<FullJournal>> {
    let mut found = Vec::new();
    for filter in journals(disk, folder)? {
        let path = folder.join(format!("{filter}{JOURNAL_SUFFIX}"));
        let lease = match journal_leftover(disk, &path) {
            Ok(None) => continue,
            Ok(Some(left)) => left.lease,
            Err(error) if error.kind() == ErrorKind::InvalidData => None,
            Err(error) => return Err(error),
        };
        found.push(FullJournal {
            path,
            filter,
            lease,
        });
    }
    Ok(found)
}

/// Quarantines the journals with content, except those of the filters in `owned`.
pub(crate) fn quarantine_filter_journals(
    disk: &dyn Disk,
    folder: &Path,
    owned: &HashSet<String>,
) -> io::Result<()> {
    for journal in with_content(disk, folder)? {
        if owned.contains(&journal.filter) {
            continue;
        }
        let path = quarantine_journal(disk, &journal.path, journal.lease)?;
        tracing::warn!(
            journal = %path.display(),
            "agent quarantined journal: no filter of the volume applies it"
        );
    }
    Ok(())
}

/// The quarantined journals of all volumes in a folder, one sentence each.
fn quarantined(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    let mut shown = Vec::new();
    for volume in names(disk, folder)? {
        let folder = folder.join(&volume);
        for name in names(disk, &folder)? {
            if FilterFile::parse(&name) != Some(FilterFile::Quarantined) {
                continue;
            }
            let path = folder.join(&name);
            let length = disk
                .open(&path, OpenMode::Read)
                .and_then(|file| file.length());
            let bytes = match length {
                Ok(length) => about_bytes(length),
                // It was just removed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => format!("its length cannot be read: {error}"),
            };
            shown.push(format!(
                "a filter journal of volume {volume} held acknowledged writes that were not applied \
                 before the volume was used without it; it is quarantined in {} ({bytes}): remove \
                 it if no one needs these writes",
                path.display()
            ));
        }
    }
    Ok(shown)
}

/// The names of the journal filters of a policy; `None` if this program cannot parse it.
pub(super) fn journals_of(policy: Option<&str>) -> Option<HashSet<String>> {
    let owners = match policy {
        Some(policy) => FileOwners::of(&Policy::parse(policy).ok()?),
        None => FileOwners::default(),
    };
    Some(owners.journals().iter().cloned().collect())
}

/// The journals of filters in the data directory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FilterJournals {
    context: Arc<HostContext>,
}

impl FilterJournals {
    pub fn new(context: &Arc<HostContext>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }

    /// Quarantines journals that no desired filter would apply, before the volume is served.
    pub async fn quarantine_unowned(
        &self,
        assignment: &Assignment,
    ) -> Result<io::Result<()>, TaskFailed> {
        let disk = Arc::clone(&self.context.world.disk);
        let folder = self.context.folder.chain(assignment.volume);
        let policy = assignment.chain.as_ref().map(|chain| chain.policy.clone());
        // Parsing patterns takes time.
        blocking(move || match journals_of(policy.as_deref()) {
            Some(owned) => quarantine_filter_journals(&*disk, &folder, &owned),
            // The filters of such a chain do not start, and the volume is not served.
            None => Ok(()),
        })
        .await
    }

    /// The filters of a volume whose journals have writes that are not applied.
    pub async fn with_content(
        &self,
        volume: VolumeId,
    ) -> Result<io::Result<Vec<String>>, TaskFailed> {
        let disk = Arc::clone(&self.context.world.disk);
        let folder = self.context.folder.chain(volume);
        blocking(move || {
            let left = with_content(&*disk, &folder)?.into_iter();
            Ok(left.map(|journal| journal.filter).collect())
        })
        .await
    }

    /// Refuses a new journal `name` if too many journals of the volume are quarantined.
    pub async fn room_for(
        &self,
        volume: VolumeId,
        name: &str,
    ) -> Result<io::Result<Result<(), String>>, TaskFailed> {
        let disk = Arc::clone(&self.context.world.disk);
        let folder = self.context.folder.chain(volume);
        let ring = format!("{name}{JOURNAL_SUFFIX}");
        blocking(move || {
            let names = names(&*disk, &folder)?;
            let quarantined = names
                .iter()
                .filter(|name| FilterFile::parse(name) == Some(FilterFile::Quarantined));
            // An existing journal may have content, which must be applied.
            Ok(
                match quarantined.count() < QUARANTINED_MAX || names.contains(&ring) {
                    true => Ok(()),
                    false => Err(format!(
                        "{QUARANTINED_MAX} filter journals of this volume are quarantined: the \
                         host's operator must remove those that no one needs (`scree status` \
                         lists them)"
                    )),
                },
            )
        })
        .await
    }

    /// One sentence for each quarantined journal, or why they cannot be listed.
    pub async fn problems(&self) -> Vec<String> {
        let disk = Arc::clone(&self.context.world.disk);
        let folder = self.context.folder.chains();
        let shown = blocking({
            let folder = folder.clone();
            move || quarantined(&*disk, &folder)
        })
        .await;
        let shown = shown.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        shown.unwrap_or_else(|error| {
            vec![format!(
                "the folder of filter files {} cannot be read: {error}; until that folder or its \
                 disk is repaired, quarantined journals are not reported",
                folder.display()
            )]
        })
    }
}

#[cfg(test)]
mod tests {
    use world::World;

    use super::*;

    #[test]
    fn an_unreadable_journal_is_quarantined_and_an_empty_one_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = World::real(1).disk;
        for (name, content) in [
            ("a.journal", &[7; 8192][..]),
            ("b.journal", &[][..]),
            ("c.journal", &[9; 8192][..]),
            ("d.replicas", &[7; 10][..]),
        ] {
            let file = disk.open(&folder.path().join(name), OpenMode::CreateNew);
            file.expect("made").write_at(content, 0).expect("written");
        }
        let owned = HashSet::from(["c".to_owned()]);
        quarantine_filter_journals(&*disk, folder.path(), &owned).expect("quarantined");
        let names = disk.list(folder.path()).expect("listed").into_iter();
        let names: Vec<String> = names.map(|entry| entry.name).collect();
        assert_eq!(
            names,
            [
                "a.journal.quarantined-unknown",
                "b.journal",
                "c.journal",
                "d.replicas"
            ]
        );
    }
}
