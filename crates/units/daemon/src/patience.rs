//! How long a connection is waited for: decided here, without sockets or clocks.

use std::time::Duration;

/// How long connections are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// A host has shown its certificate and said hello within this.
    pub hello: Duration,
    /// A host that asks nothing, and waits for nothing, is closed after this.
    pub idle: Duration,
    /// In so long 128 KiB are taken or sent by a host that does not take
    /// an answer, or has sent a part of a request.
    pub stalled: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            idle: Duration::from_secs(600),
            stalled: Duration::from_secs(30),
        }
    }
}

/// Who moves fewer bytes than that while it keeps the daemon waiting is gone.
const MOVED_MIN: u64 = 128 << 10;

/// How a connection is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Look {
    /// It has said hello.
    pub is_greeted: bool,
    /// Requests are being carried out, or answers are to be sent.
    pub is_busy: bool,
    /// It does not take what is to be sent, or has sent a part of a request whose
    /// rest would be taken.
    pub is_stalled: bool,
    /// Requests that have come.
    pub requests: u64,
    /// Bytes that were received and sent.
    pub moved: u64,
}

/// Why a connection is waited for no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Impatient {
    #[error("it has not said hello in time")]
    Hello,
    #[error("it has asked nothing for long")]
    Idle,
    #[error("it does not take its answers, or does not send its requests to their end")]
    Stalled,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Patience {
    waits: Waits,
    /// When it came.
    begun: Duration,
    /// When there was something to do last, and how many requests had come.
    busy: (Duration, u64),
    /// Since when it has stalled, and what was moved before.
    stalled: Option<(Duration, u64)>,
}

impl Patience {
    pub fn new(waits: Waits, begun: Duration) -> Self {
        Self {
            waits,
            begun,
            busy: (begun, 0),
            stalled: None,
        }
    }

    /// It is `now`, and the connection is like this: until when nothing has to be
    /// done about that.
    ///
    /// # Errors
    /// [`Impatient`]: it is to be closed.
    pub fn look(&mut self, now: Duration, look: Look) -> Result<Duration, Impatient> {
        if !look.is_greeted {
            let until = self.begun + self.waits.hello;
            return before(now, until).ok_or(Impatient::Hello);
        }
        if look.is_busy || look.requests != self.busy.1 {
            self.busy = (now, look.requests);
        }
        let idle = before(now, self.busy.0 + self.waits.idle).ok_or(Impatient::Idle)?;
        if !look.is_stalled {
            self.stalled = None;
            return Ok(idle);
        }
        let (since, moved) = *self.stalled.get_or_insert((now, look.moved));
        let until = since + self.waits.stalled;
        match before(now, until) {
            Some(until) => Ok(idle.min(until)),
            None if look.moved - moved >= MOVED_MIN => {
                self.stalled = Some((now, look.moved));
                Ok(idle.min(now + self.waits.stalled))
            }
            None => Err(Impatient::Stalled),
        }
    }
}

fn before(now: Duration, until: Duration) -> Option<Duration> {
    (now < until).then_some(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const GREETED: Look = Look {
        is_greeted: true,
        is_busy: false,
        is_stalled: false,
        requests: 1,
        moved: 0,
    };

    #[test]
    fn who_says_no_hello_or_nothing_more_is_closed() {
        let mut patience = Patience::new(Waits::default(), at(100));
        assert_eq!(patience.look(at(109), Look::default()), Ok(at(110)));
        let late = patience.look(at(110), Look::default());
        assert_eq!(late, Err(Impatient::Hello));

        assert_eq!(patience.look(at(105), GREETED), Ok(at(705)));
        assert_eq!(patience.look(at(704), GREETED), Ok(at(705)));
        let asks = Look {
            requests: 2,
            ..GREETED
        };
        assert_eq!(patience.look(at(704), asks), Ok(at(1304)));
        let waits = Look {
            is_busy: true,
            ..asks
        };
        assert_eq!(patience.look(at(9000), waits), Ok(at(9600)));
        assert_eq!(patience.look(at(9600), asks), Err(Impatient::Idle));
    }

    #[test]
    fn who_takes_no_answers_is_closed_and_who_takes_them_slowly_is_not() {
        let mut patience = Patience::new(Waits::default(), at(0));
        let mut look = Look {
            is_busy: true,
            is_stalled: true,
            ..GREETED
        };
        assert_eq!(patience.look(at(5), look), Ok(at(35)));
        look.moved = MOVED_MIN;
        assert_eq!(patience.look(at(35), look), Ok(at(65)));
        look.moved += MOVED_MIN - 1;
        assert_eq!(patience.look(at(64), look), Ok(at(65)));
        let flows = Look {
            is_stalled: false,
            ..look
        };
        assert_eq!(patience.look(at(65), flows), Ok(at(665)));
        assert_eq!(patience.look(at(66), look), Ok(at(96)));
        assert_eq!(patience.look(at(96), look), Err(Impatient::Stalled));
    }
}
