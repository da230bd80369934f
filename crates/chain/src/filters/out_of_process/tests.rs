//! Backends that die, hang and restart, in a simulated world.

mod restarts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    OwnedOp, Request, Started, Token,
};
use chain_policy::{FilterPolicy, Policy};
use parking_lot::Mutex;
use world::simulated::{SimulatedClock, SimulatedRandom};
use world::{Clock, Millis, Wake, World};

use crate::testing::EventRecorder;
use crate::{
    BackendFactory, Chain, FilterBackend, FilterContext, HotSwap, HotSwapError, LinkState,
    PendingQueue, RemoteDisk, SizeRule, build_filters,
};

const SIZE: usize = 256 << 10;
const BLOCK: usize = 4096;
const BLOCKS: usize = SIZE / BLOCK;

/// The faults of a backend, which the test sets.
#[derive(Default)]
struct Fate {
    /// The backend ends at once.
    dies: bool,
    /// The backend completes no request.
    hangs: bool,
    /// The backend never gets ready.
    is_missing: bool,
    /// The size of its disk that the backend reports, in bytes.
    size: Option<u64>,
    cannot_flush: bool,
    starts: u32,
}

type Shared = Arc<Mutex<Fate>>;

/// A pending request, or an acknowledged change that no flush has covered.
#[derive(Debug)]
struct Entry {
    op: OwnedOp,
    /// The token of the requester, until the request completes.
    owner: Option<Token>,
    is_sent: bool,
    /// The number of flushes that had been started when the change was acknowledged.
    kept: Option<u64>,
}

enum Life {
    None,
    Starting,
    Runs,
    Bypassed,
}

/// A backend that forwards its requests. It replays pending requests and changes that no flush has
/// covered after a restart, as an NBD client would.
struct Forwarder {
    queue: PendingQueue,
    fate: Shared,
    random: SimulatedRandom,
    life: Life,
    /// The size when it was first ready, in bytes. With another size it is never ready.
    served: Option<u64>,
    log: BTreeMap<u64, Entry>,
    next: u64,
    flushes: u64,
    /// The pending requests of this life, by their tokens in the queue.
    pending: HashMap<Token, u64>,
    last_token: Token,
    completions: Vec<Completion>,
}

impl Forwarder {
    fn begin(&mut self, token: Token, op: OwnedOp) -> Started {
        if self.random.below(8) == 0 {
            return Started::Busy;
        }
        self.log.insert(
            self.next,
            Entry {
                op,
                owner: Some(token),
                is_sent: false,
                kept: None,
            },
        );
        self.next += 1;
        Started::Pending
    }

    fn interrupt(&mut self) {
        self.pending.clear();
        for entry in self.log.values_mut() {
            entry.is_sent = false;
        }
    }

    fn is_up(&self) -> bool {
        match self.life {
            Life::Runs => !self.fate.lock().dies,
            Life::Bypassed => true,
            Life::None | Life::Starting => false,
        }
    }

    fn send(&mut self) {
        // Acknowledged changes are replayed first, one by one.
        let kept = self
            .log
            .iter()
            .find(|(_, entry)| entry.kept.is_some() && !entry.is_sent);
        let is_replaying = self
            .pending
            .values()
            .any(|id| self.log.get(id).is_some_and(|entry| entry.kept.is_some()));
        let ids: Vec<u64> = match kept {
            _ if is_replaying => return,
            Some((id, _)) => vec![*id],
            None => {
                let waiting = self.log.iter().filter(|(_, entry)| !entry.is_sent);
                waiting.map(|(id, _)| *id).collect()
            }
        };
        for id in ids {
            self.last_token += 1;
            let token = self.last_token;
            let entry = self.log.get_mut(&id).expect("answered");
            entry.is_sent = true;
            self.flushes += u64::from(entry.op == OwnedOp::Flush);
            let (started, _) = entry.op.start_on(&mut self.queue, token);
            assert_eq!(started, Started::Pending);
            self.pending.insert(token, id);
        }
    }

    fn completed(&mut self, id: u64, result: Result<Outcome, IoError>) {
        let (flushes, entry) = (self.flushes, self.log.get_mut(&id).expect("answered"));
        let is_ok = result.is_ok();
        match (entry.owner.take(), &entry.op) {
            (Some(token), OwnedOp::Write { .. }) if is_ok => {
                entry.kept = Some(flushes);
                self.completions.push(Completion { token, result });
            }
            (Some(token), op) => {
                let is_flush = *op == OwnedOp::Flush;
                self.log.remove(&id);
                if is_flush && is_ok {
                    // The test has one flush pending at a time.
                    self.log
                        .retain(|_, entry| entry.kept.is_none_or(|at| at >= flushes));
                }
                self.completions.push(Completion { token, result });
            }
            // A replayed change stays in the log until a flush covers it.
            (None, _) => assert!(
                is_ok,
                "an acknowledged change fails when it is replayed: {result:?}"
            ),
        }
    }
}

impl FilterBackend for Forwarder {
    fn launch(&mut self) {
        self.interrupt();
        self.life = Life::Starting;
        let mut fate = self.fate.lock();
        fate.starts += 1;
        (fate.dies, fate.hangs) = (false, false);
    }

    fn bypass(&mut self) {
        self.interrupt();
        self.life = Life::Bypassed;
    }

    fn give_up(&mut self, why: &str) {
        self.interrupt();
        self.life = Life::None;
        let waiting: Vec<u64> = self
            .log
            .iter()
            .filter(|(_, entry)| entry.owner.is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.completed(id, Err(IoError::Unavailable(why.to_owned())));
        }
    }
}

impl RemoteDisk for Forwarder {
    fn link_state(&self) -> LinkState {
        match self.life {
            Life::None => LinkState::Broken("the filter gave it up".to_owned()),
            Life::Starting => LinkState::Connecting,
            Life::Runs if self.fate.lock().dies => LinkState::Broken("it has died".to_owned()),
            Life::Runs | Life::Bypassed => LinkState::Ready,
        }
    }
}

impl BlockDevice for Forwarder {
    fn geometry(&self) -> DeviceGeometry {
        let below = self.queue.geometry();
        DeviceGeometry {
            size_bytes: self.fate.lock().size.unwrap_or(below.size_bytes),
            ..below
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            can_flush: !self.fate.lock().cannot_flush,
            ..self.queue.capabilities()
        }
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } | Op::Write { .. } | Op::Flush => self.begin(token, op.to_owned()),
            Op::Prefetch { .. } => Started::Done,
            Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {
                Started::Failed(IoError::NotSupported)
            }
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let is_missing = self.fate.lock().is_missing;
        if matches!(self.life, Life::Starting) && !is_missing && self.random.below(3) == 0 {
            let size = self.geometry().size_bytes;
            self.life = match *self.served.get_or_insert(size) == size {
                true => Life::Runs,
                false => Life::None,
            };
        }
        let mut from_queue = Vec::new();
        self.queue.poll(&mut from_queue);
        let answers = self.is_up() && !(matches!(self.life, Life::Runs) && self.fate.lock().hangs);
        for completion in from_queue {
            // Completions for an earlier life, or for a backend that has died, are dropped.
            let id = self.pending.remove(&completion.token);
            if let Some(id) = id.filter(|_| answers) {
                self.completed(id, completion.result);
            }
        }
        if answers {
            self.send();
        }
        completions.append(&mut self.completions);
    }

    fn next_timer(&self) -> Option<Duration> {
        let waits = self.is_up() && self.log.values().any(|entry| !entry.is_sent);
        let coming = matches!(self.life, Life::Starting);
        (waits || coming || !self.completions.is_empty()).then_some(Duration::from_millis(1))
    }
}

/// A disk that carries out a request when it completes it, in any order.
struct SlowDisk {
    bytes: Vec<u8>,
    /// The bytes by which it has grown.
    grown: u64,
    pending: Vec<(Token, OwnedOp)>,
    /// No request completes.
    holds: bool,
    random: SimulatedRandom,
}

impl SlowDisk {
    fn begin(&mut self, token: Token, op: OwnedOp) -> Started {
        if self.random.below(8) == 0 {
            return Started::Busy;
        }
        self.pending.push((token, op));
        Started::Pending
    }
}

impl BlockDevice for SlowDisk {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: SIZE as u64 + self.grown,
            block_bytes: BLOCK as u32,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } | Op::Write { .. } | Op::Flush => self.begin(token, op.to_owned()),
            Op::Prefetch { .. } => Started::Done,
            Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {
                Started::Failed(IoError::NotSupported)
            }
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if !self.holds && !self.pending.is_empty() && self.random.below(2) > 0 {
            let at = self.random.below(self.pending.len() as u64) as usize;
            let (token, op) = self.pending.swap_remove(at);
            let outcome = match op {
                OwnedOp::Read { offset, length } => {
                    Outcome::Data(self.bytes[offset as usize..][..length].to_vec())
                }
                OwnedOp::Write { offset, data, .. } => {
                    self.bytes[offset as usize..][..data.len()].copy_from_slice(&data);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            completions.push(Completion {
                token,
                result: Ok(outcome),
            });
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        (!self.pending.is_empty()).then_some(Duration::from_millis(1))
    }
}

struct Forwarders(Shared);

impl BackendFactory for Forwarders {
    fn make(
        &self,
        _: &FilterPolicy,
        _: &FilterContext,
        queue: PendingQueue,
    ) -> Result<Box<dyn FilterBackend>, String> {
        Ok(Box::new(Forwarder {
            queue,
            fate: Arc::clone(&self.0),
            random: SimulatedRandom::new(7),
            life: Life::None,
            served: None,
            log: BTreeMap::new(),
            next: 0,
            flushes: 0,
            pending: HashMap::new(),
            last_token: 0,
            completions: Vec::new(),
        }))
    }
}

struct Rig {
    chain: Chain<SlowDisk>,
    clock: Arc<SimulatedClock>,
    random: SimulatedRandom,
    fate: Shared,
    events: Arc<EventRecorder>,
    token: Token,
    context: FilterContext,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let fate = Shared::default();
        let events = Arc::<EventRecorder>::default();
        let mut context = FilterContext::simulated(World {
            clock: Arc::clone(&clock) as _,
            ..World::real(1)
        });
        context.host.backends = Arc::new(Forwarders(Arc::clone(&fate)));
        context.attachment.events = Arc::clone(&events) as _;
        let device = SlowDisk {
            bytes: vec![0; SIZE],
            grown: 0,
            pending: Vec::new(),
            holds: false,
            random: SimulatedRandom::new(seed),
        };
        Self {
            chain: Chain::new(device, Arc::clone(&clock) as _, Wake::noop()),
            clock,
            random: SimulatedRandom::new(seed),
            fate,
            events,
            token: 0,
            context,
        }
    }

    fn begin(&mut self, on_failure: &str) -> Result<(), HotSwapError> {
        let text = format!(
            "volume = \"disk\"\n[[filter]]\nkind = \"rate\"\nname = \"far\"\niops = 1\nruns = \
             \"process\"\non_failure = \"{on_failure}\"\n"
        );
        let policy = Policy::parse(&text).expect("a policy");
        let (sender, receiver) = mpsc::channel();
        self.chain.hot_swap(HotSwap {
            filters: build_filters(&policy, &self.context),
            rule: SizeRule::MayChange,
            on_swapped: Box::new(move |result| sender.send(result).expect("a receiver")),
        });
        loop {
            self.poll();
            if let Ok(result) = receiver.try_recv() {
                return result;
            }
        }
    }

    /// Polls the chain at its next timer.
    fn poll(&mut self) -> Vec<Completion> {
        let timer = self.chain.next_timer().unwrap_or(Duration::from_millis(10));
        self.clock
            .advance(timer.clamp(Duration::from_micros(10), Duration::from_millis(20)));
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.end_batch().expect("memory works");
        completions
    }

    fn next(&mut self) -> Token {
        self.token += 1;
        self.token
    }

    /// Starts a request, again while the disk is busy, and waits for its completion.
    fn wait(
        &mut self,
        mut start: impl FnMut(&mut Chain<SlowDisk>, Token) -> Started,
    ) -> Result<Outcome, IoError> {
        let token = self.next();
        let mut early = loop {
            match start(&mut self.chain, token) {
                Started::Busy => assert_eq!(self.poll(), []),
                Started::Failed(error) => return Err(error),
                Started::Done => panic!("a backend completes no request at once"),
                Started::Pending => break Vec::new(),
            }
        };
        loop {
            if let Some(at) = early.iter().position(|one: &Completion| one.token == token) {
                return early.swap_remove(at).result;
            }
            early.extend(self.poll());
        }
    }

    fn write(&mut self, block: usize, value: u8) -> Result<(), IoError> {
        let at = (block * BLOCK) as u64;
        let written = self.wait(|chain, token| {
            chain.start(Request::write(
                token,
                at,
                &[value; BLOCK],
                Durability::Volatile,
            ))
        });
        written.map(|_| ())
    }

    fn read(&mut self, block: usize) -> Result<u8, IoError> {
        let at = (block * BLOCK) as u64;
        match self.wait(|chain, token| chain.start(Request::read(token, at, &mut [0; BLOCK])))? {
            Outcome::Data(data) => {
                assert!(data.iter().all(|byte| *byte == data[0]), "torn");
                Ok(data[0])
            }
            other => panic!("a read completes with {other:?}"),
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.wait(|chain, token| chain.start(Request::flush(token)))
            .map(|_| ())
    }

    fn has_reported(&self, text: &str) -> bool {
        self.events.has_message(text)
    }
}

#[test]
fn a_backend_that_is_missing_or_reports_a_wrong_size_is_refused() {
    let mut rig = Rig::new(3);
    rig.fate.lock().is_missing = true;
    let refused = rig
        .begin("fail-closed")
        .expect_err("the backend is missing");
    assert!(refused.to_string().contains("within 15 s"), "{refused}");
    rig.fate.lock().is_missing = false;
    rig.fate.lock().size = Some(SIZE as u64 + 1);
    let refused = rig.begin("bypass").expect_err("the size is wrong");
    assert!(
        refused
            .to_string()
            .contains("more than the 262144 bytes below"),
        "{refused}"
    );
    rig.fate.lock().size = None;
    rig.fate.lock().cannot_flush = true;
    let refused = rig.begin("bypass").expect_err("it cannot flush");
    assert!(refused.to_string().contains("it cannot flush"), "{refused}");
    rig.fate.lock().cannot_flush = false;
    rig.begin("bypass").expect("attached");
    assert_eq!(rig.read(0), Ok(0));
}

#[test]
fn closing_a_disk_does_not_wait_for_its_backend() {
    for rule in ["fail-closed", "bypass"] {
        let mut rig = Rig::new(4);
        rig.begin(rule).expect("attached");
        rig.write(1, 11).expect("answered");
        {
            let mut fate = rig.fate.lock();
            (fate.dies, fate.is_missing) = (true, true);
        }
        rig.poll();
        rig.chain.stop_waiting();
        let begun = rig.clock.monotonic();
        let flushed = rig.flush();
        assert!(rig.clock.monotonic() - begun < Duration::from_secs(1));
        assert_eq!(flushed.is_ok(), rule == "bypass", "{rule}: {flushed:?}");
        let mut values = BTreeSet::new();
        for block in 0..4 {
            values.extend(rig.read(block).ok());
        }
        assert_eq!(values.contains(&11), rule == "bypass");
    }
}
