//! [`NbdServer`]: exports attached volumes over NBD: on the socket in the data directory, over TCP
//! if configured, and for each VM on a socket of its own. Each listener costs one thread, which
//! mostly sleeps.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{AttachmentId, url};
use nbd::{Export, ExportTable, ListenOptions, Server, ServerOptions, ServerTls, TlsPolicy};
use parking_lot::Mutex;
use world::{Clock, Endpoint, World};

/// The NBD server and its exports.
pub(crate) struct NbdServer {
    table: Arc<ExportTable>,
    socket: PathBuf,
    tcp: Option<TcpAddress>,
    _server: Server,
    clock: Arc<dyn Clock>,
    offered: Mutex<Offered>,
}

/// A TCP address for clients on other machines.
#[derive(Debug, Clone, Copy)]
struct TcpAddress {
    address: SocketAddr,
    is_tls: bool,
}

/// The exported attachments.
#[derive(Default)]
struct Offered {
    /// The attachment of each name on the shared sockets: a name may be reused by another
    /// attachment.
    names: HashMap<String, AttachmentId>,
    /// The servers of attachments that have their own sockets.
    own: HashMap<AttachmentId, Server>,
}

/// Why NBD cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum NbdServerError {
    /// The operating system refused to listen.
    #[error("cannot serve NBD at {at}: {source}")]
    Listen {
        /// The endpoint.
        at: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The port would be reachable from other machines without TLS.
    #[error(
        "{0} can be reached from other machines; give --nbd-tls-ca, --nbd-tls-cert and \
         --nbd-tls-key, or listen on 127.0.0.1"
    )]
    Exposed(SocketAddr),
}

impl NbdServer {
    /// Listens; there are no exports yet.
    ///
    /// # Errors
    /// [`NbdServerError`].
    pub fn start(
        world: &World,
        socket: &Path,
        tcp: Option<SocketAddr>,
        tls: Option<ServerTls>,
    ) -> Result<Self, NbdServerError> {
        let failed = |at: &Endpoint| {
            let at = at.to_string();
            move |source| NbdServerError::Listen { at, source }
        };
        if let Some(address) = tcp
            && !address.ip().is_loopback()
            && tls.is_none()
        {
            return Err(NbdServerError::Exposed(address));
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
                let is_tls = tls.is_some();
                let policy = if is_tls {
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
                    Endpoint::Tcp(address) => Some(TcpAddress { address, is_tls }),
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

    /// Offers the export of an attachment on the shared sockets.
    pub fn offer(&self, attachment: AttachmentId, export: Export) {
        let mut offered = self.offered.lock();
        offered.names.insert(export.name().to_owned(), attachment);
        self.table.add(export);
    }

    /// Exports an attachment at its own socket. Only this user can connect until the socket is
    /// given to another user.
    ///
    /// # Errors
    /// [`NbdServerError::Listen`].
    pub fn offer_alone(
        &self,
        attachment: AttachmentId,
        export: Export,
        socket: &Path,
    ) -> Result<(), NbdServerError> {
        let at = Endpoint::Unix(socket.to_owned());
        let table = Arc::new(ExportTable::new());
        table.add(export);
        let listening = || {
            let server = Server::start(ServerOptions::new(Arc::clone(&self.clock)))?;
            server.listen(&at, ListenOptions::new(table as _))?;
            Ok(server)
        };
        let server = listening().map_err(|source| NbdServerError::Listen {
            at: at.to_string(),
            source,
        })?;
        self.offered.lock().own.insert(attachment, server);
        Ok(())
    }

    /// Ends the export `name` of an attachment.
    pub fn withdraw(&self, attachment: AttachmentId, name: &str) {
        let mut offered = self.offered.lock();
        if offered.names.get(name) == Some(&attachment) {
            offered.names.remove(name);
            self.table.remove(name);
        }
        let own = offered.own.remove(&attachment);
        drop(offered);
        // This waits for its thread.
        drop(own);
    }

    /// The URI for a client that may use an attachment's own socket.
    #[must_use]
    pub fn own_uri(name: &str, socket: &Path) -> String {
        format!("nbd+unix:///{name}?socket={}", url::encode(socket))
    }

    /// The URI for a client on this host.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        Self::own_uri(name, &self.socket)
    }

    /// The URI for a client on another machine; `None` if NBD is not served over TCP.
    #[must_use]
    pub fn tcp_uri(&self, name: &str) -> Option<String> {
        self.tcp.map(|TcpAddress { address, is_tls }| {
            let scheme = if is_tls { "nbds" } else { "nbd" };
            if address.ip().is_unspecified() {
                // It listens on every address of this host; only clients know which one they can
                // reach.
                return format!("{scheme}://localhost:{}/{name}", address.port());
            }
            format!("{scheme}://{address}/{name}")
        })
    }
}
