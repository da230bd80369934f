//! A client of the API. Connections are kept and used again.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Uri, header};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tower_service::Service;
use world::host;

use crate::types::Problem;

/// Answers are lists of volumes and the like: longer ones are a mistake.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Why there is no answer, or a bad one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("{0}")]
    Unreachable(io::Error),
    /// The connection broke, or what came back is no answer.
    #[error("the server did not answer properly: {0}; see its log")]
    Broken(String),
    /// The server says no.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
}

impl ClientError {
    /// Whether the server was asked and may answer better another time.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) => true,
            Self::Refused(problem) => problem.status >= 500,
        }
    }
}

/// Asks one server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: hyper_util::client::legacy::Client<Connector, Full<Bytes>>,
}

impl Client {
    /// Asks the server that listens at `socket`.
    #[must_use]
    pub fn unix(socket: &Path) -> Self {
        let connector = Connector {
            socket: socket.into(),
        };
        Self {
            http: hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .build(connector),
        }
    }

    /// `GET path`.
    ///
    /// # Errors
    /// [`ClientError`]; so for the others.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::DELETE, path, None::<&()>).await
    }

    /// `POST path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// `PUT path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.send(Method::PUT, path, Some(body)).await
    }

    /// `what`, unless it takes longer than `wait`.
    ///
    /// # Errors
    /// [`ClientError::Broken`] then.
    pub async fn within<T>(
        wait: Duration,
        what: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        host::within(wait, what).await.unwrap_or_else(|| {
            let seconds = wait.as_secs();
            Err(ClientError::Broken(format!("no answer in {seconds} s")))
        })
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, ClientError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| broken(&error))?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            // The name is none that is looked up: see `Connector`.
            .uri(format!("http://scree{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| broken(&error))?;
        let response = self.http.request(request).await.map_err(unreachable)?;
        let status = response.status();
        let answer = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| broken(&error))?
            .to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| broken(&error));
        }
        match serde_json::from_slice(&answer) {
            Ok(problem) => Err(ClientError::Refused(Box::new(problem))),
            Err(_) => Err(ClientError::Broken(format!("HTTP status {status}"))),
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// What the client's own error hides: who could not be reached, and why.
fn unreachable(error: hyper_util::client::legacy::Error) -> ClientError {
    if !error.is_connect() {
        let cause: &dyn std::error::Error = &error;
        return ClientError::Broken(base::with_causes(cause));
    }
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // It cannot be taken out of its box.
            let error = match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            };
            return ClientError::Unreachable(error);
        }
        cause = error.source();
    }
    ClientError::Unreachable(io::Error::other(error.to_string()))
}

/// Makes connections, whatever host a URI names: there is one server.
#[derive(Clone)]
struct Connector {
    socket: Arc<Path>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket: PathBuf = self.socket.to_path_buf();
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "hyper wants tokio's sockets")]
            let stream = UnixStream::connect(socket).await?;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

/// A connection, as hyper wants it.
struct Stream(UnixStream);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl tokio::io::AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
