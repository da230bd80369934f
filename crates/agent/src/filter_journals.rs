//! What journals among the filters of volumes have acknowledged and not carried out: looked for
//! before a volume is served, and when it is not any more (docs/chains.md, "An active relay in
//! a chain").
//!
//! ```text
//!  D/chains/vol-…/FILTER.journal            of the filter, if one is in use
//!  D/chains/vol-…/FILTER.journal.aside-7    kept: acknowledged under lease 7, and not carried out
//! ```
//!
//! Invariants: nobody is let in to a volume while there is something in a journal that no filter
//! of its chain is to carry out: that is put aside before. Nor is a volume closed for good, but
//! by force, while there is.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::Assignment;
use base::VolumeId;
use base::size::about_bytes;
use chain::filters::{JOURNAL_SUFFIX, journal_left, put_journal_aside};
use chain_policy::Policy;
use world::{Disk, OpenMode};

use crate::agent::{Agent, TaskEnded, blocking};
use crate::filter_files::{Keepers, Kept, names};

/// With so many journals that were put aside a volume gets no new one.
const ASIDES_MAX: usize = 4;

/// The journals in a folder, by their filters' names.
fn journals(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    let mut names = names(disk, folder)?;
    names.retain(|name| matches!(Kept::of(name), Some(Kept::Journal(_))));
    let of_filters = names
        .iter()
        .filter_map(|name| name.strip_suffix(JOURNAL_SUFFIX));
    Ok(of_filters.map(str::to_owned).collect())
}

/// Those that have something. One that cannot be read may have: it counts.
fn left(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<(PathBuf, String, Option<u32>)>> {
    let mut found = Vec::new();
    for name in journals(disk, folder)? {
        let path = folder.join(format!("{name}{JOURNAL_SUFFIX}"));
        match journal_left(disk, &path) {
            Ok(None) => {}
            Ok(Some(left)) => found.push((path, name, left.lease)),
            Err(error) if error.kind() == ErrorKind::InvalidData => found.push((path, name, None)),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Puts aside those that have something, but for the filters of these names.
pub(crate) fn put_aside(disk: &dyn Disk, folder: &Path, but: &HashSet<String>) -> io::Result<()> {
    for (path, name, lease) in left(disk, folder)? {
        if but.contains(&name) {
            continue;
        }
        let aside = put_journal_aside(disk, &path, lease)?;
        tracing::warn!(journal = %aside.display(), "put aside: no filter of the volume carries it out");
    }
    Ok(())
}

/// What was put aside of the volumes in a folder: one sentence each.
fn asides(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    let mut told = Vec::new();
    for volume in names(disk, folder)? {
        let folder = folder.join(&volume);
        for name in names(disk, &folder)? {
            if Kept::of(&name) != Some(Kept::Aside) {
                continue;
            }
            let path = folder.join(&name);
            let length = disk
                .open(&path, OpenMode::Read)
                .and_then(|file| file.length());
            let bytes = match length {
                Ok(length) => about_bytes(length),
                // Somebody has just removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => format!("its length cannot be read: {error}"),
            };
            told.push(format!(
                "a journal among the filters of volume {volume} had acknowledged what was not carried \
                 out before the volume was used without it; that is kept in {} ({bytes}): remove it \
                 when nobody misses it",
                path.display()
            ));
        }
    }
    Ok(told)
}

/// The journals among the filters that are wanted of a volume; none, if this program cannot
/// tell.
pub(crate) fn wanted(policy: Option<&str>) -> Option<HashSet<String>> {
    let keepers = match policy {
        Some(policy) => Keepers::of(&Policy::parse(policy).ok()?),
        None => Keepers::default(),
    };
    Some(keepers.journals().iter().cloned().collect())
}

impl Agent {
    /// Puts aside what no filter that is wanted would carry out, before anybody is let in.
    pub(crate) async fn put_filter_journals_aside(
        &self,
        wish: &Assignment,
    ) -> Result<io::Result<()>, TaskEnded> {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.chain(wish.volume);
        let policy = wish.chain.as_ref().map(|chain| chain.policy.clone());
        // Patterns take their time to be read.
        blocking(move || match wanted(policy.as_deref()) {
            Some(but) => put_aside(&*disk, &folder, &but),
            // Such a chain does not begin, and nobody is let in.
            None => Ok(()),
        })
        .await
    }

    /// The filters of a volume whose journals have something that was not carried out.
    pub(crate) async fn filter_journals_left(
        &self,
        volume: VolumeId,
    ) -> Result<io::Result<Vec<String>>, TaskEnded> {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.chain(volume);
        blocking(move || {
            let left = left(&*disk, &folder)?.into_iter();
            Ok(left.map(|(_, name, _)| name).collect())
        })
        .await
    }

    /// Why the volume may have no other journal of this name, if so many were put aside.
    pub(crate) async fn has_room_for_journal(
        &self,
        volume: VolumeId,
        name: &str,
    ) -> Result<io::Result<Result<(), String>>, TaskEnded> {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.chain(volume);
        let ring = format!("{name}{JOURNAL_SUFFIX}");
        blocking(move || {
            let names = names(&*disk, &folder)?;
            let asides = names
                .iter()
                .filter(|name| Kept::of(name) == Some(Kept::Aside));
            // One that is there may have something, which is to be carried out.
            Ok(match asides.count() < ASIDES_MAX || names.contains(&ring) {
                true => Ok(()),
                false => Err(format!(
                    "{ASIDES_MAX} journals of filters of this volume were put aside: the host's \
                     operator, whom `scree status` tells where, removes those that nobody misses"
                )),
            })
        })
        .await
    }

    /// What was put aside, and that it cannot be looked for: one sentence each.
    pub(crate) async fn filter_journals_aside(&self) -> Vec<String> {
        let disk = Arc::clone(&self.inner.world.disk);
        let folder = self.inner.folder.chains();
        let told = blocking({
            let folder = folder.clone();
            move || asides(&*disk, &folder)
        })
        .await;
        let told = told.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        told.unwrap_or_else(|error| {
            vec![format!(
                "what filters keep in {} cannot be looked through: {error}; until that folder or its \
                 disk is repaired, it is not known what journals were put aside",
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
    fn what_is_no_journal_is_kept_aside_and_what_is_empty_stays() {
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
        let but = HashSet::from(["c".to_owned()]);
        put_aside(&*disk, folder.path(), &but).expect("put aside");
        let names = disk.list(folder.path()).expect("listed").into_iter();
        let names: Vec<String> = names.map(|entry| entry.name).collect();
        assert_eq!(
            names,
            [
                "a.journal.aside-unknown",
                "b.journal",
                "c.journal",
                "d.replicas"
            ]
        );
    }
}
