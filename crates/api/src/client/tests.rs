//! A client of several servers.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::*;

/// What a server does with each request.
#[derive(Clone, Copy)]
enum Does {
    Answers,
    HangsUp,
    SaysNothing,
    Refuses,
}

/// Servers in a folder, and the requests that each of them received, in order.
struct Scene {
    _folder: tempfile::TempDir,
    client: Client,
    received: mpsc::UnboundedReceiver<(usize, String)>,
}

impl Scene {
    /// `None`: no server listens there.
    fn new(servers: &[Option<Does>]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (sender, received) = mpsc::unbounded_channel();
        let mut transports = Vec::new();
        for (at, does) in servers.iter().enumerate() {
            let path = folder.path().join(format!("{at}.sock"));
            transports.push(Transport::Unix(path.clone()));
            if let Some(does) = *does {
                #[expect(clippy::disallowed_methods, reason = "a server of the test's own")]
                let listener = UnixListener::bind(&path).expect("bound");
                tokio::spawn(serve(listener, at, does, sender.clone()));
            }
        }
        Self {
            _folder: folder,
            client: Client::with(transports, None),
            received,
        }
    }

    /// The requests that were received since the last call.
    fn requests(&mut self) -> Vec<(usize, String)> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

async fn serve(
    listener: UnixListener,
    at: usize,
    does: Does,
    sender: mpsc::UnboundedSender<(usize, String)>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let sender = sender.clone();
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            while let Some(line) = request(&mut stream).await {
                sender.send((at, line)).expect("the test listens");
                let (status, body) = match does {
                    Does::Answers => ("200 OK", format!("{at}")),
                    Does::HangsUp => return,
                    Does::SaysNothing => std::future::pending().await,
                    Does::Refuses => ("503 Service Unavailable", PROBLEM.to_owned()),
                };
                let length = body.len();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.expect("sent");
            }
        });
    }
}

const PROBLEM: &str = "{\"type\":\"urn:scree:problem:unavailable\",\
    \"title\":\"unavailable\",\"status\":503,\"detail\":\"ending\",\
    \"code\":\"unavailable\"}";

/// Reads a request; its method.
async fn request(stream: &mut BufReader<tokio::net::UnixStream>) -> Option<String> {
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line).await.ok()?;
    let method = line.split(' ').next().filter(|method| !method.is_empty())?;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a length");
        }
        if header.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(method.to_owned())
}

fn is(at: usize, method: &str) -> (usize, String) {
    (at, method.to_owned())
}

#[tokio::test]
async fn an_unavailable_server_is_skipped() {
    let mut scene = Scene::new(&[None, None, Some(Does::Answers)]);
    for _ in 0..2 {
        let at: usize = scene.client.post("/", &()).await.expect("answered");
        assert_eq!(at, 2);
    }
    assert_eq!(scene.requests(), [is(2, "POST"), is(2, "POST")]);
    let unanswered = Scene::new(&[None, None]);
    let gone = unanswered.client.get::<usize>("/").await;
    assert!(matches!(gone, Err(ClientError::Unreachable(_))), "{gone:?}");
}

/// It may have been carried out.
#[tokio::test]
async fn a_sent_change_is_not_repeated_and_the_next_server_is_used_from_then_on() {
    let mut scene = Scene::new(&[Some(Does::HangsUp), Some(Does::Answers)]);
    let lost = scene.client.post::<usize>("/", &()).await;
    assert!(matches!(lost, Err(ClientError::Broken(_))), "{lost:?}");
    assert_eq!(scene.requests(), [is(0, "POST")]);
    assert_eq!(
        scene
            .client
            .post::<usize>("/", &())
            .await
            .expect("answered"),
        1
    );
    assert_eq!(scene.requests(), [is(1, "POST")]);
}

#[tokio::test]
async fn a_sent_read_is_repeated_with_the_next_server() {
    for does in [Does::HangsUp, Does::Refuses] {
        let mut scene = Scene::new(&[Some(does), Some(Does::Answers)]);
        assert_eq!(scene.client.get::<usize>("/").await.expect("answered"), 1);
        assert_eq!(scene.requests(), [is(0, "GET"), is(1, "GET")]);
    }
    let mut all = Scene::new(&[Some(Does::HangsUp), Some(Does::Refuses)]);
    let refused = all.client.get::<usize>("/").await;
    assert!(
        matches!(refused, Err(ClientError::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(all.requests(), [is(0, "GET"), is(1, "GET")]);
}

#[tokio::test]
async fn a_refused_change_is_returned_and_the_next_server_is_used_from_then_on() {
    let mut scene = Scene::new(&[Some(Does::Refuses), Some(Does::Answers)]);
    let refused = scene.client.put::<usize>("/", &()).await;
    assert!(
        matches!(refused, Err(ClientError::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(
        scene.client.put::<usize>("/", &()).await.expect("answered"),
        1
    );
    assert_eq!(scene.requests(), [is(0, "PUT"), is(1, "PUT")]);
}

/// A machine that has lost its power: its connections stay.
#[tokio::test]
async fn a_server_that_timed_out_once_is_skipped_by_all_requests() {
    let mut scene = Scene::new(&[Some(Does::SaysNothing), Some(Does::Answers)]);
    let client = scene.client.clone();
    let follows = tokio::spawn(async move { client.get::<usize>("/").await });
    let first = scene.received.recv().await;
    assert_eq!(first, Some(is(0, "GET")));
    let wait = Duration::from_millis(20);
    let late = Client::within(wait, scene.client.post::<usize>("/", &())).await;
    assert!(matches!(late, Err(ClientError::Broken(_))), "{late:?}");
    let followed = follows.await.expect("no panic");
    assert_eq!(followed.expect("answered"), 1);
    assert_eq!(scene.requests(), [is(0, "POST"), is(1, "GET")]);
}

#[test]
fn the_port_of_a_controllers_url_is_optional() {
    for (text, host, port) in [
        ("https://c1.example:8443", "c1.example", 8443),
        ("https://c1.example/", "c1.example", 443),
        ("https://[::1]:8443", "::1", 8443),
        ("https://127.0.0.1", "127.0.0.1", 443),
    ] {
        let address: Address = text.parse().expect("an address");
        assert_eq!((address.host.as_str(), address.port), (host, port));
    }
    for bad in [
        "",
        "c1",
        "http://c1",
        "https://",
        "https://c1/v1",
        "https://c1?a=b",
        "ftp://c1",
    ] {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}
