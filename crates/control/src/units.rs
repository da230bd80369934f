//! The units: mounting those there are, adding more, and how they do.
//!
//! Nobody waits long for a unit to answer: what is shown then is what it said
//! last.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{UnitId, with_causes};
use catalog::Copyset;
use catalog::copysets::{self, SCATTER_WIDTH};
use tokio::task::JoinHandle;
use unit::folder::url;
use unit::{FolderUnit, TrackedUnit, Traffic, Unit, UnitError, UnitStat, UnitState};

use crate::control::{Control, Inner, blocking, lock};
use crate::database::{DatabaseError, UnitRow};
use crate::error::ControlError;
use crate::leases;
use crate::ownership::Claim;
use crate::parse;
use crate::watch::WatchedUnit;
use world::host;

/// Folder units of a new D, if nothing is said.
const UNITS_DEFAULT: usize = 8;

/// How often the clock is looked at where an answer may not come.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Who asks how the units are is kept waiting no longer.
const SHOW_WITHIN: Duration = Duration::from_millis(500);

/// A unit of this process.
#[derive(Clone)]
pub(crate) struct Mounted {
    pub id: UnitId,
    pub url: String,
    /// The folder that this is.
    pub folder: PathBuf,
    /// As the engine has it.
    pub unit: Arc<TrackedUnit>,
    /// What is beneath that.
    pub watched: Arc<WatchedUnit>,
    /// And beneath that.
    pub place: Arc<FolderUnit>,
    /// Of how many leases this process has told it. Held while its file is
    /// read or written.
    pub told: Arc<Mutex<u64>>,
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
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A task ended before its time.
    #[error("{0}")]
    Task(String),
}

/// A unit as it is shown.
#[derive(Debug, Clone)]
pub struct UnitView {
    /// Its id.
    pub id: UnitId,
    /// Where it is.
    pub url: String,
    /// How it is doing.
    pub state: UnitState,
    /// What it holds, if that can be asked.
    pub stat: Option<UnitStat>,
    /// What went through it since it was mounted.
    pub traffic: Traffic,
    /// What is wrong, if it is not healthy.
    pub reason: Option<String>,
}

impl Control {
    /// Mounts the units of D; makes `count` of them if it is new.
    pub(crate) async fn mount_units(&self, count: Option<usize>) -> Result<(), UnitsError> {
        let mut rows = self.inner.database.units().await?;
        if rows.is_empty() {
            rows = self.make_units(count.unwrap_or(UNITS_DEFAULT)).await?;
        } else if let Some(asked) = count.filter(|count| *count != rows.len()) {
            tracing::info!(
                units = rows.len(),
                asked,
                "the folder has its units already; add more with `scree unit add`"
            );
        }
        let mounted = rows.into_iter().map(|row| self.mount(row)).collect();
        *lock(&self.inner.units) = mounted;
        self.publish_units().await?;
        self.wait_for_units().await;
        self.refuse_if_held()
    }

    /// Without any unit to use, because another copy of the database does, a
    /// start could do nothing, and is most likely a mistake.
    fn refuse_if_held(&self) -> Result<(), UnitsError> {
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
    async fn wait_for_units(&self) {
        let is_enough = || {
            self.notice_silence();
            let units = lock(&self.inner.units);
            !units.iter().any(|mounted| mounted.watched.is_awaited())
        };
        wait_for(self.probe_units(true), is_enough).await;
    }

    async fn make_units(&self, count: usize) -> Result<Vec<UnitRow>, UnitsError> {
        let inner = Arc::clone(&self.inner);
        let made = blocking(move || {
            (1..=count)
                .map(|number| make_unit(&inner, &inner.folder.unit(number)))
                .collect::<Result<Vec<_>, UnitError>>()
        });
        let rows = made
            .await
            .map_err(|error| UnitsError::Task(error.to_string()))??;
        let ids: Vec<UnitId> = rows.iter().map(|row| row.id).collect();
        let copysets = self.plan(&ids, default_replicas(ids.len()), &[]);
        self.inner
            .database
            .insert_units(&rows, &copysets, self.inner.world.clock.wall())
            .await?;
        tracing::info!(units = count, "made folder units");
        Ok(rows)
    }

    fn mount(&self, row: UnitRow) -> Mounted {
        let world = &self.inner.world;
        let place = Arc::new(open_unit(&self.inner, &row.folder, row.id));
        let watched = WatchedUnit::new(Arc::clone(&place) as _, Arc::clone(&world.clock));
        let watched = Arc::new(watched);
        let unit = TrackedUnit::new(Arc::clone(&watched) as _, Arc::clone(&world.clock));
        Mounted {
            id: row.id,
            url: row.url,
            folder: row.folder,
            unit: Arc::new(unit),
            watched,
            place,
            told: Arc::default(),
        }
    }

    /// Tells the engine which units and copysets there are.
    async fn publish_units(&self) -> Result<(), DatabaseError> {
        let copysets = self.inner.database.copysets().await?;
        let units = lock(&self.inner.units)
            .iter()
            .map(|mounted| (mounted.id, Arc::clone(&mounted.unit)))
            .collect();
        self.inner.store.set_table(units, &copysets);
        Ok(())
    }

    fn plan(&self, units: &[UnitId], replicas: u8, existing: &[Copyset]) -> Vec<Copyset> {
        let random = &*self.inner.world.random;
        copysets::plan(units, replicas, existing, SCATTER_WIDTH, random)
    }

    /// Makes sure that there are copysets of `replicas` units.
    pub(crate) async fn ensure_copysets(&self, replicas: u8) -> Result<(), ControlError> {
        let _door = self.inner.units_door.lock().await;
        let units: Vec<UnitId> = lock(&self.inner.units)
            .iter()
            .map(|mounted| mounted.id)
            .collect();
        if units.len() < usize::from(replicas) {
            return Err(ControlError::invalid(
                "replicas",
                format!(
                    "{replicas} replicas need {replicas} units, and there are {}; add units with \
                     `scree unit add`, or ask for fewer replicas",
                    units.len()
                ),
            ));
        }
        let existing = self.inner.database.copysets().await?;
        let added = self.plan(&units, replicas, &existing);
        if !added.is_empty() {
            let now = self.inner.world.clock.wall();
            self.inner.database.insert_units(&[], &added, now).await?;
            self.publish_units().await?;
        }
        Ok(())
    }

    /// How many copies a volume gets if nothing is said: two, so that a unit
    /// may be lost, if there are two units.
    pub(crate) fn default_replicas(&self) -> u8 {
        default_replicas(lock(&self.inner.units).len())
    }

    /// Adds the folder at `url` as a unit. It must exist, so that a mistyped
    /// or unmounted path is not taken for a new unit; and be empty, or be a
    /// unit of this cluster already.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add_unit(&self, url: &str) -> Result<UnitView, ControlError> {
        let url = url.to_owned();
        self.to_its_end(|control| async move { control.add(&url).await })
            .await
    }

    async fn add(&self, url: &str) -> Result<UnitView, ControlError> {
        let folder = parse::unit_folder(url)?;
        // Before the door: a folder that does not answer holds up nobody else.
        let folder = blocking(move || existing_folder(&folder)).await??;
        let door = self.inner.units_door.lock().await;
        let inner = Arc::clone(&self.inner);
        let known = self.inner.database.units().await?;
        let row = blocking(move || {
            if let Some(inside) = nested(&folder, &known) {
                let reason = format!("{} is, holds or lies in {inside}", folder.display());
                return Err(ControlError::conflict(format!(
                    "{reason}, which is a unit already; use a folder of its own"
                )));
            }
            // Before anything is written there.
            if let Some(twin) = twin(&inner, &folder, &known) {
                return Err(ControlError::conflict(format!(
                    "{} is a copy of unit {} at {}, or was moved from there; a unit cannot be \
                     used twice",
                    url::url_of(&folder),
                    twin.id,
                    twin.url
                )));
            }
            make_unit(&inner, &folder)
                .map_err(|error| ControlError::conflict(inner.claim.spell(&error)))
        })
        .await??;

        let mut units: Vec<UnitId> = lock(&self.inner.units)
            .iter()
            .map(|mounted| mounted.id)
            .collect();
        units.push(row.id);
        let mut existing = self.inner.database.copysets().await?;
        let mut added = Vec::new();
        let mut widths: Vec<usize> = existing.iter().map(|set| set.members.len()).collect();
        widths.sort_unstable();
        widths.dedup();
        for width in widths {
            let more = self.plan(&units, width as u8, &existing);
            existing.extend_from_slice(&more);
            added.extend(more);
        }
        let now = self.inner.world.clock.wall();
        self.inner
            .database
            .insert_units(std::slice::from_ref(&row), &added, now)
            .await?;
        tracing::info!(unit = %row.id, url = row.url, "unit added");
        let mounted = self.mount(row);
        lock(&self.inner.units).push(mounted.clone());
        self.publish_units().await?;
        drop(door);
        if let Some(look) = self.look(&mounted, true) {
            // A look that panicked has said so.
            let _ = look.await;
        }
        Ok(view(&self.inner.claim, &mounted))
    }

    /// Free room on the units' file systems, in bytes, as far as they have
    /// said; each file system is counted once, however many units lie on it.
    /// `None` if nothing is known.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let mut by_device = std::collections::HashMap::new();
        for mounted in lock(&self.inner.units).iter() {
            let found = mounted.watched.last_found();
            let free = found.stat.and_then(|stat| stat.free_bytes);
            if let (Some(free), Some(device)) = (free, found.device) {
                by_device.insert(device, free);
            }
        }
        (!by_device.is_empty()).then(|| by_device.values().sum())
    }

    /// All units. They are asked anew; one that does not answer at once is
    /// shown as it was when it last did.
    pub async fn units(&self) -> Vec<UnitView> {
        let units = lock(&self.inner.units).clone();
        let looks: Vec<_> = units
            .iter()
            .filter_map(|mounted| self.look(mounted, false))
            .collect();
        let clock = &self.inner.world.clock;
        let until = clock.monotonic() + SHOW_WITHIN;
        wait_for(looks, || clock.monotonic() >= until).await;
        self.units_as_known()
    }

    /// As [`Control::units`], without asking them.
    pub(crate) fn units_as_known(&self) -> Vec<UnitView> {
        let units = lock(&self.inner.units);
        let views = units.iter().map(|mounted| view(&self.inner.claim, mounted));
        views.collect()
    }

    /// Begins to look at the units whose health is in doubt, or at all, and
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
            if mounted.watched.falls_silent() {
                // Refused from now on, which is how its health hears of it.
                let error = mounted.unit.settle().err().map(|error| with_causes(&error));
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
            let device = host::device(&mounted.folder).ok();
            // One that was away may have been elsewhere meanwhile.
            let is_news = before != UnitState::Healthy || is_first(&mounted);
            if stat.is_some() && is_news {
                read_leases(&inner, &mounted);
            }
            look.found(stat, device);
            let after = mounted.unit.state();
            if before != after {
                let (before, after) = (before.name(), after.name());
                let reason = error.map(|error| inner.claim.spell(&error));
                tracing::warn!(unit = mounted.url, before, after, reason, "unit changed");
            }
        }))
    }
}

/// Waits until all looks have ended, or it is enough.
async fn wait_for(looks: Vec<JoinHandle<()>>, is_enough: impl Fn() -> bool) {
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
    let _alone = lock(&mounted.told);
    match leases::read(&inner.world, &inner.key, &mounted.folder) {
        Ok(leases) => mounted.watched.knows_leases(leases),
        Err(error) => {
            tracing::warn!(unit = mounted.url, %error, "its count of leases cannot be read");
        }
    }
}

/// The path of a folder that exists, absolute and without links.
fn existing_folder(folder: &Path) -> Result<PathBuf, ControlError> {
    let folder = host::resolve(folder).map_err(|error| {
        let shown = folder.display();
        let reason = format!("{shown}: {error}; make the folder, or mount it, first");
        ControlError::invalid("url", reason)
    })?;
    if !host::is_folder(&folder) {
        let reason = format!("{} is not a folder", folder.display());
        return Err(ControlError::invalid("url", reason));
    }
    Ok(folder)
}

fn default_replicas(units: usize) -> u8 {
    if units >= 2 { 2 } else { 1 }
}

/// That another copy of the database uses it, if so.
fn held_by(mounted: &Mounted) -> Option<Arc<UnitError>> {
    let report = mounted.unit.report();
    let (_, error) = report.last_error?;
    let is_held = matches!(*error, UnitError::Held { .. });
    (is_held && report.state == UnitState::Missing).then_some(error)
}

fn open_unit(inner: &Inner, folder: &Path, id: UnitId) -> FolderUnit {
    let claim = &inner.claim;
    FolderUnit::open(&inner.world, folder, inner.cluster, id)
        .with_owner(claim.owner.clone(), claim.takes_over)
}

/// Makes an empty folder a unit; a unit of this cluster is taken as it is.
fn make_unit(inner: &Inner, folder: &Path) -> Result<UnitRow, UnitError> {
    let world = &inner.world;
    let id = match FolderUnit::identify(world, folder) {
        Ok(marker) if marker.cluster == inner.cluster => marker.unit,
        // Anything else that is there makes `create` say what it is.
        _ => UnitId::from_random(world.random.u128()),
    };
    let unit = open_unit(inner, folder, id).made()?;
    Ok(UnitRow {
        id,
        url: unit.url().to_owned(),
        folder: folder.to_owned(),
    })
}

/// The unit whose mark `folder` has.
fn twin<'a>(inner: &Inner, folder: &Path, known: &'a [UnitRow]) -> Option<&'a UnitRow> {
    // What cannot be read is left to `make_unit`.
    let marker = FolderUnit::identify(&inner.world, folder).ok()?;
    let is_it = |unit: &&UnitRow| marker.cluster == inner.cluster && marker.unit == unit.id;
    known.iter().find(is_it)
}

/// The unit that `folder` is, holds, or lies in.
fn nested<'a>(folder: &Path, known: &'a [UnitRow]) -> Option<&'a str> {
    known
        .iter()
        .find(|unit| {
            // Without links when it was added; to ask again could take for
            // ever.
            let other = &unit.folder;
            folder.starts_with(other) || other.starts_with(folder)
        })
        .map(|unit| unit.url.as_str())
}

fn view(claim: &Claim, mounted: &Mounted) -> UnitView {
    let stat = mounted.watched.last_found().stat;
    let report = mounted.unit.report();
    let reason = match report.state {
        UnitState::Healthy => None,
        _ => report.last_error.map(|(_, error)| claim.spell(&error)),
    };
    UnitView {
        id: mounted.id,
        url: mounted.url.clone(),
        state: report.state,
        stat,
        traffic: mounted.unit.traffic(),
        reason,
    }
}
