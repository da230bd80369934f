//! `encrypt`: encrypts the disk below with AES-256-XTS under a LUKS2 header, which cryptsetup can
//! open on any machine (docs/internals/encrypt-filter.md).
//!
//! ```text
//!  above                 ├──────── data ────────┤
//!  below   ├── 16 MiB ───┼──────── data ────────┤
//!            header        encrypted, sector by sector
//! ```
//!
//! Invariants:
//!
//! * The filter chooses all tokens below itself.
//! * A write of parts of sectors reads, changes and writes the whole sectors. Meanwhile no other
//!   change of these sectors is pending: one of the two waits (`Busy`).
//! * The filter's own work (a new header, a re-encryption) has one request pending at a time, and
//!   holds the range that it works on: no other request touches that range.
//! * It writes nothing of its own before [`Filter::resume`]: until then other filters may have the
//!   disk.
//! * Holes below do not read as zeroes, so the filter reports the whole disk as data.

mod cipher;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod crash_disk;
mod opening;
mod requests;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
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

use opening::{OpenJob, Opened, Opening, Reading};
use work::Work;

/// The size above is a multiple of this many bytes, for any sector size.
const BLOCK_BYTES: u64 = 4096;

/// How often a request is retried that was answered `Busy`.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// The `encrypt` filter of a chain.
pub struct Encrypt {
    config: EncryptConfig,
    /// The cost of key slots that it makes.
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

/// Fresh tokens: 2^56 are never used up.
#[derive(Default)]
struct Tokens(Token);

impl Tokens {
    fn next(&mut self) -> Token {
        self.0 += 1;
        self.0
    }
}

/// The state of a disk whose key is known.
struct Open {
    cipher: Cipher,
    /// Pending requests, by their tokens below.
    pending: BTreeMap<Token, Pending>,
    /// Writes of parts of sectors whose sectors were read and changed, and are not written yet.
    stalled: Vec<Modify>,
    /// The number of pending writes of parts of sectors, the stalled ones included.
    modifying: usize,
    work: Work,
    /// The buffer in which a write is encrypted.
    scratch: Vec<u8>,
}

/// The size above the filter, in bytes.
fn data_bytes(below: DeviceGeometry) -> u64 {
    below.size_bytes.saturating_sub(DATA_OFFSET) / BLOCK_BYTES * BLOCK_BYTES
}

/// The error of a completion that does not fit its request.
fn unexpected(outcome: &Outcome) -> IoError {
    let what = match outcome {
        Outcome::Done => "nothing".to_owned(),
        Outcome::Data(data) => format!("{} bytes", data.len()),
        Outcome::Extents(runs) => format!("{} extents", runs.len()),
    };
    IoError::Unavailable(format!(
        "the device below completed a request with {what}, which does not fit it"
    ))
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Encrypt {
    /// A filter with these parameters.
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
                let read = reading.start_reads(below, || self.tokens.next());
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
        let Some(permit) = context
            .host
            .key_derivations
            .permit(&context.attachment.attribution)
        else {
            return State::Opening(Opening::Waiting(image));
        };
        let job = OpenJob {
            image,
            config: self.config.clone(),
            cost: self.cost,
            may_write: !below.capabilities().read_only,
            keys: Arc::clone(&context.attachment.keys),
            random: Arc::clone(&context.host.random),
        };
        let receiver = opening::derive(&context.host.key_derivations, permit, job);
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
            return State::Failed(
                "the journal of its re-encryption covers data beyond the end of the disk"
                    .to_owned(),
            );
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

    /// Zeroes would have to be encrypted like any data, so `WriteZeroes` saves nothing.
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
            let reason =
                format!("the disk has {size} bytes, and the header alone takes {DATA_OFFSET}");
            self.state = State::Failed(reason);
        }
        let placeholder = State::Failed("opening it was interrupted".to_owned());
        self.state = match std::mem::replace(&mut self.state, placeholder) {
            State::Opening(opening) => self.step(below, opening),
            other => other,
        };
        match &self.state {
            State::Open(_) => crate::Opening::Ready,
            State::Opening(_) => crate::Opening::Pending,
            State::Failed(reason) => crate::Opening::Failed(reason.clone().into()),
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        let is_supported = match op.kind() {
            OpKind::WriteZeroes => false,
            OpKind::Trim => self.config.allow_discard,
            _ => true,
        };
        if !is_supported {
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
        match open.work.refusal(&sectors) {
            Some(refused) => refused,
            None => open.start(below, &mut self.tokens, Request { token, op }, sectors),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let mut done_below = Vec::new();
        below.poll(&mut done_below);
        match &mut self.state {
            State::Open(open) => {
                let now = self.context.host.clock.monotonic();
                for completion in done_below {
                    open.completed(completion, now, completions);
                }
                open.write_modified(below, &mut self.tokens, completions);
                open.continue_work(below, &mut self.tokens, &self.context);
            }
            State::Opening(Opening::Reading(reading)) => {
                done_below
                    .into_iter()
                    .for_each(|completion| reading.completed(completion));
            }
            // Completions of reads that were started before it failed are dropped.
            State::Opening(_) | State::Failed(_) => {}
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        let State::Open(open) = &self.state else {
            return None;
        };
        let stalled = (!open.stalled.is_empty()).then_some(RETRY_EVERY);
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
