//! What this host reports about itself: reports to the controllers ([`Reporter`]), and readiness
//! and metrics for operators ([`Monitor`]).
//!
//! Nothing here waits long for a value that it reports.

mod metrics;
mod monitor;
mod reporter;

pub(crate) use monitor::{Monitor, MonitorParts};
pub(crate) use reporter::{ReportParts, Reporter};
