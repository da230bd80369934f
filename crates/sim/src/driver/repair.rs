//! [`Maintenance`]: units that die, are rolled back or are drained, and the repairer that
//! runs beside everything else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{CopysetId, UnitId};
use catalog::{Catalog, Copyset};
use unit::Unit;
use volume::repair::{CopysetRepair, Depth, Pace, PassReport, RepairMember, Stopped, Uncommitted};
use world::simulated::{Fault, SimulatedDisk, SimulatedPool, SimulatedRandom};
use world::{Clock, Millis};

use super::context::{Context, trace};
use super::volumes::TestVolumes;
use crate::Check;
use crate::machine::{Machine, unit_id};
use crate::watched_catalog::WatchedCatalog;

/// The most units that ever exist.
const UNITS_MAX: usize = 20;

/// Passes over one copyset after which another one is repaired.
const PASSES_MAX: usize = 8;

/// Rounds over all copysets after which every member must be in sync.
const ROUNDS_MAX: usize = 12;

/// Jobs and polls after which nothing may be in flight any more.
const TURNS_MAX: usize = 4000;

/// Runs other work between two steps of a pass.
struct InterleavingPace<'a> {
    pool: &'a SimulatedPool,
    random: &'a SimulatedRandom,
    machine: &'a Machine,
    catalog: &'a WatchedCatalog,
    now: Millis,
    /// Steps until the repairer is killed.
    left: AtomicU64,
    /// Whether jobs run and slots are freed between steps.
    is_busy: bool,
}

impl Pace for InterleavingPace<'_> {
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
                // A plan that fails stays due, and is carried out later.
                let _ = self.machine.carry_out(&free);
            }
        }
        Ok(())
    }

    fn report_progress(&self, _: u64, _: u64) {}
}

/// How a copyset is repaired.
#[derive(Debug, Clone, Copy)]
struct RepairPlan {
    depth: Depth,
    /// Steps after which the repairer is killed.
    steps_max: u64,
    /// Whether other work runs between steps.
    is_busy: bool,
}

/// Copies of the units' disks.
struct UnitCopies {
    /// The number of units when the copies were made.
    units: usize,
    disks: Vec<SimulatedDisk>,
}

/// A change of a unit, chosen by the seed.
pub(super) enum UnitChange {
    /// Other units replace it. It drains, unless it is dead.
    Replace { unit: usize, is_dead: bool },
    /// It is rolled back to its earlier state while the host's process is down.
    RollBack { unit: usize },
}

/// The state of units and their copies beyond what the machine knows.
#[derive(Default)]
pub(super) struct Maintenance {
    /// Copies of the units' disks to which units may be rolled back.
    copies: Option<UnitCopies>,
    /// Units that have been a member of some copyset.
    ever_used: BTreeSet<usize>,
}

impl Maintenance {
    /// Repairs some copyset: one with a member that is not in sync, or now and then
    /// another one.
    pub fn repair(&mut self, context: &mut Context, volumes: &mut TestVolumes) -> Check {
        if context.faults.is_falsifying {
            // Without a key, the repairer cannot detect falsified reads.
            return Ok(());
        }
        let members = &context.machine.catalog.members;
        let mut copysets = members.to_repair();
        let depth = match copysets.is_empty() {
            true => [Depth::Compare, Depth::Scrub][context.random.index(2)],
            false => Depth::Rebuild,
        };
        if copysets.is_empty() {
            if !context.chance(4) {
                return Ok(());
            }
            copysets = members.copysets().iter().map(|set| set.id).collect();
        }
        let copyset = copysets[context.random.index(copysets.len())];
        let steps_max = match context.chance(3) {
            true => context.random.below(60),
            false => u64::MAX,
        };
        let plan = RepairPlan {
            depth,
            steps_max,
            is_busy: true,
        };
        self.repair_copyset(context, volumes, copyset, plan)
            .map(drop)
    }

    /// Repairs a copyset until a pass finds nothing to restore. `None` if the repairer was
    /// killed, the power failed, or too many passes found something.
    fn repair_copyset(
        &mut self,
        context: &mut Context,
        volumes: &mut TestVolumes,
        copyset: CopysetId,
        plan: RepairPlan,
    ) -> Check<Option<PassReport>> {
        let mut repair = CopysetRepair::new(copyset);
        let mut restored = BTreeSet::new();
        context.machine.catalog.members.begin_repair(copyset);
        for _ in 0..PASSES_MAX {
            let sets = context.machine.catalog.members.copysets();
            let Some(set) = sets.into_iter().find(|set| set.id == copyset) else {
                return Ok(None);
            };
            let missed = context.machine.catalog.members.missed_writes(copyset);
            let passed = pass(context, &mut repair, &set, plan);
            if context.is_off() {
                return Ok(None);
            }
            let Ok(found) = passed else {
                trace!(context, "the repairer of {} was killed", copyset.number());
                return Ok(None);
            };
            context.summary.repaired += 1;
            let (number, depth) = (copyset.number(), plan.depth);
            trace!(context, "{number} {depth:?}: {found:?} of {set:?}");
            restored.extend(found.incomplete.iter().copied());
            let is_stuck = !found.problems.is_empty() && found.copied_bytes == 0;
            if !found.incomplete.is_empty() && !is_stuck {
                continue;
            }
            if !set.draining.is_empty() && !volumes.quiesce(context)? {
                return Ok(None);
            }
            let machine = &mut context.machine;
            let members = &machine.catalog.members;
            if members.end_repair(copyset, &missed, &found, &restored) {
                machine.catalog.memory.forget_degraded(copyset);
            }
            self.remove_drained(machine);
            machine.set_tables();
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Repairs all copysets until every member is in sync.
    pub fn repair_all(&mut self, context: &mut Context, volumes: &mut TestVolumes) -> Check {
        let plan = RepairPlan {
            depth: Depth::Rebuild,
            steps_max: u64::MAX,
            is_busy: false,
        };
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            let copysets = context.machine.catalog.members.to_repair();
            if copysets.is_empty() || context.faults.has_rot {
                return Ok(());
            }
            for copyset in copysets {
                last = self.repair_copyset(context, volumes, copyset, plan)?;
            }
            if context.is_repairing() {
                // A dead segment that only one member still has cannot be recovered on
                // another one: it is deleted there as well.
                context.carry_out_due(Millis(i64::MAX))?;
            }
        }
        let left = context.machine.catalog.members.to_repair();
        match left.is_empty() || context.faults.has_rot {
            true => Ok(()),
            false => Err(format!("not in sync at the end: {left:?}: {last:?}")),
        }
    }

    /// Chooses a change of some unit that the other units make up for. Sometimes copies
    /// the units' disks instead.
    pub fn choose(
        &mut self,
        context: &mut Context,
        volumes: &mut TestVolumes,
    ) -> Check<Option<UnitChange>> {
        let faults = &context.faults;
        if faults.has_rot || faults.is_falsifying || context.is_repairing() {
            return Ok(None);
        }
        let units = context.machine.units.len();
        let there: Vec<usize> = (0..units)
            .filter(|unit| !context.machine.removed.contains(unit))
            .collect();
        let unit = there[context.random.index(there.len())];
        let kind = context.random.below(4);
        if kind == 0 {
            let disks = context.machine.copy_unit_disks();
            self.copies = Some(UnitCopies { units, disks });
            return Ok(None);
        }
        if !volumes.quiesce(context)? || context.is_repairing() {
            return Ok(None);
        }
        let can_lose = context.machine.catalog.members.can_lose(unit_id(unit));
        let copies = self.copies.as_ref();
        let has_copy = copies.is_some_and(|copies| unit < copies.units);
        Ok(match kind {
            1 if can_lose => Some(UnitChange::Replace {
                unit,
                is_dead: true,
            }),
            2 => Some(UnitChange::Replace {
                unit,
                is_dead: false,
            }),
            _ if can_lose && has_copy => Some(UnitChange::RollBack { unit }),
            _ => None,
        })
    }

    /// Replaces a unit by others in all of its copysets, or does nothing if there are not
    /// enough.
    pub fn replace_unit(&mut self, context: &mut Context, unit: usize, is_dead: bool) -> Check {
        trace!(context, "unit {unit} is replaced, dead: {is_dead}");
        let id = unit_id(unit);
        let sets = context.machine.catalog.members.copysets();
        let mut replacements: Vec<(CopysetId, UnitId)> = Vec::new();
        for set in sets.iter().filter(|set| set.members.contains(&id)) {
            match choose_replacement(context, set)? {
                Some(other) => replacements.push((set.id, unit_id(other))),
                None => return Ok(()),
            }
        }
        let machine = &mut context.machine;
        for (copyset, by) in replacements {
            machine.catalog.members.replace(copyset, id, by, is_dead);
        }
        if is_dead {
            let disk = machine.unit_disk(unit);
            disk.inject(&machine.unit_path(unit), Fault::Missing);
            machine.removed.insert(unit);
        }
        self.remove_drained(machine);
        machine.set_tables();
        context.summary.replaced += 1;
        Ok(())
    }

    /// The disk of a unit at the time of the last copy.
    pub fn copy_of(&self, unit: usize) -> Option<&SimulatedDisk> {
        let copies = self.copies.as_ref()?;
        // Without a network, one disk has all units.
        copies.disks.get(unit).or_else(|| copies.disks.first())
    }

    /// Removes the units that are no longer a member of any copyset.
    fn remove_drained(&mut self, machine: &mut Machine) {
        let sets = machine.catalog.members.copysets();
        let is_used = |unit: &usize| {
            let mut states = sets.iter().flat_map(|set| set.member_states());
            states.any(|(member, _)| member == unit_id(*unit))
        };
        let ever = std::mem::take(&mut self.ever_used);
        self.ever_used = (0..machine.units.len())
            .filter(|unit| is_used(unit) || ever.contains(unit))
            .collect();
        let drained = self.ever_used.iter().filter(|unit| !is_used(unit));
        machine.removed.extend(drained.copied());
    }
}

/// A unit that can replace a member of a copyset; a new one if there is none. `None` if
/// there are too many units, or the power fails.
fn choose_replacement(context: &mut Context, set: &Copyset) -> Check<Option<usize>> {
    let machine = &mut context.machine;
    let is_free =
        |other: &usize| !machine.removed.contains(other) && !set.members.contains(&unit_id(*other));
    let free: Vec<usize> = (0..machine.units.len()).filter(is_free).collect();
    if !free.is_empty() {
        return Ok(Some(free[context.random.index(free.len())]));
    }
    if machine.units.len() >= UNITS_MAX {
        return Ok(None);
    }
    match machine.add_unit() {
        Ok(other) => Ok(Some(other)),
        Err(_) if context.is_off() => Ok(None),
        Err(error) => Err(format!("cannot add a unit: {error}")),
    }
}

/// One pass over a copyset.
fn pass(
    context: &Context,
    repair: &mut CopysetRepair,
    set: &Copyset,
    plan: RepairPlan,
) -> Result<PassReport, Stopped> {
    let machine = &context.machine;
    let (open, serials, serial_next) = machine.catalog.memory.uncommitted();
    let open = open.iter().map(|open| (open.segment, open.slots));
    let uncommitted = Uncommitted::new(open, serials, serial_next);
    let members: Vec<RepairMember> = set
        .members_by_place()
        .filter_map(|(place, id, state)| {
            let number = machine.units.iter().position(|(unit, _)| *unit == id)?;
            Some(RepairMember {
                id,
                place,
                state,
                unit: Arc::clone(&machine.tracked[number]) as Arc<dyn Unit>,
                suspect: machine.catalog.members.suspect(set.id, id),
            })
        })
        .collect();
    let pace = InterleavingPace {
        pool: &machine.simulation.pool,
        random: &context.random,
        machine,
        catalog: &machine.catalog,
        now: machine.simulation.clock.wall(),
        left: AtomicU64::new(plan.steps_max),
        is_busy: plan.is_busy,
    };
    let network = machine.network.as_ref();
    let capability_cache = network.map(|network| network.capability_cache());
    if let Some(capability_cache) = capability_cache {
        capability_cache.begin_repair(set.id, plan.depth != Depth::Rebuild);
    }
    let passed = repair.pass(set.erasure(), &members, &uncommitted, plan.depth, &pace);
    if let Some(capability_cache) = capability_cache {
        capability_cache.end_repair(set.id);
    }
    passed
}

impl TestVolumes {
    /// Waits until everything that was placed is committed: a version that was placed with
    /// an old table must not be committed after members that have it were dropped. Returns
    /// `false` if the power fails.
    pub(super) fn quiesce(&mut self, context: &mut Context) -> Check<bool> {
        context.faults.is_any = true;
        self.heal(context)?;
        let simulation = &context.machine.simulation;
        for _ in 0..TURNS_MAX {
            if context.is_off() {
                return Ok(false);
            }
            self.poll_all(context)?;
            if simulation.pool.waiting() == 0 {
                self.poll_all(context)?;
            }
            let mut states = self.list.iter().filter_map(|volume| volume.status());
            let is_retrying = states.any(|status| status.destage_error.is_some());
            if simulation.pool.waiting() == 0 && !is_retrying {
                return Ok(true);
            }
            if !simulation.pool.run_one(&context.random) {
                simulation.clock.advance(Duration::from_millis(200));
            }
        }
        Err("work in flight does not end".to_owned())
    }
}
