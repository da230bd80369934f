//! Counts of all objects, for metrics.

use sqlx::Row as _;
use sqlx::any::AnyRow;
use world::Millis;

use crate::database::{Database, DatabaseError, OpenTransaction, rows};

/// The counts at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Volumes by state: `available`, `in-use`, `deleting`, `error`.
    pub volumes: Vec<(String, u64)>,
    /// Snapshots by state: `pending`, `completed`, `error`.
    pub snapshots: Vec<(String, u64)>,
    /// Attachments by state, but for `detached`.
    pub attachments: Vec<(String, u64)>,
    /// Hosts: `heard`, `unresponsive`, `never-heard`, `disabled`.
    pub hosts: Vec<(String, u64)>,
    /// Removed versions whose slots wait to be freed.
    pub pending_frees: u64,
    /// Segments with slots that have fewer copies than they should.
    pub degraded_segments: u64,
}

/// The same rules as in `VolumeView::state`.
const VOLUMES: &str = "SELECT CASE WHEN v.deleting = 1 THEN 'deleting' \
     WHEN EXISTS (SELECT 1 FROM attachments a WHERE a.volume = v.id AND a.state <> 'detached' \
     AND a.problem IS NOT NULL) THEN 'error' \
     WHEN EXISTS (SELECT 1 FROM attachments a WHERE a.volume = v.id AND a.state <> 'detached') \
     THEN 'in-use' ELSE 'available' END AS state, COUNT(*) AS count FROM volumes v GROUP BY 1";

const SNAPSHOTS: &str = "SELECT state, COUNT(*) AS count FROM snapshots GROUP BY state";

const ATTACHMENTS: &str = "SELECT state, COUNT(*) AS count FROM attachments \
     WHERE state <> 'detached' GROUP BY state";

/// A controller's own machine is a host that need not have an agent.
const HOSTS: &str = "SELECT CASE WHEN p.disabled = 1 THEN 'disabled' \
     WHEN r.heard_ms IS NULL THEN 'never-heard' WHEN r.heard_ms > $1 THEN 'heard' \
     ELSE 'unresponsive' END AS state, COUNT(*) AS count FROM hosts h JOIN parties p ON p.id = h.party \
     LEFT JOIN host_reports r ON r.party = h.party GROUP BY 1";

impl Database {
    /// Runs the cheapest query that only a working database can answer.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        sqlx::query("SELECT id FROM cluster")
            .fetch_optional(&self.reader)
            .await?;
        Ok(())
    }

    /// Counts all objects at one moment. Hosts that have not reported since `heard_min` are
    /// unresponsive.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn counts(&self, heard_min: Millis) -> Result<Counts, DatabaseError> {
        let mut moment = self.moment().await?;
        let hosts = sqlx::query(HOSTS)
            .bind(heard_min.0)
            .fetch_all(&mut *moment)
            .await?;
        let counts = Counts {
            volumes: by_state(&mut moment, VOLUMES).await?,
            snapshots: by_state(&mut moment, SNAPSHOTS).await?,
            attachments: by_state(&mut moment, ATTACHMENTS).await?,
            hosts: hosts.iter().map(state).collect::<Result<_, _>>()?,
            pending_frees: count(&mut moment, "SELECT COUNT(*) FROM pending_frees").await?,
            degraded_segments: count(&mut moment, "SELECT COUNT(*) FROM degraded_segments").await?,
        };
        moment.commit().await?;
        Ok(counts)
    }
}

async fn by_state(
    moment: &mut OpenTransaction,
    statement: &'static str,
) -> Result<Vec<(String, u64)>, DatabaseError> {
    let found = sqlx::query(statement).fetch_all(&mut **moment).await?;
    found.iter().map(state).collect()
}

fn state(row: &AnyRow) -> Result<(String, u64), DatabaseError> {
    Ok((row.try_get("state")?, rows::number(row, "count")?))
}

async fn count(
    moment: &mut OpenTransaction,
    statement: &'static str,
) -> Result<u64, DatabaseError> {
    let count: i64 = sqlx::query_scalar(statement)
        .fetch_one(&mut **moment)
        .await?;
    Ok(count.cast_unsigned())
}
