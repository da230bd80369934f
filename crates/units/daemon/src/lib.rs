//! A unit daemon. It serves a folder unit to hosts, and lets each host do what a
//! controller has signed for it and nothing else (docs/internals/capabilities.md;
//! docs/internals/unit-protocol.md).
//!
//! * [`Keeper`]: the folder, and the state that all connections share.
//! * [`Session`]: one connection as a state machine without I/O.
//! * `rights`: what a host may do, by the capabilities that it has presented.
//! * [`Server`]: sessions on sockets, each in a thread of its own.
//! * [`Budget`], `permits`, `timeouts`: the limits on memory, connections and time.
//! * `fences`: the newest lease of each volume, so that older leases are refused;
//!   `active_connection`: the newest connection of each lease and repair, likewise.
//! * `relay`: passes a connection on to the daemon that it is for.
//! * [`restore`]: restores freed slots while no daemon runs.
//! * [`Service`]: all of it as a process, on a data directory, configured by controllers.
//!
//! Must not know: keys except those that verify, volumes, SQL, users.

mod active_connection;
mod budget;
mod connection;
mod counters;
mod declared_metrics;
mod fences;
mod keeper;
mod permits;
mod relay;
mod rights;
mod running;
mod server;
mod service;
mod session;
mod timeouts;

pub use budget::{BUDGET_BYTES, Budget};
pub use declared_metrics::ALL as METRICS;
pub use keeper::{Job, Keeper, KeeperConfig};
pub use server::{Limits, Server, ServerConfig, UnitEndpoints};
pub use service::{
    ConfigRejected, FolderError, REPORT_EVERY, RestoreError, Service, Settings, StartError, restore,
};
pub use session::{Closing, Session, Step};
pub use timeouts::Timeouts;
pub use unit_folder::{
    RestoreFilter, RestoreReport, RestoredSegment, SegmentFate, UndeletePolicy, segment_of,
};
