//! TLS for the server's side: certificates from PEM files, and clients that
//! must show one of their own.
//!
//! Knows which authority signs clients, and nothing about who they are: that
//! is for [`Exports`](super::Exports) to decide by the certificate.

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

/// The longest PEM file that is read, in bytes: no honest one comes near.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// What the files are, in errors.
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
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What a file has cannot be used.
    #[error("cannot use {}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<TlsError>,
    },
    /// A file is no PEM of the kind it should be.
    #[error("the {what} is not valid PEM")]
    Pem {
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        source: pem::Error,
    },
    /// The authority's certificates cannot be used.
    #[error("the client authority's certificates cannot be used")]
    Authority(#[source] rustls::Error),
    /// No certificate of an authority to check clients by.
    #[error("clients cannot be checked by this authority")]
    Verifier(#[source] VerifierBuilderError),
    /// The certificate and the key do not make a server.
    #[error("the server's certificate and key cannot be used")]
    Server(#[source] rustls::Error),
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ServerTls")
    }
}

impl ServerTls {
    /// Reads PEM files, each with what [`ServerTls::from_pem`] takes.
    ///
    /// # Errors
    /// [`TlsError::File`] or [`TlsError::Content`], which name the file. Of a
    /// certificate and a key that do not belong together, the certificate's.
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

    /// Takes PEM texts: certificates of the authorities that sign clients; the
    /// server's certificate, followed by any between it and its root; its key.
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
        // TLS 1.2 stays for clients with an older GnuTLS.
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
        let message = format!("{length} bytes are more than a PEM file has");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
