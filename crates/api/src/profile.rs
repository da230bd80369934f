//! A party's profile: the URLs of the controllers, and the party's certificate with its key, in a
//! file that only its owner can read.
//!
//! ```toml
//! urls = ["https://c1.example:8443", "https://c2.example:8443"]
//! subject = "scree://user/alice"
//! expires = "2026-01-31T09:30:00Z"
//! authority = """-----BEGIN CERTIFICATE-----…"""
//! certificate = """-----BEGIN CERTIFICATE-----…"""
//! key = """-----BEGIN PRIVATE KEY-----…"""
//! ```
//!
//! `authority` is the certificate that the server is verified with. If the party's certificate was
//! issued by another authority than the cluster's own, `certificate_file` and `key_file` name the
//! files it comes from. It is read from there again, since another program renews it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use auth::{
    AuthorityError, Credentials, KeyRequest, Kind, ServerTls, Subject, TlsError, certificate_end,
    certificate_fingerprint, client_config, trusting_client_config,
};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use world::{World, host};
use zeroize::Zeroizing;

use crate::client::{Address, BadAddress};
use crate::types::{AuthorityView, Certificate, Join, Party, Renew};
use crate::{Client, ClientError};

/// The longest profile in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A party's certificate and key, and how to reach the controllers. It is what a client
/// authenticates with.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The controllers' URLs, at least one. Any of them may be asked.
    pub urls: Vec<String>,
    /// The party's URI, such as `scree://user/alice`.
    pub subject: String,
    /// When the certificate expires.
    pub expires: String,
    authority: String,
    certificate: String,
    key: Zeroizing<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Profile({} at {})",
            self.subject,
            self.urls.join(", ")
        )
    }
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read or written.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error(
        "{path} is readable by other users (mode {mode:03o}), and contains a private key; run \
         `chmod 600 {path}`, and join again if someone may have read it",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
    /// The file is not a profile, or not a certificate.
    #[error("{path} cannot be used: {why}", path = path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A URL is not valid.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A key could not be created.
    #[error(transparent)]
    Key(#[from] AuthorityError),
    /// The server refused the request, or did not answer.
    #[error("{url}: {source}")]
    Server {
        /// The server.
        url: String,
        /// The client's error.
        source: ClientError,
    },
    /// The server has another authority than expected.
    #[error(
        "{url} has an authority with the fingerprint {found}, not {expected}: it is another \
         cluster, or the connection is intercepted; ask the administrator who issued the token"
    )]
    OtherAuthority {
        /// The server.
        url: String,
        /// The fingerprint of its authority.
        found: String,
        /// The expected fingerprint.
        expected: String,
    },
}

/// The files of a certificate that another authority signed and renews.
#[derive(Debug, Clone, Copy)]
pub struct CertificateFiles<'a> {
    /// The certificate chain in PEM.
    pub certificate: &'a Path,
    /// The private key in PEM.
    pub key: &'a Path,
}

impl Profile {
    /// Joins a cluster as the party that `token` was issued for, which must be of this kind. The
    /// authority of the controllers at `urls` must have this fingerprint. The first that answers is
    /// used.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub async fn join(
        kind: Kind,
        urls: &[String],
        token: &str,
        fingerprint: &str,
    ) -> Result<Self, ProfileError> {
        let addresses = addresses(urls)?;
        let url = urls.join(", ");
        let failed = |source| ProfileError::Server {
            url: url.clone(),
            source,
        };
        let trusting = Client::https(addresses.clone(), Arc::new(trusting_client_config()?));
        let view: AuthorityView = trusting.get("/v1/authority").await.map_err(failed)?;
        let found = certificate_fingerprint(&view.certificate)?;
        if found != fingerprint {
            return Err(ProfileError::OtherAuthority {
                url,
                found,
                expected: fingerprint.to_owned(),
            });
        }
        Self::join_trusting(kind, urls, token, view.certificate).await
    }

    /// As [`Profile::join`], with controllers whose certificates `authority` (PEM) has signed.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub async fn join_trusting(
        kind: Kind,
        urls: &[String],
        token: &str,
        authority: String,
    ) -> Result<Self, ProfileError> {
        let url = urls.join(", ");
        let failed = |source| ProfileError::Server {
            url: url.clone(),
            source,
        };
        let tls = client_config(&[&authority], None)?;
        let client = Client::https(addresses(urls)?, Arc::new(tls));
        let key = KeyRequest::generate()?;
        let request = Join {
            token: token.to_owned(),
            signing_request: key.request_pem.clone(),
            kind: Some(kind.as_str().to_owned()),
        };
        let issued: Certificate = client.post("/v1/join", &request).await.map_err(failed)?;
        Ok(Self {
            urls: urls.to_vec(),
            subject: issued.subject,
            expires: issued.expires,
            authority,
            certificate: issued.certificate,
            key: key.key_pem,
            certificate_file: None,
            key_file: None,
        })
    }

    /// A profile with a certificate of an authority that the controllers accept beside their own.
    /// The controllers' certificates are signed by `authority` (PEM).
    ///
    /// # Errors
    /// [`ProfileError`], also if a controller does not accept the certificate.
    pub async fn with_external_certificate(
        world: &World,
        urls: &[String],
        authority: String,
        files: CertificateFiles<'_>,
    ) -> Result<Self, ProfileError> {
        let mut profile = Self {
            urls: urls.to_vec(),
            subject: String::new(),
            expires: String::new(),
            authority,
            certificate: String::new(),
            key: Zeroizing::default(),
            certificate_file: Some(files.certificate.to_owned()),
            key_file: Some(files.key.to_owned()),
        };
        profile.read_again(world)?;
        let me: Party =
            profile
                .client()?
                .get("/v1/me")
                .await
                .map_err(|source| ProfileError::Server {
                    url: urls.join(", "),
                    source,
                })?;
        profile.subject = format!("scree://{}/{}", me.kind, me.name);
        Ok(profile)
    }

    /// Whether another authority signed its certificate and renews it.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.certificate_file.is_some()
    }

    /// Reads an external certificate again from its files.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn read_again(&mut self, world: &World) -> Result<(), ProfileError> {
        let (Some(certificate), Some(key)) = (&self.certificate_file, &self.key_file) else {
            return Ok(());
        };
        check_private(key)?;
        let chain = read_text(world, certificate)?;
        let ends = certificate_end(&chain)?;
        let ends =
            jiff::Timestamp::from_millisecond(ends.0).map_err(|error| ProfileError::Bad {
                path: certificate.clone(),
                why: error.to_string(),
            })?;
        self.key = read_text(world, key)?;
        self.expires = ends.to_string();
        self.certificate = chain.to_string();
        Ok(())
    }

    /// Reads the profile in the file at `path`.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn read(world: &World, path: &Path) -> Result<Self, ProfileError> {
        check_private(path)?;
        let text = read_text(world, path)?;
        // Only the message: the full error may quote the file, and so the key.
        toml::from_str(&text).map_err(|error| ProfileError::Bad {
            path: path.to_owned(),
            why: error.message().to_owned(),
        })
    }

    /// Writes the profile to the file at `path`, completely or not at all.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn write(&self, world: &World, path: &Path) -> Result<(), ProfileError> {
        let text = toml::to_string(self)
            .map_err(io::Error::other)
            .map_err(failed(path))?;
        let text = Zeroizing::new(text);
        host::write_whole(&*world.disk, path, text.as_bytes()).map_err(failed(path))
    }

    /// The TLS configuration of a client that presents the certificate.
    ///
    /// # Errors
    /// [`ProfileError::Tls`].
    pub fn tls(&self) -> Result<Arc<ClientConfig>, ProfileError> {
        let config = client_config(&[&self.authority], Some(self.credentials()))?;
        Ok(Arc::new(config))
    }

    /// TLS for a server that is this party, for clients that the authority in `authority_pem` has
    /// signed.
    ///
    /// # Errors
    /// [`ProfileError::Tls`].
    pub fn server_tls(&self, authority_pem: &str) -> Result<ServerTls, ProfileError> {
        let credentials = self.credentials();
        Ok(ServerTls::new(authority_pem, &[], credentials)?)
    }

    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            chain_pem: &self.certificate,
            key_pem: &self.key,
        }
    }

    /// The kind of party, if the subject can be parsed.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        let subject: Subject = self.subject.parse().ok()?;
        Some(subject.kind())
    }

    /// A client that authenticates as this party.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn client(&self) -> Result<Client, ProfileError> {
        Ok(Client::https(addresses(&self.urls)?, self.tls()?))
    }

    /// Renews the certificate for the same key. `client` authenticates as this party.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub async fn renew(&mut self, client: &Client) -> Result<(), ProfileError> {
        let request = Renew {
            signing_request: KeyRequest::for_key(&self.key)?.request_pem,
        };
        let issued: Certificate =
            client
                .post("/v1/me/certificate", &request)
                .await
                .map_err(|source| ProfileError::Server {
                    url: self.urls.join(", "),
                    source,
                })?;
        self.expires = issued.expires;
        self.certificate = issued.certificate;
        Ok(())
    }
}

fn addresses(urls: &[String]) -> Result<Vec<Address>, BadAddress> {
    if urls.is_empty() {
        return Err(BadAddress(String::new()));
    }
    urls.iter().map(|url| url.parse()).collect()
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ProfileError {
    let path = path.to_owned();
    move |source| ProfileError::Io { path, source }
}

/// Refuses a file that other users than its owner can read.
fn check_private(path: &Path) -> Result<(), ProfileError> {
    match host::mode_for_others(path).map_err(failed(path))? {
        Some(mode) => Err(ProfileError::Open {
            path: path.to_owned(),
            mode,
        }),
        None => Ok(()),
    }
}

/// The text of a small file.
fn read_text(world: &World, path: &Path) -> Result<Zeroizing<String>, ProfileError> {
    let bytes = host::read_small(&*world.disk, path, FILE_BYTES_MAX).map_err(failed(path))?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(error) => Err(ProfileError::Bad {
            path: path.to_owned(),
            why: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "subject = \"scree://user/a\"\nexpires = \"\"\nauthority = \"\"\n\
        certificate = \"\"\nkey = \"\"\n";

    fn read(urls: &str) -> Result<Profile, toml::de::Error> {
        toml::from_str(&format!("{urls}\n{REST}"))
    }

    #[test]
    fn a_profile_names_at_least_one_controller() {
        let new = read("urls = [\"https://c1:8443\", \"https://c2:8443\"]").expect("a profile");
        assert_eq!(new.urls.len(), 2);
        let text = toml::to_string(&new).expect("TOML");
        assert!(text.contains("https://c2:8443"), "{text}");
        assert!(read("").is_err());
        assert!(read("url = \"https://c1\"").is_err());
        let none = read("urls = []").expect("read").client();
        assert!(matches!(none, Err(ProfileError::Address(_))));
    }
}
