//! The counters and the last probe of a controller. They know nothing of the controller.

use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::Mutex;

use crate::health::requests::Requests;

/// The state of readiness and metrics.
pub(crate) struct Health {
    /// Counts of API requests.
    pub requests: Requests,
    pub registry: Registry,
    pub probed: Mutex<Option<Probed>>,
}

/// The result of a query to the database.
#[derive(Debug, Clone, Copy)]
pub struct Probed {
    /// When the database answered or the query was given up.
    pub at: Duration,
    /// How long the answer took; `None` if there was none.
    pub latency: Option<Duration>,
}

impl Default for Health {
    fn default() -> Self {
        let (requests, mut registry) = (Requests::default(), Registry::default());
        requests.register(&mut registry);
        Self {
            requests,
            registry,
            probed: Mutex::default(),
        }
    }
}
