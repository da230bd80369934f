//! NBD. A server for any [`base::BlockDevice`], and a client that is one ([`client`]).
//!
//! The server supports fixed newstyle, structured replies, TLS, many exports and many connections
//! at once. `docs/internals/nbd.md` describes it and its reasons.
//!
//! ```text
//!                       ┌─ acceptor thread ─┐      ┌─ one thread per export ──────┐
//!  client ──connects──▶ │ handshake, TLS    │─────▶│ service: connections, device │
//!         ◀─────────────│ (server.rs)       │ GO   │ (worker.rs, service.rs)      │◀──▶ client
//!                       └───────────────────┘      └──────────────────────────────┘
//! ```
//!
//! * `wire`, `options`, `export_reply`, `request`, `reply`: encode and decode messages.
//! * `handshake`, `connection`: one client's messages, as state machines over bytes.
//! * `service`, `export_state`: one device and all its connections, over pipes.
//! * `export`, `worker`: an export and its thread. `server`, `handshaking_client`: the acceptor.
//! * [`EmbeddedServer`]: a service without threads of its own.
//! * [`Watcher`]: watches the sockets of a device in its export's thread.
//!
//! Invariants: only the thread of its export uses a device. Nothing on the path of a request locks
//! or allocates. [`Limits`] bound the memory of a connection, also if its client sends without
//! reading. Must not know: what is behind a device.

mod buffers;
pub mod client;
mod connection;
mod embedded_server;
mod export;
mod export_reply;
mod export_state;
mod handshake;
mod handshaking_client;
mod options;
mod reply;
mod request;
#[cfg(any(test, feature = "fuzzing"))]
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

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

pub use embedded_server::EmbeddedServer;
pub use export::{Export, ExportEnded, ExportOptions, ExportThread, SpawnError, Stopped};
pub use handshake::TlsPolicy;
pub use server::{ListenOptions, Listening, Server, ServerOptions};
pub use table::{Client, ExportInfo, ExportTable, Exports, Listed};
pub use tls::{ServerTls, TlsError};
pub use watcher::{Readiness, WatchedSource, Watcher};

/// The limits of one connection, and of all connections of an export together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximal number of requests of one connection without a reply. Linux sends 128 and QEMU
    /// 16 at once; further requests wait in the socket.
    pub requests_max: usize,
    /// The maximal memory of one connection, in bytes: replies that the client has not read, and
    /// payloads of operations in the device. Beyond it no request is decoded.
    pub bytes_max: usize,
    /// The maximal number of operations in the device, for all connections of an export, closed
    /// ones included.
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
