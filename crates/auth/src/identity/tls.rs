//! TLS configurations in which both sides present a certificate.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use world::Millis;

use crate::identity::{KeyFingerprint, Peer, PeerError, SignedBy};

/// A certificate with those between it and its root, and its private key.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The certificates in PEM, the holder's first.
    pub chain_pem: &'a str,
    /// The private key in PEM.
    pub key_pem: &'a str,
}

/// Why TLS cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A text is not valid PEM.
    #[error("the {what} is not valid PEM")]
    Pem {
        /// What the text should be.
        what: &'static str,
        /// Why it is not.
        source: pem::Error,
    },
    /// There is no certificate of an authority.
    #[error("there is no certificate of an authority by which peers could be verified")]
    NoAuthority,
    /// The certificate of an authority cannot be used.
    #[error("cannot use the certificate of an authority")]
    Authority(#[source] rustls::Error),
    /// A certificate cannot be read.
    #[error(transparent)]
    Unreadable(#[from] PeerError),
    /// The operator has named the cluster's own authority.
    #[error(
        "name only authorities of your own, and not the cluster's: the parties that the cluster's \
         authority signs are identified by their keys, which can be revoked, and not by the \
         subjects of their certificates"
    )]
    OwnNamed,
    /// Peers cannot be verified by the authorities.
    #[error("cannot verify peers by these authorities")]
    Verifier(#[from] VerifierBuilderError),
    /// The certificate and the key are invalid or do not belong together.
    #[error("cannot use the certificate and its key")]
    Credentials(#[source] rustls::Error),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates in a PEM text.
fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })
}

fn roots(authorities_pem: &[&str]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for pem in authorities_pem {
        for certificate in certificates("authority's certificate", pem)? {
            roots.add(certificate).map_err(TlsError::Authority)?;
        }
    }
    if roots.is_empty() {
        return Err(TlsError::NoAuthority);
    }
    Ok(roots)
}

impl Credentials<'_> {
    fn parse(self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let chain = certificates("certificate", self.chain_pem)?;
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).map_err(|source| {
            TlsError::Pem {
                what: "key",
                source,
            }
        })?;
        Ok((chain, key))
    }
}

/// A server of TLS 1.3 whose clients may present a certificate that is signed by one of the
/// authorities. Clients without a certificate are accepted, so that they can join.
///
/// # Errors
/// [`TlsError`].
pub fn server_config(
    authorities_pem: &[&str],
    credentials: Credentials<'_>,
) -> Result<ServerConfig, TlsError> {
    let verifier = verifier(authorities_pem)?;
    let (chain, key) = credentials.parse()?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Credentials)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsError::Credentials)?;
    // Without this, clients would choose HTTP/2, which is not served.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A server of TLS 1.3 that identifies its clients.
pub struct ServerTls {
    config: Arc<ServerConfig>,
    own: Arc<dyn ClientCertVerifier>,
    named: Option<Arc<dyn ClientCertVerifier>>,
}

impl ServerTls {
    /// A server for clients that are signed by the cluster's own authority or by one that the
    /// operator has named. Both are in PEM.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(
        own_pem: &str,
        named_pem: &[&str],
        credentials: Credentials<'_>,
    ) -> Result<Self, TlsError> {
        let own = certificates("authority's certificate", own_pem)?;
        for pem in named_pem {
            let named = certificates("authority's certificate", pem)?;
            if named.is_empty() {
                return Err(TlsError::NoAuthority);
            }
            if named.iter().any(|named| own.contains(named)) {
                return Err(TlsError::OwnNamed);
            }
        }
        let all = [&[own_pem], named_pem].concat();
        Ok(Self {
            config: Arc::new(server_config(&all, credentials)?),
            own: verifier(&[own_pem])?,
            named: match named_pem {
                [] => None,
                named_pem => Some(verifier(named_pem)?),
            },
        })
    }

    /// The configuration for handshakes.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// The peer that has presented this chain in a handshake, at the time `now`; `None` for an
    /// empty chain. The two kinds of authorities are tried separately, since the kind decides how
    /// the peer is identified.
    ///
    /// # Errors
    /// [`PeerError`]; [`PeerError::Unsigned`] if the certificate has expired since the handshake.
    pub fn peer(
        &self,
        chain: &[CertificateDer<'_>],
        now: Millis,
    ) -> Result<Option<Peer>, PeerError> {
        let Some((first, between)) = chain.split_first() else {
            return Ok(None);
        };
        let since = u64::try_from(now.0).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_millis(since));
        let has_signed = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier.verify_client_cert(first, between, now).is_ok()
        };
        let signed_by = if has_signed(&self.own) {
            SignedBy::OwnAuthority
        } else if self.named.as_ref().is_some_and(has_signed) {
            SignedBy::NamedAuthority
        } else {
            return Err(PeerError::Unsigned);
        };
        Peer::of(first, signed_by).map(Some)
    }
}

fn verifier(authorities_pem: &[&str]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = roots(authorities_pem)?.into();
    Ok(
        WebPkiClientVerifier::builder_with_provider(roots, provider())
            .allow_unauthenticated()
            .build()?,
    )
}

/// A client of TLS 1.3 that trusts servers which are signed by one of the authorities, and presents
/// `credentials` if there are any.
///
/// # Errors
/// [`TlsError`].
pub fn client_config(
    authorities_pem: &[&str],
    credentials: Option<Credentials<'_>>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Credentials)?
        .with_root_certificates(roots(authorities_pem)?);
    let Some(credentials) = credentials else {
        return Ok(builder.with_no_client_auth());
    };
    let (chain, key) = credentials.parse()?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Credentials)
}

/// A client of TLS 1.3 that trusts every server. It is used only to fetch the authority's
/// certificate, which is then compared with a fingerprint from another channel.
///
/// # Errors
/// [`TlsError`].
pub fn trusting_client_config() -> Result<ClientConfig, TlsError> {
    Ok(client_by_key(None)?.with_no_client_auth())
}

/// A client that trusts the server with this key, or every server if there is no key.
fn client_by_key(
    server: Option<KeyFingerprint>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let provider = provider();
    let verifier = ByKey {
        server,
        signatures: provider.signature_verification_algorithms,
    };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Credentials)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

/// A client of TLS 1.3 that trusts the server with this key, and presents `credentials`.
///
/// # Errors
/// [`TlsError`].
pub fn pinned_client_config(
    server: KeyFingerprint,
    credentials: Credentials<'_>,
) -> Result<ClientConfig, TlsError> {
    let (chain, key) = credentials.parse()?;
    client_by_key(Some(server))?
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Credentials)
}

/// The key fingerprint of the first certificate in a PEM text.
///
/// # Errors
/// [`TlsError::Pem`], [`TlsError::Unreadable`].
pub fn certificate_key(pem: &str) -> Result<KeyFingerprint, TlsError> {
    let what = "certificate";
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|source| TlsError::Pem { what, source })?;
    Ok(Peer::of(&certificate, SignedBy::NamedAuthority)?.key)
}

/// The end of the lifetime of the first certificate in a PEM text.
///
/// # Errors
/// [`TlsError::Pem`], [`TlsError::Unreadable`].
pub fn certificate_end(pem: &str) -> Result<Millis, TlsError> {
    let what = "certificate";
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|source| TlsError::Pem { what, source })?;
    Ok(Peer::of(&certificate, SignedBy::NamedAuthority)?.ends)
}

/// The SHA-256 of the first certificate in a PEM text, as `sha256:` and hex digits.
///
/// # Errors
/// [`TlsError::Pem`].
pub fn certificate_fingerprint(pem: &str) -> Result<String, TlsError> {
    let what = "authority's certificate";
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|source| TlsError::Pem { what, source })?;
    Ok(KeyFingerprint::of(&certificate).to_string())
}

/// A verifier that accepts every certificate whose holder has its key; with `server`, only one
/// with that key.
#[derive(Debug)]
struct ByKey {
    server: Option<KeyFingerprint>,
    signatures: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ByKey {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(server) = self.server {
            let shown = Peer::of(certificate, SignedBy::NamedAuthority)
                .map_err(|error| rustls::Error::General(error.to_string()))?
                .key;
            if shown != server {
                let message = format!("the server has the key {shown}, not {server}");
                return Err(rustls::Error::General(message));
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.signatures)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.signatures)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_schemes()
    }
}
