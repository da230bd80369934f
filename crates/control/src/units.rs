//! The units: mounting those there are, adding more, and how they do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::UnitId;
use unit::{FolderUnit, TrackedUnit, Unit, UnitError, UnitStat, UnitState};
use volume::catalog::Copyset;
use volume::scatter::copysets::{self, SCATTER_WIDTH};

use crate::control::{Control, blocking, lock};
use crate::database::{DatabaseError, UnitRow};
use crate::error::ControlError;
use crate::parse;

/// Folder units of a new D, if nothing is said.
const UNITS_DEFAULT: usize = 8;

/// A unit of this process.
#[derive(Clone)]
pub(crate) struct Mounted {
    pub id: UnitId,
    pub url: String,
    pub unit: Arc<TrackedUnit>,
}

/// Why the units cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// A unit of a new D could not be made.
    #[error("cannot make a unit")]
    Make(#[from] UnitError),
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
    /// What is wrong, if it is not healthy.
    pub reason: Option<String>,
}

/// The folder that a unit's own URL names. Unlike URLs that people write, it
/// holds the path as it is.
fn folder_of(url: &str) -> &Path {
    Path::new(url.strip_prefix("file://").unwrap_or(url))
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
        self.probe_units(true).await;
        Ok(())
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
        let unit = FolderUnit::open(world, folder_of(&row.url), self.inner.cluster, row.id);
        let unit = TrackedUnit::new(Arc::new(unit), Arc::clone(&world.clock));
        Mounted {
            id: row.id,
            url: row.url,
            unit: Arc::new(unit),
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
        let folder = parse::unit_folder(url)?;
        let _door = self.inner.units_door.lock().await;
        let inner = Arc::clone(&self.inner);
        let known = self.inner.database.units().await?;
        let row = blocking(move || {
            let folder = folder.canonicalize().map_err(|error| {
                ControlError::invalid(
                    "url",
                    format!(
                        "{}: {error}; make the folder, or mount it, first",
                        folder.display()
                    ),
                )
            })?;
            if !folder.is_dir() {
                let reason = format!("{} is not a folder", folder.display());
                return Err(ControlError::invalid("url", reason));
            }
            if let Some(inside) = nested(&folder, &known) {
                let reason = format!("{} is, holds or lies in {inside}", folder.display());
                return Err(ControlError::conflict(format!(
                    "{reason}, which is a unit already; use a folder of its own"
                )));
            }
            let row = make_unit(&inner, &folder)
                .map_err(|error| ControlError::conflict(with_hint(&error)))?;
            if let Some(twin) = known.iter().find(|unit| unit.id == row.id) {
                return Err(ControlError::conflict(format!(
                    "{} is a copy of unit {} at {}, or was moved from there; a unit cannot be \
                     used twice",
                    row.url, twin.id, twin.url
                )));
            }
            Ok(row)
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
        blocking(move || view(&mounted)).await
    }

    /// Free room on the units' file systems, in bytes; each file system is
    /// counted once, however many units lie on it. `None` if nothing is known.
    pub(crate) async fn free_bytes(&self) -> Result<Option<u64>, ControlError> {
        use std::os::unix::fs::MetadataExt as _;
        let units = lock(&self.inner.units).clone();
        blocking(move || {
            let mut by_device = std::collections::HashMap::new();
            for mounted in units {
                let free = mounted.unit.stat().ok().and_then(|stat| stat.free_bytes);
                let folder = std::fs::metadata(folder_of(&mounted.url));
                if let (Some(free), Ok(folder)) = (free, folder) {
                    by_device.insert(folder.dev(), free);
                }
            }
            (!by_device.is_empty()).then(|| by_device.values().sum())
        })
        .await
    }

    /// All units and how they are.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn units(&self) -> Result<Vec<UnitView>, ControlError> {
        let units = lock(&self.inner.units).clone();
        blocking(move || units.iter().map(view).collect()).await
    }

    /// Looks at the units whose health is in doubt, or at all.
    pub(crate) async fn probe_units(&self, all: bool) {
        let due: Vec<Mounted> = lock(&self.inner.units)
            .iter()
            .filter(|mounted| all || mounted.unit.is_probe_due())
            .cloned()
            .collect();
        let probes: Vec<_> = due
            .into_iter()
            .map(|mounted| {
                tokio::task::spawn_blocking(move || {
                    let before = mounted.unit.state();
                    let error = mounted.unit.probe().err();
                    let after = mounted.unit.state();
                    if before != after {
                        let (before, after) = (before.name(), after.name());
                        let reason = error.map(|error| error.to_string());
                        tracing::warn!(unit = mounted.url, before, after, reason, "unit changed");
                    }
                })
            })
            .collect();
        for probe in probes {
            let _ = probe.await;
        }
    }
}

fn default_replicas(units: usize) -> u8 {
    if units >= 2 { 2 } else { 1 }
}

/// Makes an empty folder a unit; a unit of this cluster is taken as it is.
fn make_unit(inner: &crate::control::Inner, folder: &Path) -> Result<UnitRow, UnitError> {
    let world = &inner.world;
    let id = match FolderUnit::identify(world, folder) {
        Ok(marker) if marker.cluster == inner.cluster => marker.unit,
        // Anything else that is there makes `create` say what it is.
        _ => UnitId::from_random(world.random.u128()),
    };
    let unit = FolderUnit::create(world, folder, inner.cluster, id)?;
    Ok(UnitRow {
        id,
        url: unit.url().to_owned(),
    })
}

/// The unit that `folder` is, holds, or lies in.
fn nested<'a>(folder: &Path, known: &'a [UnitRow]) -> Option<&'a str> {
    known
        .iter()
        .find(|unit| {
            let other: PathBuf = folder_of(&unit.url).to_owned();
            let other = other.canonicalize().unwrap_or(other);
            folder.starts_with(&other) || other.starts_with(folder)
        })
        .map(|unit| unit.url.as_str())
}

fn with_hint(error: &UnitError) -> String {
    match error {
        UnitError::Foreign { .. } => {
            format!("{error}; use an empty folder (a unit of another cluster is never taken over)")
        }
        other => other.to_string(),
    }
}

fn view(mounted: &Mounted) -> UnitView {
    let stat = mounted.unit.stat().ok();
    let report = mounted.unit.report();
    let reason = match report.state {
        UnitState::Healthy => None,
        _ => report.last_error.map(|(_, error)| error.to_string()),
    };
    UnitView {
        id: mounted.id,
        url: mounted.url.clone(),
        state: report.state,
        stat,
        reason,
    }
}
