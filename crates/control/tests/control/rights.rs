//! Rights: the status that each kind of caller gets from each call of the API.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::parties::Scene;
use crate::rights_scene::{Cast, filled};

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
            json!({"cache_max_bytes": 1 << 20}),
            MANAGE,
        ),
        Call::new(
            "PUT /v1/volumes/{v}/settings",
            json!({"journal_bytes": 16 << 20}),
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
        Call::new("GET /v1/units/jobs", Value::Null, ROOT),
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
            let (status, answer) = cast
                .scene
                .try_request(cast.caller(column), &asked, &sent)
                .await;
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
            let (status, mut answer) = cast.scene.try_request(Some(&cast.bob), &asked, &sent).await;
            // The id is random, so it says nothing about the object.
            answer
                .as_object_mut()
                .map(|answer| answer.remove("request_id"));
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
            let (status, answer) = cast.scene.try_request(Some(&cast.bob), &asked, body).await;
            assert_eq!(status, 404, "{answer}");
            let detail = answer["detail"].as_str().expect("text");
            let expected = format!("volume {id:?} does not exist; `scree volume list` lists");
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

on_both!(
    each_caller_gets_the_status_of_their_rights
    a_strangers_object_is_answered_like_one_that_does_not_exist
);
