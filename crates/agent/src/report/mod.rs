//! What this host says about itself: reports to the controllers ([`Reporter`]), and readiness and
//! metrics for operators ([`Monitor`]).
//!
//! Nothing here waits long for what it shows.

mod metrics;
mod monitor;
mod reporter;

pub(crate) use monitor::{Monitor, MonitorParts};
pub(crate) use reporter::{ReportParts, Reporter};
