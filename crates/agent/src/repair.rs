//! Repair copysets, one at a time (docs/units.md, "Repair").
//!
//! ```text
//!  1. take    a copyset from the controllers, for a minute
//!  2. obtain  the right to repair it on unit daemons
//!  3. pass    compare and copy; say how far it is, and stop if it is another's now
//!  4. look    how it is now, and 3 again, until a pass finds nothing to copy
//!  5. end     who is whole
//! ```
//!
//! It may be killed at any moment: whoever goes on compares anew.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::{RepairEnd, RepairProgress, RepairTask, Want};
use base::{CopysetId, UnitId, with_causes};
use catalog::CatalogError;
use tokio::runtime::Handle;
use unit::Unit;
use volume::repair::{self, Depth, Pace, Repairable, Stopped, SuspectUnit, Uncommitted};
use world::{Clock, host};

use crate::agent::{Agent, blocking, lock};
use crate::cleaning::CleaningError;

/// How often it is looked whether there is something to repair.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where all is whole, every so many looks: something may be due to be read.
const IDLE_LOOKS: u64 = 30;

/// How often the controllers hear how far it is: well within
/// [`REPAIR_TERM_MS`](api::host::REPAIR_TERM_MS).
const TELL_EVERY: Duration = Duration::from_secs(10);

/// More passes over one copyset bring nothing while others wait.
const PASSES_MAX: usize = 16;

/// What this host has repaired since it began, for those who watch it.
#[derive(Debug, Default)]
pub(crate) struct RepairedTotals {
    /// Passes that were gone through.
    pub passes: AtomicU64,
    /// Bytes that they put on members which lacked them.
    pub copied_bytes: AtomicU64,
    /// Slots of which they found no copy as it was put.
    pub rotten_slots: AtomicU64,
}

impl RepairedTotals {
    fn add(&self, found: &repair::Found) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes
            .fetch_add(found.copied_bytes, Ordering::Relaxed);
        self.rotten_slots.fetch_add(found.rotten, Ordering::Relaxed);
    }
}

/// Lets so many bytes a second through.
struct Bucket {
    clock: Arc<dyn Clock>,
    bytes_per_second: u64,
    /// When all that was let through so far is paid for, by the monotonic clock.
    paid: Mutex<Duration>,
}

impl Bucket {
    /// How long to wait before `bytes` more are moved. What was not used of the last
    /// second may be.
    fn spend(&self, bytes: u64) -> Duration {
        let now = self.clock.monotonic();
        let mut paid = lock(&self.paid);
        let begin = (*paid).max(now.saturating_sub(Duration::from_secs(1)));
        let rate = self.bytes_per_second.max(1);
        *paid = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
        paid.saturating_sub(now)
    }
}

/// A pass that makes no step for so long waits for a unit that does not answer, and may for
/// ever, as for a dead file server.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// How a pass is gone on with.
struct Pacing {
    bucket: Bucket,
    runtime: Handle,
    is_stopped: AtomicBool,
    /// Grows while it goes on.
    steps: AtomicU64,
    done: AtomicU64,
    all: AtomicU64,
}

impl Pacing {
    fn progress(&self) -> RepairProgress {
        RepairProgress {
            done: self.done.load(Ordering::Relaxed),
            all: self.all.load(Ordering::Relaxed),
        }
    }
}

impl Pace for Pacing {
    fn step(&self, bytes: u64) -> Result<(), Stopped> {
        let mut wait = match bytes {
            0 => Duration::ZERO,
            bytes => self.bucket.spend(bytes),
        };
        loop {
            self.steps.fetch_add(1, Ordering::Relaxed);
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(Stopped);
            }
            if wait.is_zero() {
                return Ok(());
            }
            let part = wait.min(Duration::from_millis(200));
            self.runtime.block_on(host::sleep(part));
            wait -= part;
        }
    }

    fn compared(&self, done: u64, all: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }
}

/// Whether a pass goes on.
struct Progress {
    steps: u64,
    since: Duration,
}

impl Progress {
    fn new(now: Duration) -> Self {
        Self {
            steps: 0,
            since: now,
        }
    }

    /// It has made so many steps, `now` by the monotonic clock.
    fn is_stuck(&mut self, steps: u64, now: Duration) -> bool {
        if steps != self.steps {
            *self = Self { steps, since: now };
        }
        now.saturating_sub(self.since) >= STUCK_AFTER
    }
}

/// Stops a pass whose turn is over, also when nobody waits for it any more.
struct StopsAtEnd(Arc<Pacing>);

impl Drop for StopsAtEnd {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
    }
}

impl Agent {
    /// Repairs whenever there is something to repair.
    pub(crate) async fn keep_repair(&self) {
        let mut ticks = host::ticks(LOOK_EVERY);
        let mut logged = String::new();
        for look in 0_u64.. {
            ticks.tick().await;
            let is_idle =
                self.waiting_copysets() == 0 && self.inner.compare.load(Ordering::Relaxed) == 0;
            if is_idle && !look.is_multiple_of(IDLE_LOOKS) {
                continue;
            }
            loop {
                match self.repair_one().await {
                    Ok(true) => logged.clear(),
                    Ok(false) => break,
                    // That no controller answers is said elsewhere.
                    Err(CleaningError::Catalog(CatalogError::Unavailable { .. })) => break,
                    Err(error) => {
                        let why = with_causes(&error);
                        if why != logged {
                            tracing::warn!(why, "repair is tried again later");
                            logged = why;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// How many copysets have a member that is not whole, as far as this host knows.
    pub(crate) fn waiting_copysets(&self) -> usize {
        let table = self.inner.store.table();
        let is_waiting = |members: &[volume::scatter::Member]| {
            let mut members = members.iter();
            members.any(|member| member.state != catalog::MemberState::Whole)
        };
        let copysets = table.copysets();
        copysets
            .filter(|(_, _, members)| is_waiting(members))
            .count()
    }

    /// Repairs a copyset, if there is one to be repaired; whether there was one, and
    /// something came of it.
    ///
    /// # Errors
    /// [`CleaningError`]: then it is tried again later, by whoever takes it.
    pub(crate) async fn repair_one(&self) -> Result<bool, CleaningError> {
        if self.older_database().await?.is_some() {
            return Ok(false);
        }
        let controller = &self.inner.controller;
        let Some(mut task) = controller.repair_take().await? else {
            return Ok(false);
        };
        let copyset = task.copyset.id;
        let want = Want::Repair { copyset };
        let _kept = controller.capability_cache().keep(vec![want]);
        let mut copied = 0;
        let mut brought = BTreeSet::new();
        let passes = Arc::new(Mutex::new(repair::Task::new(copyset)));
        for _ in 0..PASSES_MAX {
            // It names those that are filled now.
            if let Err(error) = controller.obtain(&[want]).await {
                let why = with_causes(&error);
                self.give_back(copyset, &brought, why).await?;
                return Err(error.into());
            }
            let Some(members) = self.repairable(&task) else {
                // The table follows; until then another may do it.
                let why = "this host does not know all of its units yet".to_owned();
                self.give_back(copyset, &brought, why).await?;
                return Ok(false);
            };
            let Some(found) = self.repair_pass(&task, members, &passes).await? else {
                return Ok(false);
            };
            copied += found.copied_bytes;
            brought.extend(found.lacking.iter().copied());
            self.inner.repaired.add(&found);
            // Whoever could be helped is looked at again, whatever is in the way of others.
            let is_stuck = !found.problems.is_empty() && found.copied_bytes == 0;
            if found.lacking.is_empty() || is_stuck {
                let end = end_of(&task, found, &brought);
                let is_well = end.problem.is_none();
                if !end.whole.is_empty() || !is_well {
                    let (number, problem) = (copyset.number(), &end.problem);
                    tracing::info!(copyset = number, copied, problem, "repaired");
                }
                controller.repair_end(copyset, end).await?;
                return Ok(is_well);
            }
            let none = RepairProgress::default();
            match controller.repair_look(copyset, none).await? {
                Some(now) => task = now,
                None => return Ok(false),
            }
        }
        let why = "it is written to faster than it is copied".to_owned();
        self.give_back(copyset, &brought, why).await?;
        Ok(false)
    }

    /// Leaves a task between two passes that has `brought` something to those: whoever goes
    /// on reads nothing of the others anew, as if it had been broken off.
    async fn give_back(
        &self,
        copyset: CopysetId,
        brought: &BTreeSet<UnitId>,
        why: String,
    ) -> Result<(), CatalogError> {
        let end = RepairEnd {
            brought: Some(brought.iter().copied().collect()),
            problem: Some(why),
            ..RepairEnd::default()
        };
        self.inner.controller.repair_end(copyset, end).await?;
        Ok(())
    }

    /// The members of a task's copyset; none, if this host does not know all of them.
    fn repairable(&self, task: &RepairTask) -> Option<Vec<Repairable>> {
        let table = self.inner.store.table();
        let members: Vec<Repairable> = task
            .copyset
            .placed()
            .filter_map(|(place, id, state)| {
                let member = table.units().iter().find(|member| member.id == id)?;
                let unit = Arc::clone(&member.unit) as Arc<dyn Unit>;
                Some(Repairable {
                    id,
                    place,
                    state,
                    unit,
                    suspect: suspect_of(task, id),
                })
            })
            .collect();
        (members.len() >= task.copyset.standing().count()).then_some(members)
    }

    /// One pass; none, if it was stopped.
    async fn repair_pass(
        &self,
        task: &RepairTask,
        members: Vec<Repairable>,
        passes: &Arc<Mutex<repair::Task>>,
    ) -> Result<Option<repair::Found>, CleaningError> {
        let inner = &self.inner;
        let pacing = Arc::new(Pacing {
            bucket: Bucket {
                clock: Arc::clone(&inner.world.clock),
                bytes_per_second: inner.repair_bytes_per_second,
                paid: Mutex::default(),
            },
            runtime: Handle::current(),
            is_stopped: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            done: AtomicU64::new(0),
            all: AtomicU64::new(0),
        });
        let _stops = StopsAtEnd(Arc::clone(&pacing));
        let open = task.open.iter().map(|open| (open.segment, open.slots));
        let uncommitted = Uncommitted::new(open, task.uncommitted.clone(), task.serial_next);
        let depth = match (task.scrub, task.compare) {
            (true, _) => Depth::Scrub,
            (false, true) => Depth::Compare,
            (false, false) => Depth::Fill,
        };
        let (copyset, erasure) = (task.copyset.id, task.copyset.erasure());
        let (pace, passes) = (Arc::clone(&pacing), Arc::clone(passes));
        let passed = blocking(move || {
            let mut passes = lock(&passes);
            passes.pass(erasure, &members, &uncommitted, depth, &*pace)
        });
        tokio::pin!(passed);
        let mut ticks = host::ticks(TELL_EVERY);
        ticks.tick().await;
        let mut progress = Progress::new(inner.world.clock.monotonic());
        loop {
            tokio::select! {
                passed = &mut passed => return Ok(passed?.ok()),
                _ = ticks.tick() => {
                    let now = inner.world.clock.monotonic();
                    if progress.is_stuck(pacing.steps.load(Ordering::Relaxed), now) {
                        let number = copyset.number();
                        tracing::warn!(copyset = number, "a unit does not answer whoever repairs");
                        // Whoever gets it next leaves that unit out; the thread ends when
                        // it is answered.
                        return Ok(None);
                    }
                    let told = inner.controller.repair_look(copyset, pacing.progress()).await;
                    // Without an answer it may go on: its rights end in time.
                    if let Ok(None) = told {
                        pacing.is_stopped.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// What of a member that is filled may be otherwise than it was put.
fn suspect_of(task: &RepairTask, member: UnitId) -> SuspectUnit {
    let known = task.suspect.iter().find(|(unit, _)| *unit == member);
    known.map_or(SuspectUnit::All, |(_, serials)| {
        SuspectUnit::Serials(serials.clone())
    })
}

/// What the controllers are told of the last pass of a task that has `brought` something
/// to those.
fn end_of(task: &RepairTask, found: repair::Found, brought: &BTreeSet<UnitId>) -> RepairEnd {
    let missed: HashMap<UnitId, u64> = task.missed.iter().copied().collect();
    let seen = found.whole.iter();
    RepairEnd {
        whole: seen
            .filter_map(|unit| Some((*unit, *missed.get(unit)?)))
            .collect(),
        lacking: found.lacking.into_iter().collect(),
        brought: Some(brought.iter().copied().collect()),
        compared: task.compare && found.is_complete,
        scrubbed: task.scrub && found.is_complete,
        full: found.full.into_iter().collect(),
        rotten: found.rotten,
        problem: match found.problems.is_empty() {
            true => None,
            false => {
                let problems: Vec<String> = found.problems.into_iter().take(3).collect();
                Some(problems.join("; "))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use world::simulated::Simulation;

    use super::*;

    /// A file server died for good while a pass read from it: the host held the copyset,
    /// and repaired nothing else, until it was started anew.
    #[test]
    fn a_pass_that_makes_no_step_for_long_is_given_up() {
        let at = Duration::from_secs;
        let mut progress = Progress::new(at(1000));
        assert!(!progress.is_stuck(3, at(1010)));
        assert!(!progress.is_stuck(3, at(1129)));
        assert!(!progress.is_stuck(4, at(1130)));
        assert!(!progress.is_stuck(4, at(1249)));
        assert!(progress.is_stuck(4, at(1250)));
    }

    #[test]
    fn so_many_bytes_a_second_and_no_more() {
        let simulation = Simulation::new(1);
        let clock = simulation.world().clock;
        let bucket = Bucket {
            clock,
            bytes_per_second: 1000,
            paid: Mutex::default(),
        };
        // Nothing was used so far of what there was for the last second.
        let begun = bucket.clock.monotonic();
        let spare = begun.min(Duration::from_secs(1));
        let mut waits = Duration::ZERO;
        for _ in 0..10 {
            waits = bucket.spend(500);
        }
        let elapsed = bucket.clock.monotonic().saturating_sub(begun);
        let all = Duration::from_secs(5);
        assert!(waits + elapsed + spare >= all, "{waits:?} {elapsed:?}");
        assert!(waits <= all, "{waits:?}");
    }
}
