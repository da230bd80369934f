//! [`Monitor`]: the parts of a process, and their health and metrics together.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use world::{Millis, host};

use crate::declared::{BUILD_INFO, CERTIFICATE_EXPIRY, PART_UNRESPONSIVE, READY, START_TIME};
use crate::measures::with_end_marker;
use crate::{CONTENT_TYPE, Measures};

/// The time limit for the answers of all parts. Later answers are left out. Prometheus gives up
/// after 10 s by default.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time within which a working runtime runs a task.
const TASK_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer of a part, when it arrives.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A part of the process, such as a controller or an agent, for monitoring.
pub trait Part: Send + Sync {
    /// The part's name: `controller`, `agent`.
    fn name(&self) -> &'static str;

    /// Why the part cannot do its work now, one sentence for each reason; empty if it can.
    /// Anyone may read the text, so it contains no secrets and no names of tenants.
    fn reasons(&self) -> Answer<'_, Vec<String>>;

    /// The part's metrics. Their names begin with `scree_` and differ from those of other parts.
    fn measure(&self) -> Answer<'_, Measures>;
}

/// The answers of the parts, by their names.
type Answers<T> = BTreeMap<&'static str, T>;

/// The parts of this process. Cheap to clone.
#[derive(Clone)]
pub struct Monitor {
    inner: Arc<Inner>,
}

/// A part that is monitored.
struct MonitoredPart {
    part: Arc<dyn Part>,
    /// Lets the part compute its metrics once at a time, independent of other parts.
    measuring: tokio::sync::Mutex<()>,
}

impl MonitoredPart {
    fn name(&self) -> &'static str {
        self.part.name()
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        self.part.reasons()
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(async {
            let _alone = self.measuring.lock().await;
            self.part.measure().await
        })
    }
}

struct Inner {
    version: &'static str,
    started: Millis,
    /// The names of all parts that the process will have.
    expected: Vec<&'static str>,
    parts: Mutex<Vec<Arc<MonitoredPart>>>,
    certificates: Mutex<BTreeMap<&'static str, Millis>>,
}

impl Monitor {
    /// A monitor of a process of this version that started at `started`. A part of `expected`
    /// counts as starting until it is added.
    #[must_use]
    pub fn new(version: &'static str, started: Millis, expected: &[&'static str]) -> Self {
        Self {
            inner: Arc::new(Inner {
                version,
                started,
                expected: expected.to_vec(),
                parts: Mutex::default(),
                certificates: Mutex::default(),
            }),
        }
    }

    /// Adds a part that has started.
    pub fn add(&self, part: Arc<dyn Part>) {
        let measuring = tokio::sync::Mutex::default();
        self.inner
            .parts
            .lock()
            .push(Arc::new(MonitoredPart { part, measuring }));
    }

    /// Sets the time at which the certificate that this process uses as `server` or `client`
    /// ends.
    pub fn set_certificate(&self, used_as: &'static str, ends: Millis) {
        self.inner.certificates.lock().insert(used_as, ends);
    }

    fn parts(&self) -> Vec<Arc<MonitoredPart>> {
        self.inner.parts.lock().clone()
    }

    /// Why this process cannot do its work, each as `part: reason`.
    pub async fn reasons(&self) -> Vec<String> {
        let parts = self.parts();
        let mut answers = Answers::new();
        // After the timeout, the answers so far count.
        let collecting = collect(&parts, MonitoredPart::reasons, &mut answers);
        let _ = host::timeout(ANSWER_TIMEOUT, collecting).await;
        let mut reasons = Vec::new();
        for name in &self.inner.expected {
            if !parts.iter().any(|part| part.name() == *name) {
                reasons.push(format!("{name}: it is starting"));
                continue;
            }
            let found = answers.remove(name);
            let found = found.unwrap_or_else(|| vec!["it does not answer".to_owned()]);
            reasons.extend(found.into_iter().map(|reason| format!("{name}: {reason}")));
        }
        reasons
    }

    /// All metrics, as text.
    pub async fn metrics(&self) -> String {
        let parts = self.parts();
        let (mut reasons, mut measures) = (Answers::new(), Answers::new());
        let collecting = host::timeout(ANSWER_TIMEOUT, async {
            tokio::join!(
                collect(&parts, MonitoredPart::reasons, &mut reasons),
                collect(&parts, MonitoredPart::measure, &mut measures)
            )
        });
        // After the timeout, the answers so far count.
        let _ = collecting.await;
        let mut text = self.own().text();
        let (mut ready, mut unresponsive) = (Vec::new(), Vec::new());
        for name in &self.inner.expected {
            let labels = vec![("part", (*name).to_owned())];
            let has_started = parts.iter().any(|part| part.name() == *name);
            let is_ready = reasons.get(name).is_some_and(Vec::is_empty);
            let measures = measures.get(name);
            if let Some(measures) = measures {
                text.push_str(&measures.text());
            }
            let is_unresponsive = has_started && measures.is_none();
            ready.push((labels.clone(), f64::from(is_ready)));
            unresponsive.push((labels, f64::from(is_unresponsive)));
        }
        let mut parts = Measures::default();
        parts.gauge(&READY, ready);
        parts.gauge(&PART_UNRESPONSIVE, unresponsive);
        text.push_str(&parts.text());
        with_end_marker(text)
    }

    /// The metrics of the process itself.
    fn own(&self) -> Measures {
        let mut own = Measures::default();
        let version = vec![("version", self.inner.version.to_owned())];
        own.gauge(&BUILD_INFO, [(version, 1.0)]);
        own.one(&START_TIME, seconds(self.inner.started));
        let certificates = self.inner.certificates.lock().clone();
        own.gauge(
            &CERTIFICATE_EXPIRY,
            certificates
                .into_iter()
                .map(|(used_as, ends)| (vec![("use", used_as.to_owned())], seconds(ends))),
        );
        own
    }

    /// The HTTP routes.
    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self.clone())
    }
}

/// Asks all parts at once and collects each answer as it arrives, so that a part that hangs takes
/// no time from the others.
async fn collect<T: Send + 'static>(
    parts: &[Arc<MonitoredPart>],
    question: for<'a> fn(&'a MonitoredPart) -> Answer<'a, T>,
    answers: &mut Answers<T>,
) {
    let mut collecting = JoinSet::new();
    for part in parts {
        let part = Arc::clone(part);
        collecting.spawn(async move { (part.name(), question(&part).await) });
    }
    while let Some(answer) = collecting.join_next().await {
        match answer {
            Ok((name, answer)) => {
                answers.insert(name, answer);
            }
            Err(error) => tracing::error!(%error, "health check of a part failed"),
        }
    }
}

async fn ready(State(monitor): State<Monitor>) -> Response {
    readyz(&monitor.reasons().await)
}

async fn metrics(State(monitor): State<Monitor>) -> Response {
    let kind = [(header::CONTENT_TYPE, CONTENT_TYPE)];
    (kind, monitor.metrics().await).into_response()
}

/// The response to `/healthz`: whether the runtime runs this handler and a new task.
pub async fn healthz() -> Response {
    match host::timeout(TASK_TIMEOUT, tokio::spawn(async {})).await {
        Some(Ok(())) => "alive\n".into_response(),
        _ => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the runtime runs no tasks\n",
        )
            .into_response(),
    }
}

/// The response to `/readyz`.
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

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "these tests read the runtime's paused clock, which advances only while all tasks wait"
)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    crate::declare! {
        OF_A: Gauge "scree_of_a" [] "A number";
        OF_B: Gauge "scree_of_b" [] "A number";
    }

    /// A part whose answers may hang.
    struct HangingPart {
        name: &'static str,
        reasons_hang: bool,
        measure_hangs: bool,
    }

    async fn after(hangs: bool) {
        if hangs {
            std::future::pending().await
        }
    }

    impl Part for HangingPart {
        fn name(&self) -> &'static str {
            self.name
        }

        fn reasons(&self) -> Answer<'_, Vec<String>> {
            Box::pin(async {
                after(self.reasons_hang).await;
                Vec::new()
            })
        }

        fn measure(&self) -> Answer<'_, Measures> {
            Box::pin(async {
                after(self.measure_hangs).await;
                let mut measures = Measures::default();
                let metric = if self.name == "a" { &OF_A } else { &OF_B };
                measures.one(metric, 1.0);
                measures
            })
        }
    }

    fn monitor(parts: [(&'static str, bool, bool); 2]) -> Monitor {
        let monitor = Monitor::new("1", Millis(0), &parts.map(|(name, ..)| name));
        for (name, reasons_hang, measure_hangs) in parts {
            monitor.add(Arc::new(HangingPart {
                name,
                reasons_hang,
                measure_hangs,
            }));
        }
        monitor
    }

    fn has(text: &str, row: &str) -> bool {
        text.lines().any(|line| line == row)
    }

    /// Each part once had 5 s to say whether it is ready and 5 s for its metrics, so that a scrape
    /// of two hanging parts took 20 s.
    #[tokio::test(start_paused = true)]
    async fn a_response_takes_one_timeout_however_many_parts_hang() {
        let monitor = monitor([("a", true, true), ("b", true, true)]);
        let began = Instant::now();
        let reasons = monitor.reasons().await;
        assert_eq!(began.elapsed().as_secs(), ANSWER_TIMEOUT.as_secs());
        let unresponsive = "it does not answer";
        assert_eq!(
            reasons,
            [format!("a: {unresponsive}"), format!("b: {unresponsive}")]
        );
        let began = Instant::now();
        let (one, other) = tokio::join!(monitor.metrics(), monitor.metrics());
        assert_eq!(began.elapsed().as_secs(), ANSWER_TIMEOUT.as_secs());
        for text in [one, other] {
            for part in ["a", "b"] {
                let unresponsive = format!("scree_part_unresponsive{{part=\"{part}\"}} 1.0");
                assert!(has(&text, &unresponsive), "{text}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_part_does_not_affect_the_others() {
        let monitor = monitor([("a", true, true), ("b", false, false)]);
        let reasons = monitor.reasons().await;
        assert_eq!(reasons, ["a: it does not answer"]);
        let text = monitor.metrics().await;
        for row in [
            "scree_of_b 1.0",
            "scree_ready{part=\"a\"} 0.0",
            "scree_ready{part=\"b\"} 1.0",
            "scree_part_unresponsive{part=\"a\"} 1.0",
            "scree_part_unresponsive{part=\"b\"} 0.0",
        ] {
            assert!(has(&text, row), "{row} in {text}");
        }
    }

    /// A second scrape once waited for the hanging part of the first before it asked any part.
    #[tokio::test(start_paused = true)]
    async fn concurrent_scrapes_both_get_the_metrics_of_responsive_parts() {
        let monitor = monitor([("a", false, true), ("b", false, false)]);
        let (one, other) = tokio::join!(monitor.metrics(), monitor.metrics());
        for text in [one, other] {
            for row in [
                "scree_of_b 1.0",
                "scree_ready{part=\"a\"} 1.0",
                "scree_part_unresponsive{part=\"a\"} 1.0",
                "scree_part_unresponsive{part=\"b\"} 0.0",
            ] {
                assert!(has(&text, row), "{row} in {text}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_do_not_wait_for_the_readiness_of_a_part() {
        let monitor = monitor([("a", true, false), ("b", false, false)]);
        let text = monitor.metrics().await;
        for row in ["scree_of_a 1.0", "scree_ready{part=\"a\"} 0.0"] {
            assert!(has(&text, row), "{row} in {text}");
        }
    }
}
