//! One HTTP POST over a connection of its own, with a timeout.
//!
//! Callers block a thread and hyper runs on tasks, so each call has a small runtime of its own. A
//! volume's keys are unwrapped once for each attach, so the cost of the runtime and the handshake
//! does not matter. A client with a connection pool would not need less code: the resolved address
//! must be checked (plain HTTP is only for this machine), and a broken connection must be
//! distinguished from an answer that is not HTTP.
//!
//! Must not know: the meaning of requests, tokens.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use world::{OpenMode, World, host};

use super::TransitError;

/// The longest answer, in bytes; a wrapped key has some hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

const CA_BYTES_MAX: u64 = 1 << 20;

/// A service, and how to connect to it.
pub(super) struct Service {
    /// The configured address, for messages.
    pub(super) address: String,
    /// Host and port, as in the address.
    pub(super) authority: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// `None`: plain HTTP, to this machine only.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Timeout of a whole call.
    pub(super) timeout: Duration,
}

/// TLS settings that trust the authority whose certificate is in this file.
pub(super) fn tls(world: &World, path: &Path) -> Result<Arc<ClientConfig>, TransitError> {
    let read = || {
        let file = world.disk.open(path, OpenMode::Read)?;
        let length = file.length()?;
        if length > CA_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is too long",
            ));
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0)?;
        String::from_utf8(bytes)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not text"))
    };
    let pem = read().map_err(|source| TransitError::Authority {
        path: path.to_owned(),
        source,
    })?;
    match auth::client_config(&[&pem], None) {
        Ok(config) => Ok(Arc::new(config)),
        Err(source) => Err(TransitError::Tls {
            path: path.to_owned(),
            source,
        }),
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Service {
    /// Makes a request, and repeats it once if the connection broke before an answer.
    pub(super) fn post(
        &self,
        path: &str,
        headers: &[(&'static str, HeaderValue)],
        body: &Bytes,
    ) -> Result<(StatusCode, Bytes), TransitError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(TransitError::Setup)?;
        let answer = runtime.block_on(host::timeout(self.timeout, async {
            match self.post_once(path, headers, body).await {
                Err(TransitError::Broken { .. }) => self.post_once(path, headers, body).await,
                answer => answer,
            }
        }));
        // This does not wait for a pending name resolution.
        runtime.shutdown_background();
        answer.unwrap_or_else(|| {
            Err(TransitError::TimedOut {
                address: self.address.clone(),
                seconds: self.timeout.as_secs(),
            })
        })
    }

    async fn post_once(
        &self,
        path: &str,
        headers: &[(&'static str, HeaderValue)],
        body: &Bytes,
    ) -> Result<(StatusCode, Bytes), TransitError> {
        let mut request = Request::post(path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request
            .body(Full::new(body.clone()))
            .expect("the parts were checked");
        let stream = self
            .connect()
            .await
            .map_err(|source| TransitError::Unreachable {
                address: self.address.clone(),
                source,
            })?;
        let response = send(stream, request).await;
        let response = response.map_err(|source| {
            let address = self.address.clone();
            if source.is_parse() {
                let why = "the answer is not HTTP/1.1";
                TransitError::Answer { address, why }
            } else {
                TransitError::Broken { address, source }
            }
        })?;
        let status = response.status();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
        {
            Ok(answer) => Ok((status, answer.to_bytes())),
            Err(_) => Err(TransitError::Answer {
                address: self.address.clone(),
                why: "the answer is truncated or too long",
            }),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in tokio::net::lookup_host((self.host.as_str(), self.port)).await? {
            match self.connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        if self.tls.is_none() && !address.ip().is_loopback() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "its name resolves to another machine, which requires https",
            ));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "world only listens, and no simulator has a transit service"
        )]
        let stream = TcpStream::connect(address).await?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(tls))
            .connect(name, stream)
            .await?;
        Ok(Box::new(stream))
    }
}

async fn send(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the runtime.
    tokio::spawn(connection);
    sender.send_request(request).await
}
