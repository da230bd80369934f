//! Floor 4: a unit daemon. It keeps a folder unit for hosts that can reach it
//! only through here, and lets each do what a controller has signed for it, and
//! nothing else (docs/units.md, "Who may do what"; docs/protocol.md).
//!
//! * [`Keeper`]: the folder, and what all connections have in common.
//! * [`Session`]: one connection as a state machine without I/O.
//! * `shown`: what a host may do, by the capabilities that it has shown.
//! * [`Server`]: sessions on sockets, each in a thread of its own.
//! * [`Budget`], `places`, `patience`: how much, of whom and for how long.
//! * `fences`: the newest lease of each volume, so that older ones are refused;
//!   `turns`: the newest connection of each lease and repairer, likewise.
//! * [`restore`]: what hosts have freed, brought back while no daemon runs.
//! * [`Service`]: all of it as a process has it, on a folder D, told by
//!   controllers what it has to know.
//!
//! It must not know: keys but those that verify, volumes, SQL, users.

mod budget;
mod connection;
mod counters;
mod fences;
mod keeper;
mod pass_on;
mod patience;
mod places;
mod running;
mod server;
mod service;
mod session;
mod shown;
mod turns;

pub use budget::{BUDGET_BYTES, Budget};
pub use keeper::{Job, Keeper, KeeperConfig};
pub use patience::Waits;
pub use server::{Limits, Server, ServerConfig, WhereUnitsAre};
pub use service::{
    BEGIN_EVERY, FolderError, NotHeeded, RestoreError, Service, Settings, StartError, restore,
};
pub use session::{Closing, Session, Step};
pub use unit_folder::{Keeping, Restorable, Restored, RestoredSegment, SegmentFate, segment_of};
