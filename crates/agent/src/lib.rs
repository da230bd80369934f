//! What runs on each host. An agent holds keys, journals and open volumes, serves the
//! volumes, and brings the host to the state that the controllers desire.
//!
//! [`Agent`] composes the parts. A part is a struct that is given what it needs; each folder below
//! depends only on folders further down:
//!
//! * `report`: reports to controllers, readiness and metrics
//! * `cleaning`: what nothing needs any more is removed and freed
//! * `attach`: attachments, from what is desired to an open volume, and back
//! * `jobs`: what controllers request once
//! * [`audits`]: what some units alone reveal of a volume; [`cache`]: the host's cache, and
//!   preloads of images into it
//! * `filters`: the filters that volumes are served through; `repair`: copysets
//! * `background`: what audits and preloads have in common
//! * `export`: open volumes, and the NBD server
//! * `lease`: leases in time, and whether the database is as new as the data
//! * `journals`: the files of journals
//! * [`vm`]: disks in virtual machines
//! * `units`: storage units, and the links to unit daemons
//! * [`keys`]: wrapping keys
//! * `controller`: the host RPC; [`folder`]: D; `context`: what all parts are given
//!
//! It must not know: SQL, who owns what, the terminal.

mod agent;
mod attach;
pub mod audits;
mod background;
pub mod cache;
mod cleaning;
mod compose;
mod context;
mod controller;
mod declared_metrics;
mod export;
mod filters;
pub mod folder;
mod jobs;
mod journals;
pub mod keys;
mod lease;
mod repair;
mod report;
mod settings;
#[cfg(test)]
mod tests;
mod unit_owner;
mod units;
pub mod vm;

pub use agent::{Agent, SHUT_DOWN_WITHIN};
pub use declared_metrics::ALL as METRICS;
pub use filters::{Connected, FilterKeys, FilterSettings, Network};
pub use settings::{Settings, StartError};
