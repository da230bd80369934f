//! Clients that violate the protocol, are slow, send too much or disconnect. The server answers
//! with an error or closes the connection, and other clients are not affected.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use nbd::ExportThread;
use testkit::memory_device::Misbehavior;

use crate::client::*;
use crate::support::{Fixture, MIB, eventually, holding, small_limits};

/// Checks that the server serves another client.
fn check_other_client(fixture: &Fixture) {
    let mut client = fixture.client("disk");
    assert_eq!(client.write(0, &[1; 512]).errno, 0);
    assert_eq!(client.read(0, 512).data, [1; 512]);
}

#[test]
fn a_protocol_violation_ends_only_its_connection() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", MIB);
    let mut client = Client::connect_unresponsive(&fixture.socket());
    client.take(18);
    client.send(&[0xff; 4]);
    assert_eq!(client.closed(), [], "unknown client flags");
    let mut client = Client::connect(&fixture.socket());
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(client.closed(), [], "an invalid option");
    let mut client = Client::connect(&fixture.socket());
    client.send(&option(OPT_GO, &[])[..12]);
    client.send(&u32::MAX.to_be_bytes());
    assert_eq!(client.closed(), [], "an option that is too long");
    let mut client = fixture.client("disk");
    client.send(&[0x17; 28]);
    assert_eq!(client.closed(), [], "an invalid request");
    let mut client = fixture.client("disk");
    client.send(&request(WRITE, 0, 1, 0, u32::MAX));
    assert_eq!(client.closed(), [], "a payload that is too long");
    check_other_client(&fixture);
    drop(export);
}

#[test]
fn a_handshake_times_out_however_slowly_it_proceeds() {
    let fixture = Fixture::with(
        |server| server.handshake_timeout = Duration::from_millis(300),
        |_| {},
    );
    let _export = fixture.export("disk", MIB);
    let unresponsive = Client::connect_unresponsive(&fixture.socket());
    let mut slow = Client::connect(&fixture.socket());
    let go = option(OPT_GO, &named(&"x".repeat(4000), &[0, 0]));
    for byte in go.iter().cycle() {
        // One byte at a time, until the server closes the connection.
        if slow.stream.write_all(&[*byte]).is_err() {
            break;
        }
        let mut client = fixture.client("disk");
        assert_eq!(client.read(0, 512).errno, 0, "another client is served");
    }
    assert_eq!(unresponsive.closed().len(), 18, "only the greeting");
}

#[test]
fn too_many_handshakes_end_the_oldest_ones() {
    let fixture = Fixture::with(|server| server.handshakes_max = 8, |_| {});
    let _export = fixture.export("disk", MIB);
    let mut flood: Vec<_> = (0..100)
        .map(|_| Client::connect_unresponsive(&fixture.socket()))
        .collect();
    check_other_client(&fixture);
    let oldest = flood.remove(0);
    oldest.closed();
}

#[test]
fn connections_are_limited_and_a_closed_one_makes_room() {
    let fixture = Fixture::with(|server| server.connections_max = 4, |_| {});
    let _export = fixture.export("disk", MIB);
    let mut clients: Vec<_> = (0..4).map(|_| fixture.client("disk")).collect();
    let fifth = Client::connect_unresponsive(&fixture.socket());
    assert_eq!(fifth.closed(), [], "not even a greeting");
    drop(clients.pop());
    eventually("a connection is possible", || {
        let mut client = Client::connect_unresponsive(&fixture.socket());
        matches!(client.stream.read(&mut [0; 18]), Ok(18))
    });
    assert_eq!(clients[0].read(0, 512).errno, 0);
}

#[test]
fn a_client_that_sends_too_many_options_is_disconnected() {
    let fixture = Fixture::new();
    let _export = fixture.export("disk", MIB);
    let mut client = Client::connect(&fixture.socket());
    let flood = option(77, &[]).repeat(5000);
    let mut stream = client.stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        let _ = stream.write_all(&flood);
    });
    let mut replies = 0;
    let mut header = [0; 20];
    while client.stream.read_exact(&mut header).is_ok() {
        let length = u32::from_be_bytes(header[16..].try_into().expect("4 bytes"));
        client.take(length as usize);
        replies += 1;
    }
    assert_eq!(replies, 4096);
    sender.join().expect("no panic");
    check_other_client(&fixture);
}

/// The server stops receiving when the client does not read its replies.
#[test]
fn unread_replies_in_the_handshake_stop_only_their_client() {
    let fixture = Fixture::new();
    let _export = fixture.export("disk", MIB);
    let _more: Vec<_> = (0..30)
        .map(|number| fixture.export(&format!("more{number}"), 4096))
        .collect();
    let mut client = Client::connect(&fixture.socket());
    client.stream.set_nonblocking(true).expect("set");
    let lists = option(OPT_LIST, &[]).repeat(1000);
    let mut sent = 0;
    // Until the socket has been full for some time, while other clients are served.
    for _ in 0..200 {
        match client.stream.write(&lists) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        check_other_client(&fixture);
    }
    // The sockets hold much less than the 3 MB that were offered.
    assert!(sent < MIB, "the server accepted {sent} bytes of options");
}

/// The replies arrive when the client reads them later.
#[test]
fn unread_replies_are_bounded() {
    let fixture = Fixture::new();
    let mut options = fixture.options("disk");
    options.limits = small_limits();
    let export = fixture.export_with(options, 4 * MIB, Misbehavior::default());
    let mut client = fixture.client("disk");
    client.stream.set_nonblocking(true).expect("set");
    let flood = request(READ, 0, 1, 0, 65_536).repeat(1000);
    let mut sent = 0;
    while sent < flood.len() {
        match client.stream.write(&flood[sent..]) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    for _ in 0..50 {
        check_other_client(&fixture);
    }
    let bound = small_limits().bytes_max + 2 * MIB;
    // The data that were read from the device are in the server or in the socket.
    let calls = export
        .call(|device| device.calls)
        .expect("the export's thread");
    let staged = calls.read_bytes as usize;
    let socket = 8 * MIB;
    assert!(staged < bound + socket, "{staged} bytes were staged");
    client.stream.set_nonblocking(false).expect("set");
    for _ in 0..sent / 28 {
        assert_eq!(client.reply().data.len(), 65_536);
    }
}

#[test]
fn requests_beyond_the_limit_wait_and_are_answered() {
    let fixture = Fixture::new();
    let mut options = fixture.options("disk");
    options.limits = small_limits();
    let export = fixture.export_with(options, MIB, holding());
    let mut client = fixture.client("disk");
    for _ in 0..100 {
        client.start(READ, 0, 0, 512, &[]);
    }
    let limit = small_limits().requests_max;
    eventually("the limit is reached", || {
        export.call(|device| device.unanswered()) == Ok(limit)
    });
    export
        .call(|device| device.misbehavior.holds_completions = false)
        .expect("the export's thread");
    for _ in 0..100 {
        assert_eq!(client.reply().errno, 0);
    }
}

/// Clients disconnect repeatedly while their requests are pending.
#[test]
fn pending_requests_of_closed_connections_affect_no_other_client() {
    let fixture = Fixture::new();
    let export = fixture.export_with(fixture.options("disk"), MIB, holding());
    let unanswered = |export: &ExportThread<_>| {
        export.call(|device: &mut testkit::memory_device::MemoryDevice| device.unanswered())
    };
    for round in 1..=10 {
        let mut client = fixture.client("disk");
        for _ in 0..5 {
            client.start(READ, 0, 0, 4096, &[]);
        }
        eventually("the device has them", || {
            unanswered(&export) == Ok(5 * round)
        });
        drop(client);
        eventually("the connection is closed", || {
            export.export().connections() == 0
        });
    }
    export
        .call(|device| device.misbehavior = Misbehavior::default())
        .expect("the export's thread");
    check_other_client(&fixture);
    assert_eq!(unanswered(&export), Ok(0));
}

#[test]
fn a_client_that_disconnects_within_a_payload_changes_only_the_bytes_it_sent() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", 4 * MIB);
    let mut client = fixture.client("disk");
    let mut bytes = request(WRITE, 0, 1, 0, MIB as u32);
    bytes.extend(vec![9; 600_000]);
    client.send(&bytes);
    drop(client);
    eventually("the connection is closed", || {
        export.export().connections() == 0
    });
    let untouched = |device: &mut testkit::memory_device::MemoryDevice| {
        device.bytes()[600_000..].iter().all(|&byte| byte == 0)
    };
    assert_eq!(export.call(untouched), Ok(true));
    check_other_client(&fixture);
}
