//! How the whole is doing, and what needs somebody's attention.

use std::sync::Arc;

use base::ClusterId;
use unit::UnitState;

use crate::control::{Control, lock};
use crate::database::{ThinVolume, Volumes};
use crate::error::ControlError;

/// A look at everything.
#[derive(Debug, Clone)]
pub struct Report {
    /// The cluster.
    pub cluster: ClusterId,
    /// How many volumes there are.
    pub volumes: u64,
    /// How many of them are served.
    pub exported: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// How many units.
    pub units: u64,
    /// How many of them are healthy.
    pub units_healthy: u64,
    /// The room that segments take on all units, in bytes.
    pub bytes: u64,
    /// Journal bytes that wait to be destaged.
    pub journal_used_bytes: u64,
    /// Removed versions whose slots wait to be freed.
    pub pending_frees: u64,
    /// Segments with slots that have fewer copies than they should.
    pub thin_segments: u64,
    /// How many such slots there are at most: some may have been freed since.
    pub thin_blocks: u64,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

impl Control {
    /// Looks at everything.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn report(&self) -> Result<Report, ControlError> {
        let volumes = self.inner.database.volumes().await?;
        let units = self.units().await;
        let mut problems = Vec::new();
        for unit in units.iter().filter(|unit| unit.state != UnitState::Healthy) {
            let reason = unit.reason.as_deref().unwrap_or("no reason is known");
            problems.push(format!(
                "unit {} is {}: {reason}",
                unit.url,
                unit.state.name()
            ));
        }
        for volume in &volumes.damaged {
            let (name, why) = (&volume.name, &volume.reason);
            problems.push(format!("volume {name:?} is in error: {why}"));
        }
        for row in volumes.rows.iter().filter(|row| !row.deleting) {
            if let Some(why) = &row.failure {
                problems.push(format!("volume {:?} is in error: {why}", row.name));
            }
        }
        let attached: Vec<_> = lock(&self.inner.attached).values().cloned().collect();
        let mut journal_used_bytes = 0;
        for attached in &attached {
            let Ok(status) = self.engine_status(Arc::clone(attached)).await else {
                continue;
            };
            journal_used_bytes += status.journal_used_bytes;
            if let Some(why) = status.destage_error {
                problems.push(format!("volume {:?} cannot destage: {why}", attached.name));
            }
        }
        let thin = self.inner.database.thin_volumes().await?;
        problems.extend(thin.iter().map(|thin| thin_problem(thin, &volumes)));
        if let Some(older) = self.older_database().await? {
            problems.push(older.to_string());
        }
        if let Some(why) = lock(&self.inner.removal_problem).as_ref() {
            problems.push(format!("old versions are not all removed: {why}"));
        }
        if let Some(why) = lock(&self.inner.freeing_problem).as_ref() {
            problems.push(format!("room is not all given back: {why}"));
        }
        let bytes = units
            .iter()
            .filter_map(|unit| unit.stat)
            .map(|stat| stat.bytes)
            .sum();
        let there = volumes.rows.iter().filter(|row| !row.deleting).count();
        let healthy = units.iter().filter(|unit| unit.state == UnitState::Healthy);
        Ok(Report {
            cluster: self.inner.cluster,
            volumes: (there + volumes.damaged.len()) as u64,
            exported: attached.len() as u64,
            snapshots: self.inner.database.snapshot_count().await?,
            units: units.len() as u64,
            units_healthy: healthy.count() as u64,
            bytes,
            journal_used_bytes,
            pending_frees: self.inner.database.pending_free_count().await?,
            thin_segments: thin.iter().map(|thin| thin.segments).sum(),
            thin_blocks: thin.iter().map(|thin| thin.slots).sum(),
            problems,
        })
    }
}

fn thin_problem(thin: &ThinVolume, volumes: &Volumes) -> String {
    let (of, remedy) = match volumes.name_of(thin.volume) {
        Some(name) => (
            format!("volume {name:?}"),
            "make them whole by copying the volume into a new one",
        ),
        None => (
            format!("the deleted volume {}", thin.volume),
            "its snapshots or clones hold them; copy those into new volumes",
        ),
    };
    format!(
        "up to {} blocks of {of} have fewer copies than they should, in {} segments: units were \
         away when they were written; {remedy}",
        thin.slots, thin.segments
    )
}
