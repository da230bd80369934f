//! TLS made of certificates: both sides show one.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::KeyFingerprint;

/// A certificate, any between it and its root, and its key; all in PEM.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The holder's certificate first.
    pub chain_pem: &'a str,
    /// The private key.
    pub key_pem: &'a str,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A text is no PEM of the kind it should be.
    #[error("the {what} is not valid PEM")]
    Pem {
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        source: pem::Error,
    },
    /// There is no certificate of an authority.
    #[error("there is no authority's certificate to check peers by")]
    NoAuthority,
    /// An authority's certificate cannot be used.
    #[error("an authority's certificate cannot be used")]
    Authority(#[source] rustls::Error),
    /// Peers cannot be checked by the authorities.
    #[error("peers cannot be checked by these authorities")]
    Verifier(#[from] VerifierBuilderError),
    /// The certificate and the key do not belong together, or are no use.
    #[error("the certificate and its key cannot be used")]
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

/// A server of TLS 1.3 whose clients may show a certificate, signed by one of
/// the authorities. Those that show none can be told so, and can enrol.
///
/// # Errors
/// [`TlsError`].
pub fn server_config(
    authorities_pem: &[&str],
    credentials: Credentials<'_>,
) -> Result<ServerConfig, TlsError> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(authorities_pem)?.into(), provider())
            .allow_unauthenticated()
            .build()?;
    let (chain, key) = credentials.parse()?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Credentials)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsError::Credentials)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A client of TLS 1.3 that trusts servers signed by one of the authorities,
/// and shows `credentials` if it has some.
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

/// A client of TLS 1.3 that trusts whoever answers. Good for one thing: to ask
/// for the authority's certificate, which is then held against a fingerprint
/// that came another way.
///
/// # Errors
/// [`TlsError`].
pub fn trusting_client_config() -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let trusting = Trusting(provider.signature_verification_algorithms);
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Credentials)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trusting))
        .with_no_client_auth())
}

/// The SHA-256 of the first certificate in a PEM text, as `sha256:` and hex
/// digits.
///
/// # Errors
/// [`TlsError::Pem`].
pub fn certificate_fingerprint(pem: &str) -> Result<String, TlsError> {
    let what = "authority's certificate";
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|source| TlsError::Pem { what, source })?;
    Ok(KeyFingerprint::of(&certificate).to_string())
}

/// Takes every certificate for good, if its holder has its key.
#[derive(Debug)]
struct Trusting(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
