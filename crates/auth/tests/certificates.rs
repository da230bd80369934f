//! Certificates of the authority in real TLS handshakes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use auth::{
    Authority, AuthorityError, Credentials, KeyRequest, Kind, Lifetime, Peer, PeerError, ServerTls,
    SignedBy, Subject, TlsError, client_config, requested_key, server_config,
};
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use world::real::{RealClock, RealRandom};
use world::{Clock as _, Millis};

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

fn now() -> Millis {
    RealClock::default().wall()
}

fn authority() -> Authority {
    let founded = Authority::create("cluster-1", &RealRandom, now());
    founded.expect("founded").0
}

fn signed(authority: &Authority, subject: &str, lifetime: Lifetime) -> Party {
    let request = KeyRequest::generate().expect("a key");
    let subject: Subject = subject.parse().expect("a subject");
    let names = match subject.kind() {
        Kind::Controller => vec!["controller.example".to_owned(), "127.0.0.1".to_owned()],
        Kind::Unit => vec!["unit-0f3c5b7d9e1a2b4c6".to_owned()],
        Kind::User | Kind::Host => Vec::new(),
    };
    let chain_pem = authority
        .sign(
            &request.request_pem,
            &subject,
            &names,
            lifetime,
            &RealRandom,
        )
        .expect("signed");
    Party {
        chain_pem,
        key_pem: request.key_pem.to_string(),
    }
}

/// Performs a handshake and returns what the server learns about the client.
fn handshake(
    server_authorities: &[&str],
    server: &Party,
    client_authorities: &[&str],
    client: Option<&Party>,
    name: &'static str,
) -> Result<Option<Peer>, rustls::Error> {
    let server = server_config(server_authorities, server.credentials()).expect("a server");
    let client =
        client_config(client_authorities, client.map(Party::credentials)).expect("a client");
    let mut server = ServerConnection::new(Arc::new(server))?;
    let name = ServerName::try_from(name).expect("a name");
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("to memory");
        }
        feed(&bytes, |reader| server.read_tls(reader));
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("to memory");
        }
        feed(&bytes, |reader| client.read_tls(reader));
        client.process_new_packets()?;
    }
    let certificates = server.peer_certificates();
    Ok(certificates.map(|chain| Peer::of(&chain[0], SignedBy::OwnAuthority).expect("readable")))
}

fn feed(mut bytes: &[u8], mut read: impl FnMut(&mut dyn io::Read) -> io::Result<usize>) {
    while !bytes.is_empty() {
        read(&mut bytes).expect("from memory");
    }
}

#[test]
fn a_party_is_identified_by_its_key_and_subject() {
    let authority = authority();
    let pem = authority.certificate_pem();
    let day = Lifetime::day(now());
    let server = signed(&authority, "scree://controller/c1", day);
    let alice = signed(&authority, "scree://user/alice", day);
    for name in ["controller.example", "127.0.0.1"] {
        let peer = handshake(&[pem], &server, &[pem], Some(&alice), name)
            .expect("both are signed")
            .expect("alice showed one");
        let own = CertificateDer::from_pem_slice(alice.chain_pem.as_bytes()).expect("PEM");
        assert_eq!(
            peer,
            Peer::of(&own, SignedBy::OwnAuthority).expect("readable")
        );
        let subject: Subject = "scree://user/alice".parse().expect("a subject");
        assert_eq!(peer.subjects, [subject]);
        let left_ms = peer.ends.0 - now().0;
        assert!((86_000_000..=86_400_000).contains(&left_ms), "{left_ms}");
    }
    let anonymous = handshake(&[pem], &server, &[pem], None, "controller.example");
    assert_eq!(anonymous, Ok(None), "connected without an identity");
}

#[test]
fn a_renewed_certificate_has_the_same_key_and_a_new_key_pair_has_another() {
    let authority = authority();
    let subject: Subject = "scree://host/h1".parse().expect("a subject");
    let request = KeyRequest::generate().expect("a key");
    let sign = |request: &KeyRequest| {
        let pem = authority
            .sign(
                &request.request_pem,
                &subject,
                &[],
                Lifetime::day(now()),
                &RealRandom,
            )
            .expect("signed");
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        Peer::of(&der, SignedBy::OwnAuthority)
            .expect("readable")
            .key
    };
    assert_eq!(sign(&request), sign(&request));
    let requested = requested_key(&request.request_pem).expect("a request");
    assert_eq!(
        requested,
        sign(&request),
        "what is asked for is what is signed"
    );
    assert_ne!(
        sign(&request),
        sign(&KeyRequest::generate().expect("a key"))
    );
}

#[test]
fn foreign_expired_and_misused_certificates_are_refused() {
    let (authority, other) = (authority(), self::authority());
    let (pem, other_pem) = (authority.certificate_pem(), other.certificate_pem());
    let day = Lifetime::day(now());
    let server = signed(&authority, "scree://controller/c1", day);
    let shake = |client: &Party| {
        handshake(&[pem], &server, &[pem], Some(client), "controller.example").map(|_| ())
    };
    let ended = Lifetime {
        now: Millis(now().0 - 7_200_000),
        term: Duration::from_secs(3600),
    };
    let later = Lifetime::day(Millis(now().0 + 7_200_000));
    shake(&signed(&authority, "scree://user/alice", day)).expect("the rest is right");
    for (what, client) in [
        ("foreign", signed(&other, "scree://user/alice", day)),
        ("ended", signed(&authority, "scree://user/alice", ended)),
        ("not yet", signed(&authority, "scree://user/alice", later)),
    ] {
        assert!(shake(&client).is_err(), "{what}");
    }
    // A user's certificate cannot be used by a server, nor under another name.
    let alice = signed(&authority, "scree://user/alice", day);
    assert!(handshake(&[pem], &alice, &[pem], None, "alice").is_err());
    assert!(handshake(&[pem], &server, &[pem], None, "other.example").is_err());
    assert!(handshake(&[pem], &server, &[other_pem], None, "controller.example").is_err());
    // An authority that the operator has named is accepted, too.
    let bob = signed(&other, "scree://user/bob", day);
    let both = handshake(
        &[pem, other_pem],
        &server,
        &[pem],
        Some(&bob),
        "controller.example",
    );
    assert!(both.expect("both count").is_some());
}

#[test]
fn only_the_public_key_of_a_signing_request_is_used() {
    let authority = authority();
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let mut wish = rcgen::CertificateParams::new(["controller.example".to_owned()]).expect("names");
    wish.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let request = wish
        .serialize_request(&key)
        .expect("a request")
        .pem()
        .expect("PEM");
    let subject: Subject = "scree://user/mallory".parse().expect("a subject");
    let chain_pem = authority
        .sign(&request, &subject, &[], Lifetime::day(now()), &RealRandom)
        .expect("the key is signed");
    let mallory = Party {
        chain_pem,
        key_pem: key.serialize_pem(),
    };
    let pem = authority.certificate_pem();
    assert!(handshake(&[pem], &mallory, &[pem], None, "controller.example").is_err());
    let opened = Authority::open(&mallory.chain_pem, &mallory.key_pem).map(|_| ());
    assert!(matches!(opened, Err(AuthorityError::NoAuthority)));
}

#[test]
fn an_invalid_request_is_refused() {
    let authority = authority();
    let subject: Subject = "scree://user/alice".parse().expect("a subject");
    let sign = |request: &str, names: &[String]| {
        authority.sign(request, &subject, names, Lifetime::day(now()), &RealRandom)
    };
    let request = KeyRequest::generate().expect("a key").request_pem;
    sign(&request, &[]).expect("this one is good");
    let other = KeyRequest::generate().expect("a key").request_pem;
    // The head of one request and the signature of another.
    let half = request.len() / 2;
    let spliced = format!("{}{}", &request[..half], &other[half..]);
    let certificate = authority.certificate_pem();
    for bad in ["", "x", certificate, &request[..half], &spliced] {
        let signed = sign(bad, &[]);
        assert!(matches!(signed, Err(AuthorityError::Request(_))), "{bad}");
    }
    for name in ["", "a b", "-", "a..b", "http://a"] {
        let signed = sign(&request, &[name.to_owned()]);
        assert!(
            matches!(signed, Err(AuthorityError::Name { .. })),
            "{name:?}"
        );
    }
}

#[test]
fn an_authority_opens_only_with_its_own_key() {
    let found = || Authority::create("cluster-1", &RealRandom, now()).expect("founded");
    let ((one, one_key), (_, other_key)) = (found(), found());
    Authority::open(one.certificate_pem(), &one_key).expect("its own");
    let foreign = Authority::open(one.certificate_pem(), &other_key).map(|_| ());
    assert!(matches!(foreign, Err(AuthorityError::ForeignKey)));
    assert!(Authority::open("", &one_key).is_err());
    assert!(Authority::open(one.certificate_pem(), "").is_err());
}

#[test]
fn the_clusters_own_authority_cannot_be_named_by_the_operator() {
    let (own, other) = (authority(), authority());
    let server = signed(&own, "scree://controller/c1", Lifetime::day(now()));
    let tls = |named: &[&str]| {
        ServerTls::new(own.certificate_pem(), named, server.credentials()).map(|_| ())
    };
    tls(&[]).expect("none");
    tls(&[other.certificate_pem()]).expect("another");
    let both = format!("{}{}", other.certificate_pem(), own.certificate_pem());
    for named in [own.certificate_pem(), &both] {
        assert!(matches!(tls(&[named]), Err(TlsError::OwnNamed)));
    }
    assert!(matches!(tls(&[""]), Err(TlsError::NoAuthority)));
    assert!(tls(&["-----BEGIN CERTIFICATE-----\nx\n"]).is_err());
}

/// The signer of a chain is verified at each call: at a later time, the certificate has ended.
#[test]
fn the_signer_of_a_chain_is_reported_until_the_certificate_ends() {
    let (own, other) = (authority(), authority());
    let day = Lifetime::day(now());
    let server = signed(&own, "scree://controller/c1", day);
    let named = [other.certificate_pem()];
    let tls = ServerTls::new(own.certificate_pem(), &named, server.credentials());
    let tls = tls.expect("a server");
    let chain = |authority: &Authority| {
        let party = signed(authority, "scree://user/alice", day);
        [CertificateDer::from_pem_slice(party.chain_pem.as_bytes()).expect("PEM")]
    };
    for (authority, expected) in [
        (&own, SignedBy::OwnAuthority),
        (&other, SignedBy::NamedAuthority),
    ] {
        let chain = chain(authority);
        let peer = tls.peer(&chain, now()).expect("signed").expect("somebody");
        assert_eq!(peer.signed_by, expected);
        let later = Millis(day.ends().0 + 1000);
        assert_eq!(tls.peer(&chain, later), Err(PeerError::Unsigned));
    }
    let stranger = chain(&self::authority());
    assert_eq!(tls.peer(&stranger, now()), Err(PeerError::Unsigned));
    assert_eq!(tls.peer(&[], now()), Ok(None));
}
