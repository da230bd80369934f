//! Results of work that has not ended after a wait, with a server that answers immediately and does
//! nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::{CommandOutput, scree};

const VOLUME: &str = "vol-00000000000000001";

fn volume() -> Value {
    json!({
        "id": VOLUME, "name": "disk", "size": 4096, "state": "deleting", "block_size": 4096,
        "encryption": "none", "replicas": 1, "created": "2026-01-31T09:30:00Z",
        "tags": {},
    })
}

fn snapshot() -> Value {
    json!({
        "id": "snap-00000000000000001", "name": "moment", "volume": "disk", "volume_id": VOLUME,
        "size": 4096, "state": "pending", "created": "2026-01-31T09:30:00Z",
        "tags": {}, "taken": true,
    })
}

/// Answers every request with a success and `answer`.
fn serve(folder: &Path, answer: Value) {
    let listener = UnixListener::bind(folder.join("api.sock")).expect("a free name");
    thread::spawn(move || {
        for stream in listener.incoming() {
            reply(stream.expect("a client"), &answer);
        }
    });
}

fn reply(stream: UnixStream, answer: &Value) {
    let mut from = BufReader::new(&stream);
    let mut body_bytes = 0;
    loop {
        let mut line = String::new();
        from.read_line(&mut line).expect("a header");
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(length) = line.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().expect("a number");
        }
        if line.is_empty() {
            break;
        }
    }
    from.read_exact(&mut vec![0; body_bytes]).expect("a body");
    let answer = answer.to_string();
    let length = answer.len();
    write!(
        &stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}"
    )
    .expect("a client that listens");
}

fn ask(answer: Value, arguments: &[&str]) -> CommandOutput {
    let folder: TempDir = tempfile::tempdir().expect("a folder");
    serve(folder.path(), answer);
    let path = folder.path().to_str().expect("UTF-8");
    scree(&[&["--dir", path], arguments].concat())
}

/// Once the command printed "is deleted" with code 0 for a volume whose space was not reclaimed.
#[test]
fn a_volume_that_exists_after_the_wait_is_not_reported_as_deleted() {
    let said = ask(volume(), &["volume", "delete", "disk", "--wait"]);
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.out.contains("is being deleted"), "{}", said.out);
    assert!(said.error.contains("not deleted after"), "{}", said.error);
}

#[test]
fn without_a_wait_a_volume_is_being_deleted() {
    let said = ask(volume(), &["volume", "delete", "disk"]);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(said.out.contains("is being deleted"), "{}", said.out);
}

#[test]
fn a_snapshot_that_is_pending_after_the_wait_is_a_failure() {
    let create = ["snapshot", "create", "disk", "--name", "moment"];
    let said = ask(snapshot(), &[&create[..], &["--wait"]].concat());
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.error.contains("is pending"), "{}", said.error);
    assert_eq!(ask(snapshot(), &create).code, 0, "without --wait");
}
