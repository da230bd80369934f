//! [`Repair`]: repairs copysets, one at a time (docs/internals/repair.md).
//!
//! ```text
//!  1. take    a copyset from the controllers, for a minute
//!  2. obtain  the capability to repair it on unit daemons
//!  3. pass    compare and copy; report the progress, and stop if it is another host's now
//!  4. look    at its state now, and 3 again, until a pass finds nothing to copy
//!  5. end     report which members are in sync
//! ```
//!
//! It may be killed at any moment: the next host compares again.
//!
//! Must not know: volumes, what segments hold.

mod pacing;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::host::catalog_calls::{EndRepair, LookAtRepair, TakeRepair};
use api::host::{RepairJob, RepairOutcome, RepairProgress, Want};
use base::{CopysetId, UnitId, with_causes};
use catalog::CatalogError;
use parking_lot::Mutex;
use unit::Unit;
use volume::Store;
use volume::repair::{self, Depth, RepairMember, SuspectUnit, Uncommitted};
use world::{Clock, host};

use crate::context::{TaskEnded, blocking};
use crate::controller::Controller;
use crate::lease::DatabaseAge;
use pacing::{Pacing, StepWatch, StopOnDrop};

/// How often there may be something to repair.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where all members are in sync, every this many looks: a scrub may be due.
const IDLE_LOOKS: u64 = 30;

/// How often progress is reported: well within [`REPAIR_TERM_MS`](api::host::REPAIR_TERM_MS).
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// More passes over one copyset bring nothing while others wait.
const PASSES_MAX: usize = 16;

/// Why a copyset was not repaired. It is tried again later, by this host or another.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepairError {
    /// The controllers.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// What this host has repaired since it started, for metrics.
#[derive(Debug, Default)]
pub(crate) struct RepairTotals {
    passes: AtomicU64,
    copied_bytes: AtomicU64,
    rotten_slots: AtomicU64,
}

impl RepairTotals {
    fn add(&self, found: &repair::PassReport) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes
            .fetch_add(found.copied_bytes, Ordering::Relaxed);
        self.rotten_slots.fetch_add(found.rotten, Ordering::Relaxed);
    }

    /// Passes that were completed.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Bytes that were copied to members which were missing them.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Slots without an intact copy.
    pub fn rotten_slots(&self) -> u64 {
        self.rotten_slots.load(Ordering::Relaxed)
    }
}

/// The repair of copysets.
pub(crate) struct Repair {
    controller: Controller,
    store: Arc<Store>,
    age: Arc<DatabaseAge>,
    clock: Arc<dyn Clock>,
    bytes_per_second: u64,
    totals: RepairTotals,
    /// How many copysets the controllers want compared.
    compare_count: AtomicU64,
}

impl Repair {
    /// Moves `bytes_per_second` at most.
    pub fn new(
        controller: Controller,
        store: Arc<Store>,
        age: Arc<DatabaseAge>,
        clock: Arc<dyn Clock>,
        bytes_per_second: u64,
    ) -> Self {
        Self {
            controller,
            store,
            age,
            clock,
            bytes_per_second,
            totals: RepairTotals::default(),
            compare_count: AtomicU64::new(0),
        }
    }

    pub fn totals(&self) -> &RepairTotals {
        &self.totals
    }

    /// The controllers want this many copysets compared, also if their members are in sync.
    pub fn set_compare_count(&self, count: u64) {
        self.compare_count.store(count, Ordering::Relaxed);
    }

    /// Repairs whenever there is something to repair, as long as the agent runs.
    pub async fn run(&self) {
        let mut ticks = host::ticks(LOOK_EVERY);
        let mut logged = String::new();
        for look in 0_u64.. {
            ticks.tick().await;
            let is_idle =
                self.waiting_copysets() == 0 && self.compare_count.load(Ordering::Relaxed) == 0;
            if is_idle && !look.is_multiple_of(IDLE_LOOKS) {
                continue;
            }
            loop {
                match self.repair_one().await {
                    Ok(true) => logged.clear(),
                    Ok(false) => break,
                    // That no controller answers is logged elsewhere.
                    Err(RepairError::Catalog(CatalogError::Unavailable { .. })) => break,
                    Err(error) => {
                        let why = with_causes(&error);
                        if why != logged {
                            tracing::warn!(why, "repair failed; it is tried again later");
                            logged = why;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// The number of copysets with a member that is not in sync, as far as this host knows.
    pub fn waiting_copysets(&self) -> usize {
        let table = self.store.table();
        let is_waiting = |members: &[volume::scatter::Member]| {
            let mut members = members.iter();
            members.any(|member| member.state != catalog::MemberState::InSync)
        };
        let copysets = table.copysets();
        copysets
            .filter(|(_, _, members)| is_waiting(members))
            .count()
    }

    /// Repairs a copyset, if one needs it; whether there was one, and the repair made progress.
    ///
    /// # Errors
    /// [`RepairError`].
    pub async fn repair_one(&self) -> Result<bool, RepairError> {
        if self.age.older().await?.is_some() {
            return Ok(false);
        }
        let Some(mut task) = self.controller.catalog(TakeRepair {}).await? else {
            return Ok(false);
        };
        let copyset = task.copyset.id;
        let want = Want::Repair { copyset };
        let _kept = self.controller.capability_cache().keep(vec![want]);
        let mut copied = 0;
        let mut copied_to = BTreeSet::new();
        let passes = Arc::new(Mutex::new(repair::Task::new(copyset)));
        for _ in 0..PASSES_MAX {
            // The capability names the members that are rebuilt now.
            if let Err(error) = self.controller.obtain(&[want]).await {
                let why = with_causes(&error);
                self.give_back(copyset, &copied_to, why).await?;
                return Err(error.into());
            }
            let Some(members) = self.members(&task) else {
                // The table of units follows; until then another host may repair it.
                let why = "this host does not know all of its units yet".to_owned();
                self.give_back(copyset, &copied_to, why).await?;
                return Ok(false);
            };
            let Some(found) = self.pass(&task, members, &passes).await? else {
                return Ok(false);
            };
            copied += found.copied_bytes;
            copied_to.extend(found.lacking.iter().copied());
            self.totals.add(&found);
            // A member that was helped is compared again, whatever the problems of others.
            let is_stuck = !found.problems.is_empty() && found.copied_bytes == 0;
            if found.lacking.is_empty() || is_stuck {
                let end = outcome(&task, found, &copied_to);
                let is_well = end.problem.is_none();
                if !end.in_sync.is_empty() || !is_well {
                    let (number, problem) = (copyset.number(), &end.problem);
                    tracing::info!(copyset = number, copied, problem, "copyset was repaired");
                }
                self.controller.catalog(EndRepair { copyset, end }).await?;
                return Ok(is_well);
            }
            let look = LookAtRepair {
                copyset,
                progress: RepairProgress::default(),
            };
            match self.controller.catalog(look).await? {
                Some(now) => task = now,
                None => return Ok(false),
            }
        }
        let why = "it is written to faster than it is copied".to_owned();
        self.give_back(copyset, &copied_to, why).await?;
        Ok(false)
    }

    /// Gives a copyset back between two passes: the next host reads again only the members that
    /// something was copied to, as if the repair had been broken off.
    async fn give_back(
        &self,
        copyset: CopysetId,
        copied_to: &BTreeSet<UnitId>,
        why: String,
    ) -> Result<(), CatalogError> {
        let end = RepairOutcome {
            copied_to: Some(copied_to.iter().copied().collect()),
            problem: Some(why),
            ..RepairOutcome::default()
        };
        self.controller.catalog(EndRepair { copyset, end }).await?;
        Ok(())
    }

    /// The members of a copyset; `None` if this host does not know all of them.
    fn members(&self, task: &RepairJob) -> Option<Vec<RepairMember>> {
        let table = self.store.table();
        let members: Vec<RepairMember> = task
            .copyset
            .members_by_place()
            .filter_map(|(place, id, state)| {
                let member = table.units().iter().find(|member| member.id == id)?;
                let unit = Arc::clone(&member.unit) as Arc<dyn Unit>;
                Some(RepairMember {
                    id,
                    place,
                    state,
                    unit,
                    suspect: suspect_of(task, id),
                })
            })
            .collect();
        (members.len() >= task.copyset.member_states().count()).then_some(members)
    }

    /// Makes one pass; `None` if it was stopped.
    async fn pass(
        &self,
        task: &RepairJob,
        members: Vec<RepairMember>,
        passes: &Arc<Mutex<repair::Task>>,
    ) -> Result<Option<repair::PassReport>, RepairError> {
        let pacing = Arc::new(Pacing::new(Arc::clone(&self.clock), self.bytes_per_second));
        let _stop = StopOnDrop(Arc::clone(&pacing));
        let open = task.open.iter().map(|open| (open.segment, open.slots));
        let uncommitted = Uncommitted::new(open, task.uncommitted.clone(), task.serial_next);
        let depth = match (task.scrub, task.compare) {
            (true, _) => Depth::Scrub,
            (false, true) => Depth::Compare,
            (false, false) => Depth::Rebuild,
        };
        let (copyset, erasure) = (task.copyset.id, task.copyset.erasure());
        let (pace, passes) = (Arc::clone(&pacing), Arc::clone(passes));
        let passed = blocking(move || {
            let mut passes = passes.lock();
            passes.pass(erasure, &members, &uncommitted, depth, &*pace)
        });
        tokio::pin!(passed);
        let mut ticks = host::ticks(REPORT_EVERY);
        ticks.tick().await;
        let mut watch = StepWatch::new(self.clock.monotonic());
        loop {
            tokio::select! {
                passed = &mut passed => return Ok(passed?.ok()),
                _ = ticks.tick() => {
                    if watch.is_stuck(pacing.steps(), self.clock.monotonic()) {
                        let number = copyset.number();
                        tracing::warn!(copyset = number, "unit does not answer the repair");
                        // The next host leaves that unit out; the thread ends when it is answered.
                        return Ok(None);
                    }
                    let progress = pacing.progress();
                    let look = LookAtRepair { copyset, progress };
                    // Without an answer it may go on: its capability ends in time.
                    if let Ok(None) = self.controller.catalog(look).await {
                        pacing.stop();
                    }
                }
            }
        }
    }
}

/// Which segments of a member that is rebuilt may not be as they were put.
fn suspect_of(task: &RepairJob, member: UnitId) -> SuspectUnit {
    let known = task.suspect.iter().find(|(unit, _)| *unit == member);
    known.map_or(SuspectUnit::All, |(_, serials)| {
        SuspectUnit::Serials(serials.clone())
    })
}

/// The outcome of a repair, after its last pass; `copied_to` are the members that any pass has
/// copied something to.
fn outcome(
    task: &RepairJob,
    found: repair::PassReport,
    copied_to: &BTreeSet<UnitId>,
) -> RepairOutcome {
    let missed: HashMap<UnitId, u64> = task.missed.iter().copied().collect();
    let seen = found.in_sync.iter();
    RepairOutcome {
        in_sync: seen
            .filter_map(|unit| Some((*unit, *missed.get(unit)?)))
            .collect(),
        out_of_sync: found.lacking.into_iter().collect(),
        copied_to: Some(copied_to.iter().copied().collect()),
        compared: task.compare && found.is_complete,
        scrubbed: task.scrub && found.is_complete,
        full: found.full.into_iter().collect(),
        damaged: found.rotten,
        problem: match found.problems.is_empty() {
            true => None,
            false => {
                let problems: Vec<String> = found.problems.into_iter().take(3).collect();
                Some(problems.join("; "))
            }
        },
    }
}
