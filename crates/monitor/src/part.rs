//! The parts of a process, and what is asked of all of them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use world::{Millis, host};

use crate::measures::ended;
use crate::{CONTENT_TYPE, Measures};

/// Longer than that no part is waited for.
pub const PART_WITHIN: Duration = Duration::from_secs(5);

/// A runtime that turns begins a task in less.
const TURNS_WITHIN: Duration = Duration::from_secs(1);

/// What a part says, when it does.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A controller, or an agent, as those see it who watch.
pub trait Part: Send + Sync {
    /// What it is: `controller`, `agent`.
    fn name(&self) -> &'static str;

    /// Why it cannot do its work at this moment, one sentence each; nothing if it
    /// can. Strangers may read it: no secrets, no names.
    fn reasons(&self) -> Answer<'_, Vec<String>>;

    /// How it is doing. Names begin with `scree_`, and are no other part's.
    fn measure(&self) -> Answer<'_, Measures>;
}

/// The parts of this process. Cheap to clone.
#[derive(Clone)]
pub struct Monitor {
    inner: Arc<Inner>,
}

struct Inner {
    version: &'static str,
    began: Millis,
    /// Which parts there are to be.
    expected: Vec<&'static str>,
    parts: Mutex<Vec<Arc<dyn Part>>>,
    certificates: Mutex<BTreeMap<&'static str, Millis>>,
    /// One at a time.
    door: tokio::sync::Mutex<()>,
}

impl Monitor {
    /// Watches a process of this version that began at `began` and is to have
    /// these parts; until each is added, it is starting.
    #[must_use]
    pub fn new(version: &'static str, began: Millis, expected: &[&'static str]) -> Self {
        Self {
            inner: Arc::new(Inner {
                version,
                began,
                expected: expected.to_vec(),
                parts: Mutex::default(),
                certificates: Mutex::default(),
                door: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// A part has begun.
    pub fn add(&self, part: Arc<dyn Part>) {
        lock(&self.inner.parts).push(part);
    }

    /// A certificate of this process, in use as `server` or `client`, ends then.
    pub fn set_certificate(&self, used_as: &'static str, ends: Millis) {
        lock(&self.inner.certificates).insert(used_as, ends);
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        lock(&self.inner.parts).clone()
    }

    /// Why this process cannot do its work, `part: reason` each.
    pub async fn reasons(&self) -> Vec<String> {
        let parts = self.parts();
        let mut reasons = Vec::new();
        for name in &self.inner.expected {
            let Some(part) = parts.iter().find(|part| part.name() == *name) else {
                reasons.push(format!("{name}: it is starting"));
                continue;
            };
            let found = host::within(PART_WITHIN, part.reasons()).await;
            let found = found.unwrap_or_else(|| vec!["it does not say how it is".to_owned()]);
            reasons.extend(found.into_iter().map(|reason| format!("{name}: {reason}")));
        }
        reasons
    }

    /// All numbers, as text.
    pub async fn metrics(&self) -> String {
        let _alone = self.inner.door.lock().await;
        let mut text = self.own().text();
        let (mut ready, mut silent) = (Vec::new(), Vec::new());
        let parts = self.parts();
        for name in &self.inner.expected {
            let labels = vec![("part", (*name).to_owned())];
            let part = parts.iter().find(|part| part.name() == *name);
            let (mut is_ready, mut is_silent) = (false, false);
            if let Some(part) = part {
                let reasons = host::within(PART_WITHIN, part.reasons()).await;
                is_ready = reasons.is_some_and(|reasons| reasons.is_empty());
                match host::within(PART_WITHIN, part.measure()).await {
                    Some(measures) => text.push_str(&measures.text()),
                    None => is_silent = true,
                }
            }
            ready.push((labels.clone(), f64::from(is_ready)));
            silent.push((labels, f64::from(is_silent)));
        }
        let mut parts = Measures::default();
        parts.gauge(
            "scree_ready",
            "Whether a part can do its work: see /readyz",
            ready,
        );
        let help = "Whether a part gave no numbers in time, so that they are missing here";
        parts.gauge("scree_part_silent", help, silent);
        text.push_str(&parts.text());
        ended(text)
    }

    /// What is true of the whole process.
    fn own(&self) -> Measures {
        let mut own = Measures::default();
        let version = vec![("version", self.inner.version.to_owned())];
        own.gauge("scree_build_info", "Which Scree this is", [(version, 1.0)]);
        own.one(
            "process_start_time_seconds",
            "When the process began, since 1970",
            seconds(self.inner.began),
        );
        let certificates = lock(&self.inner.certificates).clone();
        own.gauge(
            "scree_certificate_expiry_timestamp_seconds",
            "When the certificate that this process shows ends, since 1970",
            certificates
                .into_iter()
                .map(|(used_as, ends)| (vec![("use", used_as.to_owned())], seconds(ends))),
        );
        own
    }

    /// All of it over HTTP, for whoever asks.
    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self.clone())
    }
}

/// Locks a mutex whose content stays sound if a thread panics in between.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn ready(State(monitor): State<Monitor>) -> Response {
    readyz(&monitor.reasons().await)
}

async fn metrics(State(monitor): State<Monitor>) -> Response {
    let kind = [(header::CONTENT_TYPE, CONTENT_TYPE)];
    (kind, monitor.metrics().await).into_response()
}

/// Whether the runtime turns: that this is asked at all, and that a task that is
/// begun gets to its end.
pub async fn healthz() -> Response {
    match host::within(TURNS_WITHIN, tokio::spawn(async {})).await {
        Some(Ok(())) => "alive\n".into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "no task gets to its end\n").into_response(),
    }
}

/// The answer to whoever asks whether it is ready.
#[must_use]
pub fn readyz(reasons: &[String]) -> Response {
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    let text = reasons.join("\n") + "\n";
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds since 1970 have 41 bits, and a float has 53"
)]
fn seconds(at: Millis) -> f64 {
    at.0 as f64 / 1000.0
}
