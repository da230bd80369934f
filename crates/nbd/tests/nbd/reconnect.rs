//! Reconnecting: a client loses no acknowledged write although its server closes connections at any
//! moment and loses what was not flushed.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{BlockDevice, Durability, IoError, Request};
use nbd::client::{ClientOptions, ConnectionError, Reconnect, State, Target};
use parking_lot::Mutex;
use world::Endpoint;
use world::simulated::SimulatedRandom;

use crate::requester::{Requester, connected, options};
use crate::support::eventually;

const SIZE: usize = 64 << 10;

/// The disk of a server, with a cache that a crash loses.
#[derive(Debug, Default)]
struct Disk {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// The writes since the last flush: offset and data.
    unflushed: Vec<(usize, Vec<u8>)>,
    size: u64,
    /// The number of commands after which the server crashes.
    dies_after: Option<u64>,
    served: u64,
    /// The number of next writes that are refused.
    refused_writes: u64,
    /// The number of next flushes that fail.
    failing_flushes: u64,
    /// The time that each command takes.
    delay: Duration,
    connections: u64,
    /// The number of first connections that wait for the gate before each command.
    held: u64,
    gate: Arc<Mutex<()>>,
    /// Whether a flush that fails loses the writes that it covers.
    loses_at_failure: bool,
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

    /// Loses a random part of the writes that were not flushed.
    fn crash(&mut self) {
        let random = self.random.as_ref().expect("a random generator");
        for (at, bytes) in self.unflushed.drain(..) {
            if random.one_in(3) {
                self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        self.live = self.durable.clone();
    }
}

struct Closed;

fn take(stream: &mut UnixStream, count: usize) -> Result<Vec<u8>, Closed> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).map_err(|_| Closed)?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A request of a client.
struct Command {
    number: u64,
    is_durable: bool,
    offset: usize,
    length: usize,
    /// The payload of a write, or the zeroes that replace it.
    payload: Vec<u8>,
}

impl Disk {
    /// Carries out a command. Returns the data of a read, or an error number.
    fn carry_out(&mut self, command: Command) -> Result<Vec<u8>, u32> {
        const EIO: u32 = 5;
        let Command { offset, length, .. } = command;
        match command.number {
            0 => return Ok(self.live[offset..offset + length].to_vec()),
            1 | 4 | 6 if self.refused_writes > 0 => {
                self.refused_writes -= 1;
                return Err(EIO);
            }
            3 if self.failing_flushes > 0 => {
                self.failing_flushes -= 1;
                if self.loses_at_failure {
                    self.unflushed.clear();
                }
                return Err(EIO);
            }
            1 | 4 | 6 => self.write(command),
            3 if self.loses_at_failure => {
                for (offset, bytes) in std::mem::take(&mut self.unflushed) {
                    self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
            3 => {
                self.durable = self.live.clone();
                self.unflushed.clear();
            }
            other => panic!("command {other} was not negotiated"),
        }
        Ok(Vec::new())
    }

    fn write(&mut self, command: Command) {
        let (offset, end) = (command.offset, command.offset + command.length);
        self.live[offset..end].copy_from_slice(&command.payload);
        if command.is_durable {
            // Older writes that overlap it may still be lost.
            self.durable[offset..end].copy_from_slice(&command.payload);
            self.unflushed.retain(|(from, bytes)| {
                !(*from < end && offset < from + bytes.len())
                    || (*from < offset || from + bytes.len() > end)
            });
        }
        self.unflushed.push((offset, command.payload));
    }
}

fn send(stream: &mut UnixStream, bytes: &[u8]) -> Result<(), Closed> {
    stream.write_all(bytes).map_err(|_| Closed)
}

/// Performs the server's side of the handshake.
fn shake_hands(stream: &mut UnixStream, disk: &Mutex<Disk>) -> Result<(), Closed> {
    send(stream, b"NBDMAGICIHAVEOPT\0\x03")?;
    take(stream, 4)?;
    loop {
        let header = take(stream, 16)?;
        let option = number(&header[8..12]);
        take(stream, number(&header[12..]) as usize)?;
        let reply = |kind: u32, data: &[u8]| {
            let words = [option as u32, kind, data.len() as u32].map(u32::to_be_bytes);
            let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
            [&magic, &words.concat()[..], data].concat()
        };
        if option == 7 {
            let size = disk.lock().size.to_be_bytes();
            // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES.
            let info = [&[0, 0][..], &size, &[0, 1 + 4 + 8 + 32 + 64]].concat();
            send(stream, &reply(3, &info))?;
            return send(stream, &reply(1, &[]));
        }
        send(stream, &reply(1 << 31 | 1, b"unknown option"))?;
    }
}

/// Serves one connection until it is closed or the disk crashes.
fn serve(mut stream: UnixStream, disk: &Mutex<Disk>) -> Result<(), Closed> {
    let connection = disk.lock().connections;
    shake_hands(&mut stream, disk)?;
    loop {
        wait_at_gate(disk, connection);
        let header = take(&mut stream, 28)?;
        let command_number = number(&header[6..8]);
        let length = number(&header[24..]) as usize;
        let command = Command {
            number: command_number,
            is_durable: number(&header[4..6]) & 1 != 0,
            offset: number(&header[16..24]) as usize,
            length,
            payload: match command_number {
                1 => take(&mut stream, length)?,
                4 | 6 => vec![0; length],
                _ => Vec::new(),
            },
        };
        wait_at_gate(disk, connection);
        let (result, delay) = {
            let mut disk = disk.lock();
            disk.served += 1;
            if disk.dies_after == Some(disk.served) {
                disk.crash();
                return Err(Closed);
            }
            // DISC has no reply.
            if command_number == 2 {
                return Err(Closed);
            }
            (disk.carry_out(command), disk.delay)
        };
        thread::sleep(delay);
        let errno = *result.as_ref().err().unwrap_or(&0);
        let words = [0x6744_6698, errno].map(u32::to_be_bytes).concat();
        let data = result.unwrap_or_default();
        send(&mut stream, &[&words, &header[8..16], &data].concat())?;
    }
}

fn wait_at_gate(disk: &Mutex<Disk>, connection: u64) {
    let gate = {
        let disk = disk.lock();
        (connection <= disk.held).then(|| Arc::clone(&disk.gate))
    };
    if let Some(gate) = gate {
        drop(gate.lock());
    }
}

/// Serves all connections at the same time.
fn serve_concurrently(socket: &Path, disk: &Arc<Mutex<Disk>>) {
    let listener = UnixListener::bind(socket).expect("a free name");
    let disk = Arc::clone(disk);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            disk.lock().connections += 1;
            let disk = Arc::clone(&disk);
            let (begun, begins) = std::sync::mpsc::channel();
            thread::spawn(move || {
                begun.send(()).expect("the caller waits");
                let _ = serve(stream, &disk);
            });
            begins.recv().expect("the thread runs");
        }
    });
}

/// Serves one connection after another.
fn serve_sequentially(socket: &Path, disk: &Arc<Mutex<Disk>>) {
    let listener = UnixListener::bind(socket).expect("a free name");
    let disk = Arc::clone(disk);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            disk.lock().connections += 1;
            let _ = serve(stream, &disk);
        }
    });
}

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
        requester.device.commit().expect("written");
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
