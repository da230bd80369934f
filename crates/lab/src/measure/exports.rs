//! Work on an NBD export, by requests of this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::cost::{Both, Flow};
use base::{BlockDevice as _, Completion, Durability, IoError, Started, Token};
use nbd::Watcher;
use nbd::client::{ClientOptions, NbdClient, Target};
use world::{Endpoint, real::RealClock};

use crate::measure::files::{content, places};
use crate::measure::work::Stopwatch;
use crate::measure::{MeasureError, Stop, Work};

/// The longest wait; a full disk or a dead server causes an error by then.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The token of flushes; requests have lower ones.
const FLUSH: Token = 1 << 40;

/// A read or write with its offset and length.
#[derive(Clone, Copy)]
struct Request {
    offset: u64,
    bytes: u64,
    is_read: bool,
}

struct Export<'a> {
    stop: &'a Stop,
    client: NbdClient,
    watcher: Watcher,
    completions: Vec<Completion>,
}

impl<'a> Export<'a> {
    fn open(socket: &Path, name: &str, stop: &'a Stop) -> Result<Self, MeasureError> {
        let broken = |why: &dyn std::fmt::Display| MeasureError::Connection(why.to_string());
        let watcher = Watcher::new().map_err(|error| broken(&error))?;
        let mut options = ClientOptions::new(name, Arc::new(RealClock::new()));
        options.request_timeout = WAIT_MAX;
        let target = Target::Endpoint(Endpoint::Unix(socket.to_owned()));
        let client = NbdClient::new(target, options, watcher.clone()).opened();
        Ok(Self {
            stop,
            client: client.map_err(|error| broken(&error))?,
            watcher,
            completions: Vec::new(),
        })
    }

    /// Waits for completions; returns how many there are.
    fn wait(&mut self) -> Result<usize, MeasureError> {
        loop {
            self.client.end_batch()?;
            self.client.poll(&mut self.completions);
            let count = self.completions.len();
            for completion in self.completions.drain(..) {
                completion.result?;
            }
            if count > 0 {
                return Ok(count);
            }
            let waited = self.watcher.wait(self.client.next_timer());
            waited.map_err(|error| MeasureError::Connection(error.to_string()))?;
        }
    }

    fn requests(&mut self, requests: &[Request], depth: usize) -> Result<Both<Flow>, MeasureError> {
        let largest = requests.iter().map(|request| request.bytes).max();
        let mut buffer = content(largest.unwrap_or(0) as usize);
        let mut flow: Both<Flow> = Both::default();
        let (mut next, mut under_way) = (0, 0);
        while next < requests.len() || under_way > 0 {
            self.stop.check()?;
            while next < requests.len() && under_way < depth {
                let Request {
                    offset,
                    bytes,
                    is_read,
                } = requests[next];
                let (token, buffer) = (next as Token, &mut buffer[..bytes as usize]);
                let started = match is_read {
                    true => self
                        .client
                        .start(base::Request::read(token, offset, buffer)),
                    false => self.client.start(base::Request::write(
                        token,
                        offset,
                        buffer,
                        Durability::Volatile,
                    )),
                };
                match started {
                    Started::Busy => break,
                    Started::Failed(error) => return Err(error.into()),
                    Started::Pending => under_way += 1,
                    Started::Done => {}
                }
                let way = if is_read {
                    &mut flow.read
                } else {
                    &mut flow.write
                };
                way.bytes += bytes as f64;
                way.operations += 1.0;
                next += 1;
            }
            if under_way > 0 {
                under_way -= self.wait()?;
            }
        }
        Ok(flow)
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        match self.client.start(base::Request::flush(FLUSH)) {
            Started::Done => Ok(()),
            Started::Pending => self.wait().map(|_| ()),
            Started::Failed(error) => Err(error.into()),
            Started::Busy => {
                Err(IoError::Unavailable("it is busy without requests".to_owned()).into())
            }
        }
    }
}

/// Writes the data that a work reads.
pub(crate) fn prepare(
    work: &Work,
    (socket, name): (&Path, &str),
    stop: &Stop,
) -> Result<(), MeasureError> {
    let Work::Direct {
        bytes,
        read_percent: 1..,
        ..
    } = *work
    else {
        return Ok(());
    };
    fill((socket, name), bytes, stop)
}

/// Writes the whole volume once, so that no later write is the first one to its block.
pub(crate) fn fill(
    (socket, name): (&Path, &str),
    bytes: u64,
    stop: &Stop,
) -> Result<(), MeasureError> {
    let mut export = Export::open(socket, name, stop)?;
    export.requests(&whole(bytes), 4)?;
    export.flush()
}

/// Sequential writes of `bytes` bytes.
fn whole(bytes: u64) -> Vec<Request> {
    let every = 1 << 20;
    let offsets = (0..bytes.div_ceil(every)).map(|at| at * every);
    let write = |offset| Request {
        offset,
        bytes: every.min(bytes - offset),
        is_read: false,
    };
    offsets.map(write).collect()
}

/// Runs a work, and returns its requests.
pub(crate) fn run(
    work: &Work,
    (socket, name): (&Path, &str),
    watch: &mut Stopwatch<'_>,
) -> Result<Both<Flow>, MeasureError> {
    let Work::Direct {
        bytes,
        request_bytes,
        read_percent,
        depth,
    } = *work
    else {
        let why = format!("{work}: a volume can only be measured with direct I/O");
        return Err(MeasureError::Unfit(why));
    };
    let mut export = Export::open(socket, name, watch.stop)?;
    let request = |(offset, is_read)| Request {
        offset,
        bytes: request_bytes,
        is_read,
    };
    let places = places(bytes, request_bytes, read_percent);
    let requests: Vec<Request> = places.into_iter().map(request).collect();
    let flow = export.requests(&requests, depth as usize)?;
    watch.returned();
    export.flush()?;
    Ok(flow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_covers_every_byte_once() {
        for bytes in [4096, 1 << 20, (3 << 20) + 8192] {
            let mut end = 0;
            for request in whole(bytes) {
                assert_eq!(request.offset, end);
                end += request.bytes;
            }
            assert_eq!(end, bytes);
        }
    }
}
