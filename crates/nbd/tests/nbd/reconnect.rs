//! Reconnecting: a client loses no acknowledged write although its server closes connections at any
//! moment and loses what was not flushed.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{BlockDevice, Durability, IoError, Request};
use nbd::client::{ClientOptions, ConnectionError, Reconnect, State, Target};
use world::Endpoint;
use world::simulated::SimulatedRandom;

use crate::crashing_server::{Disk, SIZE, serve, serve_concurrently, serve_sequentially};
use crate::requester::{Requester, connected, options};
use crate::support::eventually;

fn reconnecting(export: &str) -> ClientOptions {
    ClientOptions {
        reconnect: Reconnect::Backoff {
            min: Duration::from_millis(1),
            max: Duration::from_millis(20),
        },
        ..options(export)
    }
}

#[test]
fn a_server_that_dies_and_forgets_loses_nothing_that_was_acknowledged() {
    for seed in 0..40 {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let disk = Disk::new(seed);
        serve_sequentially(&socket, &disk);
        let mut limited = reconnecting("disk");
        limited.unflushed_bytes_max = if seed % 2 == 0 { 20_000 } else { 1 << 20 };
        let mut requester = Requester::at(&socket, limited).expect("a connection");
        let random = SimulatedRandom::new(seed);
        let mut model = vec![0; SIZE];

        for round in 0..30_u64 {
            let commands = 1 + random.below(20);
            {
                let mut disk = disk.lock();
                disk.dies_after = Some(disk.served + commands);
            }
            // Overlapping writes follow each other; others are outstanding together.
            let mut tokens = Vec::new();
            for stripe in 0..8 {
                let from = stripe * (SIZE / 8) + random.index(4000);
                let length = 1 + random.index(4000);
                let data = vec![(round * 8 + stripe as u64) as u8 | 1; length];
                let durability = if random.one_in(5) {
                    Durability::Durable
                } else {
                    Durability::Volatile
                };
                model[from..from + length].copy_from_slice(&data);
                let offset = from as u64;
                let token = loop {
                    let begun = requester.begin(|device, token| {
                        device.start(Request::write(token, offset, &data, durability))
                    });
                    match begun {
                        Some(token) => break token,
                        None => requester.turn(Duration::from_millis(5)),
                    }
                };
                tokens.push(token);
            }
            for token in tokens {
                requester.wait(token).expect("success");
            }
            if random.one_in(4) {
                requester.flush().expect("success");
            }
            assert!(
                requester.read(0, SIZE) == Ok(model.clone()),
                "seed {seed}, round {round}"
            );
        }
        requester.flush().expect("success");
        let mut disk = disk.lock();
        disk.crash();
        assert!(disk.durable == model, "seed {seed}");
    }
}

#[test]
fn the_client_flushes_before_unflushed_changes_exceed_their_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_sequentially(&socket, &disk);
    let mut limited = reconnecting("disk");
    limited.unflushed_bytes_max = 10_000;
    let mut requester = Requester::at(&socket, limited).expect("a connection");
    for _ in 0..100 {
        let written = requester.write(0, &[1; 1000], Durability::Volatile);
        written.expect("written");
        let unflushed = disk.lock().unflushed.len();
        assert!(unflushed <= 12, "{unflushed} writes are unflushed");
    }
}

/// Otherwise unflushed changes would stay forever, and the log would fill up after them.
#[test]
fn the_client_retries_its_own_flush_after_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    disk.lock().failing_flushes = 2;
    serve_sequentially(&socket, &disk);
    let mut limited = reconnecting("disk");
    limited.unflushed_bytes_max = 10_000;
    let mut requester = Requester::at(&socket, limited).expect("a connection");
    let written = requester.write(0, &[1; 6000], Durability::Volatile);
    written.expect("written");
    let is_flushed = (0..100).any(|_| {
        requester.turn(Duration::from_millis(100));
        disk.lock().unflushed.is_empty()
    });
    assert!(is_flushed);
}

/// Together the requests take longer than the timeout of one.
#[test]
fn the_request_timeout_counts_for_each_request_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_sequentially(&socket, &disk);
    let mut slow = reconnecting("disk");
    slow.request_timeout = Duration::from_millis(400);
    let mut requester = Requester::at(&socket, slow).expect("a connection");
    for number in 0..20 {
        let written = requester.write(number % 3 * 512, &[number as u8; 512], Durability::Volatile);
        written.expect("written");
    }
    {
        let mut disk = disk.lock();
        disk.delay = Duration::from_millis(40);
        disk.dies_after = Some(disk.served + 1);
    }
    let reads: Vec<_> = (0..20)
        .map(|_| {
            requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 512])))
        })
        .collect();
    for read in reads {
        let read = requester.wait(read.expect("begun"));
        assert_eq!(read, Ok(base::Outcome::Data(vec![18; 512])));
    }
    assert_eq!(disk.lock().connections, 2);
}

#[test]
fn the_client_waits_while_the_export_has_another_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_sequentially(&socket, &disk);
    let mut requester = Requester::at(&socket, reconnecting("disk")).expect("a connection");
    {
        let mut disk = disk.lock();
        disk.dies_after = Some(disk.served + 1);
        disk.size -= 512;
    }
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 10])));
    let token = token.expect("begun");
    let changed = |requester: &Requester| {
        matches!(
            requester.device.state(),
            State::Disconnected {
                error: ConnectionError::ExportChanged {
                    what: "its size",
                    ..
                }
            }
        )
    };
    while !changed(&requester) {
        requester.turn(Duration::from_secs(1));
        assert_eq!(requester.take(token), None, "another disk must not answer");
    }
    disk.lock().size += 512;
    assert!(requester.wait(token).is_ok(), "the client has waited");
}

#[test]
fn a_server_that_refuses_to_replay_a_write_for_long_stops_the_device_for_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_sequentially(&socket, &disk);
    let options = ClientOptions {
        replay_timeout: Duration::from_millis(50),
        ..reconnecting("disk")
    };
    let mut requester = Requester::at(&socket, options).expect("a connection");
    requester
        .write(0, &[1; 10], Durability::Volatile)
        .expect("written");
    {
        let mut disk = disk.lock();
        disk.dies_after = Some(disk.served + 1);
        disk.refused_writes = u64::MAX;
    }
    assert!(requester.flush().is_err());
    disk.lock().refused_writes = 0;
    let read = requester.read(0, 10);
    assert!(matches!(read, Err(IoError::Stopped(_))), "{read:?}");
}

/// A server that failed for a second was once never used again.
#[test]
fn a_refused_replay_is_repeated_until_it_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_sequentially(&socket, &disk);
    let mut requester = Requester::at(&socket, reconnecting("disk")).expect("a connection");
    for block in 0..20 {
        requester
            .write(block * 512, &[1; 512], Durability::Volatile)
            .expect("written");
    }
    {
        let mut disk = disk.lock();
        disk.dies_after = Some(disk.served + 1);
        disk.refused_writes = 30;
    }
    requester.flush().expect("flushed");
    let disk = disk.lock();
    assert_eq!(disk.refused_writes, 0);
    assert_eq!(disk.durable[..20 * 512], [1; 20 * 512]);
}

#[test]
fn stop_waiting_fails_requests_that_wait_for_an_unavailable_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_sequentially(&socket, &disk);
    let mut requester = Requester::at(&socket, reconnecting("disk")).expect("a connection");
    std::fs::remove_file(&socket).expect("the socket");
    {
        let mut disk = disk.lock();
        disk.dies_after = Some(disk.served + 1);
    }
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 10])));
    let token = token.expect("begun");
    for _ in 0..20 {
        requester.turn(Duration::from_millis(5));
        assert_eq!(requester.take(token), None, "the caller waits");
    }
    assert!(requester.device.next_timer() <= Some(Duration::from_millis(20)));
    requester.device.stop_waiting();
    let answer = requester.wait(token);
    assert!(matches!(answer, Err(IoError::Unavailable(_))), "{answer:?}");
}

#[test]
fn the_owner_can_provide_the_next_channel() {
    let disk = Disk::new(3);
    let pair = || {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let disk = Arc::clone(&disk);
        thread::spawn(move || serve(ours, &disk));
        connected(theirs)
    };
    let mut requester = Requester::over(pair(), reconnecting("disk"));
    requester.device = requester.device.opened().expect("a connection");
    requester
        .write(100, &[5; 100], Durability::Volatile)
        .expect("written");
    {
        let mut disk = disk.lock();
        disk.dies_after = Some(disk.served + 1);
    }
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 100, &mut [0; 100])));
    while requester.device.state() == State::Ready {
        requester.turn(Duration::from_secs(1));
    }
    assert_eq!(
        requester.device.next_timer(),
        None,
        "only the owner can reconnect"
    );
    let nbd::client::Target::Connected(stream) = pair() else {
        panic!("a channel");
    };
    requester.device.connect_over(stream);
    let read = requester.wait(token.expect("begun"));
    assert_eq!(read, Ok(base::Outcome::Data(vec![5; 100])));
    // It sends DISC.
    let served = disk.lock().served;
    drop(requester);
    eventually("the client disconnects", || disk.lock().served > served);
}

/// Once a write was replayed over a new connection and acknowledged, and a second write as well.
/// Then the server continued with the first connection, and the delayed first write replaced the
/// second one.
#[test]
fn a_delayed_write_of_an_earlier_connection_never_replaces_a_newer_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    let gate = Arc::clone(&disk.lock().gate);
    serve_concurrently(&socket, &disk);
    let mut short = reconnecting("disk");
    short.request_timeout = Duration::from_millis(50);
    let mut requester = Requester::at(&socket, short).expect("a connection");
    let held = gate.lock();
    disk.lock().held = 1;
    let first = requester.begin(|device, token| {
        device.start(Request::write(token, 0, &[1; 512], Durability::Volatile))
    });
    let first = first.expect("begun");
    while requester.device.state() == State::Ready {
        requester.turn(Duration::from_secs(1));
    }
    for _ in 0..20 {
        requester.turn(Duration::from_millis(20));
        let made = disk.lock().connections;
        assert_eq!(
            (requester.take(first), made),
            (None, 1),
            "the first write may still be carried out"
        );
    }
    drop(held);
    requester.wait(first).expect("written");
    requester
        .write(0, &[2; 512], Durability::Volatile)
        .expect("written");
    assert_eq!(requester.read(0, 512), Ok(vec![2; 512]));
    let disk = disk.lock();
    assert_eq!((disk.connections, disk.live[0]), (2, 2));
}

/// As when a replica stalls and the filter connects to it again.
#[test]
fn a_client_waits_until_the_requests_of_an_orphaned_connection_have_ended() {
    for is_cut in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let disk = Disk::new(0);
        let gate = Arc::clone(&disk.lock().gate);
        serve_concurrently(&socket, &disk);
        let first = options("disk");
        let second = ClientOptions {
            orphaned: Arc::clone(&first.orphaned),
            ..options("disk")
        };
        let mut requester = Requester::at(&socket, first).expect("a connection");
        let held = gate.lock();
        disk.lock().held = 1;
        // More than fits into a socket, so one request is sent in part.
        let count = if is_cut { 64 } else { 1 };
        for _ in 0..count {
            let data = vec![1; SIZE];
            let begun = requester.begin(|device, token| {
                device.start(Request::write(token, 0, &data, Durability::Volatile))
            });
            assert!(begun.is_some());
        }
        requester.device.end_batch().expect("written");
        drop(requester);
        let target = Target::Endpoint(Endpoint::Unix(socket.clone()));
        let mut requester = Requester::over(target, second);
        for _ in 0..10 {
            requester.turn(Duration::from_millis(20));
            let made = disk.lock().connections;
            assert_eq!((requester.device.state(), made), (State::Connecting, 1));
        }
        drop(held);
        requester
            .write(0, &[2; 512], Durability::Volatile)
            .expect("written");
        assert_eq!(disk.lock().live[0], 2, "is cut: {is_cut}");
    }
}

/// As with Linux: pages that could not be written count as clean afterwards, and the next fsync
/// succeeds.
#[test]
fn after_a_failed_flush_the_next_one_covers_all_unflushed_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    {
        let mut disk = disk.lock();
        (disk.failing_flushes, disk.loses_at_failure) = (1, true);
    }
    serve_sequentially(&socket, &disk);
    let mut requester = Requester::at(&socket, reconnecting("disk")).expect("a connection");
    requester
        .write(512, &[7; 512], Durability::Volatile)
        .expect("written");
    assert!(requester.flush().is_err(), "the caller gets the error");
    requester.flush().expect("flushed");
    let disk = disk.lock();
    assert_eq!(disk.durable[512..1024], [7; 512]);
}
