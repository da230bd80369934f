//! Floor 5: volumes, units and who serves them; the HTTP edge.
//!
//! * [`database`]: names, order, leases and wrapped keys, in SQLite
//! * [`control`]: one `scree up`: it owns D and all that is open in it
//! * [`volumes`], [`snapshots`], [`units`], [`attach`]: what owners ask of it
//! * [`parties`]: users and hosts, and how they come to be known
//! * [`housekeeping`]: what goes on by itself
//! * `watch`, `leases`, `ownership`: units that do not answer, databases that
//!   are older than the data, and folders that are copies
//! * [`serving`]: the NBD server
//! * [`keys`], [`folder`], [`parse`]: what operators hand in, checked once;
//!   [`spell`]: what they are told
//! * [`api`]: HTTP over all of that, thin
//!
//! It must not know: the terminal, how blocks are scattered, what an NBD
//! message looks like. It holds the key that wraps all others, and never
//! stores it.

pub mod api;
pub mod attach;
pub mod control;
pub mod database;
pub mod error;
pub mod folder;
pub mod housekeeping;
pub mod keys;
pub mod leases;
mod ownership;
pub mod parse;
pub mod parties;
pub mod report;
pub mod serving;
pub mod snapshots;
pub mod spell;
#[cfg(test)]
mod tests;
mod thin;
pub mod units;
pub mod volumes;
mod watch;

pub use control::{Control, Settings, StartError};
pub use error::ControlError;
pub use parties::Parties;
