//! Floor 5: a controller: names, owners, order and states, in a database; and
//! the HTTP edge.
//!
//! * [`database`]: SQLite or PostgreSQL
//! * [`control`]: an instance; [`authorized_request`]: the same, on somebody's behalf
//! * [`volumes`], [`snapshots`], [`attachments`], [`chains`], [`projects`], [`units`], [`keys`]:
//!   what owners and operators ask of it
//! * [`hosts`]: what agents ask of it, and tell it; `report`: how they are doing;
//!   `turns`: how many calls of one at a time; `capabilities`: what they may do on
//!   unit daemons; [`daemons`]: what those ask
//! * [`parties`]: users, hosts and unit daemons, and how they come to be known; [`authority`]:
//!   what signs them
//! * [`ownership`]: folders that are copies
//! * [`folder`], [`parse`]: what operators hand in, checked once
//! * [`http`]: HTTP over all of that, degraded
//! * `health`: whether it can do its work, and how it is doing
//!
//! It must not know: the terminal, where blocks lie, what opens them. Keys pass
//! through it wrapped; it depends on nothing that could name one.

pub mod attachments;
pub mod authority;
pub mod authorized_request;
mod capabilities;
pub mod chains;
pub mod control;
pub mod daemons;
pub mod database;
pub mod error;
pub mod folder;
mod health;
pub mod hosts;
pub mod http;
pub mod images;
mod jobs;
pub mod keys;
pub mod ownership;
pub mod parse;
pub mod parties;
pub mod projects;
pub mod repair;
pub mod report;
pub mod snapshots;
mod turns;
pub mod units;
pub mod volume_audits;
pub mod volumes;

pub use authorized_request::AuthorizedRequest;
pub use control::{Control, Settings, StartError};
pub use error::ControlError;
pub use parties::Parties;
