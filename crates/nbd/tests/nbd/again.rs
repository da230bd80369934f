//! The client connects again, and nothing that it acknowledged is lost: a server that
//! forgets at any moment what was not flushed, and hangs up.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base::{BlockDevice, Durability, IoError, Request};
use nbd::client::{Broken, ClientOptions, Reconnect, State, Target};
use world::Endpoint;
use world::simulated::SimulatedRandom;

use crate::requester::{Requester, connected, options};
use crate::support::eventually;

const SIZE: usize = 64 << 10;

/// A disk with a cache that is lost with its server.
#[derive(Debug, Default)]
struct Disk {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// What was written since the last flush: where, and what.
    unflushed: Vec<(usize, Vec<u8>)>,
    size: u64,
    /// The server goes after as many commands; never, if there are none.
    goes_after: Option<u64>,
    served: u64,
    /// So many writes are refused, and then no more.
    refused_writes: u64,
    /// So many flushes fail, and then no more.
    failing_flushes: u64,
    /// Each command takes so long.
    takes: Duration,
    connections: u64,
    /// So many connections, the first ones, wait for the gate before each command.
    held: u64,
    gate: Arc<Mutex<()>>,
    /// A flush that fails loses what it should have brought to stable storage.
    forgets_at_failure: bool,
    random: Option<SimulatedRandom>,
}

impl Disk {
    fn new(seed: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            live: vec![0; SIZE],
            durable: vec![0; SIZE],
            size: SIZE as u64,
            random: Some(SimulatedRandom::new(seed)),
            ..Self::default()
        }))
    }

    /// Any of what was not flushed is lost.
    fn crash(&mut self) {
        let random = self.random.as_ref().expect("it has one");
        for (at, bytes) in self.unflushed.drain(..) {
            if random.one_in(3) {
                self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        self.live = self.durable.clone();
    }
}

struct Gone;

fn take(stream: &mut UnixStream, count: usize) -> Result<Vec<u8>, Gone> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).map_err(|_| Gone)?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Serves one connection until it ends, or the disk crashes.
fn serve(mut stream: UnixStream, disk: &Mutex<Disk>) -> Result<(), Gone> {
    let number_of_it = disk.lock().expect("a lock").connections;
    let send = |stream: &mut UnixStream, bytes: &[u8]| stream.write_all(bytes).map_err(|_| Gone);
    send(&mut stream, b"NBDMAGICIHAVEOPT\0\x03")?;
    take(&mut stream, 4)?;
    loop {
        let header = take(&mut stream, 16)?;
        let option = number(&header[8..12]);
        take(&mut stream, number(&header[12..]) as usize)?;
        let reply = |kind: u32, data: &[u8]| {
            let words = [option as u32, kind, data.len() as u32].map(u32::to_be_bytes);
            let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
            [&magic, &words.concat()[..], data].concat()
        };
        if option == 7 {
            let size = disk.lock().expect("a lock").size.to_be_bytes();
            // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES.
            let info = [&[0, 0][..], &size, &[0, 1 + 4 + 8 + 32 + 64]].concat();
            send(&mut stream, &reply(3, &info))?;
            send(&mut stream, &reply(1, &[]))?;
            break;
        }
        send(&mut stream, &reply(1 << 31 | 1, b"never heard of it"))?;
    }
    loop {
        wait_at_gate(disk, number_of_it);
        let header = take(&mut stream, 28)?;
        let (flags, command) = (number(&header[4..6]), number(&header[6..8]));
        let (at, length) = (
            number(&header[16..24]) as usize,
            number(&header[24..]) as usize,
        );
        let payload = match command {
            1 => take(&mut stream, length)?,
            4 | 6 => vec![0; length],
            _ => Vec::new(),
        };
        wait_at_gate(disk, number_of_it);
        let mut disk = disk.lock().expect("a lock");
        disk.served += 1;
        if disk.goes_after == Some(disk.served) {
            disk.crash();
            return Err(Gone);
        }
        let mut errno = 0_u32;
        let mut answer = Vec::new();
        match command {
            0 => answer = disk.live[at..at + length].to_vec(),
            1 | 4 | 6 if disk.refused_writes > 0 => {
                disk.refused_writes -= 1;
                errno = 5;
            }
            3 if disk.failing_flushes > 0 => {
                disk.failing_flushes -= 1;
                errno = 5;
                if disk.forgets_at_failure {
                    disk.unflushed.clear();
                }
            }
            1 | 4 | 6 => {
                disk.live[at..at + length].copy_from_slice(&payload);
                if flags & 1 == 0 {
                    disk.unflushed.push((at, payload));
                } else {
                    // Only this; older ones below it may still be lost.
                    disk.durable[at..at + length].copy_from_slice(&payload);
                    disk.unflushed.retain(|(from, bytes)| {
                        !(*from < at + length && at < from + bytes.len())
                            || (*from < at || from + bytes.len() > at + length)
                    });
                    disk.unflushed.push((at, payload));
                }
            }
            3 if disk.forgets_at_failure => {
                for (at, bytes) in std::mem::take(&mut disk.unflushed) {
                    disk.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            3 => {
                disk.durable = disk.live.clone();
                disk.unflushed.clear();
            }
            2 => return Err(Gone),
            other => panic!("command {other} was not offered"),
        }
        let takes = disk.takes;
        drop(disk);
        thread::sleep(takes);
        let words = [0x6744_6698, errno].map(u32::to_be_bytes).concat();
        send(&mut stream, &[&words, &header[8..16], &answer].concat())?;
    }
}

fn wait_at_gate(disk: &Mutex<Disk>, connection: u64) {
    let gate = {
        let disk = disk.lock().expect("a lock");
        (connection <= disk.held).then(|| Arc::clone(&disk.gate))
    };
    if let Some(gate) = gate {
        drop(gate.lock().expect("a lock"));
    }
}

/// Serves all connections at once.
fn serve_each(socket: &Path, disk: &Arc<Mutex<Disk>>) {
    let listener = UnixListener::bind(socket).expect("a free name");
    let disk = Arc::clone(disk);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            disk.lock().expect("a lock").connections += 1;
            let disk = Arc::clone(&disk);
            let (begun, begins) = std::sync::mpsc::channel();
            thread::spawn(move || {
                begun.send(()).expect("it waits");
                let _ = serve(stream, &disk);
            });
            begins.recv().expect("it begins");
        }
    });
}

/// Serves one connection after the other.
fn serve_all(socket: &Path, disk: &Arc<Mutex<Disk>>) {
    let listener = UnixListener::bind(socket).expect("a free name");
    let disk = Arc::clone(disk);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            disk.lock().expect("a lock").connections += 1;
            let _ = serve(stream, &disk);
        }
    });
}

fn again(export: &str) -> ClientOptions {
    ClientOptions {
        reconnect: Reconnect::Again {
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
        serve_all(&socket, &disk);
        let mut few = again("disk");
        few.kept_bytes_max = if seed % 2 == 0 { 20_000 } else { 1 << 20 };
        let mut requester = Requester::at(&socket, few).expect("it is served");
        let random = SimulatedRandom::new(seed);
        let mut model = vec![0; SIZE];

        for round in 0..30_u64 {
            let dies_after = 1 + random.below(20);
            {
                let mut disk = disk.lock().expect("a lock");
                disk.goes_after = Some(disk.served + dies_after);
            }
            // Overlapping writes follow each other; others go together.
            let mut together = Vec::new();
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
                together.push(token);
            }
            for token in together {
                requester.wait(token).expect("nothing fails");
            }
            if random.one_in(4) {
                requester.flush().expect("nothing fails");
            }
            assert!(
                requester.read(0, SIZE) == Ok(model.clone()),
                "seed {seed}, round {round}"
            );
        }
        requester.flush().expect("nothing fails");
        let mut disk = disk.lock().expect("a lock");
        disk.crash();
        assert!(disk.durable == model, "seed {seed}");
    }
}

#[test]
fn what_may_be_kept_is_bounded_by_flushes_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_all(&socket, &disk);
    let mut few = again("disk");
    few.kept_bytes_max = 10_000;
    let mut requester = Requester::at(&socket, few).expect("it is served");
    for _ in 0..100 {
        let written = requester.write(0, &[1; 1000], Durability::Volatile);
        written.expect("it goes on");
        let unflushed = disk.lock().expect("a lock").unflushed.len();
        assert!(unflushed <= 12, "{unflushed} writes are not flushed");
    }
}

/// What is kept would be kept for ever otherwise, and the log fills behind it.
#[test]
fn a_flush_of_its_own_that_failed_is_asked_for_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    disk.lock().expect("a lock").failing_flushes = 2;
    serve_all(&socket, &disk);
    let mut few = again("disk");
    few.kept_bytes_max = 10_000;
    let mut requester = Requester::at(&socket, few).expect("it is served");
    let written = requester.write(0, &[1; 6000], Durability::Volatile);
    written.expect("it goes on");
    let is_flushed = (0..100).any(|_| {
        requester.turn(Duration::from_millis(100));
        disk.lock().expect("a lock").unflushed.is_empty()
    });
    assert!(is_flushed);
}

/// As many requests as take longer than one may: each has its own time.
#[test]
fn a_slow_server_is_not_a_late_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_all(&socket, &disk);
    let mut slow = again("disk");
    slow.request_timeout = Duration::from_millis(400);
    let mut requester = Requester::at(&socket, slow).expect("it is served");
    for number in 0..20 {
        let written = requester.write(number % 3 * 512, &[number as u8; 512], Durability::Volatile);
        written.expect("written");
    }
    {
        let mut disk = disk.lock().expect("a lock");
        disk.takes = Duration::from_millis(40);
        disk.goes_after = Some(disk.served + 1);
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
    assert_eq!(disk.lock().expect("a lock").connections, 2);
}

#[test]
fn a_disk_of_another_size_is_not_the_same_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_all(&socket, &disk);
    let mut requester = Requester::at(&socket, again("disk")).expect("it is served");
    {
        let mut disk = disk.lock().expect("a lock");
        disk.goes_after = Some(disk.served + 1);
        disk.size -= 512;
    }
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 10])));
    let token = token.expect("begun");
    let changed = |requester: &Requester| {
        matches!(
            requester.device.state(),
            State::Broken {
                why: Broken::Changed {
                    what: "its size",
                    ..
                }
            }
        )
    };
    while !changed(&requester) {
        requester.turn(Duration::from_secs(1));
        assert_eq!(
            requester.take(token),
            None,
            "it is not answered by another disk"
        );
    }
    disk.lock().expect("a lock").size += 512;
    assert!(requester.wait(token).is_ok(), "it was waited for");
}

#[test]
fn a_kept_write_that_is_refused_for_long_stops_the_device_for_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_all(&socket, &disk);
    let options = ClientOptions {
        refused_for: Duration::from_millis(50),
        ..again("disk")
    };
    let mut requester = Requester::at(&socket, options).expect("it is served");
    requester
        .write(0, &[1; 10], Durability::Volatile)
        .expect("written");
    {
        let mut disk = disk.lock().expect("a lock");
        disk.goes_after = Some(disk.served + 1);
        disk.refused_writes = u64::MAX;
    }
    assert!(requester.flush().is_err());
    disk.lock().expect("a lock").refused_writes = 0;
    let read = requester.read(0, 10);
    assert!(matches!(read, Err(IoError::Stopped(_))), "{read:?}");
}

/// A server that was in trouble for a second was never used again.
#[test]
fn a_kept_write_that_is_refused_is_made_when_it_is_not_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_all(&socket, &disk);
    let mut requester = Requester::at(&socket, again("disk")).expect("it is served");
    for block in 0..20 {
        requester
            .write(block * 512, &[1; 512], Durability::Volatile)
            .expect("written");
    }
    {
        let mut disk = disk.lock().expect("a lock");
        disk.goes_after = Some(disk.served + 1);
        disk.refused_writes = 30;
    }
    requester.flush().expect("it is flushed");
    let disk = disk.lock().expect("a lock");
    assert_eq!(disk.refused_writes, 0);
    assert_eq!(disk.durable[..20 * 512], [1; 20 * 512]);
}

#[test]
fn who_waits_for_a_server_that_is_gone_can_be_told_to_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    serve_all(&socket, &disk);
    let mut requester = Requester::at(&socket, again("disk")).expect("it is served");
    std::fs::remove_file(&socket).expect("it is there");
    {
        let mut disk = disk.lock().expect("a lock");
        disk.goes_after = Some(disk.served + 1);
    }
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 0, &mut [0; 10])));
    let token = token.expect("begun");
    for _ in 0..20 {
        requester.turn(Duration::from_millis(5));
        assert_eq!(requester.take(token), None, "it waits");
    }
    assert!(requester.device.next_timer() <= Some(Duration::from_millis(20)));
    requester.device.stop_waiting();
    let answer = requester.wait(token);
    assert!(matches!(answer, Err(IoError::Unavailable(_))), "{answer:?}");
}

#[test]
fn the_owner_can_say_where_to_go_on() {
    let disk = Disk::new(3);
    let pair = || {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let disk = Arc::clone(&disk);
        thread::spawn(move || serve(ours, &disk));
        connected(theirs)
    };
    let mut requester = Requester::over(pair(), again("disk"));
    requester.device = requester.device.opened().expect("it is served");
    requester
        .write(100, &[5; 100], Durability::Volatile)
        .expect("written");
    {
        let mut disk = disk.lock().expect("a lock");
        disk.goes_after = Some(disk.served + 1);
    }
    let token =
        requester.begin(|device, token| device.start(Request::read(token, 100, &mut [0; 100])));
    while requester.device.state() == State::Ready {
        requester.turn(Duration::from_secs(1));
    }
    assert_eq!(requester.device.next_timer(), None, "only the owner knows");
    let nbd::client::Target::Connected(stream) = pair() else {
        panic!("it is a stream");
    };
    requester.device.connect_over(stream);
    let read = requester.wait(token.expect("begun"));
    assert_eq!(read, Ok(base::Outcome::Data(vec![5; 100])));
    // It says farewell.
    let served = disk.lock().expect("a lock").served;
    drop(requester);
    eventually("it leaves", || disk.lock().expect("a lock").served > served);
}

/// The write was made once more over a new connection, and acknowledged; the next one was,
/// too. Then the server went on with the first connection, and its delayed original lay over
/// the newer write.
#[test]
fn a_request_that_was_held_back_does_not_overwrite_what_is_newer() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    let gate = Arc::clone(&disk.lock().expect("a lock").gate);
    serve_each(&socket, &disk);
    let mut impatient = again("disk");
    impatient.request_timeout = Duration::from_millis(50);
    let mut requester = Requester::at(&socket, impatient).expect("it is served");
    let held = gate.lock().expect("a lock");
    disk.lock().expect("a lock").held = 1;
    let first = requester.begin(|device, token| {
        device.start(Request::write(token, 0, &[1; 512], Durability::Volatile))
    });
    let first = first.expect("begun");
    while requester.device.state() == State::Ready {
        requester.turn(Duration::from_secs(1));
    }
    for _ in 0..20 {
        requester.turn(Duration::from_millis(20));
        let made = disk.lock().expect("a lock").connections;
        assert_eq!(
            (requester.take(first), made),
            (None, 1),
            "the first may still be carried out"
        );
    }
    drop(held);
    requester.wait(first).expect("written");
    requester
        .write(0, &[2; 512], Durability::Volatile)
        .expect("written");
    assert_eq!(requester.read(0, 512), Ok(vec![2; 512]));
    let disk = disk.lock().expect("a lock");
    assert_eq!((disk.connections, disk.live[0]), (2, 2));
}

/// As a replica is left that stalls, and connected to anew.
#[test]
fn whoever_comes_next_waits_for_what_the_last_one_has_asked() {
    for is_cut in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let disk = Disk::new(0);
        let gate = Arc::clone(&disk.lock().expect("a lock").gate);
        serve_each(&socket, &disk);
        let first = options("disk");
        let second = ClientOptions {
            departed: Arc::clone(&first.departed),
            ..options("disk")
        };
        let mut requester = Requester::at(&socket, first).expect("it is served");
        let held = gate.lock().expect("a lock");
        disk.lock().expect("a lock").held = 1;
        // More than a socket takes: of one a part is sent.
        let count = if is_cut { 64 } else { 1 };
        for _ in 0..count {
            let data = vec![1; SIZE];
            let begun = requester.begin(|device, token| {
                device.start(Request::write(token, 0, &data, Durability::Volatile))
            });
            assert!(begun.is_some());
        }
        requester.device.commit().expect("it goes on");
        drop(requester);
        let target = Target::Endpoint(Endpoint::Unix(socket.clone()));
        let mut requester = Requester::over(target, second);
        for _ in 0..10 {
            requester.turn(Duration::from_millis(20));
            let made = disk.lock().expect("a lock").connections;
            assert_eq!((requester.device.state(), made), (State::Connecting, 1));
        }
        drop(held);
        requester
            .write(0, &[2; 512], Durability::Volatile)
            .expect("written");
        assert_eq!(disk.lock().expect("a lock").live[0], 2, "is cut: {is_cut}");
    }
}

/// As Linux does it: what could not be written is clean from then on, and the next fsync has
/// nothing to do.
#[test]
fn a_flush_that_succeeds_after_one_that_failed_hides_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let disk = Disk::new(0);
    {
        let mut disk = disk.lock().expect("a lock");
        (disk.failing_flushes, disk.forgets_at_failure) = (1, true);
    }
    serve_all(&socket, &disk);
    let mut requester = Requester::at(&socket, again("disk")).expect("it is served");
    requester
        .write(512, &[7; 512], Durability::Volatile)
        .expect("written");
    assert!(requester.flush().is_err(), "who asked hears of it");
    requester.flush().expect("it is flushed");
    let disk = disk.lock().expect("a lock");
    assert_eq!(disk.durable[512..1024], [7; 512]);
}
