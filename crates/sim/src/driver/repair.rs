//! Units that die, come back older or are drained, and the repairer beside all else.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{CopysetId, UnitId};
use unit::Unit;
use volume::catalog::Catalog;
use volume::repair::{Depth, Pace, PassReport, RepairMember, Stopped, Task, Uncommitted};
use world::simulated::{Fault, SimulatedPool, SimulatedRandom};
use world::{Clock, Millis};

use super::{Run, trace};
use crate::Check;
use crate::catalog::WatchedCatalog;
use crate::machine::{Machine, unit_id};

/// Units that there ever are.
const UNITS_MAX: usize = 20;

/// Passes over one copyset after which it is another one's turn.
const PASSES_MAX: usize = 8;

/// Rounds over all copysets after which all that can be whole is.
const ROUNDS_MAX: usize = 12;

/// Jobs and polls after which nothing is in flight any more.
const TURNS_MAX: usize = 4000;

/// What goes on between two calls of a pass.
struct Beside<'a> {
    pool: &'a SimulatedPool,
    random: &'a SimulatedRandom,
    /// It frees, too.
    machine: &'a Machine,
    catalog: &'a WatchedCatalog,
    now: Millis,
    /// The repairer is killed after so many calls.
    left: AtomicU64,
    is_busy: bool,
}

impl Pace for Beside<'_> {
    fn step(&self, _: u64) -> Result<(), Stopped> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(Stopped);
        }
        if self.is_busy && self.random.one_in(2) {
            self.pool.run_one(self.random);
        }
        if self.is_busy && self.random.one_in(8) {
            let due = self.catalog.due_frees(self.now, 0, 1);
            for free in due.unwrap_or_default() {
                // What fails stays due, and is carried out later.
                let _ = self.machine.carry_out(&free);
            }
        }
        Ok(())
    }

    fn compared(&self, _: u64, _: u64) {}
}

impl Run {
    /// Whether some member of some copyset is not whole.
    pub(super) fn is_repairing(&self) -> bool {
        !self.machine.catalog.members.to_repair().is_empty()
    }

    /// The repairer takes a copyset.
    pub(super) fn repair(&mut self) -> Check {
        if self.is_lying {
            // Without a key it cannot know what was read wrong.
            return Ok(());
        }
        let members = &self.machine.catalog.members;
        let mut copysets = members.to_repair();
        let depth = match copysets.is_empty() {
            true => [Depth::Compare, Depth::Scrub][self.random.index(2)],
            false => Depth::Rebuild,
        };
        if copysets.is_empty() {
            if !self.chance(4) {
                return Ok(());
            }
            copysets = members.copysets().iter().map(|set| set.id).collect();
        }
        let copyset = copysets[self.random.index(copysets.len())];
        let left = match self.chance(3) {
            true => self.random.below(60),
            false => u64::MAX,
        };
        self.repair_one(copyset, depth, left, true).map(|_| ())
    }

    /// Repairs a copyset until a pass finds nothing to restore; `None` if the repairer was
    /// killed or the power failed.
    fn repair_one(
        &mut self,
        copyset: CopysetId,
        depth: Depth,
        left: u64,
        is_busy: bool,
    ) -> Check<Option<PassReport>> {
        let mut task = Task::new(copyset);
        let mut brought = BTreeSet::new();
        self.machine.catalog.members.begin(copyset);
        for _ in 0..PASSES_MAX {
            let sets = self.machine.catalog.members.copysets();
            let Some(set) = sets.into_iter().find(|set| set.id == copyset) else {
                return Ok(None);
            };
            let missed = self.machine.catalog.members.missed(copyset);
            let (open, serials, serial_next) = self.machine.catalog.memory.uncommitted();
            let open = open.iter().map(|open| (open.segment, open.slots));
            let uncommitted = Uncommitted::new(open, serials, serial_next);
            let units = self.machine.units.iter().zip(&self.machine.tracked);
            let units: Vec<_> = units.map(|((id, _), unit)| (*id, unit.clone())).collect();
            let placed = set.members_by_place().filter_map(|(place, id, state)| {
                let (_, unit) = units.iter().find(|(unit, _)| *unit == id)?;
                Some(RepairMember {
                    id,
                    place,
                    state,
                    unit: unit.clone() as std::sync::Arc<dyn Unit>,
                    suspect: self.machine.catalog.members.suspect(copyset, id),
                })
            });
            let members: Vec<RepairMember> = placed.collect();
            let pace = Beside {
                pool: &self.machine.simulation.pool,
                random: &self.random,
                machine: &self.machine,
                catalog: &self.machine.catalog,
                now: self.machine.simulation.clock.wall(),
                left: AtomicU64::new(left),
                is_busy,
            };
            let capability_cache = self
                .machine
                .network
                .as_ref()
                .map(|network| network.capability_cache());
            if let Some(capability_cache) = capability_cache {
                capability_cache.repairs(copyset, depth != Depth::Rebuild);
            }
            let passed = task.pass(set.erasure(), &members, &uncommitted, depth, &pace);
            if let Some(capability_cache) = capability_cache {
                capability_cache.has_repaired(copyset);
            }
            if self.is_off() {
                return Ok(None);
            }
            let Ok(found) = passed else {
                trace!(self, "the repairer of {} was killed", copyset.number());
                return Ok(None);
            };
            self.summary.repaired += 1;
            trace!(self, "{} {depth:?}: {found:?} of {set:?}", copyset.number());
            brought.extend(found.lacking.iter().copied());
            let is_stuck = !found.problems.is_empty() && found.copied_bytes == 0;
            if !found.lacking.is_empty() && !is_stuck {
                continue;
            }
            if !set.draining.is_empty() && !self.quiesce()? {
                return Ok(None);
            }
            if self
                .machine
                .catalog
                .members
                .end(copyset, &missed, &found, &brought)
            {
                self.machine.catalog.memory.forget_degraded(copyset);
            }
            self.forget_drained();
            self.machine.set_tables();
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Until all that is placed is committed: a version that was placed under an old
    /// table must not be committed after those are dropped that have it. False if the
    /// power fails.
    fn quiesce(&mut self) -> Check<bool> {
        self.trouble = true;
        self.settle()?;
        for _ in 0..TURNS_MAX {
            if self.is_off() {
                return Ok(false);
            }
            self.poll_all()?;
            if self.machine.simulation.pool.waiting() == 0 {
                self.poll_all()?;
            }
            let clients = self.subjects.iter().filter_map(|it| it.client.as_ref());
            let mut states = clients.map(|client| client.volume.status());
            let is_tried_again = states.any(|it| it.destage_error.is_some());
            if self.machine.simulation.pool.waiting() == 0 && !is_tried_again {
                return Ok(true);
            }
            if !self.machine.simulation.pool.run_one(&self.random) {
                let step = std::time::Duration::from_millis(200);
                self.machine.simulation.clock.advance(step);
            }
        }
        Err("what is in flight does not end".to_owned())
    }

    /// A unit dies, comes back older, or is drained, as far as the others make up for it.
    pub(super) fn change_members(&mut self) -> Check {
        if self.rotten || self.is_lying || self.is_repairing() {
            return Ok(());
        }
        let there: Vec<usize> = (0..self.machine.units.len())
            .filter(|unit| !self.machine.removed.contains(unit))
            .collect();
        let unit = there[self.random.index(there.len())];
        let what = self.random.below(4);
        if what == 0 {
            // What units held now, they may be put back to.
            let copies = self.machine.copy_unit_disks();
            self.earlier = Some((self.machine.units.len(), copies));
            return Ok(());
        }
        if !self.quiesce()? || self.is_repairing() {
            return Ok(());
        }
        let can_lose = self.machine.catalog.members.can_lose(unit_id(unit));
        let was_there = self
            .earlier
            .as_ref()
            .is_some_and(|(units, _)| unit < *units);
        match what {
            1 if can_lose => self.replace_unit(unit, true),
            2 => self.replace_unit(unit, false),
            _ if can_lose && was_there => self.put_back(unit),
            _ => Ok(()),
        }
    }

    /// Other units take a unit's places.
    fn replace_unit(&mut self, unit: usize, is_gone: bool) -> Check {
        trace!(self, "unit {unit} leaves, dead: {is_gone}");
        let id = unit_id(unit);
        let sets = self.machine.catalog.members.copysets();
        let its: Vec<_> = sets
            .into_iter()
            .filter(|set| set.members.contains(&id))
            .collect();
        // Each must have somebody before anything is changed.
        let mut by: Vec<(CopysetId, UnitId)> = Vec::new();
        for set in &its {
            let is_free = |other: &usize| {
                !self.machine.removed.contains(other) && !set.members.contains(&unit_id(*other))
            };
            let free: Vec<usize> = (0..self.machine.units.len()).filter(is_free).collect();
            let other = match free.is_empty() {
                false => free[self.random.index(free.len())],
                true if self.machine.units.len() < UNITS_MAX => match self.machine.add_unit() {
                    Ok(other) => other,
                    Err(_) if self.is_off() => return Ok(()),
                    Err(error) => return Err(format!("no new unit: {error}")),
                },
                true => return Ok(()),
            };
            by.push((set.id, unit_id(other)));
        }
        for (copyset, by) in by {
            let members = &self.machine.catalog.members;
            members.replace(copyset, id, by, is_gone);
        }
        if is_gone {
            let disk = self.machine.unit_disk(unit);
            disk.inject(&self.machine.unit_path(unit), Fault::Missing);
            self.machine.removed.insert(unit);
        }
        self.forget_drained();
        self.machine.set_tables();
        self.summary.replaced += 1;
        Ok(())
    }

    /// Whoever is a member of nothing any more is removed.
    fn forget_drained(&mut self) {
        let sets = self.machine.catalog.members.copysets();
        let is_used = |unit: &usize| {
            let mut standing = sets.iter().flat_map(|set| set.member_states());
            standing.any(|(member, _)| member == unit_id(*unit))
        };
        let ever = std::mem::take(&mut self.ever_used);
        self.ever_used = (0..self.machine.units.len())
            .filter(|unit| is_used(unit) || ever.contains(unit))
            .collect();
        let drained = self.ever_used.iter().filter(|unit| !is_used(unit));
        let drained: BTreeSet<usize> = drained.copied().collect();
        self.machine.removed.extend(drained);
    }

    /// The process is killed, and one unit is put back to what it held earlier.
    fn put_back(&mut self, unit: usize) -> Check {
        trace!(self, "unit {unit} is put back");
        self.put_back = Some(unit);
        self.restart(false)?;
        let (_, unit_now) = &self.machine.units[unit];
        let segments = unit_now.list().map_err(|error| error.to_string())?;
        self.ghosts.extend(segments);
        self.summary.replaced += 1;
        Ok(())
    }

    /// Until every member is whole.
    pub(super) fn repair_all(&mut self) -> Check {
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            let copysets = self.machine.catalog.members.to_repair();
            if copysets.is_empty() || self.rotten {
                return Ok(());
            }
            for copyset in copysets {
                last = self.repair_one(copyset, Depth::Rebuild, u64::MAX, false)?;
            }
            if self.is_repairing() {
                // What is dead as a whole, and gone from all but one, nobody can bring to
                // another: it goes there as well.
                self.carry_out_due(Millis(i64::MAX))?;
            }
        }
        let left = self.machine.catalog.members.to_repair();
        match left.is_empty() || self.rotten {
            true => Ok(()),
            false => Err(format!("not whole in the end: {left:?}: {last:?}")),
        }
    }
}
