//! Readiness and metrics of a controller.
//!
//! It is *ready* when it serves users and the database answers within [`DATABASE_WITHIN`]. Counts
//! are read from the database on request: all controllers of a database report the same, and each
//! reports its own requests.
//!
//! Readiness is public: an answer is reused for [`ASK_AGAIN`], and only one query is under way at a
//! time. The answer says nothing of the database's error; the log does.

mod requests;
pub(crate) mod state;

use std::time::Duration;

use api::words::{AttachmentState, SnapshotState, VolumeState};
use metrics::{Answer, Labels, Measures, Part};
use world::{Millis, host};

use crate::control::{Control, LEASE};
use crate::database::Counts;
use crate::declared_metrics::{
    ATTACHMENTS, CONTROLLER_OPEN, DATABASE_LATENCY, DATABASE_UP, DEGRADED_SEGMENTS, HOSTS,
    PENDING_FREES, SNAPSHOTS, VOLUMES,
};
use crate::health::state::Probed;

/// A healthy database answers within this time.
const DATABASE_WITHIN: Duration = Duration::from_secs(2);

/// How long the result of a query is reused.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Control {
    /// Why it is not ready, one sentence each.
    pub(crate) async fn unready_for(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.is_open() {
            reasons.push("it is starting or ending".to_owned());
        }
        if self.probe().await.latency.is_none() {
            reasons.push("the database does not answer; see the log".to_owned());
        }
        reasons
    }

    /// Queries the database, unless that was done just now.
    async fn probe(&self) -> Probed {
        let clock = &self.inner.world.clock;
        let mut last = self.inner.health.probed.lock().await;
        let at = clock.monotonic();
        if let Some(probed) = *last
            && at.saturating_sub(probed.at) < ASK_AGAIN
        {
            return probed;
        }
        let was_well = last.is_none_or(|probed| probed.latency.is_some());
        let failure = match host::timeout(DATABASE_WITHIN, self.inner.database.ping()).await {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("no answer in {} s", DATABASE_WITHIN.as_secs())),
        };
        match &failure {
            Some(why) if was_well => tracing::error!(error = why, "the database does not answer"),
            None if !was_well => tracing::info!("the database answers again"),
            _ => {}
        }
        let now = clock.monotonic();
        let took = now.saturating_sub(at);
        let probed = Probed {
            // Callers that waited meanwhile use the same result.
            at: now,
            latency: failure.is_none().then_some(took),
        };
        *last = Some(probed);
        probed
    }

    /// The metrics.
    pub(crate) async fn measures(&self) -> Measures {
        let mut measures = Measures::default();
        measures.include(&self.inner.health.registry);
        measures.one(&CONTROLLER_OPEN, f64::from(self.is_open()));
        let probed = self.probe().await;
        measures.one(&DATABASE_UP, f64::from(probed.latency.is_some()));
        let Some(latency) = probed.latency else {
            return measures;
        };
        measures.one(&DATABASE_LATENCY, latency.as_secs_f64());
        match host::timeout(DATABASE_WITHIN, self.counts()).await {
            Some(Ok(counts)) => record_counts(&mut measures, &counts),
            Some(Err(error)) => tracing::warn!(%error, "controller skips metrics"),
            None => tracing::warn!("controller skips metrics: the database takes too long"),
        }
        measures
    }

    async fn counts(&self) -> Result<Counts, crate::ControlError> {
        let term = self.inner.lease.unwrap_or(LEASE);
        let term_ms = i64::try_from(term.as_millis()).unwrap_or(i64::MAX);
        let heard_min = Millis(self.now().await?.0.saturating_sub(term_ms));
        Ok(self.inner.database.counts(heard_min).await?)
    }
}

impl Part for Control {
    fn name(&self) -> &'static str {
        "controller"
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.unready_for())
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(self.measures())
    }
}

fn record_counts(measures: &mut Measures, counts: &Counts) {
    measures.gauge(
        &VOLUMES,
        all(VolumeState::ALL, VolumeState::as_str, &counts.volumes),
    );
    measures.gauge(
        &SNAPSHOTS,
        all(SnapshotState::ALL, SnapshotState::as_str, &counts.snapshots),
    );
    let going_on = AttachmentState::ALL.iter().copied();
    let going_on: Vec<_> = going_on
        .filter(|state| *state != AttachmentState::Detached)
        .collect();
    measures.gauge(
        &ATTACHMENTS,
        all(&going_on, AttachmentState::as_str, &counts.attachments),
    );
    measures.gauge(
        &HOSTS,
        all(
            &["heard", "unresponsive", "never-heard", "disabled"],
            |state| state,
            &counts.hosts,
        ),
    );
    let (frees, degraded) = (counts.pending_frees, counts.degraded_segments);
    measures.one(&PENDING_FREES, float(frees));
    measures.one(&DEGRADED_SEGMENTS, float(degraded));
}

/// A row for each state, also for those that nothing is in.
fn all<S: Copy>(
    states: &[S],
    word: impl Fn(S) -> &'static str,
    counts: &[(String, u64)],
) -> Vec<(Labels, f64)> {
    let row = |state: &S| {
        let state = word(*state);
        let found = counts.iter().find(|(found, _)| found == state);
        let labels = vec![("state", state.to_owned())];
        (labels, float(found.map_or(0, |(_, count)| *count)))
    };
    states.iter().map(row).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a count, for a graph")]
fn float(count: u64) -> f64 {
    count as f64
}
