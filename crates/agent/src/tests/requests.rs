//! Invalid requests, over a socket as clients send them.

#![expect(
    clippy::disallowed_methods,
    reason = "the clients are foreign, and connect directly"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::rig::{Rig, aside};

/// Sends a raw request, and returns the raw answer.
async fn exchange(rig: &Rig, request: String) -> String {
    let socket = rig.path().join("api.sock");
    aside(move || {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    })
    .await
}

fn post(path: &str, body: &str) -> String {
    let bytes = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: d\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {bytes}\r\n\r\n{body}"
    )
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n")
}

/// Regression: names that are not UTF-8 were answered in plain text, long URLs not at all, and an
/// array was accepted as an object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_request_is_answered_with_a_problem_document() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let long = "x".repeat(9000);
    for (request, status) in [
        (get("/v1/volumes/%ff"), 400),
        (get("/v1/volumes/%ff/versions"), 400),
        (get("/v1/snapshots/%ff"), 400),
        (get("/v1/snapshots/x?wait=abc"), 400),
        (get(&format!("/v1/volumes/{long}")), 414),
        (get(&format!("/v1/nothing?{long}")), 414),
        (get("/v1/nothing"), 404),
        (post("/v1/status", "{}"), 405),
        (post("/v1/volumes/disk/grow", "[1073741824]"), 422),
        (post("/v1/volumes/disk/grow", " \n[1073741824]"), 422),
        (post("/v1/volumes/disk/grow", "{\"size\": "), 400),
        (post("/v1/volumes/disk/grow", "{\"size\": \"1G\"}"), 422),
        (post("/v1/volumes/disk/grow", "7"), 422),
        (post("/v1/volumes/disk/grow", ""), 400),
    ] {
        let shown: String = request.chars().take(60).collect();
        let answer = exchange(&rig, request).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown}: {answer}"
        );
        assert!(
            head.contains("content-type: application/problem+json"),
            "{shown}: {answer}"
        );
        assert!(body.contains("\"detail\":\""), "{shown}: {answer}");
    }
    let size = control
        .control
        .volumes()
        .get("disk")
        .await
        .expect("there")
        .row
        .size_bytes;
    assert_eq!(size, 8 << 20, "nothing was changed");
    let grown = exchange(&rig, post("/v1/volumes/disk/grow", " {\"size\": 16777216}")).await;
    assert!(grown.starts_with("HTTP/1.1 200 "), "{grown}");
    super::end(control).await;
}

/// A host with open volumes must be answered, or it could not close them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ending_controller_answers_hosts_only() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.control.set_open(false);
    let refused = exchange(
        &rig,
        post("/v1/volumes", "{\"name\": \"disk\", \"size\": 8388608}"),
    )
    .await;
    assert!(
        refused.starts_with("HTTP/1.1 503 ") && refused.contains("starting or stopping"),
        "{refused}"
    );
    let heard = exchange(&rig, post("/v1/host/rpc/leases", "{}")).await;
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
    super::end(control).await;
}
