//! [`Peer`]: what a certificate says about its holder.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use world::Millis;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::identity::Subject;

/// The SHA-256 of a public key (its SubjectPublicKeyInfo). It identifies a party, whichever
/// certificate the party presents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyFingerprint(pub [u8; 32]);

impl KeyFingerprint {
    /// The fingerprint of a SubjectPublicKeyInfo in DER.
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

/// The error for text that is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a key fingerprint, which is sha256: and 64 hex digits")]
pub struct BadFingerprint {
    /// The text.
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
        let mut spelled = String::with_capacity(64);
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(bad());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map_err(|_| bad())?;
            let _ = write!(spelled, "{byte:02x}");
        }
        // Each key has one spelling.
        if spelled == digits {
            Ok(Self(bytes))
        } else {
            Err(bad())
        }
    }
}

/// Why a certificate could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The certificate is not X.509.
    #[error("cannot read the certificate")]
    Certificate,
    /// The certificate is not signed by an accepted authority, or is not valid now.
    #[error("the certificate is not signed by an accepted authority, or has just expired")]
    Unsigned,
    /// The certificate's key cannot be read.
    #[error("cannot read the certificate's key")]
    Key,
}

/// Why a certificate has no usable subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSubject {
    /// The certificate has no subject. The common name does not count.
    #[error(
        "the certificate has no subject: it needs one URI scree://user/NAME or scree://host/NAME \
         as its subject alternative name; the common name does not count"
    )]
    None,
    /// The certificate has several subjects.
    #[error("the certificate names both {0} and {1}: it must name only one of them")]
    Several(Subject, Subject),
    /// The certificate has a URI that looks like a subject and is not one.
    #[error(
        "the certificate names {0:?}, which is not of the form scree://user/NAME or \
         scree://host/NAME"
    )]
    Misspelled(String),
}

/// The kind of authority that signed a certificate, which decides how its holder is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedBy {
    /// The cluster's own authority: the holder is identified by the key.
    OwnAuthority,
    /// An authority that the operator has named: the holder is identified by the subject.
    NamedAuthority,
}

/// The holder of a certificate whose chain and dates have been verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The holder's key.
    pub key: KeyFingerprint,
    /// The kind of authority that signed the certificate.
    pub signed_by: SignedBy,
    /// The subjects in the certificate. They are as trustworthy as the authority that signed it.
    pub subjects: Vec<Subject>,
    /// URIs in the certificate that look like subjects and are not.
    pub misspelled: Vec<String>,
    /// The end of the certificate's lifetime.
    pub ends: Millis,
}

impl Peer {
    /// Reads a certificate. It does not verify the signature, which TLS does.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn of(certificate: &CertificateDer<'_>, signed_by: SignedBy) -> Result<Self, PeerError> {
        let parsed = parse(certificate)?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| PeerError::Certificate)?;
        let (mut subjects, mut misspelled) = (Vec::new(), Vec::new());
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            let GeneralName::URI(uri) = name else {
                continue;
            };
            match uri.parse() {
                Ok(subject) => subjects.push(subject),
                Err(_) if looks_like_a_subject(uri) => misspelled.push((*uri).to_owned()),
                // URIs of other programs are ignored.
                Err(_) => {}
            }
        }
        Ok(Self {
            key: KeyFingerprint::of(parsed.tbs_certificate.subject_pki.raw),
            signed_by,
            subjects,
            misspelled,
            ends: Millis(parsed.validity().not_after.timestamp().saturating_mul(1000)),
        })
    }

    /// The subject of the certificate.
    ///
    /// # Errors
    /// [`NoSubject`] if there is none or more than one.
    pub fn subject(&self) -> Result<&Subject, NoSubject> {
        match (self.subjects.as_slice(), self.misspelled.as_slice()) {
            (_, [first, ..]) => Err(NoSubject::Misspelled(first.clone())),
            ([], []) => Err(NoSubject::None),
            ([subject], []) => Ok(subject),
            ([one, other, ..], []) => Err(NoSubject::Several(one.clone(), other.clone())),
        }
    }

    /// Whether the certificate is that of an authority.
    pub(crate) fn is_authority(certificate: &CertificateDer<'_>) -> Result<bool, PeerError> {
        Ok(parse(certificate)?.is_ca())
    }

    /// Whether `raw` is the certificate's public key.
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

fn looks_like_a_subject(uri: &str) -> bool {
    let scheme = uri.split(':').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case("scree")
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
    fn a_fingerprint_has_one_spelling() {
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
