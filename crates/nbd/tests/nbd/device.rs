//! The client as a device, against this server.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use base::{BlockDevice, Durability, ExtentKind, IoError, Outcome, Request, Started};
use nbd::client::{ConnectionError, NbdClient, State, Target};
use nbd::{ExportThread, Limits};
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::Endpoint;
use world::simulated::SimulatedRandom;

use crate::requester::{Requester, connected, options};
use crate::support::{Fixture, MIB, eventually};

/// Checks a disk against an array with random requests. Outstanding requests do not overlap, so
/// the expected results are known.
pub fn same_as_an_array(requester: &mut Requester, size: usize, seed: u64, rounds: usize) {
    let random = SimulatedRandom::new(seed);
    let mut model = requester.read(0, size).expect("readable");
    for _ in 0..rounds {
        let mut waited_for = Vec::new();
        let stripes = 1 + random.index(24);
        let stripe = size / stripes;
        for number in 0..stripes {
            let from = number * stripe + random.index(stripe);
            let most = (number + 1) * stripe - from;
            let length = 1 + match random.index(3) {
                0 => random.index(most),
                1 => random.index(most.min(5000)),
                _ => most - 1,
            };
            let (offset, to) = (from as u64, from + length);
            let kind = random.index(7);
            let durability = if random.one_in(3) {
                Durability::Durable
            } else {
                Durability::Volatile
            };
            let token = loop {
                let begun = requester.begin(|device, token| match kind {
                    0 | 1 => device.start(Request::read(token, offset, &mut vec![0; length])),
                    2 | 3 => {
                        let data: Vec<u8> =
                            (0..length).map(|at| (at as u64 ^ seed) as u8).collect();
                        device.start(Request::write(token, offset, &data, durability))
                    }
                    4 => device.start(Request::write_zeroes(
                        token,
                        offset,
                        length as u64,
                        base::ZeroMode {
                            durability,
                            may_punch: random.one_in(2),
                            fast_only: false,
                        },
                    )),
                    5 => device.start(Request::flush(token)),
                    _ => device.start(Request::prefetch(token, offset, length as u64)),
                });
                match begun {
                    Some(token) => break token,
                    None => requester.turn(Duration::from_millis(10)),
                }
            };
            let expected = match kind {
                0 | 1 => Outcome::Data(model[from..to].to_vec()),
                2 | 3 => {
                    for (at, byte) in model[from..to].iter_mut().enumerate() {
                        *byte = (at as u64 ^ seed) as u8;
                    }
                    Outcome::Done
                }
                4 => {
                    model[from..to].fill(0);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            waited_for.push((token, expected));
        }
        random.shuffle(&mut waited_for);
        for (token, expected) in waited_for {
            assert!(requester.wait(token) == Ok(expected), "seed {seed}");
        }
    }
    assert!(requester.read(0, size) == Ok(model), "seed {seed}");
}

#[test]
fn a_client_reads_and_writes_the_disk_of_its_server() {
    for seed in 0..6 {
        let fixture = Fixture::new();
        let misbehavior = Misbehavior {
            pending_one_in: seed % 3,
            busy_one_in: 7,
            seed,
            ..Misbehavior::default()
        };
        let _export = fixture.export_with(fixture.options("disk"), MIB, misbehavior);
        let mut requester =
            Requester::at(&fixture.socket(), options("disk")).expect("a connection");
        assert_eq!(requester.device.geometry().size_bytes, MIB as u64);
        same_as_an_array(&mut requester, MIB, seed, 40);
    }
}

#[test]
fn a_client_over_a_client_over_a_client_is_the_same_disk() {
    let fixture = Fixture::new();
    let _lowest = fixture.export("lowest", MIB);
    let relay = |name: &str, to: &str| {
        let target = Target::Endpoint(Endpoint::Unix(fixture.socket()));
        let options = options(to);
        let thread = ExportThread::spawn_watching(fixture.options(name), move |_, watcher| {
            NbdClient::new(target, options, watcher).opened()
        });
        let thread = thread.expect("a thread");
        fixture.table.add(thread.export());
        thread
    };
    let _first = relay("first", "lowest");
    let _second = relay("second", "first");
    let mut requester = Requester::at(&fixture.socket(), options("second")).expect("a connection");
    same_as_an_array(&mut requester, MIB, 9, 60);
    let runs = requester.extents(0, MIB as u64).expect("extents");
    assert_eq!(runs.iter().map(|run| run.length).sum::<u64>(), MIB as u64);
}

#[test]
fn requests_longer_than_the_maximal_payload_are_split() {
    let fixture = Fixture::new();
    let size = 80 * MIB;
    let _export = fixture.export("disk", size);
    let mut requester = Requester::at(&fixture.socket(), options("disk")).expect("a connection");
    let data: Vec<u8> = (0..size).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    let written = requester.write(0, &data, Durability::Durable);
    assert_eq!(written, Ok(Outcome::Done));
    assert!(requester.read(0, size) == Ok(data), "the data differ");
    let past = requester.read(size as u64 - 10, 11);
    assert!(matches!(past, Err(IoError::OutOfRange { .. })), "{past:?}");
    assert_eq!(
        requester.write(5, &[], Durability::Volatile),
        Ok(Outcome::Done)
    );
}

#[test]
fn a_client_has_the_capabilities_of_its_server() {
    let fixture = Fixture::new();
    let capabilities = base::Capabilities {
        can_trim: false,
        can_write_zeroes: false,
        ..base::Capabilities::ALL
    };
    let make = move |_| MemoryDevice::new(MIB).with_capabilities(capabilities).ok();
    let export = ExportThread::spawn(fixture.options("disk"), make).expect("a thread");
    fixture.table.add(export.export());
    let stream = UnixStream::connect(fixture.socket()).expect("a server");
    let mut requester = Requester::over(connected(stream), options("disk"));
    assert_eq!(requester.device.state(), State::Connecting);
    assert_eq!(
        requester.device.start(Request::read(1, 0, &mut [0; 1])),
        Started::Busy
    );
    requester.device = requester.device.opened().expect("a connection");
    assert_eq!(requester.device.capabilities(), capabilities);
    assert_eq!(requester.trim(0, 4096), Err(IoError::NotSupported));
    assert_eq!(requester.zero(0, 4096), Err(IoError::NotSupported));
    requester
        .write(8192, &[1; 4096], Durability::Volatile)
        .expect("written");
    let runs = requester.extents(0, MIB as u64).expect("extents");
    let kinds: Vec<_> = runs.iter().map(|run| (run.length, run.kind)).collect();
    let rest = MIB as u64 - 12288;
    assert_eq!(
        kinds,
        [
            (8192, ExtentKind::Hole),
            (4096, ExtentKind::Data),
            (rest, ExtentKind::Hole)
        ]
    );
}

#[test]
fn an_error_of_the_server_fails_only_its_request() {
    let fixture = Fixture::new();
    let misbehavior = Misbehavior {
        damaged: 4096..4097,
        ..Misbehavior::default()
    };
    let _export = fixture.export_with(fixture.options("disk"), MIB, misbehavior);
    let mut requester = Requester::at(&fixture.socket(), options("disk")).expect("a connection");
    let Err(IoError::Damaged(words)) = requester.read(0, 8192) else {
        panic!("damaged");
    };
    assert!(words.contains("on purpose"), "{words}");
    assert_eq!(requester.read(8192, 10), Ok(vec![0; 10]));
    let missing = Requester::at(&fixture.socket(), options("none")).err();
    let error = missing.expect("a refusal").to_string();
    assert!(error.contains("no such export"), "{error}");
}

#[test]
fn outstanding_requests_and_bytes_are_bounded() {
    let fixture = Fixture::new();
    let mut export_options = fixture.options("disk");
    export_options.limits = Limits {
        requests_max: 4,
        ..Limits::default()
    };
    let export = fixture.export_with(export_options, MIB, crate::support::holding());
    let mut limited = options("disk");
    limited.requests_max = 10;
    limited.bytes_max = 100_000;
    let mut requester = Requester::at(&fixture.socket(), limited).expect("a connection");
    let mut begin = |length: usize| {
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut vec![0; length])))
    };
    let one = begin(300_000).expect("one may be longer");
    assert_eq!(begin(1), None, "no other one meanwhile");
    let release = |device: &mut MemoryDevice| device.misbehavior.holds_completions = false;
    export.call(release).expect("a result");
    assert!(requester.wait(one).is_ok());
    let hold = |device: &mut MemoryDevice| device.misbehavior.holds_completions = true;
    export.call(hold).expect("a result");
    let begun: Vec<_> = (0..20)
        .filter_map(|_| {
            requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 100])))
        })
        .collect();
    assert_eq!(begun.len(), 10);
    export.call(release).expect("a result");
    for token in begun {
        assert!(requester.wait(token).is_ok());
    }
}

#[test]
fn requests_fail_after_the_server_is_gone() {
    let fixture = Fixture::new();
    let mut short = fixture.options("disk");
    short.stop_timeout = Duration::from_millis(50);
    let export = fixture.export_with(short, MIB, crate::support::holding());
    let mut requester = Requester::at(&fixture.socket(), options("disk")).expect("a connection");
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 100])));
    requester.device.end_batch().expect("sent");
    let handle = export.export();
    let unanswered = || export.call(|device| device.unanswered()).expect("a result");
    eventually("the request arrives", || unanswered() == 1);
    drop(export);
    eventually("the export ends", || handle.connections() == 0);
    let answer = requester.wait(token.expect("begun"));
    assert!(matches!(answer, Err(IoError::Unavailable(_))), "{answer:?}");
    let later = requester.flush();
    assert!(matches!(later, Err(IoError::Unavailable(_))), "{later:?}");
    assert!(matches!(
        requester.device.state(),
        State::Disconnected { .. }
    ));
    // There is no server at another address.
    let nowhere = fixture.folder.path().join("nowhere");
    let refused = Requester::at(&nowhere, options("disk")).err();
    assert!(
        matches!(refused, Some(ConnectionError::Socket(_))),
        "{refused:?}"
    );
}
