//! [`DatabaseAge`]: whether the database is as new as the data on the units, and leases that are
//! acquired only if it is.
//!
//! A database that was restored from a backup would silently lose what was written
//! since, and give epochs and segment serials that have been used. (No nonce comes twice by that:
//! see [`LeaseSalt`].) So every lease is counted, in the database and on the units:
//!
//! 1. *acquire*: the count grows in the transaction that gives the lease;
//! 2. *note*: the count is noted on every unit that can be reached, durably
//!    (`units::lease_count`);
//! 3. *use*: the holder of the lease may seal.
//!
//! A unit that knows of more leases than the database has seen a newer one. Then no lease is given
//! and nothing is freed, until the operator either restores the newer database or says that it is
//! lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::calls::MoveAhead;
use api::host::catalog_calls::{Acquire, Leases, NotedLeases};
use api::host::{Suspicion, Want};
use base::{JournalFolderId, UnitId, VolumeId, with_causes};
use catalog::{CatalogError, Lease, LeaseSalt};
use tokio::sync::mpsc;
use world::host;

use crate::controller::Controller;
use crate::units::watch::ANSWER_WITHIN;
use crate::units::{LOOK_AGAIN, MountedUnit, RejoinReports, Units, lease_count};

/// The database is older than the data on the units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the database is older than the data: it knows of {database} leases, and the unit {url} of \
     {unit}, so versions are missing from it and it must not be written with as it is; put the \
     newer one back, or, if that is lost, start `scree up`, or one controller, once with \
     `--restored-database`"
)]
pub struct OlderDatabase {
    /// The unit that knows of most leases.
    pub url: String,
    /// How many leases it knows of.
    pub unit: u64,
    /// How many leases the database knows of.
    pub database: u64,
}

/// Why no lease was acquired.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The controllers gave no lease.
    #[error("no lease: {0}")]
    Lease(CatalogError),
    /// The controllers did not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The database is not the one that the data belongs to.
    #[error(transparent)]
    Older(#[from] OlderDatabase),
    /// The lease was noted on no unit.
    #[error("no unit could be told of its lease: {0}")]
    NotNoted(String),
    /// The database names a key that is not this volume's, or another salt than the lease's.
    #[error(
        "the database names another volume's key, or an old one; it was altered: restore \
         it from a backup"
    )]
    ForeignKey,
}

/// What came of noting a lease on a unit.
enum Noting {
    /// The unit knows of the lease.
    Noted,
    /// The unit is older than it was: nothing is noted there before the controllers have heard
    /// that.
    Older,
}

/// Why a lease was noted on no unit.
#[derive(Debug, thiserror::Error)]
enum NotingError {
    /// The units that answer are older than they were.
    #[error("the units that answer are older than they were")]
    Older,
    /// No unit answers, or takes a note.
    #[error("{0}")]
    Failed(String),
}

/// Compares the lease counts of the database and the units.
pub(crate) struct DatabaseAge {
    controller: Controller,
    units: Arc<Units>,
    rejoin_reports: RejoinReports,
}

impl DatabaseAge {
    pub fn new(controller: Controller, units: Arc<Units>, rejoin_reports: RejoinReports) -> Self {
        Self {
            controller,
            units,
            rejoin_reports,
        }
    }

    /// Acquires a lease that may be used: every unit that answers knows of it. `journals` is the
    /// shared folder of journals, if this host has one.
    pub async fn acquire(
        &self,
        volume: VolumeId,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, AcquireError> {
        if let Some(older) = self.older().await? {
            return Err(older.into());
        }
        let salt = LeaseSalt::generate(&*self.units.context().world.random);
        let acquire = Acquire {
            volume,
            salt,
            journals,
        };
        let lease = self.controller.catalog(acquire).await;
        let lease = lease.map_err(AcquireError::Lease)?;
        // The database is not trusted with secrets: another volume's key, perhaps of one that is
        // not encrypted, or the salt of an earlier lease, would do harm.
        let is_own = lease.keys.first().is_some_and(|key| {
            key.lineage.as_u128() == volume.as_u128()
                && key.salts.last() == Some(&(lease.epoch, salt))
        });
        if !is_own {
            return Err(AcquireError::ForeignKey);
        }
        // Before the lease is used, so that older leases are refused.
        let lineage = lease.keys[0].lineage;
        let epoch = lease.epoch;
        let wants = [Want::Lease { volume, epoch }, Want::Read { lineage }];
        let shown = self.controller.obtain(&wants).await;
        shown.map_err(AcquireError::Lease)?;
        // More leases may have been given meanwhile; to note them early does no harm.
        let count = self.controller.catalog(Leases {}).await?;
        // Unit daemons take no larger count than a controller has signed.
        let signed = self.controller.obtain(&[Want::Count]).await;
        signed.map_err(AcquireError::Lease)?;
        self.note(count).await?;
        Ok(lease)
    }

    async fn note(&self, count: u64) -> Result<(), AcquireError> {
        let mut noted = self.note_on_units(count).await;
        if matches!(noted, Err(NotingError::Older)) {
            // Once the controllers have heard of these units, they are noted.
            self.rejoin_reports.report_suspicions().await;
            noted = self.note_on_units(count).await;
        }
        noted.map_err(|why| AcquireError::NotNoted(why.to_string()))
    }

    /// Notes the count on every unit that answers; returns when the quick ones have answered, and
    /// at least one has noted it.
    async fn note_on_units(&self, count: u64) -> Result<(), NotingError> {
        let clock = Arc::clone(&self.units.context().world.clock);
        let asked = clock.monotonic();
        let noted = self.controller.catalog(NotedLeases {}).await;
        let noted = noted.map_err(|error| NotingError::Failed(with_causes(&error)))?;
        let noted: HashMap<UnitId, u64> = noted.into_iter().collect();
        let (answer, mut answers) = mpsc::unbounded_channel();
        for mounted in self.units.mounted() {
            if mounted.watched.is_unresponsive() {
                continue;
            }
            let note = LeaseNote {
                count,
                noted: noted.get(&mounted.id).copied().unwrap_or(0),
                asked,
            };
            let (units, answer) = (Arc::clone(&self.units), answer.clone());
            tokio::task::spawn_blocking(move || {
                // The receiver may have stopped waiting: the count is noted all the same.
                let _ = answer.send(note.write(&units, &mounted));
            });
        }
        drop(answer);
        let enough = clock.monotonic() + ANSWER_WITHIN;
        let (mut is_noted, mut is_older) = (false, false);
        let mut failure = "no unit answers".to_owned();
        let mut tick = host::ticks(LOOK_AGAIN);
        loop {
            tokio::select! {
                answer = answers.recv() => match answer {
                    Some(Ok(Noting::Noted)) => is_noted = true,
                    Some(Ok(Noting::Older)) => is_older = true,
                    Some(Err(why)) => {
                        tracing::warn!(why, "lease was not noted on a unit");
                        failure = why;
                    }
                    None => break,
                },
                _ = tick.tick() => if clock.monotonic() >= enough { break },
            }
        }
        match (is_noted, is_older) {
            (true, _) => Ok(()),
            (false, true) => Err(NotingError::Older),
            (false, false) => Err(NotingError::Failed(failure)),
        }
    }

    /// The unit that knows of more leases than the database, if one does.
    pub async fn older(&self) -> Result<Option<OlderDatabase>, CatalogError> {
        // The units first: a lease that is given meanwhile is in the database before it is noted.
        let counts = self.units.mounted().into_iter();
        let counts = counts.map(|mounted| (mounted.watched.last_found().leases, mounted.url));
        let most = counts.max();
        let database = self.controller.catalog(Leases {}).await?;
        let older = most.filter(|(unit, _)| *unit > database);
        Ok(older.map(|(unit, url)| OlderDatabase {
            url,
            unit,
            database,
        }))
    }

    /// Whether the database is known not to be older.
    pub async fn is_current(&self) -> bool {
        matches!(self.older().await, Ok(None))
    }

    /// Moves an older database ahead, if the operator has said that it was restored. To be called
    /// when the units were looked at for the first time.
    pub async fn check(&self) -> Result<(), CheckError> {
        let takes_over = self.units.context().owner.takes_over;
        match self.older().await? {
            None if takes_over => tracing::info!(
                "the database is as new as the units; --restored-database had nothing to do"
            ),
            None => {}
            Some(older) if takes_over => {
                let ahead = MoveAhead { leases: older.unit };
                self.controller.call(&ahead).await?;
            }
            Some(older) => tracing::error!("{older}"),
        }
        Ok(())
    }
}

/// Why the age of the database is not known.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The controllers did not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The controllers did not move the database ahead.
    #[error(transparent)]
    Controller(#[from] ClientError),
}

/// A lease count that is to be noted on a unit.
struct LeaseNote {
    count: u64,
    /// The count that had been noted on the unit, at least, when that was asked.
    noted: u64,
    /// The moment of that question.
    asked: Duration,
}

impl LeaseNote {
    /// Notes the count on a unit. Waits for it.
    fn write(&self, units: &Units, mounted: &MountedUnit) -> Result<Noting, String> {
        let context = units.context();
        // One after another, and never back: of two attachments that begin at once, the one with
        // the smaller count may come last.
        let mut last = mounted.noted_leases.lock();
        if *last >= self.count {
            return Ok(Noting::Noted);
        }
        let describe = |error| context.owner.describe(&error);
        let key = units.lease_count_key();
        let known = lease_count::read_own(&*mounted.unit, key).map_err(describe)?;
        let rejoined = units.rejoined();
        if known < self.noted.max(rejoined.unreported_count(mounted.id)) {
            rejoined.suspect(mounted.id, Suspicion::Older);
            return Ok(Noting::Older);
        }
        // Meanwhile the unit may have been restored, and others have noted more.
        let age = context.world.clock.monotonic().saturating_sub(self.asked);
        if age > ANSWER_WITHIN {
            return Err(format!(
                "{} took too long to say what it knows",
                mounted.url
            ));
        }
        // Also if it knows that: a unit of another cluster, or copy, takes no notes.
        let count = self.count.max(known);
        lease_count::write(&*mounted.unit, key, count).map_err(describe)?;
        *last = count;
        mounted.watched.knows_leases(count);
        rejoined.note_count(mounted.id, count);
        Ok(Noting::Noted)
    }
}
