//! Servers that violate the protocol or do not answer.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, IoError, Request, Started};
use nbd::client::{ClientOptions, ConnectionError, ProtocolViolation, State};
use world::simulated::SimulatedClock;

use crate::requester::{Requester, connected, options};

const SIZE: u64 = 1 << 20;

/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, CACHE.
const FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 1024;

/// The server's side of a handshake with structured replies, `base:allocation`, size and flags.
pub fn welcome(size: u64) -> Vec<u8> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let words = [option, kind, data.len() as u32].map(u32::to_be_bytes);
        [
            &0x0003_e889_0455_65a9_u64.to_be_bytes(),
            &words.concat()[..],
            data,
        ]
        .concat()
    };
    let info = [&[0, 0][..], &size.to_be_bytes(), &FLAGS.to_be_bytes()].concat();
    let context = [&7_u32.to_be_bytes()[..], b"base:allocation"].concat();
    [
        b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
        reply(8, 1, &[]),
        reply(10, 4, &context),
        reply(10, 1, &[]),
        reply(7, 3, &info),
        reply(7, 1, &[]),
    ]
    .concat()
}

fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    [
        &0x668e_33ef_u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &(body.len() as u32).to_be_bytes(),
        body,
    ]
    .concat()
}

fn data(flags: u16, cookie: u64, offset: u64, length: usize) -> Vec<u8> {
    let body = [&offset.to_be_bytes()[..], &vec![7; length]].concat();
    chunk(flags, 1, cookie, &body)
}

fn hole(flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let body = [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat();
    chunk(flags, 2, cookie, &body)
}

fn simple(cookie: u64, errno: u32) -> Vec<u8> {
    let words = [0x6744_6698, errno].map(u32::to_be_bytes).concat();
    [&words[..], &cookie.to_be_bytes()].concat()
}

/// A client of a server that has sent `sent` and nothing more.
fn client_of(sent: &[u8], options: ClientOptions) -> (Requester, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let mut requester = Requester::over(connected(theirs), options);
    let mut server = ours;
    server.write_all(sent).expect("the socket has room");
    requester.turn(Duration::ZERO);
    (requester, server)
}

fn connection_error(requester: &Requester) -> ConnectionError {
    match requester.device.state() {
        State::Disconnected { error } => error,
        state => panic!("{state:?}"),
    }
}

/// A client with the outstanding requests 0 (a read of 100 bytes at 1000), 1 (a write) and 2 (a
/// block status of 64 KiB), after the server has sent `sent` in pieces.
fn answered_by(sent: &[u8], piece: usize) -> (Requester, [u64; 3]) {
    let (mut requester, mut server) = client_of(&welcome(SIZE), options("disk"));
    assert_eq!(requester.device.state(), State::Ready);
    let tokens = [
        requester.begin(|device, token| device.start(Request::read(token, 1000, &mut [0; 100]))),
        requester.begin(|device, token| {
            device.start(Request::write(
                token,
                5000,
                &[1; 500],
                base::Durability::Volatile,
            ))
        }),
        requester.begin(|device, token| {
            device.start(Request::extents(token, 0, 65536, &mut Vec::new()))
        }),
    ];
    requester.turn(Duration::ZERO);
    for piece in sent.chunks(piece) {
        // The client may have closed the connection.
        let _ = server.write_all(piece);
        requester.turn(Duration::ZERO);
    }
    (requester, tokens.map(|token| token.expect("begun")))
}

/// A name, the bytes that the server sends, and a part of the client's error.
type ViolationCase = (&'static str, Vec<u8>, &'static str);

/// Invalid cookies, and invalid data of reads.
fn data_violations() -> Vec<ViolationCase> {
    vec![
        ("an unknown cookie", simple(99, 0), "request 99"),
        (
            "a second reply",
            [simple(1, 0), simple(1, 0)].concat(),
            "request 1,",
        ),
        ("no magic", vec![1; 16], "begins with 0x01010101"),
        (
            "a simple reply to a read",
            simple(0, 0),
            "has to be structured",
        ),
        (
            "data for a write",
            data(1, 1, 5000, 500),
            "kind 0x1 with 508",
        ),
        (
            "data before the range",
            data(1, 0, 999, 100),
            "100 unexpected bytes at offset 999",
        ),
        (
            "data after the range",
            data(1, 0, 1001, 100),
            "100 unexpected bytes at offset 1001",
        ),
        (
            "data far away",
            data(1, 0, u64::MAX - 3, 100),
            "at offset 18446744073709551612",
        ),
        ("too many data", data(1, 0, 1000, 101), "kind 0x1 with 109"),
        ("no data", data(1, 0, 1000, 0), "kind 0x1 with 8"),
        ("too few data", data(1, 0, 1000, 99), "is missing 1 bytes"),
        (
            "an empty reply",
            chunk(1, 0, 0, &[]),
            "is missing 100 bytes",
        ),
        (
            "data twice",
            [data(0, 0, 1000, 50), data(1, 0, 1049, 51)].concat(),
            "51 unexpected bytes at offset 1049",
        ),
    ]
}

/// Invalid holes and errors.
fn chunk_violations() -> Vec<ViolationCase> {
    vec![
        (
            "an empty hole",
            hole(1, 0, 1000, 0),
            "0 unexpected bytes at offset 1000",
        ),
        (
            "a large hole",
            hole(1, 0, 1000, 101),
            "101 unexpected bytes at offset 1000",
        ),
        (
            "an empty chunk that is not the last",
            chunk(0, 0, 0, &[]),
            "kind 0x0",
        ),
        ("an unknown kind", chunk(1, 77, 0, &[]), "kind 0x4d"),
        (
            "a short error",
            chunk(1, 0x8001, 0, &[0, 0, 0, 5]),
            "kind 0x8001",
        ),
        (
            "an error without its message",
            chunk(1, 0x8001, 0, &[0, 0, 0, 5, 0, 9, b'x']),
            "kind 0x8001",
        ),
    ]
}

/// Invalid extents, and chunks that are too long.
fn extent_violations() -> Vec<ViolationCase> {
    let extents = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        chunk(1, 5, 2, &bytes)
    };
    vec![
        ("extents of a read", chunk(1, 5, 0, &[0; 12]), "kind 0x5"),
        (
            "extents of another context",
            extents(&[8, 4096, 0]),
            "extents of request 2",
        ),
        (
            "an extent of no bytes",
            extents(&[7, 0, 0]),
            "extents of request 2",
        ),
        (
            "extents behind the end",
            extents(&[7, 65536, 0, 1, 0]),
            "extents of request 2",
        ),
        ("half an extent", extents(&[7, 65536, 0, 1]), "kind 0x5"),
        ("no extents", chunk(1, 0, 2, &[]), "extents of request 2"),
        (
            "an endless block status",
            [&chunk(1, 5, 2, &[])[..16], &[0x7f; 4]].concat(),
            "kind 0x5",
        ),
        (
            "an endless read",
            [&chunk(1, 1, 0, &[])[..16], &[0xff; 4]].concat(),
            "kind 0x1 with 4294967295",
        ),
    ]
}

#[test]
fn a_protocol_violation_ends_the_connection_and_is_named() {
    let cases = [data_violations(), chunk_violations(), extent_violations()];
    for (what, sent, expected) in cases.concat() {
        for piece in [1, 7, usize::MAX] {
            let (mut requester, tokens) = answered_by(&sent, piece.min(sent.len()));
            let error = connection_error(&requester);
            assert!(
                matches!(error, ConnectionError::ProtocolViolation(_)),
                "{what}: {error}"
            );
            assert!(error.to_string().contains(expected), "{what}: {error}");
            let failed = requester.wait(tokens[0]).expect_err(what);
            assert!(
                matches!(failed, IoError::Unavailable(_)),
                "{what}: {failed}"
            );
        }
    }
}

#[test]
fn unusual_replies_that_the_protocol_allows_are_accepted() {
    let words = [7_u32, 4096, 0, 1 << 30, 3].map(u32::to_be_bytes).concat();
    let sent = [
        hole(0, 0, 1050, 10),
        data(0, 0, 1060, 40),
        simple(1, 28),
        chunk(1, 5, 2, &words),
        data(0, 0, 1000, 50),
        chunk(1, 0, 0, &[]),
    ]
    .concat();
    for piece in [1, 11, sent.len()] {
        let (mut requester, [read, write, status]) = answered_by(&sent, piece);
        let expected = [vec![7; 50], vec![0; 10], vec![7; 40]].concat();
        assert_eq!(requester.wait(read), Ok(base::Outcome::Data(expected)));
        assert!(matches!(requester.wait(write), Err(IoError::NoSpace(_))));
        let Ok(base::Outcome::Extents(runs)) = requester.wait(status) else {
            panic!("no extents");
        };
        let lengths: Vec<_> = runs.iter().map(|run| run.length).collect();
        assert_eq!(lengths, [4096, 65536 - 4096], "no more than the range");
    }
}

#[test]
fn an_error_chunk_fails_only_its_read() {
    let message = [&5_u32.to_be_bytes()[..], &[0, 4], b"bad\n"].concat();
    let at = 1004_u64.to_be_bytes();
    let sent = [
        data(0, 0, 1000, 4),
        chunk(0, 0x8002, 0, &[&message[..], &at].concat()),
        chunk(1, 0, 0, &[]),
        simple(1, 0),
    ]
    .concat();
    let (mut requester, [read, write, _]) = answered_by(&sent, 5);
    let Err(IoError::Damaged(words)) = requester.wait(read) else {
        panic!("it failed");
    };
    assert!(words.contains("error 5, bad\\n"), "{words}");
    assert_eq!(requester.wait(write), Ok(base::Outcome::Done));
    assert_eq!(requester.device.state(), State::Ready);
}

#[test]
fn a_protocol_violation_in_the_handshake_is_named() {
    let whole = welcome(SIZE);
    let changed = |at: usize, to: &[u8]| {
        let mut sent = whole.clone();
        sent[at..at + to.len()].copy_from_slice(to);
        sent
    };
    let old = [
        &b"NBDMAGIC"[..],
        &0x0000_4202_8186_1253_u64.to_be_bytes(),
        &[0; 130],
    ]
    .concat();
    let cases = [
        ("no NBD", b"SSH-2.0-OpenSSH_9".to_vec(), "which is not NBD"),
        ("the oldstyle handshake", old, "oldstyle"),
        ("no fixed newstyle", changed(16, &[0, 2]), "oldstyle"),
        ("no magic", changed(18, &[9]), "begins with 0x09"),
        ("another option", changed(29, &[9]), "is for option 9"),
        (
            "a long reply",
            changed(34, &[9]),
            "kind 0x1 with 150994944 bytes",
        ),
        ("a reply of no known kind", changed(33, &[9]), "kind 0x9"),
    ];
    for (what, sent, expected) in cases {
        let (requester, _server) = client_of(&sent, options("disk"));
        let error = connection_error(&requester).to_string();
        assert!(error.contains(expected), "{what}: {error}");
    }
    let (requester, server) = client_of(&whole[..100], options("disk"));
    assert_eq!(requester.device.state(), State::Connecting);
    server.shutdown(Shutdown::Write).expect("a socket");
    let mut requester = requester;
    requester.turn(Duration::ZERO);
    assert_eq!(connection_error(&requester), ConnectionError::Closed);
}

#[test]
fn the_client_disconnects_from_a_server_with_endless_option_replies() {
    let option = &welcome(SIZE)[38..];
    // Contexts without an end.
    let one = &option[..20 + 19];
    let sent = [&welcome(SIZE)[..38], &one.repeat(1000)].concat();
    let (requester, _server) = client_of(&sent, options("disk"));
    let expected = ConnectionError::ProtocolViolation(ProtocolViolation::OptionReplies(10));
    assert_eq!(connection_error(&requester), expected);
}

#[test]
fn the_client_disconnects_from_a_server_after_its_timeouts_and_not_before() {
    let clock = Arc::new(SimulatedClock::default());
    let with = || ClientOptions::new("disk", clock.clone());
    // In the handshake.
    let (mut requester, _server) = client_of(&welcome(SIZE)[..40], with());
    clock.advance(Duration::from_millis(9_999));
    requester.poll();
    assert_eq!(requester.device.state(), State::Connecting);
    assert_eq!(
        requester.device.next_timer(),
        Some(Duration::from_millis(1))
    );
    clock.advance(Duration::from_millis(1));
    requester.poll();
    assert!(matches!(
        connection_error(&requester),
        ConnectionError::TimedOut { .. }
    ));
    // A request that makes progress.
    let (mut requester, mut server) = client_of(&welcome(SIZE), with());
    assert_eq!(
        requester.device.next_timer(),
        None,
        "nothing is outstanding"
    );
    clock.advance(Duration::from_secs(100));
    requester.poll();
    let read =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 100])));
    requester.turn(Duration::ZERO);
    let reply = data(1, 0, 0, 100);
    for piece in reply[..120].chunks(40) {
        clock.advance(Duration::from_secs(9));
        server.write_all(piece).expect("room");
        requester.turn(Duration::from_secs(1));
        assert_eq!(requester.device.state(), State::Ready);
    }
    clock.advance(Duration::from_secs(10));
    requester.poll();
    assert!(matches!(
        connection_error(&requester),
        ConnectionError::TimedOut { .. }
    ));
    assert!(
        requester
            .take(read.expect("begun"))
            .is_some_and(|read| read.is_err())
    );
    let late = requester.device.start(Request::flush(1));
    assert!(matches!(late, Started::Failed(IoError::Unavailable(_))));
    // The client has sent everything once.
    let mut sent = Vec::new();
    drop(requester);
    server.read_to_end(&mut sent).expect("a socket");
    assert!(sent.len() < 300, "{} bytes", sent.len());
}
