//! The client as a device, against this server.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use base::{BlockDevice, Durability, ExtentKind, IoError, Outcome, Request, Started};
use nbd::client::{Broken, NbdClient, State, Target};
use nbd::memory::{Manners, MemoryDevice};
use nbd::{ExportThread, Limits};
use world::Endpoint;
use world::simulated::SimulatedRandom;

use crate::requester::{Requester, connected, options};
use crate::support::{Fixture, MIB, eventually};

/// Requests under way together do not overlap, so the model knows every answer.
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
fn a_client_is_the_disk_that_the_server_has() {
    for seed in 0..6 {
        let fixture = Fixture::new();
        let manners = Manners {
            pending_one_in: seed % 3,
            busy_one_in: 7,
            seed,
            ..Manners::default()
        };
        let _export = fixture.export_with(fixture.options("disk"), MIB, manners);
        let mut requester =
            Requester::at(&fixture.socket(), options("disk")).expect("it is served");
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
    let mut requester = Requester::at(&fixture.socket(), options("second")).expect("it is served");
    same_as_an_array(&mut requester, MIB, 9, 60);
    let runs = requester.extents(0, MIB as u64).expect("told");
    assert_eq!(runs.iter().map(|run| run.length).sum::<u64>(), MIB as u64);
}

#[test]
fn what_is_larger_than_a_payload_may_be_is_cut() {
    let fixture = Fixture::new();
    let size = 80 * MIB;
    let _export = fixture.export("disk", size);
    let mut requester = Requester::at(&fixture.socket(), options("disk")).expect("it is served");
    let data: Vec<u8> = (0..size).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    let written = requester.write(0, &data, Durability::Durable);
    assert_eq!(written, Ok(Outcome::Done));
    assert!(requester.read(0, size) == Ok(data), "it is another disk");
    let past = requester.read(size as u64 - 10, 11);
    assert!(matches!(past, Err(IoError::OutOfRange { .. })), "{past:?}");
    assert_eq!(
        requester.write(5, &[], Durability::Volatile),
        Ok(Outcome::Done)
    );
}

#[test]
fn a_client_over_a_connected_socket_says_what_the_server_can_do() {
    let fixture = Fixture::new();
    let can = base::Capabilities {
        can_trim: false,
        can_write_zeroes: false,
        ..base::Capabilities::ALL
    };
    let make = move |_| MemoryDevice::new(MIB).with_capabilities(can).ok();
    let export = ExportThread::spawn(fixture.options("disk"), make).expect("a thread");
    fixture.table.add(export.export());
    let stream = UnixStream::connect(fixture.socket()).expect("it listens");
    let mut requester = Requester::over(connected(stream), options("disk"));
    assert_eq!(requester.device.state(), State::Connecting);
    assert_eq!(
        requester.device.start(Request::read(1, 0, &mut [0; 1])),
        Started::Busy
    );
    requester.device = requester.device.opened().expect("it is served");
    assert_eq!(requester.device.capabilities(), can);
    assert_eq!(requester.trim(0, 4096), Err(IoError::NotSupported));
    assert_eq!(requester.zero(0, 4096), Err(IoError::NotSupported));
    requester
        .write(8192, &[1; 4096], Durability::Volatile)
        .expect("written");
    let runs = requester.extents(0, MIB as u64).expect("told");
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
fn what_the_server_refuses_is_told_and_the_rest_goes_on() {
    let fixture = Fixture::new();
    let manners = Manners {
        damaged: 4096..4097,
        ..Manners::default()
    };
    let _export = fixture.export_with(fixture.options("disk"), MIB, manners);
    let mut requester = Requester::at(&fixture.socket(), options("disk")).expect("it is served");
    let Err(IoError::Damaged(words)) = requester.read(0, 8192) else {
        panic!("damaged");
    };
    assert!(words.contains("on purpose"), "{words}");
    assert_eq!(requester.read(8192, 10), Ok(vec![0; 10]));
    let missing = Requester::at(&fixture.socket(), options("none")).err();
    let said = missing.expect("it is refused").to_string();
    assert!(said.contains("no such export"), "{said}");
}

#[test]
fn requests_and_bytes_under_way_are_bounded() {
    let fixture = Fixture::new();
    let mut export_options = fixture.options("disk");
    export_options.limits = Limits {
        requests_max: 4,
        ..Limits::default()
    };
    let export = fixture.export_with(export_options, MIB, crate::support::holding());
    let mut few = options("disk");
    few.requests_max = 10;
    few.bytes_max = 100_000;
    let mut requester = Requester::at(&fixture.socket(), few).expect("it is served");
    let mut begin = |length: usize| {
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut vec![0; length])))
    };
    let one = begin(300_000).expect("one may be larger");
    assert_eq!(begin(1), None, "and none beside it");
    let release = |device: &mut MemoryDevice| device.manners.holds_answers = false;
    export.call(release).expect("it serves");
    assert!(requester.wait(one).is_ok());
    let hold = |device: &mut MemoryDevice| device.manners.holds_answers = true;
    export.call(hold).expect("it serves");
    let begun: Vec<_> = (0..20)
        .filter_map(|_| {
            requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 100])))
        })
        .collect();
    assert_eq!(begun.len(), 10);
    export.call(release).expect("it serves");
    for token in begun {
        assert!(requester.wait(token).is_ok());
    }
}

#[test]
fn when_the_server_goes_all_fails_and_goes_on_failing() {
    let fixture = Fixture::new();
    let mut short = fixture.options("disk");
    short.stop_timeout = Duration::from_millis(50);
    let export = fixture.export_with(short, MIB, crate::support::holding());
    let mut requester = Requester::at(&fixture.socket(), options("disk")).expect("it is served");
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 100])));
    requester.device.commit().expect("sent");
    let entrance = export.export();
    let unanswered = || {
        export
            .call(|device| device.unanswered())
            .expect("it serves")
    };
    eventually("the request arrives", || unanswered() == 1);
    drop(export);
    eventually("it ends", || entrance.connections() == 0);
    let answer = requester.wait(token.expect("begun"));
    assert!(matches!(answer, Err(IoError::Unavailable(_))), "{answer:?}");
    let later = requester.flush();
    assert!(matches!(later, Err(IoError::Unavailable(_))), "{later:?}");
    assert!(matches!(requester.device.state(), State::Broken { .. }));
    // Nobody listens at another address.
    let nowhere = fixture.folder.path().join("nowhere");
    let refused = Requester::at(&nowhere, options("disk")).err();
    assert!(matches!(refused, Some(Broken::Socket(_))), "{refused:?}");
}
