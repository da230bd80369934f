//! [`DatabaseAge`]: whether the database is as new as the data on the units. Leases are acquired
//! only if it is.
//!
//! A database that was restored from a backup would silently lose later writes, and reuse epochs
//! and segment serials. (Nonces are not reused even then: see [`LeaseSalt`].) So every lease is
//! counted, in the database and on the units:
//!
//! 1. *acquire*: the count grows in the transaction that grants the lease;
//! 2. *note*: the count is stored durably on every available unit (`units::lease_count`);
//! 3. *use*: the holder of the lease may seal.
//!
//! A unit whose count is higher than the database's has seen a newer database. Then no lease is
//! granted and nothing is freed until the operator restores the newer database or declares it lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::calls::MoveAhead;
use api::host::catalog_calls::{Acquire, Leases, NotedLeases};
use api::host::{CapabilityRequest, Suspicion};
use base::{JournalFolderId, UnitId, VolumeId, with_causes};
use catalog::{CatalogError, Lease, LeaseSalt};
use tokio::sync::mpsc;
use world::host;

use crate::controller::Controller;
use crate::units::watch::ANSWER_WITHIN;
use crate::units::{MountedUnit, POLL_INTERVAL, RejoinReports, Units, lease_count};

/// The database is older than the data on the units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the database is older than the data: it has {database} leases, and the unit {url} has {unit}, \
     so versions are missing from it, and no volume is opened with it; restore the newer one, or, \
     if that is lost, start `scree up`, or one controller, once with `--restored-database`"
)]
pub struct OlderDatabase {
    /// URL of the unit with the highest count.
    pub url: String,
    /// Lease count on the unit.
    pub unit: u64,
    /// Lease count in the database.
    pub database: u64,
}

/// Why no lease was acquired.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The controllers granted no lease.
    #[error("no lease: {0}")]
    Lease(CatalogError),
    /// The controllers did not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The database is older than the data.
    #[error(transparent)]
    Older(#[from] OlderDatabase),
    /// The lease could not be noted on any unit.
    #[error("the lease could not be noted on any unit: {0}")]
    NotNoted(String),
    /// The database returned a key of another volume, or another salt than the lease's.
    #[error(
        "the database returned the key of another volume, or an old one; it was altered: restore \
         it from a backup"
    )]
    ForeignKey,
}

/// The outcome of noting a lease on a unit.
enum Noting {
    /// The unit has stored the count.
    Noted,
    /// The unit is older than it was: the controllers must be notified before anything is noted
    /// there.
    Older,
}

/// Why a lease was noted on no unit.
#[derive(Debug, thiserror::Error)]
enum NotingError {
    /// The units that answer are older than they were.
    #[error("the units that answer are older than they were")]
    Older,
    /// No unit answers, or none stores the count.
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

    /// Acquires a lease that may be used at once: every unit that answers has stored its count.
    /// `journals` is the id of the shared folder of journals, if this host uses one.
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
        // The database is not trusted with secrets: the key of another, perhaps unencrypted volume,
        // or the salt of an earlier lease, would be harmful.
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
        let requests = [
            CapabilityRequest::Lease { volume, epoch },
            CapabilityRequest::Read { lineage },
        ];
        let presented = self.controller.obtain(&requests).await;
        presented.map_err(AcquireError::Lease)?;
        // More leases may have been granted meanwhile; noting them early is harmless.
        let count = self.controller.catalog(Leases {}).await?;
        // Unit daemons accept no larger count than a controller has signed.
        let signed = self.controller.obtain(&[CapabilityRequest::Count]).await;
        signed.map_err(AcquireError::Lease)?;
        self.note(count).await?;
        Ok(lease)
    }

    async fn note(&self, count: u64) -> Result<(), AcquireError> {
        let mut noted = self.note_on_units(count).await;
        if matches!(noted, Err(NotingError::Older)) {
            // When the controllers know about these units, the count is noted.
            self.rejoin_reports.report_suspicions().await;
            noted = self.note_on_units(count).await;
        }
        noted.map_err(|why| AcquireError::NotNoted(why.to_string()))
    }

    /// Notes the count on every unit that answers. Returns when the responsive units have answered
    /// and at least one has stored it.
    async fn note_on_units(&self, count: u64) -> Result<(), NotingError> {
        let clock = Arc::clone(&self.units.context().world.clock);
        let requested = clock.monotonic();
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
                requested,
            };
            let (units, answer) = (Arc::clone(&self.units), answer.clone());
            tokio::task::spawn_blocking(move || {
                // The receiver may have stopped waiting: the count is noted anyway.
                let _ = answer.send(note.write(&units, &mounted));
            });
        }
        drop(answer);
        let enough = clock.monotonic() + ANSWER_WITHIN;
        let (mut is_noted, mut is_older) = (false, false);
        let mut failure = "no unit answers".to_owned();
        let mut tick = host::ticks(POLL_INTERVAL);
        loop {
            tokio::select! {
                answer = answers.recv() => match answer {
                    Some(Ok(Noting::Noted)) => is_noted = true,
                    Some(Ok(Noting::Older)) => is_older = true,
                    Some(Err(why)) => {
                        tracing::warn!(error = why, "agent could not note lease on unit");
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

    /// The unit with a higher lease count than the database, if there is one.
    pub async fn older(&self) -> Result<Option<OlderDatabase>, CatalogError> {
        // Units first: a lease granted meanwhile is in the database before it is noted on units.
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

    /// Whether the database is known to be as new as the units.
    pub async fn is_current(&self) -> bool {
        matches!(self.older().await, Ok(None))
    }

    /// Advances an older database if the operator has declared it restored. Must be called after
    /// the first pass over the units.
    pub async fn check(&self) -> Result<(), CheckError> {
        let takes_over = self.units.context().owner.takes_over;
        match self.older().await? {
            None if takes_over => {
                tracing::info!("database is as new as the units; --restored-database has no effect")
            }
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

/// Why the age of the database could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The controllers did not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The controllers did not advance the database.
    #[error(transparent)]
    Controller(#[from] ClientError),
}

/// A lease count to store on a unit.
struct LeaseNote {
    count: u64,
    /// A lower bound of the count that the unit had stored at `requested`.
    noted: u64,
    /// When that was requested, by the monotonic clock.
    requested: Duration,
}

impl LeaseNote {
    /// Stores the count on a unit. Blocks.
    fn write(&self, units: &Units, mounted: &MountedUnit) -> Result<Noting, String> {
        let context = units.context();
        // One at a time, and the count never decreases: of two concurrent attachments, the one with
        // the smaller count may come last.
        let mut last = mounted.noted_leases.lock();
        if *last >= self.count {
            return Ok(Noting::Noted);
        }
        let describe = |error| context.owner.describe(&error);
        let signer = units.count_signer();
        let known = lease_count::read_own(&*mounted.unit, signer).map_err(describe)?;
        let rejoined = units.rejoined();
        if known < self.noted.max(rejoined.unreported_count(mounted.id)) {
            rejoined.suspect(mounted.id, Suspicion::Older);
            return Ok(Noting::Older);
        }
        // Meanwhile the unit may have been restored, and others may have stored a higher count.
        let age = context
            .world
            .clock
            .monotonic()
            .saturating_sub(self.requested);
        if age > ANSWER_WITHIN {
            return Err(format!(
                "{} took too long to return its lease count",
                mounted.url
            ));
        }
        // Even then: a unit of another cluster or database copy stores no counts.
        let count = self.count.max(known);
        lease_count::write(&*mounted.unit, signer, count).map_err(describe)?;
        *last = count;
        mounted.watched.note_leases(count);
        rejoined.note_count(mounted.id, count);
        Ok(Noting::Noted)
    }
}
