//! [`Repair`]: repairs copysets, one at a time (docs/internals/repair.md).
//!
//! ```text
//!  1. take    a copyset from the controllers, for a minute
//!  2. obtain  the capability to repair it on unit daemons
//!  3. pass    compare and copy; report the progress, and stop if another host has taken it
//!  4. check   its current state, and repeat 3 until a pass finds nothing to copy
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

use api::host::catalog_calls::{EndRepair, ReportRepair, TakeRepair};
use api::host::{CapabilityRequest, RepairJob, RepairOutcome, RepairProgress};
use base::{CopysetId, UnitId, with_causes};
use catalog::CatalogError;
use parking_lot::Mutex;
use unit::Unit;
use volume::Store;
use volume::repair::{self, Depth, RepairMember, SuspectUnit, Uncommitted};
use world::{Clock, host};

use crate::context::{TaskFailed, blocking};
use crate::controller::Controller;
use crate::lease::DatabaseAge;
use pacing::{Pacing, StepWatch, StopOnDrop};

/// The period of checks for copysets to repair.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// While all members are in sync, only one check in this many requests a copyset: a scrub may be
/// due.
const IDLE_LOOKS: u64 = 30;

/// The period of progress reports: well within [`REPAIR_TERM_MS`](api::host::REPAIR_TERM_MS).
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The most passes over one copyset: more achieve nothing while others wait.
const PASSES_MAX: usize = 16;

/// Why a copyset was not repaired. This host or another retries later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepairError {
    /// The catalog refused a call.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}

/// Totals of repair on this host since it started, for metrics.
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

    /// Number of completed passes.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Bytes copied to members that were missing them.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Number of slots without an intact copy.
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
    /// Number of copysets that the controllers want compared.
    compare_count: AtomicU64,
}

impl Repair {
    /// A repair that moves at most `bytes_per_second`.
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

    /// Sets how many copysets the controllers want compared, even if their members are in sync.
    pub fn set_compare_count(&self, count: u64) {
        self.compare_count.store(count, Ordering::Relaxed);
    }

    /// Repairs copysets that need it, as long as the agent runs.
    pub async fn run(&self) {
        let mut ticks = host::ticks(CHECK_INTERVAL);
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
                    // Another part logs that no controller answers.
                    Err(RepairError::Catalog(CatalogError::Unavailable { .. })) => break,
                    Err(error) => {
                        let why = with_causes(&error);
                        if why != logged {
                            tracing::warn!(error = why, "repair failed and will be retried");
                            logged = why;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Number of copysets with a member that is not in sync, as far as this host knows.
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

    /// Repairs one copyset. Returns whether one needed repair and the repair made progress.
    ///
    /// # Errors
    /// [`RepairError`].
    pub async fn repair_one(&self) -> Result<bool, RepairError> {
        if self.age.older().await?.is_some() {
            return Ok(false);
        }
        let Some(mut job) = self.controller.catalog(TakeRepair {}).await? else {
            return Ok(false);
        };
        let copyset = job.copyset.id;
        let request = CapabilityRequest::Repair { copyset };
        let _kept = self.controller.capability_cache().keep(vec![request]);
        let mut copied = 0;
        let mut copied_to = BTreeSet::new();
        let passes = Arc::new(Mutex::new(repair::CopysetRepair::new(copyset)));
        for _ in 0..PASSES_MAX {
            // The capability names the members that are rebuilding now.
            if let Err(error) = self.controller.obtain(&[request]).await {
                let why = with_causes(&error);
                self.return_copyset(copyset, &copied_to, why).await?;
                return Err(error.into());
            }
            let Some(members) = self.members(&job) else {
                // The table of units will arrive; until then another host may repair it.
                let why = "this host does not know all units of the copyset yet".to_owned();
                self.return_copyset(copyset, &copied_to, why).await?;
                return Ok(false);
            };
            let Some(found) = self.pass(&job, members, &passes).await? else {
                return Ok(false);
            };
            copied += found.copied_bytes;
            copied_to.extend(found.incomplete.iter().copied());
            self.totals.add(&found);
            // A member that received data is compared again, even if others have problems.
            let is_stuck = !found.problems.is_empty() && found.copied_bytes == 0;
            if found.incomplete.is_empty() || is_stuck {
                let end = outcome(&job, found, &copied_to);
                let is_well = end.problem.is_none();
                log_end(&end, copyset, copied);
                self.controller.catalog(EndRepair { copyset, end }).await?;
                return Ok(is_well);
            }
            let call = ReportRepair {
                copyset,
                progress: RepairProgress::default(),
            };
            match self.controller.catalog(call).await? {
                Some(now) => job = now,
                None => return Ok(false),
            }
        }
        let why = "it is written faster than it is copied".to_owned();
        self.return_copyset(copyset, &copied_to, why).await?;
        Ok(false)
    }

    /// Returns a copyset to the controllers between two passes: the next host reads only the
    /// members that received data again, as after an aborted repair.
    async fn return_copyset(
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
    fn members(&self, job: &RepairJob) -> Option<Vec<RepairMember>> {
        let table = self.store.table();
        let members: Vec<RepairMember> = job
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
                    suspect: suspect_of(job, id),
                })
            })
            .collect();
        (members.len() >= job.copyset.member_states().count()).then_some(members)
    }

    /// Makes one pass; returns `None` if it was stopped.
    async fn pass(
        &self,
        job: &RepairJob,
        members: Vec<RepairMember>,
        passes: &Arc<Mutex<repair::CopysetRepair>>,
    ) -> Result<Option<repair::PassReport>, RepairError> {
        let pacing = Arc::new(Pacing::new(Arc::clone(&self.clock), self.bytes_per_second));
        let _stop = StopOnDrop(Arc::clone(&pacing));
        let open = job.open.iter().map(|open| (open.segment, open.slots));
        let uncommitted = Uncommitted::new(open, job.uncommitted.clone(), job.serial_next);
        let depth = match (job.is_scrub, job.is_comparison) {
            (true, _) => Depth::Scrub,
            (false, true) => Depth::Compare,
            (false, false) => Depth::Rebuild,
        };
        let (copyset, erasure) = (job.copyset.id, job.copyset.erasure());
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
                        tracing::warn!(copyset = number, "unit does not answer repair");
                        // The next host skips that unit; the thread ends when the unit answers.
                        return Ok(None);
                    }
                    let progress = pacing.progress();
                    let call = ReportRepair { copyset, progress };
                    // Without an answer the pass may continue: its capability expires.
                    if let Ok(None) = self.controller.catalog(call).await {
                        pacing.stop();
                    }
                }
            }
        }
    }
}

/// The segments of a rebuilding member that may not hold what was written.
fn suspect_of(job: &RepairJob, member: UnitId) -> SuspectUnit {
    let known = job.suspect.iter().find(|(unit, _)| *unit == member);
    known.map_or(SuspectUnit::All, |(_, serials)| {
        SuspectUnit::Serials(serials.clone())
    })
}

/// Logs how the repair of a copyset ended, after which `copied` bytes were copied.
fn log_end(end: &RepairOutcome, copyset: CopysetId, copied: u64) {
    let number = copyset.number();
    match &end.problem {
        Some(error) => {
            tracing::info!(
                copyset = number,
                copied,
                error,
                "agent could not repair copyset"
            );
        }
        None if copied > 0 => {
            tracing::info!(copyset = number, copied, "agent repaired copyset");
        }
        None => tracing::debug!(copyset = number, "agent found copyset in sync"),
    }
}

/// The outcome of a repair after its last pass; `copied_to` are the members that received data in
/// any pass.
fn outcome(
    job: &RepairJob,
    found: repair::PassReport,
    copied_to: &BTreeSet<UnitId>,
) -> RepairOutcome {
    let missed: HashMap<UnitId, u64> = job.missed.iter().copied().collect();
    let seen = found.in_sync.iter();
    RepairOutcome {
        in_sync: seen
            .filter_map(|unit| Some((*unit, *missed.get(unit)?)))
            .collect(),
        out_of_sync: found.incomplete.into_iter().collect(),
        copied_to: Some(copied_to.iter().copied().collect()),
        compared: job.is_comparison && found.is_complete,
        scrubbed: job.is_scrub && found.is_complete,
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
