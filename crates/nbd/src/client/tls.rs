//! [`ClientTls`]: a client's certificate, and the authority that signs its servers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use world::Disk;

use super::super::tls::read_file;

/// A client's certificate and key, the authority that signs servers, and the server's name.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClientTls")
    }
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// A file cannot be read.
    #[error("cannot read {0}")]
    File(std::path::PathBuf, #[source] std::io::Error),
    /// A file is not valid PEM.
    #[error("the {0} is not valid PEM")]
    Pem(&'static str, #[source] pem::Error),
    /// A certificate or key cannot be used.
    #[error("the {0} cannot be used")]
    Unusable(&'static str, #[source] rustls::Error),
    /// The server's name is invalid.
    #[error("{0:?} is not a valid server name")]
    Name(String, #[source] InvalidDnsNameError),
}

impl ClientTls {
    /// Reads `ca-cert.pem`, `client-cert.pem` and `client-key.pem` of a folder, as libnbd
    /// and QEMU do.
    ///
    /// # Errors
    /// [`ClientTlsError`].
    pub fn read(disk: &dyn Disk, folder: &Path, server: &str) -> Result<Self, ClientTlsError> {
        let read = |name| {
            let path = folder.join(name);
            read_file(disk, &path).map_err(|error| ClientTlsError::File(path, error))
        };
        let (authorities, certificates) = (read("ca-cert.pem")?, read("client-cert.pem")?);
        Self::from_pem(
            &authorities,
            &certificates,
            &read("client-key.pem")?,
            server,
        )
    }

    /// Parses PEM texts: the authorities that sign servers, the client's certificate with those
    /// between it and its root, and its key.
    ///
    /// # Errors
    /// [`ClientTlsError`].
    pub fn from_pem(
        authorities: &[u8],
        certificates: &[u8],
        key: &[u8],
        server: &str,
    ) -> Result<Self, ClientTlsError> {
        let chain = |what, text| {
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
            read.map_err(|error| ClientTlsError::Pem(what, error))
        };
        let mut roots = RootCertStore::empty();
        for certificate in chain("authority's certificate", authorities)? {
            let added = roots.add(certificate);
            added.map_err(|error| ClientTlsError::Unusable("authority's certificate", error))?;
        }
        let certificates = chain("client's certificate", certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| ClientTlsError::Pem("client's key", error))?;
        let unusable = |error| ClientTlsError::Unusable("client's certificate and key", error);
        // Servers with an older GnuTLS have only TLS 1.2.
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates, key)
            .map_err(unusable)?;
        let name = ServerName::try_from(server.to_owned());
        Ok(Self {
            config: Arc::new(config),
            server: name.map_err(|error| ClientTlsError::Name(server.to_owned(), error))?,
        })
    }

    /// The TLS state of a new connection.
    pub(super) fn begin(&self) -> Result<Connection, rustls::Error> {
        let config = Arc::clone(&self.config);
        Ok(ClientConnection::new(config, self.server.clone())?.into())
    }
}
