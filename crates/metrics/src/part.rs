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
use tokio::task::JoinSet;
use world::{Millis, host};

use crate::measures::ended;
use crate::{CONTENT_TYPE, Measures};

/// Longer than that nobody who watches waits: what parts have not said by then is
/// left out. Prometheus gives up after 10 s, if it is not told otherwise.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);

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

/// What the parts have said, by their names.
type Said<T> = BTreeMap<&'static str, T>;

/// The parts of this process. Cheap to clone.
#[derive(Clone)]
pub struct Monitor {
    inner: Arc<Inner>,
}

/// A part that is watched.
struct Watched {
    part: Arc<dyn Part>,
    /// It counts for one at a time. Another's hanging is nothing to it.
    door: tokio::sync::Mutex<()>,
}

impl Watched {
    fn name(&self) -> &'static str {
        self.part.name()
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        self.part.reasons()
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(async {
            let _alone = self.door.lock().await;
            self.part.measure().await
        })
    }
}

struct Inner {
    version: &'static str,
    began: Millis,
    /// Which parts there are to be.
    expected: Vec<&'static str>,
    parts: Mutex<Vec<Arc<Watched>>>,
    certificates: Mutex<BTreeMap<&'static str, Millis>>,
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
            }),
        }
    }

    /// A part has begun.
    pub fn add(&self, part: Arc<dyn Part>) {
        let door = tokio::sync::Mutex::default();
        lock(&self.inner.parts).push(Arc::new(Watched { part, door }));
    }

    /// A certificate of this process, in use as `server` or `client`, ends then.
    pub fn set_certificate(&self, used_as: &'static str, ends: Millis) {
        lock(&self.inner.certificates).insert(used_as, ends);
    }

    fn parts(&self) -> Vec<Arc<Watched>> {
        lock(&self.inner.parts).clone()
    }

    /// Why this process cannot do its work, `part: reason` each.
    pub async fn reasons(&self) -> Vec<String> {
        let parts = self.parts();
        let mut said = Said::new();
        // What was said in time counts.
        let _ = host::within(ANSWER_WITHIN, ask(&parts, Watched::reasons, &mut said)).await;
        let mut reasons = Vec::new();
        for name in &self.inner.expected {
            if !parts.iter().any(|part| part.name() == *name) {
                reasons.push(format!("{name}: it is starting"));
                continue;
            }
            let found = said.remove(name);
            let found = found.unwrap_or_else(|| vec!["it does not say how it is".to_owned()]);
            reasons.extend(found.into_iter().map(|reason| format!("{name}: {reason}")));
        }
        reasons
    }

    /// All numbers, as text.
    pub async fn metrics(&self) -> String {
        let parts = self.parts();
        let (mut reasons, mut measures) = (Said::new(), Said::new());
        let told = host::within(ANSWER_WITHIN, async {
            tokio::join!(
                ask(&parts, Watched::reasons, &mut reasons),
                ask(&parts, Watched::measure, &mut measures)
            )
        });
        // What was said in time counts.
        let _ = told.await;
        let mut text = self.own().text();
        let (mut ready, mut unresponsive) = (Vec::new(), Vec::new());
        for name in &self.inner.expected {
            let labels = vec![("part", (*name).to_owned())];
            let has_begun = parts.iter().any(|part| part.name() == *name);
            let is_ready = reasons.get(name).is_some_and(Vec::is_empty);
            let measures = measures.get(name);
            if let Some(measures) = measures {
                text.push_str(&measures.text());
            }
            let is_unresponsive = has_begun && measures.is_none();
            ready.push((labels.clone(), f64::from(is_ready)));
            unresponsive.push((labels, f64::from(is_unresponsive)));
        }
        let mut parts = Measures::default();
        parts.gauge(
            "scree_ready",
            "Whether a part can do its work: see /readyz",
            ready,
        );
        let help = "Whether a part gave no numbers in time, so that they are missing here";
        parts.gauge("scree_part_unresponsive", help, unresponsive);
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

/// Asks all parts at once, and notes what each says when it does: one that hangs
/// takes no time from the others.
async fn ask<T: Send + 'static>(
    parts: &[Arc<Watched>],
    what: for<'a> fn(&'a Watched) -> Answer<'a, T>,
    said: &mut Said<T>,
) {
    let mut asked = JoinSet::new();
    for part in parts {
        let part = Arc::clone(part);
        asked.spawn(async move { (part.name(), what(&part).await) });
    }
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((name, answer)) => {
                said.insert(name, answer);
            }
            Err(error) => tracing::error!(%error, "a part did not get to say how it is"),
        }
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

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "these tests look at the clock that the runtime's timers go by, which stands still \
              but where all wait"
)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Says nothing of what hangs.
    struct Slow {
        name: &'static str,
        reasons_hang: bool,
        measure_hangs: bool,
    }

    async fn after(hangs: bool) {
        if hangs {
            std::future::pending().await
        }
    }

    impl Part for Slow {
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
                measures.one(&format!("scree_of_{}", self.name), "A number", 1.0);
                measures
            })
        }
    }

    fn monitor(parts: [(&'static str, bool, bool); 2]) -> Monitor {
        let monitor = Monitor::new("1", Millis(0), &parts.map(|(name, ..)| name));
        for (name, reasons_hang, measure_hangs) in parts {
            monitor.add(Arc::new(Slow {
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

    /// Each part had 5 s to say whether it is ready and 5 s for its numbers, so a
    /// scrape of two that hung took 20 s.
    #[tokio::test(start_paused = true)]
    async fn however_many_parts_hang_and_ask_an_answer_takes_one_bound() {
        let monitor = monitor([("a", true, true), ("b", true, true)]);
        let began = Instant::now();
        let reasons = monitor.reasons().await;
        assert_eq!(began.elapsed().as_secs(), ANSWER_WITHIN.as_secs());
        let unresponsive = "it does not say how it is";
        assert_eq!(
            reasons,
            [format!("a: {unresponsive}"), format!("b: {unresponsive}")]
        );
        let began = Instant::now();
        let (one, other) = tokio::join!(monitor.metrics(), monitor.metrics());
        assert_eq!(began.elapsed().as_secs(), ANSWER_WITHIN.as_secs());
        for text in [one, other] {
            for part in ["a", "b"] {
                let unresponsive = format!("scree_part_unresponsive{{part=\"{part}\"}} 1.0");
                assert!(has(&text, &unresponsive), "{text}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_hangs_takes_nothing_from_the_others() {
        let monitor = monitor([("a", true, true), ("b", false, false)]);
        let reasons = monitor.reasons().await;
        assert_eq!(reasons, ["a: it does not say how it is"]);
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

    /// Whoever came second waited for the first one's hanging part before it asked
    /// any.
    #[tokio::test(start_paused = true)]
    async fn of_two_that_ask_at_once_neither_misses_what_does_not_hang() {
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

    /// Nobody knows whether it is ready, but its numbers are there.
    #[tokio::test(start_paused = true)]
    async fn numbers_do_not_wait_for_whether_a_part_is_ready() {
        let monitor = monitor([("a", true, false), ("b", false, false)]);
        let text = monitor.metrics().await;
        for row in ["scree_of_a 1.0", "scree_ready{part=\"a\"} 0.0"] {
            assert!(has(&text, row), "{row} in {text}");
        }
    }
}
