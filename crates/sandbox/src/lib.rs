//! Out-of-process filters. A filter of a chain runs in a confined process of its own, as
//! an external program, or on another machine (docs/internals/out-of-process-filters.md).
//!
//! ```text
//!   agent                                        process, with a user of its own, confined
//!  ┌───────────────────────┐  socket: requests  ┌─────────────────────────────┐
//!  │ chain ─▶ filter ──────│───────────────────▶│ server ─▶ chain of the one  │
//!  │   ▲                   │                    │            filter           │
//!  │   └── embedded server │◀───────────────────│            NbdClient        │
//!  │                       │  socket: below     └──────────────┬──────────────┘
//!  └───────────────────────┘◀── events, as lines ── standard error
//! ```
//!
//! On the side of the chain:
//!
//! * [`OutOfProcessFilters`]: makes the out-of-process filters of a chain.
//! * `launchers`: how each kind of filter is started. `connection`: a filter that was started.
//! * `process`: starts and ends processes. `users`: the user of each process. `cpu_limit`: its
//!   share of CPU. `process_output`: its events.
//! * [`ExternalFilter`]: programs that are not part of Scree.
//! * `remote`: connections to filters on other machines.
//!
//! On the side of the filter:
//!
//! * [`serve`]: a process that runs one filter, as its [`Spec`] says.
//! * [`confine`]: takes from a process what a filter does not need.
//! * [`FilterServer`]: serves filters to other machines.
//!
//! Must not know: volumes, units, or who may change a chain.

mod confinement;
mod connection;
mod cpu_limit;
mod event_lines;
mod external;
mod filter_server;
mod filters;
mod launchers;
mod process;
mod process_output;
mod remote;
mod seccomp;
mod serve;
mod socket_folder;
mod spec;
mod users;

pub use confinement::{ConfineError, Confinement, confine, confine_external};
pub use event_lines::EventLines;
pub use external::{ExternalFilter, ExternalFilterError};
pub use filter_server::{FilterServer, MakeFilters};
pub use filters::{OutOfProcessFilters, OutOfProcessOptions};
pub use remote::HostIdentity;
pub use serve::{ServeError, serve};
pub use socket_folder::sockets_folder;
pub use spec::{Spec, SpecError};
