//! [`KeyRequest`]: a key pair and the request to sign it.

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use zeroize::Zeroizing;

use crate::identity::AuthorityError;

/// A key pair, whose private key never leaves this machine, and the request to sign it.
pub struct KeyRequest {
    /// The private key, PKCS #8 in PEM.
    pub key_pem: Zeroizing<String>,
    /// The signing request, PKCS #10 in PEM. It proves that the sender has the key and contains
    /// nothing else: the authority knows the subject.
    pub request_pem: String,
}

impl KeyRequest {
    /// Makes a key pair (ECDSA on P-256, which every TLS client knows).
    ///
    /// # Errors
    /// [`AuthorityError::Crypto`] if the system has no randomness.
    pub fn generate() -> Result<Self, AuthorityError> {
        Self::of(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
    }

    /// A request for an existing private key, PKCS #8 in PEM.
    ///
    /// # Errors
    /// [`AuthorityError::Unusable`] if the text is not a key.
    pub fn for_key(key_pem: &str) -> Result<Self, AuthorityError> {
        Self::of(&KeyPair::from_pem(key_pem).map_err(AuthorityError::Unusable)?)
    }

    fn of(key: &KeyPair) -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(key)?;
        Ok(Self {
            key_pem: Zeroizing::new(key.serialize_pem()),
            request_pem: request.pem()?,
        })
    }
}
