//! Who is asking, over real connections.

#![expect(
    clippy::disallowed_methods,
    reason = "the clients are foreign, and connect by themselves"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use control::api::https::{Caller, HttpsListener};
use identity::{Authority, Credentials, KeyRequest, Lifetime, client_config, server_config};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsConnector;
use world::Clock as _;
use world::real::{RealClock, RealRandom};

struct Party {
    chain_pem: String,
    key_pem: String,
}

impl Party {
    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            chain_pem: &self.chain_pem,
            key_pem: &self.key_pem,
        }
    }
}

fn authority() -> Authority {
    let founded = Authority::found("cluster-1", &RealRandom, RealClock::default().wall());
    founded.expect("founded").0
}

fn signed(authority: &Authority, subject: &str, names: &[String]) -> Party {
    let request = KeyRequest::generate().expect("a key");
    let subject = subject.parse().expect("a subject");
    let day = Lifetime::day(RealClock::default().wall());
    let signed = authority.sign(&request.request_pem, &subject, names, day, &RealRandom);
    Party {
        chain_pem: signed.expect("signed"),
        key_pem: request.key_pem.to_string(),
    }
}

async fn who(Extension(caller): Extension<Caller>) -> String {
    match caller.peer {
        Some(peer) => peer.subjects[0].to_string(),
        None => "nobody".to_owned(),
    }
}

/// A running server, and what its clients need to know.
struct Server {
    address: SocketAddr,
    authority: Authority,
    stop: Option<oneshot::Sender<()>>,
    ended: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start() -> Self {
        let authority = authority();
        let own = signed(
            &authority,
            "scree://controller/c1",
            &["localhost".to_owned()],
        );
        let config = server_config(&[authority.certificate_pem()], own.credentials());
        let (_, tls) = watch::channel(Arc::new(config.expect("a server")));
        let listener =
            HttpsListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let address = listener.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Router::new().route("/who", get(who));
        let ended = tokio::spawn(listener.serve(router, tls, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            authority,
            stop: Some(stop),
            ended,
        }
    }

    /// Asks who it is, with this certificate.
    async fn ask(&self, party: Option<&Party>) -> std::io::Result<String> {
        let pem = self.authority.certificate_pem();
        let config = client_config(&[pem], party.map(Party::credentials)).expect("a client");
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        let request = b"GET /who HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer
            .rsplit("\r\n\r\n")
            .next()
            .unwrap_or_default()
            .to_owned())
    }
}

#[tokio::test]
async fn a_request_carries_who_is_asking() {
    let server = Server::start().await;
    let alice = signed(&server.authority, "scree://user/alice", &[]);
    let host = signed(&server.authority, "scree://host/h1", &[]);
    let ask = |party| server.ask(party);
    assert_eq!(
        ask(Some(&alice)).await.expect("answered"),
        "scree://user/alice"
    );
    assert_eq!(ask(Some(&host)).await.expect("answered"), "scree://host/h1");
    assert_eq!(ask(None).await.expect("answered"), "nobody");
    let stranger = signed(&authority(), "scree://user/alice", &[]);
    assert!(ask(Some(&stranger)).await.is_err(), "another authority's");
}

#[tokio::test]
async fn who_speaks_in_the_clear_is_told_so_and_who_says_nothing_holds_up_nobody() {
    let server = Server::start().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(server.address).await.expect("taken"));
    }
    let mut plain = TcpStream::connect(server.address).await.expect("taken");
    plain
        .write_all(b"GET /v1/volumes HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("\"tls-required\""), "{answer}");
    let mut garbage = TcpStream::connect(server.address).await.expect("taken");
    garbage
        .write_all(&[0x16, 3, 1, 255, 255, 0, 0])
        .await
        .expect("sent");
    garbage.shutdown().await.expect("shut");
    let mut rest = Vec::new();
    // Closed, or an alert first.
    let _ = garbage.read_to_end(&mut rest).await;
    assert_eq!(server.ask(None).await.expect("answered"), "nobody");
    drop(silent);
}

#[tokio::test]
async fn a_server_that_stops_takes_no_more_and_ends() {
    let mut server = Server::start().await;
    assert_eq!(server.ask(None).await.expect("answered"), "nobody");
    server.stop.take().expect("once").send(()).expect("it runs");
    let ended = tokio::time::timeout(Duration::from_secs(30), &mut server.ended).await;
    ended.expect("it ends").expect("without a panic");
    assert!(server.ask(None).await.is_err());
}
