//! Whether the database is as new as what lies on the units.
//!
//! A database that was put back from a backup would lose what was written
//! since without a word, and give epochs and segment serials that have been
//! used. (No nonce comes twice by that: see [`LeaseSalt`].) So every lease is
//! counted, in the database and on the units:
//!
//! 1. *acquire*: the count grows in the transaction that gives the lease;
//! 2. *note*: every unit that can be reached is told of the count, durably
//!    (`lease_count`);
//! 3. *use*: what has the lease may seal.
//!
//! A unit that knows of more leases than the database has seen a younger one.
//! Then no lease is given and nothing is freed, until the operator either puts
//! the younger one back or says that it is lost. How long a lease then holds is
//! another matter: `leases`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::host::calls::MoveAhead;
use api::host::catalog_calls::{Acquire, Leases, NotedLeases};
use api::host::{Suspicion, Want};
use base::{UnitId, VolumeId, with_causes};
use catalog::{CatalogError, Lease, LeaseSalt};
use tokio::sync::mpsc;
use world::host;

use crate::agent::{Agent, Inner, StartError, lock};
use crate::attached::AttachError;
use crate::journals::Journals;
use crate::lease_count;
use crate::units::{LOOK_AGAIN, Mounted};
use crate::watch::ANSWER_WITHIN;

/// The database is older than what lies on the units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the database is older than the data: it knows of {database} leases, and the unit {url} of \
     {unit}, so versions are missing from it and it must not be written with as it is; put the \
     newer one back, or, if that is lost, start `scree up`, or one controller, once with \
     `--restored-database`"
)]
pub struct OlderDatabase {
    /// A unit that knows more.
    pub url: String,
    /// How many leases it knows of.
    pub unit: u64,
    /// How many the database knows of.
    pub database: u64,
}

/// What came of telling a unit.
enum Told {
    /// It knows of the lease.
    Noted,
    /// It is older than it was: nothing is noted there before the controllers have heard
    /// that.
    Older,
}

/// Why no unit was told.
#[derive(Debug, thiserror::Error)]
enum Untold {
    /// Those that answer are older than they were.
    #[error("the units that answer are older than they were")]
    Older,
    /// None answers, or takes a note.
    #[error("{0}")]
    Failed(String),
}

/// Tells one unit, on which at least `noted` leases had been noted when that was asked. Waits.
fn tell(
    inner: &Inner,
    mounted: &Mounted,
    count: u64,
    (noted, asked): (u64, Duration),
) -> Result<Told, String> {
    // One after another, and never back: of two that attach at once, the one
    // with the smaller count may come last.
    let mut told = lock(&mounted.told);
    if *told >= count {
        return Ok(Told::Noted);
    }
    let spell = |error| inner.claim.spell(&error);
    let knows = lease_count::read_own(&*mounted.place, &inner.vouch).map_err(spell)?;
    if knows < noted.max(lock(&inner.rejoined).unsaid(mounted.id)) {
        lock(&inner.rejoined).suspicion(mounted.id, Suspicion::Older);
        return Ok(Told::Older);
    }
    // Meanwhile it may have been put back, and others have been told more.
    if inner.world.clock.monotonic().saturating_sub(asked) > ANSWER_WITHIN {
        return Err(format!(
            "{} took too long to say what it knows",
            mounted.url
        ));
    }
    // Also if it knows that: what is another cluster's, or copy's, takes no notes.
    let count = count.max(knows);
    lease_count::write(&*mounted.place, &inner.world, &inner.vouch, count).map_err(spell)?;
    *told = count;
    mounted.watched.knows_leases(*told);
    lock(&inner.rejoined).noted(mounted.id, *told);
    Ok(Told::Noted)
}

impl Agent {
    /// A lease that may be used: every unit that answers knows of it.
    pub(crate) async fn acquire(&self, volume: VolumeId) -> Result<Lease, AttachError> {
        if let Some(older) = self.older_database().await? {
            return Err(older.into());
        }
        let salt = LeaseSalt::generate(&*self.inner.world.random);
        let journals = self.inner.journals.as_ref().map(Journals::id);
        let acquire = Acquire {
            volume,
            salt,
            journals,
        };
        let lease = self.inner.controller.catalog(acquire).await;
        let lease = lease.map_err(AttachError::Lease)?;
        // The database is not trusted with secrets: another volume's key,
        // perhaps of one that is not sealed, or the salt of an earlier lease,
        // would do harm.
        let is_own = lease.keys.first().is_some_and(|key| {
            key.lineage.as_u128() == volume.as_u128()
                && key.salts.last() == Some(&(lease.epoch, salt))
        });
        if !is_own {
            return Err(AttachError::ForeignKey);
        }
        // Before anything is done under it, so that older leases are refused.
        let lineage = lease.keys[0].lineage;
        let wants = [
            Want::Lease {
                volume,
                epoch: lease.epoch,
            },
            Want::Read { lineage },
        ];
        let shown = self.inner.controller.obtain(&wants).await;
        shown.map_err(AttachError::Lease)?;
        // Perhaps some more have been given meanwhile; to know of them early
        // does no harm.
        let count = self.inner.controller.catalog(Leases {}).await?;
        // Unit daemons take no larger one than a controller has signed.
        let signed = self.inner.controller.obtain(&[Want::Count]).await;
        signed.map_err(AttachError::Lease)?;
        let mut told = self.tell_units(count).await;
        if matches!(told, Err(Untold::Older)) {
            // Once that is heard, they are told.
            self.tell_suspicions().await;
            told = self.tell_units(count).await;
        }
        told.map_err(|why| AttachError::Untold(why.to_string()))?;
        Ok(lease)
    }

    /// Tells every unit that answers; returns when all have been told that
    /// answer soon, and at least one was.
    async fn tell_units(&self, count: u64) -> Result<(), Untold> {
        let asked = self.inner.world.clock.monotonic();
        let noted = self.inner.controller.catalog(NotedLeases {}).await;
        let noted = noted.map_err(|error| Untold::Failed(with_causes(&error)))?;
        let noted: HashMap<UnitId, u64> = noted.into_iter().collect();
        let units = lock(&self.inner.units).clone();
        let (answer, mut answers) = mpsc::unbounded_channel();
        for mounted in units {
            if mounted.watched.is_unresponsive() {
                continue;
            }
            let inner = Arc::clone(&self.inner);
            let answer = answer.clone();
            let noted = noted.get(&mounted.id).copied().unwrap_or(0);
            tokio::task::spawn_blocking(move || {
                // Nobody may be listening any more: it was told all the same.
                let _ = answer.send(tell(&inner, &mounted, count, (noted, asked)));
            });
        }
        drop(answer);
        let clock = &self.inner.world.clock;
        let enough = clock.monotonic() + ANSWER_WITHIN;
        let (mut told, mut is_older) = (false, false);
        let mut failure = "no unit answers".to_owned();
        let mut tick = host::ticks(LOOK_AGAIN);
        loop {
            tokio::select! {
                answer = answers.recv() => match answer {
                    Some(Ok(Told::Noted)) => told = true,
                    Some(Ok(Told::Older)) => is_older = true,
                    Some(Err(why)) => {
                        tracing::warn!(why, "a unit was not told of a lease");
                        failure = why;
                    }
                    None => break,
                },
                _ = tick.tick() => if clock.monotonic() >= enough { break },
            }
        }
        match (told, is_older) {
            (true, _) => Ok(()),
            (false, true) => Err(Untold::Older),
            (false, false) => Err(Untold::Failed(failure)),
        }
    }

    /// Whether some unit knows of more leases than the database.
    pub(crate) async fn older_database(&self) -> Result<Option<OlderDatabase>, CatalogError> {
        // The units first: a lease that is given meanwhile is in the database
        // before any of them hears of it.
        let most = lock(&self.inner.units)
            .iter()
            .map(|mounted| (mounted.watched.last_found().leases, mounted.url.clone()))
            .max();
        let database = self.inner.controller.catalog(Leases {}).await?;
        Ok(most
            .filter(|(unit, _)| *unit > database)
            .map(|(unit, url)| OlderDatabase {
                url,
                unit,
                database,
            }))
    }

    /// After the units were looked at for the first time: has a database moved
    /// ahead that is older than they, if the operator has said that it was
    /// restored.
    pub(crate) async fn check_database_age(&self) -> Result<(), StartError> {
        let takes_over = self.inner.claim.takes_over;
        match self.older_database().await? {
            None if takes_over => tracing::info!(
                "the database is as new as the units; --restored-database had nothing to do"
            ),
            None => {}
            Some(older) if takes_over => {
                let ahead = MoveAhead { leases: older.unit };
                self.inner.controller.call(&ahead).await?;
            }
            Some(older) => tracing::error!("{older}"),
        }
        Ok(())
    }
}
