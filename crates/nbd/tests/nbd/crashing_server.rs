//! A server whose disk has a cache that a crash loses.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use world::simulated::SimulatedRandom;

pub const SIZE: usize = 64 << 10;

/// The disk of a server, with a cache that a crash loses.
#[derive(Debug, Default)]
pub struct Disk {
    pub live: Vec<u8>,
    pub durable: Vec<u8>,
    /// The writes since the last flush: offset and data.
    pub unflushed: Vec<(usize, Vec<u8>)>,
    pub size: u64,
    /// The number of commands after which the server crashes.
    pub dies_after: Option<u64>,
    pub served: u64,
    /// The number of next writes that are refused.
    pub refused_writes: u64,
    /// The number of next flushes that fail.
    pub failing_flushes: u64,
    /// The time that each command takes.
    pub delay: Duration,
    pub connections: u64,
    /// The number of first connections that wait for the gate before each command.
    pub held: u64,
    pub gate: Arc<Mutex<()>>,
    /// Whether a flush that fails loses the writes that it covers.
    pub loses_at_failure: bool,
    pub random: Option<SimulatedRandom>,
}

impl Disk {
    pub fn new(seed: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            live: vec![0; SIZE],
            durable: vec![0; SIZE],
            size: SIZE as u64,
            random: Some(SimulatedRandom::new(seed)),
            ..Self::default()
        }))
    }

    /// Loses a random part of the writes that were not flushed.
    pub fn crash(&mut self) {
        let random = self.random.as_ref().expect("a random generator");
        for (at, bytes) in self.unflushed.drain(..) {
            if random.one_in(3) {
                self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        self.live = self.durable.clone();
    }
}

pub struct Closed;

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
pub fn serve(mut stream: UnixStream, disk: &Mutex<Disk>) -> Result<(), Closed> {
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
pub fn serve_concurrently(socket: &Path, disk: &Arc<Mutex<Disk>>) {
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
pub fn serve_sequentially(socket: &Path, disk: &Arc<Mutex<Disk>>) {
    let listener = UnixListener::bind(socket).expect("a free name");
    let disk = Arc::clone(disk);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            disk.lock().connections += 1;
            let _ = serve(stream, &disk);
        }
    });
}
