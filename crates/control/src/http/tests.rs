//! Requests that make no sense, over a socket as clients send them.

#![expect(
    clippy::disallowed_methods,
    reason = "the clients are foreign, and connect by themselves"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use crate::api;
use crate::tests::rig::{Rig, aside, small};

/// Sends a request as it is, and returns the answer as it is.
async fn ask(rig: &Rig, request: String) -> String {
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

/// Names that are no UTF-8 were answered in plain text, long URLs with nothing,
/// and an array was taken for an object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_makes_no_sense_is_answered_with_a_problem_document() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create_volume(small("disk")).await.expect("made");
    let listener = api::listen(&control.folder().api_socket()).expect("a free name");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(api::serve(control.clone(), listener, async {
        let _ = stopped.await;
    }));
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
        let answer = ask(&rig, request).await;
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
    let size = control.volume("disk").await.expect("there").row.size_bytes;
    assert_eq!(size, 8 << 20, "nothing was changed");
    let grown = ask(&rig, post("/v1/volumes/disk/grow", " {\"size\": 16777216}")).await;
    assert!(grown.starts_with("HTTP/1.1 200 "), "{grown}");
    stop.send(()).expect("it serves");
    serving.await.expect("no panic").expect("served");
    crate::tests::end(control).await;
}
