//! Health and metrics of a process over HTTP.
//!
//! ```text
//!   GET /healthz   200: the process is alive and its runtime runs tasks
//!   GET /readyz    200, or 503 with one reason per line: part: reason
//!   GET /metrics   OpenMetrics, Prometheus' text format
//! ```
//!
//! * [`Part`]: a part of the process, such as a controller or an agent
//! * [`Monitor`]: all parts of the process, queried together
//! * [`declare!`], [`Metric`]: a crate's metrics, declared once
//! * [`Measures`]: the values of metrics and their text
//! * [`MonitorListener`]: a server over plain HTTP, for a loopback address or a management network
//!
//! Must not know: what is measured, or who may read it.
//!
//! Invariants: a response takes at most [`ANSWER_TIMEOUT`], whatever the parts wait for, and names
//! the parts that did not answer; a part computes its metrics once at a time, however many clients
//! request them; no text contains secrets or names of tenants.

mod declared;
mod listener;
mod measures;
mod metric;
mod part;

pub use declared::ALL;
pub use listener::MonitorListener;
pub use measures::{CONTENT_TYPE, Histogram, Labels, Measures};
pub use metric::{Label, Metric, MetricKind};
pub use part::{ANSWER_TIMEOUT, Answer, Monitor, Part, healthz, readyz};
