//! A transit service, with valid and invalid answers.

use std::fs;
use std::sync::Arc;

use agent::keys::config::TransitEntry;
use agent::keys::{KeyEntry, KeyProvider as _, OpenKeyError, VerifiedKey};
use auth::{Authority, Credentials, KeyRequest, Lifetime};
use base::{KeyId, Lineage};
use volume::seal::{DataKey, KeyError, UnwrapKeys as _};
use world::Clock as _;
use world::real::{RealClock, RealRandom};

use super::conformance::conforms;
use super::stub::{Manner, Stub, TOKEN, answer};
use super::{Place, chmod};

fn at(place: &Place, address: &str, key: &str) -> TransitEntry {
    TransitEntry {
        address: address.to_owned(),
        mount: "transit".to_owned(),
        key: key.to_owned(),
        token_path: place.private("token", format!("{TOKEN}\n")),
        ca_path: None,
        namespace: None,
        timeout_seconds: 30,
    }
}

fn plain(place: &Place, stub: &Stub, key: &str) -> TransitEntry {
    at(place, &format!("http://{}", stub.address), key)
}

fn open(place: &Place, entry: &TransitEntry) -> Arc<VerifiedKey> {
    let entry = KeyEntry::Transit(entry.clone());
    let parameters = place.keys.new_parameters(&entry).expect("parameters");
    let id = KeyId::from_u128(1);
    place.keys.open(id, &entry, &parameters).expect("open")
}

/// TLS settings of a service, and the certificate of its authority.
fn tls(names: &[String]) -> (Arc<rustls::ServerConfig>, String) {
    let now = RealClock::default().wall();
    let (authority, _) = Authority::create("vault", &RealRandom, now).expect("created");
    let request = KeyRequest::generate().expect("a key");
    let subject = "scree://controller/vault".parse().expect("a subject");
    let day = Lifetime::day(now);
    let signed = authority.sign(&request.request_pem, &subject, names, day, &RealRandom);
    let credentials = Credentials {
        chain_pem: &signed.expect("signed"),
        key_pem: &request.key_pem,
    };
    let ca = authority.certificate_pem().to_owned();
    let config = auth::server_config(&[&ca], credentials).expect("a server");
    (Arc::new(config), ca)
}

#[test]
fn a_transit_key_is_a_wrapping_key() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let [ours, theirs] = ["ours", "theirs"].map(|key| KeyEntry::Transit(plain(&place, &stub, key)));
    conforms(&place.keys, &ours, &theirs);
}

#[test]
fn over_tls_the_service_is_authenticated_by_its_authority() {
    let place = Place::new();
    let (config, ca) = tls(&["localhost".to_owned()]);
    let stub = Stub::start(Some(config));
    let mut entry = at(
        &place,
        &format!("https://localhost:{}", stub.address.port()),
        "ours",
    );
    assert!(
        place
            .refusal(&KeyEntry::Transit(entry.clone()))
            .contains("ca_path")
    );
    entry.ca_path = Some(place.private("ca.pem", &ca));
    entry.namespace = Some("team-a/".to_owned());
    let key = open(&place, &entry);
    let lineage = Lineage::from_u128(4);
    let wrapped = key
        .wrap(lineage, &DataKey::from_bytes([7; 32]))
        .expect("wrapped");
    assert!(key.unwrap_key(lineage, &wrapped).is_ok());
    assert!(
        stub.namespaces()
            .iter()
            .all(|name| name.as_deref() == Some("team-a/"))
    );

    stub.take_request_count();
    let other_name = TransitEntry {
        address: format!("https://127.0.0.1:{}", stub.address.port()),
        ..entry.clone()
    };
    let other_authority = TransitEntry {
        ca_path: Some(place.private("other.pem", tls(&[]).1)),
        ..entry.clone()
    };
    for wrong in [other_name, other_authority] {
        let refused = place.refusal(&KeyEntry::Transit(wrong));
        assert!(refused.contains("certificate"), "{refused}");
    }
    for (name, content) in [
        ("none.pem", ""),
        ("invalid.pem", "-----BEGIN CERTIFICATE-----"),
    ] {
        let ca_path = Some(place.private(name, content));
        let wrong = TransitEntry {
            ca_path,
            ..entry.clone()
        };
        assert!(
            place
                .refusal(&KeyEntry::Transit(wrong))
                .contains("cannot use the authority")
        );
    }
    let ca_path = Some(place.path("absent.pem"));
    let wrong = TransitEntry { ca_path, ..entry };
    assert!(
        place
            .refusal(&KeyEntry::Transit(wrong))
            .contains("cannot read the authority")
    );
    assert_eq!(
        stub.take_request_count(),
        0,
        "a token was sent to another service"
    );
}

#[test]
fn an_invalid_entry_is_refused_before_anything_is_sent() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let right = plain(&place, &stub, "ours");
    let refusal = |change: &dyn Fn(&mut TransitEntry)| {
        let mut entry = right.clone();
        change(&mut entry);
        place.refusal(&KeyEntry::Transit(entry))
    };
    for address in [
        "",
        "vault",
        "ftp://vault",
        "http://u:p@127.0.0.1",
        "http://127.0.0.1/v1",
        "http://127.0.0.1/?a",
    ] {
        assert!(
            refusal(&|entry| entry.address = address.into()).contains("address"),
            "{address}"
        );
    }
    for address in [
        "http://192.0.2.1:8200",
        "http://vault.example",
        "http://127.0.0.1.example",
        "http://[2001:db8::1]:80",
    ] {
        let refused = refusal(&|entry| entry.address = address.into());
        assert!(refused.contains("only by https"), "{refused}");
    }
    for path in ["", "a//b", "../sys", "a/../../sys", "a b", "a?b", "a%2fb"] {
        assert!(
            refusal(&|entry| entry.mount = path.into()).contains("mount"),
            "{path}"
        );
        assert!(
            refusal(&|entry| entry.key = path.into()).contains("key"),
            "{path}"
        );
        assert!(refusal(&|entry| entry.namespace = Some(path.into())).contains("namespace"));
    }
    assert!(refusal(&|entry| entry.key = "a/b".into()).contains("key"));
    for seconds in [0, 121] {
        assert!(refusal(&|entry| entry.timeout_seconds = seconds).contains("timeout_seconds"));
    }
    let token = |content: &[u8]| {
        let path = place.private("other", content);
        refusal(&|entry| entry.token_path = path.clone())
    };
    assert!(token(b"\n").contains("should hold the token"));
    assert!(token(b"a\x01b").contains("does not hold a token"));
    chmod(&place.private("token", TOKEN), 0o644);
    assert!(refusal(&|_| ()).contains("chmod 600"));
    assert_eq!(stub.take_request_count(), 0);
}

#[test]
fn a_service_that_refuses_or_fails_names_the_remedy() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let entry = plain(&place, &stub, "ours");
    let key = open(&place, &entry);
    let lineage = Lineage::from_u128(4);
    let wrapped = key
        .wrap(lineage, &DataKey::from_bytes([7; 32]))
        .expect("wrapped");
    let told = |manner| {
        stub.behave(manner);
        stub.take_request_count();
        match key.unwrap_key(lineage, &wrapped) {
            Err(error @ KeyError::Unavailable { .. }) => base::with_causes(&error),
            other => panic!("{other:?}"),
        }
    };
    let status = |status: &str, body: &str| told(Manner::Answers(answer(status, body)));
    for (code, message) in [
        ("500 Internal Server Error", "try again"),
        ("502 Bad Gateway", "try again"),
        ("429 Too Many Requests", "try again"),
        ("503 Service Unavailable", "unseal"),
        ("404 Not Found", "correct `mount`"),
        ("307 Temporary Redirect", "active node"),
        ("401 Unauthorized", "refuses the token"),
    ] {
        let told = status(code, r#"{"errors":["because\u0007 of the moon"]}"#);
        assert!(
            told.contains(message) && told.contains("because  of the moon"),
            "{told}"
        );
        assert_eq!(stub.take_request_count(), 1, "the request is not repeated");
    }
    // The text is short and without the token, whatever the service answers.
    let echo = format!(r#"{{"errors":["token {TOKEN} {}"]}}"#, "!".repeat(9000));
    let echoed = status("403 Forbidden", &echo);
    assert!(
        echoed.contains("[the token]") && !echoed.contains(TOKEN),
        "{echoed}"
    );
    assert!(echoed.len() < 1000);
    for garbage in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"data":{}}"#,
        r#"{"data":{"plaintext":7}}"#,
        r#"{"data":{"plaintext":"?"}}"#,
    ] {
        assert!(
            status("200 OK", garbage).contains("is not a transit engine"),
            "{garbage}"
        );
    }
    for garbage in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "\0\0\0\0\0\0\0\0",
        "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    ] {
        let told = told(Manner::Answers(garbage.into()));
        assert!(told.contains("is not HTTP/1.1"), "{told}");
    }
    for bytes in [65 << 10, 1 << 20] {
        assert!(told(Manner::Pours(bytes)).contains("too long"));
    }
    // An endless header.
    let endless = [b"HTTP/1.1 200 OK\r\na: ".as_slice(), &vec![b'a'; 1 << 20]].concat();
    told(Manner::Answers(endless));

    stub.behave(Manner::Right);
    assert!(
        key.unwrap_key(lineage, &wrapped).is_ok(),
        "the request is repeated"
    );
}

#[test]
fn the_answers_of_a_service_are_checked() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let entry = KeyEntry::Transit(plain(&place, &stub, "ours"));
    for ciphertext in [
        "",
        "plain",
        "vault:v1:",
        "vault:v0:AAAA",
        "vault:v1:AAA",
        "vault:vx:AAAA",
    ] {
        let body = format!(r#"{{"data":{{"ciphertext":"{ciphertext}"}}}}"#);
        stub.behave(Manner::Answers(answer("200 OK", &body)));
        let refused = place.refusal(&entry);
        assert!(
            refused.contains("is not a transit engine") || refused.contains("verifier"),
            "{refused}"
        );
    }
}

#[test]
fn a_service_that_hangs_is_abandoned_after_the_timeout() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let mut entry = plain(&place, &stub, "ours");
    entry.timeout_seconds = 1;
    stub.behave(Manner::Hangs);
    let refused = place.refusal(&KeyEntry::Transit(entry));
    assert!(refused.contains("did not answer within 1 s"), "{refused}");
}

#[test]
fn a_broken_connection_is_retried_once() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let entry = plain(&place, &stub, "ours");
    let key = open(&place, &entry);
    let lineage = Lineage::from_u128(4);
    let wrapped = key.wrap_none(lineage).expect("wrapped");
    stub.behave(Manner::BreaksOff(1));
    stub.take_request_count();
    assert!(key.unwrap_key(lineage, &wrapped).is_ok());
    assert_eq!(stub.take_request_count(), 2);
    stub.behave(Manner::BreaksOff(9));
    let broken = key.unwrap_key(lineage, &wrapped).expect_err("broken");
    assert!(base::with_causes(&broken).contains("closed the connection"));
    assert_eq!(stub.take_request_count(), 2);
    let unserved = at(&place, "http://127.0.0.1:1", "ours");
    assert!(
        place
            .refusal(&KeyEntry::Transit(unserved))
            .contains("cannot connect to")
    );
}

#[test]
fn a_wrong_token_is_reported_and_a_new_one_needs_no_restart() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let entry = plain(&place, &stub, "ours");
    let key = open(&place, &entry);
    let lineage = Lineage::from_u128(4);
    let wrapped = key.wrap_none(lineage).expect("wrapped");
    place.private("token", "hvs.another");
    let refused = key.unwrap_key(lineage, &wrapped).expect_err("refused");
    let told = base::with_causes(&refused);
    assert!(
        told.contains("transit/decrypt/ours") && told.contains("permission denied"),
        "{told}"
    );
    assert!(!told.contains("hvs.another"));
    fs::remove_file(place.path("token")).expect("removed");
    assert!(matches!(
        key.wrap_none(lineage),
        Err(KeyError::Unavailable { .. })
    ));
    place.private("token", TOKEN);
    assert!(key.unwrap_key(lineage, &wrapped).is_ok());
}

#[test]
fn a_key_that_ignores_associated_data_is_not_used() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let entry = KeyEntry::Transit(plain(&place, &stub, "ours"));
    let parameters = place.keys.new_parameters(&entry).expect("parameters");
    stub.behave(Manner::IgnoresAssociatedData);
    let refused = place.keys.new_parameters(&entry).expect_err("unbound");
    assert!(
        matches!(refused, OpenKeyError::Unbound { .. }),
        "{refused:?}"
    );
    let id = KeyId::from_u128(1);
    assert!(place.keys.open(id, &entry, &parameters).is_err());
}

#[test]
fn a_key_that_was_replaced_or_deleted_is_not_reported_as_a_damaged_volume() {
    let (place, stub) = (Place::new(), Stub::start(None));
    let entry = plain(&place, &stub, "ours");
    let key = open(&place, &entry);
    let lineage = Lineage::from_u128(4);
    let wrapped = key.wrap_none(lineage).expect("wrapped");
    for replaced in [Some([9; 32]), None] {
        stub.replace_key("ours", replaced);
        let unwrapped = key.unwrap_key(lineage, &wrapped).expect_err("another key");
        let wrapping = key.wrap_none(lineage).expect_err("another key");
        for error in [unwrapped, wrapping] {
            assert!(matches!(error, KeyError::Unavailable { .. }), "{error:?}");
            assert!(base::with_causes(&error).contains("verifier"), "{error}");
        }
    }
    stub.replace_key("ours", Some([1; 32]));
    assert!(key.unwrap_key(lineage, &wrapped).is_ok());
}
