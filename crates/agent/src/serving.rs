//! Where attached volumes are served: NBD on D's socket, and over TCP if that
//! was asked for; or, for a VM, on a socket of its own, which nothing else can
//! be had from. Each of those costs one thread that mostly sleeps.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::{AttachmentId, url};
use nbd::{Export, ExportTable, ListenOptions, Server, ServerOptions, ServerTls, TlsPolicy};
use world::{Clock, Endpoint, World};

use crate::agent::lock;

/// The NBD server and what it serves.
pub struct Serving {
    table: Arc<ExportTable>,
    socket: PathBuf,
    tcp: Option<(SocketAddr, bool)>,
    _server: Server,
    clock: Arc<dyn Clock>,
    offered: Mutex<Offered>,
}

/// Who is served where.
#[derive(Default)]
struct Offered {
    /// Whose each name on the shared sockets is: it may have been another's.
    names: HashMap<String, AttachmentId>,
    /// The sockets of single attachments.
    own: HashMap<AttachmentId, Server>,
}

/// Why NBD cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The operating system refused.
    #[error("cannot serve NBD at {at}: {source}")]
    Listen {
        /// Where.
        at: String,
        /// What it said.
        source: io::Error,
    },
    /// Anybody who reaches the port could read and write the disks.
    #[error(
        "{0} can be reached from other machines; give --nbd-tls-ca, --nbd-tls-cert and \
         --nbd-tls-key, or listen on 127.0.0.1"
    )]
    Exposed(SocketAddr),
}

impl Serving {
    /// Listens. Nothing is served yet.
    ///
    /// # Errors
    /// [`ServingError`].
    pub fn start(
        world: &World,
        socket: &Path,
        tcp: Option<SocketAddr>,
        tls: Option<ServerTls>,
    ) -> Result<Self, ServingError> {
        let failed = |at: &Endpoint| {
            let at = at.to_string();
            move |source| ServingError::Listen { at, source }
        };
        if let Some(address) = tcp
            && !address.ip().is_loopback()
            && tls.is_none()
        {
            return Err(ServingError::Exposed(address));
        }
        let table = Arc::new(ExportTable::new());
        let at = Endpoint::Unix(socket.to_owned());
        let server =
            Server::start(ServerOptions::new(Arc::clone(&world.clock))).map_err(failed(&at))?;
        let plain = ListenOptions::new(Arc::clone(&table) as _);
        server.listen(&at, plain.clone()).map_err(failed(&at))?;
        let tcp = match tcp {
            None => None,
            Some(address) => {
                let sealed = tls.is_some();
                let policy = if sealed {
                    TlsPolicy::Required
                } else {
                    TlsPolicy::Off
                };
                let options = ListenOptions {
                    tls_policy: policy,
                    tls,
                    ..plain
                };
                let at = Endpoint::Tcp(address);
                let listening = server.listen(&at, options).map_err(failed(&at))?;
                match listening.endpoint {
                    Endpoint::Tcp(address) => Some((address, sealed)),
                    Endpoint::Unix(_) => None,
                }
            }
        };
        Ok(Self {
            table,
            socket: socket.to_owned(),
            tcp,
            _server: server,
            clock: Arc::clone(&world.clock),
            offered: Mutex::default(),
        })
    }

    /// Lets clients in to the export of an attachment.
    pub fn offer(&self, attachment: AttachmentId, export: Export) {
        let mut offered = lock(&self.offered);
        offered.names.insert(export.name().to_owned(), attachment);
        self.table.add(export);
    }

    /// Lets clients in to the export of an attachment at `socket`, where there
    /// is nothing else. Only this user can connect until it is given away.
    ///
    /// # Errors
    /// [`ServingError::Listen`].
    pub fn offer_alone(
        &self,
        attachment: AttachmentId,
        export: Export,
        socket: &Path,
    ) -> Result<(), ServingError> {
        let at = Endpoint::Unix(socket.to_owned());
        let table = Arc::new(ExportTable::new());
        table.add(export);
        let listening = || {
            let server = Server::start(ServerOptions::new(Arc::clone(&self.clock)))?;
            server.listen(&at, ListenOptions::new(table as _))?;
            Ok(server)
        };
        let server = listening().map_err(|source| ServingError::Listen {
            at: at.to_string(),
            source,
        })?;
        lock(&self.offered).own.insert(attachment, server);
        Ok(())
    }

    /// Lets no more clients in to the export `name` of an attachment.
    pub fn withdraw(&self, attachment: AttachmentId, name: &str) {
        let mut offered = lock(&self.offered);
        if offered.names.get(name) == Some(&attachment) {
            offered.names.remove(name);
            self.table.remove(name);
        }
        let own = offered.own.remove(&attachment);
        drop(offered);
        // Its thread is waited for.
        drop(own);
    }

    /// What to give to a client that may use an attachment's own socket.
    #[must_use]
    pub fn own_uri(name: &str, socket: &Path) -> String {
        format!("nbd+unix:///{name}?socket={}", url::encode(socket))
    }

    /// What to give to a client on this host.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        Self::own_uri(name, &self.socket)
    }

    /// What to give to a client elsewhere, if there can be one.
    #[must_use]
    pub fn tcp_uri(&self, name: &str) -> Option<String> {
        self.tcp.map(|(address, sealed)| {
            let scheme = if sealed { "nbds" } else { "nbd" };
            if address.ip().is_unspecified() {
                // Every address of this host; which one to say, only clients
                // know.
                return format!("{scheme}://localhost:{}/{name}", address.port());
            }
            format!("{scheme}://{address}/{name}")
        })
    }
}
