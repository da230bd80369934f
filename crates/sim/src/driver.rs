//! One run: steps that the seed chooses, and what must hold after each.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use unit::InjectedFaults;

use base::{Durability, Lineage, Location, SnapshotId, VolumeId};
use volume::catalog::{Catalog, LineageKey, NewVolume, StoredVersion, VersionCommit, VersionKey};
use volume::clean::{FreePlan, Removal};
use volume::seal::DataKey;
use world::simulated::{Fault, SimulatedRandom};
use world::{Clock, Disk, Millis};

use crate::audit::{self, Nonces};
use crate::client::{Client, Past};
use crate::machine::Machine;
use crate::model::{Blocks, Edit, Pinned, content};
use crate::setup::Setup;
use crate::{Check, Summary};

/// Volumes that are there at once.
const VOLUMES_MAX: usize = 5;
/// Jobs and polls after which a volume that should settle is stuck.
const TURNS_MAX: usize = 20_000;

/// What a volume that is not attached must hold when it is.
#[derive(Debug, Clone, Copy)]
enum Expect {
    /// A boundary from this one on; if torn, cut through an operation. What is
    /// found after the power failed is durable.
    Since {
        boundary: usize,
        torn: bool,
        is_durable: bool,
    },
    /// What this version holds; an empty volume if there is none.
    Version(Option<VersionKey>),
}

/// A volume under test.
struct Subject {
    id: VolumeId,
    past: Past,
    client: Option<Client>,
    expect: Expect,
    /// The next version is cut at this boundary or a later one.
    version_floor: usize,
    /// Snapshots that were asked for, and where they cut.
    pending: BTreeMap<SnapshotId, usize>,
    /// Its past is what `past` says, also of versions it commits now.
    is_known: bool,
    /// Somebody else has taken the lease: the owner will stop, sooner or later.
    is_fenced: bool,
}

/// One run.
pub struct Run {
    setup: Setup,
    random: SimulatedRandom,
    machine: Machine,
    subjects: Vec<Subject>,
    versions: BTreeMap<VersionKey, Pinned>,
    snapshots: Vec<SnapshotId>,
    /// Commits of volumes whose content is not yet known.
    unplaced: Vec<VersionCommit>,
    nonces: Nonces,
    next: u128,
    /// Faults are, or were a moment ago, in force: requests may fail.
    trouble: bool,
    /// Some unit was away or refused something: copies may be missing.
    degraded: bool,
    /// Slots may be kept that no version names.
    leaky: bool,
    rotten: bool,
    crash_armed: bool,
    is_traced: bool,
    summary: Summary,
}

macro_rules! trace {
    ($run:expr, $($part:tt)*) => {
        if $run.is_traced {
            eprintln!("  {}", format!($($part)*));
        }
    };
}

impl Run {
    /// The run that `seed` is.
    #[must_use]
    pub fn new(seed: u64, is_traced: bool) -> Self {
        let random = SimulatedRandom::new(seed ^ 0x5ca1_ab1e);
        let setup = Setup::choose(&random);
        let machine = Machine::new(seed, &setup);
        let mut run = Self {
            setup,
            random,
            machine,
            subjects: Vec::new(),
            versions: BTreeMap::new(),
            snapshots: Vec::new(),
            unplaced: Vec::new(),
            nonces: Nonces::default(),
            next: 1,
            trouble: false,
            degraded: false,
            leaky: false,
            rotten: false,
            crash_armed: false,
            is_traced,
            summary: Summary::default(),
        };
        trace!(run, "{:?}", run.setup);
        run.create(None);
        run
    }

    /// Takes all steps, and then looks at everything.
    ///
    /// # Errors
    /// What did not hold.
    pub fn all(mut self) -> Check<Summary> {
        for step in 0..self.setup.steps {
            trace!(self, "step {step}");
            self.step()?;
            self.after_step()?;
        }
        self.finish()?;
        self.summary.operations = self.machine.simulation.disk.operations();
        Ok(self.summary)
    }

    fn number(&mut self) -> u128 {
        self.next += 1;
        self.next
    }

    fn chance(&self, one_in: u64) -> bool {
        self.random.one_in(one_in)
    }

    fn is_off(&self) -> bool {
        self.machine.simulation.disk.is_off()
    }

    fn may_fail(&self) -> bool {
        self.trouble || self.rotten || self.is_off()
    }

    // Steps.

    fn step(&mut self) -> Check {
        match self.random.below(100) {
            0..=54 => self.request(),
            55..=71 => self.turn(),
            72..=75 => self.pass_time(),
            76..=78 => self.snapshot(),
            79 | 80 => self.clone_version(),
            81 => self.grow(),
            82 => self.restore(),
            83 => self.close_one(),
            84 => self.delete(),
            85..=87 => self.remove_version(),
            88 | 89 => self.carry_out(),
            90 => self.check_version(),
            91 => self.fence(),
            _ => self.mishap(),
        }
    }

    /// What every step ends with: a machine without power boots, a volume that
    /// has stopped is let go.
    fn after_step(&mut self) -> Check {
        if self.is_off() {
            trace!(self, "power failed");
            return self.restart(true);
        }
        for index in 0..self.subjects.len() {
            if self.subjects[index]
                .client
                .as_ref()
                .is_some_and(Client::is_stopped)
            {
                self.let_go(index)?;
            }
        }
        self.place_commits()
    }

    fn request(&mut self) -> Check {
        let Some(index) = self.any_attached()? else {
            return Ok(());
        };
        for _ in 0..1 + self.random.below(4) {
            self.one_request(index)?;
        }
        let subject = &mut self.subjects[index];
        if let Some(client) = &mut subject.client {
            client.commit(&subject.past);
        }
        Ok(())
    }

    fn one_request(&mut self, index: usize) -> Check {
        let may_fail = self.may_fail();
        let size_bytes = self.subjects[index].past.size_bytes;
        let block_bytes = self.setup.block_size.bytes() as u64;
        let first = self.setup.hot_block(&self.random, size_bytes) * block_bytes;
        let is_aligned = self.random.below(3) > 0;
        let (offset, length) = if is_aligned {
            (first, block_bytes * (1 + self.random.below(6)))
        } else {
            let within = self.random.below(block_bytes);
            (first + within, 1 + self.random.below(3 * block_bytes))
        };
        let offset = offset.min(size_bytes - 1);
        let length = length.min(size_bytes - offset);
        let durability = match self.random.below(5) {
            0 => Durability::Durable,
            _ => Durability::Volatile,
        };
        let kind = self.random.below(20);
        trace!(
            self,
            "{} request {kind} at {offset}+{length} {durability:?}", self.subjects[index].id
        );
        let subject = &mut self.subjects[index];
        let Some(client) = &mut subject.client else {
            return Ok(());
        };
        let past = &mut subject.past;
        match kind {
            0..=8 => {
                self.next += 1;
                let data = fill(self.next as u64, length as usize);
                client.change(past, &Edit::Write(offset, data), durability, may_fail)?;
            }
            9 | 10 => {
                client.change(past, &Edit::Zero(offset, length), durability, may_fail)?;
            }
            11 => {
                client.change(past, &Edit::Trim(offset, length), durability, may_fail)?;
            }
            12 => {
                // Much at once: leaves, or everything.
                let length = match self.random.below(3) {
                    0 => 300 * block_bytes,
                    1 => 70_000 * block_bytes,
                    _ => size_bytes,
                };
                let length = length.min(size_bytes - offset);
                client.change(past, &Edit::Trim(offset, length), durability, may_fail)?;
            }
            13..=15 => client.read(past, offset, length, may_fail)?,
            16 => {
                let length = (64 * block_bytes).min(size_bytes - offset);
                client.read(past, offset, length, may_fail)?;
            }
            17 => client.flush(past)?,
            18 => {
                let length = (400 * block_bytes).min(size_bytes - offset);
                client.extents(past, offset, length, may_fail)?;
            }
            _ => client.prefetch(offset, length, may_fail)?,
        }
        Ok(())
    }

    /// Jobs run, and volumes look what came of them.
    fn turn(&mut self) -> Check {
        for _ in 0..self.random.below(6) {
            self.machine.simulation.pool.run_one(&self.random);
        }
        self.poll_all()
    }

    fn poll_all(&mut self) -> Check {
        let may_fail = self.may_fail();
        for subject in &mut self.subjects {
            if let Some(client) = &mut subject.client {
                client.poll(&mut subject.past, may_fail)?;
            }
        }
        Ok(())
    }

    fn pass_time(&mut self) -> Check {
        let millis = [1, 300, 1000, 6000][self.random.index(4)];
        self.machine
            .simulation
            .clock
            .advance(Duration::from_millis(millis));
        if self.chance(10) {
            let jump = self.random.below(200_000).cast_signed() - 100_000;
            self.machine.simulation.clock.jump(jump);
        }
        self.machine.probe(false);
        self.poll_all()
    }

    fn snapshot(&mut self) -> Check {
        let Some(index) = self.any_attached()? else {
            return Ok(());
        };
        let id = SnapshotId::from_random(self.number());
        let subject = &mut self.subjects[index];
        let Some(client) = &mut subject.client else {
            return Ok(());
        };
        trace!(
            self,
            "{} {id} at {}",
            subject.id,
            subject.past.timeline.len()
        );
        client.volume.snapshot(id);
        if !client.is_stopped() {
            client.committed = subject.past.timeline.len();
            subject.pending.insert(id, subject.past.timeline.len());
        }
        Ok(())
    }

    fn clone_version(&mut self) -> Check {
        if self.subjects.len() < VOLUMES_MAX {
            let from = self.any_version();
            self.create(from);
        }
        Ok(())
    }

    fn create(&mut self, from: Option<VersionKey>) {
        let id = VolumeId::from_random(self.number());
        let lineage = Lineage::from_random(self.number());
        let random = self.random.split();
        let key = DataKey::generate(&random);
        let wrapped = self.machine.wrapping().wrap(lineage, &key, &random);
        let size_bytes = from.map_or(self.setup.size_bytes, |from| {
            self.versions[&from].size_bytes
        });
        let new = NewVolume {
            volume: id,
            size_bytes,
            block_size: self.setup.block_size,
            replicas: self.setup.replicas,
            key: LineageKey {
                lineage,
                epoch_first: 0,
                wrapped: self.setup.is_sealed.then_some(wrapped),
            },
            from,
        };
        trace!(self, "{id} made from {from:?}");
        self.machine
            .catalog
            .memory
            .create_volume(new)
            .expect("the version is kept");
        self.subjects.push(Subject {
            id,
            past: Past {
                size_bytes,
                ..Past::default()
            },
            client: None,
            expect: Expect::Version(from),
            version_floor: 0,
            pending: BTreeMap::new(),
            is_known: false,
            is_fenced: false,
        });
        self.summary.volumes += 1;
    }

    fn grow(&mut self) -> Check {
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        let subject = &mut self.subjects[index];
        let size_bytes = subject.past.size_bytes + 512 * (1 + self.random.below(1000));
        self.machine
            .catalog
            .memory
            .grow(subject.id, size_bytes)
            .expect("it is there");
        subject.past.size_bytes = size_bytes;
        if let Some(client) = &mut subject.client {
            client.volume.grow(size_bytes);
        }
        Ok(())
    }

    /// Sets a volume back to a version of its own, after what its journal
    /// holds has become one.
    fn restore(&mut self) -> Check {
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        if !self.attach(index)? || !self.close(index)? {
            return Ok(());
        }
        let id = self.subjects[index].id;
        let own: Vec<VersionKey> = self
            .versions
            .keys()
            .copied()
            .filter(|key| key.volume == id)
            .collect();
        if own.is_empty() {
            return Ok(());
        }
        let to = own[self.random.index(own.len())];
        trace!(self, "{id} restored to {}", to.number);
        self.machine
            .catalog
            .memory
            .restore(id, to)
            .expect("it is kept");
        self.subjects[index].expect = Expect::Version(Some(to));
        self.subjects[index].is_known = false;
        self.subjects[index].pending.clear();
        self.summary.restores += 1;
        Ok(())
    }

    fn close_one(&mut self) -> Check {
        if let Some(index) = self.any_subject()
            && self.subjects[index].client.is_some()
        {
            self.close(index)?;
        }
        Ok(())
    }

    fn delete(&mut self) -> Check {
        if self.subjects.len() < 2 || self.rotten {
            return Ok(());
        }
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        // What its last lease left behind is swept when it is attached: nobody
        // does that for a volume that is gone.
        for _ in 0..2 {
            self.settle()?;
            if !self.attach(index)? || !self.close(index)? {
                return Ok(());
            }
            self.machine.simulation.pool.run_all(&self.random);
            if self.is_off() {
                return Ok(());
            }
        }
        let subject = self.subjects.remove(index);
        trace!(self, "{} deleted", subject.id);
        self.machine.catalog.memory.delete_volume(subject.id);
        Ok(())
    }

    fn remove_version(&mut self) -> Check {
        if let Some(key) = self.any_version() {
            self.remove(key)?;
        }
        if let Some(at) =
            (!self.snapshots.is_empty()).then(|| self.random.index(self.snapshots.len()))
            && self.chance(3)
        {
            let id = self.snapshots.swap_remove(at);
            self.machine.catalog.memory.delete_snapshot(id);
        }
        Ok(())
    }

    fn remove(&mut self, key: VersionKey) -> Check<bool> {
        let now = self.machine.simulation.clock.wall();
        let not_before = Millis(now.0 + self.setup.grace_ms);
        match self.machine.cleaner().remove_version(key, not_before) {
            Ok(Removal::Removed { slots }) => {
                if self.chance(if self.is_traced { 1 } else { 8 }) {
                    self.check_plans(key)?;
                }
                trace!(self, "removed {key:?}: {slots} slots");
                self.versions.remove(&key);
                self.summary.removed += 1;
                Ok(true)
            }
            Ok(Removal::Needed) => Ok(false),
            Err(_) if self.may_fail() => {
                // It may have been carried out all the same.
                if self.machine.catalog.memory.version(key).is_err() {
                    self.versions.remove(&key);
                }
                Ok(false)
            }
            Err(error) => Err(format!("{key:?} cannot be removed: {error}")),
        }
    }

    /// No kept version names what waits to be freed.
    fn check_plans(&mut self, removed: VersionKey) -> Check {
        let plans = self.machine.catalog.memory.due_frees(Millis(i64::MAX));
        let mut freed = BTreeSet::new();
        for free in plans.map_err(|error| error.to_string())? {
            let plan = FreePlan::decode(&free.plan).map_err(|error| error.to_string())?;
            for (segment, slots) in plan.segments() {
                freed.extend(slots.into_iter().map(|slot| Location::new(segment, slot)));
            }
        }
        for stored in self.machine.catalog.memory.versions() {
            let Ok(walked) = audit::walk(&self.machine, &stored) else {
                continue;
            };
            if let Some(entry) = walked
                .entries()
                .find(|entry| freed.contains(&entry.location))
            {
                return Err(format!(
                    "{:?}, which {:?} names, is to be freed after {removed:?} was removed",
                    entry.location, stored.key
                ));
            }
        }
        Ok(())
    }

    fn carry_out(&mut self) -> Check {
        let now = self.machine.simulation.clock.wall();
        self.carry_out_due(now)
    }

    fn carry_out_due(&mut self, now: Millis) -> Check {
        let cleaner = self.machine.cleaner();
        let due = match self.machine.catalog.due_frees(now) {
            Ok(due) => due,
            Err(_) if self.may_fail() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        for free in due {
            match cleaner.carry_out(&free) {
                Ok(_) => {}
                Err(_) if self.may_fail() => return Ok(()),
                Err(error) => return Err(format!("cannot free: {error}")),
            }
        }
        Ok(())
    }

    /// A random version holds exactly what it was cut with.
    fn check_version(&mut self) -> Check {
        let Some(key) = self.any_version() else {
            return Ok(());
        };
        let Ok(stored) = self.machine.catalog.memory.version(key) else {
            return Ok(());
        };
        match self.hold(&stored) {
            Ok(()) => Ok(()),
            Err(Trouble::Unreadable(_)) if self.may_fail() => Ok(()),
            Err(Trouble::Unreadable(why) | Trouble::Wrong(why)) => Err(why),
        }
    }

    /// Another host takes the lease, and gives it up unused.
    fn fence(&mut self) -> Check {
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        if self.subjects[index].client.is_some() {
            trace!(self, "{} fenced", self.subjects[index].id);
            self.machine
                .catalog
                .memory
                .acquire(self.subjects[index].id)
                .expect("it is there");
            self.subjects[index].is_fenced = true;
        }
        Ok(())
    }

    fn mishap(&mut self) -> Check {
        let hazards = self.setup.hazards;
        let possible = [
            (hazards.power, Mishap::ArmCrash),
            (hazards.power, Mishap::PowerFails),
            (hazards.kill, Mishap::Kill),
            (hazards.units, Mishap::HarmUnit),
            (hazards.units, Mishap::HarmUnit),
            (hazards.lies, Mishap::Lie),
            (hazards.rot, Mishap::Flip),
            (hazards.journal, Mishap::HarmJournal),
            (hazards.catalog, Mishap::CatalogAway),
            (self.trouble, Mishap::Settle),
        ];
        let possible: Vec<Mishap> = possible
            .into_iter()
            .filter_map(|(may, mishap)| may.then_some(mishap))
            .collect();
        if possible.is_empty() || self.chance(3) {
            return Ok(());
        }
        match possible[self.random.index(possible.len())] {
            Mishap::ArmCrash if !self.crash_armed => {
                let disk = &self.machine.simulation.disk;
                disk.arm_crash(disk.operations() + self.random.below(60));
                self.crash_armed = true;
            }
            Mishap::ArmCrash => {}
            Mishap::PowerFails => self.restart(true)?,
            Mishap::Kill => self.restart(false)?,
            Mishap::HarmUnit => self.harm_unit(),
            Mishap::Lie => self.lie(),
            Mishap::Flip => self.flip()?,
            Mishap::HarmJournal => self.harm_journal(),
            Mishap::CatalogAway => {
                self.machine.catalog.set_unavailable(4);
                self.trouble = true;
            }
            Mishap::Settle => self.settle()?,
        }
        Ok(())
    }

    /// A unit errs, and brings what was not asked for.
    fn lie(&mut self) {
        let often = 2 + self.random.below(12);
        let mut faults = InjectedFaults::default();
        for (kind, rate) in [
            &mut faults.read_errors_one_in,
            &mut faults.write_errors_one_in,
            &mut faults.release_errors_one_in,
            &mut faults.flipped_bits_one_in,
            &mut faults.misdirected_one_in,
        ]
        .into_iter()
        .enumerate()
        {
            if self.random.one_in(2) {
                *rate = often + kind as u64;
            }
        }
        let unit = self.random.index(self.machine.units.len());
        trace!(self, "unit {unit} lies: {faults:?}");
        self.machine.lie(unit, faults);
        self.trouble = true;
        self.degraded = true;
    }

    fn harm_unit(&mut self) {
        let unit = self.random.index(self.machine.units.len());
        let fault = [
            Fault::Missing,
            Fault::Full,
            Fault::ReadOnly,
            Fault::Broken,
            Fault::Unreadable,
            Fault::SyncFails,
            Fault::Slow(Duration::from_millis(5)),
        ][self.random.index(7)];
        trace!(self, "unit {unit}: {fault:?}");
        self.machine
            .simulation
            .disk
            .inject(&self.machine.unit_path(unit), fault);
        // A unit that frees again after a failed sync does not write the mark
        // again: a crash may undo it, and the slot is leaked.
        self.leaky |= fault == Fault::SyncFails;
        self.trouble = true;
        self.degraded = true;
    }

    fn harm_journal(&mut self) {
        let fault = [
            Fault::Full,
            Fault::ReadOnly,
            Fault::Broken,
            Fault::SyncFails,
        ][self.random.index(4)];
        trace!(self, "journals: {fault:?}");
        self.machine
            .simulation
            .disk
            .inject(&self.machine.host(), fault);
        self.trouble = true;
    }

    fn flip(&mut self) -> Check {
        let disk = &self.machine.simulation.disk;
        let files: Vec<_> = (0..self.machine.units.len())
            .flat_map(|unit| disk.files_under(&self.machine.unit_path(unit).join("segments")))
            .filter(|(_, length)| *length > 0)
            .collect();
        if !files.is_empty() {
            let (path, length) = &files[self.random.index(files.len())];
            let offset = self.random.below(*length);
            trace!(self, "flipped a bit of {} at {offset}", path.display());
            disk.flip_bit(path, offset, self.random.below(8) as u8)
                .map_err(|error| error.to_string())?;
            self.rotten = true;
        }
        Ok(())
    }

    // Choices.

    fn any_subject(&self) -> Option<usize> {
        (!self.subjects.is_empty()).then(|| self.random.index(self.subjects.len()))
    }

    fn any_attached(&mut self) -> Check<Option<usize>> {
        let Some(index) = self.any_subject() else {
            return Ok(None);
        };
        Ok(self.attach(index)?.then_some(index))
    }

    fn any_version(&self) -> Option<VersionKey> {
        let keys: Vec<VersionKey> = self.versions.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[self.random.index(keys.len())])
    }

    // Attaching, closing, restarting.

    /// Attaches a volume and looks what it holds. False if that cannot be
    /// done now.
    fn attach(&mut self, index: usize) -> Check<bool> {
        if self.subjects[index].client.is_some() {
            return Ok(true);
        }
        let id = self.subjects[index].id;
        let lease = match self.machine.catalog.acquire(id) {
            Ok(lease) => lease,
            Err(_) if self.may_fail() => return Ok(false),
            Err(error) => return Err(format!("{id} gives no lease: {error}")),
        };
        let keys = lease.keys.clone();
        let disk = &self.machine.simulation.disk;
        self.nonces
            .note_journal(&**disk, &self.machine.journal(id), &keys)?;
        trace!(self, "{id} attached, epoch {}", lease.epoch);
        let volume = match self.machine.open(lease) {
            Ok(volume) => volume,
            Err(_) if self.may_fail() => return Ok(false),
            Err(error) => return Err(format!("{id} does not open: {error}")),
        };
        let subject = &mut self.subjects[index];
        subject.is_fenced = false;
        subject.client = Some(Client::new(volume, self.setup.block_size, &subject.past));
        self.verify(index)
    }

    /// Reads everything that was ever written, and finds the boundary.
    fn verify(&mut self, index: usize) -> Check<bool> {
        let Some(seen) = self.read_all(index)? else {
            trace!(self, "not verified");
            self.abandon(index);
            return Ok(false);
        };
        let subject = &mut self.subjects[index];
        let id = subject.id;
        let (boundaries, is_durable) = match subject.expect {
            Expect::Since {
                boundary,
                torn,
                is_durable,
            } => {
                let range = boundary..=subject.past.timeline.len();
                (
                    subject.past.timeline.boundaries(range, torn, &seen),
                    is_durable,
                )
            }
            Expect::Version(None) => {
                subject.past.timeline.cut(0, &Blocks::new());
                (subject.past.timeline.boundaries(0..=0, false, &seen), true)
            }
            Expect::Version(Some(key)) => {
                let pinned = &self.versions[&key];
                subject.past.timeline = pinned.timeline.clone();
                let range = pinned.boundaries.clone();
                (subject.past.timeline.boundaries(range, false, &seen), true)
            }
        };
        let Some(boundary) = boundaries.last().copied() else {
            let past = &subject.past.timeline;
            let none = format!(
                "{id} holds no state that it ever had: {:?} of {}",
                subject.expect,
                past.len()
            );
            return Err(none + &past.explain(&seen));
        };
        trace!(
            self,
            "{id} verified: boundary {boundary} of {} ({:?})",
            subject.past.timeline.len(),
            subject.expect
        );
        subject.past.timeline.cut(boundary, &seen);
        let end = subject.past.timeline.len();
        if is_durable {
            subject.past.durable = end;
        }
        if let Expect::Version(_) = subject.expect {
            subject.version_floor = end;
        }
        subject.past.durable = subject.past.durable.min(end);
        if let Some(client) = &mut subject.client {
            client.committed = end;
        }
        subject.is_known = true;
        self.place_commits()?;
        Ok(true)
    }

    /// What the volume holds wherever it, or one it came from, ever wrote.
    /// `None` if the power fails meanwhile, or it cannot be read.
    fn read_all(&mut self, index: usize) -> Check<Option<Blocks>> {
        use base::{BlockDevice, Completion, Outcome, Started};
        let subject = &self.subjects[index];
        let timeline = match subject.expect {
            Expect::Version(Some(key)) => &self.versions[&key].timeline,
            _ => &subject.past.timeline,
        };
        let mut blocks: Vec<u64> = timeline.touched_in(0..u64::MAX).collect();
        blocks.extend(subject.past.timeline.touched_in(0..u64::MAX));
        blocks.sort_unstable();
        blocks.dedup();
        let block_bytes = self.setup.block_size.bytes() as u64;
        let size_bytes = subject.past.size_bytes;
        // A version's volume may have grown after the version was cut.
        blocks.retain(|block| block * block_bytes < size_bytes);
        let mut seen = Blocks::new();
        for block in blocks {
            let offset = block * block_bytes;
            let mut whole = vec![0; block_bytes as usize];
            let length = (size_bytes - offset).min(block_bytes) as usize;
            let Some(client) = &mut self.subjects[index].client else {
                return Ok(None);
            };
            match client.volume.read(0, offset, &mut whole[..length]) {
                Started::Done => {}
                Started::Failed(_) if self.may_fail() => return Ok(None),
                Started::Pending => {
                    let mut completions: Vec<Completion> = Vec::new();
                    for _ in 0..TURNS_MAX {
                        self.machine.simulation.pool.run_one(&self.random);
                        let Some(client) = &mut self.subjects[index].client else {
                            return Ok(None);
                        };
                        client.volume.poll(&mut completions);
                        if !completions.is_empty() {
                            break;
                        }
                    }
                    match completions.pop().map(|completion| completion.result) {
                        Some(Ok(Outcome::Data(data))) => whole[..length].copy_from_slice(&data),
                        Some(Err(_)) if self.may_fail() => return Ok(None),
                        other => return Err(format!("block {block} cannot be read: {other:?}")),
                    }
                }
                other => return Err(format!("block {block} cannot be read: {other:?}")),
            }
            seen.insert(block, content(&whole));
        }
        Ok(Some(seen))
    }

    /// Drops a volume as it is. What it held stays to be found out.
    fn abandon(&mut self, index: usize) {
        if !self.is_off() {
            // Its process lives on, and so do its jobs, until they end.
            self.machine.simulation.pool.run_all(&self.random);
        }
        self.subjects[index].client = None;
    }

    /// Lets go of a volume that has stopped.
    fn let_go(&mut self, index: usize) -> Check {
        let status = self.subjects[index]
            .client
            .as_ref()
            .map(|client| client.volume.status());
        let stopped = status.and_then(|status| status.stopped);
        if !self.trouble && !self.subjects[index].is_fenced {
            return Err(format!(
                "{} has stopped: {stopped:?}",
                self.subjects[index].id
            ));
        }
        trace!(self, "{} let go: {stopped:?}", self.subjects[index].id);
        self.abandon(index);
        self.place_commits()?;
        let subject = &mut self.subjects[index];
        let boundary = subject.past.durable.max(subject.version_floor);
        subject.expect = Expect::Since {
            boundary,
            torn: true,
            is_durable: false,
        };
        subject.is_known = false;
        subject.pending.clear();
        Ok(())
    }

    /// Closes a volume cleanly. False if that cannot be done now.
    fn close(&mut self, index: usize) -> Check<bool> {
        self.settle()?;
        if self.is_off() {
            return Ok(false);
        }
        let Some(client) = &mut self.subjects[index].client else {
            return Ok(false);
        };
        client.is_closing = true;
        client.volume.begin_close();
        let closed = |client: &Client| client.volume.close_state().is_some();
        if !self.drive(index, closed)? {
            return Ok(false);
        }
        self.place_commits()?;
        let subject = &mut self.subjects[index];
        let Some(client) = subject.client.take() else {
            return Ok(false);
        };
        if let Some(Err(error)) = client.volume.close_state() {
            subject.client = Some(client);
            return match self.trouble || subject.is_fenced || self.machine.simulation.disk.is_off()
            {
                true => Ok(false),
                false => Err(format!(
                    "{} cannot be closed: {error}",
                    self.subjects[index].id
                )),
            };
        }
        drop(client);
        let boundary = subject.past.timeline.len();
        subject.past.durable = boundary;
        subject.expect = Expect::Since {
            boundary,
            torn: false,
            is_durable: true,
        };
        // Nothing is left in the journal: the head has it all.
        let head = self.machine.catalog.memory.head(subject.id);
        if let Some(head) = head.filter(|head| head.volume == subject.id)
            && let Some(pinned) = self.versions.get_mut(&head)
        {
            pinned.timeline = subject.past.timeline.clone();
            pinned.boundaries = boundary..=boundary;
            subject.version_floor = boundary;
        }
        if !subject.pending.is_empty() {
            return Err(format!("{} was closed without its snapshots", subject.id));
        }
        trace!(self, "{} closed", self.subjects[index].id);
        Ok(true)
    }

    /// Runs jobs and lets time pass until the volume is as it should be. False
    /// if the power fails.
    fn drive(&mut self, index: usize, is_done: impl Fn(&Client) -> bool) -> Check<bool> {
        for turn in 0..TURNS_MAX {
            if self.is_off() {
                return Ok(false);
            }
            self.poll_all()?;
            match &self.subjects[index].client {
                Some(client) if !is_done(client) => {}
                _ => return Ok(true),
            }
            if !self.machine.simulation.pool.run_one(&self.random) {
                self.machine
                    .simulation
                    .clock
                    .advance(Duration::from_millis(200));
            }
            if turn % 1000 == 999 {
                self.machine.probe(true);
            }
        }
        let status = self.subjects[index]
            .client
            .as_ref()
            .map(|client| client.volume.status());
        Err(format!(
            "{} does not settle: {status:?}",
            self.subjects[index].id
        ))
    }

    /// Heals everything, and waits until nothing is in flight that could still
    /// fail because of it.
    fn settle(&mut self) -> Check {
        if !self.trouble {
            return Ok(());
        }
        trace!(self, "settling");
        let disk = &self.machine.simulation.disk;
        for unit in 0..self.machine.units.len() {
            disk.heal(&self.machine.unit_path(unit));
        }
        disk.heal(&self.machine.host());
        for unit in 0..self.machine.units.len() {
            self.machine.lie(unit, InjectedFaults::default());
        }
        self.machine.catalog.set_unavailable(0);
        self.machine.probe(true);
        for index in 0..self.subjects.len() {
            // Stopped, or with nothing in flight and nothing to try again.
            let is_done = |client: &Client| {
                let status = client.volume.status();
                client.is_stopped() || (client.in_flight() == 0 && status.destage_error.is_none())
            };
            if !self.drive(index, is_done)? {
                return Ok(());
            }
            if self.subjects[index]
                .client
                .as_ref()
                .is_some_and(Client::is_stopped)
            {
                self.let_go(index)?;
            }
        }
        self.trouble = false;
        Ok(())
    }

    /// The machine crashes, or the process dies, and another starts.
    fn restart(&mut self, is_power: bool) -> Check {
        self.place_commits()?;
        self.crash_armed = false;
        self.machine.simulation.disk.arm_crash(u64::MAX);
        self.summary.restarts += 1;
        trace!(self, "restart, power: {is_power}");
        let is_off = self.is_off();
        let is_power = is_power || is_off;
        for subject in &mut self.subjects {
            let (was_committed, was_torn) = match (&subject.client, subject.expect) {
                (Some(client), _) if client.is_stopped() => (subject.past.durable, true),
                (Some(client), _) => (client.committed, true),
                (None, Expect::Since { boundary, torn, .. }) => (boundary, torn),
                (None, Expect::Version(_)) => continue,
            };
            let boundary = if is_power {
                subject.past.durable
            } else {
                was_committed
            };
            subject.expect = Expect::Since {
                boundary: boundary.max(subject.version_floor),
                torn: was_torn,
                is_durable: is_power,
            };
            subject.is_known = false;
            subject.pending.clear();
        }
        if is_power {
            self.machine.crash();
        } else {
            self.machine.kill();
        }
        for index in 0..self.subjects.len() {
            let was_attached = self.subjects[index].client.take().is_some();
            let is_lost = self.setup.hazards.journal && self.chance(6);
            if is_lost && was_attached {
                let id = self.subjects[index].id;
                trace!(self, "{id} loses its journal");
                let disk = &self.machine.simulation.disk;
                let path = self.machine.journal(id);
                let keys = self
                    .machine
                    .catalog
                    .memory
                    .acquire(id)
                    .expect("it is there")
                    .keys;
                self.nonces.note_journal(&**disk, &path, &keys)?;
                disk.heal(&self.machine.host());
                let removed = disk.remove(&path);
                if removed
                    .and_then(|()| disk.sync_directory(&self.machine.host()))
                    .is_ok()
                {
                    let head = self.machine.catalog.memory.head(id);
                    self.subjects[index].expect = Expect::Version(head);
                }
            }
        }
        Ok(())
    }

    // What was committed, and what versions hold.

    /// Takes note of versions that were committed.
    fn place_commits(&mut self) -> Check {
        for version in self.machine.catalog.take_records() {
            self.nonces.note_record(&version)?;
        }
        let mut commits = std::mem::take(&mut self.unplaced);
        commits.append(&mut self.machine.catalog.take_commits());
        for commit in commits {
            self.place_commit(&commit)?;
        }
        Ok(())
    }

    fn place_commit(&mut self, commit: &VersionCommit) -> Check {
        let key = commit.version.key;
        let Some(subject) = self
            .subjects
            .iter_mut()
            .find(|subject| subject.id == key.volume)
        else {
            return Ok(());
        };
        if !subject.is_known {
            self.unplaced.push(commit.clone());
            return Ok(());
        }
        let timeline = subject.past.timeline.clone();
        let mut boundaries = subject.version_floor..=timeline.len();
        for pin in &commit.pins {
            let Some(boundary) = subject.pending.remove(pin) else {
                return Err(format!("{pin} was completed twice, or never asked for"));
            };
            if boundary < subject.version_floor {
                return Err(format!("{pin} was cut before an earlier version"));
            }
            boundaries = boundary..=boundary;
            self.snapshots.push(*pin);
            self.summary.snapshots += 1;
        }
        trace!(
            self,
            "{key:?} committed: {boundaries:?}, {:?}", commit.open_segments
        );
        subject.version_floor = *boundaries.start();
        let size_bytes = subject.past.size_bytes;
        self.versions.insert(
            key,
            Pinned {
                timeline,
                boundaries,
                size_bytes,
            },
        );
        self.summary.versions += 1;
        Ok(())
    }

    /// Whether a version holds what it should.
    fn hold(&mut self, stored: &StoredVersion) -> Result<(), Trouble> {
        let walked = audit::walk(&self.machine, stored).map_err(Trouble::Unreadable)?;
        let read = audit::read_version(&self.machine, &walked).map_err(Trouble::Unreadable)?;
        self.compare(stored.key, &read).map_err(Trouble::Wrong)
    }

    fn compare(&mut self, key: VersionKey, read: &Blocks) -> Check {
        let Some(pinned) = self.versions.get_mut(&key) else {
            return Ok(());
        };
        let mut seen = read.clone();
        for block in pinned.timeline.touched_in(0..u64::MAX) {
            seen.entry(block).or_insert(None);
        }
        let found = pinned
            .timeline
            .boundaries(pinned.boundaries.clone(), false, &seen);
        let Some(boundary) = found.first() else {
            let why = pinned.timeline.explain(&seen);
            return Err(format!(
                "{key:?} holds none of {:?}{why}",
                pinned.boundaries
            ));
        };
        // From now on it must hold just that.
        pinned.boundaries = *boundary..=*boundary;
        Ok(())
    }

    // The end.

    fn finish(&mut self) -> Check {
        trace!(self, "finishing");
        self.machine.simulation.disk.arm_crash(u64::MAX);
        self.trouble = true;
        self.settle()?;
        // The second time sweeps what the first lease gave up.
        for _ in 0..2 {
            for index in 0..self.subjects.len() {
                for _ in 0..3 {
                    if self.attach(index)? && self.close(index)? {
                        break;
                    }
                    self.after_step()?;
                }
                let is_closed = self.subjects[index].client.is_none();
                if !is_closed && !self.rotten {
                    return Err(format!("{} cannot be closed", self.subjects[index].id));
                }
            }
            self.machine.simulation.pool.run_all(&self.random);
        }
        self.place_commits()?;
        self.carry_out_due(Millis(i64::MAX))?;
        self.audit()?;
        if self.rotten {
            return Ok(());
        }
        // And when everything is deleted, nothing is left.
        for subject in std::mem::take(&mut self.subjects) {
            self.machine.catalog.memory.delete_volume(subject.id);
        }
        for snapshot in std::mem::take(&mut self.snapshots) {
            self.machine.catalog.memory.delete_snapshot(snapshot);
        }
        while !self.versions.is_empty() {
            // Leaves and chains first, branch points when they are none any
            // more: in any order that is found by trying.
            let mut keys: Vec<VersionKey> = self.versions.keys().copied().collect();
            self.random.shuffle(&mut keys);
            let mut is_any_removed = false;
            for key in keys {
                is_any_removed |= self.remove(key)?;
                if self.chance(4) {
                    self.carry_out_due(Millis(i64::MAX))?;
                    self.audit()?;
                }
            }
            if !is_any_removed {
                return Err(format!(
                    "needed by nobody, and they stay: {:?}",
                    self.versions.keys()
                ));
            }
        }
        self.carry_out_due(Millis(i64::MAX))?;
        self.audit()?;
        for (number, (_, unit)) in self.machine.units.iter().enumerate() {
            let left = unit.list().map_err(|error| error.to_string())?;
            if !left.is_empty() && !self.leaky {
                return Err(format!("unit {number} keeps empty segments: {left:?}"));
            }
        }
        Ok(())
    }

    fn audit(&mut self) -> Check {
        let mut walked = Vec::new();
        for stored in self.machine.catalog.memory.versions() {
            let of = |why| format!("{:?}: {why}", stored.key);
            let found = audit::walk(&self.machine, &stored)
                .map_err(of)
                .and_then(|walk| {
                    let read = audit::read_version(&self.machine, &walk).map_err(of)?;
                    Ok((walk, read))
                });
            match found {
                Ok((walk, read)) => {
                    self.compare(stored.key, &read)?;
                    walked.push(walk);
                }
                Err(_) if self.rotten => return Ok(()),
                Err(why) => return Err(why),
            }
        }
        if self.rotten {
            return Ok(());
        }
        audit::compare(
            &self.machine,
            &walked,
            &mut self.nonces,
            !self.degraded,
            self.leaky,
        )
    }
}

/// What can go wrong.
#[derive(Debug, Clone, Copy)]
enum Mishap {
    ArmCrash,
    PowerFails,
    Kill,
    HarmUnit,
    Lie,
    Flip,
    HarmJournal,
    CatalogAway,
    Settle,
}

/// Why a version does not hold what it should.
enum Trouble {
    Unreadable(String),
    Wrong(String),
}

/// Bytes that no other number gives.
fn fill(number: u64, length: usize) -> Rc<[u8]> {
    let random = SimulatedRandom::new(number);
    let mut bytes = vec![0; length];
    world::Random::fill(&random, &mut bytes);
    bytes.into()
}
