//! Unit daemons: how they become units of the cluster, and the capabilities that hosts get on them.

use api::host::calls::SignCapabilities;
use api::host::{Capabilities, CapabilityRequest, CatalogCall};
use api::unit::UnitCluster;
use auth::{Capability, Scope, VerifyingKey};
use auth::{KeyRequest, Peer, SignedBy};
use base::{Lineage, VolumeId};
use catalog::LeaseSalt;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::calls;
use crate::parties::Scene;
use crate::tls::Party;

const BEGIN: &str = "POST /v1/unit/begin";

on_both!(
    a_daemon_becomes_a_unit_when_it_listens
    a_second_daemon_with_the_same_identity_does_not_take_the_unit_away
    a_disabled_daemon_is_shown_as_disabled_and_gets_no_copysets
    a_daemon_may_make_only_its_own_calls
    a_host_gets_the_capabilities_of_its_lease
    a_call_for_too_many_or_repeated_capabilities_is_refused
    a_hosts_certificate_for_daemons_is_refused_by_controllers
    a_reachable_unit_is_removed_as_lost_only_if_its_daemon_is_disabled
);

async fn begin(scene: &Scene, daemon: &Party, url: Value) -> UnitCluster {
    let said = scene.request(Some(daemon), BEGIN, json!({"url": url}), 200);
    serde_json::from_value(said.await).expect("what it has to know")
}

async fn units(scene: &Scene) -> Vec<Value> {
    let units = scene.request(Some(&scene.root), "GET /v1/units", Value::Null, 200);
    units.await.as_array().expect("a list").clone()
}

async fn a_daemon_becomes_a_unit_when_it_listens(scene: Scene) {
    let daemon = scene.member("daemons", "store-1").await;
    let before = units(&scene).await.len();
    let cluster = begin(&scene, &daemon, Value::Null).await;
    assert_eq!(units(&scene).await.len(), before, "it does not listen yet");
    // Hosts reach it by that name.
    let certificate = CertificateDer::from_pem_slice(daemon.chain_pem.as_bytes()).expect("one");
    assert!(
        certificate
            .windows(22)
            .any(|text| text == cluster.unit.to_string().as_bytes()),
        "it has the unit's name"
    );
    let peer = Peer::of(&certificate, SignedBy::OwnAuthority).expect("readable");
    let subject = peer.subject().expect("one").to_string();
    assert_eq!(subject, "scree://unit/store-1");

    let url = "scree://10.0.0.7:7420";
    begin(&scene, &daemon, json!(url)).await;
    let again = begin(&scene, &daemon, json!(url)).await;
    assert_eq!(again.unit, cluster.unit);
    let found = units(&scene).await;
    let unit = found.iter().find(|unit| unit["url"] == url);
    let unit = unit.expect("it is one");
    assert_eq!(unit["id"], cluster.unit.to_string());
    assert_eq!(unit["daemon"], "store-1");
    assert_eq!(found.len(), before, "it was expected: {found:?}");
    let sets = scene
        .control
        .database()
        .units()
        .copysets()
        .await
        .expect("read");
    assert!(sets.iter().any(|set| set.members.contains(&cluster.unit)));
    assert!(again.units.iter().any(|known| known.url == url));

    // A daemon that moves to another address is the same unit, and no other daemon may use its
    // address.
    let moved = "scree://10.0.0.8:7420";
    begin(&scene, &daemon, json!(moved)).await;
    assert_eq!(units(&scene).await.len(), before);
    assert_eq!(units(&scene).await.last().expect("one")["url"], moved);
    let other = scene.member("daemons", "store-2").await;
    let taken = scene.request(Some(&other), BEGIN, json!({"url": moved}), 409);
    assert_eq!(taken.await["code"], "already_exists");
    begin(&scene, &other, json!(url)).await;
    let taken = scene.request(Some(&other), BEGIN, json!({"url": moved}), 409);
    taken.await;
    let nowhere = scene.request(Some(&other), BEGIN, json!({"url": "scree://[::]:1"}), 400);
    assert_eq!(nowhere.await["field"], "url");
}

/// The unit was once removed together with the only copies of its slots.
async fn a_reachable_unit_is_removed_as_lost_only_if_its_daemon_is_disabled(scene: Scene) {
    let daemon = scene.member("daemons", "store-1").await;
    let unit = begin(&scene, &daemon, json!("scree://10.0.0.7:7420")).await;
    let host = scene.member("hosts", "h1").await;
    let found = json!({
        "id": unit.unit.to_string(), "state": "healthy", "message": null, "segments": null,
        "bytes": null, "free_bytes": null, "read_bytes": 0, "written_bytes": 0, "facts": [],
    });
    let report = json!({"report": {
        "report_number": 0, "units": [found], "volumes": [], "free_bytes": null, "problems": [],
    }})
    .to_string();
    let told = scene
        .server
        .send(Some(&host), "POST", "/v1/host/rpc/report-host", &report);
    assert!((200..300).contains(&told.await.expect("answered").status));
    let (root, remove) = (Some(&scene.root), "POST /v1/units/store-1/remove");
    for accept in [false, true] {
        let how = json!({"lost": true, "accept_data_loss": accept});
        let refused = scene.request(root, remove, how, 409).await;
        let why = refused["detail"].to_string();
        assert!(why.contains("host h1 still reaches store-1"), "{refused}");
    }
    let disable = "POST /v1/daemons/store-1/disable";
    scene.request(root, disable, Value::Null, 200).await;
    let how = json!({"lost": true, "accept_data_loss": true}).to_string();
    let (_, said) = scene.try_request(root, remove, &how).await;
    assert!(
        !said.to_string().contains("still reaches store-1"),
        "{said}"
    );
}

async fn a_daemon_may_make_only_its_own_calls(scene: Scene) {
    let daemon = scene.member("daemons", "store-1").await;
    let host = scene.member("hosts", "h1").await;
    for (who, request, body) in [
        (&host, BEGIN, json!({})),
        (&scene.root, BEGIN, json!({})),
        (&daemon, "POST /v1/host/rpc/begin", json!({})),
        (
            &daemon,
            "POST /v1/host/rpc/register-units",
            json!({"units": []}),
        ),
        (&daemon, "GET /v1/volumes", Value::Null),
        (&daemon, "GET /v1/daemons", Value::Null),
    ] {
        scene.request(Some(who), request, body, 403).await;
    }
    scene.request(None, BEGIN, json!({}), 401).await;
    let disable = "POST /v1/daemons/store-1/disable";
    scene
        .request(Some(&scene.root), disable, Value::Null, 200)
        .await;
    scene.request(Some(&daemon), BEGIN, json!({}), 401).await;
}

fn at(url: &str, folder: &str) -> Value {
    json!({"url": url, "folder": folder.repeat(32)})
}

/// Two daemons once moved the unit back and forth every 30 s.
async fn a_second_daemon_with_the_same_identity_does_not_take_the_unit_away(scene: Scene) {
    let root = Some(&scene.root);
    let daemon = scene.member("daemons", "store-1").await;
    let (first, second) = ("scree://10.0.0.7:7420", "scree://10.0.0.8:7420");
    let ask = async |place: Value, status| scene.request(Some(&daemon), BEGIN, place, status).await;
    ask(at(first, "a"), 200).await;
    ask(at(first, "a"), 200).await;
    let found = async || {
        let all = units(&scene).await.into_iter();
        let mut own = all.filter(|unit| unit["daemon"] == "store-1");
        own.next_back().expect("it is one")
    };
    for claim in [at(second, "b"), json!({"url": second})] {
        let refused = ask(claim, 409).await;
        assert_eq!(refused["code"], "conflict");
        let detail = refused["detail"].as_str().expect("text");
        assert!(detail.contains(first), "{detail}");
        let unit = found().await;
        assert_eq!(unit["url"], first);
        let reason = unit["message"]["text"].as_str().expect("it is shown");
        assert!(reason.contains(second), "{reason}");
    }
    let status = scene
        .request(root, "GET /v1/status", Value::Null, 200)
        .await;
    let problems = status["problems"].to_string();
    assert!(problems.contains("second daemon"), "{problems}");
    // A daemon that was restarted on another port, and one that reports no process.
    let moved = "scree://10.0.0.7:7421";
    ask(at(moved, "a"), 200).await;
    assert_eq!(found().await["url"], moved);
    ask(at(first, "b"), 409).await;
    ask(json!({"url": moved}), 200).await;
    ask(at("scree://10.0.0.9:7420", "g"), 400).await;
}

/// A disabled daemon was once shown as healthy, and got more and more segments.
async fn a_disabled_daemon_is_shown_as_disabled_and_gets_no_copysets(scene: Scene) {
    let root = Some(&scene.root);
    let (old, new) = (
        scene.member("daemons", "store-1").await,
        scene.member("daemons", "store-2").await,
    );
    let url = "scree://10.0.0.7:7420";
    let cluster = begin(&scene, &old, json!(url)).await;
    let state = async |name: &str| {
        let all = units(&scene).await.into_iter();
        let mut own = all.filter(|unit| unit["daemon"] == name);
        own.next_back().expect("it is listed")["state"].clone()
    };
    assert_eq!(state("store-2").await, "expected", "it has not begun");
    let disable = "POST /v1/daemons/store-1/disable";
    scene.request(root, disable, Value::Null, 200).await;
    assert_eq!(state("store-1").await, "disabled");
    let status = scene
        .request(root, "GET /v1/status", Value::Null, 200)
        .await;
    let problems = status["problems"].to_string();
    assert!(problems.contains("is disabled"), "{problems}");
    let sets = scene
        .control
        .database()
        .units()
        .copysets()
        .await
        .expect("read");

    // Its address is free, and hosts are notified.
    let next = begin(&scene, &new, json!(url)).await;
    let known = next.units.iter().find(|unit| unit.id == cluster.unit);
    assert!(known.expect("it is known").is_disabled);
    let more = scene
        .control
        .database()
        .units()
        .copysets()
        .await
        .expect("read");
    let added = more.iter().filter(|set| !sets.contains(set));
    for set in added {
        assert!(!set.members.contains(&cluster.unit), "{set:?}");
    }
    let enable = "POST /v1/daemons/store-1/enable";
    scene.request(root, enable, Value::Null, 200).await;
    let taken = scene
        .request(Some(&old), BEGIN, json!({"url": url}), 409)
        .await;
    assert_eq!(taken["code"], "already_exists");
    begin(&scene, &old, json!("scree://10.0.0.9:7420")).await;
}

/// The capability in an answer that has exactly one, verified as daemons do.
fn read(key: VerifyingKey, answer: &Result<Vec<api::host::SignedBytes>, String>) -> Capability {
    let signed = answer.as_ref().expect("the host has the right");
    assert_eq!(signed.len(), 1);
    key.verify(&signed[0].bytes).expect("signed")
}

/// A daemon's key, and host `h1` with a lease on a volume.
struct Leased {
    scene: Scene,
    key: VerifyingKey,
    host: Party,
    volume: VolumeId,
    epoch: u32,
}

const SIGN_CAPABILITIES: &str = "POST /v1/host/rpc/sign-capabilities";

impl Leased {
    async fn new(scene: Scene) -> Self {
        let root = Some(&scene.root);
        let daemon = scene.member("daemons", "store-1").await;
        let key = VerifyingKey(begin(&scene, &daemon, Value::Null).await.keys[0].0);
        let host = scene.member("hosts", "h1").await;
        let new = json!({"name": "disk", "size": 1 << 30});
        let volume = scene.request(root, "POST /v1/volumes", new, 201).await;
        let volume = volume["id"].as_str().expect("one").parse().expect("an id");
        let attach = json!({"volume": "disk", "host": "h1"});
        scene
            .request(root, "POST /v1/attachments", attach, 202)
            .await;
        let mut leased = Self {
            scene,
            key,
            host,
            volume,
            epoch: 0,
        };
        let lease = calls::Acquire {
            volume,
            salt: LeaseSalt([3; 16]),
            journals: None,
        };
        let lease = leased.call(lease.into()).await;
        leased.epoch = lease["epoch"].as_u64().expect("a number") as u32;
        leased
    }

    async fn call(&self, call: CatalogCall) -> Value {
        let request = format!("POST /v1/host/rpc/{}", call.name());
        let call = serde_json::to_value(&call).expect("JSON");
        let answer = self.scene.request(Some(&self.host), &request, call, 200);
        answer.await["Ok"].clone()
    }

    /// Requests of which the first two are allowed.
    fn capability_requests(&self) -> [CapabilityRequest; 5] {
        let (volume, epoch) = (self.volume, self.epoch);
        let lineage = Lineage::from_u128(volume.as_u128());
        [
            CapabilityRequest::Lease { volume, epoch },
            CapabilityRequest::Read { lineage },
            CapabilityRequest::Lease {
                volume,
                epoch: epoch - 1,
            },
            CapabilityRequest::Sweep { volume },
            CapabilityRequest::Free { plan: 1 },
        ]
    }

    async fn sign(&self, host: &Party) -> Capabilities {
        let body = sign_capabilities(&self.capability_requests());
        let answer = self.scene.request(Some(host), SIGN_CAPABILITIES, body, 200);
        serde_json::from_value(answer.await).expect("answers")
    }
}

/// The body of a call that requests capabilities.
fn sign_capabilities(requests: &[CapabilityRequest]) -> Value {
    let (holder, requests) = ([9; 32], requests.to_vec());
    serde_json::to_value(SignCapabilities { holder, requests }).expect("JSON")
}

fn serials_of(capability: &Capability) -> Vec<std::ops::Range<u64>> {
    match &capability.scope {
        Scope::Lease { serials, .. } => serials.clone(),
        other => panic!("{other:?}"),
    }
}

async fn a_host_gets_the_capabilities_of_its_lease(scene: Scene) {
    let leased = Leased::new(scene).await;
    let answers = leased.sign(&leased.host).await;
    let lease = read(leased.key, &answers[0]);
    assert_eq!(lease.holder, [9; 32]);
    assert_eq!(serials_of(&lease), [], "nothing is reserved yet");
    assert_eq!((lease.ends.0 - lease.made.0), 60_000);
    let Scope::Read { lineage_tags } = read(leased.key, &answers[1]).scope else {
        panic!("it is for reading");
    };
    assert_eq!(lineage_tags.len(), 1);
    assert!(answers[2..].iter().all(Result::is_err), "{answers:?}");

    let reserve = calls::ReserveSerials {
        volume: leased.volume,
        epoch: leased.epoch,
        count: 7,
    };
    let serials = leased.call(reserve.into()).await;
    let reserved: std::ops::Range<u64> = serde_json::from_value(serials).expect("serials");
    let answers = leased.sign(&leased.host).await;
    assert_eq!(serials_of(&read(leased.key, &answers[0])), [reserved]);
    let other = leased.scene.member("hosts", "h2").await;
    let others = leased.sign(&other).await;
    assert!(others.iter().all(Result::is_err), "{others:?}");
}

async fn a_call_for_too_many_or_repeated_capabilities_is_refused(scene: Scene) {
    let leased = Leased::new(scene).await;
    let requests = leased.capability_requests();
    for requests in [
        vec![requests[1]; 257],
        vec![requests[0], requests[1], requests[0]],
    ] {
        let body = sign_capabilities(&requests);
        let host = Some(&leased.host);
        let refused = leased
            .scene
            .request(host, SIGN_CAPABILITIES, body, 400)
            .await;
        assert_eq!(refused["field"], "requests");
    }
}

async fn a_hosts_certificate_for_daemons_is_refused_by_controllers(scene: Scene) {
    let host = scene.member("hosts", "h1").await;
    let request = KeyRequest::generate().expect("a key");
    let asked = json!({"request_pem": request.request_pem});
    let sign = "POST /v1/host/rpc/sign-certificate";
    let issued = scene.request(Some(&host), sign, asked, 200).await;
    assert_eq!(issued["subject"], "scree://host/h1");
    let for_daemons = Party {
        chain_pem: issued["certificate"].as_str().expect("PEM").to_owned(),
        key_pem: request.key_pem.to_string(),
    };
    let begin = "POST /v1/host/rpc/begin";
    scene
        .request(Some(&for_daemons), begin, json!({}), 401)
        .await;
}
