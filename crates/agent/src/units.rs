//! The units: mounting those there are, adding more, and how they do.
//!
//! Nobody waits long for a unit to answer: what is shown then is what it said
//! last.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::ClientError;
use api::host::{HostUnit, Refusal, Suspicion, UnitReport};
use api::types::UnitFact;
use base::{UnitId, with_causes};
use catalog::Copyset;
use tokio::task::JoinHandle;
use unit::{Fact, TrackedUnit, Unit, UnitError, UnitState};
use unit_remote::RemoteUnit;
use unit_remote::{Done, Link, endpoint_of_url};
use unit_wire::Request;
use world::host;

use crate::agent::{Agent, Inner, TaskEnded, blocking, lock};
use crate::claim::Claim;
use crate::lease_count;
use crate::places::{Folder, Host, Place, place_of};
use crate::watch::{ANSWER_WITHIN, WatchedUnit};

/// How often the clock is looked at where an answer may not come.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Who asks how the units are is kept waiting no longer.
const SHOW_WITHIN: Duration = Duration::from_millis(500);

/// A unit of this process.
#[derive(Clone)]
pub(crate) struct Mounted {
    pub id: UnitId,
    pub url: String,
    /// The folder that this is, if it is one.
    pub folder: Option<PathBuf>,
    /// As the engine has it.
    pub unit: Arc<TrackedUnit>,
    /// What is beneath that.
    pub watched: Arc<WatchedUnit>,
    /// And beneath that.
    pub place: Arc<dyn Unit>,
    /// Of how many leases this process has told it. Held while its file is
    /// read or written.
    pub told: Arc<Mutex<u64>>,
    /// What was found out of the place, once it has said so.
    pub facts: Arc<Mutex<Vec<Fact>>>,
}

/// Why the units cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// A unit of a new D could not be made.
    #[error("cannot make a unit")]
    Make(#[from] UnitError),
    /// Another copy of the database uses them.
    #[error("no unit can be used: {}; {hint}", with_causes(source))]
    Held {
        /// What one of them says.
        source: Arc<UnitError>,
        /// What to do.
        hint: &'static str,
    },
    /// The controllers do not know of them.
    #[error("the controller cannot be told of the units: {0}")]
    Untold(#[from] ClientError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

impl Agent {
    /// Makes the first units of a cluster that has none.
    pub(crate) async fn make_units(&self, count: usize) -> Result<(), UnitsError> {
        if count == 0 {
            tracing::warn!("the cluster has no units yet; add some with `scree unit add`");
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let made = blocking(move || {
            (1..=count)
                .map(|number| make_unit(&inner, &Folder(inner.folder.unit(number))))
                .collect::<Result<Vec<_>, UnitError>>()
        });
        let units = made.await??;
        self.inner.controller.register_units(units).await?;
        tracing::info!(units = count, "made folder units");
        Ok(())
    }

    /// Uses the units there are: those that it does not know yet are mounted, and
    /// those that are elsewhere now.
    pub(crate) fn use_units(&self, units: &[HostUnit], copysets: &[Copyset]) {
        let mut mounted = lock(&self.inner.units);
        // One that was removed is used no more.
        mounted.retain(|known| units.iter().any(|unit| unit.id == known.id));
        for unit in units {
            let done = match mounted.iter_mut().find(|known| known.id == unit.id) {
                Some(known) if known.url == unit.url => Ok(()),
                Some(known) => self.follow_unit(known, &unit.url),
                None => self.mount(unit).map(|new| mounted.push(new)),
            };
            if let Err(why) = done {
                tracing::error!(unit = unit.url, why, "not used");
            }
            if let Some(known) = mounted.iter().find(|known| known.id == unit.id) {
                known.unit.set_closed(unit.is_disabled);
            }
        }
        let table = mounted
            .iter()
            .map(|mounted| (mounted.id, Arc::clone(&mounted.unit)))
            .collect();
        self.inner.store.set_table(table, copysets);
    }

    /// Without any unit to use, because another copy of the database does, a
    /// start could do nothing, and is most likely a mistake.
    pub(crate) fn refuse_if_held(&self) -> Result<(), UnitsError> {
        let claim = &self.inner.claim;
        if claim.takes_over {
            // It is none: the operator has said so.
            return Ok(());
        }
        let units = lock(&self.inner.units);
        let is_missing = |mounted: &Mounted| mounted.unit.state() == UnitState::Missing;
        let held = units.iter().find_map(held_by);
        let held = held.and_then(|error| claim.hint(&error).map(|hint| (error, hint)));
        match held {
            Some((source, hint)) if units.iter().all(is_missing) => {
                Err(UnitsError::Held { source, hint })
            }
            _ => Ok(()),
        }
    }

    /// Looks at all units, and waits until they have answered or are taken for
    /// missing.
    pub(crate) async fn wait_for_units(&self) {
        let is_enough = || {
            self.notice_silence();
            let units = lock(&self.inner.units);
            !units.iter().any(|mounted| mounted.watched.is_awaited())
        };
        wait_for(self.probe_units(true), is_enough).await;
    }

    /// Has a certificate to show to unit daemons, if there are any and a controller
    /// gives one; else that is tried again later.
    pub(crate) async fn have_certificate(&self) {
        let inner = &self.inner;
        if inner.links.wants_certificate()
            && let Err(error) = inner.links.renew_certificate(&inner.controller).await
        {
            let why = with_causes(&error);
            tracing::error!(why, "no certificate for unit daemons; it is tried again");
        }
    }

    /// A unit is elsewhere now: a daemon's has another address. What was put there
    /// and not synced is known by the unit that there is.
    fn follow_unit(&self, known: &mut Mounted, url: &str) -> Result<(), String> {
        match (&known.folder, endpoint_of_url(url)) {
            (None, Some(endpoint)) => {
                let link = self.inner.links.link(known.id, endpoint);
                link.map_err(|error| error.to_string())?;
                tracing::info!(from = known.url, to = url, "a unit daemon has moved");
                known.url = url.to_owned();
                Ok(())
            }
            _ => Err(format!("it was {} before; restart this agent", known.url)),
        }
    }

    fn mount(&self, unit: &HostUnit) -> Result<Mounted, String> {
        let world = &self.inner.world;
        let mut folder = None;
        let mut answer_within = ANSWER_WITHIN;
        let place: Arc<dyn Unit> = match endpoint_of_url(&unit.url) {
            Some(endpoint) => {
                let link = self.inner.links.link(unit.id, endpoint);
                let link = link.map_err(|error| error.to_string())?;
                // Its address may change.
                Arc::new(RemoteUnit::new(format!("scree://{}", unit.id), link))
            }
            None => match place_of(&unit.url) {
                Ok(place) => {
                    folder = place.folder().map(Path::to_owned);
                    answer_within = place.answers_within();
                    place.open(&self.inner.host(), unit.id)
                }
                Err(refusal) => no_way(&unit.url, refusal.reason),
            },
        };
        let watched = WatchedUnit::new(Arc::clone(&place), Arc::clone(&world.clock));
        let watched = Arc::new(watched.answering_within(answer_within));
        let tracked = TrackedUnit::new(Arc::clone(&watched) as _, Arc::clone(&world.clock));
        Ok(Mounted {
            id: unit.id,
            url: unit.url.clone(),
            folder,
            unit: Arc::new(tracked),
            watched,
            place,
            told: Arc::default(),
            facts: Arc::default(),
        })
    }

    /// Makes the place at `url` a unit. It must exist, so that a mistyped or
    /// unmounted path is not taken for a new unit; and be empty, or be a unit
    /// of this cluster already.
    pub(crate) async fn mark_unit(&self, url: &str) -> Result<HostUnit, Refusal> {
        let url = url.to_owned();
        let known: Vec<(UnitId, String)> = lock(&self.inner.units)
            .iter()
            .map(|unit| (unit.id, unit.url.clone()))
            .collect();
        let inner = Arc::clone(&self.inner);
        let marked = blocking(move || {
            let place = place_of(&url)?.resolved()?;
            if let Some((_, inside)) = known.iter().find(|(_, other)| place.is_near(other)) {
                return Err(refused(format!(
                    "{} is, holds or lies in {inside}, which is a unit already; give each unit a \
                     place of its own",
                    place.url()
                )));
            }
            // Before anything is written there. What cannot be read is left to
            // `make_unit`.
            let found = place.identify(&inner.host());
            let is_twin = |id: &UnitId| found == Some((inner.cluster, *id));
            if let Some((id, twin)) = known.iter().find(|(id, _)| is_twin(id)) {
                return Err(refused(format!(
                    "{} is a copy of unit {id} at {twin}, or was moved from there, or is that one \
                     by another name; a unit cannot be used twice",
                    place.url(),
                )));
            }
            make_unit(&inner, &*place).map_err(|error| refused(inner.claim.spell(&error)))
        });
        marked
            .await
            .unwrap_or_else(|error| Err(refused(error.to_string())))
    }

    /// Free room on the units' file systems, in bytes, as far as they have
    /// said; each file system of this host's is counted once, however many units
    /// lie on it. `None` if nothing is known.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let mut by_place = HashMap::new();
        for mounted in lock(&self.inner.units).iter() {
            let found = mounted.watched.last_found();
            let free = found.stat.and_then(|stat| stat.free_bytes);
            let place = match (&mounted.folder, found.device) {
                // Where its daemon's folder lies, nobody says.
                (None, _) => (Some(mounted.id), 0),
                (Some(_), Some(device)) => (None, device),
                (Some(_), None) => continue,
            };
            if let Some(free) = free {
                by_place.insert(place, free);
            }
        }
        (!by_place.is_empty()).then(|| by_place.values().sum())
    }

    /// All units. They are asked anew; one that does not answer at once is
    /// shown as it was when it last did.
    pub(crate) async fn units(&self) -> Vec<UnitReport> {
        let units = lock(&self.inner.units).clone();
        let looks: Vec<_> = units
            .iter()
            .filter_map(|mounted| self.look(mounted, is_first(mounted)))
            .collect();
        let clock = &self.inner.world.clock;
        let until = clock.monotonic() + SHOW_WITHIN;
        wait_for(looks, || clock.monotonic() >= until).await;
        self.units_as_known()
    }

    /// As [`Agent::units`], without asking them.
    pub(crate) fn units_as_known(&self) -> Vec<UnitReport> {
        let units = lock(&self.inner.units);
        let views = units.iter().map(|mounted| view(&self.inner.claim, mounted));
        views.collect()
    }

    /// Begins to look at the units whose health is in suspicion, or at all, and
    /// notices which have not answered for too long.
    pub(crate) fn probe_units(&self, all: bool) -> Vec<JoinHandle<()>> {
        self.notice_silence();
        let units = lock(&self.inner.units).clone();
        units
            .iter()
            .filter(|mounted| all || mounted.unit.is_probe_due())
            .filter_map(|mounted| self.look(mounted, true))
            .collect()
    }

    fn notice_silence(&self) {
        for mounted in lock(&self.inner.units).iter() {
            if mounted.watched.falls_unresponsive() {
                // Refused from now on, which is how its health hears of it.
                let error = mounted
                    .unit
                    .reclaim()
                    .err()
                    .map(|error| with_causes(&error));
                tracing::warn!(unit = mounted.url, error, "the unit does not answer");
            }
        }
    }

    /// Looks at a unit in a thread of its own, unless one does already. Nobody
    /// has to wait for it.
    fn look(&self, mounted: &Mounted, probe: bool) -> Option<JoinHandle<()>> {
        let look = mounted.watched.look()?;
        let inner = Arc::clone(&self.inner);
        let mounted = mounted.clone();
        Some(tokio::task::spawn_blocking(move || {
            let before = mounted.unit.state();
            let error = match probe {
                true => mounted.unit.probe().err(),
                false => None,
            };
            let (stat, error) = match mounted.unit.stat() {
                Ok(stat) => (Some(stat), error),
                Err(why) => (None, error.or(Some(why))),
            };
            let device = mounted.folder.as_deref();
            let device = device.and_then(|folder| host::device(folder).ok());
            let known = mounted.watched.last_found();
            let incarnation = stat.and_then(|stat| stat.incarnation);
            let is_other = incarnation.is_none() || incarnation != known.incarnation;
            let has_restarted = stat.is_some() && incarnation != known.incarnation;
            // Whoever's call has found it missing, and whoever's that it is not any more.
            let was_missing = mounted.unit.take_return();
            // One that was away may have been elsewhere meanwhile.
            let is_news = !known.was_ever_found
                || before != UnitState::Healthy
                || was_missing
                || has_restarted;
            if stat.is_some() && is_news {
                read_leases(&inner, &mounted);
                lock(&inner.rejoined).to_judge.insert(mounted.id);
                match mounted.place.facts() {
                    Ok(facts) => *lock(&mounted.facts) = facts,
                    Err(error) => tracing::warn!(
                        unit = mounted.url,
                        error = with_causes(&error),
                        "what its place does is not known"
                    ),
                }
            }
            look.found(stat, device);
            let after = mounted.unit.state();
            if (was_missing || has_restarted) && known.was_ever_found {
                let suspicion = match is_other {
                    true => Suspicion::Restarted,
                    false => Suspicion::Back,
                };
                lock(&inner.rejoined).suspicion(mounted.id, suspicion);
            }
            if before != after {
                let (before, after) = (before.name(), after.name());
                let reason = error.map(|error| inner.claim.spell(&error));
                tracing::warn!(unit = mounted.url, before, after, reason, "unit changed");
            }
        }))
    }
}

impl Inner {
    /// As whom places are used.
    fn host(&self) -> Host<'_> {
        Host {
            world: &self.world,
            runtime: &self.runtime,
            cluster: self.cluster,
            claim: &self.claim,
        }
    }
}

/// Leads nowhere: to a unit that this host cannot use in any way. It is away, and not
/// left out: nothing may be taken for whole that lacks a copy there.
struct NoWay(String);

impl Link for NoWay {
    fn ask(&self, _: &Request<'_>, done: Done) {
        done(Err(Arc::new(io::Error::other(self.0.clone()))));
    }
}

fn no_way(url: &str, reason: String) -> Arc<dyn Unit> {
    Arc::new(RemoteUnit::new(url.to_owned(), Arc::new(NoWay(reason))))
}

/// Waits until all looks have ended, or it is enough.
pub(crate) async fn wait_for(looks: Vec<JoinHandle<()>>, is_enough: impl Fn() -> bool) {
    let answers = async {
        for look in looks {
            // A look that panicked has said so.
            let _ = look.await;
        }
    };
    tokio::pin!(answers);
    let mut tick = host::ticks(LOOK_AGAIN);
    loop {
        tokio::select! {
            () = &mut answers => return,
            _ = tick.tick() => if is_enough() { return },
        }
    }
}

/// Nothing was learnt of the unit yet.
fn is_first(mounted: &Mounted) -> bool {
    mounted.watched.last_found().stat.is_none()
}

/// Asks a unit that is there, or back, of how many leases it knows.
fn read_leases(inner: &Inner, mounted: &Mounted) {
    let mut told = lock(&mounted.told);
    match lease_count::read(&*mounted.place, &inner.vouch) {
        Ok(leases) => {
            mounted.watched.knows_leases(leases);
            // It is told again.
            *told = leases.min(*told);
        }
        Err(error) => {
            tracing::warn!(unit = mounted.url, %error, "its count of leases cannot be read");
        }
    }
}

fn refused(reason: String) -> Refusal {
    Refusal {
        field: None,
        reason,
    }
}

/// That another copy of the database uses it, if so.
fn held_by(mounted: &Mounted) -> Option<Arc<UnitError>> {
    let report = mounted.unit.report();
    let (_, error) = report.last_error?;
    let is_held = matches!(*error, UnitError::Held { .. });
    (is_held && report.state == UnitState::Missing).then_some(error)
}

/// Makes an empty place a unit; a unit of this cluster is taken as it is.
fn make_unit(inner: &Inner, place: &dyn Place) -> Result<HostUnit, UnitError> {
    let host = inner.host();
    let id = match place.identify(&host) {
        Some((cluster, unit)) if cluster == inner.cluster => unit,
        // Anything else that is there makes `make` say what it is.
        _ => UnitId::from_u128(inner.world.random.u128()),
    };
    let unit = place.make(&host, id)?;
    Ok(HostUnit {
        id,
        url: unit.url().to_owned(),
        is_disabled: false,
    })
}

fn told(fact: &Fact) -> UnitFact {
    UnitFact {
        what: fact.what.to_owned(),
        holds: fact.holds,
        otherwise: fact.otherwise.to_owned(),
    }
}

fn view(claim: &Claim, mounted: &Mounted) -> UnitReport {
    let stat = mounted.watched.last_found().stat;
    let report = mounted.unit.report();
    let reason = match report.state {
        UnitState::Healthy => None,
        _ => report.last_error.map(|(_, error)| claim.spell(&error)),
    };
    let traffic = mounted.unit.traffic();
    UnitReport {
        id: mounted.id,
        state: report.state.name().to_owned(),
        reason,
        segments: stat.map(|stat| stat.segments),
        bytes: stat.map(|stat| stat.bytes),
        free_bytes: stat.and_then(|stat| stat.free_bytes),
        read_bytes: traffic.read_bytes,
        written_bytes: traffic.written_bytes,
        facts: lock(&mounted.facts).iter().map(told).collect(),
    }
}
