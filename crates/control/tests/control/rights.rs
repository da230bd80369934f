//! Rights: the status that each kind of caller gets from each call of the API.

use std::collections::BTreeSet;

use api::host::{AttachmentReport, AttachmentState};
use api::types::Message;
use api::words::MessageCode;
use base::PartyId;
use serde_json::{Value, json};

use crate::parties::Scene;
use crate::tls::Party;

/// The callers, in the order of the columns below.
const CALLERS: [&str; 9] = [
    "no certificate",
    "a host",
    "a stranger",
    "read",
    "use",
    "snapshot",
    "administer",
    "the owner",
    "an administrator",
];

/// Everyone with a right on the object.
const SEE: [u16; 9] = [401, 403, 404, 200, 200, 200, 200, 200, 200];
/// Everyone with the right to administer.
const MANAGE: [u16; 9] = [401, 403, 404, 403, 403, 403, 200, 200, 200];
/// The same, for objects that do not exist for others.
const HIDDEN: [u16; 9] = [401, 403, 404, 404, 404, 404, 200, 200, 200];
/// Administrators of the cluster.
const ROOT: [u16; 9] = [401, 403, 403, 403, 403, 403, 403, 403, 200];
/// Every user.
const ANY: [u16; 9] = [401, 403, 200, 200, 200, 200, 200, 200, 200];

/// The same row with another status for success.
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

/// Clone a snapshot.
const CLONE: [u16; 9] = [401, 403, 404, 201, 201, 403, 201, 201, 403];
/// Take a snapshot.
const TAKE_SNAPSHOT: [u16; 9] = [401, 403, 404, 403, 403, 201, 201, 201, 201];
/// Attach read-only.
const ATTACH_READ_ONLY: [u16; 9] = [401, 403, 404, 202, 202, 403, 202, 202, 403];
/// Attach.
const ATTACH: [u16; 9] = [401, 403, 404, 403, 202, 403, 202, 202, 403];
/// Move an attachment. Administrators of the cluster need a grant of the volume.
const MOVE: [u16; 9] = [401, 403, 404, 404, 404, 404, 202, 202, 403];
/// Read the events of filters.
const READ_EVENTS: [u16; 9] = [401, 403, 404, 404, 404, 404, 200, 200, 403];
/// Set a chain: a filter may copy what is written, so it takes the right to read.
const SET_CHAIN: [u16; 9] = [401, 403, 404, 403, 403, 403, 200, 200, 403];
/// Delete a chain.
const DELETE_CHAIN: [u16; 9] = [401, 403, 404, 404, 404, 404, 200, 200, 403];
/// Take space that all users share, such as a journal or a pinned image.
const CLUSTER_SPACE: [u16; 9] = [401, 403, 404, 403, 403, 403, 403, 403, 200];
/// Preload a volume that is not an image: its blocks could be read on the host.
const PRELOAD: [u16; 9] = [401, 403, 404, 403, 403, 403, 409, 409, 403];
/// Transfer a volume.
const TRANSFER: [u16; 9] = [401, 403, 404, 403, 403, 403, 403, 200, 200];
/// See a project: its members and administrators.
const SEE_PROJECT: [u16; 9] = [401, 403, 404, 404, 404, 404, 404, 200, 200];
/// Every party.
const AUTHENTICATED: [u16; 9] = [401, 200, 200, 200, 200, 200, 200, 200, 200];
/// Grant the use of a host: administrators only.
const GRANT_HOST: [u16; 9] = [401, 403, 403, 403, 403, 403, 403, 403, 201];
/// Read content that is not there yet.
const READ_CONFLICTS: [u16; 9] = [401, 403, 404, 409, 409, 403, 409, 409, 403];
/// Read an object that does not exist.
const READ_ABSENT: [u16; 9] = [401, 403, 404, 404, 404, 403, 404, 404, 403];
/// Read the content.
const READ_CONTENT: [u16; 9] = [401, 403, 404, 200, 200, 403, 200, 200, 403];

/// A call, and the status that each caller of [`CALLERS`] gets.
///
/// In the request and the body, `{v}` is a volume of alice's, `{s}` a snapshot of it, `{a}` an
/// attachment that she requested, `{g}` a right that she granted to carol, `{c}` the chain of
/// another volume, and `{n}` a new name.
struct Call {
    request: &'static str,
    body: Value,
    statuses: [u16; 9],
}

impl Call {
    fn new(request: &'static str, body: Value, statuses: [u16; 9]) -> Self {
        Self {
            request,
            body,
            statuses,
        }
    }
}

fn calls() -> Vec<Call> {
    [
        volume_calls(),
        snapshot_calls(),
        attachment_calls(),
        chain_calls(),
        image_calls(),
        audit_calls(),
        grant_calls(),
        project_calls(),
        cluster_calls(),
        party_calls(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Volumes.
fn volume_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/volumes", Value::Null, ANY),
        Call::new(
            "POST /v1/volumes",
            json!({"name": "{n}", "size": 1 << 20}),
            with(ANY, 201),
        ),
        Call::new(
            "POST /v1/volumes",
            json!({"name": "{n}", "from": "{s}"}),
            CLONE,
        ),
        Call::new("GET /v1/volumes/{v}", Value::Null, SEE),
        Call::new("GET /v1/volumes/{v}/versions", Value::Null, SEE),
        Call::new(
            "POST /v1/volumes/{v}/grow",
            json!({"size": 1 << 30}),
            MANAGE,
        ),
        Call::new(
            "PUT /v1/volumes/{v}/settings",
            json!({"cache_max": 1 << 20}),
            MANAGE,
        ),
        Call::new(
            "PUT /v1/volumes/{v}/settings",
            json!({"journal_size": 16 << 20}),
            CLUSTER_SPACE,
        ),
        Call::new(
            "PUT /v1/volumes/{v}/tags",
            json!({"tags": {"a": "b"}}),
            MANAGE,
        ),
        // Authorized, but the time is in the future.
        Call::new(
            "POST /v1/volumes/{v}/restore",
            json!({"time": "2999-01-01T00:00:00Z"}),
            with(MANAGE, 400),
        ),
        Call::new(
            "POST /v1/volumes/{v}/transfer",
            json!({"user": "carol", "project": "shared"}),
            TRANSFER,
        ),
        Call::new("DELETE /v1/volumes/{v}", Value::Null, with(MANAGE, 202)),
    ]
}

/// Snapshots.
fn snapshot_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/snapshots", Value::Null, ANY),
        Call::new(
            "POST /v1/snapshots",
            json!({"volume": "{v}", "name": "{n}"}),
            TAKE_SNAPSHOT,
        ),
        Call::new("GET /v1/snapshots?volume={v}", Value::Null, SEE),
        Call::new("GET /v1/snapshots/{s}", Value::Null, SEE),
        Call::new("PUT /v1/snapshots/{s}/tags", json!({"tags": {}}), MANAGE),
        Call::new("DELETE /v1/snapshots/{s}", Value::Null, MANAGE),
    ]
}

/// Attachments.
fn attachment_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/attachments", Value::Null, ANY),
        Call::new("GET /v1/attachments?volume={v}", Value::Null, SEE),
        Call::new(
            "POST /v1/attachments",
            json!({"volume": "{v}", "host": "h1", "read_only": true}),
            ATTACH_READ_ONLY,
        ),
        Call::new(
            "POST /v1/attachments",
            json!({"volume": "{v}", "host": "h1"}),
            ATTACH,
        ),
        Call::new("GET /v1/attachments/{a}", Value::Null, HIDDEN),
        Call::new("DELETE /v1/attachments/{a}", Value::Null, with(HIDDEN, 202)),
        Call::new("POST /v1/attachments/{a}/move", json!({"host": "h2"}), MOVE),
        // It is not being moved.
        Call::new(
            "DELETE /v1/attachments/{a}/move",
            Value::Null,
            with(HIDDEN, 409),
        ),
        // Authorized, but it has no filters.
        Call::new(
            "GET /v1/attachments/{a}/events",
            Value::Null,
            with(READ_EVENTS, 503),
        ),
    ]
}

/// Chains of filters.
fn chain_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/chains", Value::Null, ANY),
        Call::new("GET /v1/chains?volume={v}", Value::Null, MANAGE),
        Call::new(
            "POST /v1/chains",
            json!({"policy": "volume = '{v}'\n[[filter]]\nkind = 'rate'\niops = 9\n"}),
            SET_CHAIN,
        ),
        Call::new("GET /v1/chains/{c}", Value::Null, HIDDEN),
        Call::new("DELETE /v1/chains/{c}", Value::Null, DELETE_CHAIN),
    ]
}

/// Base images.
fn image_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/images", Value::Null, ANY),
        Call::new("PUT /v1/volumes/{v}/image", json!({}), MANAGE),
        Call::new(
            "PUT /v1/volumes/{v}/image",
            json!({"pinned": true}),
            CLUSTER_SPACE,
        ),
        // It is not an image.
        Call::new("GET /v1/volumes/{v}/image", Value::Null, with(SEE, 404)),
        Call::new(
            "DELETE /v1/volumes/{v}/image",
            Value::Null,
            with(MANAGE, 409),
        ),
        Call::new(
            "POST /v1/volumes/{v}/image/preloads",
            json!({"hosts": ["h1"]}),
            PRELOAD,
        ),
        Call::new(
            "DELETE /v1/volumes/{v}/image/preloads",
            Value::Null,
            with(MANAGE, 409),
        ),
    ]
}

/// Audits of volumes.
fn audit_calls() -> Vec<Call> {
    vec![
        // Authorized, but nothing was written yet.
        Call::new(
            "POST /v1/volumes/{v}/audits",
            json!({"units": ["none"]}),
            READ_CONFLICTS,
        ),
        Call::new(
            "GET /v1/volumes/{v}/audits/audit-00000000000000000",
            Value::Null,
            READ_ABSENT,
        ),
        Call::new("GET /v1/volumes/{v}/audits", Value::Null, READ_CONTENT),
        // The requester of an audit may cancel it whatever their rights; this one does not exist.
        Call::new(
            "DELETE /v1/volumes/{v}/audits/audit-00000000000000000",
            Value::Null,
            with(SEE, 404),
        ),
    ]
}

/// Grants.
fn grant_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/grants", Value::Null, ANY),
        Call::new("GET /v1/grants?volume={v}", Value::Null, SEE),
        Call::new(
            "POST /v1/grants",
            json!({"user": "carol", "right": "use", "volume": "{v}"}),
            with(MANAGE, 201),
        ),
        Call::new(
            "POST /v1/grants",
            json!({"user": "carol", "right": "use", "host": "h1"}),
            GRANT_HOST,
        ),
        Call::new("DELETE /v1/grants/{g}", Value::Null, HIDDEN),
    ]
}

/// Projects.
fn project_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/projects", Value::Null, ANY),
        Call::new("GET /v1/projects/alice", Value::Null, SEE_PROJECT),
        Call::new("POST /v1/projects", json!({"name": "{n}"}), with(ROOT, 201)),
        Call::new(
            "PUT /v1/projects/alice/quota",
            json!({"volumes": 9999}),
            ROOT,
        ),
        Call::new("PUT /v1/projects/alice/members/carol", Value::Null, ROOT),
        Call::new("DELETE /v1/projects/alice/members/carol", Value::Null, ROOT),
        Call::new("DELETE /v1/projects/shared", Value::Null, with(ROOT, 409)),
    ]
}

/// The caller, units, and keys.
fn cluster_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/me", Value::Null, AUTHENTICATED),
        Call::new("GET /v1/status", Value::Null, ROOT),
        Call::new("GET /v1/load", Value::Null, ROOT),
        Call::new("GET /v1/audit", Value::Null, ROOT),
        Call::new("GET /v1/units", Value::Null, ROOT),
        Call::new("GET /v1/units/none", Value::Null, with(ROOT, 404)),
        Call::new(
            "PUT /v1/units/none/zone",
            json!({"zone": "a"}),
            with(ROOT, 404),
        ),
        Call::new("GET /v1/keys", Value::Null, ROOT),
        Call::new("GET /v1/keys/none", Value::Null, with(ROOT, 404)),
        Call::new(
            "POST /v1/keys/none/rotate",
            json!({"to": "other"}),
            with(ROOT, 404),
        ),
        Call::new("DELETE /v1/keys/none", Value::Null, with(ROOT, 404)),
        // No host has an agent.
        Call::new(
            "POST /v1/units",
            json!({"url": "/nowhere", "host": "none"}),
            with(ROOT, 404),
        ),
        Call::new("GET /v1/units/tasks", Value::Null, ROOT),
        Call::new("POST /v1/units/repair", Value::Null, with(ROOT, 202)),
        Call::new("POST /v1/units/scrub", json!({}), with(ROOT, 202)),
        Call::new("POST /v1/units/rebalance", Value::Null, with(ROOT, 202)),
        Call::new(
            "POST /v1/units/drain",
            json!({"units": ["none"]}),
            with(ROOT, 404),
        ),
        Call::new(
            "POST /v1/units/none/remove",
            json!({"lost": true}),
            with(ROOT, 404),
        ),
        Call::new(
            "POST /v1/keys",
            json!({"name": "new", "host": "none"}),
            with(ROOT, 404),
        ),
    ]
}

/// Users, hosts, and unit daemons.
fn party_calls() -> Vec<Call> {
    vec![
        Call::new("GET /v1/users", Value::Null, ROOT),
        Call::new("POST /v1/users", json!({"name": "{n}"}), with(ROOT, 201)),
        Call::new("GET /v1/users/carol", Value::Null, ROOT),
        Call::new("POST /v1/users/carol/token", Value::Null, with(ROOT, 201)),
        Call::new("POST /v1/users/carol/disable", Value::Null, ROOT),
        Call::new("POST /v1/users/carol/enable", Value::Null, ROOT),
        Call::new("DELETE /v1/users/carol/keys", Value::Null, ROOT),
        Call::new("GET /v1/hosts", Value::Null, ROOT),
        Call::new("POST /v1/hosts", json!({"name": "{n}"}), with(ROOT, 201)),
        Call::new("GET /v1/hosts/h1", Value::Null, ROOT),
        Call::new("POST /v1/hosts/h1/token", Value::Null, with(ROOT, 201)),
        Call::new("POST /v1/hosts/h2/disable", Value::Null, ROOT),
        Call::new("POST /v1/hosts/h2/enable", Value::Null, ROOT),
        Call::new("DELETE /v1/hosts/h2/keys", Value::Null, ROOT),
        Call::new("GET /v1/daemons", Value::Null, ROOT),
        Call::new("POST /v1/daemons", json!({"name": "{n}"}), with(ROOT, 201)),
        Call::new("GET /v1/daemons/u1", Value::Null, ROOT),
        Call::new("POST /v1/daemons/u1/token", Value::Null, with(ROOT, 201)),
        Call::new("POST /v1/daemons/u1/disable", Value::Null, ROOT),
        Call::new("POST /v1/daemons/u1/enable", Value::Null, ROOT),
        Call::new("DELETE /v1/daemons/u1/keys", Value::Null, ROOT),
    ]
}

/// Calls that need no certificate or wait for an agent. They have tests of their own.
const TESTED_ELSEWHERE: [&str; 5] = [
    "GET /v1/authority",
    "POST /v1/join",
    "POST /v1/me/certificate",
    "PUT /v1/volumes/{volume}/export",
    "DELETE /v1/volumes/{volume}/export",
];

struct Cast {
    scene: Scene,
    host: Party,
    /// The target of moves.
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
        // A project with a volume cannot be deleted.
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

    /// New objects of alice's, on which bob has `right`, by their placeholders in [`Call`].
    async fn objects(&self, number: usize, right: Option<&str>) -> Vec<(&'static str, String)> {
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

    /// Lets h2 report, since no attachment is moved to an unresponsive host.
    async fn let_h2_report(&self) {
        let heard = self.scene.control.host(self.h2).note_heard().await;
        heard.expect("kept");
    }

    fn caller(&self, column: usize) -> Option<&Party> {
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

async fn each_caller_gets_the_status_of_their_rights(scene: Scene) {
    let cast = Cast::new(scene).await;
    let mut wrong = Vec::new();
    for (row, call) in calls().into_iter().enumerate() {
        let Call {
            request,
            body,
            statuses,
        } = call;
        for (column, who) in CALLERS.iter().enumerate() {
            let right = Some(*who).filter(|_| (3..=6).contains(&column));
            let things = cast.objects(row * CALLERS.len() + column, right).await;
            cast.let_h2_report().await;
            let asked = filled(request, &things);
            let sent = match &body {
                Value::Null => String::new(),
                body => filled(&body.to_string(), &things),
            };
            let (status, answer) = cast.scene.try_ask(cast.caller(column), &asked, &sent).await;
            if status != statuses[column] {
                wrong.push(format!(
                    "{request} {body} by {who}: {status} and not {}: {answer}",
                    statuses[column]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A caller who guesses ids learns nothing from the answers.
async fn a_strangers_object_is_answered_like_one_that_does_not_exist(scene: Scene) {
    let cast = Cast::new(scene).await;
    let things = cast.objects(0, None).await;
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
    for Call {
        request,
        body,
        statuses,
    } in calls()
    {
        if statuses[2] != 404 {
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
        !TESTED_ELSEWHERE.contains(&described.as_str())
            && !calls.iter().any(|call| is_same(described, call.request))
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(described.len() > 50, "{described:?}");
}

/// They once got "no host reports", as if that were temporary.
async fn a_user_without_hosts_is_told_that_no_host_is_granted_to_them(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice) = (&cast.scene, Some(&cast.alice));
    let things = cast.objects(0, None).await;
    cast.let_h2_report().await;
    let preload = filled("POST /v1/volumes/{v}/image/preloads", &things);
    // It is not an image.
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
    assert!(why.contains("you may not use any host"), "{why}");
}

async fn a_revoked_right_is_refused_from_the_next_request_on(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let things = cast.objects(0, Some("use")).await;
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
    // The requester may still detach.
    let end = format!(
        "DELETE /v1/attachments/{}",
        made["id"].as_str().expect("an id")
    );
    scene.ask(bob, &end, Value::Null, 202).await;
}

async fn a_host_is_usable_by_its_grantees_for_their_vms_only(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, root) = (&cast.scene, Some(&cast.scene.root));
    let dave = scene.member("users", "dave").await;
    let new = json!({"name": "disk", "size": 1 << 20});
    scene.ask(Some(&dave), "POST /v1/volumes", new, 201).await;
    let attach = |vm: Value| json!({"volume": "disk", "host": "h1", "vm": vm});
    let request = "POST /v1/attachments";
    // The host does not exist for dave.
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

async fn two_owners_may_use_the_same_name(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20, "project": "alice"});
    let hers = scene.ask(alice, "POST /v1/volumes", new, 201).await;
    let new = json!({"name": "data", "size": 1 << 20});
    // This does not tell him that hers exists.
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
    // Both belong to other users.
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

/// A user who granted alice a right once decided what a bare name of hers meant.
async fn a_bare_name_means_anothers_object_only_in_reads(scene: Scene) {
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
    // Lists name the owner.
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
    // Error texts name it with its owner.
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

/// Users with the right to read once saw in which VM a volume was, and why it could not be plugged
/// in there.
async fn only_those_who_administer_a_volume_see_attachments_of_others(scene: Scene) {
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
        problem: Some(Message::new(
            MessageCode::VmUnavailable,
            "libvirt:secret does not run",
        )),
        notice: None,
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
    let kept = scene
        .control
        .host(host)
        .attachment_reported(id, &report)
        .await;
    assert!(kept.expect("recorded"), "accepted");
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
                assert_eq!(list["items"][0]["message"], shown["message"]);
                listed.push(state);
            }
        }
        assert_eq!(listed, [shown["state"].as_str().expect("a state")]);
        (listed, shown["message"].clone())
    };
    let message = json!({"code": "vm_unavailable", "text": "libvirt:secret does not run"});
    let whole = (vec!["error"], message);
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

/// It once accepted tags and rights, which were lost with it.
async fn a_volume_that_is_being_deleted_accepts_no_changes(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice) = (&cast.scene, Some(&cast.alice));
    let things = cast.objects(0, None).await;
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
    // Rights can still be revoked, and its snapshots can be changed.
    let revoke = filled("DELETE /v1/grants/{g}", &things);
    scene.ask(alice, &revoke, Value::Null, 200).await;
    let set = json!({"tags": {"a": "b"}});
    let tag = filled("PUT /v1/snapshots/{s}/tags", &things);
    scene.ask(alice, &tag, set, 200).await;
}

/// The requester of an attachment may detach it, but needs the right to attach it again.
async fn a_user_without_the_right_cannot_cancel_a_move(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let things = cast.objects(0, None).await;
    let grant = json!({"user": "bob", "right": "use", "volume": things[0].1});
    let grant = scene.ask(alice, "POST /v1/grants", grant, 201).await;
    let attach = json!({"volume": things[0].1, "host": "h1"});
    let made = scene.ask(bob, "POST /v1/attachments", attach, 202).await;
    let revoke = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.ask(alice, &revoke, Value::Null, 200).await;
    let path = format!("/v1/attachments/{}", made["id"].as_str().expect("an id"));
    let (start, cancel) = (format!("POST {path}/move"), format!("DELETE {path}/move"));
    cast.let_h2_report().await;
    scene.ask(alice, &start, json!({"host": "h2"}), 202).await;
    scene.ask(bob, &cancel, Value::Null, 404).await;
    scene.ask(alice, &cancel, Value::Null, 202).await;
}

/// Entries about hosts once had ids only.
async fn the_audit_log_has_names_beside_ids(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, root, alice) = (&cast.scene, Some(&cast.scene.root), Some(&cast.alice));
    let things = cast.objects(0, Some("read")).await;
    let volume = &things[0].1;
    let grant = json!({"user": "carol", "right": "use", "host": "h2", "vm": "libvirt:carol-"});
    let grant = scene.ask(root, "POST /v1/grants", grant, 201).await;
    let attach = json!({"volume": volume, "host": "h1", "vm": "libvirt:one"});
    let made = scene.ask(alice, "POST /v1/attachments", attach, 202).await;
    let id = made["id"].as_str().expect("an id");
    let onto = json!({"host": "h2"});
    let path = format!("/v1/attachments/{id}");
    let (start, cancel) = (format!("POST {path}/move"), format!("DELETE {path}/move"));
    cast.let_h2_report().await;
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

/// Tenants were once told to run commands of administrators.
async fn hints_name_commands_that_the_caller_may_run(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, root) = (&cast.scene, Some(&cast.alice), Some(&cast.scene.root));
    let things = cast.objects(0, None).await;
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
    let to_unknown = json!({"user": "unknown", "right": "read", "volume": volume});
    let of_host = format!("GET /v1/attachments/{}", things[2].1);
    let unresponsive = scene.ask(alice, &of_host, Value::Null, 200).await;
    for said in [
        detail(alice, "POST /v1/volumes", many, 400).await,
        detail(alice, "POST /v1/grants", to_unknown, 404).await,
        unresponsive["message"]["text"]
            .as_str()
            .expect("text")
            .to_owned(),
    ] {
        assert!(said.contains("an administrator"), "{said}");
    }
}

on_both!(
    hints_name_commands_that_the_caller_may_run
    the_audit_log_has_names_beside_ids
    a_user_without_the_right_cannot_cancel_a_move
    a_volume_that_is_being_deleted_accepts_no_changes
    only_those_who_administer_a_volume_see_attachments_of_others
    a_bare_name_means_anothers_object_only_in_reads
    each_caller_gets_the_status_of_their_rights
    a_strangers_object_is_answered_like_one_that_does_not_exist
    a_revoked_right_is_refused_from_the_next_request_on
    a_user_without_hosts_is_told_that_no_host_is_granted_to_them
    a_host_is_usable_by_its_grantees_for_their_vms_only
    two_owners_may_use_the_same_name
);
