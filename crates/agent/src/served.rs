//! Through which filters a volume is served, noted for whoever opens it after this process: a
//! guest that has the disk goes on with the filters that it knows it through, also if others
//! were asked for while nobody was here (docs/chains.md, "Exchange").
//!
//! ```text
//!  D/chains/vol-…/served     {"attachment", "chain", "next"}
//!  D/chains/vol-…/leases     of which leases this host had one after the other
//!
//!  open ─▶ chain ─▶ let in ─▶ chain, next ─▶ exchange ─▶ next is chain
//! ```
//!
//! Invariants: nobody is let in before the filters that he is let in through are noted, nor are
//! filters exchanged before those that come are. The note goes when the volume is closed.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::Path;

use api::host::{Access, Assignment, WantedChain};
use base::{AttachmentId, VolumeId};
use chain::filters::{JOURNAL_SUFFIX, REPLICAS_SUFFIX, journal_is_there};
use serde::{Deserialize, Serialize};
use world::{Disk, host};

use crate::agent::{Agent, TaskEnded, blocking, lock};
use crate::attached::{AttachError, Attached};
use crate::filter_files::{names, remove};
use crate::filter_journals::wanted;

const SERVED: &str = "served";
const LEASES: &str = "leases";

/// What is noted is no longer than this, in bytes: a policy is 64 KiB at most.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Served {
    /// To whom.
    pub attachment: AttachmentId,
    /// None: there are no filters.
    pub chain: Option<WantedChain>,
    /// What may have come in their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Option<WantedChain>>,
}

impl Served {
    /// Of two chains, the one that was in use: the one that comes has a journal of its own only
    /// then with something in it.
    fn in_use(self, left: &[String]) -> Option<WantedChain> {
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

/// What a file has; nothing, if it is not there or makes no sense.
fn read<T: for<'a> Deserialize<'a>>(disk: &dyn Disk, path: &Path) -> io::Result<Option<T>> {
    match host::read_small(disk, path, NOTE_BYTES_MAX) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
            Ok(None)
        }
        bytes => Ok(serde_json::from_slice(&bytes?).ok()),
    }
}

/// A journal that the filters of a chain had when somebody was let in, and that is not there.
fn lost_journal(
    disk: &dyn Disk,
    folder: &Path,
    chain: &Option<WantedChain>,
) -> io::Result<Option<String>> {
    for name in journals_of(chain) {
        if !journal_is_there(disk, &folder.join(format!("{name}{JOURNAL_SUFFIX}")))? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The names of the journals among the filters of a chain.
fn journals_of(chain: &Option<WantedChain>) -> HashSet<String> {
    wanted(chain.as_ref().map(|chain| &*chain.policy)).unwrap_or_default()
}

fn write<T: Serialize>(disk: &dyn Disk, path: &Path, content: &T) -> io::Result<()> {
    host::make_folders(disk, host::parent_of(path))?;
    let bytes = serde_json::to_vec(content).map_err(io::Error::other)?;
    host::write_whole(disk, path, &bytes)
}

/// Leases that this host had one after the other, and under which it let nobody in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Leases {
    /// The first one.
    since: u32,
    /// And the last one; one less, if there is none.
    last: u32,
}

impl Leases {
    /// With the lease `epoch`.
    fn with(before: Option<Self>, epoch: u32) -> Self {
        let since = match before {
            Some(before) if before.last == epoch || before.last.checked_add(1) == Some(epoch) => {
                before.since
            }
            _ => epoch,
        };
        Self { since, last: epoch }
    }

    /// Somebody is let in under the lease `epoch`.
    fn let_in(epoch: u32) -> Self {
        Self {
            since: epoch.saturating_add(1),
            last: epoch,
        }
    }
}

/// Whether filters in this folder ask which leases there were: those alone that replicate.
fn is_asked_for(disk: &dyn Disk, folder: &Path) -> io::Result<bool> {
    let kept = names(disk, folder)?;
    Ok(kept.iter().any(|name| name.ends_with(REPLICAS_SUFFIX)))
}

impl Agent {
    /// The filters that a volume is to be opened with: those that it was served through, if
    /// whoever has it had it then; otherwise those that are wanted.
    pub(crate) async fn filters_to_begin_with(
        &self,
        wish: &Assignment,
    ) -> Result<Option<WantedChain>, AttachError> {
        if !wish.leased || wish.fenced.is_some() || wish.access == Access::ReadOnly {
            return Ok(wish.chain.clone());
        }
        let left = self.filter_journals_left(wish.volume).await?;
        let left = left.map_err(AttachError::FilterJournals)?;
        let (disk, path, id) = (
            self.inner.world.disk.clone(),
            self.note(wish.volume, SERVED),
            wish.id,
        );
        let noted = blocking(move || {
            let noted = read::<Served>(&*disk, &path)?.filter(|noted| noted.attachment == id);
            let Some(chain) = noted.map(|noted| noted.in_use(&left)) else {
                return Ok(None);
            };
            let lost = lost_journal(&*disk, host::parent_of(&path), &chain)?;
            Ok(Some((chain, lost)))
        });
        match noted.await?.map_err(AttachError::Noted)? {
            None => Ok(wish.chain.clone()),
            Some((chain, None)) => Ok(chain),
            Some((_, Some(name))) => Err(AttachError::FilterJournalLost(name)),
        }
    }

    fn note(&self, volume: VolumeId, name: &str) -> std::path::PathBuf {
        self.inner.folder.chain(volume).join(name)
    }

    /// Notes through which filters somebody uses a volume that may be written, and which ones are
    /// to come; nothing, of one that never had any.
    pub(crate) async fn note_filters(
        &self,
        wish: &Assignment,
        attached: &Attached,
        next: Option<&Option<WantedChain>>,
    ) -> Result<io::Result<()>, TaskEnded> {
        let chain = lock(&attached.chain).clone();
        if attached.epoch.is_none() {
            return Ok(Ok(()));
        }
        let has_filters = chain.is_some() || next.is_some_and(Option::is_some);
        let served = Served {
            attachment: wish.id,
            chain,
            next: next.cloned(),
        };
        let (disk, path) = (
            self.inner.world.disk.clone(),
            self.note(wish.volume, SERVED),
        );
        blocking(move || {
            let had_some = has_filters || !names(&*disk, host::parent_of(&path))?.is_empty();
            match had_some {
                true => write(&*disk, &path, &served),
                false => Ok(()),
            }
        })
        .await
    }

    /// The volume is served to nobody any more.
    pub(crate) async fn forget_served(&self, volume: VolumeId) {
        let (disk, path) = (self.inner.world.disk.clone(), self.note(volume, SERVED));
        let removed = blocking(move || remove(&*disk, &path));
        if let Ok(Err(error)) = removed.await {
            // Whoever has the volume next has another attachment.
            tracing::warn!(%volume, %error, "through which filters it was served stays noted");
        }
    }

    /// Notes a lease, and says since which one this host has had all of them and let nobody in.
    pub(crate) async fn note_lease(
        &self,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<io::Result<u32>, TaskEnded> {
        let (disk, path) = (self.inner.world.disk.clone(), self.note(volume, LEASES));
        blocking(move || {
            if !is_asked_for(&*disk, host::parent_of(&path))? {
                return Ok(epoch);
            }
            let leases = Leases::with(read(&*disk, &path)?, epoch);
            write(&*disk, &path, &leases).map(|()| leases.since)
        })
        .await
    }

    /// Somebody is about to be let in under the lease `epoch`.
    pub(crate) async fn note_let_in(
        &self,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<io::Result<()>, TaskEnded> {
        let (disk, path) = (self.inner.world.disk.clone(), self.note(volume, LEASES));
        blocking(
            move || match is_asked_for(&*disk, host::parent_of(&path))? {
                true => write(&*disk, &path, &Leases::let_in(epoch)),
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
    fn leases_count_while_they_follow_one_another_and_nobody_is_let_in() {
        let with = |before, epoch| Some(Leases::with(before, epoch));
        let mut leases = None;
        for (epoch, since) in [(3, 3), (4, 3), (5, 3), (5, 3), (7, 7), (8, 7)] {
            leases = with(leases, epoch);
            assert_eq!(
                leases.map(|one| (one.since, one.last)),
                Some((since, epoch))
            );
        }
        // What was kept under 8 counts under 9 and 10; what was kept under 7 does not.
        leases = Some(Leases::let_in(8));
        for epoch in [9, 10] {
            leases = with(leases, epoch);
            assert_eq!(leases.map(|one| one.since), Some(9));
        }
    }

    fn chain(revision: u64, journals: &[&str]) -> Option<WantedChain> {
        let filters = journals.iter();
        let filters =
            filters.map(|name| format!("[[filter]]\nkind = 'journal'\nname = '{name}'\n"));
        Some(WantedChain {
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
    fn of_two_chains_a_journal_of_the_second_ones_own_says_that_it_was_in_use() {
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
