//! Floor 3: NBD. A server over any [`base::BlockDevice`], and a client that is one.
//!
//! The server: fixed newstyle, structured replies, TLS, many exports and
//! many connections at once. `docs/internals/nbd.md` says what it offers and why.
//!
//! ```text
//!                       ┌─ acceptor thread ─┐      ┌─ one thread per export ──────┐
//!  client ──connects──▶ │ handshake, TLS    │─────▶│ service: connections, device │
//!         ◀─────────────│ (server.rs)       │ GO   │ (worker.rs, service.rs)      │◀──▶ client
//!                       └───────────────────┘      └──────────────────────────────┘
//! ```
//!
//! * `wire`, `options`, `request`, `reply`: bytes and types, both ways.
//! * `handshake`, `connection`: what one client says, as state machines over
//!   bytes. `service`: one device and all its connections, over pipes.
//! * `channel`, `tls`: a pipe that is a socket.
//! * `export`, `worker`: an export's ends and its thread. `server`, `guest`: the
//!   acceptor's. `leg`: a service without either.
//!
//! Invariants: a device is touched only by its export's thread; nothing on the
//! path of a request locks or allocates; what one connection holds is bounded
//! by [`Limits`], whatever its client sends or does not read.

mod buffers;
pub mod client;
mod connection;
mod desk;
mod export;
mod guest;
mod handshake;
mod leg;
pub mod memory;
mod options;
mod reply;
mod request;
mod script;
mod server;
mod service;
mod slab;
mod spin;
mod table;
mod tls;
mod watcher;
mod wire;
mod worker;

#[cfg(test)]
mod model;

pub mod fuzz;

pub use export::{Export, ExportGone, ExportOptions, ExportThread, SpawnError, Stopped};
pub use handshake::TlsPolicy;
pub use leg::Leg;
pub use server::{ListenOptions, Listening, Server, ServerOptions};
pub use table::{Client, ExportInfo, ExportTable, Exports, Listed};
pub use tls::{ServerTls, TlsError};
pub use watcher::{Seen, Watched, Watcher};

/// What one connection, and all of an export's together, may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one connection that are begun and not answered. Linux keeps
    /// 128 in flight and QEMU 16 a connection; beyond this number requests
    /// wait in the socket.
    pub requests_max: usize,
    /// Replies that the client has not read, and payloads in the device's
    /// hands, in bytes and for one connection: beyond it nothing is decoded.
    pub bytes_max: usize,
    /// Requests and pieces in the device's hands, for all connections of an
    /// export, those included that have gone.
    pub operations_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_max: 256,
            bytes_max: 8 << 20,
            operations_max: 8192,
        }
    }
}
