//! [`Requester`]: an NBD client as a device, whose requests and results tests handle one by one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, Extent, IoError, Outcome, Request, Started, Token,
    ZeroMode,
};
use nbd::Watcher;
use nbd::client::{ClientOptions, ConnectionError, NbdClient, Target};
use net::Channel;
use world::real::{RealClock, Stream};
use world::{Clock, Endpoint};

pub type Answer = Result<Outcome, IoError>;

pub struct Requester {
    pub device: NbdClient,
    pub watcher: Watcher,
    last: Token,
    answers: HashMap<Token, Answer>,
}

pub fn options(export: &str) -> ClientOptions {
    ClientOptions::new(export, Arc::new(RealClock::new()))
}

/// The target of a client that uses `stream`.
pub fn connected(stream: UnixStream) -> Target {
    stream.set_nonblocking(true).expect("a socket");
    Target::Connected(Channel::new(Stream::from(OwnedFd::from(stream))))
}

impl Requester {
    pub fn over(target: Target, options: ClientOptions) -> Self {
        let watcher = Watcher::new().expect("an epoll");
        Self {
            device: NbdClient::new(target, options, watcher.clone()),
            watcher,
            last: 0,
            answers: HashMap::new(),
        }
    }

    /// A client that is connected to the server at `socket`.
    pub fn at(socket: &Path, options: ClientOptions) -> Result<Self, ConnectionError> {
        let target = Target::Endpoint(Endpoint::Unix(socket.to_owned()));
        let mut requester = Self::over(target, options);
        requester.device = requester.device.opened()?;
        Ok(requester)
    }

    /// Waits until the device needs a turn, at most for `most`, and polls it once.
    pub fn turn(&mut self, most: Duration) {
        self.device.end_batch().expect("the device works");
        let timer = self.device.next_timer().unwrap_or(most).min(most);
        self.watcher.wait(Some(timer)).expect("an epoll");
        self.poll();
    }

    pub fn poll(&mut self) {
        let mut completions = Vec::new();
        self.device.poll(&mut completions);
        for Completion { token, result } in completions {
            let twice = self.answers.insert(token, result);
            assert_eq!(twice, None, "a request completes once");
        }
    }

    /// Starts a request, whose result may be there already; `None` if the device is busy.
    pub fn begin(&mut self, start: impl FnOnce(&mut NbdClient, Token) -> Started) -> Option<Token> {
        self.last += 1;
        let token = self.last;
        let answer = match start(&mut self.device, token) {
            Started::Pending => return Some(token),
            Started::Busy => return None,
            Started::Done => Ok(Outcome::Done),
            Started::Failed(error) => Err(error),
        };
        self.answers.insert(token, answer);
        Some(token)
    }

    pub fn take(&mut self, token: Token) -> Option<Answer> {
        self.answers.remove(&token)
    }

    pub fn wait(&mut self, token: Token) -> Answer {
        let clock = RealClock::new();
        loop {
            if let Some(answer) = self.take(token) {
                return answer;
            }
            let late = clock.monotonic() > Duration::from_secs(30);
            assert!(
                !late,
                "the request does not complete: {:?}",
                self.device.state()
            );
            self.turn(Duration::from_secs(1));
        }
    }

    pub fn request(&mut self, mut start: impl FnMut(&mut NbdClient, Token) -> Started) -> Answer {
        loop {
            if let Some(token) = self.begin(&mut start) {
                return self.wait(token);
            }
            self.turn(Duration::from_millis(10));
        }
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
        let mut data = vec![0; length];
        match self.request(|device, token| device.start(Request::read(token, offset, &mut data)))? {
            Outcome::Data(data) => Ok(data),
            Outcome::Done => Ok(Vec::new()),
            Outcome::Extents(_) => panic!("a read has no extents"),
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8], durability: Durability) -> Answer {
        self.request(|device, token| device.start(Request::write(token, offset, data, durability)))
    }

    pub fn flush(&mut self) -> Answer {
        self.request(|device, token| device.start(Request::flush(token)))
    }

    pub fn trim(&mut self, offset: u64, length: u64) -> Answer {
        self.request(|device, token| {
            device.start(Request::trim(token, offset, length, Durability::Volatile))
        })
    }

    pub fn zero(&mut self, offset: u64, length: u64) -> Answer {
        let mode = ZeroMode {
            durability: Durability::Durable,
            may_punch: false,
            fast_only: false,
        };
        self.request(|device, token| {
            device.start(Request::write_zeroes(token, offset, length, mode))
        })
    }

    pub fn extents(&mut self, offset: u64, length: u64) -> Result<Vec<Extent>, IoError> {
        let mut runs = Vec::new();
        match self.request(|device, token| {
            device.start(Request::extents(token, offset, length, &mut runs))
        })? {
            Outcome::Extents(runs) => Ok(runs),
            other => panic!("{other:?} are no extents"),
        }
    }
}
