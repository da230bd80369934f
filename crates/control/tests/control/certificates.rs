//! Invalid certificates, and certificates of the operator's own authorities: which users and hosts
//! are accepted, and with which message the others are refused.

use std::sync::Arc;
use std::time::Duration;

use auth::{KeyRequest, Lifetime, Subject, client_config};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::AlertDescription;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use world::real::{RealClock, RealRandom};
use world::{Clock as _, Millis, host};

use crate::parties::{Scene, try_join};
use crate::tls::{Party, authority, signed};

/// An authority of the operator's own.
struct Foreign {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Foreign {
    fn new() -> Self {
        Self::called("Foreign")
    }

    fn called(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("signed").pem();
        Self::of(pem, key)
    }

    fn of(pem: String, key: KeyPair) -> Self {
        let issuer = Issuer::from_ca_cert_pem(&pem, key).expect("an authority");
        Self { pem, issuer }
    }

    /// A client's certificate with these URIs and this common name.
    fn client(&self, uris: &[&str], common_name: &str) -> Party {
        let key = KeyPair::generate().expect("a key");
        self.signed(uris, common_name, &key, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn signed(
        &self,
        uris: &[&str],
        common_name: &str,
        key: &KeyPair,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Party {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![purpose];
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let uris = uris.iter().map(|uri| Ia5String::try_from(*uri));
        params.subject_alt_names = uris.map(|uri| SanType::URI(uri.expect("ASCII"))).collect();
        // Other names in the certificate are ignored.
        let dns = Ia5String::try_from("alice.example").expect("ASCII");
        params.subject_alt_names.push(SanType::DnsName(dns));
        Party {
            chain_pem: params.signed_by(key, &self.issuer).expect("signed").pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

fn subject(text: &str) -> Subject {
    text.parse().expect("a subject")
}

/// The alert with which TLS refuses this certificate.
async fn alert(scene: &Scene, party: &Party) -> AlertDescription {
    let answer = scene.server.send(Some(party), "GET", "/v1/me", "").await;
    let error = answer.expect_err("refused");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => panic!("{error:?}"),
    }
}

/// The refusal of a party whose certificate TLS accepts and the API does not.
async fn refusal(scene: &Scene, party: &Party, request: &str, status: u16) -> String {
    let problem = scene
        .request(Some(party), request, Value::Null, status)
        .await;
    problem["detail"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn tls_refuses_expired_future_foreign_and_misused_certificates() {
    let scene = Scene::new().await;
    let now = RealClock::default().wall();
    let key_pem = std::fs::read_to_string(scene.folder.path().join("authority.key"));
    let own = Foreign::of(
        scene.server.authority.certificate_pem().to_owned(),
        KeyPair::from_pem(&key_pem.expect("it exists")).expect("a key"),
    );
    for (path, kind) in [("users", "user"), ("hosts", "host")] {
        scene.member(path, "known").await;
        let name = format!("scree://{kind}/known");
        let signed_for = |lifetime: Lifetime| {
            let key = KeyRequest::generate().expect("a key");
            let authority = &scene.server.authority;
            let (request, subject) = (&key.request_pem, subject(&name));
            let chain = authority.sign(request, &subject, &[], lifetime, &RealRandom);
            Party {
                chain_pem: chain.expect("signed"),
                key_pem: key.key_pem.to_string(),
            }
        };
        let ended = signed_for(Lifetime {
            now: Millis(now.0 - 7_200_000),
            term: Duration::from_secs(3600),
        });
        let early = signed_for(Lifetime::day(Millis(now.0 + 7_200_000)));
        let foreign = signed(&authority(), &name, &[]);
        let key = KeyPair::generate().expect("a key");
        let servers = own.signed(&[&name], "known", &key, ExtendedKeyUsagePurpose::ServerAuth);
        for (what, party, expected) in [
            ("ended", ended, AlertDescription::CertificateExpired),
            ("early", early, AlertDescription::CertificateExpired),
            ("foreign", foreign, AlertDescription::UnknownCA),
            (
                "a server's",
                servers,
                AlertDescription::UnsupportedCertificate,
            ),
        ] {
            assert_eq!(alert(&scene, &party).await, expected, "{what} of a {kind}");
        }
    }
}

#[tokio::test]
async fn the_api_refuses_unknown_parties_and_wrong_roles() {
    let scene = Scene::new().await;
    let root = Some(&scene.root);
    for (path, kind) in [("users", "user"), ("hosts", "host")] {
        let known = scene.member(path, "known").await;
        let at = |what: &str| format!("/v1/{path}/known{what}");
        scene
            .request(root, &format!("POST {}", at("/disable")), Value::Null, 200)
            .await;
        let said = refusal(&scene, &known, "GET /v1/me", 401).await;
        assert!(said.contains("is disabled"), "{kind}: {said}");
        scene
            .request(root, &format!("POST {}", at("/enable")), Value::Null, 200)
            .await;
        scene
            .request(Some(&known), "GET /v1/me", Value::Null, 200)
            .await;
        scene
            .request(root, &format!("DELETE {}", at("/keys")), Value::Null, 200)
            .await;
        let said = refusal(&scene, &known, "GET /v1/me", 401).await;
        assert!(said.contains("join with a new token"), "{kind}: {said}");

        // The authority has signed it, and no party has joined with its key.
        let stranger = signed(
            &scene.server.authority,
            &format!("scree://{kind}/known"),
            &[],
        );
        let said = refusal(&scene, &stranger, "GET /v1/me", 401).await;
        assert!(said.contains("belongs to no party"), "{kind}: {said}");
    }
    // A controller's certificate is also valid for TLS clients, but it names no party.
    let server = signed(&scene.server.authority, "scree://controller/c1", &[]);
    let said = refusal(&scene, &server, "GET /v1/me", 401).await;
    assert!(said.contains("belongs to no party"), "{said}");

    let (alice, h1) = (
        scene.member("users", "alice").await,
        scene.member("hosts", "h1").await,
    );
    let said = refusal(&scene, &alice, "POST /v1/host/rpc/begin", 403).await;
    assert!(said.contains("only hosts may"), "{said}");
    let said = refusal(&scene, &h1, "GET /v1/users", 403).await;
    assert!(said.contains("only users may"), "{said}");
}

/// A persistent connection.
struct Kept(TlsStream<TcpStream>);

impl Kept {
    async fn new(scene: &Scene, party: &Party) -> Self {
        let pem = scene.server.authority.certificate_pem();
        let config = client_config(&[pem], Some(party.credentials())).expect("a client");
        let stream = TcpStream::connect(scene.server.address).await;
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        let connected = connector.connect(name, stream.expect("taken")).await;
        Self(connected.expect("let in"))
    }

    /// Returns the head and the body of the answer.
    async fn request(&mut self) -> (String, String) {
        let request = b"GET /v1/me HTTP/1.1\r\nhost: localhost\r\n\r\n";
        self.0.write_all(request).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("answered"));
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        let (_, length) = head.split_once("content-length: ").expect("a length");
        let length = length.split("\r\n").next().expect("a line");
        let mut body = vec![0; length.parse().expect("a number")];
        self.0.read_exact(&mut body).await.expect("answered");
        (head, String::from_utf8(body).expect("text"))
    }
}

/// TLS checks the dates when a connection begins, and agents keep connections open for days.
#[tokio::test]
async fn an_expired_certificate_is_refused_at_the_next_request() {
    let scene = Scene::new().await;
    for (path, kind) in [("users", "user"), ("hosts", "host")] {
        scene.member(path, "brief").await;
        let key = KeyRequest::generate().expect("a key");
        let token = scene.token(path, "brief").await;
        let (status, _) = try_join(&scene.server, &token, &key).await;
        assert_eq!(status, 201);
        let lifetime = Lifetime {
            now: RealClock::default().wall(),
            term: Duration::from_secs(3),
        };
        let subject = subject(&format!("scree://{kind}/brief"));
        let authority = &scene.server.authority;
        let chain = authority.sign(&key.request_pem, &subject, &[], lifetime, &RealRandom);
        let brief = Party {
            chain_pem: chain.expect("signed"),
            key_pem: key.key_pem.to_string(),
        };
        let mut kept = Kept::new(&scene, &brief).await;
        let (head, body) = kept.request().await;
        assert!(head.starts_with("http/1.1 200"), "{head}{body}");
        let ended = host::timeout(Duration::from_secs(60), async {
            loop {
                let (head, body) = kept.request().await;
                if !head.starts_with("http/1.1 200") {
                    return (head, body);
                }
            }
        });
        let (head, body) = ended.await.expect("it ends");
        assert!(head.starts_with("http/1.1 401"), "{head}{body}");
        assert!(body.contains("the certificate expired at"), "{body}");
        // A client presents a newer certificate on a new connection.
        assert!(head.contains("connection: close"), "{head}");
    }
}

/// Connections with the old certificate were once accepted until it expired.
#[tokio::test]
async fn a_client_presents_its_new_certificate_at_the_next_request() {
    let scene = Scene::new().await;
    let (alice, bob) = (
        scene.member("users", "alice").await,
        scene.member("users", "bob").await,
    );
    let pem = scene.server.authority.certificate_pem();
    let tls = |party: &Party| {
        let config = client_config(&[pem], Some(party.credentials()));
        Arc::new(config.expect("a client"))
    };
    let address = format!("https://localhost:{}", scene.server.address.port());
    let client = api::Client::https(vec![address.parse().expect("an address")], tls(&alice));
    let copy = client.clone();
    let me = async || {
        let me: api::types::Party = copy.get("/v1/me").await.expect("answered");
        me.name
    };
    assert_eq!(me().await, "alice");
    assert_eq!(me().await, "alice");
    client.renew(tls(&bob));
    assert_eq!(me().await, "bob");
}

#[tokio::test]
async fn a_party_of_a_named_authority_is_known_by_its_single_uri() {
    let named = Foreign::new();
    let scene = Scene::naming(&[&named.pem]).await;
    let root = Some(&scene.root);
    for (path, kind) in [("users", "user"), ("hosts", "host")] {
        let party = named.client(&[&format!("scree://{kind}/new")], "somebody else");
        let said = refusal(&scene, &party, "GET /v1/me", 401).await;
        let remedy = format!("`scree {kind} add new`");
        assert!(said.contains(&remedy), "{said}");
        let new = json!({ "name": "new" });
        scene
            .request(root, &format!("POST /v1/{path}"), new, 201)
            .await;
        let me = scene.request(Some(&party), "GET /v1/me", Value::Null, 200);
        let me = me.await;
        assert_eq!((&me["kind"], &me["name"]), (&json!(kind), &json!("new")));
        // The authority that signed it has to renew it.
        let key = KeyRequest::generate().expect("a key");
        let ask = json!({ "signing_request": key.request_pem });
        let said = scene.request(Some(&party), "POST /v1/me/certificate", ask, 409);
        let said = said.await["detail"].to_string();
        assert!(said.contains("another authority issued"), "{said}");
        let disable = format!("POST /v1/{path}/new/disable");
        scene.request(root, &disable, Value::Null, 200).await;
        let said = refusal(&scene, &party, "GET /v1/me", 401).await;
        assert!(said.contains("is disabled"), "{said}");
    }
    let host = named.client(&["scree://host/h1"], "h1");
    let new = json!({ "name": "h1" });
    scene.request(root, "POST /v1/hosts", new, 201).await;
    scene
        .request(Some(&host), "POST /v1/host/rpc/begin", json!({}), 200)
        .await;
}

#[tokio::test]
async fn a_named_authoritys_certificate_must_name_exactly_one_party() {
    let named = Foreign::new();
    let scene = Scene::naming(&[&named.pem]).await;
    for (path, name) in [("users", "alice"), ("users", "bob"), ("hosts", "alice")] {
        scene.member(path, name).await;
    }
    let (alice, bob, host) = (
        "scree://user/alice",
        "scree://user/bob",
        "scree://host/alice",
    );
    for (uris, common_name, why) in [
        (&[][..], "alice", "has no subject"),
        (&[], alice, "the common name does not count"),
        (&["https://user/alice"], "alice", "has no subject"),
        (&["spiffe://user/alice"], "alice", "has no subject"),
        (&["SCREE://user/alice"], "alice", "is not of the form"),
        (&["scree:user/alice"], "alice", "is not of the form"),
        (&["scree://admin/alice"], "alice", "is not of the form"),
        (&["scree://user/Alice"], "alice", "is not of the form"),
        (
            &[alice, "scree://user/al ice"],
            "alice",
            "is not of the form",
        ),
        (&[alice, bob], "alice", "names both"),
        (&[alice, host], "alice", "names both"),
        (&[alice, alice], "alice", "names both"),
        (&["scree://user/local"], "local", "cannot be used over TLS"),
        (&["scree://host/local"], "local", "cannot be used over TLS"),
        (&["scree://controller/c1"], "c1", "cannot be used over TLS"),
    ] {
        let party = named.client(uris, common_name);
        let said = refusal(&scene, &party, "GET /v1/me", 401).await;
        assert!(said.contains(why), "{uris:?} of {common_name}: {said}");
    }
    let both = named.client(&[alice, "spiffe://example/alice"], "x");
    scene
        .request(Some(&both), "GET /v1/me", Value::Null, 200)
        .await;

    let unnamed = Foreign::called("Other").client(&[alice], "alice");
    assert_eq!(alert(&scene, &unnamed).await, AlertDescription::UnknownCA);
    let namesake = Foreign::new().client(&[alice], "alice");
    assert_eq!(
        alert(&scene, &namesake).await,
        AlertDescription::DecryptError,
        "the same name, and another key"
    );
}

/// Certificates of each authority are matched in one way only. Otherwise a forgotten key would
/// still match by its name, and a leaked one by its key.
#[tokio::test]
async fn a_certificate_identifies_only_in_the_way_of_its_authority() {
    let named = Foreign::new();
    let scene = Scene::naming(&[&named.pem]).await;
    let alice = scene.member("users", "alice").await;
    scene
        .request(Some(&alice), "GET /v1/me", Value::Null, 200)
        .await;
    // Her key, with the name of no party.
    let key = KeyPair::from_pem(&alice.key_pem).expect("a key");
    let purpose = ExtendedKeyUsagePurpose::ClientAuth;
    let other = named.signed(&["scree://user/unknown"], "alice", &key, purpose);
    let said = refusal(&scene, &other, "GET /v1/me", 401).await;
    assert!(said.contains("does not exist"), "{said}");
    // Her name, with a key that was forgotten.
    let forget = "DELETE /v1/users/alice/keys";
    scene
        .request(Some(&scene.root), forget, Value::Null, 200)
        .await;
    let said = refusal(&scene, &alice, "GET /v1/me", 401).await;
    assert!(said.contains("belongs to no party"), "{said}");
}
