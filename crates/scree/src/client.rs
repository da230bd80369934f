//! Asking the `scree up` of a folder.

use std::io;
use std::path::{Path, PathBuf};

use api::types::Problem;
use control::folder::api_socket;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output::shell_word;

/// Why there is no answer, or a bad one.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody listens.
    Unreachable { folder: PathBuf, source: io::Error },
    /// The connection broke, or what came back is no answer.
    Broken(String),
    /// The server says no.
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
    client: api::Client,
}

impl Client {
    /// A client of the `scree up` that serves `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            client: api::Client::unix(&api_socket(folder)),
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.told(self.client.get(path).await)
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.told(self.client.delete(path).await)
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.told(self.client.post(path, body).await)
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.told(self.client.put(path, body).await)
    }

    fn told<T>(&self, answer: Result<T, api::ClientError>) -> Result<T, ClientError> {
        answer.map_err(|error| match error {
            api::ClientError::Unreachable(source) => ClientError::Unreachable {
                folder: self.folder.clone(),
                source,
            },
            api::ClientError::Broken(why) => ClientError::Broken(why),
            api::ClientError::Refused(problem) => ClientError::Refused(problem),
        })
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
