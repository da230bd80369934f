//! The built-in certificate authority.

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

/// Clocks differ: a certificate holds from this long before it was signed, in
/// milliseconds.
const BACKDATED_MS: i64 = 5 * 60 * 1000;

/// The authority itself holds for ten years.
const AUTHORITY_DAYS: u64 = 3650;

/// From when to when a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// When it is signed.
    pub now: Millis,
    /// How long it then holds.
    pub term: Duration,
}

impl Lifetime {
    /// The usual day.
    #[must_use]
    pub const fn day(now: Millis) -> Self {
        Self {
            now,
            term: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// When it ends.
    #[must_use]
    pub fn ends(self) -> Millis {
        let term = i64::try_from(self.term.as_millis()).unwrap_or(i64::MAX);
        Millis(self.now.0.saturating_add(term))
    }
}

/// Why the authority could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate or key is not what it should be.
    #[error("the authority's certificate or key cannot be used")]
    Unusable(#[source] rcgen::Error),
    /// The certificate is somebody else's than an authority's.
    #[error("this is not an authority's certificate")]
    NoAuthority,
    /// The key is another certificate's.
    #[error("the authority's key does not belong to its certificate")]
    ForeignKey,
    /// The request is no PKCS #10, is not signed by its own key, or the key is
    /// of a kind that is not known.
    #[error("the signing request cannot be used: it needs an ECDSA P-256 or Ed25519 key")]
    Request(#[source] rcgen::Error),
    /// A DNS name or address that cannot be put into a certificate.
    #[error("{name:?} is neither a DNS name nor an IP address")]
    Name {
        /// What was given.
        name: String,
    },
    /// A certificate that was just made cannot be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Signing, or making a key, failed.
    #[error("a certificate could not be made")]
    Crypto(#[from] rcgen::Error),
}

/// Signs users, hosts and controllers.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
}

impl Authority {
    /// Founds an authority: a new key and a certificate for it. Returns its
    /// private key, PKCS #8 in PEM, for a file that only controllers read.
    ///
    /// # Errors
    /// [`AuthorityError::Crypto`].
    pub fn found(
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
        // Nothing between it and those it signs.
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

    /// Its certificate, in PEM: what those it signs are checked by.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// What only those have who have its key: other keys of the cluster's are derived
    /// from it.
    #[must_use]
    pub fn secret(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.issuer.key().serialize_der())
    }

    /// Signs the key in `request_pem` for `subject`. Nothing but the key is
    /// taken from the request. `names` are DNS names and IP addresses, for
    /// those that serve.
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
            // A controller asks another when it forwards, a unit daemon asks
            // controllers.
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

/// The key that a signing request asks to have signed.
///
/// # Errors
/// [`AuthorityError::Request`].
pub fn requested_key(request_pem: &str) -> Result<KeyFingerprint, AuthorityError> {
    // Checks that whoever asks has the key.
    CertificateSigningRequestParams::from_pem(request_pem).map_err(AuthorityError::Request)?;
    let unreadable = || AuthorityError::Request(rcgen::Error::CouldNotParseCertificationRequest);
    let der = CertificateSigningRequestDer::from_pem_slice(request_pem.as_bytes())
        .map_err(|_| unreadable())?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|_| unreadable())?;
    Ok(KeyFingerprint::of(
        request.certification_request_info.subject_pki.raw,
    ))
}

/// The kind of a key is told by how the request was signed, which need not be
/// the kind it is: what was signed must be the key that asked.
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

/// What all certificates share.
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

/// Beyond what certificates can say, the nearest that they can.
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
