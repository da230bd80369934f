//! A link that is long: passes bytes on between unix sockets, each so much later. For
//! measurements, where the kernel has no netem.
//!
//! ```text
//! nbd_delay --listen PATH --to PATH --micros N
//! ```
//!
//! Prints a line and passes on until its input ends.
#![expect(
    clippy::disallowed_methods,
    reason = "it is the network of measurements, and no part of what is measured"
)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes under way in one direction are bounded by so many pieces of at most so many bytes.
const PIECES_MAX: usize = 4096;
const PIECE_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut listen, mut to, mut micros) = (None, None, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--listen" => listen = Some(value()?),
            "--to" => to = Some(value()?),
            "--micros" => micros = value()?.parse()?,
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    let (listen, to) = (
        listen.ok_or("--listen is missing")?,
        to.ok_or("--to is missing")?,
    );
    let listener = UnixListener::bind(&listen)?;
    println!("{listen}");
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&to) else {
                continue;
            };
            let delay = Duration::from_micros(micros);
            if let (Ok(near_out), Ok(far_out)) = (near.try_clone(), far.try_clone()) {
                pass_on(near, far_out, delay);
                pass_on(far, near_out, delay);
            }
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// One direction: a thread receives, and one sends what has been under way for long enough.
fn pass_on(mut from: UnixStream, mut to: UnixStream, delay: Duration) {
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    thread::spawn(move || {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let arrives = Instant::now() + delay;
            if sender.send((arrives, piece[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        while let Ok((arrives, piece)) = receiver.recv() {
            thread::sleep(arrives.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
