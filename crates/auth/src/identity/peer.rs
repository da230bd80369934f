//! What a certificate says about its holder.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use world::Millis;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::identity::Subject;

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
    /// No authority that counts has signed it, or it does not hold now.
    #[error("no authority that counts has signed the certificate, or it has just ended")]
    Unsigned,
    /// Its key cannot be read.
    #[error("the certificate's key cannot be read")]
    Key,
}

/// Why a certificate names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSubject {
    /// Nothing in it is a subject. (The common name is for people.)
    #[error(
        "the certificate names nobody: it needs one URI scree://user/NAME or scree://host/NAME as \
         its subject alternative name; the common name does not count"
    )]
    None,
    /// It is for several.
    #[error("the certificate names both {0} and {1}: it must name one of them")]
    Several(Subject, Subject),
    /// Nearly a subject.
    #[error(
        "the certificate names {0:?}, which is not spelt scree://user/NAME or scree://host/NAME"
    )]
    Misspelt(String),
}

/// By whom a certificate is signed, and so what is believed of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedBy {
    /// The cluster's own authority: its holder is known by the key.
    OwnAuthority,
    /// One that the operator has named: its holder is known by what it says.
    NamedAuthority,
}

/// The holder of a certificate whose chain and dates have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its key.
    pub key: KeyFingerprint,
    /// Whom it is signed by.
    pub signed_by: SignedBy,
    /// Who it is said to be. Worth as much as the authority that signed it.
    pub subjects: Vec<Subject>,
    /// What is said so that begins like a subject and is none.
    pub misspelt: Vec<String>,
    /// When it ends.
    pub ends: Millis,
}

impl Peer {
    /// Reads a certificate. Does not check who signed it: that is for TLS.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn of(certificate: &CertificateDer<'_>, signed_by: SignedBy) -> Result<Self, PeerError> {
        let parsed = parse(certificate)?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| PeerError::Certificate)?;
        let (mut subjects, mut misspelt) = (Vec::new(), Vec::new());
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            let GeneralName::URI(uri) = name else {
                continue;
            };
            match uri.parse() {
                Ok(subject) => subjects.push(subject),
                Err(_) if looks_like_a_subject(uri) => misspelt.push((*uri).to_owned()),
                // Other programs' names are their own.
                Err(_) => {}
            }
        }
        Ok(Self {
            key: KeyFingerprint::of(parsed.tbs_certificate.subject_pki.raw),
            signed_by,
            subjects,
            misspelt,
            ends: Millis(parsed.validity().not_after.timestamp().saturating_mul(1000)),
        })
    }

    /// The one subject that the certificate names.
    ///
    /// # Errors
    /// [`NoSubject`] if there is none, or more than one: then it is not for this
    /// program to choose.
    pub fn subject(&self) -> Result<&Subject, NoSubject> {
        match (self.subjects.as_slice(), self.misspelt.as_slice()) {
            (_, [first, ..]) => Err(NoSubject::Misspelt(first.clone())),
            ([], []) => Err(NoSubject::None),
            ([subject], []) => Ok(subject),
            ([one, other, ..], []) => Err(NoSubject::Several(one.clone(), other.clone())),
        }
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
