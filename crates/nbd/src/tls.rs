//! [`ServerTls`]: a server's certificate, and the authority that signs its clients. Clients must
//! have a certificate.
//!
//! Must not know which client may use which export: [`Exports`](super::Exports) decides that by
//! the certificate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use world::{Disk, OpenMode};

/// The maximal length of a PEM file, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// The names of the files' content in errors.
const AUTHORITY: &str = "client authority";
const CERTIFICATE: &str = "server's certificate";
const KEY: &str = "server's key";

/// A server's certificate, its key, and the authority that signs clients.
#[derive(Clone)]
pub struct ServerTls(Arc<ServerConfig>);

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content of a file cannot be used.
    #[error("cannot use {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<TlsError>,
    },
    /// The content is not valid PEM.
    #[error("the {what} is not valid PEM")]
    Pem {
        /// What the content should be.
        what: &'static str,
        /// The cause.
        source: pem::Error,
    },
    /// The authority's certificates cannot be used.
    #[error("the client authority's certificates cannot be used")]
    Authority(#[source] rustls::Error),
    /// The authority's certificates cannot verify clients.
    #[error("the client authority cannot verify clients")]
    Verifier(#[source] VerifierBuilderError),
    /// The certificate and the key do not belong together.
    #[error("the server's certificate and key cannot be used")]
    Server(#[source] rustls::Error),
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ServerTls")
    }
}

impl ServerTls {
    /// Reads PEM files, with the content that [`ServerTls::from_pem`] describes.
    ///
    /// # Errors
    /// [`TlsError::File`] or [`TlsError::Content`], with the file: the certificate's, if
    /// certificate and key do not belong together.
    pub fn read(
        disk: &dyn Disk,
        client_authorities: &Path,
        certificates: &Path,
        key: &Path,
    ) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            read_file(disk, path).map_err(|source| TlsError::File {
                path: path.to_owned(),
                source,
            })
        };
        let named = |error: TlsError| {
            let path = match &error {
                TlsError::File { .. } | TlsError::Content { .. } => return error,
                TlsError::Pem { what, .. } if *what == AUTHORITY => client_authorities,
                TlsError::Pem { what, .. } if *what == KEY => key,
                TlsError::Authority(_) | TlsError::Verifier(_) => client_authorities,
                TlsError::Pem { .. } | TlsError::Server(_) => certificates,
            };
            TlsError::Content {
                path: path.to_owned(),
                source: Box::new(error),
            }
        };
        Self::from_pem(
            &read(client_authorities)?,
            &read(certificates)?,
            &read(key)?,
        )
        .map_err(named)
    }

    /// Parses PEM texts: the certificates of the authorities that sign clients, the server's
    /// certificate with those between it and its root, and its key.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_pem(
        client_authorities: &[u8],
        certificates: &[u8],
        key: &[u8],
    ) -> Result<Self, TlsError> {
        let chain = |what, text| {
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
            read.map_err(|source| TlsError::Pem { what, source })
        };
        let mut roots = rustls::RootCertStore::empty();
        for certificate in chain(AUTHORITY, client_authorities)? {
            roots.add(certificate).map_err(TlsError::Authority)?;
        }
        let certificates = chain(CERTIFICATE, certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|source| TlsError::Pem { what: KEY, source })?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .map_err(TlsError::Verifier)?;
        // Clients with an older GnuTLS have only TLS 1.2.
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(TlsError::Server)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates, key)
            .map_err(TlsError::Server)?;
        Ok(Self(Arc::new(config)))
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0)
    }
}

pub(super) fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let length = file.length()?;
    if length > PEM_BYTES_MAX {
        let message = format!("the file has {length} bytes; the maximum is {PEM_BYTES_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
