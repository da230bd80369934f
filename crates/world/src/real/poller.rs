//! A poller over `epoll` that waits for the events of sockets, and wakers for its loop.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::{Interest, Ready, Wake};

/// The maximal number of sockets that one wait reports. The next wait reports the others.
const EVENTS_MAX: usize = 64;

/// A poller that waits for the events of many sockets. It is level-triggered: it reports a socket
/// as long as the socket is ready.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller that watches no socket yet.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Begins to watch `source`, which is reported with `key`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn add(&self, source: &impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::add(&self.epoll, source, data, flags_of(interest))?)
    }

    /// Changes which events of `source` are reported.
    ///
    /// # Errors
    /// The operating system's.
    pub fn modify(&self, source: &impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::modify(
            &self.epoll,
            source,
            data,
            flags_of(interest),
        )?)
    }

    /// Stops watching `source`. Closing it does the same.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove(&self, source: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Clears `ready`, waits until a socket is ready or `timeout` has passed, and puts the ready
    /// sockets into `ready`. Without a timeout it waits for any time. A timeout is rounded up to
    /// a multiple of 50 µs; zero does not wait.
    ///
    /// # Errors
    /// The operating system's. An interrupted wait is no error.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let timeout = timeout.map(|timeout| {
            // After a day the caller waits again; longer timeouts could overflow.
            let timeout = timeout.min(Duration::from_hours(24));
            let rounded = Duration::from_micros(timeout.as_nanos().div_ceil(50_000) as u64 * 50);
            Timespec {
                tv_sec: rounded.as_secs() as i64,
                tv_nsec: rounded.subsec_nanos().into(),
            }
        });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let seen = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((seen, _)) => seen,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ready.extend(seen.iter().map(|event| {
            let flags = event.flags;
            let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            Ready {
                key: event.data.u64(),
                readable: flags.contains(epoll::EventFlags::IN) || hung_up,
                writable: flags.contains(epoll::EventFlags::OUT) || hung_up,
                hung_up,
            }
        }));
        Ok(())
    }
}

fn flags_of(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.readable);
    flags.set(epoll::EventFlags::OUT, interest.writable);
    flags
}

/// Wakes a loop that waits on a [`Poller`], from any thread. The loop adds the waker to its poller,
/// and [`clear`](Waker::clear)s it when the poller reports it.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker that has not been used.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the poller report the waker.
    pub fn wake(&self) {
        // This fails only if the counter is at its maximum, and then it is set already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Clears the event, so that the poller reports the waker only after the next
    /// [`wake`](Waker::wake).
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    /// A handle that uses this waker.
    #[must_use]
    pub fn handle(&self) -> Wake {
        let waker = self.clone();
        Wake::new(move || waker.wake())
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn wait(poller: &Poller) -> Vec<Ready> {
        let mut ready = Vec::new();
        poller
            .wait(Some(Duration::from_secs(10)), &mut ready)
            .expect("epoll works");
        ready
    }

    #[test]
    fn a_waker_is_reported_until_it_is_cleared() {
        let poller = Poller::new().expect("an epoll");
        let waker = Waker::new().expect("an eventfd");
        poller.add(&waker, 7, Interest::READABLE).expect("added");
        let wake = waker.handle();
        let thread = std::thread::spawn(move || {
            wake.wake();
            wake.wake();
        });
        assert_eq!(wait(&poller)[0].key, 7);
        thread.join().expect("it ran");
        waker.clear();
        let mut ready = Vec::new();
        poller
            .wait(Some(Duration::ZERO), &mut ready)
            .expect("epoll works");
        assert_eq!(ready, []);
    }
}
