//! Counters of API requests, by route, method and class of the status.

use std::time::Duration;

use axum::http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::declared_metrics::{HTTP_REQUEST_DURATION, HTTP_REQUESTS};

/// The upper bounds of the histogram, in seconds. The last ones are for requests that wait.
const SECONDS: [f64; 9] = [0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    method: &'static str,
    route: String,
    status: &'static str,
}

/// The counts of API requests.
#[derive(Clone)]
pub(crate) struct Requests {
    ended: Family<Ended, Counter>,
    took: Family<Route, Histogram, fn() -> Histogram>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            ended: Family::default(),
            took: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

impl Requests {
    pub fn register(&self, registry: &mut Registry) {
        HTTP_REQUESTS.register(registry, self.ended.clone());
        HTTP_REQUEST_DURATION.register(registry, self.took.clone());
    }

    /// The number of requests to `route` that were answered with a status of the class `status`.
    #[cfg(test)]
    pub fn answered(&self, method: &'static str, route: &str, status: &'static str) -> u64 {
        let ended = Ended {
            method,
            route: route.to_owned(),
            status,
        };
        self.ended.get_or_create(&ended).get()
    }

    /// Whether the durations of requests to `route` are counted.
    #[cfg(test)]
    pub fn is_timed(&self, method: &'static str, route: &str) -> bool {
        let route = route.to_owned();
        self.took.get(&Route { method, route }).is_some()
    }

    /// Counts a request that was answered with `status` after `took`.
    pub fn record(&self, method: &'static str, route: String, status: StatusCode, took: Duration) {
        let status = match status.as_u16() / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        let labels = Route {
            method,
            route: route.clone(),
        };
        self.took.get_or_create(&labels).observe(took.as_secs_f64());
        let labels = Ended {
            method,
            route,
            status,
        };
        self.ended.get_or_create(&labels).inc();
    }
}
