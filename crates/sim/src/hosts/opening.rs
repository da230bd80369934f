//! Acquiring the lease, opening the volume, and comparing its content with what the
//! previous holder left.

use base::{BlockDevice, Completion, Outcome, Request, Started};
use catalog::StoredVersion;
use volume::journal::{JournalLocation, SharedFolder};
use volume::{LeaseTerm, OpenError};
use world::Disk;

use super::host::{AcquiredLease, Attached, HOLD};
use super::{BLOCKS, FOLDER, Run, VOLUME, trace};
use crate::Check;
use crate::model::{Blocks, content};

/// What the volume must contain when it is opened.
enum Expectation {
    /// The state of a boundary from this one on.
    Since(usize),
    /// The state of this version; an empty volume if there is none.
    Version(Option<StoredVersion>),
}

impl Run {
    pub(super) fn acquire(&mut self, index: usize) -> Check {
        let host = &mut self.hosts[index];
        if host.is_controller_unreachable || host.attached.is_some() {
            return Ok(());
        }
        self.heal(index);
        let host = &mut self.hosts[index];
        host.acquired = None;
        let sent = host.now();
        let (catalog, salt) = (&host.machine.catalog.memory, host.machine.salt());
        let journals = self.is_shared.then_some(FOLDER);
        let Some(lease) = self
            .registry
            .acquire(index, catalog, VOLUME, salt, journals)
        else {
            return Ok(());
        };
        trace!(self, "host {index} acquires lease {}", lease.epoch);
        // The other host is compared with the history up to now.
        let other = &mut self.hosts[1 - index];
        if let Some(attached) = &mut other.attached
            && attached.last_history.is_none()
        {
            attached.last_history = Some(self.history.clone());
        }
        let is_answer_lost = self.random.below(8) == 0;
        if !is_answer_lost {
            if let Some(network) = &self.hosts[index].machine.network {
                let capability_cache = network.capability_cache();
                capability_cache.request_lease(VOLUME, lease.epoch);
                for key in &lease.keys {
                    capability_cache.request_read(key.lineage);
                }
            }
            let opened_epoch = self.hosts[index].opened_epoch;
            self.hosts[index].acquired = Some(AcquiredLease {
                lease,
                sent,
                taken_over: self.registry.others_since(opened_epoch, index),
            });
        }
        Ok(())
    }

    /// The folder of journals, if it is shared.
    fn shared_folder(&self) -> Option<SharedFolder> {
        self.is_shared.then(|| SharedFolder {
            path: self.hosts[0].machine.journal_folder(),
            id: FOLDER,
        })
    }

    /// Opens the volume under an acquired lease, and checks its content.
    pub(super) fn open(&mut self, index: usize) -> Check {
        self.record_commits();
        let Some(acquired) = self.hosts[index].acquired.take() else {
            return Ok(());
        };
        let (taken_over, head) = (acquired.taken_over, acquired.lease.head.clone());
        if !self.open_under(index, acquired)? {
            return Ok(());
        }
        let seen = self.read_all(index)?;
        let expectation = match self.is_shared || !taken_over {
            true if self.power_failed => Expectation::Since(self.history.durable),
            true => Expectation::Since(self.history.acknowledged),
            false => Expectation::Version(head),
        };
        self.check_content(index, &expectation, &seen)?;
        self.power_failed = false;
        self.summary.restarts += 1;
        Ok(())
    }

    /// Opens the volume. Returns `false` if it may not open: the lease has expired, or the
    /// controller is unreachable.
    fn open_under(&mut self, index: usize, acquired: AcquiredLease) -> Check<bool> {
        let shared = self.shared_folder();
        let AcquiredLease {
            lease,
            sent,
            taken_over,
        } = acquired;
        let epoch = lease.epoch;
        let host = &mut self.hosts[index];
        let journal = host.machine.journal(VOLUME);
        if taken_over && shared.is_none() {
            // This host's own journal is older than the newest version.
            let disk = &host.machine.simulation.disk;
            let _ = disk.remove(&journal);
            let synced = disk.sync_directory(&host.machine.journal_folder());
            synced.expect("the disk works");
        }
        let term = LeaseTerm::until(sent + HOLD);
        let has_expired = host.now() >= sent + HOLD;
        let location = JournalLocation::of(&lease, &journal, shared.as_ref());
        let opened = host
            .machine
            .open_at(lease, term.clone(), location, taken_over);
        let volume = match opened {
            Ok(volume) => volume,
            Err(error) if has_expired => {
                trace!(self, "host {index} was too slow: {error}");
                return Ok(false);
            }
            // Its journal may be named now or not. It is complete in both cases.
            Err(error @ OpenError::Catalog(_)) if host.is_controller_unreachable => {
                trace!(self, "host {index} is cut off while it opens: {error}");
                return Ok(false);
            }
            Err(error) => return Err(format!("host {index} cannot open: {error}")),
        };
        if epoch != self.registry.epoch() {
            return Err(format!("host {index} opened under the older lease {epoch}"));
        }
        if let Some(shared) = &shared
            && self.random.below(4) > 0
        {
            // In the other cases the host is killed before it removes older journals.
            let world = host.machine.simulation.world();
            let removed = shared.remove_before(&world, VOLUME, epoch);
            removed.map_err(|error| format!("cannot remove older journals: {error}"))?;
        }
        host.opened_epoch = epoch;
        host.may_stop = host.is_controller_unreachable;
        host.attached = Some(Attached::new(volume, term, epoch, sent));
        Ok(true)
    }

    /// Checks the content of the opened volume, and sets the history to the boundary that
    /// was found.
    fn check_content(&mut self, index: usize, expectation: &Expectation, seen: &Blocks) -> Check {
        let history = &mut self.history;
        let end = history.timeline.len();
        let (found, expected) = match expectation {
            Expectation::Since(floor) => (
                history.timeline.boundaries(*floor..=end, false, seen),
                format!("the state of a boundary from {floor} to {end}"),
            ),
            Expectation::Version(None) => (
                history.timeline.boundaries(0..=0, false, seen),
                "an empty volume".to_owned(),
            ),
            Expectation::Version(Some(head)) => {
                let pinned = &self.versions[&head.key];
                let range = pinned.boundaries.clone();
                (
                    pinned.timeline.boundaries(range, false, seen),
                    format!("the state of version {head:?}"),
                )
            }
        };
        let Some(boundary) = found.last().copied() else {
            let differences = history.timeline.explain(seen);
            return Err(format!(
                "host {index} does not find {expected}{differences}"
            ));
        };
        trace!(self, "host {index} opened at {boundary} of {end}");
        let history = &mut self.history;
        history.timeline.truncate(boundary, seen);
        history.acknowledged = boundary;
        history.durable = history.durable.min(boundary);
        Ok(())
    }

    /// Reads all blocks of the volume.
    fn read_all(&mut self, index: usize) -> Check<Blocks> {
        let host = &mut self.hosts[index];
        let Some(attached) = &mut host.attached else {
            return Ok(Blocks::new());
        };
        let mut seen = Blocks::new();
        for block in 0..BLOCKS {
            let mut bytes = vec![0; 4096];
            let request = Request::read(0, block * 4096, &mut bytes);
            match attached.volume.start(request) {
                Started::Done => {}
                Started::Pending => {
                    let mut completions: Vec<Completion> = Vec::new();
                    while completions.is_empty() {
                        host.machine.simulation.pool.run_one(&self.random);
                        attached.volume.poll(&mut completions);
                    }
                    match completions.pop().map(|completion| completion.result) {
                        Some(Ok(Outcome::Data(data))) => bytes = data,
                        other => return Err(format!("block {block} cannot be read: {other:?}")),
                    }
                }
                other => return Err(format!("block {block} cannot be read: {other:?}")),
            }
            seen.insert(block, content(&bytes));
        }
        Ok(seen)
    }
}
