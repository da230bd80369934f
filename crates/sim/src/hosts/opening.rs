//! Taking the lease, opening the volume, and comparing what is found with what
//! the one before left.

use base::{BlockDevice, Completion, Outcome, Request, Started};
use volume::journal::{JournalLocation, SharedFolder};
use volume::{LeaseTerm, OpenError};
use world::Disk;

use super::host::{Attached, HOLD, Taken};
use super::{BLOCKS, FOLDER, Run, VOLUME, trace};
use crate::Check;
use crate::model::{Blocks, content};

impl Run {
    pub(super) fn acquire(&mut self, index: usize) -> Check {
        let host = &mut self.hosts[index];
        if host.is_cut || host.attached.is_some() {
            return Ok(());
        }
        self.heal(index);
        let host = &mut self.hosts[index];
        host.taken = None;
        let sent = host.clock();
        let (catalog, salt) = (&host.machine.catalog.memory, host.machine.salt());
        let journals = self.is_shared.then_some(FOLDER);
        let Some(lease) = self
            .registry
            .acquire(index, catalog, VOLUME, salt, journals)
        else {
            return Ok(());
        };
        trace!(self, "host {index} takes lease {}", lease.epoch);
        // From here on whoever had it is on its own.
        let other = &mut self.hosts[1 - index];
        if let Some(left) = &mut other.attached
            && left.left_with.is_none()
        {
            left.left_with = Some(self.past.clone());
        }
        // The answer may be lost.
        if self.random.below(8) > 0 {
            if let Some(network) = &self.hosts[index].machine.network {
                network.capability_cache().leased(VOLUME, lease.epoch);
                let keys = lease.keys.iter();
                keys.for_each(|key| network.capability_cache().reads(key.lineage));
            }
            let taken_over = self.registry.others_since(self.hosts[index].opened, index);
            self.hosts[index].taken = Some(Taken {
                lease,
                sent,
                taken_over,
            });
        }
        Ok(())
    }

    fn shared(&self) -> Option<SharedFolder> {
        self.is_shared.then(|| SharedFolder {
            path: self.hosts[0].machine.host(),
            id: FOLDER,
        })
    }

    pub(super) fn open(&mut self, index: usize) -> Check {
        self.place_commits();
        let shared = self.shared();
        let Some(taken) = self.hosts[index].taken.take() else {
            return Ok(());
        };
        let Taken {
            lease,
            sent,
            taken_over,
        } = taken;
        let (epoch, head) = (lease.epoch, lease.head.clone());
        let host = &mut self.hosts[index];
        let journal = host.machine.journal(VOLUME);
        if taken_over && shared.is_none() {
            // What this host had is no part of the volume any more.
            let disk = &host.machine.simulation.disk;
            let _ = disk.remove(&journal);
            let synced = disk.sync_directory(&host.machine.host());
            synced.expect("the disk is well");
        }
        let term = LeaseTerm::until(sent + HOLD);
        let has_ended = host.clock() >= sent + HOLD;
        let place = JournalLocation::of(&lease, &journal, shared.as_ref());
        let opened = host.machine.open_at(lease, term.clone(), place, taken_over);
        let volume = match opened {
            Ok(volume) => volume,
            Err(error) if has_ended => {
                trace!(self, "host {index} was too slow: {error}");
                return Ok(());
            }
            // Whether its journal is named now, nobody knows; whole it is.
            Err(error @ OpenError::Catalog(_)) if host.is_cut => {
                trace!(self, "host {index} is cut off as it opens: {error}");
                return Ok(());
            }
            Err(error) => return Err(format!("host {index} cannot open: {error}")),
        };
        if epoch != self.registry.epoch() {
            return Err(format!("host {index} opened under a lease that is over"));
        }
        if let Some(shared) = &shared
            && self.random.below(4) > 0
        {
            // Or it dies before that.
            let world = host.machine.simulation.world();
            let removed = shared.remove_before(&world, VOLUME, epoch);
            removed.map_err(|error| format!("what is older stays: {error}"))?;
        }
        host.opened = epoch;
        host.may_stop = host.is_cut;
        host.attached = Some(Attached::new(volume, term, epoch, sent));
        let seen = self.read_all(index)?;
        let len = self.past.timeline.len();
        let past = &mut self.past;
        let (found, what) = if self.is_shared || !taken_over {
            let floor = match self.power_failed {
                true => past.durable,
                false => past.acknowledged,
            };
            let found = past.timeline.boundaries(floor..=len, false, &seen);
            (found, format!("a state between {floor} and {len}"))
        } else {
            let found = match &head {
                None => past.timeline.boundaries(0..=0, false, &seen),
                Some(head) => {
                    let pinned = &self.versions[&head.key];
                    let range = pinned.boundaries.clone();
                    pinned.timeline.boundaries(range, false, &seen)
                }
            };
            (found, format!("what version {head:?} holds"))
        };
        let Some(boundary) = found.last().copied() else {
            let why = past.timeline.explain(&seen);
            return Err(format!("host {index} does not find {what}{why}"));
        };
        trace!(
            self,
            "host {index} opened under lease {epoch} at {boundary} of {len}"
        );
        past.timeline.cut(boundary, &seen);
        past.acknowledged = boundary;
        past.durable = past.durable.min(boundary);
        self.power_failed = false;
        self.summary.restarts += 1;
        Ok(())
    }

    /// What the volume holds.
    fn read_all(&mut self, index: usize) -> Check<Blocks> {
        let host = &mut self.hosts[index];
        let Some(attached) = &mut host.attached else {
            return Ok(Blocks::new());
        };
        let mut seen = Blocks::new();
        for block in 0..BLOCKS {
            let mut bytes = vec![0; 4096];
            match attached
                .volume
                .start(Request::read(0, block * 4096, &mut bytes))
            {
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
