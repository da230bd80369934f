//! Certificates, a server that checks them, and a client that shows them.

use std::net::SocketAddr;
use std::sync::Arc;

use auth::{Authority, Credentials, KeyRequest, Lifetime, ServerTls, client_config};
use axum::Router;
use control::http::https::HttpsListener;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsConnector;
use world::Clock as _;
use world::real::{RealClock, RealRandom};

/// A certificate and its key.
pub struct Party {
    pub chain_pem: String,
    pub key_pem: String,
}

impl Party {
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials {
            chain_pem: &self.chain_pem,
            key_pem: &self.key_pem,
        }
    }
}

pub fn authority() -> Authority {
    let created_authority =
        Authority::create("cluster-1", &RealRandom, RealClock::default().wall());
    created_authority.expect("created").0
}

pub fn signed(authority: &Authority, subject: &str, names: &[String]) -> Party {
    let request = KeyRequest::generate().expect("a key");
    let subject = subject.parse().expect("a subject");
    let day = Lifetime::day(RealClock::default().wall());
    let signed = authority.sign(&request.request_pem, &subject, names, day, &RealRandom);
    Party {
        chain_pem: signed.expect("signed"),
        key_pem: request.key_pem.to_string(),
    }
}

/// A running server, and what its clients need to know.
pub struct Server {
    pub address: SocketAddr,
    pub authority: Arc<Authority>,
    pub stop: Option<oneshot::Sender<()>>,
    pub ended: tokio::task::JoinHandle<()>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Server {
    pub async fn start(authority: Arc<Authority>, router: Router) -> Self {
        Self::naming(authority, &[], router).await
    }

    /// A server that also accepts these authorities.
    pub async fn naming(authority: Arc<Authority>, named: &[&str], router: Router) -> Self {
        let names = ["localhost".to_owned()];
        let own = signed(&authority, "scree://controller/c1", &names);
        let tls = ServerTls::new(authority.certificate_pem(), named, own.credentials());
        let (_, tls) = watch::channel(Arc::new(tls.expect("a server")));
        let listener =
            HttpsListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let address = listener.address();
        let clock = Arc::new(RealClock::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(listener.serve(router, tls, clock, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            authority,
            stop: Some(stop),
            ended,
        }
    }

    /// Sends a request with this certificate.
    pub async fn send(
        &self,
        party: Option<&Party>,
        method: &str,
        path: &str,
        body: &str,
    ) -> std::io::Result<Answer> {
        self.send_with(party, method, path, "", body).await
    }

    /// As [`Server::send`], with more headers.
    pub async fn send_with(
        &self,
        party: Option<&Party>,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> std::io::Result<Answer> {
        let pem = self.authority.certificate_pem();
        let config = client_config(&[pem], party.map(Party::credentials)).expect("a client");
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             {headers}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await?;
        // What the socket did not accept is in TLS's buffer, and reading does not send it.
        stream.flush().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).expect("a status");
        Ok(Answer {
            status: status.parse().expect("a number"),
            body: body.to_owned(),
        })
    }
}
