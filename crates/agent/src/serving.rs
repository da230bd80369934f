//! Where attached volumes are served: NBD on D's socket, and over TCP if that
//! was asked for.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::url;
use frontend::nbd::{
    Export, ExportTable, ListenOptions, Server, ServerOptions, ServerTls, TlsPolicy,
};
use world::{Endpoint, World};

/// The NBD server and what it serves.
pub struct Serving {
    table: Arc<ExportTable>,
    socket: PathBuf,
    tcp: Option<(SocketAddr, bool)>,
    _server: Server,
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
        })
    }

    /// Lets clients in to `export`.
    pub fn offer(&self, export: Export) {
        self.table.add(export);
    }

    /// Lets no more clients in to the export `name`.
    pub fn withdraw(&self, name: &str) {
        self.table.remove(name);
    }

    /// What to give to a client on this host.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", url::encode(&self.socket))
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
