//! Work on an NBD export, by requests of this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice as _, Completion, Durability, IoError, Started, Token};
use frontend::nbd::Watcher;
use frontend::nbd::client::{ClientOptions, NbdClient, Target};
use model::cost::{Both, Flow};
use world::{Endpoint, real::RealClock};

use crate::files::{content, places};
use crate::work::Stopwatch;
use crate::{MeasureError, Work};

/// Nothing is waited for longer: a full disk or a dead server is an error by then.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The token of flushes; requests have lower ones.
const FLUSH: Token = 1 << 40;

struct Export {
    client: NbdClient,
    watcher: Watcher,
    completions: Vec<Completion>,
}

impl Export {
    fn open(socket: &Path, name: &str) -> Result<Self, MeasureError> {
        let broken = |why: &dyn std::fmt::Display| MeasureError::Connection(why.to_string());
        let watcher = Watcher::new().map_err(|error| broken(&error))?;
        let mut options = ClientOptions::new(name, Arc::new(RealClock::new()));
        options.request_timeout = WAIT_MAX;
        let target = Target::Endpoint(Endpoint::Unix(socket.to_owned()));
        let client = NbdClient::new(target, options, watcher.clone()).opened();
        Ok(Self {
            client: client.map_err(|error| broken(&error))?,
            watcher,
            completions: Vec::new(),
        })
    }

    /// Waits for answers; says how many there are.
    fn wait(&mut self) -> Result<usize, MeasureError> {
        loop {
            self.client.commit()?;
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

    fn requests(
        &mut self,
        places: &[(u64, bool)],
        request_bytes: u64,
        depth: usize,
    ) -> Result<Both<Flow>, MeasureError> {
        let mut buffer = content(request_bytes as usize);
        let mut flow: Both<Flow> = Both::default();
        let (mut next, mut under_way) = (0, 0);
        while next < places.len() || under_way > 0 {
            while next < places.len() && under_way < depth {
                let (offset, is_read) = places[next];
                let token = next as Token;
                let started = match is_read {
                    true => self.client.read(token, offset, &mut buffer),
                    false => self
                        .client
                        .write(token, offset, &buffer, Durability::Volatile),
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
                way.bytes += request_bytes as f64;
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
        match self.client.flush(FLUSH) {
            Started::Done => Ok(()),
            Started::Pending => self.wait().map(|_| ()),
            Started::Failed(error) => Err(error.into()),
            Started::Busy => Err(IoError::Unavailable("it is busy with nothing".to_owned()).into()),
        }
    }
}

/// Writes what is to be read.
pub(crate) fn prepare(work: &Work, socket: &Path, name: &str) -> Result<(), MeasureError> {
    let Work::Direct {
        bytes,
        read_percent: 1..,
        ..
    } = *work
    else {
        return Ok(());
    };
    let mut export = Export::open(socket, name)?;
    let every = 1 << 20;
    let all: Vec<(u64, bool)> = (0..bytes / every).map(|at| (at * every, false)).collect();
    export.requests(&all, every, 4)?;
    export.flush()
}

/// Does it, and says what was asked for.
pub(crate) fn run(
    work: &Work,
    socket: &Path,
    name: &str,
    watch: &mut Stopwatch,
) -> Result<Both<Flow>, MeasureError> {
    let Work::Direct {
        bytes,
        request_bytes,
        read_percent,
        depth,
    } = *work
    else {
        let why = format!("{work}: a volume is measured by requests past memory only");
        return Err(MeasureError::Unfit(why));
    };
    let mut export = Export::open(socket, name)?;
    let places = places(bytes, request_bytes, read_percent);
    let flow = export.requests(&places, request_bytes, depth as usize)?;
    watch.returned();
    export.flush()?;
    Ok(flow)
}
