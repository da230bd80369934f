//! `Transit` is a wrapping key that a transit service holds, such as the transit engine of
//! HashiCorp Vault or OpenBao: the service encrypts and decrypts for clients with a token, and
//! never reveals the key.
//!
//! ```text
//! POST {address}/v1/{mount}/encrypt/{key}  {"plaintext": base64, "associated_data": base64}
//! POST {address}/v1/{mount}/decrypt/{key}  {"ciphertext": "vault:v1:…", "associated_data": base64}
//! ```
//!
//! A wrapped key is the service's ciphertext, unchanged. The key must be of an authenticated type
//! (`aes256-gcm96`): opening a wrapping key proves that the associated data is authenticated.
//!
//! * Connections use TLS 1.3 with a configured authority; plain HTTP goes to this machine only.
//! * Both calls may be repeated. A call is repeated once, without a pause, if its connection broke
//!   before an answer. Further retries are up to the caller.
//! * A call ends within its timeout, whatever the service does, and an answer of more than some KiB
//!   is refused. Redirections are not followed.
//! * The token is read again for each call, so that a renewed token needs no restart of the agent.
//!   No message contains it.
//!
//! The service answers 400 to a ciphertext that it cannot decrypt, but also for a missing key or a
//! key of another type: the caller distinguishes them with the verifier.
//!
//! Data keys pass through buffers of hyper and TLS that are not wiped.

mod http;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};
use world::World;
use zeroize::Zeroizing;

use super::config::TransitEntry;
use super::private::{self, PrivateFileError};
use super::remote::{Opened, RemoteCipher};
use http::Service;

/// The longest text of the service in an error, in characters.
const SAID_CHARS_MAX: usize = 200;

const TIMEOUT_SECONDS_MAX: u32 = 120;

/// Why a transit service cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TransitError {
    /// A field of the entry in `keys.toml` is wrong.
    #[error("keys.toml: {field} = {value:?} {why}")]
    Entry {
        /// The field.
        field: &'static str,
        /// The value of the field.
        value: String,
        /// What the value should be.
        why: &'static str,
    },
    /// The certificate of the authority cannot be read.
    #[error("cannot read the authority's certificate {path}", path = path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The certificate of the authority cannot be used for TLS.
    #[error("cannot use the authority's certificate {path}", path = path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: auth::TlsError,
    },
    /// The file of the token cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The file does not hold a token.
    #[error("{path} does not hold a token: it has characters that no token has", path = path.display())]
    NotAToken {
        /// The file.
        path: PathBuf,
    },
    /// No service answers at the address with this TLS.
    #[error(
        "cannot connect to {address}; is it running, and is its certificate signed by the \
         authority in `ca_path`?"
    )]
    Unreachable {
        /// Address of the service.
        address: String,
        /// The error of the operating system or TLS.
        source: io::Error,
    },
    /// The connection broke.
    #[error("{address} closed the connection before it answered")]
    Broken {
        /// The service.
        address: String,
        /// The protocol error.
        source: hyper::Error,
    },
    /// No answer came in time.
    #[error("{address} did not answer within {seconds} s")]
    TimedOut {
        /// The service.
        address: String,
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// The service does not accept the token.
    #[error("{address} refuses the token in {path} ({message}); replace the token, or allow it to \
             update {mount}/encrypt/{key} and {mount}/decrypt/{key}", path = path.display())]
    TokenRefused {
        /// The service.
        address: String,
        /// Path of the file with the token.
        path: PathBuf,
        /// Path at which the engine is mounted.
        mount: String,
        /// The key's name.
        key: String,
        /// The service's explanation.
        message: String,
    },
    /// The service refuses the request.
    #[error("{address} answered {status} to {verb} with {key} ({message}); {remedy}")]
    Status {
        /// The service.
        address: String,
        /// `encrypt` or `decrypt`.
        verb: &'static str,
        /// The mount's path and the key's name.
        key: String,
        /// The HTTP status.
        status: StatusCode,
        /// The service's explanation.
        message: String,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// The answer is not that of a transit engine.
    #[error("{address} is not a transit engine: {why}; correct `address`")]
    Answer {
        /// The service.
        address: String,
        /// What is wrong with the answer.
        why: &'static str,
    },
    /// The agent could not set up a call.
    #[error("cannot set up a call")]
    Setup(#[source] io::Error),
}

/// A key of a transit service.
pub(super) struct Transit {
    world: World,
    entry: TransitEntry,
    service: Service,
}

#[derive(Serialize)]
struct TransitRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    plaintext: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ciphertext: Option<&'a str>,
    associated_data: &'a str,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: T,
}

#[derive(Deserialize)]
struct Ciphertext {
    ciphertext: String,
}

#[derive(Deserialize)]
struct Plaintext {
    plaintext: String,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    errors: Vec<String>,
}

fn is_path(text: &str, separator: bool) -> bool {
    let is_word = |word: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !word.is_empty() && word != "." && word != ".." && word.bytes().all(allowed)
    };
    if separator {
        text.split('/').all(is_word)
    } else {
        is_word(text)
    }
}

/// Whether this is a ciphertext in the engine's canonical spelling: a lenient base64 decoder would
/// accept several spellings of it.
fn is_ciphertext(text: &str) -> bool {
    let parts = text
        .strip_prefix("vault:v")
        .and_then(|rest| rest.split_once(':'));
    parts.is_some_and(|(version, sealed)| {
        let digits = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
        digits && !version.starts_with('0') && STANDARD.decode(sealed).is_ok()
    })
}

fn invalid<T>(field: &'static str, value: &str, why: &'static str) -> Result<T, TransitError> {
    Err(TransitError::Entry {
        field,
        value: value.to_owned(),
        why,
    })
}

/// Checks all fields of an entry except its address.
fn check_names(entry: &TransitEntry) -> Result<(), TransitError> {
    if !is_path(&entry.mount, true) {
        let why = "is not the path of a mount, as in `transit`";
        return invalid("mount", &entry.mount, why);
    }
    if !is_path(&entry.key, false) {
        return invalid("key", &entry.key, "is not the name of a transit key");
    }
    if let Some(namespace) = &entry.namespace
        && !is_path(namespace.trim_end_matches('/'), true)
    {
        let why = "is not a namespace, as in `team-a`";
        return invalid("namespace", namespace, why);
    }
    if !(1..=TIMEOUT_SECONDS_MAX).contains(&entry.timeout_seconds) {
        let value = entry.timeout_seconds.to_string();
        return invalid("timeout_seconds", &value, "is not between 1 and 120");
    }
    Ok(())
}

/// The service at the address of an entry.
fn service(world: &World, entry: &TransitEntry) -> Result<Service, TransitError> {
    let bad_address = || {
        let why = "is not an address as in `https://vault.example:8200`";
        invalid("address", &entry.address, why)
    };
    let Ok(uri) = entry.address.parse::<hyper::Uri>() else {
        return bad_address();
    };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return bad_address();
    };
    if uri.path().len() > 1 || uri.query().is_some() || authority.as_str().contains('@') {
        return bad_address();
    }
    let host = authority.host().trim_matches(['[', ']']);
    let tls = match (scheme, &entry.ca_path) {
        ("https", Some(path)) => Some(http::tls(world, path)?),
        ("https", None) => {
            let why = "needs `ca_path`, the certificate of the authority that signed the \
                       service's";
            return invalid("address", &entry.address, why);
        }
        ("http", _) => {
            let address = host.parse::<IpAddr>();
            if host != "localhost" && !address.is_ok_and(|address| address.is_loopback()) {
                let why = "is not on this machine: data keys are sent over a network only by https";
                return invalid("address", &entry.address, why);
            }
            None
        }
        _ => return bad_address(),
    };
    let port = authority
        .port_u16()
        .unwrap_or(if tls.is_some() { 443 } else { 80 });
    Ok(Service {
        address: entry.address.clone(),
        authority: authority.to_string(),
        host: host.to_owned(),
        port,
        tls,
        timeout: Duration::from_secs(entry.timeout_seconds.into()),
    })
}

impl Transit {
    /// The key that `entry` names; it is first requested when it is used.
    pub(super) fn new(world: &World, entry: &TransitEntry) -> Result<Self, TransitError> {
        check_names(entry)?;
        Ok(Self {
            world: world.clone(),
            entry: entry.clone(),
            service: service(world, entry)?,
        })
    }

    fn answer(&self, why: &'static str) -> TransitError {
        TransitError::Answer {
            address: self.entry.address.clone(),
            why,
        }
    }

    /// The service's text for an error: shortened, and without the token.
    fn error_text(&self, body: &[u8], token: &str) -> String {
        let Ok(refusal) = serde_json::from_slice::<Refusal>(body) else {
            return "no further explanation".to_owned();
        };
        let message = refusal.errors.join("; ").replace(token, "[the token]");
        let message: String = message
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .take(SAID_CHARS_MAX)
            .collect();
        if message.trim().is_empty() {
            "no further explanation".to_owned()
        } else {
            message
        }
    }

    fn headers(&self, token: &str) -> Result<Vec<(&'static str, HeaderValue)>, TransitError> {
        let Ok(mut value) = HeaderValue::from_str(token) else {
            return Err(TransitError::NotAToken {
                path: self.entry.token_path.clone(),
            });
        };
        value.set_sensitive(true);
        let mut headers = vec![
            ("x-vault-token", value),
            ("x-vault-request", HeaderValue::from_static("true")),
        ];
        if let Some(namespace) = &self.entry.namespace {
            let value = HeaderValue::from_str(namespace).expect("checked: letters and digits");
            headers.push(("x-vault-namespace", value));
        }
        Ok(headers)
    }

    /// Makes a request. The inner error means that the service rejects the request itself, as it
    /// does for a ciphertext that is not its own.
    fn request(
        &self,
        verb: &'static str,
        request: &TransitRequest<'_>,
    ) -> Result<Result<Bytes, TransitError>, TransitError> {
        let token = private::read_line(&self.world, &self.entry.token_path, "token")?;
        let token = token.trim();
        let TransitEntry { mount, key, .. } = &self.entry;
        let path = format!("/v1/{mount}/{verb}/{key}");
        let body = serde_json::to_vec(request).expect("strings are JSON");
        let body = Bytes::from_owner(Zeroizing::new(body));
        let (status, answer) = self.service.post(&path, &self.headers(token)?, &body)?;
        if status.is_success() {
            return Ok(Ok(answer));
        }
        let address = self.entry.address.clone();
        let message = self.error_text(&answer, token);
        if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED {
            return Err(TransitError::TokenRefused {
                address,
                path: self.entry.token_path.clone(),
                mount: mount.clone(),
                key: key.clone(),
                message,
            });
        }
        let remedy = match status.as_u16() {
            300..400 => "give the address of the active node: redirections are not followed",
            404 => "correct `mount`, `key` or `namespace`",
            503 => "unseal it, or give the address of the active node",
            500.. | 429 => "see the service's log, and try again",
            _ => "the key should be of type aes256-gcm96, and not derived",
        };
        let error = TransitError::Status {
            address,
            verb,
            key: format!("{mount}/{key}"),
            status,
            message,
            remedy,
        };
        if status == StatusCode::BAD_REQUEST {
            Ok(Err(error))
        } else {
            Err(error)
        }
    }
}

impl RemoteCipher for Transit {
    type Error = TransitError;

    fn seal(&self, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>, TransitError> {
        let plaintext = Zeroizing::new(STANDARD.encode(plain));
        let request = TransitRequest {
            plaintext: Some(&plaintext),
            ciphertext: None,
            associated_data: &STANDARD.encode(associated),
        };
        let answer = self.request("encrypt", &request)??;
        let answer: Answer<Ciphertext> =
            serde_json::from_slice(&answer).map_err(|_| self.answer("it has no ciphertext"))?;
        if !is_ciphertext(&answer.data.ciphertext) {
            return Err(self.answer("the ciphertext does not have the form `vault:v1:…`"));
        }
        Ok(answer.data.ciphertext.into_bytes())
    }

    fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Opened, TransitError> {
        let Some(ciphertext) = std::str::from_utf8(sealed)
            .ok()
            .filter(|text| is_ciphertext(text))
        else {
            return Ok(Opened::Refused);
        };
        let request = TransitRequest {
            plaintext: None,
            ciphertext: Some(ciphertext),
            associated_data: &STANDARD.encode(associated),
        };
        let Ok(answer) = self.request("decrypt", &request)? else {
            return Ok(Opened::Refused);
        };
        let answer: Answer<Plaintext> =
            serde_json::from_slice(&answer).map_err(|_| self.answer("it has no plaintext"))?;
        let base64 = Zeroizing::new(answer.data.plaintext);
        match STANDARD.decode(&*base64) {
            Ok(plain) => Ok(Opened::Plain(Zeroizing::new(plain))),
            Err(_) => Err(self.answer("the plaintext is not base64")),
        }
    }

    fn description(&self) -> String {
        let TransitEntry {
            address,
            mount,
            key,
            ..
        } = &self.entry;
        format!("the transit key {mount}/{key} at {address}")
    }
}
