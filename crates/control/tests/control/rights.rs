//! What each of them gets from each call: nobody, a host, a stranger, who has
//! been given one right, the owner, an administrator.

use std::collections::BTreeSet;

use api::host::{AttachmentReport, AttachmentState};
use base::PartyId;
use serde_json::{Value, json};

use crate::parties::Scene;
use crate::tls::Party;

/// Who asks, in the order of the columns below.
const WHO: [&str; 9] = [
    "nobody",
    "a host",
    "a stranger",
    "read",
    "use",
    "snapshot",
    "administer",
    "the owner",
    "an administrator",
];

/// For whom it exists, that is everybody with a right.
const SEE: [u16; 9] = [401, 403, 404, 200, 200, 200, 200, 200, 200];
/// Whoever has the right to administer.
const MANAGE: [u16; 9] = [401, 403, 404, 403, 403, 403, 200, 200, 200];
/// The same, for what does not even exist for others.
const HIDDEN: [u16; 9] = [401, 403, 404, 404, 404, 404, 200, 200, 200];
/// Administrators of the cluster.
const ROOT: [u16; 9] = [401, 403, 403, 403, 403, 403, 403, 403, 200];
/// Every user.
const ANY: [u16; 9] = [401, 403, 200, 200, 200, 200, 200, 200, 200];

/// The same, where success is another status.
const fn with(mut row: [u16; 9], success: u16) -> [u16; 9] {
    let mut column = 0;
    while column < row.len() {
        if row[column] == 200 {
            row[column] = success;
        }
        column += 1;
    }
    row
}

/// A call, its body, and what each gets. `{v}` is a volume of alice's, `{s}` a
/// snapshot of it, `{a}` an attachment of it that she has asked for, `{g}` a
/// right on it that she has given to carol, `{c}` the chain of another one; `{n}` is a new
/// name.
fn calls() -> Vec<(&'static str, Value, [u16; 9])> {
    let none = Value::Null;
    let clone = [401, 403, 404, 201, 201, 403, 201, 201, 403];
    let take = [401, 403, 404, 403, 403, 201, 201, 201, 201];
    let read = [401, 403, 404, 202, 202, 403, 202, 202, 403];
    let write = [401, 403, 404, 403, 202, 403, 202, 202, 403];
    // Administrators of the cluster would have to be given the use of it.
    let move_on = [401, 403, 404, 404, 404, 404, 202, 202, 403];
    let watch = [401, 403, 404, 404, 404, 404, 200, 200, 403];
    // A filter may send elsewhere what is written: whoever chooses it must be able to read it.
    let with_filters = [401, 403, 404, 403, 403, 403, 200, 200, 403];
    let without_filters = [401, 403, 404, 404, 404, 404, 200, 200, 403];
    // What stays takes room from all others; what a host reads, its users could read there.
    let pin = [401, 403, 404, 403, 403, 403, 403, 403, 200];
    let preload = [401, 403, 404, 403, 403, 403, 409, 409, 403];
    let give = [401, 403, 404, 403, 403, 403, 403, 200, 200];
    let own_project = [401, 403, 404, 404, 404, 404, 404, 200, 200];
    let me = [401, 200, 200, 200, 200, 200, 200, 200, 200];
    let add_right = json!({"user": "carol", "right": "use", "volume": "{v}"});
    let add_project = json!({"name": "{n}"});
    let on_host = json!({"user": "carol", "right": "use", "host": "h1"});
    // Only an administrator says who may use a host.
    let host_right = [401, 403, 403, 403, 403, 403, 403, 403, 201];
    vec![
        ("GET /v1/volumes", none.clone(), ANY),
        (
            "POST /v1/volumes",
            json!({"name": "{n}", "size": 1 << 20}),
            with(ANY, 201),
        ),
        (
            "POST /v1/volumes",
            json!({"name": "{n}", "from": "{s}"}),
            clone,
        ),
        ("GET /v1/volumes/{v}", none.clone(), SEE),
        ("GET /v1/volumes/{v}/versions", none.clone(), SEE),
        (
            "POST /v1/volumes/{v}/grow",
            json!({"size": 1 << 30}),
            MANAGE,
        ),
        (
            "PUT /v1/volumes/{v}/sizes",
            json!({"cache_max": 1 << 20}),
            MANAGE,
        ),
        (
            "PUT /v1/volumes/{v}/sizes",
            json!({"journal_size": 16 << 20}),
            pin,
        ),
        (
            "PUT /v1/volumes/{v}/tags",
            json!({"tags": {"a": "b"}}),
            MANAGE,
        ),
        // It may be asked for; but what is to come is no state.
        (
            "POST /v1/volumes/{v}/restore",
            json!({"time": "2999-01-01T00:00:00Z"}),
            with(MANAGE, 400),
        ),
        (
            "POST /v1/volumes/{v}/transfer",
            json!({"user": "carol", "project": "shared"}),
            give,
        ),
        ("DELETE /v1/volumes/{v}", none.clone(), with(MANAGE, 202)),
        ("GET /v1/snapshots", none.clone(), ANY),
        (
            "POST /v1/snapshots",
            json!({"volume": "{v}", "name": "{n}"}),
            take,
        ),
        ("GET /v1/snapshots?volume={v}", none.clone(), SEE),
        ("GET /v1/snapshots/{s}", none.clone(), SEE),
        ("PUT /v1/snapshots/{s}/tags", json!({"tags": {}}), MANAGE),
        ("DELETE /v1/snapshots/{s}", none.clone(), MANAGE),
        ("GET /v1/attachments", none.clone(), ANY),
        ("GET /v1/attachments?volume={v}", none.clone(), SEE),
        (
            "POST /v1/attachments",
            json!({"volume": "{v}", "host": "h1", "read_only": true}),
            read,
        ),
        (
            "POST /v1/attachments",
            json!({"volume": "{v}", "host": "h1"}),
            write,
        ),
        ("GET /v1/attachments/{a}", none.clone(), HIDDEN),
        (
            "DELETE /v1/attachments/{a}",
            none.clone(),
            with(HIDDEN, 202),
        ),
        (
            "POST /v1/attachments/{a}/move",
            json!({"host": "h2"}),
            move_on,
        ),
        // Nothing follows it that could be canceled.
        (
            "DELETE /v1/attachments/{a}/move",
            none.clone(),
            with(HIDDEN, 409),
        ),
        // It has no filters; but whoever is told so may know.
        (
            "GET /v1/attachments/{a}/events",
            none.clone(),
            with(watch, 503),
        ),
        ("GET /v1/chains", none.clone(), ANY),
        ("GET /v1/chains?volume={v}", none.clone(), MANAGE),
        (
            "POST /v1/chains",
            json!({"policy": "volume = '{v}'\n[[filter]]\nkind = 'rate'\niops = 9\n"}),
            with_filters,
        ),
        ("GET /v1/chains/{c}", none.clone(), HIDDEN),
        ("DELETE /v1/chains/{c}", none.clone(), without_filters),
        ("GET /v1/images", none.clone(), ANY),
        ("PUT /v1/volumes/{v}/image", json!({}), MANAGE),
        ("PUT /v1/volumes/{v}/image", json!({"pinned": true}), pin),
        // It is none yet.
        ("GET /v1/volumes/{v}/image", none.clone(), with(SEE, 404)),
        (
            "DELETE /v1/volumes/{v}/image",
            none.clone(),
            with(MANAGE, 409),
        ),
        (
            "POST /v1/volumes/{v}/image/preloads",
            json!({"hosts": ["h1"]}),
            preload,
        ),
        (
            "DELETE /v1/volumes/{v}/image/preloads",
            none.clone(),
            with(MANAGE, 409),
        ),
        // Nothing was written to it yet; but whoever is told so may know.
        (
            "POST /v1/volumes/{v}/audits",
            json!({"units": ["none"]}),
            [401, 403, 404, 409, 409, 403, 409, 409, 403],
        ),
        (
            "GET /v1/volumes/{v}/audits/audit-00000000000000000",
            none.clone(),
            [401, 403, 404, 404, 404, 403, 404, 404, 403],
        ),
        (
            "GET /v1/volumes/{v}/audits",
            none.clone(),
            [401, 403, 404, 200, 200, 403, 200, 200, 403],
        ),
        // Who has asked for one may cancel it, whatever they may do by now; there is none.
        (
            "DELETE /v1/volumes/{v}/audits/audit-00000000000000000",
            none.clone(),
            with(SEE, 404),
        ),
        ("GET /v1/grants", none.clone(), ANY),
        ("GET /v1/grants?volume={v}", none.clone(), SEE),
        ("POST /v1/grants", add_right, with(MANAGE, 201)),
        ("POST /v1/grants", on_host, host_right),
        ("DELETE /v1/grants/{g}", none.clone(), HIDDEN),
        ("GET /v1/projects", none.clone(), ANY),
        ("GET /v1/projects/alice", none.clone(), own_project),
        ("POST /v1/projects", add_project, with(ROOT, 201)),
        (
            "PUT /v1/projects/alice/quota",
            json!({"volumes": 9999}),
            ROOT,
        ),
        ("PUT /v1/projects/alice/members/carol", none.clone(), ROOT),
        (
            "DELETE /v1/projects/alice/members/carol",
            none.clone(),
            ROOT,
        ),
        ("DELETE /v1/projects/shared", none.clone(), with(ROOT, 409)),
        ("GET /v1/me", none.clone(), me),
        ("GET /v1/status", none.clone(), ROOT),
        ("GET /v1/load", none.clone(), ROOT),
        ("GET /v1/audit", none.clone(), ROOT),
        ("GET /v1/units", none.clone(), ROOT),
        ("GET /v1/units/none", none.clone(), with(ROOT, 404)),
        (
            "PUT /v1/units/none/zone",
            json!({"zone": "a"}),
            with(ROOT, 404),
        ),
        ("GET /v1/keys", none.clone(), ROOT),
        ("GET /v1/keys/none", none.clone(), with(ROOT, 404)),
        (
            "POST /v1/keys/none/rotate",
            json!({"to": "other"}),
            with(ROOT, 404),
        ),
        ("DELETE /v1/keys/none", none.clone(), with(ROOT, 404)),
        // No host has an agent here that could do it.
        (
            "POST /v1/units",
            json!({"url": "/nowhere", "host": "none"}),
            with(ROOT, 404),
        ),
        ("GET /v1/units/tasks", none.clone(), ROOT),
        ("POST /v1/units/repair", none.clone(), with(ROOT, 202)),
        ("POST /v1/units/scrub", json!({}), with(ROOT, 202)),
        ("POST /v1/units/rebalance", none.clone(), with(ROOT, 202)),
        (
            "POST /v1/units/drain",
            json!({"units": ["none"]}),
            with(ROOT, 404),
        ),
        (
            "POST /v1/units/none/remove",
            json!({"lost": true}),
            with(ROOT, 404),
        ),
        (
            "POST /v1/keys",
            json!({"name": "new", "host": "none"}),
            with(ROOT, 404),
        ),
        ("GET /v1/users", none.clone(), ROOT),
        ("POST /v1/users", json!({"name": "{n}"}), with(ROOT, 201)),
        ("GET /v1/users/carol", none.clone(), ROOT),
        ("POST /v1/users/carol/token", none.clone(), with(ROOT, 201)),
        ("POST /v1/users/carol/disable", none.clone(), ROOT),
        ("POST /v1/users/carol/enable", none.clone(), ROOT),
        ("DELETE /v1/users/carol/keys", none.clone(), ROOT),
        ("GET /v1/hosts", none.clone(), ROOT),
        ("POST /v1/hosts", json!({"name": "{n}"}), with(ROOT, 201)),
        ("GET /v1/hosts/h1", none.clone(), ROOT),
        ("POST /v1/hosts/h1/token", none.clone(), with(ROOT, 201)),
        ("POST /v1/hosts/h2/disable", none.clone(), ROOT),
        ("POST /v1/hosts/h2/enable", none.clone(), ROOT),
        ("DELETE /v1/hosts/h2/keys", none.clone(), ROOT),
        ("GET /v1/daemons", none.clone(), ROOT),
        ("POST /v1/daemons", json!({"name": "{n}"}), with(ROOT, 201)),
        ("GET /v1/daemons/u1", none.clone(), ROOT),
        ("POST /v1/daemons/u1/token", none.clone(), with(ROOT, 201)),
        ("POST /v1/daemons/u1/disable", none.clone(), ROOT),
        ("POST /v1/daemons/u1/enable", none.clone(), ROOT),
        ("DELETE /v1/daemons/u1/keys", none, ROOT),
    ]
}

/// What needs no certificate, or would wait for an agent; these have tests of
/// their own.
const ELSEWHERE: [&str; 5] = [
    "GET /v1/authority",
    "POST /v1/join",
    "POST /v1/me/certificate",
    "PUT /v1/volumes/{volume}/export",
    "DELETE /v1/volumes/{volume}/export",
];

struct Cast {
    scene: Scene,
    host: Party,
    /// Where things are moved to.
    h2: PartyId,
    alice: Party,
    bob: Party,
}

impl Cast {
    async fn new(scene: Scene) -> Self {
        let alice = scene.member("users", "alice").await;
        let bob = scene.member("users", "bob").await;
        scene.member("users", "carol").await;
        let host = scene.member("hosts", "h1").await;
        scene.member("hosts", "h2").await;
        scene.member("daemons", "u1").await;
        let root = Some(&scene.root);
        let hosts = scene.ask(root, "GET /v1/hosts", Value::Null, 200).await;
        let named = |host: &&Value| host["name"] == "h2";
        let h2 = hosts["items"]
            .as_array()
            .expect("a page")
            .iter()
            .find(named);
        let h2 = h2.expect("it was made")["id"].as_str().expect("an id");
        let h2 = h2.parse().expect("an id");
        for user in ["alice", "bob"] {
            for host in ["h1", "h2"] {
                let grant = json!({"user": user, "right": "use", "host": host});
                scene.ask(root, "POST /v1/grants", grant, 201).await;
            }
        }
        let shared = json!({"name": "shared"});
        scene.ask(root, "POST /v1/projects", shared, 201).await;
        for user in ["alice", "carol"] {
            let join = format!("PUT /v1/projects/shared/members/{user}");
            scene.ask(root, &join, Value::Null, 200).await;
        }
        // What keeps the project from being deleted.
        let kept = json!({"name": "kept", "size": 1 << 20, "project": "shared"});
        scene.ask(Some(&alice), "POST /v1/volumes", kept, 201).await;
        Self {
            scene,
            host,
            h2,
            alice,
            bob,
        }
    }

    /// New things of alice's, on which bob has `right`: what the letters in
    /// the calls stand for.
    async fn things(&self, number: usize, right: Option<&str>) -> Vec<(&'static str, String)> {
        let (scene, alice) = (&self.scene, Some(&self.alice));
        let made = async |request: &str, body: Value, status| -> String {
            let made = scene.ask(alice, request, body, status).await;
            made["id"].as_str().expect("an id").to_owned()
        };
        let name = format!("thing-{number}");
        let new = json!({"name": name, "size": 1 << 20, "project": "alice"});
        let volume = made("POST /v1/volumes", new, 201).await;
        let new = json!({"volume": volume, "name": name});
        let snapshot = made("POST /v1/snapshots", new, 201).await;
        let new = json!({"user": "carol", "right": "read", "volume": volume});
        let grant = made("POST /v1/grants", new, 201).await;
        if let Some(right) = right {
            let new = json!({"user": "bob", "right": right, "volume": volume});
            made("POST /v1/grants", new, 201).await;
        }
        let new = json!({"name": format!("other-{number}"), "size": 1 << 20, "project": "alice"});
        let other = made("POST /v1/volumes", new, 201).await;
        let new = json!({"volume": other, "host": "h1"});
        let attachment = made("POST /v1/attachments", new, 202).await;
        if let Some(right) = right {
            let new = json!({"user": "bob", "right": right, "volume": other});
            made("POST /v1/grants", new, 201).await;
        }
        let policy = format!("volume = '{other}'\n[[filter]]\nkind = 'fault'\n");
        let chain = made("POST /v1/chains", json!({"policy": policy}), 200).await;
        vec![
            ("{v}", volume),
            ("{s}", snapshot),
            ("{a}", attachment),
            ("{g}", grant),
            ("{c}", chain),
            ("{n}", format!("new-{number}")),
        ]
    }

    /// Nothing is moved to who is unresponsive.
    async fn h2_is_heard_of(&self) {
        let heard = self.scene.control.note_heard(self.h2).await;
        heard.expect("kept");
    }

    fn who(&self, column: usize) -> Option<&Party> {
        match column {
            0 => None,
            1 => Some(&self.host),
            7 => Some(&self.alice),
            8 => Some(&self.scene.root),
            _ => Some(&self.bob),
        }
    }
}

fn filled(text: &str, things: &[(&str, String)]) -> String {
    let mut text = text.to_owned();
    for (letter, thing) in things {
        text = text.replace(letter, thing);
    }
    text
}

async fn each_call_gives_everybody_what_is_theirs(scene: Scene) {
    let cast = Cast::new(scene).await;
    let mut wrong = Vec::new();
    for (row, (request, body, expected)) in calls().into_iter().enumerate() {
        for (column, who) in WHO.iter().enumerate() {
            let right = Some(*who).filter(|_| (3..=6).contains(&column));
            let things = cast.things(row * WHO.len() + column, right).await;
            cast.h2_is_heard_of().await;
            let asked = filled(request, &things);
            let sent = match &body {
                Value::Null => String::new(),
                body => filled(&body.to_string(), &things),
            };
            let (status, answer) = cast.scene.try_ask(cast.who(column), &asked, &sent).await;
            if status != expected[column] {
                wrong.push(format!(
                    "{request} {body} by {who}: {status} and not {}: {answer}",
                    expected[column]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whoever guesses ids learns nothing from the answers.
async fn what_is_a_strangers_is_answered_like_what_does_not_exist(scene: Scene) {
    let cast = Cast::new(scene).await;
    let things = cast.things(0, None).await;
    let absent = [
        ("{v}", "vol-00000000000000000".to_owned()),
        ("{s}", "snap-00000000000000000".to_owned()),
        ("{a}", "att-00000000000000000".to_owned()),
        ("{g}", "grant-00000000000000000".to_owned()),
        ("{c}", "chain-00000000000000000".to_owned()),
        ("{n}", "new".to_owned()),
    ];
    let names = [
        ("{v}", "alice/thing-0".to_owned()),
        ("{s}", "alice/thing-0".to_owned()),
    ];
    let no_names = [
        ("{v}", "alice/nothing".to_owned()),
        ("{s}", "alice/nothing".to_owned()),
    ];
    let mut compared = 0;
    for (request, body, expected) in calls() {
        if expected[2] != 404 {
            continue;
        }
        let whole = format!("{request} {body}");
        let ask = async |things: &[(&str, String)]| {
            let path_things: Vec<_> = things
                .iter()
                .map(|(letter, thing)| (*letter, thing.replace('/', "%2F")))
                .collect();
            let asked = filled(request, &path_things);
            let sent = match &body {
                Value::Null => String::new(),
                body => filled(&body.to_string(), things),
            };
            let (status, answer) = cast.scene.try_ask(Some(&cast.bob), &asked, &sent).await;
            let mut text = answer.to_string();
            for (letter, thing) in things {
                text = text.replace(thing, letter);
            }
            (status, text)
        };
        assert_eq!(ask(&things).await, ask(&absent).await, "{request} {body}");
        let has_name = whole.contains("{v}") || whole.contains("{s}");
        if has_name && !whole.contains("{n}") {
            assert_eq!(ask(&names).await, ask(&no_names).await, "{request} {body}");
        }
        compared += 1;
    }
    assert!(compared > 15, "{compared}");
    for request in [
        "PUT /v1/volumes/{v}/export",
        "DELETE /v1/volumes/{v}/export",
    ] {
        let body = match request.starts_with("PUT") {
            true => r#"{"host": "h1"}"#,
            false => "",
        };
        for (letter, id) in [&things[0], &absent[0]] {
            let asked = request.replace(letter, id);
            let (status, answer) = cast.scene.try_ask(Some(&cast.bob), &asked, body).await;
            assert_eq!(status, 404, "{answer}");
            let detail = answer["detail"].as_str().expect("text");
            let expected = format!("volume {id:?} does not exist; `scree volume list` shows those");
            assert!(detail.starts_with(&expected), "{detail}");
        }
    }
}

#[test]
fn the_table_of_rights_has_every_call() {
    let document = serde_json::to_value(control::http::description()).expect("JSON");
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys() {
            described.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let is_same = |described: &str, called: &str| {
        let called = called.split('?').next().expect("a path");
        let (one, other) = (described.split('/'), called.split('/'));
        one.clone().count() == other.clone().count()
            && one
                .zip(other)
                .all(|(one, other)| one == other || one.starts_with('{'))
    };
    let calls = calls();
    let missing = described.iter().filter(|described| {
        !ELSEWHERE.contains(&described.as_str())
            && !calls.iter().any(|(called, ..)| is_same(described, called))
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(described.len() > 50, "{described:?}");
}

/// They were told that no host is heard of, as if that would pass.
async fn whoever_has_given_back_their_hosts_hears_that_none_is_for_them(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice) = (&cast.scene, Some(&cast.alice));
    let things = cast.things(0, None).await;
    cast.h2_is_heard_of().await;
    let preload = filled("POST /v1/volumes/{v}/image/preloads", &things);
    // It is no image.
    scene.ask(alice, &preload, json!({}), 409).await;
    let grants = scene.ask(alice, "GET /v1/grants", Value::Null, 200).await;
    for grant in grants["items"].as_array().expect("a page") {
        if grant["name"] == "h1" || grant["name"] == "h2" {
            let back = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
            scene.ask(alice, &back, Value::Null, 200).await;
        }
    }
    let refused = scene.ask(alice, &preload, json!({"hosts": []}), 403).await;
    let why = refused["detail"].as_str().expect("words");
    assert!(why.contains("no host is for you"), "{why}");
}

async fn a_right_that_was_taken_away_is_no_right_for_the_next_request(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let things = cast.things(0, Some("use")).await;
    let of_bob = format!("GET /v1/grants?volume={}", things[0].1);
    let grants = scene.ask(alice, &of_bob, Value::Null, 200).await;
    let grants = grants["items"].as_array().expect("a list");
    let grant = grants
        .iter()
        .find(|grant| grant["user"] == "bob")
        .expect("given");
    let attach = json!({"volume": things[0].1, "host": "h1"});
    let made = scene
        .ask(bob, "POST /v1/attachments", attach.clone(), 202)
        .await;
    let delete = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.ask(alice, &delete, Value::Null, 200).await;
    scene.ask(bob, "POST /v1/attachments", attach, 404).await;
    // What was attached with it can still be ended.
    let end = format!(
        "DELETE /v1/attachments/{}",
        made["id"].as_str().expect("an id")
    );
    scene.ask(bob, &end, Value::Null, 202).await;
}

async fn a_host_is_for_those_it_was_given_to_and_for_their_vms(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, root) = (&cast.scene, Some(&cast.scene.root));
    let dave = scene.member("users", "dave").await;
    let new = json!({"name": "disk", "size": 1 << 20});
    scene.ask(Some(&dave), "POST /v1/volumes", new, 201).await;
    let attach = |vm: Value| json!({"volume": "disk", "host": "h1", "vm": vm});
    let request = "POST /v1/attachments";
    // As if it did not exist.
    scene
        .ask(Some(&dave), request, attach(Value::Null), 404)
        .await;
    let none = scene
        .ask(Some(&dave), request, json!({"volume": "disk"}), 403)
        .await;
    assert!(
        none["detail"]
            .as_str()
            .expect("text")
            .contains("scree grant add dave use --host")
    );
    let grant = json!({"user": "dave", "right": "use", "host": "h1", "vm": "libvirt:dave-"});
    scene.ask(root, "POST /v1/grants", grant, 201).await;
    for other in [json!("libvirt:erin-1"), json!("qmp:/run/vm"), Value::Null] {
        let refused = scene.ask(Some(&dave), request, attach(other), 403).await;
        assert!(
            refused["detail"]
                .as_str()
                .expect("text")
                .contains("libvirt:dave-")
        );
    }
    scene
        .ask(Some(&dave), request, attach(json!("libvirt:dave-1")), 202)
        .await;
}

async fn names_are_an_owners_affair(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20, "project": "alice"});
    let hers = scene.ask(alice, "POST /v1/volumes", new, 201).await;
    let new = json!({"name": "data", "size": 1 << 20});
    // Hers is not known to him by that.
    let his = scene.ask(bob, "POST /v1/volumes", new.clone(), 201).await;
    scene.ask(bob, "POST /v1/volumes", new, 409).await;
    let grant = json!({"user": "bob", "right": "read", "volume": "data"});
    scene.ask(alice, "POST /v1/grants", grant, 201).await;
    let shown = async |who, name: &str| {
        let path = format!("GET /v1/volumes/{name}");
        scene.ask(who, &path, Value::Null, 200).await["id"].clone()
    };
    assert_eq!(shown(bob, "data").await, his["id"], "his own first");
    assert_eq!(shown(bob, "alice%2Fdata").await, hers["id"]);
    assert_eq!(shown(bob, "bob%2Fdata").await, his["id"]);
    // Both are somebody else's.
    let root = Some(&scene.root);
    let unclear = scene
        .ask(root, "GET /v1/volumes/data", Value::Null, 409)
        .await;
    let detail = unclear["detail"].as_str().expect("text");
    assert!(
        detail.contains("alice/data") && detail.contains("bob/data"),
        "{detail}"
    );
    assert_eq!(shown(root, "alice%2Fdata").await, hers["id"]);
}

/// Whoever gave alice a right on theirs chose what a name of hers meant.
async fn a_bare_name_is_anothers_only_to_those_who_look(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20});
    let his = scene.ask(bob, "POST /v1/volumes", new, 201).await;
    let take = json!({"volume": "data", "name": "noon"});
    scene.ask(bob, "POST /v1/snapshots", take, 201).await;
    let unasked = json!({"user": "alice", "right": "administer", "volume": "data"});
    scene.ask(bob, "POST /v1/grants", unasked, 201).await;
    let shown = scene
        .ask(alice, "GET /v1/volumes/data", Value::Null, 200)
        .await;
    assert_eq!(shown["id"], his["id"]);
    for looked in [
        "GET /v1/volumes/data/versions",
        "GET /v1/snapshots/noon",
        "GET /v1/snapshots?volume=data",
        "GET /v1/attachments?volume=data",
        "GET /v1/grants?volume=data",
    ] {
        scene.ask(alice, looked, Value::Null, 200).await;
    }
    let none = Value::Null;
    for (request, body) in [
        ("POST /v1/volumes/data/grow", json!({"size": 1 << 30})),
        ("PUT /v1/volumes/data/tags", json!({"tags": {}})),
        ("POST /v1/volumes/data/restore", json!({"version": 1})),
        ("POST /v1/volumes/data/transfer", json!({"user": "alice"})),
        ("DELETE /v1/volumes/data", none.clone()),
        ("PUT /v1/volumes/data/export", json!({"host": "h1"})),
        ("DELETE /v1/volumes/data/export", none.clone()),
        ("POST /v1/snapshots", json!({"volume": "data"})),
        ("PUT /v1/snapshots/noon/tags", json!({"tags": {}})),
        ("DELETE /v1/snapshots/noon", none),
        (
            "POST /v1/volumes",
            json!({"name": "clone", "from": "noon", "project": "alice"}),
        ),
        (
            "POST /v1/attachments",
            json!({"volume": "data", "host": "h1"}),
        ),
        (
            "POST /v1/attachments",
            json!({"volume": "data", "host": "h1", "read_only": true}),
        ),
        (
            "POST /v1/grants",
            json!({"user": "carol", "right": "read", "volume": "data"}),
        ),
        (
            "POST /v1/grants",
            json!({"user": "carol", "right": "read", "snapshot": "noon"}),
        ),
    ] {
        let refused = scene.ask(alice, request, body, 409).await;
        let detail = refused["detail"].as_str().expect("text");
        assert!(
            detail.contains("bob/data") || detail.contains("bob/noon"),
            "{request}: {detail}"
        );
    }
    let tag = "PUT /v1/volumes/bob%2Fdata/tags";
    scene.ask(alice, tag, json!({"tags": {}}), 200).await;
    // What is listed says whose it is.
    let attach = json!({"volume": "bob/data", "host": "h1"});
    let made = scene.ask(alice, "POST /v1/attachments", attach, 202).await;
    assert_eq!(
        (&made["volume"], &made["owner"]),
        (&json!("data"), &json!("bob"))
    );
    for list in ["attachments", "grants"] {
        let path = format!("GET /v1/{list}?volume=bob%2Fdata");
        let listed = scene.ask(alice, &path, Value::Null, 200).await;
        assert_eq!(listed["items"][0]["owner"], "bob", "{listed}");
    }
    // And what is to be done about it can be done so.
    let elsewhere = json!({"volume": "bob/data", "host": "h2"});
    for (request, body) in [
        ("DELETE /v1/volumes/bob%2Fdata", Value::Null),
        ("POST /v1/attachments", elsewhere),
    ] {
        let refused = scene.ask(alice, request, body, 409).await;
        let detail = refused["detail"].as_str().expect("text");
        assert!(
            detail.contains("`scree volume unexport bob/data`"),
            "{detail}"
        );
    }
    let end = format!(
        "DELETE /v1/attachments/{}?force=true",
        made["id"].as_str().expect("an id")
    );
    scene.ask(alice, &end, Value::Null, 202).await;
    let by_id = format!("DELETE /v1/volumes/{}", his["id"].as_str().expect("an id"));
    scene.ask(alice, &by_id, Value::Null, 202).await;
}

/// Whoever could read a volume was told in which VM of whose it was, and why it
/// could not be plugged in there.
async fn where_others_have_a_volume_is_for_those_who_administer_it(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20, "project": "alice"});
    scene.ask(alice, "POST /v1/volumes", new, 201).await;
    let attach = json!({"volume": "data", "host": "h1", "vm": "libvirt:secret"});
    let made = scene.ask(alice, "POST /v1/attachments", attach, 202).await;
    let id = made["id"].as_str().expect("an id").parse().expect("an id");
    let report = AttachmentReport {
        generation: 1,
        state: AttachmentState::Error,
        reason: Some("libvirt:secret does not run".to_owned()),
        note: None,
        device: None,
        chain: None,
        chain_problem: None,
        size_bytes: None,
        uri: None,
        tcp_uri: None,
    };
    let host = scene
        .control
        .local_request()
        .await
        .expect("local")
        .host_or_default(Some("h1"))
        .await
        .expect("there");
    let kept = scene.control.attachment_reported(host, id, &report).await;
    assert!(kept.expect("kept"), "news");
    let states = async |who| {
        let path = "GET /v1/volumes/alice%2Fdata";
        let shown = scene.ask(who, path, Value::Null, 200).await;
        let mut listed = Vec::new();
        for state in ["available", "in-use", "error"] {
            let path = format!("GET /v1/volumes?name=data&state={state}");
            let list = scene.ask(who, &path, Value::Null, 200).await;
            if list["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
            {
                assert_eq!(list["items"][0]["state"], state);
                assert_eq!(list["items"][0]["reason"], shown["reason"]);
                listed.push(state);
            }
        }
        assert_eq!(listed, [shown["state"].as_str().expect("a state")]);
        (listed, shown["reason"].clone())
    };
    let whole = (vec!["error"], json!("libvirt:secret does not run"));
    assert_eq!(states(alice).await, whole);
    assert_eq!(states(Some(&scene.root)).await, whole);
    let grant = |right: &str| json!({"user": "bob", "right": right, "volume": "data"});
    for right in ["read", "use", "snapshot"] {
        scene.ask(alice, "POST /v1/grants", grant(right), 201).await;
        assert_eq!(states(bob).await, (vec!["in-use"], Value::Null), "{right}");
    }
    scene
        .ask(alice, "POST /v1/grants", grant("administer"), 201)
        .await;
    assert_eq!(states(bob).await, whole);
}

/// Tags and rights could still be put on it, and were forgotten with it.
async fn what_is_being_deleted_is_changed_no_more(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice) = (&cast.scene, Some(&cast.alice));
    let things = cast.things(0, None).await;
    let id = &things[0].1;
    let delete = format!("DELETE /v1/volumes/{id}");
    scene.ask(alice, &delete, Value::Null, 202).await;
    let give = json!({"user": "carol", "project": "shared"});
    for (request, body) in [
        ("PUT /v1/volumes/{v}/tags", json!({"tags": {"a": "b"}})),
        ("POST /v1/volumes/{v}/grow", json!({"size": 1 << 30})),
        ("POST /v1/volumes/{v}/transfer", give),
        ("POST /v1/snapshots", json!({"volume": id})),
        ("POST /v1/attachments", json!({"volume": id, "host": "h1"})),
        (
            "POST /v1/grants",
            json!({"user": "carol", "right": "use", "volume": id}),
        ),
        ("DELETE /v1/volumes/{v}", Value::Null),
    ] {
        let request = filled(request, &things);
        let refused = scene.ask(alice, &request, body, 409).await;
        assert_eq!(refused["code"], "conflict", "{request}");
        let detail = refused["detail"].as_str().expect("text");
        assert!(detail.contains("is being deleted"), "{request}: {detail}");
    }
    // Rights are taken away, and what is left of it is as it was.
    let revoke = filled("DELETE /v1/grants/{g}", &things);
    scene.ask(alice, &revoke, Value::Null, 200).await;
    let set = json!({"tags": {"a": "b"}});
    let tag = filled("PUT /v1/snapshots/{s}/tags", &things);
    scene.ask(alice, &tag, set, 200).await;
}

/// Whoever asked for an attachment ends it, but gets it back only by right.
async fn who_lost_a_volume_calls_no_move_off(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let things = cast.things(0, None).await;
    let grant = json!({"user": "bob", "right": "use", "volume": things[0].1});
    let grant = scene.ask(alice, "POST /v1/grants", grant, 201).await;
    let attach = json!({"volume": things[0].1, "host": "h1"});
    let made = scene.ask(bob, "POST /v1/attachments", attach, 202).await;
    let revoke = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.ask(alice, &revoke, Value::Null, 200).await;
    let path = format!("/v1/attachments/{}", made["id"].as_str().expect("an id"));
    let (start, cancel) = (format!("POST {path}/move"), format!("DELETE {path}/move"));
    cast.h2_is_heard_of().await;
    scene.ask(alice, &start, json!({"host": "h2"}), 202).await;
    scene.ask(bob, &cancel, Value::Null, 404).await;
    scene.ask(alice, &cancel, Value::Null, 202).await;
}

/// Of a right on a host, or an attachment there, an operator read ids alone.
async fn the_log_has_names_beside_ids(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, root, alice) = (&cast.scene, Some(&cast.scene.root), Some(&cast.alice));
    let things = cast.things(0, Some("read")).await;
    let volume = &things[0].1;
    let grant = json!({"user": "carol", "right": "use", "host": "h2", "vm": "libvirt:carol-"});
    let grant = scene.ask(root, "POST /v1/grants", grant, 201).await;
    let attach = json!({"volume": volume, "host": "h1", "vm": "libvirt:one"});
    let made = scene.ask(alice, "POST /v1/attachments", attach, 202).await;
    let id = made["id"].as_str().expect("an id");
    let onto = json!({"host": "h2"});
    let path = format!("/v1/attachments/{id}");
    let (start, cancel) = (format!("POST {path}/move"), format!("DELETE {path}/move"));
    cast.h2_is_heard_of().await;
    scene.ask(alice, &start, onto, 202).await;
    scene.ask(alice, &cancel, Value::Null, 202).await;
    let detach = format!("DELETE {path}?force=true");
    scene.ask(alice, &detach, Value::Null, 202).await;
    let set = json!({"tags": {"a": "b"}});
    let tag = filled("PUT /v1/volumes/{v}/tags", &things);
    scene.ask(alice, &tag, set.clone(), 200).await;
    let tag = filled("PUT /v1/snapshots/{s}/tags", &things);
    scene.ask(alice, &tag, set, 200).await;
    let revoke = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.ask(root, &revoke, Value::Null, 200).await;
    let mut ids = [String::new(), String::new()];
    for (host, id) in ["h1", "h2"].iter().zip(&mut ids) {
        let path = format!("GET /v1/hosts/{host}");
        let shown = scene.ask(root, &path, Value::Null, 200).await;
        *id = shown["id"].as_str().expect("an id").to_owned();
    }
    let [h1, h2] = ids;
    let snapshot = &things[1].1;
    let log = scene.ask(root, "GET /v1/audit", Value::Null, 200).await;
    let said: Vec<String> = log
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| {
            let word = |key: &str| line[key].as_str().expect("text").to_owned();
            format!("{} {}", word("action"), word("target"))
        })
        .collect();
    for line in [
        format!("grant {h2} h2 use carol VMs libvirt:carol-"),
        format!("revoke {h2} h2 use carol VMs libvirt:carol-"),
        format!("grant {volume} thing-0 read bob"),
        format!("attach {volume} thing-0 to {h1} h1 libvirt:one"),
        format!("move {volume} thing-0 from {h1} h1 libvirt:one to {h2} h2"),
        format!("cancel-move {volume} thing-0 to {h2} h2"),
        format!("detach {volume} thing-0 from {h1} h1 libvirt:one by force"),
        format!("tag {volume} thing-0"),
        format!("tag {snapshot} thing-0"),
    ] {
        assert!(said.contains(&line), "{line}: {said:#?}");
    }
}

/// Tenants were told to run what is for administrators only.
async fn hints_are_for_whoever_reads_them(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, root) = (&cast.scene, Some(&cast.alice), Some(&cast.scene.root));
    let things = cast.things(0, None).await;
    let volume = &things[0].1;
    let attach = |host: &str| json!({"volume": volume, "host": host});
    let detail = async |who, request: &str, body: Value, status| {
        let refused = scene.ask(who, request, body, status).await;
        refused["detail"].as_str().expect("text").to_owned()
    };
    let request = "POST /v1/attachments";
    let said = detail(alice, request, attach("none"), 404).await;
    assert!(said.contains("`scree grant list`"), "{said}");
    let said = detail(root, request, attach("none"), 404).await;
    assert!(said.contains("`scree host list`"), "{said}");
    let somewhere = json!({"volume": volume});
    let said = detail(alice, request, somewhere.clone(), 503).await;
    assert!(said.contains("ask an administrator"), "{said}");
    let said = detail(root, request, somewhere, 503).await;
    assert!(said.contains("start `scree agent`"), "{said}");
    let many = json!({"name": "many", "size": 1 << 20, "replicas": 4, "project": "alice"});
    let to_nobody = json!({"user": "nobody", "right": "read", "volume": volume});
    let of_host = format!("GET /v1/attachments/{}", things[2].1);
    let unresponsive = scene.ask(alice, &of_host, Value::Null, 200).await;
    for said in [
        detail(alice, "POST /v1/volumes", many, 400).await,
        detail(alice, "POST /v1/grants", to_nobody, 404).await,
        unresponsive["reason"].as_str().expect("text").to_owned(),
    ] {
        assert!(said.contains("an administrator"), "{said}");
    }
}

on_both!(
    hints_are_for_whoever_reads_them
    the_log_has_names_beside_ids
    who_lost_a_volume_calls_no_move_off
    what_is_being_deleted_is_changed_no_more
    where_others_have_a_volume_is_for_those_who_administer_it
    a_bare_name_is_anothers_only_to_those_who_look
    each_call_gives_everybody_what_is_theirs
    what_is_a_strangers_is_answered_like_what_does_not_exist
    a_right_that_was_taken_away_is_no_right_for_the_next_request
    whoever_has_given_back_their_hosts_hears_that_none_is_for_them
    a_host_is_for_those_it_was_given_to_and_for_their_vms
    names_are_an_owners_affair
);
