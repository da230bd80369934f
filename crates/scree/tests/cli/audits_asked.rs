//! `scree privacy audit` and `audits` against a scripted controller.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::{CommandOutput, SCREE, wait_until};

const ID: &str = "audit-00000000000000001";
const SHOWN: &str = "GET /v1/volumes/disk/audits/audit-00000000000000001?wait=2";
const DELETED: &str = "DELETE /v1/volumes/disk/audits/audit-00000000000000001";
const BEGUN: &str = "POST /v1/volumes/disk/audits";

fn volume() -> Value {
    json!({
        "id": "vol-00000000000000001", "name": "disk", "size": 4096, "state": "available",
        "block_size": 4096, "encryption": "none", "replicas": 1, "created": "2026-01-31T09:30:00Z",
        "tags": {},
    })
}

fn audit(state: &str) -> Value {
    let nothing = json!({"total": 0, "readable": 0, "sealed": 0, "altered": 0});
    let mut audit = json!({
        "id": ID, "volume": "vol-00000000000000001", "version": 1, "units": ["unit-1"],
        "placement": {
            "units": 2, "compromised": 1, "replicas": 1, "scatter_width": 8, "sets": 2,
            "block_size": 4096,
        },
        "principal": "bob", "host": "h1", "state": state, "done_bytes": 4096, "total_bytes": 8192,
        "created": "2026-01-31T09:30:00Z",
    });
    if state == "done" {
        audit["ended"] = json!("2026-01-31T09:31:00Z");
        audit["result"] = json!({
            "blocks": {"total": 8192, "readable": 4096, "sealed": 0, "altered": 0},
            "map": nothing,
            "files": {
                "readable": 1, "readable_bytes": 0, "partly_readable": 0, "unreadable": 2, "content": nothing,
            },
            "file_systems": [], "unlisted": 0, "lengths": [],
        });
    }
    audit
}

/// The scripted controller, and a command that sends requests to it.
struct ScriptedController {
    listener: UnixListener,
    command: Child,
    _folder: TempDir,
}

impl ScriptedController {
    fn with_command(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("api.sock")).expect("a free name");
        listener.set_nonblocking(true).expect("set");
        let command = Command::new(SCREE)
            .args(arguments)
            .env("SCREE_DIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self {
            listener,
            command: command.expect("scree runs"),
            _folder: folder,
        }
    }

    /// A command that has requested the volume, and requests an audit next.
    fn with_audit() -> Self {
        let controller = Self::with_command(&["privacy", "audit", "disk", "--units", "u1"]);
        controller.answer("GET /v1/volumes/disk", &volume());
        controller
    }

    /// Waits for this request, and fails at any other one.
    fn expect(&self, request: &str) -> UnixStream {
        let mut accepted = None;
        wait_until(request, || {
            accepted = self.listener.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.expect("a connection");
        stream.set_nonblocking(false).expect("set");
        let (mut from, mut first, mut body_bytes) = (BufReader::new(&stream), None, 0);
        loop {
            let mut line = String::new();
            from.read_line(&mut line).expect("a header");
            let line = line.trim_end();
            if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                body_bytes = length.trim().parse().expect("a number");
            }
            if line.is_empty() {
                break;
            }
            first.get_or_insert(line.to_owned());
        }
        from.read_exact(&mut vec![0; body_bytes]).expect("a body");
        assert_eq!(first, Some(format!("{request} HTTP/1.1")));
        stream
    }

    fn answer(&self, request: &str, answer: &Value) {
        reply(&self.expect(request), 200, answer);
    }

    fn interrupt(&self) {
        let kill = Command::new("kill")
            .args(["-INT", &self.command.id().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
    }

    fn said(self) -> CommandOutput {
        CommandOutput::of(self.command.wait_with_output().expect("it ends"))
    }
}

fn reply(mut stream: &UnixStream, status: u16, answer: &Value) {
    let answer = answer.to_string();
    let length = answer.len();
    write!(
        stream,
        "HTTP/1.1 {status} it\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}"
    )
    .expect("a client that listens");
}

/// Once the audit that was started while the signal came continued, and its id was not known.
#[test]
fn a_signal_while_an_audit_is_requested_cancels_it() {
    let controller = ScriptedController::with_audit();
    let begun = controller.expect(BEGUN);
    controller.interrupt();
    reply(&begun, 202, &audit("waiting"));
    controller.answer(DELETED, &audit("waiting"));
    let said = controller.said();
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.error.contains("was canceled"), "{}", said.error);
}

/// Once the command waited for an unresponsive controller, and no signal ended it.
#[test]
fn a_second_signal_ends_the_command_immediately() {
    let controller = ScriptedController::with_audit();
    controller.answer(BEGUN, &audit("waiting"));
    let _shown = controller.expect(SHOWN);
    controller.interrupt();
    let _deleted = controller.expect(DELETED);
    controller.interrupt();
    let said = controller.said();
    assert_eq!(said.code, 1, "{}", said.out);
    let how = format!("`scree privacy audits disk --delete {ID}`");
    assert!(said.error.contains(&how), "{}", said.error);
}

/// Once a restart of the controller ended the command, and the audit continued.
#[test]
fn a_request_to_an_unresponsive_controller_is_repeated() {
    let controller = ScriptedController::with_audit();
    controller.answer(BEGUN, &audit("waiting"));
    let problem = json!({
        "type": "about:blank", "title": "Unavailable", "status": 503, "code": "unavailable",
        "detail": "the database is unavailable",
    });
    reply(&controller.expect(SHOWN), 503, &problem);
    // The connection breaks.
    drop(controller.expect(SHOWN));
    controller.answer(SHOWN, &audit("done"));
    let said = controller.said();
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(said.out.contains("1 readable as a whole"), "{}", said.out);
    assert!(said.out.contains("2 not at all"), "{}", said.out);
}

/// Once inconsistent numbers of a host were in the report.
#[test]
fn an_inconsistent_result_is_not_shown() {
    let controller = ScriptedController::with_audit();
    controller.answer(BEGUN, &audit("waiting"));
    let mut odd = audit("done");
    odd["result"]["blocks"]["readable"] = json!(8193);
    controller.answer(SHOWN, &odd);
    let said = controller.said();
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.error.contains("the result is not shown"),
        "{}",
        said.error
    );
    for text in ["READABLE", "Files:"] {
        assert!(!said.out.contains(text), "{}", said.out);
    }
}

#[test]
fn audits_are_listed_canceled_and_deleted() {
    let controller = ScriptedController::with_command(&["privacy", "audits", "disk"]);
    controller.answer(
        "GET /v1/volumes/disk/audits",
        &json!([audit("running"), audit("error")]),
    );
    let said = controller.said();
    assert_eq!(said.code, 0, "{}", said.error);
    let lines: Vec<Vec<&str>> = said
        .out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let since = "2026-01-31T09:30:00Z";
    assert_eq!(
        lines[1],
        [ID, "running", "bob", "h1", "4K", "8K", since, "-"]
    );
    assert_eq!(lines.len(), 3);
    for (state, word) in [("running", "was canceled"), ("done", "is deleted")] {
        let controller =
            ScriptedController::with_command(&["privacy", "audits", "disk", "--delete", ID]);
        controller.answer(DELETED, &audit(state));
        let said = controller.said();
        assert_eq!(said.code, 0, "{}", said.error);
        assert!(said.out.contains(word), "{}", said.out);
    }
}
