//! Authentication and limits of the API, over real connections.

use std::sync::Arc;
use std::time::Duration;

use auth::client_config;
use axum::routing::get;
use axum::{Extension, Router};
use control::http::Caller;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls::{Party, Server, authority, signed};

async fn who(Extension(caller): Extension<Caller>) -> String {
    let Caller::Remote { peer, .. } = caller else {
        panic!("it came over TLS");
    };
    match peer {
        Some(peer) => peer.subjects[0].to_string(),
        None => "anonymous".to_owned(),
    }
}

async fn start() -> Server {
    let router = Router::new().route("/who", get(who));
    Server::start(Arc::new(authority()), router).await
}

async fn request(server: &Server, party: Option<&Party>) -> std::io::Result<String> {
    Ok(server.send(party, "GET", "/who", "").await?.body)
}

/// HTTP/2 was once offered and not supported, so curl, which prefers it, got no answers.
#[tokio::test]
async fn a_client_that_offers_http_2_gets_http_1() {
    let server = start().await;
    let pem = server.authority.certificate_pem();
    let mut config = client_config(&[pem], None).expect("a client");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(server.address).await.expect("connected");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.expect("a handshake");
    let chosen = stream.get_ref().1.alpn_protocol();
    assert_eq!(chosen, Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn a_request_carries_the_identity_of_its_caller() {
    let server = start().await;
    for subject in ["scree://user/alice", "scree://host/h1"] {
        let party = signed(&server.authority, subject, &[]);
        assert_eq!(
            request(&server, Some(&party)).await.expect("answered"),
            subject
        );
    }
    assert_eq!(request(&server, None).await.expect("answered"), "anonymous");
    let stranger = signed(&authority(), "scree://user/alice", &[]);
    let refused = request(&server, Some(&stranger)).await;
    assert!(refused.is_err(), "another authority's: {refused:?}");
}

#[tokio::test]
async fn a_client_without_tls_gets_an_answer_and_a_silent_one_blocks_no_other() {
    let server = start().await;
    let mut unresponsive = Vec::new();
    for _ in 0..50 {
        unresponsive.push(TcpStream::connect(server.address).await.expect("taken"));
    }
    let mut plain = TcpStream::connect(server.address).await.expect("taken");
    plain
        .write_all(b"GET /v1/volumes HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    // The refusal arrives before the whole request is read.
    plain.shutdown().await.expect("shut");
    plain.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("serves HTTPS only"), "{answer}");
    let mut garbage = TcpStream::connect(server.address).await.expect("taken");
    garbage
        .write_all(&[0x16, 3, 1, 255, 255, 0, 0])
        .await
        .expect("sent");
    garbage.shutdown().await.expect("shut");
    let mut rest = Vec::new();
    // The connection is closed, possibly after an alert.
    let _ = garbage.read_to_end(&mut rest).await;
    assert_eq!(request(&server, None).await.expect("answered"), "anonymous");
    drop(unresponsive);
}

#[tokio::test]
async fn a_stopping_server_accepts_no_connections_and_ends() {
    let mut server = start().await;
    assert_eq!(request(&server, None).await.expect("answered"), "anonymous");
    server.stop.take().expect("once").send(()).expect("it runs");
    let ended = tokio::time::timeout(Duration::from_secs(30), &mut server.ended).await;
    ended.expect("it ends").expect("without a panic");
    assert!(request(&server, None).await.is_err());
}
