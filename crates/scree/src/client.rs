//! A client of the HTTP API, over D's socket.

use std::io;
use std::path::{Path, PathBuf};

use control::api::types::Problem;
use control::folder::api_socket;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::output::shell_word;

/// Answers are lists of volumes and the like: longer ones are a mistake.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Why there is no answer, or a bad one.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody listens.
    Unreachable { folder: PathBuf, source: io::Error },
    /// The connection broke, or what came back is no answer.
    Broken(String),
    /// The server says no.
    Refused(Problem),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable { folder, source } => {
                let (word, folder) = (shell_word(folder), folder.display());
                match source.kind() {
                    io::ErrorKind::PermissionDenied => write!(
                        formatter,
                        "{folder} cannot be asked ({source}): it is served, if at all, by another \
                         user; ask as that user"
                    ),
                    io::ErrorKind::NotADirectory => {
                        write!(
                            formatter,
                            "{folder} is not a folder; give that of a `scree up`"
                        )
                    }
                    _ => write!(
                        formatter,
                        "nothing serves {folder} ({source}); start it with `scree up --dir {word}`"
                    ),
                }
            }
            Self::Broken(why) => {
                write!(
                    formatter,
                    "the server did not answer properly: {why}; see its log"
                )
            }
            Self::Refused(problem) => formatter.write_str(&problem.detail),
        }
    }
}

/// Talks to the `scree up` of one folder.
pub struct Client {
    folder: PathBuf,
}

impl Client {
    /// A client of the `scree up` that serves `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::DELETE, path, None::<&()>).await
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(Method::POST, path, Some(body)).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(Method::PUT, path, Some(body)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let broken = |error: &dyn std::fmt::Display| ClientError::Broken(error.to_string());
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| broken(&error))?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "scree")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| broken(&error))?;
        #[expect(clippy::disallowed_methods, reason = "hyper wants tokio's sockets")]
        let stream = UnixStream::connect(api_socket(&self.folder))
            .await
            .map_err(|source| ClientError::Unreachable {
                folder: self.folder.clone(),
                source,
            })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        let pump = tokio::spawn(connection);
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(&error))?;
        let status = response.status();
        let answer = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| broken(&error))?
            .to_bytes();
        pump.abort();
        if status.is_success() {
            serde_json::from_slice(&answer).map_err(|error| broken(&error))
        } else {
            match serde_json::from_slice(&answer) {
                Ok(problem) => Err(ClientError::Refused(problem)),
                Err(_) => Err(ClientError::Broken(format!("HTTP status {status}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_asked_is_told_from_who_is_not_there() {
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
}
