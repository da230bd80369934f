//! The QMP client, with any input from a socket.

use std::path::Path;
use std::time::{Duration, Instant};

use agent::vm::qmp::{EVENTS_MAX, LINE_BYTES_MAX, Monitor, QmpError};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

const SOON: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);
const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";

/// A step of a misbehaving monitor.
enum Step {
    Send(Vec<u8>),
    /// Waits for one line.
    Receive,
    /// Holds the connection and does nothing more.
    Hang,
}

fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

/// A monitor that runs these steps with each client, and then closes the connection.
fn scripted(steps: Vec<Step>) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("qmp");
    let listener = UnixListener::bind(&socket).expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            for step in &steps {
                match step {
                    // The client may have closed the connection.
                    Step::Send(bytes) => _ = stream.write_all(bytes).await,
                    Step::Receive => while !matches!(stream.read_u8().await, Ok(b'\n') | Err(_)) {},
                    Step::Hang => std::future::pending().await,
                }
            }
        }
    });
    (folder, socket)
}

/// Like [`scripted`], after a greeting and the negotiation.
fn greeted(mut steps: Vec<Step>) -> (TempDir, std::path::PathBuf) {
    let mut all = vec![
        send(GREETING),
        Step::Receive,
        send("{\"return\": {}, \"id\": 1}\n"),
    ];
    all.append(&mut steps);
    scripted(all)
}

async fn refused(socket: &Path, wait: Duration) -> QmpError {
    match Monitor::connect(socket, wait).await {
        Ok(_) => panic!("it connected"),
        Err(error) => error,
    }
}

async fn query_status(monitor: &mut Monitor) -> Result<Value, QmpError> {
    monitor.execute("query-status", json!({})).await
}

#[tokio::test]
async fn a_missing_socket_or_one_without_a_listener_is_no_vm() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("qmp");
    assert!(matches!(
        refused(&socket, LONG).await,
        QmpError::NoListener { .. }
    ));
    drop(UnixListener::bind(&socket).expect("bound"));
    assert!(matches!(
        refused(&socket, LONG).await,
        QmpError::NoListener { .. }
    ));
}

/// Regression: a user who could create a link below the folder of their VMs got access to the VM of
/// another.
#[tokio::test]
async fn a_symbolic_link_to_a_monitor_is_refused() {
    let (theirs, socket) = greeted(Vec::new());
    Monitor::connect(&socket, LONG).await.expect("their own");
    let mine = tempfile::tempdir().expect("a folder");
    for (link, target, monitor) in [
        ("one.qmp", socket.as_path(), "one.qmp"),
        ("way", theirs.path(), "way/qmp"),
        ("nowhere", Path::new("/nowhere"), "nowhere"),
    ] {
        std::os::unix::fs::symlink(target, mine.path().join(link)).expect("linked");
        let error = refused(&mine.path().join(monitor), LONG).await;
        assert!(matches!(error, QmpError::Link { .. }), "{link}: {error}");
        let said = error.to_string();
        assert!(!said.contains(&*socket.to_string_lossy()), "{said}");
    }
}

#[tokio::test]
async fn a_monitor_without_a_greeting_is_reported_as_in_use() {
    let (_folder, socket) = scripted(vec![Step::Hang]);
    let error = refused(&socket, SOON).await;
    assert!(matches!(error, QmpError::InUse { .. }));
    assert!(error.to_string().contains("one at a time"), "{error}");
}

#[tokio::test]
async fn another_greeting_is_not_qmp() {
    let endless = vec![b'x'; LINE_BYTES_MAX + 2];
    for greeting in [
        b"QEMU 7.2.22 monitor - type 'help'\n".to_vec(),
        b"\xff\x00\xfe\n".to_vec(),
        b"{\"return\": {}}\n".to_vec(),
        b"[]\n".to_vec(),
        endless,
    ] {
        let (_folder, socket) = scripted(vec![Step::Send(greeting), Step::Hang]);
        assert!(matches!(
            refused(&socket, LONG).await,
            QmpError::NotQmp { .. }
        ));
    }
}

#[tokio::test]
async fn events_before_a_reply_are_kept_in_their_order() {
    let (_folder, socket) = greeted(vec![
        Step::Receive,
        send(
            "{\"event\": \"STOP\"}\r\n\r\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"a\"}}\n",
        ),
        // In two parts, after a reply to another request.
        send("{\"return\": {\"status\": \"wrong\"}, \"id\": 99}\n{\"return\": {\"sta"),
        send("tus\": \"right\"}, \"id\": 2}\n"),
        Step::Hang,
    ]);
    let mut monitor = Monitor::connect(&socket, LONG).await.expect("a monitor");
    assert_eq!(
        query_status(&mut monitor).await.expect("a reply")["status"],
        "right"
    );
    assert_eq!(monitor.next_event().await.expect("an event").name, "STOP");
    let deleted = monitor.next_event().await.expect("an event");
    assert_eq!(deleted.data["device"], "a");
}

#[tokio::test]
async fn of_too_many_events_the_newest_are_kept() {
    let flood: String = (0..EVENTS_MAX + 5)
        .map(|number| format!("{{\"event\": \"E{number}\"}}\n"))
        .collect();
    let (_folder, socket) = greeted(vec![
        Step::Receive,
        send(&flood),
        send("{\"return\": {}, \"id\": 2}\n"),
    ]);
    let mut monitor = Monitor::connect(&socket, LONG).await.expect("a monitor");
    query_status(&mut monitor).await.expect("a reply");
    assert_eq!(monitor.next_event().await.expect("an event").name, "E5");
}

#[tokio::test]
async fn a_monitor_that_hangs_is_waited_for_no_longer_than_the_timeout() {
    let (_folder, socket) = greeted(vec![Step::Receive, Step::Hang]);
    let mut monitor = Monitor::connect(&socket, SOON).await.expect("a monitor");
    let begun = Instant::now();
    let error = query_status(&mut monitor).await.expect_err("no answer");
    assert!(matches!(
        error,
        QmpError::NoAnswer {
            command: "query-status",
            ..
        }
    ));
    assert!(begun.elapsed() >= SOON);
}

#[tokio::test]
async fn a_refusal_has_its_class_and_text_and_the_monitor_can_be_used_further() {
    let (_folder, socket) = greeted(vec![
        Step::Receive,
        send("{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 2}\n"),
        Step::Receive,
        send("{\"return\": {}, \"id\": 3}\n"),
    ]);
    let mut monitor = Monitor::connect(&socket, LONG).await.expect("a monitor");
    let error = query_status(&mut monitor).await.expect_err("refused");
    assert!(
        matches!(&error, QmpError::Refused { class, desc, .. } if class == "GenericError" && desc == "no")
    );
    query_status(&mut monitor).await.expect("a reply");
}

#[tokio::test]
async fn an_end_of_stream_within_a_reply_is_an_end() {
    for last in ["", "{\"return\": {}", "{\"return\": {}, \"id\": 2}"] {
        let (_folder, socket) = greeted(vec![Step::Receive, send(last)]);
        let mut monitor = Monitor::connect(&socket, LONG).await.expect("a monitor");
        let error = query_status(&mut monitor).await.expect_err("it ended");
        assert!(matches!(error, QmpError::Closed(_)), "{error}");
    }
    let (_folder, socket) = scripted(vec![send(GREETING)]);
    assert!(matches!(refused(&socket, LONG).await, QmpError::Closed(_)));
}

#[tokio::test]
async fn garbage_for_a_reply_is_an_error() {
    let deep = format!("{{\"id\": 2, \"return\": {}\n", "[".repeat(100_000));
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    for garbage in ["}\n", "\u{0}\n", "{\"error\": 7, \"id\": 2}\n", &deep] {
        let (_folder, socket) = greeted(vec![Step::Receive, send(garbage), Step::Hang]);
        let mut monitor = Monitor::connect(&socket, LONG).await.expect("a monitor");
        let error = query_status(&mut monitor).await.expect_err("garbage");
        assert!(matches!(error, QmpError::Unreadable(_)), "{error}");
    }
    let (_folder, socket) = greeted(vec![Step::Receive, send(&long), Step::Hang]);
    let mut monitor = Monitor::connect(&socket, LONG).await.expect("a monitor");
    let error = query_status(&mut monitor).await.expect_err("endless");
    assert!(matches!(error, QmpError::TooLong), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_input_makes_the_client_panic(
        replies in prop::collection::vec("[{}\\[\\]\",: 012a-z\\n\u{0}é]{0,60}|\\{\"(return|error|event|id|QMP)\": [{}\\[\\]\"012a-z:]{0,12}\\}\\n", 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let steps = replies.iter().map(|reply| send(reply)).collect();
            let (_folder, socket) = greeted(steps);
            if let Ok(mut monitor) = Monitor::connect(&socket, LONG).await {
                let _ = query_status(&mut monitor).await;
                while monitor.next_event().await.is_ok() {}
            }
        });
    }
}
