//! [`Authority`]: the built-in certificate authority.

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use world::{Millis, Random};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;
use zeroize::Zeroizing;

use crate::identity::{KeyFingerprint, Kind, Peer, PeerError, Subject};

/// The time by which certificates are backdated, in milliseconds, since clocks differ.
const BACKDATED_MS: i64 = 5 * 60 * 1000;

/// The lifetime of the authority's own certificate: ten years.
const AUTHORITY_DAYS: u64 = 3650;

/// The period in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// The time of signing.
    pub now: Millis,
    /// The period after that in which the certificate is valid.
    pub term: Duration,
}

impl Lifetime {
    /// The usual lifetime, one day.
    #[must_use]
    pub const fn day(now: Millis) -> Self {
        Self {
            now,
            term: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// The end of the period.
    #[must_use]
    pub fn ends(self) -> Millis {
        let term = i64::try_from(self.term.as_millis()).unwrap_or(i64::MAX);
        Millis(self.now.0.saturating_add(term))
    }
}

/// Why the authority could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate or the key is invalid.
    #[error("cannot use the authority's certificate or key")]
    Unusable(#[source] rcgen::Error),
    /// The certificate is not that of an authority.
    #[error("the certificate is not that of an authority")]
    NoAuthority,
    /// The key belongs to another certificate.
    #[error("the authority's key does not belong to its certificate")]
    ForeignKey,
    /// The request is not PKCS #10, is not signed by its own key, or has a key of an unknown
    /// kind.
    #[error("cannot use the signing request: it needs an ECDSA P-256 or Ed25519 key")]
    Request(#[source] rcgen::Error),
    /// A name cannot be put into a certificate.
    #[error("{name:?} is neither a DNS name nor an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// A new certificate cannot be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Signing, or making a key, failed.
    #[error("cannot make a certificate")]
    Crypto(#[from] rcgen::Error),
}

/// A certificate authority that signs users, hosts, controllers and unit daemons.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
}

impl Authority {
    /// Creates an authority with a new key and a certificate for it. Also returns its private
    /// key, PKCS #8 in PEM, for a file that only controllers read.
    ///
    /// # Errors
    /// [`AuthorityError::Crypto`].
    pub fn create(
        cluster: &str,
        random: &dyn Random,
        now: Millis,
    ) -> Result<(Self, Zeroizing<String>), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let lifetime = Lifetime {
            now,
            term: Duration::from_secs(AUTHORITY_DAYS * 24 * 60 * 60),
        };
        let mut params = params(lifetime, random);
        // The authority signs no intermediate authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Scree {cluster}"));
        let certificate_pem = params.self_signed(&key)?.pem();
        let key_pem = Zeroizing::new(key.serialize_pem());
        Ok((Self::open(&certificate_pem, &key_pem)?, key_pem))
    }

    /// The authority with this certificate and key, both in PEM.
    ///
    /// # Errors
    /// [`AuthorityError::Unusable`], [`AuthorityError::NoAuthority`],
    /// [`AuthorityError::ForeignKey`].
    pub fn open(certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Unusable)?;
        let public = key.public_key_raw().to_vec();
        let issuer =
            Issuer::from_ca_cert_pem(certificate_pem, key).map_err(AuthorityError::Unusable)?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_| AuthorityError::Unusable(rcgen::Error::CouldNotParseCertificate))?;
        if !Peer::is_authority(&certificate)? {
            return Err(AuthorityError::NoAuthority);
        }
        if !Peer::has_public_key(&certificate, &public)? {
            return Err(AuthorityError::ForeignKey);
        }
        Ok(Self {
            issuer,
            certificate_pem: certificate_pem.to_owned(),
        })
    }

    /// The authority's certificate, in PEM, by which certificates are verified.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A secret that only the holders of the authority's key know. Other keys of the cluster are
    /// derived from it.
    #[must_use]
    pub fn secret(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.issuer.key().serialize_der())
    }

    /// Signs the key in `request_pem` for `subject`. Only the key is taken from the request.
    /// `names` are the DNS names and IP addresses of a server.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn sign(
        &self,
        request_pem: &str,
        subject: &Subject,
        names: &[String],
        lifetime: Lifetime,
        random: &dyn Random,
    ) -> Result<String, AuthorityError> {
        let request = CertificateSigningRequestParams::from_pem(request_pem)
            .map_err(AuthorityError::Request)?;
        let params = self.params_for(subject, names, lifetime, random)?;
        let certificate = params.signed_by(&request.public_key, &self.issuer)?;
        check_key(&certificate, &request)?;
        Ok(certificate.pem())
    }

    fn params_for(
        &self,
        subject: &Subject,
        names: &[String],
        lifetime: Lifetime,
        random: &dyn Random,
    ) -> Result<CertificateParams, AuthorityError> {
        let mut params = params(lifetime, random);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match subject.kind() {
            Kind::User | Kind::Host => vec![ExtendedKeyUsagePurpose::ClientAuth],
            // A controller is a client of others when it forwards a request, and a unit daemon is
            // a client of controllers.
            Kind::Controller | Kind::Unit => vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        };
        params
            .distinguished_name
            .push(DnType::CommonName, subject.name());
        params
            .subject_alt_names
            .push(SanType::URI(ia5(&subject.to_string())?));
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(dns_name(name)?),
            });
        }
        Ok(params)
    }
}

/// The fingerprint of the key in a signing request.
///
/// # Errors
/// [`AuthorityError::Request`].
pub fn requested_key(request_pem: &str) -> Result<KeyFingerprint, AuthorityError> {
    // This checks that the request is signed with the key.
    CertificateSigningRequestParams::from_pem(request_pem).map_err(AuthorityError::Request)?;
    let unreadable = || AuthorityError::Request(rcgen::Error::CouldNotParseCertificationRequest);
    let der = CertificateSigningRequestDer::from_pem_slice(request_pem.as_bytes())
        .map_err(|_| unreadable())?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|_| unreadable())?;
    Ok(KeyFingerprint::of(
        request.certification_request_info.subject_pki.raw,
    ))
}

/// Checks that a certificate has the key of its request. rcgen takes the kind of the key from the
/// signature of the request, which need not be the key's actual kind.
fn check_key(
    certificate: &Certificate,
    request: &CertificateSigningRequestParams,
) -> Result<(), AuthorityError> {
    use rcgen::PublicKeyData as _;
    match Peer::has_public_key(certificate.der(), request.public_key.der_bytes()) {
        Ok(true) => Ok(()),
        Ok(false) | Err(PeerError::Key) => Err(AuthorityError::Request(
            rcgen::Error::UnsupportedSignatureAlgorithm,
        )),
        Err(error) => Err(error.into()),
    }
}

/// The parameters that all certificates share.
fn params(lifetime: Lifetime, random: &dyn Random) -> CertificateParams {
    let mut serial = [0; 16];
    random.fill(&mut serial);
    // Positive, and 127 bits long.
    serial[0] = serial[0] & 0x7f | 0x40;
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = DistinguishedName::new();
    params.not_before = date(Millis(lifetime.now.0.saturating_sub(BACKDATED_MS)));
    params.not_after = date(lifetime.ends());
    params
}

/// The date of a certificate. A time beyond what certificates can express becomes the nearest one.
fn date(at: Millis) -> time::OffsetDateTime {
    let (first, last) = (
        rcgen::date_time_ymd(1970, 1, 1),
        rcgen::date_time_ymd(9999, 1, 1),
    );
    let at = time::OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).unwrap_or(last);
    at.clamp(first, last)
}

fn ia5(text: &str) -> Result<Ia5String, AuthorityError> {
    Ia5String::try_from(text).map_err(|_| AuthorityError::Name {
        name: text.to_owned(),
    })
}

fn dns_name(name: &str) -> Result<Ia5String, AuthorityError> {
    rustls_pki_types::DnsName::try_from(name).map_err(|_| AuthorityError::Name {
        name: name.to_owned(),
    })?;
    ia5(name)
}
