//! A transit service that encrypts: a subset of HTTP/1.1 and of the engine's API, which can
//! misbehave.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use world::Random as _;
use world::real::RealRandom;

pub const TOKEN: &str = "hvs.CAESIJlWh7T0kEn";

/// How it treats the next requests.
#[derive(Clone, Default)]
pub enum Manner {
    /// Like the engine.
    #[default]
    Right,
    /// Returns these bytes to any request.
    Answers(Vec<u8>),
    /// Sends nothing until the client closes the connection.
    Hangs,
    /// Closes this many connections after reading the request.
    BreaksOff(u32),
    /// Encrypts, but ignores associated data.
    IgnoresAssociatedData,
    /// Sends this many bytes of an endless answer.
    Pours(usize),
}

#[derive(Default)]
struct State {
    manner: Manner,
    keys: HashMap<String, [u8; 32]>,
    requests: u32,
    namespaces: Vec<Option<String>>,
}

pub struct Stub {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

pub fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn errors(status: &str, error: &str) -> Vec<u8> {
    answer(status, &json!({ "errors": [error] }).to_string())
}

struct Request {
    path: String,
    headers: HashMap<String, String>,
    body: Value,
}

fn read(stream: &mut impl Read) -> io::Result<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).map_err(io::Error::other)?;
    let mut lines = head.lines();
    let first: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    assert_eq!((first[0], first[2]), ("POST", "HTTP/1.1"));
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers["content-length"]
        .parse()
        .map_err(io::Error::other)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Request {
        path: first[1].to_owned(),
        headers,
        body: serde_json::from_slice(&body)?,
    })
}

impl State {
    fn engine(&self, request: &Request, binds: bool) -> Vec<u8> {
        if request.headers.get("x-vault-token").map(String::as_str) != Some(TOKEN) {
            return errors("403 Forbidden", "permission denied");
        }
        let path: Vec<_> = request.path.split('/').collect();
        let ["", "v1", "transit", verb, name] = path[..] else {
            return errors("404 Not Found", "no handler for route");
        };
        let Some(key) = self.keys.get(name) else {
            return errors("400 Bad Request", "encryption key not found");
        };
        let field = |name: &str| {
            let text = request.body.get(name).and_then(Value::as_str);
            text.map(str::to_owned).unwrap_or_default()
        };
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes"));
        let associated = if binds {
            field("associated_data")
        } else {
            String::new()
        };
        let associated = Aad::from(STANDARD.decode(associated).expect("base64"));
        if verb == "encrypt" {
            let mut nonce = [0; 12];
            RealRandom.fill(&mut nonce);
            let mut sealed = STANDARD.decode(field("plaintext")).expect("base64");
            key.seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                associated,
                &mut sealed,
            )
            .expect("sealed");
            let sealed = STANDARD.encode([nonce.as_slice(), &sealed].concat());
            let data = json!({ "ciphertext": format!("vault:v1:{sealed}"), "key_version": 1 });
            return answer("200 OK", &json!({ "data": data }).to_string());
        }
        assert_eq!(verb, "decrypt");
        let ciphertext = field("ciphertext");
        let sealed = ciphertext.strip_prefix("vault:v1:");
        let Some(sealed) = sealed.and_then(|sealed| STANDARD.decode(sealed).ok()) else {
            return errors(
                "400 Bad Request",
                "invalid ciphertext: bad version or base64",
            );
        };
        let opened = sealed.split_at_checked(12).and_then(|(nonce, sealed)| {
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut sealed = sealed.to_vec();
            let plain = key.open_in_place(nonce, associated, &mut sealed).ok()?;
            Some(STANDARD.encode(plain))
        });
        match opened {
            Some(plaintext) => {
                let data = json!({ "plaintext": plaintext });
                answer("200 OK", &json!({ "data": data }).to_string())
            }
            None => errors("400 Bad Request", "cipher: message authentication failed"),
        }
    }
}

fn serve(state: &Mutex<State>, mut stream: impl Read + Write) -> io::Result<()> {
    let request = read(&mut stream)?;
    let (manner, right) = {
        let mut state = state.lock();
        state.requests += 1;
        let namespace = request.headers.get("x-vault-namespace").cloned();
        state.namespaces.push(namespace);
        let manner = state.manner.clone();
        if let Manner::BreaksOff(times) = &mut state.manner {
            *times = times.saturating_sub(1);
        }
        let binds = !matches!(manner, Manner::IgnoresAssociatedData);
        (manner, state.engine(&request, binds))
    };
    let bytes = match manner {
        Manner::Right | Manner::IgnoresAssociatedData | Manner::BreaksOff(0) => right,
        Manner::Answers(bytes) => bytes,
        Manner::BreaksOff(_) => return Ok(()),
        Manner::Hangs => Vec::new(),
        Manner::Pours(bytes) => {
            let body = "x".repeat(bytes);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u32::MAX);
            [head.into_bytes(), body.into_bytes()].concat()
        }
    };
    stream.write_all(&bytes)?;
    stream.flush()?;
    // Until the client closes the connection.
    let _ = stream.read(&mut [0]);
    Ok(())
}

impl Stub {
    /// Serves plain HTTP or TLS, with the keys `ours` and `theirs`.
    pub fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State {
            keys: HashMap::from([("ours".to_owned(), [1; 32]), ("theirs".to_owned(), [2; 32])]),
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        // The thread ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (state, tls) = (Arc::clone(&shared), tls.clone());
                let stream = stream.expect("a connection");
                thread::spawn(move || converse(&state, tls, stream));
            }
        });
        Self { address, state }
    }

    pub fn behave(&self, manner: Manner) {
        self.state.lock().manner = manner;
    }

    pub fn replace_key(&self, name: &str, key: Option<[u8; 32]>) {
        let mut state = self.state.lock();
        match key {
            Some(key) => state.keys.insert(name.to_owned(), key),
            None => state.keys.remove(name),
        };
    }

    /// The number of requests since the last call.
    pub fn take_request_count(&self) -> u32 {
        std::mem::take(&mut self.state.lock().requests)
    }

    pub fn namespaces(&self) -> Vec<Option<String>> {
        self.state.lock().namespaces.clone()
    }
}

fn converse(state: &Mutex<State>, tls: Option<Arc<rustls::ServerConfig>>, stream: TcpStream) {
    // Failures of a client do not matter to the service.
    let _ = match tls {
        None => serve(state, stream),
        Some(tls) => {
            let connection = rustls::ServerConnection::new(tls).expect("a session");
            serve(state, rustls::StreamOwned::new(connection, stream))
        }
    };
}
