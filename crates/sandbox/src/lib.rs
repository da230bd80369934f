//! Floor 4: filters of a chain that run in processes of their own (docs/chains.md, "Where a filter
//! runs").
//!
//! ```text
//!   agent                                     process, of a user of its own, confined
//!  ┌──────────────┐    socket: requests      ┌─────────────────────────────┐
//!  │ chain ─▶ hop │─────────────────────────▶│ Leg ─▶ chain of the one filter │
//!  │   ▲      Leg │◀─────────────────────────│              NbdClient      │
//!  │   └──── door │    socket: what it asks  └─────────────────────────────┘
//!  └──────────────┘◀─ events, as lines ────── standard error
//! ```
//!
//! * [`Hops`]: makes programs of filters, for a chain. `program`: one of them, on this side.
//! * `launch`: starts processes, and ends them. `foreign`: those that are not Scree's. `users`:
//!   whose they are.
//! * `machine`: those on other machines. [`FilterServer`]: the other side of them.
//! * [`serve`]: the other side of Scree's own. [`Spec`]: what it is told.
//! * [`confine`]: what a process may not do.
//!
//! Must not know: volumes, units, or who may change a chain.

mod confine;
mod events;
mod foreign;
mod hops;
mod launch;
mod lines;
mod machine;
mod machine_server;
mod program;
mod serve;
mod share;
mod sockets;
mod spec;
mod users;

pub use confine::{ConfineError, Confinement, confine, confine_foreign};
pub use foreign::{Foreign, ForeignError};
pub use hops::{Hops, HopsOptions};
pub use lines::EventLines;
pub use machine::HostIdentity;
pub use machine_server::{FilterServer, MakeFilters};
pub use serve::{ServeError, serve};
pub use sockets::sockets_folder;
pub use spec::{Spec, SpecError};
