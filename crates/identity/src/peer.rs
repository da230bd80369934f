//! What a certificate says about its holder.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use world::Millis;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::Subject;

/// SHA-256 of a public key (its SubjectPublicKeyInfo): who has that key is
/// that party, whichever certificate is shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyFingerprint(pub [u8; 32]);

impl KeyFingerprint {
    /// That of a SubjectPublicKeyInfo, as DER.
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        let hash = digest(&SHA256, public_key);
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("sha256:")?;
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a key's fingerprint: sha256: and 64 hex digits")]
pub struct BadFingerprint {
    /// What was given.
    pub text: String,
}

impl FromStr for KeyFingerprint {
    type Err = BadFingerprint;

    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let bad = || BadFingerprint {
            text: text.to_owned(),
        };
        let digits = text.strip_prefix("sha256:").ok_or_else(bad)?;
        let mut bytes = [0; 32];
        let mut spelt = String::with_capacity(64);
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(bad());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map_err(|_| bad())?;
            let _ = write!(spelt, "{byte:02x}");
        }
        // One spelling for one key.
        if spelt == digits {
            Ok(Self(bytes))
        } else {
            Err(bad())
        }
    }
}

/// Why a certificate could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It is no X.509.
    #[error("the certificate cannot be read")]
    Certificate,
    /// Its key cannot be read.
    #[error("the certificate's key cannot be read")]
    Key,
}

/// The holder of a certificate whose chain and dates have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its key.
    pub key: KeyFingerprint,
    /// Who it is said to be. Worth as much as the authority that signed it.
    pub subjects: Vec<Subject>,
    /// When it ends.
    pub ends: Millis,
}

impl Peer {
    /// Reads a certificate. Does not check who signed it: that is for TLS.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, PeerError> {
        let parsed = parse(certificate)?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| PeerError::Certificate)?;
        let uri = |name: &GeneralName<'_>| match name {
            GeneralName::URI(uri) => uri.parse().ok(),
            _ => None,
        };
        Ok(Self {
            key: KeyFingerprint::of(parsed.tbs_certificate.subject_pki.raw),
            subjects: names
                .iter()
                .flat_map(|names| &names.value.general_names)
                .filter_map(uri)
                .collect(),
            ends: Millis(parsed.validity().not_after.timestamp().saturating_mul(1000)),
        })
    }

    /// Whether the certificate is an authority's.
    pub(crate) fn is_authority(certificate: &CertificateDer<'_>) -> Result<bool, PeerError> {
        Ok(parse(certificate)?.is_ca())
    }

    /// Whether `raw` are the bits of the certificate's public key.
    pub(crate) fn has_public_key(
        certificate: &CertificateDer<'_>,
        raw: &[u8],
    ) -> Result<bool, PeerError> {
        let parsed = parse(certificate)?;
        let key = &parsed.tbs_certificate.subject_pki;
        key.parsed().map_err(|_| PeerError::Key)?;
        Ok(*key.subject_public_key.data == *raw)
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(PeerError::Certificate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_spelt_in_one_way() {
        let fingerprint = KeyFingerprint([0xab; 32]);
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        for bad in [
            &text[1..],
            &text[..text.len() - 1],
            &text.replace("ab", "AB"),
            &text.replace("ab", "+a"),
            &format!("{text}0"),
        ] {
            assert!(bad.parse::<KeyFingerprint>().is_err(), "{bad}");
        }
    }
}
