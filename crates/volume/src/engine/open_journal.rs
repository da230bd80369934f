//! The journal of a volume that is opened: the one of an earlier lease is continued in place,
//! copied or replaced, or a new one is created.
//!
//! What is done with it is decided by [`JournalSource::choose`] and [`JournalUse::choose`],
//! which do no I/O.

use std::path::Path;

use base::Sequence;
use world::File;

use super::open::{OpenError, OpenParams};
use crate::journal::{
    Claim, Journal, JournalError, JournalLocation, JournalSlot, JournalSpec, ReplayedWrite, replay,
    replay_from,
};
use crate::map::Overlay;

/// What the journal holds beyond the newest version.
pub(super) struct JournalWrites {
    pub(super) active: Overlay<JournalSlot>,
    pub(super) last_sequence: Sequence,
}

/// How the journal of an earlier lease is read.
#[derive(Debug, PartialEq, Eq)]
enum JournalSource<'a> {
    /// There is none that this lease continues.
    None,
    /// Another host may have it open: it is copied.
    Copied(&'a Path),
    /// Only this host ever has it: it is continued in place.
    InPlace(&'a Path),
}

/// What a lease says about other hosts that may have the earlier journal open.
#[derive(Debug, Clone, Copy)]
struct LeaseKind {
    /// Another host may have opened the volume since this host had it open.
    taken_over: bool,
    /// It never expires, so no other host opens the volume while this one has it.
    is_unlimited: bool,
}

/// What is done once the earlier journal has been read, if there is one.
#[derive(Debug, PartialEq, Eq)]
enum JournalUse {
    /// The log continues in it.
    Continue,
    /// A new file takes its place: it is empty, and has another size.
    Replace,
    /// There is none: a new one is created.
    Create,
    /// The catalog names one that is not there: flushed writes would be lost.
    Missing,
}

/// What an earlier journal turned out to be.
#[derive(Debug, Clone, Copy)]
struct FormerJournal {
    /// How many records follow the newest version.
    records: u64,
    ring_bytes: u64,
}

impl JournalWrites {
    fn add(&mut self, write: ReplayedWrite) {
        match write {
            ReplayedWrite::Data { block, placed } => {
                self.last_sequence = self.last_sequence.max(placed.sequence);
                self.active.insert(block.0, placed);
            }
            ReplayedWrite::Zero {
                block,
                count,
                sequence,
            } => {
                self.last_sequence = self.last_sequence.max(sequence);
                self.active.zero(block.0..block.0 + count);
            }
        }
    }
}

impl<'a> JournalSource<'a> {
    /// A journal is continued in place only if no other host can have it open.
    fn choose(location: &'a JournalLocation, lease: LeaseKind) -> Self {
        match &location.former {
            None => Self::None,
            Some(former) if lease.taken_over || !lease.is_unlimited || *former != location.path => {
                Self::Copied(former)
            }
            Some(former) => Self::InPlace(former),
        }
    }
}

impl JournalUse {
    /// `must_exist`: the catalog names the journal that was looked for.
    fn choose(former: Option<FormerJournal>, ring_bytes: u64, must_exist: bool) -> Self {
        match former {
            Some(former) if former.records > 0 || former.ring_bytes == ring_bytes => Self::Continue,
            Some(_) => Self::Replace,
            None if must_exist => Self::Missing,
            None => Self::Create,
        }
    }
}

/// The lease's journal: the earlier one, whose writes after `after` are added to
/// `writes`, or a new one.
pub(super) fn recover_journal(
    params: &OpenParams,
    after: Sequence,
    writes: &mut JournalWrites,
) -> Result<Journal, OpenError> {
    let (lease, location) = (&params.lease, &params.journal);
    let (volume, position) = (lease.volume, lease.journal_next);
    let spec = |position| JournalSpec::new(volume, lease.block_size, position);
    let claim = Claim {
        epoch: lease.epoch,
        term: params.term.clone(),
    };
    let ring_bytes = params.config.journal_bytes.next_multiple_of(4096);
    let create = |position| {
        Journal::create(
            &params.world,
            &location.path,
            spec(position),
            ring_bytes,
            &claim,
        )
    };
    let opened = open_former(params, spec(position), &claim, after, writes)?;
    let former = opened.as_ref().map(|(journal, records)| FormerJournal {
        records: *records,
        ring_bytes: journal.ring_bytes(),
    });
    let named_folder = lease.journal.map(|named| named.folder);
    let must_exist = named_folder.is_some_and(|folder| Some(folder) == location.folder)
        && location.former.is_some();
    let action = JournalUse::choose(former, ring_bytes, must_exist);
    match (action, opened) {
        (JournalUse::Continue, Some((journal, records))) => {
            if records > 0 {
                tracing::info!(%volume, records, bytes = journal.used_bytes(), "volume replayed its journal");
            }
            Ok(journal)
        }
        (JournalUse::Replace, Some((journal, _))) => Ok(create(journal.head())?),
        (JournalUse::Missing, _) => {
            let path = location.former.as_deref().map(Path::display);
            let path = path.map_or_else(String::new, |path| path.to_string());
            Err(JournalError::Missing { path }.into())
        }
        _ => {
            if position > 0 && lease.journal.is_none() && location.folder.is_none() {
                tracing::warn!(
                    %volume, journal = %location.path.display(),
                    "volume has no journal: unless the last host closed the volume, the writes that it \
                     flushed after the newest version are lost"
                );
            }
            Ok(create(position)?)
        }
    }
}

/// Reads the journal of an earlier lease, if there is one; returns it with the
/// number of records that follow `after`.
fn open_former(
    params: &OpenParams,
    spec: JournalSpec,
    claim: &Claim,
    after: Sequence,
    writes: &mut JournalWrites,
) -> Result<Option<(Journal, u64)>, JournalError> {
    let (world, keyring) = (&params.world, &params.keyring);
    let lease = LeaseKind {
        taken_over: params.taken_over,
        is_unlimited: params.term.is_unlimited(),
    };
    match JournalSource::choose(&params.journal, lease) {
        JournalSource::None => Ok(None),
        JournalSource::Copied(former) => {
            let from = former.display().to_string();
            let copy = |file: &dyn File, journal: &mut Journal| {
                replay_from(file, &from, journal, keyring, after, |write| {
                    writes.add(write);
                })
            };
            Journal::take_over(world, former, &params.journal.path, spec, claim, copy)
        }
        JournalSource::InPlace(former) => {
            let Some(mut journal) = Journal::open(world, former, spec)? else {
                return Ok(None);
            };
            let records = replay(&mut journal, keyring, after, |write| writes.add(write))?;
            Ok(Some((journal, records)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_continued_in_place_only_by_the_one_host_that_has_it() {
        let own = Path::new("/host/journal");
        let location = |former: Option<&Path>| JournalLocation {
            path: own.to_owned(),
            former: former.map(Path::to_owned),
            folder: None,
        };
        let undisturbed = LeaseKind {
            taken_over: false,
            is_unlimited: true,
        };
        let none = location(None);
        assert_eq!(
            JournalSource::choose(&none, undisturbed),
            JournalSource::None
        );
        let same = location(Some(own));
        assert_eq!(
            JournalSource::choose(&same, undisturbed),
            JournalSource::InPlace(own)
        );
        for (taken_over, is_unlimited) in [(true, true), (false, false), (true, false)] {
            let lease = LeaseKind {
                taken_over,
                is_unlimited,
            };
            let source = JournalSource::choose(&same, lease);
            assert_eq!(source, JournalSource::Copied(own));
        }
        let elsewhere = Path::new("/shared/journal");
        let moved = location(Some(elsewhere));
        assert_eq!(
            JournalSource::choose(&moved, undisturbed),
            JournalSource::Copied(elsewhere)
        );
    }

    #[test]
    fn a_journal_with_records_is_never_replaced_and_a_named_one_must_exist() {
        let former = |records, ring_bytes| {
            Some(FormerJournal {
                records,
                ring_bytes,
            })
        };
        for (former, must_exist, expected) in [
            (former(1, 4096), false, JournalUse::Continue),
            (former(0, 8192), false, JournalUse::Continue),
            (former(0, 4096), true, JournalUse::Replace),
            (None, false, JournalUse::Create),
            (None, true, JournalUse::Missing),
        ] {
            assert_eq!(JournalUse::choose(former, 8192, must_exist), expected);
        }
    }
}
