//! A controller: names, owners, order and states in a database, and the HTTP API.
//!
//! * [`database`]: SQLite or PostgreSQL
//! * [`control`]: a controller; [`authorized_request`]: one request of an authenticated principal
//! * [`volumes`], [`snapshots`], [`attachments`], [`chains`], [`projects`], [`units`], [`keys`]:
//!   the requests of users and operators
//! * [`host_request`], [`hosts`]: the requests and reports of agents; [`unit_registry`]: units and
//!   the copysets that are planned over them; `host_reports`, `host_jobs`: waiting for reports and
//!   jobs of hosts; `report`: a summary of the cluster; `turns`: limits the calls of each host;
//!   `capabilities`: what hosts may do on unit daemons; [`daemons`]: the requests of unit daemons
//! * [`parties`]: users, hosts and unit daemons, and their authentication; [`authority`]: the key
//!   that signs their certificates
//! * [`ownership`]: detects copies of a database
//! * [`folder`], [`parse`]: checks of what operators and users provide
//! * [`http`]: the HTTP API
//! * `health`: readiness and metrics
//!
//! It must not know: the terminal, where blocks are, the keys that decrypt them. Keys pass through
//! it wrapped; it depends on nothing that could name one.

pub mod attachments;
pub mod authority;
pub mod authorized_request;
mod capabilities;
pub mod chains;
pub mod control;
pub mod daemons;
pub mod database;
mod declared_metrics;
pub mod error;
pub mod folder;
mod health;
mod host_jobs;
mod host_reports;
pub mod host_request;
pub mod hosts;
pub mod http;
pub mod images;
mod jobs;
pub mod keys;
pub mod ownership;
pub mod parse;
pub mod parties;
pub mod projects;
mod reception;
pub mod repair;
pub mod snapshots;
mod start_error;
pub mod status;
mod timestamp;
mod turns;
pub mod unit_registry;
pub mod units;
pub mod volume_audits;
pub mod volumes;

pub use authorized_request::AuthorizedRequest;
pub use control::{Control, Settings};
pub use declared_metrics::ALL as METRICS;
pub use error::ControlError;
pub use host_request::HostRequest;
pub use parties::Parties;
pub use start_error::StartError;
