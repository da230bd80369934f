//! `encrypt`: what lies below is AES-256-XTS under a LUKS2 header, which cryptsetup opens
//! anywhere (docs/internals/encryption.md).
//!
//! ```text
//!  above                 ├──────── data ────────┤
//!  below   ├── 16 MiB ───┼──────── data ────────┤
//!            header        encrypted, sector by sector
//! ```
//!
//! Invariants:
//!
//! * All tokens below are its own.
//! * A write that is not whole sectors reads, changes and writes them. While it does, no
//!   other change of these sectors is under way: it waits (`Busy`), or the other one does.
//! * Of what it does by itself (a new header, a re-encryption) one thing at a time is under
//!   way below, and what it is done to is held: nobody else's request touches it meanwhile.
//! * It writes nothing of its own before it is told to [`Filter::resume`]: until then
//!   other filters may have the disk.
//! * Holes below do not read as zeroes: all of it is data to whoever asks.

mod cipher;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod mortal;
mod opening;
mod requests;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, OpKind, Outcome, Request,
    Started, Token,
};

use chain_policy::EncryptConfig;
use luks::{Argon2Cost, DATA_OFFSET};

use crate::{Filter, FilterContext};

use cipher::Cipher;
use requests::{Modify, Pending};

use opening::{Opened, Opening, Reading};
use work::Work;

/// The size is whole blocks of this, in bytes, whatever a sector has.
const BLOCK_BYTES: u64 = 4096;

/// How often something is offered again that was answered `Busy`.
const ASK_AGAIN_EVERY: Duration = Duration::from_millis(1);

/// See the module's head.
pub struct Encrypt {
    config: EncryptConfig,
    /// Of a key slot that it makes.
    cost: Argon2Cost,
    context: FilterContext,
    state: State,
    tokens: Tokens,
}

enum State {
    Opening(Opening),
    Open(Box<Open>),
    Failed(String),
}

/// Tokens that nobody has had: there are enough for all time.
#[derive(Default)]
struct Tokens(Token);

impl Tokens {
    fn next(&mut self) -> Token {
        self.0 += 1;
        self.0
    }
}

/// A disk whose key is known.
struct Open {
    cipher: Cipher,
    /// Requests under way below, by the tokens that they have there.
    pending: BTreeMap<Token, Pending>,
    /// Writes whose sectors were read and changed, and that are to be written.
    stalled: Vec<Modify>,
    /// So many of both are writes of parts of sectors.
    modifying: usize,
    work: Work,
    /// What is encrypted, until it is written.
    scratch: Vec<u8>,
}

/// How many bytes there are for a guest.
fn data_bytes(below: DeviceGeometry) -> u64 {
    below.size_bytes.saturating_sub(DATA_OFFSET) / BLOCK_BYTES * BLOCK_BYTES
}

/// The device below answered something that was not asked for.
fn nonsense(outcome: &Outcome) -> IoError {
    let what = match outcome {
        Outcome::Done => "nothing".to_owned(),
        Outcome::Data(data) => format!("{} bytes", data.len()),
        Outcome::Extents(runs) => format!("{} extents", runs.len()),
    };
    IoError::Unavailable(format!("the device below answered with {what}"))
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Encrypt {
    /// With these parameters.
    #[must_use]
    pub fn new(config: EncryptConfig, context: FilterContext) -> Self {
        Self {
            config,
            cost: Argon2Cost::default(),
            context,
            state: State::Opening(Opening::Reading(Reading::new())),
            tokens: Tokens::default(),
        }
    }

    #[cfg(test)]
    fn with_cost(self, cost: Argon2Cost) -> Self {
        Self { cost, ..self }
    }

    /// One step of [`Filter::open`].
    fn step(&mut self, below: &mut dyn BlockDevice, opening: Opening) -> State {
        let image = match opening {
            Opening::Reading(mut reading) => {
                let read = reading.go_on(below, || self.tokens.next());
                match read {
                    Err(error) => {
                        return State::Failed(format!("its header cannot be read: {error}"));
                    }
                    Ok(None) => return State::Opening(Opening::Reading(reading)),
                    Ok(Some(image)) => image,
                }
            }
            Opening::Waiting(image) => image,
            Opening::Deriving(receiver) => return Self::derived(below, receiver),
        };
        let context = &self.context;
        let Some(turn) = context
            .host
            .key_derivations
            .turn(&context.attachment.attribution)
        else {
            return State::Opening(Opening::Waiting(image));
        };
        let may_write = !below.capabilities().read_only;
        let (config, cost) = (&self.config, self.cost);
        let receiver = opening::derive(image, config, cost, may_write, (turn, context));
        Self::derived(below, receiver)
    }

    fn derived(below: &dyn BlockDevice, receiver: Receiver<Result<Opened, String>>) -> State {
        match opening::derived(&receiver) {
            None => State::Opening(Opening::Deriving(receiver)),
            Some(Err(reason)) => State::Failed(reason),
            Some(Ok(opened)) => Open::begin(opened, data_bytes(below.geometry())),
        }
    }
}

impl Open {
    fn begin(opened: Opened, size: u64) -> State {
        let boundary = opened.cipher.boundary();
        let saved = opened.saved.as_ref();
        if saved.is_some_and(|saved| saved.content.len() as u64 > size.saturating_sub(boundary)) {
            return State::Failed("its journal does not lie within the disk".to_owned());
        }
        State::Open(Box::new(Self {
            cipher: opened.cipher,
            pending: BTreeMap::new(),
            stalled: Vec::new(),
            modifying: 0,
            work: Work::new(opened.header, opened.steps, opened.is_new, opened.saved),
            scratch: Vec::new(),
        }))
    }
}

impl Filter for Encrypt {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: data_bytes(below),
            ..below
        }
    }

    /// Zeroes are written as any bytes are, so whoever has many writes them himself.
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities {
            can_trim: below.can_trim && self.config.allow_discard,
            can_write_zeroes: false,
            ..below
        }
    }

    fn open(&mut self, below: &mut dyn BlockDevice) -> crate::Opening {
        let size = below.geometry().size_bytes;
        if size < DATA_OFFSET {
            let reason = format!("the disk has {size} bytes, and a header takes {DATA_OFFSET}");
            self.state = State::Failed(reason);
        }
        let taken = State::Failed("it was broken off".to_owned());
        self.state = match std::mem::replace(&mut self.state, taken) {
            State::Opening(opening) => self.step(below, opening),
            other => other,
        };
        match &self.state {
            State::Open(_) => crate::Opening::Ready,
            State::Opening(_) => crate::Opening::Pending,
            State::Failed(reason) => crate::Opening::Failed(reason.clone()),
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        let is_known = match op.kind() {
            OpKind::WriteZeroes => false,
            OpKind::Trim => self.config.allow_discard,
            _ => true,
        };
        if !is_known {
            return Started::Failed(IoError::NotSupported);
        }
        let open = match &mut self.state {
            State::Open(open) => open,
            State::Opening(_) => return Started::Busy,
            State::Failed(reason) => return Started::Failed(IoError::Stopped(reason.clone())),
        };
        let range = op.range();
        if let Err(error) = range.check(data_bytes(below.geometry())) {
            return Started::Failed(error);
        }
        let sectors = open.cipher.sectors(&(range.offset..range.end()));
        match open.work.refuses(&sectors) {
            Some(refused) => refused,
            None => open.start(below, &mut self.tokens, Request { token, op }, sectors),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let mut answered = Vec::new();
        below.poll(&mut answered);
        match &mut self.state {
            State::Open(open) => {
                let now = self.context.host.clock.monotonic();
                for completion in answered {
                    open.answered(completion, now, completions);
                }
                open.write_modified(below, &mut self.tokens, completions);
                open.go_on(below, &mut self.tokens, &self.context);
            }
            State::Opening(Opening::Reading(reading)) => {
                answered.into_iter().for_each(|one| reading.answered(one));
            }
            // What was asked for before it failed is nobody's.
            State::Opening(_) | State::Failed(_) => {}
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        let State::Open(open) = &self.state else {
            return None;
        };
        let stalled = (!open.stalled.is_empty()).then_some(ASK_AGAIN_EVERY);
        let now = self.context.host.clock.monotonic();
        stalled.into_iter().chain(open.work.next_timer(now)).min()
    }

    fn quiesce(&mut self) -> bool {
        match &mut self.state {
            State::Open(open) => open.work.quiesce(),
            State::Opening(_) | State::Failed(_) => true,
        }
    }

    fn resume(&mut self) {
        if let State::Open(open) = &mut self.state {
            open.work.resume();
        }
    }
}
