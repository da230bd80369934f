//! [`Client`]: the API of a running Scree, by its data directory or by a profile.

use std::io;
use std::path::{Path, PathBuf};

use api::types::Problem;
use control::folder::api_socket;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::ChangeOptions;
use crate::commands::Failure;
use crate::output::shell_word;
use crate::profiles::Profiles;
use crate::up::described_party_folder;

/// A certificate that expires within this time is renewed.
const RENEW_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(8);

/// Why a request failed.
#[derive(Debug)]
pub enum ClientError {
    /// No process serves the data directory.
    Unreachable { folder: PathBuf, source: io::Error },
    /// The directory is that of an agent or a unit daemon, which serve no API.
    NoController { text: String },
    /// No controller answers at these URLs.
    Unanswered {
        urls: Vec<String>,
        source: io::Error,
    },
    /// The connection broke, or the answer is malformed.
    Broken(String),
    /// Client or server rejected the certificate of the other.
    Certificate(&'static str),
    /// The server refused the request.
    Refused(Box<Problem>),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable { folder, source } => {
                let (word, folder) = (shell_word(folder), folder.display());
                match source.kind() {
                    io::ErrorKind::PermissionDenied => write!(
                        formatter,
                        "{folder} is not accessible ({source}), because another user serves it: run the \
                         command as that user (`sudo -u USER scree …`), or log in with a token (`scree \
                         login`)"
                    ),
                    io::ErrorKind::NotADirectory => {
                        write!(
                            formatter,
                            "{folder} is not a folder: give the data directory of a `scree up`"
                        )
                    }
                    _ => write!(
                        formatter,
                        "no process serves {folder} ({source}): start it with `scree up --dir {word}`"
                    ),
                }
            }
            Self::NoController { text } => formatter.write_str(text),
            Self::Unanswered { urls, source } => match urls.as_slice() {
                [url] => write!(
                    formatter,
                    "controller {url} does not answer: {source}; check the URL and the controller's log"
                ),
                urls => {
                    let urls = urls.join(", ");
                    write!(
                        formatter,
                        "no controller of {urls} answers; the last error: {source}"
                    )
                }
            },
            Self::Broken(why) => {
                write!(
                    formatter,
                    "the server's answer is malformed: {why}; see its log"
                )
            }
            Self::Certificate(why) => formatter.write_str(why),
            Self::Refused(problem) => {
                formatter.write_str(&problem.detail)?;
                match &problem.request_id {
                    Some(id) if problem.status == 500 => {
                        write!(formatter, " (request id {id}; see the controller's log)")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl ClientError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unanswered { .. } | Self::Broken(_) => true,
            Self::NoController { .. } | Self::Certificate(_) => false,
            Self::Refused(problem) => problem.status >= 500,
        }
    }
}

/// A client of one server or of several equal ones.
pub struct Client {
    client: api::Client,
    at: Server,
    change: ChangeOptions,
}

/// How the server is reached.
enum Server {
    Folder(PathBuf),
    Urls(Vec<String>),
}

impl Client {
    /// A client of the process that serves `folder`.
    pub fn of_folder(folder: &Path) -> Self {
        Self {
            client: api::Client::unix(&api_socket(folder)),
            at: Server::Folder(folder.to_owned()),
            change: ChangeOptions::default(),
        }
    }

    /// A client that sends every change with these options.
    pub fn with_options(mut self, change: ChangeOptions) -> Self {
        if let Some(key) = &change.idempotency_key {
            self.client = self.client.under(key);
        }
        self.change = change;
        self
    }

    fn changing(&self, path: &str) -> String {
        match (self.change.dry_run, path.contains('?')) {
            (false, _) => path.to_owned(),
            (true, true) => format!("{path}&dry_run=true"),
            (true, false) => format!("{path}?dry_run=true"),
        }
    }

    pub async fn all<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        self.with_server(self.client.all(path).await)
    }

    /// A client of this profile, or of the current one. A certificate that expires soon is renewed.
    pub async fn of_profile(name: Option<&str>) -> Result<Self, Failure> {
        let profiles = Profiles::of_user()?;
        let (mut profile, path) = profiles.open(name)?;
        profile
            .read_again(profiles.world())
            .map_err(|error| Failure::of(&error))?;
        let client = profile.client().map_err(|error| Failure::of(&error))?;
        let soon = jiff::Timestamp::now() + RENEW_BEFORE;
        let ends_soon = profile
            .expires
            .parse::<jiff::Timestamp>()
            .is_ok_and(|ends| ends < soon);
        if ends_soon && !profile.is_external() && profile.renew(&client).await.is_ok() {
            // If the new certificate cannot be written, the next command renews it again.
            let _ = profile.write(profiles.world(), &path);
        }
        Ok(Self {
            client: profile.client().map_err(|error| Failure::of(&error))?,
            at: Server::Urls(profile.urls),
            change: ChangeOptions::default(),
        })
    }

    /// The URLs of the servers as an argument of a command; `None` for a data directory.
    pub fn urls(&self) -> Option<String> {
        match &self.at {
            Server::Folder(_) => None,
            Server::Urls(urls) => Some(urls.join(",")),
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.with_server(self.client.get(path).await)
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.with_server(self.client.delete(&self.changing(path)).await)
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.with_server(self.client.post(&self.changing(path), body).await)
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.with_server(self.client.put(&self.changing(path), body).await)
    }

    /// Adds the server to an error.
    fn with_server<T>(&self, answer: Result<T, api::ClientError>) -> Result<T, ClientError> {
        answer.map_err(|error| match error {
            api::ClientError::Unreachable(source) => match &self.at {
                Server::Folder(folder) => match described_party_folder(folder) {
                    Some(what) => ClientError::NoController {
                        text: format!(
                            "{what}: give the cluster with --profile, or give the data directory of \
                             a `scree up` or a controller"
                        ),
                    },
                    None => ClientError::Unreachable {
                        folder: folder.clone(),
                        source,
                    },
                },
                Server::Urls(urls) => ClientError::Unanswered {
                    urls: urls.clone(),
                    source,
                },
            },
            api::ClientError::Broken(why) => ClientError::Broken(why),
            api::ClientError::Certificate(why) => ClientError::Certificate(why),
            api::ClientError::Refused(problem) => ClientError::Refused(problem),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inaccessible_server_is_distinguished_from_a_missing_one() {
        let said = |kind: io::ErrorKind| {
            let folder = PathBuf::from("/srv/my disks");
            let source = io::Error::from(kind);
            ClientError::Unreachable { folder, source }.to_string()
        };
        let denied = said(io::ErrorKind::PermissionDenied);
        assert!(denied.contains("another user") && !denied.contains("start it"));
        let missing = said(io::ErrorKind::NotFound);
        assert!(missing.ends_with("start it with `scree up --dir '/srv/my disks'`"));
        assert!(said(io::ErrorKind::NotADirectory).contains("is not a folder"));
    }

    #[test]
    fn a_failure_of_the_server_names_the_request_and_a_refusal_does_not() {
        let said = |status| {
            let problem = Problem {
                kind: "urn:scree:problem:internal".to_owned(),
                title: "internal".to_owned(),
                status,
                detail: "the row is damaged".to_owned(),
                code: "internal".to_owned(),
                field: None,
                request_id: Some("5f0c2a9e41d7b386".to_owned()),
            };
            ClientError::Refused(Box::new(problem)).to_string()
        };
        assert_eq!(
            said(500),
            "the row is damaged (request id 5f0c2a9e41d7b386; see the controller's log)"
        );
        for understood in [409, 503, 507] {
            assert_eq!(said(understood), "the row is damaged");
        }
    }
}
