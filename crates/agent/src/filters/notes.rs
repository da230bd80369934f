//! [`FilterNotes`]: notes for the next process of the filters through which a volume is served. A
//! guest keeps the filters that it had, even if other filters were desired while no agent ran
//! (docs/internals/live-reconfiguration.md).
//!
//! ```text
//!  <data>/chains/vol-…/served     {"attachment", "chain", "next"}
//!  <data>/chains/vol-…/leases     the consecutive leases of this host
//!
//!  open ─▶ note chain ─▶ admit clients ─▶ note chain, next ─▶ hot swap ─▶ next is chain
//! ```
//!
//! Invariants: no client is admitted before the filters are noted, and no chain is replaced before
//! the next one is noted. The note is removed when the volume is closed.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::{Access, Assignment, DesiredChain};
use base::{AttachmentId, VolumeId};
use chain::filters::{JOURNAL_SUFFIX, REPLICAS_SUFFIX, journal_exists};
use serde::{Deserialize, Serialize};
use world::{Disk, host};

use super::FilterNoteError;
use super::files::{names, remove};
use super::journals::{FilterJournals, journals_of as journals_of_policy};
use crate::context::{HostContext, TaskFailed, blocking};
use crate::export::OpenVolume;

const SERVED: &str = "served";
const LEASES: &str = "leases";

/// The largest note, in bytes: a policy has at most 64 KiB.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// The filters through which a volume is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Served {
    /// The attachment of the volume.
    attachment: AttachmentId,
    /// `None`: there are no filters.
    chain: Option<DesiredChain>,
    /// The chain that may have replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Option<DesiredChain>>,
}

impl Served {
    /// The chain that was in use: the next one, if a journal that only the next chain has is in
    /// `left`, the journals with content.
    fn in_use(self, left: &[String]) -> Option<DesiredChain> {
        let Some(next) = self.next else {
            return self.chain;
        };
        let (before, after) = (journals_of(&self.chain), journals_of(&next));
        let is_new = |name: &String| after.contains(name) && !before.contains(name);
        match left.iter().any(is_new) {
            true => next,
            false => self.chain,
        }
    }
}

/// Reads a file; `None` if it does not exist or cannot be parsed.
fn read<T: for<'a> Deserialize<'a>>(disk: &dyn Disk, path: &Path) -> io::Result<Option<T>> {
    match host::read_small(disk, path, NOTE_BYTES_MAX) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
            Ok(None)
        }
        bytes => Ok(serde_json::from_slice(&bytes?).ok()),
    }
}

/// A journal that the filters of a chain had when clients were admitted, and that does not exist
/// any more.
fn lost_journal(
    disk: &dyn Disk,
    folder: &Path,
    chain: &Option<DesiredChain>,
) -> io::Result<Option<String>> {
    for name in journals_of(chain) {
        if !journal_exists(disk, &folder.join(format!("{name}{JOURNAL_SUFFIX}")))? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The names of the journals among the filters of a chain.
fn journals_of(chain: &Option<DesiredChain>) -> HashSet<String> {
    journals_of_policy(chain.as_ref().map(|chain| &*chain.policy)).unwrap_or_default()
}

fn write<T: Serialize>(disk: &dyn Disk, path: &Path, content: &T) -> io::Result<()> {
    host::make_folders(disk, host::parent_of(path))?;
    let bytes = serde_json::to_vec(content).map_err(io::Error::other)?;
    host::write_whole(disk, path, &bytes)
}

/// Consecutive leases of this host under which no client was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Leases {
    /// The first epoch.
    since: u32,
    /// The last epoch; one less than `since` if there is no lease.
    last: u32,
}

impl Leases {
    /// Appends the lease `epoch`.
    fn with(before: Option<Self>, epoch: u32) -> Self {
        let since = match before {
            Some(before) if before.last == epoch || before.last.checked_add(1) == Some(epoch) => {
                before.since
            }
            _ => epoch,
        };
        Self { since, last: epoch }
    }

    /// No leases: clients are admitted under the lease `epoch`.
    fn admitted(epoch: u32) -> Self {
        Self {
            since: epoch.saturating_add(1),
            last: epoch,
        }
    }
}

/// Whether a filter in this folder replicates: only such filters use the leases.
fn has_replicas(disk: &dyn Disk, folder: &Path) -> io::Result<bool> {
    let kept = names(disk, folder)?;
    Ok(kept.iter().any(|name| name.ends_with(REPLICAS_SUFFIX)))
}

/// The notes about the filters of volumes, in the data directory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FilterNotes {
    context: Arc<HostContext>,
    journals: FilterJournals,
}

impl FilterNotes {
    pub fn new(context: &Arc<HostContext>) -> Self {
        Self {
            context: Arc::clone(context),
            journals: FilterJournals::new(context),
        }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.context.world.disk)
    }

    fn path(&self, volume: VolumeId, name: &str) -> PathBuf {
        self.context.folder.chain(volume).join(name)
    }

    /// The filters with which a volume is opened: those through which it was served, if this
    /// attachment had it then; otherwise the desired ones.
    pub async fn first_chain(
        &self,
        assignment: &Assignment,
    ) -> Result<Option<DesiredChain>, FilterNoteError> {
        let is_new = !assignment.leased || assignment.fenced.is_some();
        if is_new || assignment.access == Access::ReadOnly {
            return Ok(assignment.chain.clone());
        }
        let left = self.journals.with_content(assignment.volume).await?;
        let left = left.map_err(FilterNoteError::Journals)?;
        let (disk, id) = (self.disk(), assignment.id);
        let path = self.path(assignment.volume, SERVED);
        let noted = blocking(move || {
            let noted = read::<Served>(&*disk, &path)?.filter(|noted| noted.attachment == id);
            let Some(chain) = noted.map(|noted| noted.in_use(&left)) else {
                return Ok(None);
            };
            let lost = lost_journal(&*disk, host::parent_of(&path), &chain)?;
            Ok(Some((chain, lost)))
        });
        match noted.await?.map_err(FilterNoteError::Note)? {
            None => Ok(assignment.chain.clone()),
            Some((chain, None)) => Ok(chain),
            Some((_, Some(name))) => Err(FilterNoteError::JournalLost(name)),
        }
    }

    /// Notes the filters through which a writable volume is served, and the next ones; notes
    /// nothing for a volume that never had filters.
    pub async fn note_served(
        &self,
        open_volume: &OpenVolume,
        next: Option<&Option<DesiredChain>>,
    ) -> Result<io::Result<()>, TaskFailed> {
        if open_volume.epoch().is_none() {
            return Ok(Ok(()));
        }
        let chain = open_volume.chain();
        let has_filters = chain.is_some() || next.is_some_and(Option::is_some);
        let served = Served {
            attachment: open_volume.id(),
            chain,
            next: next.cloned(),
        };
        let (disk, path) = (self.disk(), self.path(open_volume.volume(), SERVED));
        blocking(move || {
            let had_some = has_filters || !names(&*disk, host::parent_of(&path))?.is_empty();
            match had_some {
                true => write(&*disk, &path, &served),
                false => Ok(()),
            }
        })
        .await
    }

    /// Removes the note of a closed volume.
    pub async fn forget_served(&self, volume: VolumeId) {
        let (disk, path) = (self.disk(), self.path(volume, SERVED));
        let removed = blocking(move || remove(&*disk, &path));
        if let Ok(Err(error)) = removed.await {
            // The note does no harm: the next attachment of the volume has another id.
            tracing::warn!(%volume, %error, "agent could not remove note about filters");
        }
    }

    /// Notes a lease. Returns the first of the consecutive leases of this host under which no
    /// client was admitted.
    pub async fn note_lease(
        &self,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<io::Result<u32>, TaskFailed> {
        let (disk, path) = (self.disk(), self.path(volume, LEASES));
        blocking(move || {
            if !has_replicas(&*disk, host::parent_of(&path))? {
                return Ok(epoch);
            }
            let leases = Leases::with(read(&*disk, &path)?, epoch);
            write(&*disk, &path, &leases).map(|()| leases.since)
        })
        .await
    }

    /// Notes that clients will be admitted under the lease `epoch`.
    pub async fn note_admission(
        &self,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<io::Result<()>, TaskFailed> {
        let (disk, path) = (self.disk(), self.path(volume, LEASES));
        blocking(
            move || match has_replicas(&*disk, host::parent_of(&path))? {
                true => write(&*disk, &path, &Leases::admitted(epoch)),
                false => Ok(()),
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use api::host::ChainKey;
    use base::ChainId;

    use super::*;

    #[test]
    fn leases_count_while_they_are_consecutive_and_no_client_is_admitted() {
        let with = |before, epoch| Some(Leases::with(before, epoch));
        let mut leases = None;
        for (epoch, since) in [(3, 3), (4, 3), (5, 3), (5, 3), (7, 7), (8, 7)] {
            leases = with(leases, epoch);
            assert_eq!(
                leases.map(|lease| (lease.since, lease.last)),
                Some((since, epoch))
            );
        }
        // Replicas written under lease 8 count under 9 and 10; those written under 7 do not.
        leases = Some(Leases::admitted(8));
        for epoch in [9, 10] {
            leases = with(leases, epoch);
            assert_eq!(leases.map(|lease| lease.since), Some(9));
        }
    }

    fn chain(revision: u64, journals: &[&str]) -> Option<DesiredChain> {
        let filters = journals.iter();
        let filters =
            filters.map(|name| format!("[[filter]]\nkind = 'journal'\nname = '{name}'\n"));
        Some(DesiredChain {
            key: ChainKey {
                id: ChainId::from_u128(1),
                revision,
            },
            tenant: "alice".to_owned(),
            policy: format!("volume = 'v'\n{}", filters.collect::<String>()),
            volumes: [].into(),
        })
    }

    #[test]
    fn a_journal_that_only_the_next_chain_has_shows_that_it_was_in_use() {
        let noted = |next| Served {
            attachment: AttachmentId::from_u128(1),
            chain: chain(1, &["a"]),
            next,
        };
        let left = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(noted(None).in_use(&left(&["b"])), chain(1, &["a"]));
        let both = || noted(Some(chain(2, &["b"])));
        assert_eq!(both().in_use(&left(&["a"])), chain(1, &["a"]));
        assert_eq!(both().in_use(&left(&["b"])), chain(2, &["b"]));
        assert_eq!(noted(Some(None)).in_use(&left(&["a"])), chain(1, &["a"]));
    }
}
