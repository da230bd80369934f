//! Floor 5: what runs on each host. It holds keys, journals and open volumes,
//! serves them, and does what the controllers want of it.
//!
//! * [`agent`]: the process; what is wanted of it, followed
//! * [`attached`]: an open volume, served; `closer`: its end; `worker`: from a wish to that, and
//!   back
//! * [`controller`]: asking the controllers; the engine's catalog by that
//! * [`units`], `watch`, `claim`: storage units, those that do not answer, and
//!   whose a unit is; `links`, `capability_cache`: the ways to unit daemons, and what this host
//!   may do there
//! * `database_age`: databases that are older than the data; `lease_count`: what
//!   units know of that
//! * `leases`: leases in time; `journals_aside`: journals of volumes that were
//!   taken from this host; [`journals`]: the folder of journals that hosts share
//! * `preloads`: base images, read into the cache that [`caching`] keeps
//! * `audits`: what some units alone have of a volume; `jobs`: what both have in common
//! * `cleaning`, `repair`: what goes on by itself; `rejoined`: what is said of units that
//!   were away
//! * [`serving`]: the NBD server
//! * [`vm`]: plugging disks into running virtual machines
//! * [`keys`]: wrapping keys, wherever they are; [`host_keys`]: those that this
//!   host has; `rewrapping`: one in the place of another
//! * [`folder`]: what lies where
//! * `plugging`: attachments in VMs
//! * `report`: what controllers are told; `health`: what those are told who watch;
//!   `volume_statuses`: how the open volumes are, for both
//!
//! It must not know: SQL, who owns what, the terminal.

pub mod agent;
pub mod attached;
pub mod audits;
mod cache_counts;
mod cache_measures;
pub mod caching;
mod capability_cache;
mod chains;
mod claim;
mod cleaning;
mod closer;
pub mod controller;
mod database_age;
mod events;
mod filter_files;
mod filter_journals;
mod filter_keys;
mod filter_targets;
pub mod folder;
mod health;
pub mod host_keys;
mod jobs;
pub mod journals;
mod journals_aside;
pub mod keys;
mod lease_count;
mod leases;
mod links;
mod places;
mod plugging;
mod preloads;
mod rejoined;
mod repair;
mod report;
mod rewrapping;
mod served;
pub mod serving;
#[cfg(test)]
mod tests;
pub mod units;
pub mod vm;
mod volume_statuses;
mod watch;
mod worker;

pub use agent::{Agent, Settings, StartError};
pub use filter_keys::FilterKeys;
pub use filter_targets::{Connected, Network};
